"""Build a program op by op, from a run on tensors without values.

A buffer is in use until the last op that reads or writes it, or until it is freed. A loop of many equal iterations does
not run completely: `ProgramBuilder.iterations` yields those that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from learncost.program.program import FORWARD, Buffer, Operand, Program, ProgramOp, made_in

BEFORE = -1
"""The place of what happens before the first op."""

FEW = 12
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

    def give(self, role: str, size: int, label: str = "", device: str = "") -> None:
        """Add bytes that are in use throughout the step."""
        self.allocate(size, role, label or role, BEFORE, device)

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
    ) -> None:
        """Record an op, whose results were added before."""
        place = self.phase, self.microbatch, label or self.where()
        self.ops.append(ProgramOp(name, "", tuple(inputs), tuple(outputs), {}, *place, "", "", scratch))
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
