"""Read a measured step into a program with the times of its ops: a trace of PyTorch's profiler, or a memory snapshot.

A trace is that of `torch.profiler.profile.export_chrome_trace`: ops of the CPU (`cpu_op`) nested by their times, calls
of CUDA (`cuda_runtime`), and what the GPU ran (`kernel`, `gpu_memcpy`, `gpu_memset`), which has the `correlation` of
its call (https://docs.pytorch.org/docs/stable/profiler.html; Kineto, libkineto/src/output_json.cpp). A snapshot is that
of `torch.cuda.memory._snapshot` (https://docs.pytorch.org/docs/stable/torch_cuda_memory.html) as JSON.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeAlias

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.program.program import (
    BACKWARD,
    BEFORE,
    CUDA,
    FORWARD,
    OPTIMIZER,
    Buffer,
    Operand,
    Program,
    ProgramOp,
    made_in,
)
from learncost.timing.clocks import ExecutedOp, IssuedOp
from learncost.timing.kernels import Kernel

Event: TypeAlias = Mapping[str, Any]

ALLOCATOR = "[memory]"
"""The op that allocates or frees a buffer, as the profiler calls it."""

ANNOTATED = "user_annotation"
OPS, ON_GPU = ("cpu_op", ANNOTATED), ("kernel", "gpu_memcpy", "gpu_memset")
ON_CPU = (*OPS, "cuda_runtime", "cuda_driver")
"""Kineto's categories of what the CPU runs, of which ops and annotations are around others, and of what a GPU runs."""

STEP, ENGINE, STEPS_OPTIMIZER = "ProfilerStep#", "autograd::engine::evaluate_function: ", "Optimizer.step"
"""The beginnings of the profiler's names of steps, of nodes that run backward, and of an optimizer's step."""

TYPES = {"float": "float32", "double": "float64", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "bool": "bool",
         "long int": "int64", "long": "int64", "int": "int32", "unsigned char": "uint8"}  # fmt: skip
"""PyTorch's names of types by those of C++, which a trace has."""

UNKNOWN = "not predicted"
"""The kind of a kernel that no predicted op has."""

JSON_OF_SNAPSHOT = 'json.dump(torch.cuda.memory._snapshot(), open("snapshot.json", "w"))'
JSON_OF_TRACE = 'profiler.export_chrome_trace("trace.json")'


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step.

    program  its ops in order of issue, and its buffers where memory was measured; operands are in no buffer
    ran      the same ops with the times of their kernels; empty for a snapshot
    what     which step of the file it is
    whole    whether what was allocated before the step is known
    """

    program: Program
    ran: tuple[ExecutedOp, ...]
    what: str
    whole: bool


def read_profile(path: Path, known: Container[str] = ()) -> MeasuredStep:
    """Return the step of a file: a trace, a snapshot or a memory timeline, as JSON or gzipped JSON.

    known  names of ops; of ops inside each other the outermost one is taken that has one of these
    Raises `InputError` for another file.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        if content[:1] == b"\x80":
            raise InputError(f"{path} is a pickle, which is not read, as that runs its code: write {JSON_OF_SNAPSHOT}")
        found = json.loads(content, parse_float=_finite, parse_constant=_finite)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; {JSON_OF_TRACE} writes one") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError):  # of JSON and of UTF-8
        raise InputError(f"{path} is not JSON: {JSON_OF_TRACE} writes a trace") from None
    try:
        if isinstance(found, dict) and "traceEvents" in found:
            return _TraceReader(path, found["traceEvents"], known).step()
        if isinstance(found, dict) and "device_traces" in found:
            return _snapshot(found)
        if isinstance(found, list) and len(found) == 2:
            return _memory_timeline(*found)
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(f"{path} is no trace of PyTorch's profiler: {type(error).__name__} at {error}") from None
    raise InputError(f"{path} is neither a trace ({JSON_OF_TRACE}) nor a memory snapshot ({JSON_OF_SNAPSHOT})")


def _finite(text: str) -> float | None:
    """Return a number of JSON; None for infinity and NaN."""
    return number if isfinite(number := float(text)) else None


