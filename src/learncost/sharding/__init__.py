"""Sharding: rewrite a step for a mesh of devices, with the collectives derived from its tables."""
