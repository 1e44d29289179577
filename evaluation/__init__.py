"""The length evaluation: what is scored, the protocols, their statistics, and how results are shown."""
