"""The batch of a step over a mesh, and the microbatches that it is cut into: one default for every question."""

from __future__ import annotations

from math import prod

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.models.sizes import check_size
from learncost.reports.request import Request
from learncost.reports.run import lengths_of
from learncost.sharding.mesh import mesh
from learncost.sharding.presets import chosen
from learncost.sharding.stages import BLOCKS

DEFAULT_OVER_STAGES = "Without --accumulate, memory has one sequence per microbatch, fit one microbatch per stage."
"""The note on microbatches over stages: a batch of more of them is larger for the same memory."""


def _shards_and_stages(request: Request) -> tuple[dict[str, int], int]:
    """Return the axes of the mesh over which the batch is sharded, with their devices, and the pipeline's stages."""
    if not request.is_sharded:
        return {}, 1
    grid = mesh(str(request.mesh))
    sizes, several = grid.sizes, chosen(request.place, request.placement, grid.names)
    counts = {clause.mesh for clause in several if clause.axes[0] == BLOCKS or clause.axes[0].startswith("n_")}
    shards = {clause.mesh: sizes.get(clause.mesh, 1) for clause in several if "B" in clause.axes}
    return shards, prod(sizes.get(axis, 1) for axis in {*counts, "pp"})


def whole_batch(request: Request) -> int:
    """Return a sequence for each device on the axes of the mesh over which the batch is sharded."""
    return prod(_shards_and_stages(request)[0].values())


def stages_of(request: Request) -> int:
    """Return the pipeline stages into which the mesh of a request splits the blocks; 1 without a pipeline."""
    return _shards_and_stages(request)[1]


def in_microbatches(request: Request, usual: int | None = None) -> Request:
    """Return a request over a mesh with its batch, and the microbatches of each shard of the batch.

    Over stages, and of a batch that the request does not give, a microbatch has one sequence of each shard; elsewhere
    the batch is one microbatch.

    usual  sequences where none are given; by default one for each shard of the batch, and for each stage
    Raises `InputError` for an indivisible batch: an axis of size 1 is not sharded.
    """
    axes, stages = _shards_and_stages(request)
    shares, number = prod(axes.values()), check_size("accumulate", request.microbatches)
    microbatch = None if request.microbatch is None else check_size("microbatch", request.microbatch)
    given, is_fixed = lengths_of(request)[0].get("batch_size"), request.accumulate is not None
    batch = given or usual or shares * (microbatch or 1) * (number if is_fixed else stages)
    each, left = divmod(batch, shares)
    if left:
        several = f"{batch:,} sequence{'s are' if batch > 1 else ' is'}"
        raise InputError(
            f"{several} not divisible by the {shares:,} shards of {' and '.join(axes)}: the next divisible batch_size "
            f"is {-(-batch // shares) * shares:,}"
        )
    if not request.is_training:
        return replace(request, batch_size=batch)
    if microbatch is None:
        microbatch = -(-each // number) if is_fixed or (stages == 1 and given) else 1
    unit = microbatch * number
    if each % unit or (is_fixed and each != unit):
        parts = f"accumulate = {number:,} microbatches" if is_fixed else "microbatches"
        raise InputError(
            f"a batch shard of {each:,} is not {parts} of {microbatch:,}: the next divisible batch_size is "
            f"{(unit if is_fixed else -(-each // unit) * unit) * shares:,}"
        )
    return replace(request, batch_size=batch, microbatch=microbatch, accumulate=each // microbatch)
