"""Placement: a step's table over a mesh of devices, the collectives derived and never written by hand."""
