"""Find the regions that can become rings: lines that read a gathered array one position at a time.

A region that would rotate twice is split: lines that read totals of all shards become a second ring behind the first.
A block that is recomputed in its backward iteration has the forward attention, and gradients that depend on its output:
one ring for the output, and one for the gradients, which computes the scores of each shard again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import place_cut, sharded_over
from learncost.ir.term import Read, Term, terms_of
from learncost.ops import entry, is_softmax
from learncost.ops.collectives import is_collective


@dataclass(eq=False)
class RingRegion:
    """Lines of a scope that read arrays gathered over a mesh axis, one position of the gathered axis at a time.

    gathers   the gathered arrays, with the lines that gather them
    at        the position of the gathered axis in the arrays that have it: gathered arrays, and scores
    lines     the lines that read these, in order
    totals    results of lines that sum over the gathered axis
    slices    the position of that axis in replicated arrays, of which an iteration reads a shard
    scatters  the lines that reduce and scatter the gradients of gathered arrays, by name
    rows      per-row results of a softmax with a sink, or of its gradient: known before or after all iterations
    shares    for the second ring of a split region: its softmaxes, each with that of the same scores in the first
    why       the reason why it cannot be a ring; empty if it can
    """

    mesh_axis: str
    gathers: dict[str, Op] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    totals: list[str] = field(default_factory=list)
    slices: dict[str, int] = field(default_factory=dict)
    scatters: dict[str, Op] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    partial: set[str] = field(default_factory=set)
    shares: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    def axis(self, line: Line) -> str:
        """Return the name of the gathered axis in a line; empty if the line does not read it."""
        names = {
            term.axes[self.at[term.name]] for term in line.right if isinstance(term, Term) and term.name in self.at
        }
        (name,) = names if len(names) == 1 else ("",)
        return name if isinstance(name, str) else ""

    @property
    def gathered(self) -> str:
        """Return the gathered axis as a device's shard of it, such as `M/cp`."""
        line = next(iter(self.gathers.values()))
        return line.right[0].declared[self.at[line.name]]

    @property
    def makes(self) -> frozenset[str]:
        """Return its results that other lines may read."""
        return frozenset((*self.totals, *self.rows, *(line.name for line in self.scatters.values())))

    def refuse(self, line: Statement, why: str) -> None:
        """Record the first reason why it cannot be a ring."""
        self.why = self.why or f"{why}: {str(line).partition(chr(10))[0].strip()}"

    def split(self, lines: Sequence[Statement], earlier: Collection[str]) -> tuple[RingRegion, ...]:
        """Return the rings of the region, in order: itself, or one for totals that its other results depend on first.

        lines    the lines of the scope
        earlier  softmaxes whose sums are known from the forward pass
        """
        later = self._behind(lines)
        totals = [name for name in self.totals if name not in later]
        if not later:
            totals = self._of_fresh(earlier) if self.scatters else []
        others = [name for name in self.totals if name not in totals]
        first, second = self._lines_of(totals), self._lines_of((*others, *self.scatters))
        if not totals or not second:
            return (self,)
        second = [_again(line) if any(line is each for each in first) else line for line in second]
        last = replace(self._part(second, others), scatters=self.scatters, shares=_same_shares(first, second))
        return self._part(first, totals), last

    def _behind(self, lines: Sequence[Statement]) -> set[str]:
        """Return the results of its lines that depend on its totals."""
        own, result, late = {id(line) for line in self.lines}, set[str](), set[str]()
        for line in lines:
            if late & {*line.reads}:
                late |= {*line.makes}
                result |= {*line.makes} if id(line) in own else set()
            elif id(line) in own:
                late |= {*self.totals} & {*line.makes}
        return result

    def _of_fresh(self, known: Collection[str]) -> list[str]:
        """Return the totals of shares whose sums are not known."""
        of_shares: set[str] = set()
        for line in self.lines:
            is_fresh = is_softmax(line) and line.part == "body" and line.name not in known
            if is_fresh or of_shares & {*line.reads}:
                of_shares |= {*line.makes}
        return [name for name in self.totals if name in of_shares]

    def _lines_of(self, names: Iterable[str]) -> list[Line]:
        """Return the lines that make these names, with all lines that they depend on, in order."""
        wanted, result = {*names}, list[Line]()
        for line in reversed(self.lines):
            if wanted & {*line.makes}:
                wanted |= {*line.reads}
                result.append(line)
        return result[::-1]

    def _part(self, lines: list[Line], totals: list[str]) -> RingRegion:
        """Return a region of some of its lines."""
        used = {name for line in lines for name in (*line.reads, *line.makes)}
        return replace(
            self,
            gathers={name: line for name, line in self.gathers.items() if name in used},
            at={name: place for name, place in self.at.items() if name in used},
            lines=lines,
            totals=totals,
            slices={name: place for name, place in self.slices.items() if name in used},
            scatters={},
            rows=[name for line in lines if is_softmax(line) for name in line.makes if name not in self.at],
            partial=self.partial & used,
        )

    def absorb(self, other: RingRegion) -> None:
        """Merge another region that shares values with a line."""
        self.gathers |= other.gathers
        self.at |= other.at
        self.lines += other.lines
        self.totals += other.totals
        self.slices |= other.slices
        self.scatters |= other.scatters
        self.rows += other.rows
        self.partial |= other.partial
        self.why = self.why or other.why


