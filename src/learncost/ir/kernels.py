"""Lines that run at once: consecutive items in groups, by a rule such as that of fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from learncost.ir.line import Line
from learncost.ir.loop import Statement

Grouped = TypeVar("Grouped")


def groups(items: Iterable[Grouped], together: Callable[[Sequence[Grouped], Grouped], bool]) -> Iterator[list[Grouped]]:
    """Yield consecutive items that run at once, in order."""
    group: list[Grouped] = []
    for item in items:
        if group and not together(group, item):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def in_kernel(group: Sequence[Statement], line: Statement) -> bool:
    """Return whether a line is of the same kernel as the line before it."""
    last = group[-1]
    kernel = line.meta.kernel if isinstance(line, Line) else None
    return kernel is not None and isinstance(last, Line) and last.meta.kernel == kernel
