"""`learncost trace MODEL`: the predicted step as a trace for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from learncost import __version__
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import check_known
from learncost.ir.precision import precision_of
from learncost.ir.table import Table
from learncost.liveness import moments
from learncost.models.storage import path_of, written
from learncost.models.tables import letters_of
from learncost.passes.plan import NONE
from learncost.procedures.optimizer import default_optimizer
from learncost.procedures.procedure import INFERENCE
from learncost.procedures.procedure import procedure as find_procedure
from learncost.program.autograd.module import UserModule
from learncost.program.lifetimes import WalkedIterations
from learncost.program.program import Program, levels
from learncost.reports.inference import served
from learncost.reports.memory.engines.eager import program_of
from learncost.reports.memory.memory import memory_question
from learncost.reports.memory.on_device import memory_on_device
from learncost.reports.memory.step import MemoryStep
from learncost.reports.profile import ProfileComparison, compared
from learncost.reports.recorded import RecordedTime, recorded_time
from learncost.reports.request import Request, takes_request
from learncost.reports.run import executed_plan, prepare
from learncost.reports.sheet import Sheet, SheetRow, TabularAnswer, batch_text, number, seconds_of
from learncost.timing.clocks import ExecutedOp, IssuedOp, played
from learncost.viz.predicted import PricedStep, StepMemory, process
from learncost.viz.timeline import Slice, Timeline, TimelineCounter, TimelineProcess, changes, perfetto

if TYPE_CHECKING:
    from learncost.timing.rates import Rates


THREAD = 1


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline as the JSON object of a trace file."""
    events = [event for number, process in enumerate(timeline.processes, 1) for event in _events(process, number)]
    return {"displayTimeUnit": "ns", "otherData": dict(timeline.facts), "traceEvents": events}


def _events(process: TimelineProcess, number: int) -> Iterator[dict[str, Any]]:
    where = {"pid": number, "tid": THREAD}
    yield {"ph": "M", "name": "process_name", **where, "args": {"name": process.name}}
    yield {"ph": "M", "name": "process_sort_index", **where, "args": {"sort_index": number}}
    yield {"ph": "M", "name": "thread_name", **where, "args": {"name": "step"}}
    for part in process.walk():
        times = {"ts": part.start / 1000, "dur": part.length / 1000}
        args = {"kind": part.kind, **part.facts}
        yield {"ph": "X", "name": part.name, "cat": part.category, **where, **times, "args": args}
    for counter in process.counters:
        for at, value in counter.values:
            event = {"name": counter.name, "cat": "memory", **where, "ts": at / 1000}
            yield {"ph": "C", **event, "args": {counter.unit: value}}


ENDINGS = (".json", ".pftrace")
"""The file endings of the Trace Event Format and of Perfetto's protobuf."""

OPENS = "https://ui.perfetto.dev or chrome://tracing open it."


