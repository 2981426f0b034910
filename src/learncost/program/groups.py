"""The grouping of lines that run at once: those of one kernel, and those of one PyTorch operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from learncost.ir.line import Line, Product, Sum
from learncost.layers.parts import is_norm
from learncost.layers.products import matrix_maccs

Item = TypeVar("Item")
Rule: TypeAlias = Callable[[Sequence[Line], Line], bool]
"""A predicate for a line that runs with the lines before it."""


def groups(items: Iterable[Item], together: Callable[[Sequence[Item], Item], bool]) -> Iterator[list[Item]]:
    """Yield consecutive items that run at once, in order."""
    group: list[Item] = []
    for item in items:
        if group and not together(group, item):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def in_kernels(group: Sequence[Line], line: Line) -> bool:
    """Return whether a line is of the same kernel."""
    return line.meta.kernel is not None and line.meta.kernel == group[-1].meta.kernel


def in_operators(group: Sequence[Line], line: Line) -> bool:
    """Return whether a line is of the same PyTorch operator: a bias after a product, a norm; or of a kernel."""
    first, last = group[0], group[-1]
    if line.meta.kernel or first.meta.kernel:
        return in_kernels(group, line)
    same = (line.meta.layer, line.meta.module) == (first.meta.layer, first.meta.module)
    return is_bias(line, last) or (of_norm(line) and of_norm(first) and same)


def is_matrix(line: Line) -> bool:
    """Return whether a line is a matrix product."""
    return isinstance(line, Product) and bool(matrix_maccs(line))


def is_bias(line: Line, product: Line) -> bool:
    """Return whether a line adds a vector to the product right before it."""
    if not isinstance(line, Sum) or len(line.right) != 2 or not is_matrix(product):
        return False
    product_term, vector = line.right
    return product_term.name == product.name and len(vector.axes) < len(product_term.axes)


def of_norm(line: Line) -> bool:
    """Return whether a line is of a norm; sums of the parts of a gradient are not."""
    return line.meta.local != "merge" and (is_norm(line.meta.layer) or is_norm(line.meta.operator))


def leaving(groups: Sequence[Sequence[Line]]) -> list[set[str]]:
    """Return the names that each group defines for others, or that nothing reads: those are carried, saved, or outputs.

    A name may be defined again, as by recomputation: its later readers read the later one.
    """
    makers: dict[str, int] = {}
    by_group: list[set[str]] = []
    for number, group in enumerate(groups):
        makes = {term.name for line in group for term in line.left}
        read = {name for line in group for name in line.reads}
        for name in read - makes:
            if name in makers:
                by_group[makers[name]].add(name)
        by_group.append(makes - read)
        makers |= dict.fromkeys(makes, number)
    return by_group
