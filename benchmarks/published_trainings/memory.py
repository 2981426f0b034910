"""What the devices of a published training hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learncost.autoshard.placed_step import StagePart
from learncost.autoshard.step import memory_of, sizes_of, stages_of
from learncost.program.pipeline import peak, schedule
from published_trainings.case import Case


def at_the_peak(case: Case) -> int:
    """Bytes on the fullest device."""
    return max(stage.peak for stage in memory_of(case.account(), case.way, case.sizes()))


def held(case: Case) -> float:
    """Bytes of weights, gradients and states of the first device, of its blocks alone."""
    account, way, sizes = case.account(), case.way, case.sizes()
    inner = sizes_of(account, way, sizes)
    several = stages_of(account, way, sizes)[:: way.stages]
    return float(sum(account.weights.static(inner, StagePart(each.iterations, frozenset())).total for each in several))


def activations(case: Case) -> float:
    """Bytes that the first device of a pipeline keeps of microbatches, of its blocks alone."""
    account, way, sizes = case.account(), case.way, case.sizes()
    inner = sizes_of(account, way, sizes)
    kept = [float(account.passes.activations(inner, _blocks(part)).kept) for part in stages_of(account, way, sizes)]
    most = min(way.microbatches, 8 * way.stages * way.chunks)
    most = max(way.stages, most // way.stages * way.stages) if way.chunks > 1 else most
    return peak(schedule(way.schedule, way.stages, most, way.chunks), 0, kept)


def _blocks(part: StagePart) -> StagePart:
    return StagePart(part.iterations, frozenset())


def in_mode(row: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """The same row in another mode."""
    return {**row, "config": {**row["config"], "mode": mode}}
