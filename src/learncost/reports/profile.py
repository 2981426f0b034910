"""A predicted step compared with a measured one: op counts, times by kind of kernel and by op, and peak memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, Serializable, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.program.program import BEFORE, Program, levels, peak
from learncost.reports.sheet import Sheet, SheetRow, seconds_of, significant, size_of
from learncost.timing.clocks import ExecutedOp, IssuedOp
from learncost.timing.kernels import is_view
from learncost.timing.profiled import ALLOCATOR, UNKNOWN, MeasuredStep, read_profile

SHOWN = 12
"""The rows by op on the screen; --json has all."""

PEAK, MADE = "peak memory", "peak of what the step makes"


@dataclass(frozen=True)
class OpsCompared(Serializable):
    """The ops of a name, or the kernels of a kind: their number and their seconds, predicted and measured.

    differ  the ops whose inputs have other shapes than those in the same place of the measured step
    """

    predicted: int
    measured: int
    predicted_seconds: float
    measured_seconds: float
    differ: int = field(default=0, metadata=OPTIONAL)

    @property
    @Key(optional=True)
    def ratio(self) -> float:
        """The predicted seconds over the measured ones; 0 where either is missing."""
        return self.predicted_seconds / self.measured_seconds if self.measured_seconds else 0.0


@dataclass(frozen=True)
class ProfileComparison(Serializable):
    """A predicted step compared with that of a profile.

    what     the step of the file
    on_gpu   whether times are those of kernels; of a CPU they are those of ops, and none is predicted
    step     the measured one, whose kernels have the kinds of predicted ones
    memory   bytes predicted and measured: the peak, and that without what was there before the step
    """

    path: str
    what: str
    on_gpu: bool
    by_kind: Mapping[str, OpsCompared]
    by_op: Mapping[str, OpsCompared]
    memory: Mapping[str, tuple[int, int]]
    step: MeasuredStep = field(compare=False, metadata=HIDDEN)

    def sheet(self) -> Sheet:
        """Return the table: kinds, ops on both sides, those of one side, and memory."""
        rows = list[SheetRow]()
        both = {name: each for name, each in self.by_op.items() if each.predicted and each.measured}
        single = {name: each for name, each in self.by_op.items() if name not in both}
        for title, several in (("by kind", self.by_kind), ("by op", both), ("on one side only", single)):
            shown = list(several.items())[: SHOWN if len(several) > SHOWN + 1 else None]
            rows += [SheetRow((title, *[""] * 5), "bold")] if shown else []
            rows += [SheetRow((name.removeprefix("aten::"), *_cells(each)), depth=1) for name, each in shown]
            if rest := list(several.values())[len(shown) :]:
                rows.append(SheetRow((f"{len(rest)} more", *_cells(_sum(rest))), depth=1))
        if self.by_op:
            rows.append(SheetRow(("all", *_cells(_sum(self.by_op.values()))), "bold"))
        for name, (mine, its) in self.memory.items():
            rows.append(SheetRow((name, "", size_of(mine), "", size_of(its), significant(mine / max(its, 1))), "bold"))
        columns = "", "predicted", "", "measured", "", "ratio"
        return Sheet(f"Compared with {self.path}", columns, tuple(rows), tuple(self.notes()))

    def notes(self) -> Iterable[str]:
        """Yield what was compared, and the signs that the two steps differ."""
        if self.by_op:
            seconds = "of kernels" if self.on_gpu else "of ops on the CPU, measured alone"
            yield f"Of {self.path}: {self.what}. Times {seconds}; views and allocations are left out."
        if self.by_op and not any(each.predicted for each in self.by_op.values()):
            yield "Ops are predicted for a module that is recorded (FILE.py:NAME): of a preset, memory is compared."
        if differ := sum(each.differ for each in self.by_op.values()):
            yield f"{differ:,} ops have inputs of other shapes: the profile may be of another batch or length."
        if self.memory and PEAK not in self.memory:
            yield "What was allocated before the step is not in the profile."


def _cells(each: OpsCompared) -> tuple[str, ...]:
    """Return the cells of a row: number and time predicted, number and time measured, and their ratio."""
    return (
        f"{each.predicted:,}", seconds_of(each.predicted_seconds), f"{each.measured:,}",
        seconds_of(each.measured_seconds), significant(each.ratio) if each.ratio else "",
    )  # fmt: skip


def _sum(several: Iterable[OpsCompared]) -> OpsCompared:
    rows = list(several)
    return OpsCompared(
        sum(each.predicted for each in rows), sum(each.measured for each in rows),
        sum(each.predicted_seconds for each in rows), sum(each.measured_seconds for each in rows),
    )  # fmt: skip


def compared(path: str, predicted: Sequence[IssuedOp], program: Program, timed: bool) -> ProfileComparison:
    """Return a predicted step compared with that of a file.

    predicted  the ops of the program, with their kernels if `timed` for a GPU
    Raises `InputError` if the file is none of a step, or has no kernels though a GPU is given.
    """
    ours = _by_name(each for each in predicted if not is_view(each.op))
    views = _by_name(each for each in predicted if is_view(each.op))
    measured = read_profile(Path(path), {**ours, **views})
    on_gpu = any(each.issued.kernels for each in measured.ran)
    if timed and measured.ran and not on_gpu:
        raise InputError(f"{path} has no kernels: profile with ProfilerActivity.CUDA, or leave out --on")
    theirs = _by_name(each.issued for each in measured.ran if _runs(each.issued, on_gpu, views.keys() - ours.keys()))
    ran = tuple(_of_kinds(measured.ran, ours, theirs))
    names, kinds = dict[str, OpsCompared](), defaultdict[str, tuple[list[float], list[float]]](lambda: ([], []))
    for name in {**ours, **theirs} if theirs else ():
        sides = ours.get(name, []), theirs.get(name, [])
        mine, its = (sum((_seconds(each, on_gpu) for each in side), 0.0) for side in sides)
        names[name] = OpsCompared(len(sides[0]), len(sides[1]), mine, its, _different(*sides))
    for side, several in enumerate((predicted, [each.issued for each in ran])):
        for kernel in (kernel for each in several for kernel in each.kernels):
            kinds[kernel.kind][side].append(kernel.seconds)
    by_kind = {
        kind: OpsCompared(len(mine), len(its), sum(mine), sum(its)) for kind, (mine, its) in kinds.items() if theirs
    }
    memory, there = dict[str, tuple[int, int]](), measured.program
    if there.buffers and measured.whole:
        memory[PEAK] = peak(program).bytes, peak(there).bytes
    if there.buffers and (not measured.whole or any(each.first == BEFORE for each in there.buffers)):
        memory[MADE] = _made(program), _made(there)
    step = replace(measured, ran=ran)
    return ProfileComparison(path, measured.what, on_gpu, _longest(by_kind), _longest(names), memory, step)


def _by_name(issued: Iterable[IssuedOp]) -> dict[str, list[IssuedOp]]:
    """Return ops by name, in order."""
    result = defaultdict[str, list[IssuedOp]](list)
    for each in issued:
        result[each.op.name.replace("learncost::", "aten::")].append(each)
    return dict(result)


def _runs(each: IssuedOp, on_gpu: bool, views: Container[str]) -> bool:
    """Return whether a measured op computes something: on a GPU it has a kernel, on a CPU it is no view."""
    name = each.op.name
    return bool(each.kernels) if on_gpu else name != ALLOCATOR and name not in views and not is_view(each.op)


def _of_kinds(
    ran: Iterable[ExecutedOp], ours: Mapping[str, Sequence[IssuedOp]], theirs: Mapping[str, Sequence[IssuedOp]]
) -> Iterator[ExecutedOp]:
    """Yield measured ops with the kinds of predicted kernels: those of the op in the same place among as many of its
    name, otherwise those of the first.
    """
    kinds = {name: [each.kernels[0].kind for each in several if each.kernels] for name, several in ours.items()}
    seen = Counter[str]()
    for each in ran:
        if each.issued.kernels:
            name = each.issued.op.name
            mine = kinds.get(name) or [UNKNOWN]
            kind = mine[seen[name] if len(mine) == len(theirs[name]) else 0]
            seen[name] += 1
            kernels = tuple(replace(kernel, kind=kind) for kernel in each.issued.kernels)
            each = each._replace(issued=replace(each.issued, kernels=kernels))
        yield each


def _seconds(each: IssuedOp, on_gpu: bool) -> float:
    return sum(kernel.seconds for kernel in each.kernels) if on_gpu else each.issue


def _different(ours: Sequence[IssuedOp], theirs: Sequence[IssuedOp]) -> int:
    """Return how many ops have inputs of other shapes than as many ones in the same places, where these are known."""
    if len(ours) != len(theirs):
        return 0
    shapes = ([sorted(each.shape for each in of.op.inputs if each.shape) for of in side] for side in (ours, theirs))
    return sum(bool(other) and one != other for one, other in zip(*shapes, strict=True))


def _made(program: Program) -> int:
    """Return the most bytes in use at once of what is made in the step."""
    made = tuple(each for each in program.buffers if each.first != BEFORE)
    return max(levels(replace(program, buffers=made)), default=0)


def _longest(rows: Mapping[str, OpsCompared]) -> dict[str, OpsCompared]:
    def length(item: tuple[str, OpsCompared]) -> tuple[float, float, int]:
        return -item[1].measured_seconds, -item[1].predicted_seconds, -item[1].predicted

    return dict(sorted(rows.items(), key=length))
