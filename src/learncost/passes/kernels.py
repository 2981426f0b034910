"""Unique names of kernels."""

from __future__ import annotations

from learncost.ir.loop import walk
from learncost.ir.table import Table


class KernelNames:
    """The names of a table's kernels, and those allocated since."""

    def __init__(self, table: Table) -> None:
        self._taken = {line.meta.kernel.name for line, _ in walk(table.lines) if line.meta.kernel}

    def of(self, wish: str) -> str:
        """Return the wished name, with a number appended where another kernel has it."""
        name, number = wish, 2
        while name in self._taken:
            name, number = f"{wish}_{number}", number + 1
        self._taken.add(name)
        return name
