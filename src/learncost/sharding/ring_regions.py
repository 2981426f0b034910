"""Find the regions that can become rings: lines that read a gathered array one position at a time.

A region that would rotate twice is split: lines that read totals of all shards become a second ring behind the first.
A block that is recomputed in its backward iteration has the forward attention, and gradients that depend on its output:
one ring for the output, and one for the gradients, which computes the scores of each shard again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NoReturn

from learncost.ir.dataclass import dataclass, field
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import place_cut, sharded_over
from learncost.ir.term import Read, Term, terms_of
from learncost.ops import entry, is_softmax
from learncost.ops.collectives import is_collective
from learncost.passes.rematerialization import first_name


class RingError(Exception):
    """The reason why a region cannot be a ring."""


def refuse(line: Statement, why: str) -> NoReturn:
    """Raise `RingError` for a line of a region."""
    raise RingError(f"{why}: {str(line).partition(chr(10))[0].strip()}")


@dataclass(eq=False)
class RingRegion:
    """Lines of a scope that read arrays gathered over a mesh axis, one position of the gathered axis at a time.

    lines     the lines that gather these arrays, compute with them, and reduce and scatter their gradients
    at        the position of the gathered axis in the arrays that have it: gathered arrays, and scores
    shares    for the second ring of a split region: its softmaxes, each with that of the same scores in the first
    gathers   the gathered arrays, with the lines that gather them
    body      the lines that compute, in order
    totals    results of lines that sum over the gathered axis
    slices    the position of that axis in replicated arrays, of which an iteration reads a shard
    scatters  the lines that reduce and scatter the gradients of gathered arrays, by name
    rows      per-row results of a softmax with a sink, or of its gradient: known before or after all iterations
    """

    mesh_axis: str
    lines: list[Statement]
    at: dict[str, int]
    shares: Mapping[str, str] = field(default_factory=dict)
    totals: list[str] = field(default_factory=list)
    slices: dict[str, int] = field(default_factory=dict)
    scatters: dict[str, Op] = field(default_factory=dict)

    @cached_property
    def gathers(self) -> Mapping[str, Op]:
        return {line.name: line for line in self.lines if is_collective(line) and line.name in self.at}

    @cached_property
    def body(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if isinstance(line, Line) and not is_collective(line))

    @cached_property
    def rows(self) -> tuple[str, ...]:
        return tuple(name for line in self.body if is_softmax(line) for name in line.makes if name not in self.at)

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

    def read(self) -> None:
        """Find its totals, slices and scatters. Raises `RingError`."""
        partial: set[str] = set()
        for line in self.lines:
            if isinstance(line, Loop):
                refuse(line, "iterations read a gathered array")
            if not is_collective(line):
                self._line(line, partial)
            elif line.name in self.at:
                if line.right[0].name in self.at:
                    refuse(line, "it is moved between devices")
                if sharded_over(line.right[0].declared[self.at[line.name]])[-1] != self.mesh_axis:
                    refuse(line, "it is gathered over several mesh axes")
            else:
                name, place = line.right[0].name, place_cut(line.left[0].declared, self.mesh_axis)
                if line.op != "reduce_scatter" or line.axes[0] != self.mesh_axis or self.at[name] != place:
                    refuse(line, "a full array is moved between devices")
                self.scatters[name] = line

    def _line(self, line: Line, partial: set[str]) -> None:
        axis = self.axis(line)
        inside = [term for operand in line.right for term in terms_of(operand)]
        if not axis or any(term.name in self.at for term in inside if term not in line.right):
            refuse(line, "it pairs gathered positions, or indexes them")
        for term in line.right:
            if not isinstance(term, Term) or term.name in self.at or axis not in term.axes:
                continue
            place = term.axes.index(axis)
            if self.slices.setdefault(term.name, place) != place:
                refuse(line, "it reads an array along both axes of pairs")
        by = {other for other in line.loops if self.mesh_axis in sharded_over(other)}
        is_partial = any(name in partial for name in line.reads)
        shares = is_softmax(line) and line.axes == (axis,)
        if isinstance(line, Op) and not entry(line.op).pointwise and not shares:
            refuse(line, f"{line.op} needs all of {axis} at once")
        for term in line.left:
            if axis in term.axes:
                if is_partial or (by and not by & {*term.loops}):
                    partial.add(term.name)
            elif shares:
                continue
            elif any(isinstance(each, Read) for each in term.axes) and axis in term.loops:
                refuse(line, f"it writes at an index along {axis}")
            elif not isinstance(line, Product | Sum) or is_partial or not by:
                refuse(line, f"it reduces over {axis} with another operation than a sum")
            else:
                self.totals.append(term.name)

    def split(self, known: Collection[str]) -> tuple[RingRegion, ...]:
        """Return its rings, in order: itself, or first one for the totals of softmaxes whose sums its gradients need.

        A region stays gathered if its two rings would share lines.

        known  softmaxes whose sums are known from the forward pass
        Raises `RingError`.
        """
        of_shares: set[str] = set()
        for line in self.body if self.scatters else ():
            if (is_softmax(line) and line.part == "body" and line.name not in known) or of_shares & {*line.reads}:
                of_shares |= {*line.makes}
        first = self._lines_of(of_shares & {*self.totals})
        if not first:
            return (self,)
        second = self._lines_of(({*self.totals} - of_shares) | {line.name for line in self.scatters.values()})
        made = {first_name(line.name): line.name for line in first if is_softmax(line)}
        again = [line.name for line in second if is_softmax(line) and line.part == "body"]
        shares = {name: made[first_name(name)] for name in again if first_name(name) in made}
        return self._part(first), self._part(second, shares)

    def _lines_of(self, names: Iterable[str]) -> list[Statement]:
        """Return the lines that make these names, with all lines that they depend on, in order."""
        wanted, result = {*names}, list[Statement]()
        for line in reversed(self.lines):
            if wanted & {*line.makes}:
                wanted |= {*line.reads}
                result.append(line)
        return result[::-1]

    def _part(self, lines: list[Statement], shares: Mapping[str, str] = {}) -> RingRegion:
        """Return a region of some of its lines."""
        used = {name for line in lines for name in (*line.reads, *line.makes)}
        at = {name: place for name, place in self.at.items() if name in used}
        part = RingRegion(self.mesh_axis, lines, at, shares)
        part.read()
        return part


def regions(lines: Sequence[Statement], mesh_axis: str, is_value: Callable[[str], bool]) -> list[RingRegion]:
    """Return the regions of a scope over a mesh axis, each with the lines that share an array with another one.

    is_value  whether an array is not a weight or a weight gradient, which are never in a ring
    """
    found: list[RingRegion] = []
    for line in lines:
        together = [region for region in found if region.at.keys() & {*line.reads}]
        for other in together[1:]:
            together[0].lines += other.lines
            together[0].at |= other.at
            found.remove(other)
        for region in together[:1]:
            region.lines.append(line)
            if isinstance(line, Line) and not is_collective(line) and (axis := region.axis(line)):
                region.at |= {term.name: term.axes.index(axis) for term in line.left if axis in term.axes}
        if is_collective(line) and line.op == "all_gather" and line.axes[0] == mesh_axis and is_value(line.name):
            place = place_cut(line.right[0].declared, mesh_axis)
            assert place is not None
            found.append(RingRegion(mesh_axis, [line], {line.name: place}))
    return found
