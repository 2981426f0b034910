"""Sharding: a step over a mesh of devices, with its collectives derived from the tables."""
