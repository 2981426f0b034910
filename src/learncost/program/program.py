"""The program of a training step: the ops that run, in order, and the buffers that they read and write.

A maker fills it, such as `importer.recorder` from a module as people run it; the peak memory and the timeline (how
many bytes are in use at each line, and every buffer from line to line) are folds.

`ProgramBuilder` builds it op by op, from a run on tensors without values. A buffer is in use until the last op that
reads or writes it, or until it is freed. A loop of many equal iterations does not run completely:
`ProgramBuilder.iterations` yields those that do.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.loop import repetition
from learncost.program.optimizer_step import OptimizerStep

CUDA = "cuda"
"""A GPU that runs PyTorch's kernels, as PyTorch names it."""

HOST = "host"
"""The device of buffers that are offloaded: the memory of the CPU."""

FORWARD, RECOMPUTE, BACKWARD, CLIP, OPTIMIZER = "forward", "recompute", "backward", "clip", "optimizer"
"""The phases of a step."""

WEIGHTS, GRADIENTS, STATES = "weights", "gradients", "optimizer state"
ACTIVATIONS, WORKSPACE = "activations", "workspace"
"""Roles of buffers: activations are made forward, a workspace is what all other phases make."""


MOVED = "bytes"
"""The argument of an op that has no operands: the bytes that it reads and writes."""


EVENT = "event"
"""The argument of an op that records an event on its stream, or waits for it there."""

REREAD, ROW = "reread", "row"
"""The arguments of an op that reads rows several times: the bytes of all times but the first, and those of a row."""


def made_in(phase: str) -> str:
    """Return the role of what is made in a phase."""
    return ACTIVATIONS if phase in (FORWARD, RECOMPUTE) else WORKSPACE


class Operand(NamedTuple):
    """A tensor that an op reads or writes: a view of a buffer.

    dtype    PyTorch's name of the type, such as bfloat16
    strides, offset  in elements
    """

    buffer: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    offset: int


class ProgramOp(NamedTuple):
    """An operator that runs once.

    name         PyTorch's name, such as aten::addmm, and its overload
    inputs       the tensors among its arguments
    outputs      its results; a result in the buffer of an input is a view or written in place
    arguments    the other arguments, by name
    label        the operator and its module, with * for the number of a block
    path         the module whose forward runs it, or ran what it is the gradient of
    node         the autograd node that runs it, in the backward pass
    scratch      bytes that its kernel allocates and frees
    library      bytes that a library of matrix products may allocate besides, at most
    synchronizes whether the CPU waits for its result
    compiled     whether code that torch.compile generated issues it
    stream       the number of the stream on which its kernels run, in order
    """

    name: str
    overload: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    arguments: Mapping[str, Any]
    phase: str
    microbatch: int
    label: str
    path: str = ""
    node: str = ""
    scratch: int = 0
    library: int = 0
    synchronizes: bool = False
    compiled: bool = False
    stream: int = 0


@dataclass(slots=True)
class Buffer:
    """A block of memory from its allocation until nothing refers to it.

    first, last  the ops between which it is in use; -1 as the first: it is there before the step
    count        the number of equal blocks that it stands for, of iterations that were not recorded
    """

    bytes: int
    device: str
    role: str
    label: str
    first: int
    last: int
    count: int = 1


@dataclass(frozen=True)
class Program:
    """The ops of a step, in order, and its buffers.

    device    the device that runs it, as PyTorch names it
    repeats   first and last op of an iteration, and the number of others like it that were not recorded
    """

    ops: tuple[ProgramOp, ...]
    buffers: tuple[Buffer, ...]
    device: str = "cpu"
    repeats: tuple[tuple[int, int, int], ...] = ()

    @property
    def nested(self) -> bool:
        """Return whether a recorded iteration has a loop of which one was recorded, too."""
        loops = [(first, last) for first, last, _ in self.repeats]
        return any(one != other and one[0] <= other[0] and other[1] <= one[1] for one in loops for other in loops)

    @property
    def on_device(self) -> list[Buffer]:
        """The buffers in the memory of the device."""
        return [buffer for buffer in self.buffers if buffer.device == self.device]


