"""What a measurement found; it grows as the rounds go on, and can be shown at any time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from against_torch_and_jax.check import Difference
from against_torch_and_jax.sides import ENGINE, FLOOR
from against_torch_and_jax.subject import Subject
from learncost.reports.sheet import TabularAnswer

PARAMETER_BYTES = 12
"""A parameter's weight and two moments of AdamW, in fp32."""


@dataclass(frozen=True)
class Memory:
    """Bytes: at the peak of the steps, and of the runtime alone, after imports and before any weight.

    where   "process" (its resident pages) or "device"
    """

    peak: int
    runtime: int
    where: str

    def beyond(self, parameters: int) -> int:
        """What is left of the peak after the runtime, the weights and the optimizer's state."""
        return self.peak - self.runtime - PARAMETER_BYTES * parameters


@dataclass
class SideFound:
    """Of one side: why it is left out, if it is; facts about it; seconds of the steps of every round.

    procedure   how the engine learns here; the peers and the engine that is judged beside them learn by bp
    plan        of the engine here, where it is another than that of the engine that is judged
    """

    name: str
    procedure: str = "bp"
    plan: str | None = None
    left_out: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    memory: Memory | None = None
    difference: Difference | None = None
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def runs(self) -> str:
        """Which of the sides that a worker can run it is."""
        return self.name if self.procedure == "bp" and self.plan is None else ENGINE

    def case(self, subject: Subject) -> Subject:
        """A case as this side has it."""
        return replace(subject, procedure=self.procedure, plan=subject.plan if self.plan is None else self.plan)

    @property
    def turns(self) -> list[float]:
        """Seconds a step, round by round."""
        return [median(seconds) for seconds in self.rounds]

    @property
    def step(self) -> float | None:
        """Seconds a step, the median of the rounds."""
        return median(self.turns) if self.rounds else None


@dataclass
class Case:
    """One model in one type, on all sides."""

    subject: Subject
    sides: dict[str, SideFound]

    @property
    def learners(self) -> list[SideFound]:
        """The sides that take steps."""
        return [side for side in self.sides.values() if side.name != FLOOR]

    @property
    def peers(self) -> list[SideFound]:
        """Those that the engine is set against, and that took part."""
        return [side for side in self.learners if side.name not in (ENGINE, *self.ways) and side.rounds]

    @property
    def ways(self) -> dict[str, SideFound]:
        """The sides of the engine beside the one that is judged: by other procedures, under other plans."""
        return {name: side for name, side in self.sides.items() if side.runs != name}

    def over_engine(self, name: str) -> float | None:
        """The median over the rounds of a side's time over that of the engine's step that is judged."""
        return self._ratio(name, [self.sides[ENGINE].turns])

    def over_peers(self, name: str) -> float | None:
        """The median over the rounds of a side's time over that of the best peer in the same round."""
        return self._ratio(name, [peer.turns for peer in self.peers])

    def over_floor(self, name: str) -> float | None:
        """The median over the rounds of a side's time over the floor of the same round."""
        return self._ratio(name, [self.sides[FLOOR].turns] if FLOOR in self.sides else [])

    def _ratio(self, name: str, others: list[list[float]]) -> float | None:
        # A round that was broken off has fewer sides: it counts where both have it.
        ratios = [seconds / min(best) for seconds, *best in zip(self.sides[name].turns, *others, strict=False) if best]
        return median(ratios) if ratios else None

    def beyond(self, name: str) -> int | None:
        """Bytes of a side's peak beyond the runtime, the weights and the optimizer's state."""
        memory = self.sides[name].memory
        return None if memory is None else memory.beyond(self.subject.parameters)

    def beyond_over_peers(self, name: str) -> float | None:
        """The same over that of the leanest peer."""
        beyond_peers = [self.beyond(peer.name) for peer in self.peers]
        least = min((value for value in beyond_peers if value is not None and value > 0), default=None)
        beyond = self.beyond(name)
        return None if least is None or beyond is None else beyond / least

    def to_dict(self) -> dict[str, Any]:
        """Everything, in seconds and bytes, as JSON can hold it."""
        return {
            **self.subject.to_dict(),
            "parameters": self.subject.parameters,
            "sides": {name: self._side(side) for name, side in self.sides.items()},
        }

    def _side(self, side: SideFound) -> dict[str, Any]:
        facts: dict[str, Any] = {"left_out": side.left_out, **({"facts": side.facts} if side.facts else {})}
        if side.memory is not None:
            facts["memory"] = {**vars(side.memory), "beyond": self.beyond(side.name)}
            facts["memory_over_leanest_peer"] = self.beyond_over_peers(side.name)
        if side.difference is not None:
            facts["difference"] = side.difference.to_dict()
        if side.step is not None:
            facts |= {"seconds": side.step, "rounds": side.rounds}
            if side.name != FLOOR:
                facts["tokens_per_second"] = self.subject.tokens / side.step
                facts |= {"over_best_peer": self.over_peers(side.name), "over_floor": self.over_floor(side.name)}
            if side.name in self.ways:
                facts |= {"procedure": side.procedure, "over_engine": self.over_engine(side.name)}
                facts |= {} if side.plan is None else {"plan": side.plan}
        return facts


@dataclass(repr=False)
class Bench(TabularAnswer):
    """All cases, with the machine they were measured on; `interrupted` before the end."""

    _sheets_module = f"{__package__}.show"

    machine: Mapping[str, Any]
    rounds: int
    cases: list[Case] = field(default_factory=list)
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """That of the command: 130 for Ctrl-C, 1 where the engine could not be measured or does something else."""
        if self.interrupted:
            return 130
        return int(any(not case.sides[ENGINE].rounds for case in self.cases))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        cases = [case.to_dict() for case in self.cases]
        return {"machine": self.machine, "rounds": self.rounds, "interrupted": self.interrupted, "cases": cases}
