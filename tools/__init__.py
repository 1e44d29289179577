"""Tools besides the main commands: the benchmark, pictures, and other people's weights: python -m tools.bench"""
