"""The options of a step under autograd in addition to its table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from learncost.program.autograd.module import Module
from learncost.program.autograd.wrapped import Wrapping


@dataclass(frozen=True)
class StepOptions:
    """The options of a step in addition to its table.

    state        bytes of the optimizer state, including copies of weights
    width        bytes of a weight
    learning     the trainable weights
    drawn        the inputs that are dropout noise
    checkpoint   "" or how every block runs under `torch.utils.checkpoint`: "frames" or "reentrant"
    blocks       the number of blocks, where an iteration of a loop may contain several; 0: an iteration is one
    stepping     the optimizer, and how it steps: fused, foreach or for-loop
    coded        the weights that are stored as codes and scales, and their bytes
    wrapping     how the module is distributed over devices
    """

    module: Module
    state: int
    width: int
    learning: Collection[str]
    drawn: Collection[str] = ()
    checkpoint: str = ""
    blocks: int = 0
    stepping: tuple[str, str] = ("", "")
    coded: Mapping[str, int] = field(default_factory=dict)
    wrapping: Wrapping | None = None
