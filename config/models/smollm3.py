"""SmolLM3 (Hugging Face 2025): every fourth layer has no positions, and no layer has a window.

Published: RoPE with base 5e6 (2e6 is only the default of its class), trained on up to 65,536 tokens, 36 layers.
The study behind it: RoPE to NoPE and back again (arXiv 2501.18795). Source: transformers, models/smollm3.
Left out, because it is not position: GQA, attention that stops at the end of a document.
"""

pos_scheme = "rope"
rope_theta = 5e6
layers = "*3 | pos_scheme=none"
