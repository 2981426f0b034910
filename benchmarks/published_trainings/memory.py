"""What the devices of a published training hold."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import learncost as lc
from learncost.autoshard.placed_step import StagePart
from learncost.autoshard.step import memory_of, sizes_of, stages_of
from learncost.program.pipeline import peak, schedule
from published_trainings.case import Case


def at_the_peak(case: Case) -> int:
    """Bytes on the fullest device."""
    return max(stage.peak for stage in memory_of(case.account(), case.parallel, case.sizes()))


PRECISIONS = {"deepspeed": "fp16-masters", "fsdp-eager": "bf16-masters", "fsdp-compile": "bf16-masters"}
"""The precisions of frameworks under the engine eager; others sum gradients in fp32 beside weights in bf16."""


def by_eager(case: Case) -> int:
    """Bytes of the fullest device under PyTorch's autograd, as DeepSpeed and torchtitan run it.

    DeepSpeed reduces gradients in place, without DDP's buckets, and keeps those in bf16 beside their sums in fp32 up to
    the end of each backward pass (runtime/pipe/engine.py: update_hp_grads(clear_lp_grads=False)).
    """
    name, overrides, _, _, text, plan, framework, seq, microbatch = case.key
    parallel, fully = case.parallel, framework.startswith("fsdp")
    shares = prod(size for axis, size in parallel.mesh.items() if axis in ("dp", "ep"))
    pipeline = {"schedule": parallel.schedule} if parallel.stages > 1 else {}
    flags = {
        "mesh": ",".join(f"{axis}={size}" for axis, size in parallel.mesh.items()),
        "place": f"blocks over pp, {text}" if parallel.stages > 1 else text,
        "batch_size": microbatch * shares * parallel.microbatches,
        "accumulate": parallel.microbatches,
        "precision": PRECISIONS.get(framework, "bf16-masters-fp32-gradients"),
        "module": "transformers-uncached" if fully else "plain",
        "checkpoint_every": "op" if "norm+silu" in plan else 1,
        "chunks": parallel.chunks if parallel.chunks > 1 else None,
        **pipeline,
    }
    found = lc.memory(
        name,
        "recompute" if "recompute" in plan else "bp",
        engine="eager",
        on="cuda",
        seq_len=seq,
        **flags,
        **dict(overrides),
    )
    saved = found.split["weights"] if framework == "deepspeed-fp32" else 0
    return int(found.peak - (0 if fully else found.split.get("buckets", 0)) + saved)


def held(case: Case) -> float:
    """Bytes of weights, gradients and states of the first device, of its blocks alone."""
    account, parallel, sizes = case.account(), case.parallel, case.sizes()
    inner = sizes_of(account, parallel, sizes)
    several = stages_of(account, parallel, sizes)[:: parallel.stages]
    return float(sum(account.weights.static(inner, StagePart(each.iterations, frozenset())).total for each in several))


def activations(case: Case) -> float:
    """Bytes that the first device of a pipeline keeps of microbatches, of its blocks alone."""
    account, parallel, sizes = case.account(), case.parallel, case.sizes()
    inner = sizes_of(account, parallel, sizes)
    saved = [
        float(account.passes.activations(inner, _blocks(part)).saved) for part in stages_of(account, parallel, sizes)
    ]
    most = min(parallel.microbatches, 8 * parallel.stages * parallel.chunks)
    most = max(parallel.stages, most // parallel.stages * parallel.stages) if parallel.chunks > 1 else most
    return peak(schedule(parallel.schedule, parallel.stages, most, parallel.chunks), 0, saved)


def _blocks(part: StagePart) -> StagePart:
    return StagePart(part.iterations, frozenset())


def in_mode(row: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """The same row in another mode."""
    return {**row, "config": {**row["config"], "mode": mode}}
