"""The memory of one training step by several procedures, or as several runners execute it, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from learncost.reports.memory.memory import Memory
from learncost.reports.sheet import Drawn

EVERYWHERE = ("weights", "master weights", "optimizer state", "new weights and states")
"""The parts of a peak that every runner tells apart; of the others some tell the sum alone."""
ELSE = "all else"

RULE_OF = {
    "new weights and states": "new weights and states",
    "gradients": "gradients",
    "activations": "kept for backward",
    "workspace": "temporaries",
}
"""Which rule of the runners a part of the peak follows."""


@dataclass(frozen=True)
class Difference:
    """What a runner takes more than another one in a part of the peak, and the rules of both for it, where they differ.

    rules  of this one and of the other, by what they are about
    """

    part: str
    bytes: int
    rules: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, repr=False)
class MemoryComparison(Drawn):
    """What a step takes by each of several procedures, or of several runners: `by` says which.

    left_out  procedures that the model cannot learn by, with the reason
    """

    sheets_module = "learncost.reports.memory.show"
    figures = ("memory",)

    memories: tuple[Memory, ...]
    by: str = "procedure"
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def panels(self) -> tuple[Memory, ...]:
        """A panel for each."""
        return self.memories

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it: by procedure, or by engine, what `Memory` has; and what makes the differences."""
        if self.by == "procedure":
            procedures = {memory.procedure: memory.to_dict() for memory in self.memories}
            return {"procedures": procedures, "left_out": dict(self.left_out)}
        first, *others = self.memories
        parts = {
            other.engine: [
                {
                    "part": difference.part,
                    "bytes": difference.bytes,
                    "rules": {name: list(both) for name, both in difference.rules.items()},
                }
                for difference in differences(other, first)
            ]
            for other in others
        }
        engines = {memory.engine: memory.to_dict() for memory in self.memories}
        return {"engines": engines, "differences": {"from": first.engine, "by_engine": parts}}


def differences(first: Memory, other: Memory) -> Iterator[Difference]:
    """What makes the difference between the peaks of two runners, part by part; their sum is the difference."""
    parts = dict.fromkeys(part for memory in (first, other) for part, size in memory.split.items() if size)
    separate = {"gradients", "activations", "workspace"}
    apart = separate.isdisjoint(first.split) == separate.isdisjoint(other.split)
    if not apart:
        parts = dict.fromkeys((*(part for part in parts if part in EVERYWHERE), ELSE))
    for part in parts:
        size = _part(first, part) - _part(other, part)
        about = [RULE_OF[part]] if part in RULE_OF else [rule for rule in first.rules if part not in EVERYWHERE]
        rules = {
            rule: (first.rules[rule], other.rules[rule]) for rule in about if first.rules[rule] != other.rules[rule]
        }
        if part == ELSE:  # what the optimizer makes has a part of its own
            rules.pop("new weights and states", None)
        if first.plan != other.plan and part not in EVERYWHERE:
            rules["plan"] = first.plan or "none", other.plan or "none"
        if size:
            yield Difference(part, size, rules)


def _part(memory: Memory, part: str) -> int:
    if part != ELSE:
        return memory.split.get(part, 0)
    return memory.peak - sum(memory.split.get(name, 0) for name in EVERYWHERE)
