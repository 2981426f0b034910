"""Memory over a step: the bytes at every line, their arrays, and the lines that represent many iterations.

At any sizes, it is arrays over the moments of lines, each as bytes that a page evaluates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from learncost.ir.dataclass import Key, Serializable, asdict, attributes, dataclass, field, made_of, replace
from learncost.ir.errors import InputError
from learncost.ir.polynomial import size_of
from learncost.liveness import LiveInterval, ProgramPoint, SizedArray, SymbolicPoint, kind_of
from learncost.program.lifetimes import FEW
from learncost.reports.memory.engines.graph import part_of
from learncost.reports.memory.memory import Memory
from learncost.reports.memory.step import MemoryStep
from learncost.viz.data.costs import Monomials

KINDS = (
    "weights",
    "fixed matrices",
    "master weights",
    "optimizer state",
    "batch",
    "forward",
    "recomputation",
    "backward",
    "error projection",
    "weight update",
    "gradients",
    "optimizer step",
)
"""The kinds of arrays from bottom to top: those alive throughout, then those computed by passes."""


@dataclass(frozen=True)
class Bracket:
    """Lines from `first` to `last` in a loop with `count` iterations; `depth` is 0 of the outermost."""

    first: int
    last: int
    depth: int
    count: str
    label: str
    iterations: int = 0

    @property
    def title(self) -> str:
        """Return its label."""
        return f"{self.label} {self.iterations:,} ×"


_LINE = attributes("line layer block macro_operation bytes iterations")
_ARRAY = attributes("name shape number bytes kind part macro_operation layer block first last")


@dataclass(frozen=True)
class MemoryCurve(Serializable):
    """The memory of a step line by line.

    model, procedure, plan, engine, dtype, optimizer, batch_size, seq_len, target_len  what step it is, and who runs it
    convention  what is counted, and what is not
    peak  the most bytes, which is the largest of the lines'; `peak_at` is the number of the line, from 0
    lines  every line once, in order
    brackets  the lines that represent many iterations
    arrays  all arrays; at every line the bytes of those that are there sum to the line's
    """

    model: str
    procedure: str
    plan: str
    engine: str
    dtype: str
    optimizer: str
    batch_size: int
    seq_len: int
    target_len: int | None
    convention: str
    peak: int
    peak_at: int
    lines: tuple[ProgramPoint, ...] = field(metadata=Key(form=_LINE).field)
    brackets: tuple[Bracket, ...]
    arrays: tuple[LiveInterval, ...] = field(metadata=Key(form=_ARRAY).field)
    letters: str = ""  # of a run of a table: its sizes as the table calls them

    def alive(self, place: int) -> tuple[LiveInterval, ...]:
        """Return the live arrays at a line, those of one name together, the largest first."""
        groups: dict[object, list[LiveInterval]] = {}
        for array in self.arrays:
            if array.first <= place <= array.last:
                groups.setdefault((array.name, array.shape, array.layer, array.block), []).append(array)
        merged = (
            replace(several[0], number=sum(each.number for each in several), bytes=sum(each.bytes for each in several))
            for several in groups.values()
        )
        return tuple(sorted(merged, key=lambda array: -array.bytes))

    @cached_property
    @Key()
    def kinds(self) -> Mapping[str, tuple[int, ...]]:
        """By kind, the bytes at every line; kinds that never are there are left out."""
        sums = {kind: [0] * len(self.lines) for kind in KINDS}
        for array in self.arrays:
            for place in range(array.first, array.last + 1):
                sums[array.kind][place] += array.bytes
        return {kind: tuple(sizes) for kind, sizes in sums.items() if any(sizes)}

    @property
    def finding(self) -> str:
        """The finding of the curve in one sentence."""
        at = self.lines[self.peak_at]
        doing = at.macro_operation.replace("_", " ")
        doing += " pass" if doing in ("forward", "backward") else ""
        where = f"in the {at.layer.replace('_', ' ')}" if at.layer else f"at {at.line}"
        return f"Memory is highest {where}, in the {doing}" if doing else f"Memory is highest {where}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each line, with the bytes of every kind."""
        for place, line in enumerate(self.lines):
            yield {"place": place, **_LINE(line), **{kind: sizes[place] for kind, sizes in self.kinds.items()}}


def curve(answer: Memory) -> MemoryCurve:
    """Return the line-by-line account of an answer of `lc.memory`.

    Raises `InputError` where its engine has no such account.
    """
    if not answer.curve:
        raise InputError(f"--engine {answer.engine} has no memory by line: use --engine graph")
    peaks = [moment.bytes for moment in answer.curve]
    return made_of(
        MemoryCurve,
        answer,
        peak_at=peaks.index(max(peaks)),
        lines=answer.curve,
        brackets=tuple(_brackets(answer.curve)),
        arrays=tuple(replace(array, name=array.name.rstrip("*")) for array in answer.arrays),
    )


def _brackets(moments: tuple[ProgramPoint, ...]) -> Iterator[Bracket]:
    """Return the brackets of loops with more than one iteration."""
    for bracket in brackets([(moment.loops, moment.block) for moment in moments]):
        iterations = moments[bracket.first].loops[bracket.depth][-1]
        if iterations > 1:
            yield replace(bracket, iterations=iterations)


def brackets(lines: Sequence[tuple[tuple[tuple[Any, ...], ...], str | None]]) -> Iterator[Bracket]:
    """Return the runs of lines in the same loop, outermost first, by the loops and the block of each line."""
    for depth in range(max((len(loops) for loops, _ in lines), default=0)):
        outer = [loops[: depth + 1] for loops, _ in lines]
        for loops, several in groupby(range(len(lines)), outer.__getitem__):
            places = list(several)
            if len(loops) > depth:
                count = loops[depth][1]
                yield Bracket(places[0], places[-1], depth, count, _iterations_text(count, lines[places[0]][1]))


def _iterations_text(count: str, block: str | None) -> str:
    """Return the label of a loop by its count: an iteration over layers is one block, others may have several."""
    if block is None or count not in ("n_layer", "n_enc", "n_dec"):
        return "these lines run"
    return "one block, runs" if block == "decoder" else f"one {block} block, runs"


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
    walks, lines = list[dict[str, Any]](), dict[int, SymbolicPoint]()
    for iterations in _iterations(step):
        liveness = step.symbolic_liveness(iterations)
        lines |= {at.place: at for at in liveness.points}
        rows = [_row(step, each, sources, shapes, monomials) for each in liveness.arrays]
        moments = [at.place for at in liveness.points]
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


def _line(at: SymbolicPoint) -> dict[str, Any]:
    meta = at.line.meta
    return {"line": at.line.name, "layer": meta.layer, "block": meta.block, "macro_operation": meta.phase}


def _row(step: MemoryStep, sized: SizedArray, sources: _Places, shapes: _Places, monomials: Monomials) -> list[Any]:
    array = sized.array
    kind = kind_of(part_of(step, array.title, array.role), array.phase)
    source = array.title.rstrip("*"), array.layer, array.block, array.phase, kind
    times = array.times if isinstance(array.times, int) else monomials.exported(array.times)
    return [sources(source), shapes(array.axes), sized.width, times, array.first, array.last]
