"""Beside the main path: speed, pictures of the schemes, and export. Run as  python -m tools.bench."""
