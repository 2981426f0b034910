"""Activation checkpoints of a layer's own lines: their lines are recomputed in the backward pass, as PyTorch does.

Each checkpoint recomputes its lines, including those of inner checkpoints, before the first gradient of one of its
lines. It stops at the last tensor that autograd saved from it; one that is marked with `!` or `!!`, as with
`use_reentrant=True`, runs to its end. Results that a policy saves, marked with `-`, are not recomputed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from learncost.ir.line import Line, Op, Product
from learncost.ir.loop import Statement, walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.passes.rematerialization import Values, in_phase, joined, pairs

Path = tuple[str, ...]


def checkpointed(table: Table) -> Table:
    """Return the step with its checkpoints' recomputation; the table itself where it has none."""
    if not any(line.meta.again for line, _ in walk(table.lines)):
        return table
    values = dict(table.values)
    return replace(table, lines=_scope(table.lines, values, set(table.outputs)), values=values)


def _scope(lines: Sequence[Statement], values: Values, outputs: set[str]) -> tuple[Statement, ...]:
    """Return the lines of one scope, forward and then backward, with recomputation."""
    result = list(lines)
    for (before, forward), (after, reverse), elsewhere in pairs(lines, outputs):
        inner_values: Values = {**forward.values, **reverse.values}
        handed = {name for name, outer in forward.keep if outer in elsewhere} | {carry.end for carry in forward.carry}
        inner = _scope((*forward.lines, *reverse.lines), inner_values, handed)
        first, second = inner[: len(forward.lines)], inner[len(forward.lines) :]
        result[before], result[after] = joined(forward, reverse, first, second, elsewhere, values, inner_values)
    return _with_checkpoints(result, values)


@dataclass(frozen=True)
class _LineCheckpoint:
    """A checkpoint: its path, the numbers of its forward lines, and how many of them are recomputed."""

    path: Path
    places: tuple[int, ...]
    count: int

    def reruns(self, line: Line) -> bool:
        """Return whether a line is recomputed; a policy may save its result instead."""
        return not _marks(line)[len(self.path) - 1].endswith("-")


def _with_checkpoints(lines: Sequence[Statement], values: Values) -> tuple[Statement, ...]:
    forward = {
        place: line for place, line in enumerate(lines) if isinstance(line, Line) and line.meta.phase == "forward"
    }
    reverse = {
        place: line
        for place, line in enumerate(lines)
        if isinstance(line, Line) and line.meta.phase in ("backward", "weight_update") and line.meta.again
    }
    maker = {name: place for place, line in forward.items() for name in line.makes}
    paths = dict.fromkeys(path for line in reverse.values() for path in _prefixes(path_of(line)))
    found = {path: _found(path, forward, reverse, maker) for path in sorted(paths, key=len)}
    copied = {
        path: {
            name for place in each.places[: each.count] if each.reruns(forward[place]) for name in forward[place].makes
        }
        for path, each in found.items()
    }

    def names(path: Path, reads: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the renaming of values that a recomputed or backward line of a checkpoint reads."""
        for name in reads:
            made = path_of(forward[maker[name]]) if name in maker else ()
            depth = next((i for i in range(min(len(path), len(made)), 0, -1) if path[:i] == made[:i]), 0)
            for length in range(depth, 0, -1):
                if name in copied.get(path[:length], ()):
                    yield name, _again(name, len(made) - length)
                    break

    added: dict[int, list[Line]] = {}
    for path, each in found.items():
        begin = min(place for place, line in reverse.items() if path_of(line)[: len(path)] == path)
        for line in (forward[place] for place in each.places[: each.count]):
            if each.reruns(line):
                own = {name: _again(name, len(path_of(line)) - len(path)) for name in line.makes}
                values.update({new: values[name] for name, new in own.items()})
                changed = line.renamed({**dict(names(path, line.reads)), **own})
                added.setdefault(begin, []).extend(in_phase((changed,), "recomputation"))
    result: list[Statement] = []
    for place, statement in enumerate(lines):
        result += added.get(place, [])
        if place in reverse:
            line = reverse[place]
            statement = line.renamed(dict(names(path_of(line), line.reads)))
        result.append(statement)
    return tuple(result)


def _found(path: Path, forward: dict[int, Line], reverse: dict[int, Line], maker: dict[str, int]) -> _LineCheckpoint:
    """Return a checkpoint, which ends at the last tensor that autograd saved from it."""
    places = tuple(place for place, line in forward.items() if path_of(line)[: len(path)] == path)
    if not places or _is_whole(path, forward[places[0]]):
        return _LineCheckpoint(path, places, len(places))
    end = 0  # lines with smaller numbers are recomputed
    for line in reverse.values():
        of_line = path_of(line)
        if of_line[: len(path)] != path:
            continue
        if len(of_line) > len(path):  # of an inner checkpoint, which saves its inputs
            inner = of_line[: len(path) + 1]
            within = [place for place in places if path_of(forward[place])[: len(inner)] == inner]
            if within:
                whole = _is_whole(inner, forward[within[0]])
                end = max(end, within[-1] + 1 if whole else within[0])
            continue
        for name in line.reads:
            readers = (
                place for place in places if path_of(forward[place]) == path and _keeps(forward[place], name, line)
            )
            end = max(end, max(readers, default=0), maker[name] + 1 if maker.get(name) in places else 0)
    return _LineCheckpoint(path, places, sum(place < end for place in places))


def _keeps(line: Line, name: str, gradient: Line) -> bool:
    """Return whether a line saves an operand for this line of its gradient."""
    if (line.meta.module, line.meta.operator) != (
        gradient.meta.module,
        gradient.meta.operator,
    ) or name not in line.reads:
        return False
    return isinstance(line, Op) or (isinstance(line, Product) and sum(isinstance(t, Term) for t in line.right) > 1)


def _marks(line: Line) -> Path:
    return tuple(filter(None, line.meta.again.split("/")))


def path_of(line: Line) -> Path:
    """Return the numbers of the checkpoints around a line, the outermost first."""
    return tuple(mark.rstrip("!-") for mark in _marks(line))


def _prefixes(path: Path) -> Iterator[Path]:
    return (path[:length] for length in range(1, len(path) + 1))


def _is_whole(path: Path, line: Line) -> bool:
    """Return whether a checkpoint around a line is recomputed to its end."""
    return "!" in _marks(line)[len(path) - 1]


def _again(name: str, above: int) -> str:
    """Return the name of a recomputed value: that of its own checkpoint, or of one `above` levels up."""
    return f"{name}.again{above + 1 if above else ''}"


def first_name(name: str) -> str:
    """Return what the value of a checkpoint is called forward, by its name where it runs again."""
    return re.sub(r"\.again\d*$", "", name)