class _MeasuredBuffers:
    """The ops that allocate and free, with their buffers; what is freed without an allocation was there before."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.buffers: list[Buffer] = []
        self._open: dict[int, int] = {}

    def change(self, place: int, address: int, size: int, op: ProgramOp) -> None:
        """Allocate so many bytes in an op, or free them where the number is negative."""
        if size > 0:
            self._open[address] = len(self.buffers)
            self.buffers.append(Buffer(size, self.device, made_in(op.phase), op.label, place, place))
        elif (number := self._open.pop(address, None)) is not None:
            self.buffers[number].last = place - 1
        else:
            self.buffers.append(Buffer(-size, self.device, "", "there before", BEFORE, place - 1))

    def there(self, size: int) -> None:
        """Give the rest of what was there before the first op, so many bytes in all."""
        if (rest := size - sum(each.bytes for each in self.buffers if each.first == BEFORE)) > 0:
            self._open[-1] = len(self.buffers)
            self.buffers.append(Buffer(rest, self.device, "", "there before", BEFORE, BEFORE))

    def program(self, ops: Iterable[ProgramOp]) -> Program:
        every = tuple(ops)
        for number in self._open.values():
            self.buffers[number].last = len(every)
        return Program(every, tuple(self.buffers), self.device)


class _TraceReader:
    """The ops of a trace's last step, with the calls and allocations inside them."""

    def __init__(self, path: Path, events: Sequence[Event], known: Container[str]) -> None:
        self.path, self.known = path, known
        steps = sorted((each for each in events if each.get("cat") == ANNOTATED and each["name"].startswith(STEP)),
                       key=_start)  # fmt: skip
        self.what = f"{steps[-1]['name']}, the last of {len(steps)}" if steps else "all that was profiled"
        start, end = (_start(steps[-1]), _end(steps[-1])) if steps else (-inf, inf)
        wanted = (each for each in events if each.get("cat") in ON_CPU or each.get("name") == ALLOCATOR)
        inside = (each for each in wanted if start <= _start(each) < end)
        self.events = sorted(inside, key=lambda each: (_start(each), -_end(each)))
        launched = [each for each in events if each.get("cat") in ON_GPU]
        calls = {each["args"].get("correlation") for each in self.events} - {None}
        self.on_gpu = any(each["args"].get("correlation") in calls for each in launched)
        self.kernels = defaultdict[Any, list[Event]](list)
        for each in sorted(launched, key=_start):
            self.kernels[each["args"].get("correlation")].append(each)
        self.above, opened = list[int](), defaultdict[Any, list[int]](list)
        for number, event in enumerate(self.events):
            stack = opened[event["tid"]]
            while stack and _end(self.events[stack[-1]]) <= _start(event):
                stack.pop()
            self.above.append(stack[-1] if stack else -1)
            if event.get("cat") in OPS:
                stack.append(number)

    def _around(self, number: int) -> Iterator[tuple[int, str]]:
        """Yield an op and those around it with their names, the innermost first."""
        while number >= 0:
            yield number, self.events[number]["name"]
            number = self.above[number]

    def _taken(self, number: int) -> int:
        """Return the op in which an op is counted: the outermost known one around it, or itself."""
        known = [each for each, name in self._around(number) if name in self.known]
        return known[-1] if known else number

    def step(self) -> MeasuredStep:
        """Return the ops with their kernels, and what is allocated between them."""
        kernels, places = defaultdict[int, list[Event]](list), set[int]()
        parents = {above for event, above in zip(self.events, self.above, strict=True) if event.get("cat") in OPS}
        for number, event in enumerate(self.events):
            inside = self.above[number]
            if event.get("name") == ALLOCATOR:
                if (event["args"]["Device Type"] == 1) == self.on_gpu:
                    places.add(number)
            elif event["cat"] not in OPS:
                if inside >= 0 and (launched := self.kernels.get(event["args"].get("correlation"))):
                    kernels[self._taken(inside)] += launched
            elif number not in parents and "::" in event["name"] and not event["name"].startswith(ENGINE):
                places.add(self._taken(number))
        places |= kernels.keys()
        if not places:
            raise InputError(f"{self.path} has no ops: profile with ProfilerActivity.CPU")
        zero, memory, ran = (
            _start(self.events[min(places)]),
            _MeasuredBuffers(CUDA if self.on_gpu else "cpu"),
            list[ExecutedOp](),
        )
        before = None
        for number in sorted(places):
            event = self.events[number]
            ran.append(self._ran(number, kernels[number], zero))
            if (args := event["args"]) and event["name"] == ALLOCATOR:
                if before is None:  # on the CPU the profiler's total knows nothing from before it
                    before = args.get("Total Allocated", 0) - args["Bytes"] if self.on_gpu else 0
                memory.change(len(ran) - 1, args["Addr"], args["Bytes"], ran[-1].issued.op)
        memory.there(before or 0)
        return MeasuredStep(memory.program(each.issued.op for each in ran), tuple(ran), self.what, bool(before))

    def _ran(self, number: int, launched: Sequence[Event], zero: float) -> ExecutedOp:
        event, around = self.events[number], list(self._around(number))
        node = next((name.removeprefix(ENGINE) for _, name in around if name.startswith(ENGINE)), "")
        stepped = any(name.startswith(STEPS_OPTIMIZER) for _, name in around)
        phase = BACKWARD if node else OPTIMIZER if stepped else FORWARD
        name = around[min(1, len(around) - 1)][1] if event["name"] == ALLOCATOR else event["name"]
        op = ProgramOp(event["name"], "", tuple(_operands(event["args"])), (), {}, phase, 0, name, node=node)
        kernels = tuple(Kernel(UNKNOWN, each["dur"] / 1e6, name=each["name"]) for each in launched)
        starts = tuple((_start(each) - zero) / 1e6 for each in launched)
        start, end = ((at - zero) / 1e6 for at in (_start(event), _end(event)))
        return ExecutedOp(IssuedOp(op, end - start, kernels), start, end, starts)


