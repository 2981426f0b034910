"""A step that PyTorch itself runs, on tensors without values: its allocations, by the operator that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from learncost.program.account import AllocationLog
from learncost.program.log import Logged


class RunUsage:
    """The memory use of a step that runs.

    label    the operator that runs now
    given    by label, the category of an array that is allocated before the step begins
    steps    the optimizer's step over weights with these numbers of elements, while their gradients are alive
    hooked   whether a hook runs a weight's step and frees its gradient as soon as it is complete
    most     peak bytes if matrix product libraries used their largest workspace
    device   the device, as PyTorch names it
    weights  the table's weights, and the trainable ones; None where the module determines these
    """

    def __init__(self, device: str = "cpu", weights: tuple[Sequence[str], Sequence[str]] | None = None) -> None:
        self.label, self.device, self.weights = "", device, weights
        self.account = AllocationLog(NEVER, lambda: self.label)
        self.given: dict[str, str] = {}
        self.hooked, self.most = False, 0
        self.steps: Callable[[list[int]], None] = lambda weights: None

    def at_peak(self) -> list[Logged]:
        """Return the live arrays at the first of the peaks."""
        log = self.account.log
        instant = log.levels.index(self.account.peak)
        return [array for array in log.arrays if array.first <= instant <= array.last]


NEVER = -1
"""A number of bytes that is never in use: with it, a log is kept and nothing stops."""

Steps: TypeAlias = "Callable[[Mapping[str, int], str, RunUsage], None]"
"""A function that runs a module's forward and backward at given sizes, in a type such as bf16."""
