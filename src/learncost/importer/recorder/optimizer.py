"""The optimizer's step on tensors without values: PyTorch's own where it has the optimizer, else its temporaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from learncost.importer.recorder.recorder import Recorder
from learncost.program.optimizer_step import STEP, OptimizerStep, step_weights
from learncost.program.program import MOVED, OPTIMIZER, STATES, ProgramOp

CLASSES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adamw": ("AdamW", {}),
    "rmsprop": ("RMSprop", {}),
    "adafactor": ("Adafactor", {}),
}
"""The optimizers of `torch.optim`, and the arguments that are not the default."""

IMPLEMENTATIONS: Mapping[str, Mapping[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False},
}


def own(stepping: OptimizerStep, weights: Sequence[torch.Tensor]) -> bool:
    """Return whether PyTorch runs this optimizer over the weights themselves, with states of their type."""
    return stepping.optimizer in CLASSES and all(each.element_size() == stepping.width for each in weights)


def optimizer_of(recorder: Recorder, stepping: OptimizerStep, weights: Sequence[Any]) -> Any:
    """Return PyTorch's optimizer of weights, with its states, which its first step makes."""
    name, settings = CLASSES[stepping.optimizer]
    optimizer = getattr(torch.optim, name)(weights, **settings, **IMPLEMENTATIONS[stepping.how])
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


def update(recorder: Recorder, given: Mapping[str, int], weights: Sequence[torch.Tensor]) -> None:
    """Record an optimizer's step over states and master weights that no tensor holds.

    It reads and writes these, reads gradients, and writes weights.
    """
    moved = 2 * sum(given.values()) + 2 * sum(each.nbytes for each in weights)
    arguments = {MOVED: moved, "tensors": len(weights), "elements": sum(each.numel() for each in weights)}
    recorder.ops.append(ProgramOp("optimizer", "", (), (), arguments, OPTIMIZER, recorder.microbatch, STEP))


def temporaries(recorder: Recorder, stepping: OptimizerStep, weights: Sequence[torch.Tensor]) -> None:
    """Record the temporaries of an optimizer's step that PyTorch does not run over these weights."""
    shapes = [tuple(each.shape) for each in weights]
    in_phase(recorder, OPTIMIZER, lambda: step_weights(stepping, shapes, recorder))