def _start(event: Event) -> float:
    return float(event["ts"])


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event.get("dur", 0.0))


def _operands(args: Mapping[str, Any]) -> Iterator[Operand]:
    """Yield the tensors among the inputs of an op, where the trace has their shapes."""
    kinds, shapes = args.get("Input type", ()), args.get("Input Dims", ())
    strides = args.get("Input Strides") or [()] * len(shapes)
    for kind, shape, stride in zip(kinds, shapes, strides, strict=False):
        if kind in TYPES:
            yield Operand(-1, tuple(shape), TYPES[kind], tuple(stride), 0)
        elif kind == "TensorList":
            yield from (Operand(-1, tuple(each), "", (), 0) for each in shape)


def _snapshot(found: Mapping[str, Any]) -> MeasuredStep:
    """Return what a snapshot's history allocated and freed on the device with the longest one, in requested bytes."""
    every = list(enumerate(found["device_traces"]))
    device, entries = max(every, key=lambda each: len(each[1]), default=(0, ()))
    memory, ops, given = _MeasuredBuffers(CUDA), list[ProgramOp](), set[int]()
    for entry in entries:
        if entry["action"] in ("alloc", "free_completed"):
            label = next((frame.get("name", "") for frame in entry.get("frames", ())), "")
            ops.append(ProgramOp(ALLOCATOR, "", (), (), {}, FORWARD, 0, label))
            size = entry["size"] if entry["action"] == "alloc" else -entry["size"]
            memory.change(len(ops) - 1, entry["addr"], size, ops[-1])
            given.add(entry["addr"])
    if not ops:
        raise InputError("the snapshot has no history: call torch.cuda.memory._record_memory_history() before the step")
    for segment in found["segments"]:
        for block in segment["blocks"] if segment.get("device", device) == device else ():
            if block["state"].startswith("active") and block["address"] not in given:
                memory.change(len(ops), block["address"], -block.get("requested_size", block["size"]), ops[-1])
    return MeasuredStep(memory.program(ops), (), "the snapshot's history", True)


def _memory_timeline(times: Sequence[float], levels: Sequence[Sequence[int]]) -> MeasuredStep:
    """Return the step of `export_memory_timeline`, which has the bytes in use by category at some moments."""
    if not times:
        raise InputError("the memory timeline is empty: profile a step with profile_memory=True")
    ops = tuple(ProgramOp(ALLOCATOR, "", (), (), {}, FORWARD, 0, "") for _ in times)
    sums = enumerate(sum(each) for _, each in zip(times, levels, strict=True))
    buffers = tuple(Buffer(size, "cpu", "", "", place, place) for place, size in sums)
    return MeasuredStep(Program(ops, buffers), (), "the memory timeline", True)
