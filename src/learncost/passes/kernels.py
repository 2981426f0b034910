"""Names of kernels, each given once."""

from __future__ import annotations

from learncost.ir.loop import walk
from learncost.ir.table import Table


class KernelNames:
    """The names that a table's kernels have, and those that are given out."""

    def __init__(self, table: Table) -> None:
        self._taken = {line.meta.kernel.name for line, _ in walk(table.lines) if line.meta.kernel}

    def of(self, wish: str) -> str:
        """The wish, with a number behind it where another kernel has it."""
        name, number = wish, 2
        while name in self._taken:
            name, number = f"{wish}_{number}", number + 1
        self._taken.add(name)
        return name
