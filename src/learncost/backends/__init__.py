"""Printers of programs: a table as Python for NumPy, PyTorch or JAX, or as C, that needs nothing of this package."""

from learncost.backends.backend import BACKENDS
from learncost.backends.program import Program, program
from learncost.backends.records import RecordNode, Tree, fill, leaves, unfold

__all__ = ["BACKENDS", "Program", "RecordNode", "Tree", "fill", "leaves", "program", "unfold"]
