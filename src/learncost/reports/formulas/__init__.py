"""Layers, words and models written out: their lines, formulas and programs, each derived from a table."""
