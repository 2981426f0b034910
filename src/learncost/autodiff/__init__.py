"""Automatic differentiation: the backward pass and weight update derived from a forward table, and tangents."""
