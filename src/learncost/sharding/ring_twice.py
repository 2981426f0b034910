"""Split a region that would rotate twice: lines that read totals of all shards become a second ring behind the first.

A block that is recomputed in its backward iteration has the forward attention, and gradients that depend on its output:
one ring for the output, and one for the gradients, which computes the scores of each shard again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from learncost.ir.line import Line, Meta, Op
from learncost.ir.loop import Statement
from learncost.ops import is_softmax
from learncost.sharding.ring_regions import RingRegion


@dataclass(frozen=True)
class Twice:
    """A region that is split in two.

    lines   the lines of the scope, with the duplicated ones
    copies  duplicated values: the names in the second ring with those in the first
    shares  softmaxes of the second ring, each with that of the same scores in the first
    """

    first: RingRegion
    second: RingRegion
    lines: list[Statement]
    copies: Mapping[str, str]
    shares: Mapping[str, str]


def in_two(
    region: RingRegion, lines: Sequence[Statement], earlier: Iterable[str], fresh: Callable[[str, str], str]
) -> Twice | None:
    """Split a region in two rings; return None if one ring suffices.

    earlier  softmaxes whose sums are known from the forward pass
    """
    known, later = {*earlier}, _behind(region, lines)
    totals = [name for name in region.totals if name not in later]
    if not later:
        totals = _of_fresh(region, known) if region.scatters else []
    others = [name for name in region.totals if name not in totals]
    first = _before(region, totals)
    second = _before(region, (*others, *region.scatters))
    if not totals or not second:
        return None
    names = {name: fresh(name, "once_more") for line in first if _is_in(line, second) for name in line.makes}
    copies = [_copy(line, names) for line in second if _is_in(line, first)]
    behind = {id(line): line.renamed(names) for line in second if not _is_in(line, first)}
    place = min(at for at, line in enumerate(lines) if id(line) in behind)
    last = [*copies, *behind.values()]
    return Twice(
        _part(region, first, totals, {}, {}),
        _part(region, last, others, region.scatters, names),
        [*lines[:place], *copies, *(behind.get(id(line), line) for line in lines[place:])],
        {copy: name for name, copy in names.items()},
        _same(first, last),
    )


def _behind(region: RingRegion, lines: Sequence[Statement]) -> set[str]:
    """Return the results of its lines that depend on its totals."""
    totals, result, late = {*region.totals}, set[str](), set[str]()
    for line in lines:
        if late & {*line.reads}:
            late |= {*line.makes}
            if _is_in(line, region.lines):
                result |= {*line.makes}
        elif _is_in(line, region.lines):
            late |= totals & {*line.makes}
    return result


def _of_fresh(region: RingRegion, known: Collection[str]) -> list[str]:
    """Return the totals of shares whose sums are not known."""
    of_shares: set[str] = set()
    for line in region.lines:
        is_fresh = is_softmax(line) and line.part == "body" and line.name not in known
        if is_fresh or of_shares & {*line.reads}:
            of_shares |= {*line.makes}
    return [name for name in region.totals if name in of_shares]


def _before(region: RingRegion, names: Iterable[str]) -> list[Line]:
    """Return the lines that make these names, with all lines that they depend on, in order."""
    wanted, result = {*names}, list[Line]()
    for line in reversed(region.lines):
        if wanted & {*line.makes}:
            wanted |= {*line.reads}
            result.append(line)
    return result[::-1]


def _is_in(line: Statement, lines: Iterable[Line]) -> bool:
    return any(line is each for each in lines)


def _copy(line: Line, names: Mapping[str, str]) -> Line:
    """Return a copy of a line, outside the kernel of the original."""
    copy = line.renamed(names)
    return copy.with_changed(meta=replace(line.meta, kernel=None, phase="recomputation", local=copy.name))


def _part(
    region: RingRegion, lines: list[Line], totals: list[str], scatters: Mapping[str, Op], names: Mapping[str, str]
) -> RingRegion:
    """Return a region of some lines, with new names for copies."""
    used = {name for line in lines for name in (*line.reads, *line.makes)}
    at = {**region.at, **{copy: region.at[name] for name, copy in names.items() if name in region.at}}
    partial = region.partial | {copy for name, copy in names.items() if name in region.partial}
    return replace(
        region,
        gathers={name: line for name, line in region.gathers.items() if name in used},
        at={name: place for name, place in at.items() if name in used},
        lines=lines,
        totals=totals,
        slices={name: place for name, place in region.slices.items() if name in used},
        scatters={**scatters},
        rows=[name for line in lines if is_softmax(line) for name in line.makes if name not in at],
        partial=partial & used,
    )


def _same(first: Iterable[Line], last: Iterable[Line]) -> dict[str, str]:
    """Match softmaxes among the last lines with those of the same numbers among the first."""
    numbers: dict[str, str] = {}
    made: dict[Line, tuple[str, ...]] = {}
    result = {}
    for line in first:
        made.setdefault(_plain(line, numbers), line.makes)
    for line in last:
        twin = made.get(_plain(line, numbers))
        if twin is not None:
            numbers |= dict(zip(line.makes, twin, strict=True))
            if is_softmax(line) and line.part == "body":
                result[line.name] = twin[0]
    return result


def _plain(line: Line, numbers: Mapping[str, str]) -> Line:
    """Return a line without metadata and result names, for comparison."""
    places = {name: f"#{place}" for place, name in enumerate(line.makes)}
    return line.with_changed(meta=Meta("")).renamed({**numbers, **places})
