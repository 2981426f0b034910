"""A step in place: calls that write into one arena, products by PyTorch, everything else by kernels in C."""

from learncost.backends.placed.layout import WIDTHS, Layout, laid_out
from learncost.backends.placed.program import TYPES, Placed, placed
from learncost.backends.placed.standalone import standalone

__all__ = ["TYPES", "WIDTHS", "Layout", "Placed", "laid_out", "placed", "standalone"]
