"""The program of a training step: the ops that run, in order, and the buffers that they read and write.

A maker fills it, such as `importer.recorder` from a module as people run it; the peak memory and the FLOPs are folds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any, TypeAlias

from learncost.program.optimizer_step import Stepping

CUDA = "cuda"
"""A GPU that runs PyTorch's kernels, as PyTorch names it."""

FORWARD, RECOMPUTE, BACKWARD, CLIP, OPTIMIZER = "forward", "recompute", "backward", "clip", "optimizer"
"""The phases of a step."""

WEIGHTS, GRADIENTS, STATES = "weights", "gradients", "optimizer state"
ACTIVATIONS, WORKSPACE = "activations", "workspace"
"""Roles of buffers: activations are made forward, a workspace is what all other phases make."""


MOVED = "bytes"
"""The argument of an op that has no operands: the bytes that it reads and writes."""


def made_in(phase: str) -> str:
    """Return the role of what is made in a phase."""
    return ACTIVATIONS if phase in (FORWARD, RECOMPUTE) else WORKSPACE


@dataclass(frozen=True)
class Operand:
    """A tensor that an op reads or writes: a view of a buffer.

    dtype    PyTorch's name of the type, such as bfloat16
    strides, offset  in elements
    """

    buffer: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class ProgramOp:
    """An operator that runs once.

    name         PyTorch's name, such as aten::addmm, and its overload
    inputs       the tensors among its arguments
    outputs      its results; a result in the buffer of an input is a view or written in place
    arguments    the other arguments, by name
    label        the operator and its module, with * for the number of a block
    path         the module whose forward runs it, or ran what it is the gradient of
    node         the autograd node that runs it, in the backward pass
    scratch      bytes that its kernel allocates and frees
    library      bytes that a library of matrix products may allocate besides, at most
    synchronizes whether the CPU waits for its result
    """

    name: str
    overload: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    arguments: Mapping[str, Any]
    phase: str
    microbatch: int
    label: str
    path: str = ""
    node: str = ""
    scratch: int = 0
    library: int = 0
    synchronizes: bool = False


@dataclass(frozen=True)
class Buffer:
    """A block of memory from its allocation until nothing refers to it.

    first, last  the ops between which it is in use; -1 as the first: it is there before the step
    count        the number of equal blocks that it stands for, of iterations that were not recorded
    """

    bytes: int
    device: str
    role: str
    label: str
    first: int
    last: int
    count: int = 1


@dataclass(frozen=True)
class Program:
    """The ops of a step, in order, and its buffers.

    device    the device that runs it, as PyTorch names it
    versions  of the libraries that ran it
    repeats   first and last op of an iteration, and the number of others like it that were not recorded
    """

    ops: tuple[ProgramOp, ...]
    buffers: tuple[Buffer, ...]
    device: str = "cpu"
    versions: Mapping[str, str] = field(default_factory=dict)
    repeats: tuple[tuple[int, int, int], ...] = ()

    @property
    def on_device(self) -> list[Buffer]:
        """The buffers in the memory of the device."""
        return [buffer for buffer in self.buffers if buffer.device == self.device]


@dataclass(frozen=True)
class StepRequest:
    """The settings of a training step to record.

    values        the type of floating-point values, such as bf16
    given         bytes by role of what no tensor of the module holds, such as buckets of gradients
    weights       the table's weights, and the trainable ones; None where the module determines these
    optimizer     the optimizer, its implementation, and whether gradients are clipped before
    microbatches  the number of microbatches whose gradients are summed
    in_backward   whether a hook runs a weight's step and frees its gradient as soon as it is complete
    capability    the compute capability of a GPU, which decides the kernel of attention
    """

    values: str
    device: str = "cpu"
    given: Mapping[str, int] = field(default_factory=dict)
    weights: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    optimizer: Stepping = field(default_factory=Stepping)
    microbatches: int = 1
    in_backward: bool = False
    capability: tuple[int, int] = (9, 0)


Steps: TypeAlias = "Callable[[Mapping[str, int], StepRequest], Program]"
"""A function that records the training step of a module at given sizes."""


def starred(path: str) -> str:
    """Return a module's path with the number of a block as a wildcard: blocks.*.norm."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


@dataclass(frozen=True)
class Peak:
    """The largest number of bytes in use at once, the first op during which they are, and the buffers then."""

    bytes: int
    op: ProgramOp
    live: tuple[Buffer, ...]

    @property
    def by_role(self) -> dict[str, int]:
        """The bytes by role; scratch of the op is workspace."""
        roles = Counter({WORKSPACE: self.op.scratch})
        for buffer in self.live:
            roles[buffer.role] += buffer.bytes
        return dict(roles)


def levels(program: Program) -> list[int]:
    """Return the bytes in use during each op on the program's device: the live buffers, and its scratch."""
    changes = [0] * (len(program.ops) + 2)
    for buffer in program.on_device:
        changes[max(buffer.first, 0)] += buffer.bytes
        changes[buffer.last + 1] -= buffer.bytes
    return [level + op.scratch for level, op in zip(accumulate(changes), program.ops, strict=False)]


def peak(program: Program) -> Peak:
    """Return the peak memory of a program."""
    in_use = levels(program)
    most = max(in_use)
    place = in_use.index(most)
    live = tuple(buffer for buffer in program.on_device if buffer.first <= place <= buffer.last)
    return Peak(most, program.ops[place], live)


def peak_by_phase(program: Program) -> dict[str, int]:
    """Return the peak memory of each phase."""
    phases = dict[str, int]()
    for op, level in zip(program.ops, levels(program), strict=True):
        phases[op.phase] = max(level, phases.get(op.phase, 0))
    return phases


def library_workspace(program: Program) -> int:
    """Return the bytes by which libraries of matrix products may raise the peak, at most."""
    in_use = levels(program)
    most = max(level + op.library for op, level in zip(program.ops, in_use, strict=True))
    return most - max(in_use)


def flops(program: Program) -> int:
    """Return the FLOPs of matrix products, convolutions and attention, two for a multiplication and an addition.

    Attention is counted in full, also where it is causal, and its backward pass with the scores that it computes again
    (Dao et al. 2022, FlashAttention, appendix B).
    """
    return sum(_flops(op) for op in program.ops)


def _flops(op: ProgramOp) -> int:
    name, shapes = op.name.removeprefix("aten::").removesuffix("_"), [operand.shape for operand in op.inputs]
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        return 2 * prod(shapes[-2]) * shapes[-1][-1]
    if "attention" in name:
        query, key, value = shapes[1:4] if "backward" in name else shapes[:3]
        scores, products = prod(query[:-1]) * key[-2], (query[-1], value[-1])
        return 2 * scores * (3 * products[0] + 2 * products[1] if "backward" in name else sum(products))
    if "convolution" in name:
        backward = "backward" in name
        result, weight = (shapes[0], shapes[2]) if backward else (op.outputs[0].shape, shapes[1])
        result = shapes[1] if op.arguments["transposed"] and backward else result
        result = shapes[0] if op.arguments["transposed"] and not backward else result
        several = sum(op.arguments["output_mask"][:2]) if backward else 1
        return 2 * several * prod(result) * prod(weight[1:])
    return 0