@dataclass(frozen=True, repr=False)
class Trace(TabularAnswer):
    """A timeline of a step, with the step's description.

    Attributes
    ----------
    title
        What it is of, in a line.
    timeline
        Its slices and counters; all times are in nanoseconds.
    path
        The file that it was written to, where one was named.
    profile
        The comparison with a measured step, where one was named.

    Examples
    --------
    >>> predicted = lc.trace("gpt2", on="A100-SXM-80GB")
    >>> [part.name for part in predicted.timeline.processes[0].slices]
    ['forward', 'recomputation, backward, weight update', 'optimizer step']
    >>> predicted.to_dict()["otherData"]["length"]
    'seconds, modelled'
    """

    title: str
    timeline: Timeline
    path: str | None = None
    profile: ProfileComparison | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the trace in the Trace Event Format, with the comparison, if there is one."""
        return trace_events(self.timeline) | ({"comparison": self.profile.to_dict()} if self.profile else {})

    def to_bytes(self, ending: str) -> bytes:
        """Return the trace in the format of a suffix: .json or .pftrace."""
        if ending == ".pftrace":
            return perfetto(self.timeline)
        return (json.dumps(self.to_dict(), separators=(",", ":")) + "\n").encode()

    def write(self, path: str | Path) -> None:
        """Write the file atomically. Raises `InputError`."""
        with written(path_of("trace", ENDINGS, path)) as temporary:
            temporary.write_bytes(self.to_bytes(Path(path).suffix))

    def sheets(self, width: int = 0) -> tuple[Sheet, ...]:
        """Return the passes with their times, and the file."""
        facts, rows = self.timeline.facts, list[SheetRow]()
        for each in self.timeline.processes:
            several = len(self.timeline.processes) > 1
            rows += [SheetRow((each.name, "", ""), "bold")] if several else []
            cells = ((part.name, number(_lines(part)), _length(part.length, facts)) for part in each.slices)
            rows += [SheetRow(row, depth=int(several)) for row in cells]
        parts = [part for each in self.timeline.processes for part in each.slices]
        sums = number(sum(map(_lines, parts))), _length(max(part.end for part in parts), facts)
        where = f"In {self.path}: {OPENS}" if self.path else "Give -o trace.json or -o trace.pftrace to write it."
        notes = (where, *(f"{name.capitalize()}: {facts[name]}." for name in _NOTED if name in facts))
        sheet = Sheet(self.title, ("", "lines", "length"), (*rows, SheetRow(("total", *sums), "bold")), notes)
        return (self.profile.sheet(), sheet) if self.profile else (sheet,)


_NOTED = ("length", "device", "memory")


def _lines(part: Slice) -> int:
    return sum(inner.kind == "line" for inner in part.walk())


def _length(length: int, facts: Mapping[str, str]) -> str:
    if "nanosecond" not in facts:
        return seconds_of(length / 1e9)
    return f"{length * int(facts['nanosecond'].split()[0].replace(',', '')):,} FLOPs"


@takes_request(
    "model procedure batch_size seq_len target_len optimizer dropout dtype context train train_layers lora lora_rank "
    "lora_alpha dora plan on precision engine module"
)
def trace(request: Request, output: str | None = None, compare: str | None = None) -> Trace:
    """Write the predicted step as a trace, with a slice for every line of every block and a counter for memory.

    Perfetto (https://ui.perfetto.dev) and chrome://tracing open it.

    Parameters
    ----------
    procedure
        The learning procedure of the step: {choices} (`learncost list procedures`); or inference: prefill (forward pass
        of the prompt) or decode (one new token).
    on
        The device for predicted times: here (after learncost calibrate), a file of learncost calibrate `out`, or a
        published device (`learncost list devices`). By default the length of a slice is its number of FLOPs.
    output
        The output file: .json for the Trace Event Format, .pftrace for Perfetto's protobuf.
    compare
        A measured step, which is compared op by op: a trace of torch.profiler (export_chrome_trace), or a memory
        snapshot as JSON.

    Returns
    -------
    Trace
        The slices and counters, which can be written to a file.

    Raises
    ------
    InputError
        As for `lc.cost`, and for a file that cannot be written.

    Examples
    --------
    >>> predicted = lc.trace("gpt2", n_layer=2, seq_len=64)
    >>> passes = predicted.timeline.processes[0].slices
    >>> [part.name for part in passes]
    ['forward', 'backward, weight update', 'optimizer step']
    >>> passes[0].length == lc.cost("gpt2", n_layer=2, seq_len=64).macro_operations["forward"][1].flops
    True

    Commands
    --------
    learncost trace gpt2 --on A100-SXM-80GB -o trace.json
        The predicted step of GPT-2 on a device, for Perfetto.
    learncost trace gpt2 -o trace.pftrace
        The same without a device: the length of a slice is its number of FLOPs.
    learncost trace model.py:NAME --on H100-SXM --compare profile.json
        The predicted step compared with a profiler's trace: numbers and times of kernels by kind and op, and memory.
    """
    path = None if output is None else path_of("trace", ENDINGS, output)
    procedure = request.procedure
    find_procedure(procedure, INFERENCE)
    kind = request.kind()
    rates, type_name, on_device = request.rates(kind), kind.name, memory_on_device(request)
    request = request.in_precision(type_name)
    if procedure in INFERENCE:
        if rates is not None:
            unplanned = served(replace(request, plan=NONE)).table
            request = replace(request, plan=executed_plan(unplanned, request.plan, request.timed_by, rates))
        each = served(request, rates)
        run, table, rows, axes, timed = each.run, each.table, each.rows, each.axes, each.timed
        context = each.context if procedure == "decode" else None
        note = each.length_note(context is not None)
        memory: StepMemory = _InferenceMemory(table, axes, type_name)
    else:
        request.check_without_cache(procedure)
        run = prepare(request)
        context, note = None, run.length_note
        check_known(run.model.table.lines, "a trace")
        run = run.executed(procedure, run.book, rates) if rates is not None else run
        table, rows, axes = run.table(procedure, run.book), run.rows(procedure, run.book), run.axes
        timed = None if rates is None else run.timing(procedure, run.book, rates)
        optimizer = request.optimizer or default_optimizer(run.book)
        memory = MemoryStep(run, procedure, precision_of(type_name), optimizer)
    step = PricedStep(f"{run.model.configuration.name}, {procedure}", table, rows, axes, run.dtype, timed, memory)
    letters = letters_of(run.model.configuration.layer, run.axes)
    batch = batch_text(*run.model.lengths(axes), context, run.model.sample, letters, note)
    what = f"{run.model.configuration.name}, predicted {procedure} in {type_name}"
    title = f"{what}{f' under {run.plan}' if run.plan else ''}: {batch}{on_device.note if on_device else ''}"
    timeline = Timeline((process(step),), _facts(step, type_name, run.plan, rates))
    recorded: RecordedTime | str = ""
    if rates is not None and procedure not in INFERENCE:
        recorded = recorded_time(request, run.model, request.optimizer or default_optimizer(run.book))
        timeline = _of_record(timeline, recorded)
        title += "" if isinstance(recorded, str) else recorded.note
    profile = None if compare is None else _compared(compare, request, recorded)
    if profile and profile.step.ran and rates is not None:
        measured = processes(profile.step.ran, profile.step.program, "GPU, measured", "measured")
        timeline = replace(timeline, processes=(*timeline.processes, *measured))
    drawn = Trace(title, timeline, output, profile)
    if path is not None:
        drawn.write(path)
    return drawn


@dataclass(frozen=True)
class _InferenceMemory:
    """The memory of a pass of inference, from its table."""

    table: Table
    axes: Mapping[str, int]
    precision: str

    def moments(self, iterations: WalkedIterations) -> Iterator[tuple[Line, tuple[int, ...], int]]:
        yield from moments(self.table, self.axes, precision_of(self.precision).values, iterations=iterations)


def _of_record(timeline: Timeline, recorded: RecordedTime | str) -> Timeline:
    """Return the timeline of a module's recorded step, or that of its table, which says why it has none."""
    if isinstance(recorded, str) or recorded.took is None:
        why = f" from the table's lines, since {recorded}" if recorded else ""
        return replace(timeline, facts={**timeline.facts, "length": f"{timeline.facts['length']}{why}"})
    facts = {name: fact for name, fact in timeline.facts.items() if name not in ("flops", "bytes", "kernels")}
    facts |= {
        "length": f"seconds, modelled. {recorded.made}".rstrip("."),
        "seconds": f"{recorded.seconds!r}, {recorded.low:.4g} to {recorded.high:.4g}",
        "source": recorded.source,
        "memory": f"predicted as in `learncost memory --engine {recorded.engine}`",
    }
    took = recorded.took
    ran = tuple(played(took.issued, took.gpu.host))
    return Timeline(tuple(processes(ran, took.program, recorded.device, by_cpu=bool(took.gpu.host.operator))), facts)


def _compared(path: str, request: Request, recorded: RecordedTime | str) -> ProfileComparison:
    """Return the step compared with that of a file: recorded for a GPU, otherwise as in `memory --engine eager`."""
    if not request.is_training:
        raise InputError("--compare applies to a training step")
    if isinstance(recorded, RecordedTime) and recorded.took:
        return compared(path, recorded.took.issued, recorded.took.program, True)
    step = memory_question(replace(request, engine="eager")).step(request.procedure, "eager")
    program = program_of(step)
    ops = program.ops if step.module == UserModule.name else ()  # the table's calls are not those of the dispatcher
    return compared(path, [IssuedOp(op, 0.0, ()) for op in ops], program, False)


def _facts(step: PricedStep, precision: str, plan: str, rates: Rates | None) -> dict[str, str]:
    """Return the facts that a reader of the file needs."""
    facts = {
        "made by": f"learncost {__version__}, learncost trace",
        "what": f"one step of {step.name}, predicted",
        "sizes": ", ".join(f"{name} {size:,}" for name, size in step.axes.items() if size is not None),
        "precision": precision,
        "flops": f"{step.flops:,} as executed (price book run); one MACC is two FLOPs",
        "bytes": "every operand read once and every result written once, line by line",
    }
    if rates is None or step.timing is None:
        facts["length"] = f"FLOPs, not time: no device is given, so a second represents {step.scale * 10**9:,} FLOPs"
        facts["nanosecond"] = f"{step.scale:,} FLOPs"
    else:
        low, high = step.timing.time.low, step.timing.time.high
        facts["length"] = "seconds, modelled"
        facts |= {"device": rates.name, "source": rates.source}
        facts["seconds"] = f"{step.timing.seconds!r}, {low:.4g} to {high:.4g}"
        facts["kernels"] = "a kernel's lines share its time by their FLOPs"
    if step.memory is not None:
        command = f"learncost memory --engine graph --plan {plan or NONE}"
        facts["memory"] = f"predicted as the table says, line by line, as in `{command}`"
    return facts


class _Slot(NamedTuple):
    """A slice to be: an op's issue, or one of its kernels."""

    path: str
    phase: str
    part: Slice


def processes(
    ran: Sequence[ExecutedOp], program: Program, device: str, how: str = "predicted", by_cpu: bool = True
) -> Iterator[TimelineProcess]:
    """Yield the CPU, with the memory that its calls allocate, and the GPU; passes and modules are around their ops.

    by_cpu  whether the CPU issues kernels: a CUDA graph needs none, and its memory is the GPU's
    """
    memory = zip((_nanoseconds(each.start) for each in ran), levels(program), strict=True)
    counters = (TimelineCounter(f"memory, {how}", "bytes", changes(memory)),) if program.buffers else ()
    on_gpu = tuple(_nested(list(_kernels(ran))))
    if by_cpu:
        issued = list[_Slot]()
        for each in ran:
            op, begins, ends = each.issued.op, _nanoseconds(each.start), _nanoseconds(each.end)
            issued.append(_Slot(op.path, op.phase, Slice(op.name, "line", op.phase, begins, ends)))
        cpu = "CPU, which issues operators" + (", measured" if how == "measured" else "")
        yield TimelineProcess(cpu, tuple(_nested(issued)), counters)
    if on_gpu:
        yield TimelineProcess(device, on_gpu, () if by_cpu else counters)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _kernels(every: Iterable[ExecutedOp]) -> Iterator[_Slot]:
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
