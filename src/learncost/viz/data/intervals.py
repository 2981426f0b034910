"""The memory of a step at any sizes: its arrays over the moments of its lines, each as bytes that a page evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from learncost.ir.dataclass import asdict, dataclass, field
from learncost.ir.polynomial import size_of
from learncost.liveness import Instant, SizedArray
from learncost.program.lifetimes import FEW
from learncost.reports.memory.engines.graph import part_of
from learncost.reports.memory.step import MemoryStep
from learncost.viz.data.costs import Monomials
from learncost.viz.data.curve import KINDS, brackets, kind_of


@dataclass
class _Places:
    """Things by their places: each written once, in the order in which they were met."""

    of: dict[Any, int] = field(default_factory=dict)

    def __call__(self, thing: Any) -> int:
        return self.of.setdefault(thing, len(self.of))


def stretches(step: MemoryStep) -> dict[str, Any] | None:
    """Return the arrays of a step over its moments; None if bytes are no polynomials.

    few       the trip count up to which all iterations are walked; of more the first two and the last two
    iterations the sizes that say how often blocks run, with the counts that are in them: n with n and n/2
    lines     every line once: its name, layer, block and pass
    brackets  lines that run in loops
    kinds     of arrays, in the order in which they are stacked
    sources   of arrays: name, layer, block, pass, and their kind
    shapes    the axes of arrays
    walks     for trip counts (None: more than few) the places of the lines at every moment, and arrays as
              (source, shape, bytes of an element, number of equal ones, first moment, last moment), moments from 1
    uncounted  what is alive throughout and in no line, by kind
    """
    uncounted = step.uncounted_by_axes
    if uncounted is None or step.accumulate > 1 or "B" in step.iterations:
        return None
    monomials, sources, shapes = Monomials(), _Places(), _Places()
    walks, lines = list[dict[str, Any]](), dict[int, Instant]()
    for iterations in _iterations(step):
        liveness = step.stretches(iterations)
        lines |= {at.place: at for at in liveness.instants}
        rows = [_row(step, each, sources, shapes, monomials) for each in liveness.arrays]
        moments = [at.place for at in liveness.instants]
        walks.append({"iterations": list(iterations), "moments": moments, "arrays": rows})
    ordered = [lines[place] for place in sorted(lines)]
    return {
        "few": FEW,
        "iterations": step.iterations,
        "lines": [_line(at) for at in ordered],
        "brackets": [asdict(bracket) for bracket in brackets([(at.loops, at.line.meta.block) for at in ordered])],
        "kinds": list(KINDS),
        "sources": list(sources.of),
        "shapes": list(shapes.of),
        "walks": walks,
        "uncounted": [[kind, monomials.exported(count)] for kind, count in uncounted.items() if count],
        "monomials": monomials.to_list(),
    }


def _iterations(step: MemoryStep) -> Iterator[tuple[int | None, ...]]:
    """Return the enumerated numbers of iterations: the number itself, more than few, or all up to few of one loop."""
    sizes = step.sizes()
    as_it_is = tuple(
        None if all(size_of(count, sizes) >= FEW for count in counts) else sizes[name]
        for name, counts in step.iterations.items()
    )
    yield from dict.fromkeys((as_it_is, (None,) * len(as_it_is)))
    if len(as_it_is) == 1:
        yield from ((iterations,) for iterations in range(1, FEW) if (iterations,) != as_it_is)


def _line(at: Instant) -> dict[str, Any]:
    meta = at.line.meta
    return {"line": at.line.name, "layer": meta.layer, "block": meta.block, "macro_operation": meta.phase}


def _row(step: MemoryStep, sized: SizedArray, sources: _Places, shapes: _Places, monomials: Monomials) -> list[Any]:
    array = sized.array
    kind = kind_of(part_of(step, array.title, array.role), array.phase)
    source = array.title.rstrip("*"), array.layer, array.block, array.phase, kind
    times = array.times if isinstance(array.times, int) else monomials.exported(array.times)
    return [sources(source), shapes(array.axes), sized.width, times, array.first, array.last]
