"""Layers as tables: the shipped ones, calls of one in another, and what their lines say of products and gradients."""
