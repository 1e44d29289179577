"""GLM-4.5 (Zhipu 2025, arXiv 2508.06471): half of the channels turn, in every layer.

Published: base 1e6 (its dense predecessors 1e4), partial_rotary_factor .5, q and k normalised (not in Air).
MiniMax-M2 is the same with --rope_theta=5e6, and its norm spans all heads.
Source: transformers, models/glm4_moe and models/minimax_m2. Left out, because it is not position: GQA, experts, the
weights of the norms.
"""

pos_scheme = "rope"
rope_theta = 1e6
rope_partial = 0.5
qk_norm = True
