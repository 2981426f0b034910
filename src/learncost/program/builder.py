"""Build a program op by op, from a run on tensors without values.

A loop of many equal iterations does not run completely: `ProgramBuilder.iterations` yields those that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from weakref import ref

from learncost.program.program import FORWARD, Buffer, Operand, Program, ProgramOp, made_in

BEFORE = -1
"""The place of what happens before the first op."""

FEW = 128
"""The number of iterations up to which all of a loop run."""

ENDS = 4
"""The iterations that run at each end of a longer loop."""

SHOWN = 2
"""The iterations after which what is left of an earlier one is what it leaves."""


def omitted_of(count: int) -> int:
    """Return the number of iterations of a loop that do not run."""
    return count - 2 * ENDS - 1 if count > FEW else 0


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
        self._recorded: list[tuple[int, list[ref[Allocation]]]] = []

    def add(self, buffer: Buffer) -> int:
        """Add a buffer, and return its number; its last op is set when it is freed."""
        self.buffers.append(buffer)
        self._open.add(len(self.buffers) - 1)
        return len(self.buffers) - 1

    def allocate(self, size: int, role: str = "", label: str = "", first: int | None = None) -> int:
        """Add a buffer that is in use from an op on, by default the next one."""
        role = role or made_in(self.phase)
        first = len(self.ops) if first is None else first
        return self.add(Buffer(size, self.device, role, label or self.where(), first, BEFORE))

    def give(self, role: str, size: int, label: str = "") -> None:
        """Add bytes that are in use throughout the step."""
        self.allocate(size, role, label or role, BEFORE)

    def free(self, buffer: int) -> None:
        """Record that nothing refers to a buffer after the last op."""
        self._open.discard(buffer)
        self.buffers[buffer] = replace(self.buffers[buffer], last=len(self.ops) - 1)

    def assign(self, buffer: int, role: str) -> None:
        """Set the role of a buffer."""
        self.buffers[buffer] = replace(self.buffers[buffer], role=role)

    def run(
        self,
        name: str,
        inputs: Sequence[Operand] = (),
        outputs: Sequence[Operand] = (),
        scratch: int = 0,
        label: str = "",
    ) -> None:
        """Record an op, whose results were added before."""
        place = self.phase, self.microbatch, label or self.where()
        self.ops.append(ProgramOp(name, "", tuple(inputs), tuple(outputs), {}, *place, scratch=scratch))

    @property
    def in_use(self) -> int:
        """The bytes that are in use now."""
        return sum(self.buffers[buffer].bytes for buffer in self._open)

    def program(self) -> Program:
        """Return the program; buffers that are not freed last to its end."""
        end = len(self.ops)
        buffers = (replace(each, last=end) if at in self._open else each for at, each in enumerate(self.buffers))
        return Program(tuple(self.ops), tuple(buffers), self.device, repeats=tuple(self._repeats))

    def made(self, allocation: Allocation) -> None:
        """Record what is allocated in an iteration that stands for several."""
        for _, recorded in self._recorded:
            recorded.append(ref(allocation))

    def record(self) -> None:
        """Begin an iteration that stands for several."""
        self._recorded.append((len(self.ops), []))

    def recorded(self, omitted: int) -> Callable[[], None]:
        """End such an iteration, and return a function that adds what others leave, as much as is left of it."""
        first, recorded = self._recorded.pop()
        self._repeats.append((first, len(self.ops) - 1, omitted))

        def repeat() -> None:
            for reference in recorded:
                if allocation := reference():
                    allocation.repeat(omitted)

        return repeat

    def iterations(self, count: int) -> Iterator[int]:
        """Yield the iterations of a loop that run: all of up to `FEW`; of more those at its ends, and one for the rest.

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


class Allocation:
    """A buffer that is in use as long as anything refers to it."""

    __slots__ = ("__weakref__", "buffers", "builder")

    def __init__(
        self, builder: ProgramBuilder, size: int, role: str = "", label: str = "", first: int | None = None
    ) -> None:
        self.builder, self.buffers = builder, [builder.allocate(size, role, label, first)]
        builder.made(self)

    @property
    def buffer(self) -> int:
        """The buffer of what ran; none while a storage is freed."""
        return self.buffers[0] if self.buffers else BEFORE

    def repeat(self, omitted: int) -> None:
        """Add those of iterations that do not run."""
        for each in [self.builder.buffers[buffer] for buffer in self.buffers]:
            size, count, first = each.bytes * omitted, each.count * omitted, len(self.builder.ops)
            self.buffers.append(self.builder.add(replace(each, bytes=size, count=count, first=first)))

    def __del__(self) -> None:
        for buffer in self.buffers:
            self.builder.free(buffer)


class TensorStorage(Allocation):
    """A storage that is freed and allocated again while tensors refer to it, as by PyTorch's `resize_`."""

    __slots__ = ()

    def __init__(self, builder: ProgramBuilder) -> None:
        self.builder, self.buffers = builder, []

    def resize(self, size: int, label: str = "") -> None:
        """Free the storage, and allocate it with a new size."""
        self.__del__()
        self.buffers = [self.builder.allocate(size, label, label)] if size else []