def _again(line: Line) -> Line:
    """Return a line that the second ring computes again, outside the kernel of the original."""
    return line.with_changed(meta=replace(line.meta, kernel=None, phase="recomputation"))


def _same_shares(first: Iterable[Line], last: Iterable[Line]) -> dict[str, str]:
    """Match softmaxes among the last lines with those of the same numbers among the first."""
    numbers: dict[str, str] = {}
    made: dict[Line, tuple[str, ...]] = {}
    result = {}

    def plain(line: Line) -> Line:
        """Return a line without metadata and result names, for comparison."""
        places = {name: f"#{place}" for place, name in enumerate(line.makes)}
        return line.with_changed(meta=Meta("")).renamed({**numbers, **places})

    for line in first:
        made.setdefault(plain(line), line.makes)
    for line in last:
        if twin := made.get(plain(line)):
            numbers |= dict(zip(line.makes, twin, strict=True))
            if is_softmax(line) and line.part == "body":
                result[line.name] = twin[0]
    return result


def regions(lines: Sequence[Statement], mesh_axis: str, is_value: Callable[[str], bool]) -> list[RingRegion]:
    """Return the regions of a scope over a mesh axis.

    is_value  whether an array is not a weight or a weight gradient, which are never in a ring
    """
    found = _Regions(mesh_axis)
    for line in lines:
        if is_collective(line) and line.op == "all_gather" and line.axes[0] == mesh_axis and is_value(line.name):
            found.gather(line)
        else:
            found.read(line)
    return [region for region in found.all if region.totals or region.why]


class _Regions:
    def __init__(self, mesh_axis: str) -> None:
        self.mesh_axis = mesh_axis
        self.all: list[RingRegion] = []

    def gather(self, line: Op) -> None:
        place = place_cut(line.right[0].declared, self.mesh_axis)
        assert place is not None
        region = RingRegion(self.mesh_axis, {line.name: line}, {line.name: place})
        if sharded_over(line.right[0].declared[place])[-1] != self.mesh_axis:
            region.refuse(line, "it is gathered over several mesh axes")
        for other in self._of(line.reads):
            other.refuse(line, "it is moved between devices")
        self.all.append(region)

    def _of(self, names: Iterable[str]) -> list[RingRegion]:
        names = {*names}
        return [region for region in self.all if names & region.at.keys()]

    def read(self, line: Statement) -> None:
        together = self._of(line.reads)
        if not together:
            return
        region, *others = together
        for other in others:
            region.absorb(other)
            self.all.remove(other)
        if isinstance(line, Loop):
            region.refuse(line, "iterations read a gathered array")
        elif is_collective(line):
            self._scatter(region, line)
        else:
            self._line(region, line)

    def _scatter(self, region: RingRegion, line: Op) -> None:
        name = line.right[0].name
        place = place_cut(line.left[0].declared, self.mesh_axis)
        if line.op == "reduce_scatter" and line.axes[0] == self.mesh_axis and region.at[name] == place:
            region.scatters[name] = line
        else:
            region.refuse(line, "a full array is moved between devices")

    def _line(self, region: RingRegion, line: Line) -> None:
        region.lines.append(line)
        axis = region.axis(line)
        inside = [term for operand in line.right for term in terms_of(operand)]
        if not axis or any(term.name in region.at for term in inside if term not in line.right):
            region.refuse(line, "it pairs gathered positions, or indexes them")
            return
        for term in line.right:
            if not isinstance(term, Term) or term.name in region.at or axis not in term.axes:
                continue
            place = term.axes.index(axis)
            if region.slices.setdefault(term.name, place) != place:
                region.refuse(line, "it reads an array along both axes of pairs")
        by = {other for other in line.loops if self.mesh_axis in sharded_over(other)}
        is_partial = any(name in region.partial for name in line.reads)
        shares = is_softmax(line) and line.axes == (axis,)
        if isinstance(line, Op) and not entry(line.op).pointwise and not shares:
            region.refuse(line, f"{line.op} needs all of {axis} at once")
        for term in line.left:
            if axis in term.axes:
                region.at[term.name] = term.axes.index(axis)
                if is_partial or (by and not by & {*term.loops}):
                    region.partial.add(term.name)
            elif shares:
                region.rows.append(term.name)
            elif any(isinstance(each, Read) for each in term.axes) and axis in term.loops:
                region.refuse(line, f"it writes at an index along {axis}")
            elif not isinstance(line, Product | Sum) or is_partial or not by:
                region.refuse(line, f"it reduces over {axis} with another operation than a sum")
            else:
                region.totals.append(term.name)
