"""Memory over a step: the bytes at every line, their arrays, and the lines that represent many iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from learncost.ir.dataclass import Key, Serializable, asdict, dataclass, replace
from learncost.ir.errors import InputError
from learncost.liveness import LiveInterval, Moment
from learncost.reports.memory.memory import Memory
from learncost.viz.data import made_of

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

_PARTS = frozenset(("weights", "fixed matrices", "master weights", "optimizer state", "gradients"))


@dataclass(frozen=True)
class MemoryLine:
    """A line of the step, and the bytes that are there while it runs: of its iterations in the one with most."""

    line: str
    layer: str
    block: str | None
    macro_operation: str
    bytes: int
    iterations: int


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


@dataclass(frozen=True)
class MemoryArray:
    """An array, or several equal ones, and the first and last line at which it is alive.

    shape   of one of them, `number` how many there are, `bytes` of all of them
    kind    one of `KINDS`: what it is, or the pass that made it
    part    which part of the split it belongs to
    """

    name: str
    shape: tuple[int, ...]
    number: int
    bytes: int
    kind: str
    part: str
    macro_operation: str
    layer: str
    block: str | None
    first: int
    last: int


@dataclass(frozen=True)
class MemoryCurve(Serializable):
    """The memory of a step line by line.

    Attributes
    ----------
    model, procedure, plan, engine, dtype, optimizer, batch_size, seq_len, target_len
        What step it is, and who runs it.
    convention
        What is counted, and what is not.
    peak
        The most bytes, which is the largest of the lines'; `peak_at` is the number of the line, from 0.
    lines
        Every line once, in order.
    brackets
        The lines that represent many iterations.
    arrays
        All arrays; at every line the bytes of those that are there sum to the line's.
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
    lines: tuple[MemoryLine, ...]
    brackets: tuple[Bracket, ...]
    arrays: tuple[MemoryArray, ...]
    letters: str = ""  # of a run of a table: its sizes as the table calls them

    def alive(self, place: int) -> tuple[MemoryArray, ...]:
        """Return the live arrays at a line, those of one name together, the largest first."""
        merged: dict[tuple[str, tuple[int, ...], str, str | None], MemoryArray] = {}
        for array in self.arrays:
            if array.first <= place <= array.last:
                key = array.name, array.shape, array.layer, array.block
                merged[key] = _together(merged[key], array) if key in merged else array
        return tuple(sorted(merged.values(), key=lambda array: -array.bytes))

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
            yield {"place": place, **asdict(line), **{kind: sizes[place] for kind, sizes in self.kinds.items()}}


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
        lines=tuple(made_of(MemoryLine, moment) for moment in answer.curve),
        brackets=tuple(_brackets(answer.curve)),
        arrays=tuple(map(_array, answer.arrays)),
    )


def _array(stay: LiveInterval) -> MemoryArray:
    return made_of(MemoryArray, stay, name=stay.name.rstrip("*"), kind=kind_of(stay.part, stay.macro_operation))


def kind_of(part: str, macro_operation: str) -> str:
    """Return the kind of an array: its part of the memory, or the pass that computed it."""
    if part in _PARTS:
        return part
    return "batch" if macro_operation == "given" else macro_operation.replace("_", " ")


def _together(array: MemoryArray, other: MemoryArray) -> MemoryArray:
    return replace(
        array,
        number=array.number + other.number,
        bytes=array.bytes + other.bytes,
        first=max(array.first, other.first),
        last=min(array.last, other.last),
    )


def _brackets(moments: tuple[Moment, ...]) -> Iterator[Bracket]:
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
