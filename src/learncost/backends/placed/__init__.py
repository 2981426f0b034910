"""A step in place: calls that write into one arena, products by PyTorch, everything else by kernels in C."""

from learncost.backends.placed.layout import WIDTHS, InPlaceLayout, laid_out
from learncost.backends.placed.program import TYPES, InPlaceProgram, placed
from learncost.backends.placed.standalone import standalone

__all__ = ["TYPES", "WIDTHS", "InPlaceLayout", "InPlaceProgram", "laid_out", "placed", "standalone"]