@dataclass(frozen=True)
class StepRequest:
    """The settings of a training step to record.

    values        the type of floating-point values, such as bf16
    autocast      the type to which autocast casts operands of products in the forward pass; "": there is no autocast
    given         bytes by role of what no tensor of the module holds, such as buckets of gradients
    weights       the table's weights, and the trainable ones; None where the module determines these
    optimizer     the optimizer, its implementation, and whether gradients are clipped before
    microbatches  the number of microbatches whose gradients are summed
    in_backward   whether a hook runs a weight's step and frees its gradient as soon as it is complete
    capability    the compute capability of a GPU, which decides the kernel of attention
    multiprocessors  those of the GPU, which decide how compiled sums are divided
    compiled      whether the module runs under torch.compile
    devices, placement  under FSDP2: how many, and fsdp, or zero-2, whose blocks stay gathered; 0: the module is alone
    gathered      the type in which FSDP2 gathers weights, where it is not theirs
    """

    values: str
    device: str = "cpu"
    autocast: str = ""
    given: Mapping[str, int] = field(default_factory=dict)
    weights: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    optimizer: OptimizerStep = field(default_factory=OptimizerStep)
    microbatches: int = 1
    in_backward: bool = False
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    compiled: bool = False
    devices: int = 0
    placement: str = ""
    gathered: str = ""


Steps: TypeAlias = "Callable[[Mapping[str, int], StepRequest], Program]"
"""A function that records the training step of a module at given sizes."""


def starred(path: str) -> str:
    """Return a module's path with the number of a block as a wildcard: blocks.*.norm."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


@dataclass(frozen=True)
class Peak:
    """The largest number of bytes in use at once, the first op during which they are, and the buffers then."""

    bytes: int
    op: ProgramOp
    live: tuple[Buffer, ...]

    @property
    def by_role(self) -> dict[str, int]:
        """The bytes by role; scratch of the op is workspace."""
        roles = Counter({WORKSPACE: self.op.scratch})
        for buffer in self.live:
            roles[buffer.role] += buffer.bytes
        return dict(roles)


def levels(program: Program) -> list[int]:
    """Return the bytes in use during each op on the program's device: the live buffers, and its scratch."""
    in_use = _in_use(program, program.on_device)
    return [level + op.scratch for level, op in zip(in_use, program.ops, strict=True)]


def most_on_host(program: Program) -> int:
    """Return the largest number of bytes in use at once of the buffers that are offloaded."""
    return max(_in_use(program, [buffer for buffer in program.buffers if buffer.device == HOST]), default=0)


def _in_use(program: Program, buffers: Iterable[Buffer]) -> list[int]:
    changes = [0] * (len(program.ops) + 2)
    for buffer in buffers:
        changes[max(buffer.first, 0)] += buffer.bytes
        changes[buffer.last + 1] -= buffer.bytes
    return [*accumulate(changes)][: len(program.ops)]


def peak(program: Program) -> Peak:
    """Return the peak memory of a program."""
    in_use = levels(program)
    most = max(in_use)
    place = in_use.index(most)
    live = tuple(buffer for buffer in program.on_device if buffer.first <= place <= buffer.last)
    return Peak(most, program.ops[place], live)


def library_workspace(program: Program) -> int:
    """Return the bytes by which libraries of matrix products may raise the peak, at most."""
    in_use = levels(program)
    most = max(level + op.library for op, level in zip(program.ops, in_use, strict=True))
    return most - max(in_use)


def with_microbatches(program: Program, number: int) -> Program:
    """Return a program with all of its microbatches: the last one that ran stands for those that did not."""
    ran = max(op.microbatch for op in program.ops) + 1
    if ran >= number:
        return program
    passes = [place for place, op in enumerate(program.ops)
              if op.microbatch == ran - 1 and op.phase not in (CLIP, OPTIMIZER)]  # fmt: skip
    end = passes[-1] + 1
    again = program.ops[passes[0] : end] * (number - ran)

    def moved(place: int) -> int:
        return place + len(again) * (place >= end)

    buffers = [replace(each, first=moved(each.first), last=moved(each.last)) for each in program.buffers]
    return replace(program, ops=(*program.ops[:end], *again, *program.ops[end:]), buffers=tuple(buffers))


