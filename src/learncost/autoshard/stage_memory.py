"""The memory of a device of a mesh line by line: what is live at its peak, and over the lines of a microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.passes import purpose
from learncost.autoshard.step import ParallelConfig, StageUsage, StepUsage, sizes_of
from learncost.ir.polynomial import shape_of, size_of
from learncost.liveness import LiveArray, LiveInterval, Moment, SymbolicInterval
from learncost.liveness.kinds import KINDS, SPLIT
from learncost.program.allocation_log import IntervalSet

IN_FLIGHT = "microbatches in flight"


def kind_of(account: MeshAccount, array: SymbolicInterval) -> str:
    """Return what an array is, in the words of `SPLIT`."""
    return purpose(account.placed, array.name) or KINDS.get(array.role, "workspace")


def split_of(account: MeshAccount, step: StepUsage, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the peak of the fullest device by what it holds."""
    return StageMemory(account, step.way, sizes, max(step.stages, key=lambda stage: stage.peak)).split


class StageMemory:
    """The memory of a device with one or several stages, as `memory_of` has its peak.

    way, stage  the configuration, and one of its devices
    """

    def __init__(self, account: MeshAccount, way: ParallelConfig, sizes: Mapping[str, int], stage: StageUsage) -> None:
        self.account, self.way, self.stage = account, way, stage
        self.part = stage.at_peak.part
        self.sizes = account.sizes.of_stage(account.sizes.filled(sizes_of(account, way, sizes)), self.part)
        self.alive = account.passes.of_stage(self.part, way.gradients)
        self._bytes = [int(each) for each in self.alive.bytes(self.sizes)]
        self.levels = [int(level) for level in self.alive.levels @ np.array(self._bytes, float)]

    @cached_property
    def worst(self) -> int:
        """Return the number of the line at the peak."""
        letter = self.stage.at_peak.letter or "F"
        rows = [row for row, moment in enumerate(self.alive.moments) if moment.letter == letter]
        return max(rows or range(len(self.levels)), key=self.levels.__getitem__)

    @property
    def in_flight(self) -> int:
        """Return the bytes of other microbatches and other stages of the device, and of dropout masks."""
        return self.stage.activations - self.levels[self.worst]

    @cached_property
    def split(self) -> dict[str, int]:
        """Return the peak by what it holds."""
        static, result = self.stage.static, dict.fromkeys(SPLIT, 0)
        result |= {"weights": static.weights, "master weights": static.masters, "gradients": static.gradients}
        result |= {"optimizer state": static.states, "activations": self.in_flight}
        result["workspace"] += self.stage.workspace
        for array, size in self._at_peak:
            kind = kind_of(self.account, array)
            result[kind] = result.get(kind, 0) + size
        return result

    @cached_property
    def _sized(self) -> list[tuple[SymbolicInterval, int]]:
        numbers = self.alive.numbers
        return [(array, self._bytes[at]) for array, at in zip(self.alive.arrays, numbers, strict=True)]

    @property
    def _at_peak(self) -> list[tuple[SymbolicInterval, int]]:
        now = self.alive.places[self.worst] + 1
        return [(array, size) for array, size in self._sized if array.first <= now <= array.last]

    @property
    def live_at_peak(self) -> tuple[LiveArray, ...]:
        """Return the arrays at the peak, the largest first; those of all iterations are one."""
        groups: dict[object, list[tuple[SymbolicInterval, int]]] = {}
        for array, size in self._at_peak:
            groups.setdefault((array.name, array.iterations) if array.iterations else id(array), []).append(
                (array, size)
            )
        result = [*self._weights]
        for several in groups.values():
            array, size = several[-1][0], sum(size for _, size in several)
            axes, shape = array.axes, shape_of(array.axes, self.sizes)
            if array.iterations:
                axes, shape = (array.iterations, *axes), (sum(self._times(each) for each, _ in several), *shape)
            if size:
                result.append(LiveArray(array.name, axes, shape, size, array.layer, array.block, array.role))
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
            IN_FLIGHT: (self.in_flight, "activations"),
            "workspace": (self.stage.workspace, "workspace"),
        }
        return {name: (size, part) for name, (size, part) in several.items() if size}

    @property
    def _weights(self) -> Iterator[LiveArray]:
        """Yield the weights of the stage, which are static."""
        table, kind = self.account.placed.table, self.account.kind
        for held in self.account.weights.held:
            if held.weight.terms and self.account.step.within(held.segments, self.part):
                axes = table.axes[held.name]
                size = kind.weight * int(held.weight.at(self.sizes))
                yield LiveArray(held.name, axes, shape_of(axes, self.sizes), size, role="weight")

    def _times(self, array: SymbolicInterval) -> int:
        return array.times if isinstance(array.times, int) else int(array.times.at(self.sizes))

    @cached_property
    def _highest(self) -> dict[int, int]:
        """Return the row with the most bytes of every line, which occurs once for all its iterations."""
        highest: dict[int, int] = {}
        for row, moment in enumerate(self.alive.moments):
            if moment.at.place not in highest or self.levels[row] > self.levels[highest[moment.at.place]]:
                highest[moment.at.place] = row
        return highest

    @property
    def curve(self) -> tuple[Moment, ...]:
        """Return the bytes at every line of the stage."""
        above = self.stage.peak - self.levels[self.worst]
        return tuple(self._moment(row, self.levels[row] + above) for row in self._highest.values())

    @property
    def moment(self) -> Moment:
        """Return the line at the peak."""
        return self._moment(self.worst, self.stage.peak)

    def _moment(self, row: int, size: int) -> Moment:
        at = self.alive.moments[row].at
        loops = tuple((loop, count, int(size_of(count, self.sizes))) for loop, count in at.loops)
        return Moment(at.line.name, at.line.meta.layer, at.line.meta.phase, size, at.line.meta.block, loops)

    def stays(self) -> Iterator[LiveInterval]:
        """Yield the arrays over the lines of the curve, at each of which their bytes sum to it."""
        last = len(self._highest) - 1
        for weight in self._weights:
            yield LiveInterval(
                weight.name, weight.axes, weight.shape, 1, weight.bytes, 0, last, "given", role="weight", part="weights"
            )
        for name, (size, part) in self._throughout.items():
            yield LiveInterval(name, (), (size,), 1, size, 0, last, "given", part=part)
        found = IntervalSet([self.alive.places[row] + 1 for row in self._highest.values()])
        groups: dict[Any, list[tuple[SymbolicInterval, int]]] = {}
        for array, size in self._sized:
            for ends in found.within(array.first, array.last):
                key = (array.name, array.iterations, array.axes) if array.iterations else id(array)
                groups.setdefault((key, *ends), []).append((array, size))
        for (_, first, end), several in groups.items():
            array, size = several[-1][0], sum(size for _, size in several)
            if size:
                yield LiveInterval(
                    array.name,
                    array.axes,
                    shape_of(array.axes, self.sizes),
                    sum(self._times(each) for each, _ in several),
                    size,
                    first,
                    end,
                    array.macro_operation,
                    array.layer,
                    array.block,
                    array.role,
                    kind_of(self.account, array),
                )
