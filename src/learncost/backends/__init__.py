"""Print a table as a program: Python for NumPy, PyTorch or JAX, or C, without a dependency on this package."""

from learncost.backends.backend import BACKENDS
from learncost.backends.program import ProgramText, program
from learncost.backends.records import RecordNode, Tree, fill, leaves, unfold

__all__ = ["BACKENDS", "ProgramText", "RecordNode", "Tree", "fill", "leaves", "program", "unfold"]