class IntervalSet:
    """Moments in any order, searched for the longest runs that are within an interval.

    A curve has a line once for all iterations of a loop, with the moment of one iteration; an array of another
    iteration may be live at some of its lines and not at others.
    """

    def __init__(self, moments: Sequence[int]) -> None:
        self._places = sorted(range(len(moments)), key=moments.__getitem__)
        self._moments = [moments[place] for place in self._places]

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ends of the runs of places whose moments are from `first` to `last`, in order."""
        within = self._places[bisect_left(self._moments, first) : bisect_right(self._moments, last)]
        if within and max(within) - min(within) < len(within):  # the most frequent case, tested first
            yield min(within), max(within)
            return
        within.sort()
        begun = 0
        for number, place in enumerate(within):
            if number + 1 == len(within) or within[number + 1] != place + 1:
                yield within[begun], place
                begun = number + 1


LONGEST = 400
"""The largest number of lines of one iteration that is searched for."""


@dataclass(frozen=True)
class TimelineLine:
    """A line of a program, once for all its iterations: the place of the op during which most is in use, these bytes,
    and how often the line runs.
    """

    op: int
    label: str
    bytes: int
    loop: int = -1
    iterations: int = 1


def timeline(program: Program) -> tuple[TimelineLine, ...]:
    """Return the lines of a program that allocate or free: consecutive ops with one label are one line."""
    moves = {place for buffer in program.on_device for place in (buffer.first, buffer.last)}
    lines: list[TimelineLine] = []
    for place, (op, level) in enumerate(zip(program.ops, levels(program), strict=True)):
        if place not in moves and not op.scratch:
            continue
        line = TimelineLine(place, op.label, level)
        if not lines or lines[-1].label != line.label:
            lines.append(line)
        elif level > lines[-1].bytes:
            lines[-1] = line
    return tuple(_folded(program, lines))


def intervals(program: Program, lines: Sequence[TimelineLine]) -> Iterator[tuple[Buffer, int, int]]:
    """Yield every buffer that is in use at some of the lines, with the first and the last of a run of these."""
    places = IntervalSet([line.op for line in lines])
    scratch = (Buffer(op.scratch, program.device, made_in(op.phase), op.label, place, place)
               for place, op in enumerate(program.ops) if op.scratch)  # fmt: skip
    for buffer in (*program.on_device, *scratch):
        if buffer.bytes:
            for first, last in places.within(buffer.first, buffer.last):
                yield buffer, first, last


def _folded(program: Program, lines: Sequence[TimelineLine]) -> Iterator[TimelineLine]:
    """Yield lines with consecutive repetitions folded, within a microbatch: of all starts the one whose repetitions
    cover most.
    """
    numbers, ops = dict[Hashable, int](), [line.op for line in lines]
    labels = [numbers.setdefault((line.label, program.ops[line.op].microbatch), len(numbers)) for line in lines]
    loops = [(bisect_left(ops, first), bisect_right(ops, last), number) for first, last, number in program.repeats]

    def allowed(period: int, end: int) -> bool:  # a loop of which not all iterations ran is folded alone
        return not any(place <= first and last <= end and period > 2 * (last - first) for first, last, _ in loops)

    place = loop = 0
    while place < len(lines):
        period, iterations = repetition(labels, place, LONGEST, allowed)
        if iterations == 1:
            yield lines[place]
            place += 1
            continue
        end = place + period * iterations
        number = iterations + sum(number for first, last, number in loops if place <= first and last <= end)
        for offset in range(period):
            worst = max(lines[place + offset : end : period], key=lambda line: line.bytes)
            yield replace(worst, loop=loop, iterations=number)
        place, loop = end, loop + 1


BEFORE = -1
"""The place of what happens before the first op."""

ENDS = 4
"""The iterations that run at each end of a loop, and one between them; of a shorter loop all run."""

SHOWN = 2
"""The iterations after which what is left of an earlier one is what it leaves."""


def omitted_of(count: int) -> int:
    """Return the number of iterations of a loop that do not run."""
    return max(0, count - 2 * ENDS - 1)


class ProgramBuilder:
    """The ops so far and their buffers.

    device, phase, microbatch  of the ops that follow
    where                      returns the label of the next one
    """

    def __init__(self, device: str = "cpu", where: Callable[[], str] = lambda: "") -> None:
        self.device, self.where, self.phase, self.microbatch = device, where, FORWARD, 0
        self.ops: list[ProgramOp] = []
        self.buffers: list[Buffer] = []
        self._open: set[int] = set()
        self._repeats: list[tuple[int, int, int]] = []
        self._recorded: list[tuple[int, int]] = []
        self._copied: list[tuple[range, int, int]] = []

    def add(self, buffer: Buffer) -> int:
        """Add a buffer that is in use until it is freed, and return its number."""
        self.buffers.append(buffer)
        self._open.add(len(self.buffers) - 1)
        return len(self.buffers) - 1

    def allocate(self, size: int, role: str = "", label: str = "", first: int | None = None, device: str = "") -> int:
        """Add a buffer that is in use from an op on, by default the next one, until it is freed."""
        role = role or made_in(self.phase)
        first = len(self.ops) if first is None else first
        return self.add(Buffer(size, device or self.device, role, label or self.where(), first, BEFORE))

    def make(self, size: int, role: str = "", label: str = "", first: int | None = None, device: str = "") -> int:
        """Add a buffer that is in use from an op on until the last op that reads or writes it."""
        buffer = self.allocate(size, role, label, first, device)
        self._open.discard(buffer)
        return buffer

    def give(self, role: str, size: int, label: str = "", device: str = "") -> int:
        """Add bytes that are in use throughout the step, and return their buffer."""
        return self.allocate(size, role, label or role, BEFORE, device)

    def free(self, *buffers: int) -> None:
        """Record that nothing refers to buffers after the last op."""
        self._open.difference_update(buffers)
        self.hold(*buffers)

    def hold(self, *buffers: int) -> None:
        """Record that buffers are in use until the last op, as those of a variable are that nothing reads."""
        last = len(self.ops) - 1
        for buffer in buffers:
            if buffer != BEFORE:  # the storage of weights that are not gathered
                self.buffers[buffer].last = last

    def assign(self, buffer: int, role: str) -> None:
        """Set the role of a buffer."""
        self.buffers[buffer].role = role

    def run(
        self,
        name: str,
        inputs: Sequence[Operand] = (),
        outputs: Sequence[Operand] = (),
        scratch: int = 0,
        label: str = "",
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Record an op, whose results were added before."""
        place = self.phase, self.microbatch, label or self.where()
        self.ops.append(ProgramOp(name, "", tuple(inputs), tuple(outputs), arguments, *place, "", "", scratch))
        self.hold(*[operand.buffer for operand in (*inputs, *outputs)])

    @property
    def in_use(self) -> int:
        """The bytes of the buffers that are not freed yet."""
        return sum(self.buffers[buffer].bytes for buffer in self._open)

    def program(self) -> Program:
        """Return the program; buffers that are not freed last to its end, also where they are freed later."""
        end = len(self.ops)
        buffers = [replace(each, last=end) if at in self._open else each for at, each in enumerate(self.buffers)]
        copies: dict[int, list[Buffer]] = {}
        for numbers, first, omitted in self._copied:
            for number in numbers:
                if buffers[number].last >= first:
                    several = copies.setdefault(number, [buffers[number]])
                    several += [
                        replace(each, bytes=each.bytes * omitted, count=each.count * omitted, first=first)
                        for each in several
                    ]
        buffers += [copy for several in copies.values() for copy in several[1:]]
        return Program(tuple(self.ops), tuple(buffers), self.device, repeats=tuple(self._repeats))

    def record(self) -> None:
        """Begin an iteration that stands for several."""
        self._recorded.append((len(self.ops), len(self.buffers)))

    def recorded(self, omitted: int) -> Callable[[], None]:
        """End such an iteration, and return a function that adds what others leave: as much as is in use then."""
        op, buffer = self._recorded.pop()
        self._repeats.append((op, len(self.ops) - 1, omitted))
        numbers = range(buffer, len(self.buffers))
        return lambda: self._copied.append((numbers, len(self.ops), omitted))

    def iterations(self, count: int) -> Iterator[int]:
        """Yield the iterations of a loop that run: those at its ends, and one for the rest.

        What is left of the one between them counts once for each that does not run, as soon as two others have run:
        what these free is not left by each. From one iteration to the next, the bytes at a line grow or shrink by the
        same amount, except in the first and the last ones, so that the peak is in an iteration that runs.
        """
        omitted = omitted_of(count)
        if not omitted:
            yield from range(count)
            return
        yield from range(ENDS)
        self.record()
        yield ENDS
        repeat = self.recorded(omitted)
        yield from range(count - ENDS, count - ENDS + SHOWN)
        repeat()
        yield from range(count - ENDS + SHOWN, count)
