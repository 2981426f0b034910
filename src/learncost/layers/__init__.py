"""Represent layers as tables: the shipped layers, calls of layers, and analyses of their products and gradients."""
