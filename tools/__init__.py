"""Tools besides the main commands: the benchmark and the export. Run as  python -m tools.bench."""
