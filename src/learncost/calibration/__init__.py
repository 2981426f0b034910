"""Measure what this machine attains: single operations, links between processes, power."""
