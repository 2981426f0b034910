"""Lines and formulas of layers, operators and models, derived from their tables."""
