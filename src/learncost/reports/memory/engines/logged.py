"""The memory at every line of a step that ran on a tape, from its allocation log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from learncost.ir.loop import walk
from learncost.ir.table import Table
from learncost.liveness import LiveInterval, Moment
from learncost.program.allocation_log import AllocationHistory, Logged, LoggedLine

ENGINES = ()
"""Return nothing: this module has none."""

BACKWARD, UPDATE = ", backward", "optimizer step"


@dataclass(frozen=True)
class Logs:
    """A log, the forward table whose names are its labels, and the bytes in use before it starts.

    given  by name, what part of the step's memory it is
    counts  the table's sizes that say how often blocks run, by how often that is
    """

    log: AllocationHistory
    table: Table
    given: Mapping[str, str]
    counts: Mapping[int, str]

    def account(self) -> tuple[tuple[Moment, ...], tuple[LiveInterval, ...]]:
        """Return the bytes and live arrays at every line."""
        labels = self.log.labels
        before = {*self.given, ""}
        start = next((place for place, label in enumerate(labels) if label not in before), len(labels))
        lines = self.log.lines(start)
        again = _again(lines)
        metas = {term.name: line.meta for line, _ in walk(self.table.lines) for term in line.left}
        moments, phases = [], dict[int, str]()
        for place, line in enumerate(lines):
            meta = metas.get(line.label.removesuffix(BACKWARD).partition("+")[0])
            phase = _phase(line.label, place in again)
            loops = ((line.loop, self.counts.get(line.iterations, ""), line.iterations),) if line.iterations > 1 else ()
            layer, block = (meta.layer, meta.block) if meta else ("", None)
            moments.append(Moment(line.label, layer, phase, line.bytes, block, loops))
            phases[place] = phase
        return tuple(moments), tuple(self._stays(lines, phases))

    def _stays(self, lines: tuple[LoggedLine, ...], phases: Mapping[int, str]) -> Iterator[LiveInterval]:
        """Return the arrays over the lines, with equal ones merged."""
        identical: dict[tuple[str, int, str, int, int], list[Logged]] = {}
        for array, first, last in self.log.stays(lines):
            identical.setdefault((array.label, array.bytes, array.kind, first, last), []).append(array)
        for (label, size, kind, first, last), arrays in identical.items():
            phase, part = self._origin(label, kind, phases[first])
            name = label.removesuffix(BACKWARD)
            name = name if name == label else f"d{name}"
            number = sum(array.number for array in arrays)
            yield LiveInterval(name, (), (size,), number, number * size, first, last, phase, part=part)

    def _origin(self, label: str, kind: str, phase: str) -> tuple[str, str]:
        """Return the macro-operation that defines an array, and the array's part of the memory."""
        if label in self.given:
            return "given", self.given[label]
        if kind:
            return "weight_update", kind
        if label.endswith(BACKWARD):
            return "backward", "workspace"
        if label == UPDATE:
            return "optimizer_step", "workspace"
        return "recomputation" if phase in ("recomputation", "backward") else "forward", "activations"


def _again(lines: tuple[LoggedLine, ...]) -> set[int]:
    """Return the recomputed lines of the forward pass: those after the start of the backward pass."""
    begun = next((place for place, line in enumerate(lines) if line.label.endswith(BACKWARD)), len(lines))
    return {
        place
        for place, line in enumerate(lines)
        if place > begun and not line.label.endswith(BACKWARD) and line.label != UPDATE
    }


def _phase(label: str, again: bool) -> str:
    if label == UPDATE:
        return "optimizer_step"
    return "backward" if label.endswith(BACKWARD) else "recomputation" if again else "forward"
