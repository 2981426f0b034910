"""What a step of autograd is besides its table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from learncost.program.autograd.module import Module
from learncost.program.autograd.wrapped import Wrapping


@dataclass(frozen=True)
class StepOptions:
    """What a step is besides its table.

    state        bytes that the optimizer remembers, copies of weights among them
    width        bytes of a weight
    learning     the weights that learn
    drawn        the inputs that are noise of dropout
    checkpoint   "" or how every block runs under `torch.utils.checkpoint`: "frames" or "reentrant"
    blocks       how many there are, where a turn of a repeat may have several; 0: a turn is one
    stepping     the optimizer, and how it steps: fused, foreach or for-loop
    coded        the weights that are stored as codes and scales, and the bytes of these
    wrapping     how the module lies on several devices
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
