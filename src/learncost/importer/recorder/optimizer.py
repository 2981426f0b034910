"""The optimizer's step on tensors without values: PyTorch's own where it has the optimizer, else its temporaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from learncost.importer.recorder.recorder import Recorder
from learncost.ir.dataclass import replace
from learncost.program.optimizer_step import CLASSES, STEP, OptimizerStep, step_weights
from learncost.program.program import (
    BEFORE,
    CLIP,
    CUDA,
    GRADIENTS,
    MOVED,
    OPTIMIZER,
    STATES,
    WEIGHTS,
    Program,
    ProgramOp,
)

IMPLEMENTATIONS: Mapping[str, Mapping[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False},
}


def optimizer_of(recorder: Recorder, stepping: OptimizerStep, weights: Sequence[Any]) -> Any:
    """Return PyTorch's optimizer of weights, with its states, which its first step makes."""
    row = CLASSES[stepping.optimizer]
    optimizer = getattr(torch.optim, row.pytorch)(weights, **row.settings, **IMPLEMENTATIONS[stepping.how])
    with recorder.given(STATES, STATES):
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        in_phase(recorder, OPTIMIZER, optimizer.step)
        optimizer.zero_grad(set_to_none=True)
    return optimizer


def in_phase(recorder: Recorder, phase: str, run: Callable[[], object]) -> None:
    """Run something in a phase, without a module."""
    before, recorder.phase, path, recorder.path = recorder.phase, phase, recorder.path, ""
    try:
        run()
    finally:
        recorder.phase, recorder.path = before, path


def clip(recorder: Recorder, weights: Sequence[Any]) -> None:
    """Record gradient clipping as PyTorch runs it."""
    norm, foreach = torch.nn.utils.clip_grad_norm_, recorder.device != "cpu"
    in_phase(recorder, CLIP, lambda: norm(weights, 1.0, foreach=foreach))


def update(given: Mapping[str, int], weights: Sequence[torch.Tensor]) -> ProgramOp:
    """Return an optimizer's step over states and master weights that no tensor holds.

    It reads and writes these, reads gradients, and writes weights.
    """
    moved = 2 * sum(given.values()) + 2 * sum(each.nbytes for each in weights)
    arguments = {MOVED: moved, "tensors": len(weights), "elements": sum(each.numel() for each in weights)}
    return ProgramOp("optimizer", "", (), (), arguments, OPTIMIZER, 0, STEP)


def temporaries(recorder: Recorder, stepping: OptimizerStep, weights: Sequence[torch.Tensor]) -> None:
    """Record the temporaries of an optimizer's step that PyTorch does not run over these weights."""
    shapes = [tuple(each.shape) for each in weights]
    in_phase(recorder, OPTIMIZER, lambda: step_weights(replace(stepping, clip=False), shapes, recorder))


READ = "aten::_local_scalar_dense"
"""The operator by which the CPU reads a number."""


def recorded_update(stepping: OptimizerStep, shapes: Sequence[tuple[int, ...]], values: str, runs: bool) -> Program:
    """Return clipping and the optimizer's step on a GPU, over weights of these shapes that are there before.

    runs  whether PyTorch runs the optimizer over these weights; otherwise gradients are clipped alone
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from learncost.importer.recorder.module_step import TYPES

    recorder, counters = Recorder(CUDA), set[int]()
    with FakeTensorMode(), recorder:
        with recorder.given(WEIGHTS, WEIGHTS):
            weights = [torch.nn.Parameter(torch.empty(shape, dtype=getattr(torch, TYPES[values]))) for shape in shapes]
        optimizer = optimizer_of(recorder, stepping, weights) if runs else None
        with recorder.given(GRADIENTS, GRADIENTS):
            for each in weights:
                each.grad = torch.empty_like(each)
        if stepping.clip:
            clip(recorder, weights)
        if optimizer:
            in_phase(recorder, OPTIMIZER, optimizer.step)
            steps = [state["step"] for state in optimizer.state.values() if "step" in state]
            counters = {recorder.operand(each, STATES).buffer for each in steps if stepping.how != "fused"}
    program = recorder.program()
    given = {place for place, each in enumerate(program.buffers) if each.first == BEFORE}
    buffers = [
        replace(each, bytes=0 if place in given else each.bytes, device="cpu" if place in counters else CUDA)
        for place, each in enumerate(program.buffers)
    ]
    ops = [op._replace(synchronizes=op.name == READ and op.inputs[0].buffer not in counters) for op in program.ops]
    return replace(program, ops=tuple(ops), buffers=tuple(buffers))
