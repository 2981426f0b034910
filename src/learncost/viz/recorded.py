"""The timeline of a recorded step: what the CPU issues, the kernels that the GPU runs, and the memory in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from learncost.program.program import levels
from learncost.timing.clocks import ProgramTime, Ran, played
from learncost.viz.timeline import Slice, TimelineCounter, TimelineProcess, changes


class _Slot(NamedTuple):
    """A slice to be: an op's issue, or one of its kernels."""

    path: str
    phase: str
    part: Slice


def processes(took: ProgramTime, device: str) -> tuple[TimelineProcess, TimelineProcess]:
    """Return the CPU, with the memory that its calls allocate, and the GPU; passes and modules are around their ops."""
    every = list(played(took.issued, took.gpu.host))
    memory = zip((_nanoseconds(each.start) for each in every), levels(took.program), strict=True)
    counter = TimelineCounter("memory, predicted", "bytes", changes(memory))
    issued = [_Slot(each.issued.op.path, each.issued.op.phase, _issued(each)) for each in every]
    return (
        TimelineProcess("CPU, which issues operators", tuple(_nested(issued)), (counter,)),
        TimelineProcess(device, tuple(_nested(list(_kernels(every))))),
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _issued(each: Ran) -> Slice:
    op = each.issued.op
    return Slice(op.name, "line", op.phase, _nanoseconds(each.start), _nanoseconds(each.end))


def _kernels(every: Iterable[Ran]) -> Iterator[_Slot]:
    for each in every:
        op = each.issued.op
        shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in op.inputs if tensor.shape)
        for kernel, start in zip(each.issued.kernels, each.starts, strict=True):
            facts = {"kind": kernel.kind, "inputs": shapes, "flops": kernel.flops}
            ends = _nanoseconds(start + kernel.seconds)
            yield _Slot(op.path, op.phase, Slice(op.name, "line", op.phase, _nanoseconds(start), ends, facts))


def _nested(parts: list[_Slot]) -> Iterator[Slice]:
    """Yield the passes with their consecutive modules, and in these the parts."""
    for phase, of_phase in groupby(parts, lambda each: each.phase):
        modules = []
        for path, of_module in groupby(of_phase, lambda each: each.path):
            inside = [each.part for each in of_module]
            modules += [_around(path, "layer", phase, inside)] if path else inside
        yield _around(phase, "pass", phase, modules)


def _around(name: str, kind: str, phase: str, inside: list[Slice]) -> Slice:
    return Slice(name, kind, phase, inside[0].start, inside[-1].end, parts=inside)
