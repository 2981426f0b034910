"""Propagate copies, so that lines that only rename an array disappear; write tables in static single assignment
form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from learncost.ir.dataclass import replace
from learncost.ir.line import Line, Sum, alias
from learncost.ir.loop import Carry, Loop, Statement, defined, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.ops import is_log_softmax


def propagate_copies(table: Table) -> Table:
    """Return the table without lines that only rename an array; lines that read the new name read the original. Outputs
    keep their names."""
    return replace(table, lines=_named(table.lines, table.axes, set(table.outputs), {}))


def _named(
    lines: Sequence[Statement], axes: Mapping[str, tuple[str, ...]], endings: set[str], outer: Mapping[str, str]
) -> tuple[Statement, ...]:
    """Return the lines of a scope without renamings; `outer` maps the removed names of the enclosing scope to the
    originals."""
    names = {name: first for name, first in outer.items() if name not in defined(lines)}
    result: list[Statement] = []
    for line in lines:
        if isinstance(line, Loop):
            result.append(_repeat(line, axes, names))
        elif isinstance(line, Sum) and alias(line) and line.name not in endings and _same(line, axes):
            names[line.name] = names.get(line.right[0].name, line.right[0].name)
        else:
            result.append(line.renamed(names))
    return tuple(result)


def _repeat(line: Loop, axes: Mapping[str, tuple[str, ...]], names: Mapping[str, str]) -> Loop:
    axes_inside = {**axes, **line.axes}
    inner = {name: first for name, first in names.items() if name not in line.inside}
    return replace(
        line,
        lines=_named(line.lines, axes_inside, {*line.ends}, inner),
        carry=tuple(
            Carry(carry.start, carry.end, names.get(carry.initial, carry.initial), carry.final) for carry in line.carry
        ),
        each=tuple((inside, names.get(outer, outer)) for inside, outer in line.each),
    )


def _same(line: Line, axes: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether both arrays of a line have the same declared axes in the same order."""
    left, right = line.left[0], line.right[0]
    return (
        isinstance(right, Term)
        and not line.where
        and left.axes == right.axes
        and _bases(axes.get(left.name, ())) == _bases(axes.get(right.name, (None,)))
    )


def _bases(axes: Iterable[str | None]) -> list[str]:
    return [base(axis) if axis else "" for axis in axes]


def written_once(table: Table) -> Table:
    """Return the table in static single assignment form: no name is defined twice.

    All but the last definition of a name in a scope are renamed to `name:1`, `name:2`; inside a loop, `name:iteration`
    is the value whose final one has the loop's output `name`.
    """
    lines, values = _versions(table.lines, table.values)
    return replace(table, lines=lines, values={**table.values, **values})


def _versions(
    lines: Sequence[Statement], values: Mapping[str, Value]
) -> tuple[tuple[Statement, ...], dict[str, Value]]:
    """Return the lines of a scope in static single assignment form, and the values of the new names."""
    left = Counter(name for line in lines for name in line.makes)
    versions: Counter[str] = Counter()
    names: dict[str, str] = {}
    new: dict[str, Value] = {}
    result: list[Statement] = []
    for line in lines:
        read = dict(names)
        for name in line.makes:
            left[name] -= 1
            versions[name] += 1
            names[name] = f"{name}:{versions[name]}" if left[name] else name
            new[names[name]] = values[name]
        new_names = {name: names[name] for name in line.makes}
        if isinstance(line, Loop):
            line = _with_distinct_names(line)
            body, inner = _versions(line.lines, {**values, **line.values})
            shared = {name: first for name, first in read.items() if name not in line.inside}
            result.append(
                replace(
                    line,
                    lines=tuple(inner.renamed(shared) for inner in body),
                    values={**line.values, **inner},
                    carry=tuple(
                        Carry(c.start, c.end, read.get(c.initial, c.initial), new_names.get(c.final, c.final))
                        for c in line.carry
                    ),
                    each=tuple((inside, read.get(outer, outer)) for inside, outer in line.each),
                    keep=tuple((inside, new_names.get(outer, outer)) for inside, outer in line.keep),
                )
            )
        else:
            right = tuple(term.renamed(read) for term in line.right)
            written = tuple(term.renamed({**read, **new_names}) for term in line.left)
            result.append(replace(line, left=written, right=right))
    return tuple(result), new


def _with_distinct_names(line: Loop) -> Loop:
    """Return the loop with inner names that differ from the final names of its loop-carried values."""
    finals = {carry.final for carry in line.carry}
    names = {name: f"{name}:iteration" for name in line.inside & finals}
    return line.with_own(names) if names else line


def scores(table: Table) -> set[str]:
    """Return the operands and results of log-softmax and its gradient: scores over the vocabulary or over classes."""
    lines = [line for line, _ in walk(table.lines) if is_log_softmax(line)]
    return {name for line in lines for name in (*line.reads, *line.makes)} - set(table.weights)


class KernelNames:
    """The used names of kernels: those in a table, and those allocated since."""

    def __init__(self, table: Table) -> None:
        self._taken = {line.meta.kernel.name for line, _ in walk(table.lines) if line.meta.kernel}

    def of(self, wish: str) -> str:
        """Return the requested name, with a number appended if another kernel has it."""
        name, number = wish, 2
        while name in self._taken:
            name, number = f"{wish}_{number}", number + 1
        self._taken.add(name)
        return name
