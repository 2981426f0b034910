"""The memory of a device of a mesh line by line: what is live at its peak, and over the lines of a microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.passes import purpose
from learncost.autoshard.step import ParallelConfig, StageUsage, StepUsage, sizes_of
from learncost.ir.dataclass import replace
from learncost.ir.polynomial import shape_of
from learncost.liveness import (
    BUFFERS,
    KINDS,
    SPLIT,
    LiveArray,
    LiveInterval,
    ProgramPoint,
    highest,
    live_arrays,
    live_intervals,
)
from learncost.program.lifetimes import ScheduledArray


def kind_of(account: MeshAccount, array: LiveArray | LiveInterval) -> str:
    """Return what an array is, in the words of `SPLIT`."""
    return purpose(account.step.placed, array.name) or KINDS.get(array.role, "workspace")


def split_of(account: MeshAccount, step: StepUsage, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the peak of the fullest device by what it holds."""
    return StageMemory(account, step.parallel, sizes, max(step.stages, key=lambda stage: stage.peak)).split


class StageMemory:
    """The memory of a device with one or several stages, as `memory_of` has its peak.

    parallel, stage  the configuration, and one of its devices
    """

    def __init__(
        self, account: MeshAccount, parallel: ParallelConfig, sizes: Mapping[str, int], stage: StageUsage
    ) -> None:
        self.account, self.parallel, self.stage = account, parallel, stage
        self.part = stage.at_peak.part
        self.sizes = account.sizes.of_stage(account.sizes.filled(sizes_of(account, parallel, sizes)), self.part)
        self.alive = account.passes.of_stage(self.part, parallel.gradients)
        self._bytes = [int(each) for each in self.alive.bytes(self.sizes)]
        self.levels = [int(level) for level in self.alive.at(np.array(self._bytes, float), self.sizes)]

    @cached_property
    def worst(self) -> int:
        """Return the number of the line at the peak."""
        letter = self.stage.at_peak.letter or "F"
        rows = [row for row, moment in enumerate(self.alive.moments) if moment.letter == letter]
        return max(rows or range(len(self.levels)), key=self.levels.__getitem__)

    @property
    def in_flight(self) -> int:
        """Return the bytes of other microbatches and other stages of the device."""
        return self.stage.activations - self.levels[self.worst] - self.masks

    @cached_property
    def masks(self) -> int:
        """Return the bytes of the microbatch's dropout masks, which a weight update does not read."""
        return 0 if self.stage.at_peak.letter == "W" else int(self.account.passes.masks(self.sizes, self.part))

    @cached_property
    def split(self) -> dict[str, int]:
        """Return the peak by what it holds."""
        static, result = self.stage.static, dict.fromkeys(SPLIT, 0)
        result |= {"weights": static.weights, "master weights": static.masters, "gradients": static.gradients}
        result |= {"optimizer state": static.states, "activations": self.in_flight + self.masks}
        result |= {BUFFERS: static.communication_buffers} if static.communication_buffers else {}
        result["workspace"] += self.stage.workspace
        for array in self._at_peak:
            kind = kind_of(self.account, array)
            result[kind] = result.get(kind, 0) + array.bytes
        return result

    @cached_property
    def _sized(self) -> list[tuple[ScheduledArray, int]]:
        numbers = self.alive.numbers
        return [(each.array, self._bytes[at]) for each, at in zip(self.alive.arrays, numbers, strict=True)]

    @property
    def _at_peak(self) -> list[LiveArray]:
        now = self.alive.places[self.worst] + 1
        there = ((array, size) for array, size in self._sized if array.first <= now <= array.last)
        return live_arrays(there, self.sizes)

    @property
    def live_at_peak(self) -> tuple[LiveArray, ...]:
        """Return the arrays at the peak, the largest first; those of all iterations are one."""
        result = [*self._weights, *(array for array in self._at_peak if array.bytes)]
        result += (LiveArray(name, (), (), size) for name, (size, _) in self._throughout.items())
        return tuple(sorted(result, key=lambda array: -array.bytes))

    @cached_property
    def _throughout(self) -> dict[str, tuple[int, str]]:
        """Return the bytes that are alive throughout and of no array of the stage, by name, each with its part."""
        static, weights = self.stage.static, sum(weight.bytes for weight in self._weights)
        several = {
            "quantized weights": (static.weights - weights, "weights"),
            "optimizer state": (static.states, "optimizer state"),
            "master weights": (static.masters, "master weights"),
            "gradients": (static.gradients, "gradients"),
            BUFFERS: (static.communication_buffers, BUFFERS),
            "dropout masks": (self.masks, "activations"),
            "microbatches in flight": (self.in_flight, "activations"),
            "workspace": (self.stage.workspace, "workspace"),
        }
        return {name: (size, part) for name, (size, part) in several.items() if size}

    @property
    def _weights(self) -> Iterator[LiveArray]:
        """Yield the weights of the stage, which are static."""
        table, kind = self.account.step.placed.table, self.account.step.kind
        for held in self.account.weights.held:
            if held.weight.terms and self.account.step.within(held.segments, self.part):
                axes = table.axes[held.name]
                size = kind.weight * int(held.weight.at(self.sizes))
                yield LiveArray(held.name, axes, shape_of(axes, self.sizes), size, role="weight")

    @cached_property
    def _highest(self) -> dict[int, tuple[int, int]]:
        """Return the row with the most bytes of every line, which occurs once for all its iterations, and these."""
        return highest((moment.at.place for moment in self.alive.moments), self.levels)

    @property
    def curve(self) -> tuple[ProgramPoint, ...]:
        """Return the bytes at every line of the stage."""
        above, moments = self.stage.peak - self.levels[self.worst], self.alive.moments
        found = tuple(moments[row].at.moment(level + above, self.sizes) for row, level in self._highest.values())
        if not self._updates_at_end:
            return found
        return (*found, ProgramPoint("optimizer step", "", "optimizer_step", int(self.stage.static.total)))

    @property
    def _updates_at_end(self) -> bool:
        """Return whether weights are updated after the passes of all microbatches, from static gradients alone."""
        phases = {self.alive.moments[row].at.line.meta.phase for row, _ in self._highest.values()}
        return "optimizer_step" not in phases

    @property
    def peak_at(self) -> ProgramPoint:
        """Return the line at the peak."""
        return self.alive.moments[self.worst].at.moment(self.stage.peak, self.sizes)

    def intervals(self) -> Iterator[LiveInterval]:
        """Yield the arrays over the lines of the curve, at each of which their bytes sum to it."""
        last, update = len(self._highest) - 1, int(self._updates_at_end)
        for weight in self._weights:
            name, axes, shape, size = weight.name, weight.axes, weight.shape, weight.bytes
            yield LiveInterval(name, axes, shape, 1, size, 0, last + update, "given", role="weight", part="weights")
        for name, (size, part) in self._throughout.items():
            end = last if part in ("activations", "workspace") else last + update
            yield LiveInterval(name, (), (size,), 1, size, 0, end, "given", part=part)
        moments = [self.alive.places[row] + 1 for row, _ in self._highest.values()]
        for stay in live_intervals(self._sized, moments, self.sizes):
            if stay.bytes:
                yield replace(stay, part=kind_of(self.account, stay))
