"""What a value takes in memory: bytes per element, and which line only gives an array a second name."""

from __future__ import annotations

from learncost.equation.table import Line, Sum, Word

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}


def alias(line: Line) -> bool:
    """Another name for the same array: a sum of one term with the sign +, or what was written into its room."""
    if isinstance(line, Word):
        return line.word == "append"
    return isinstance(line, Sum) and len(line.right) == 1 and line.signs == (1,)
