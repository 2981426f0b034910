"""Emit: a table as Python source for NumPy, PyTorch or JAX, which needs nothing of this package to run."""

from learncost.backends.backend import BACKENDS
from learncost.backends.program import Program, program
from learncost.backends.records import Node, Tree, fill, leaves, unfold

__all__ = ["BACKENDS", "Node", "Program", "Tree", "fill", "leaves", "program", "unfold"]
