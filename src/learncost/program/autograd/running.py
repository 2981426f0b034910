"""A step that PyTorch itself runs, on tensors without values: what it takes and gives back, by what runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from learncost.program.account import AllocationLog
from learncost.program.log import Logged


class RunUsage:
    """What a step takes while it runs.

    label    what runs now
    given    by label, what part of the memory an array is that is there before the step begins
    steps    the optimizer's step over weights of so many elements, while their gradients are there
    hooked   whether a gradient goes in a hook, once it is there, with its weight's step
    most     bytes at the worst moment, if libraries of products took all that they may
    device   where it runs, as PyTorch calls it
    weights  the table's weights, and those that learn: None where the module itself says what learns
    """

    def __init__(self, device: str = "cpu", weights: tuple[Sequence[str], Sequence[str]] | None = None) -> None:
        self.label, self.device, self.weights = "", device, weights
        self.account = AllocationLog(NEVER, lambda: self.label)
        self.given: dict[str, str] = {}
        self.hooked, self.most = False, 0
        self.steps: Callable[[list[int]], None] = lambda weights: None

    def at_peak(self) -> list[Logged]:
        """The arrays that are there at the first of the worst moments."""
        log = self.account.log
        instant = log.levels.index(self.account.peak)
        return [array for array in log.arrays if array.first <= instant <= array.last]


NEVER = -1
"""Bytes that are never taken: an account that is asked for them keeps its log, and stops nowhere."""

Steps: TypeAlias = "Callable[[Mapping[str, int], str, RunUsage], None]"
"""Runs a module's step forward and back at sizes by letter, with values of a type such as bf16."""
