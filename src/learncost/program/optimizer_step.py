"""The optimizer's step under autograd: gradient clipping, and the temporaries of each implementation of PyTorch's.

Each function allocates and frees as the Python code of its source does: a local name holds an array until it is
assigned again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

Shapes: TypeAlias = "Sequence[tuple[int, ...]]"
New: TypeAlias = "Callable[[int, int], object]"
"""Allocates an array of a number of elements of a number of bytes each."""

FLOAT, BFLOAT16 = 4, 2


@dataclass(frozen=True)
class Stepping:
    """The step of an optimizer.

    how    its implementation: fused, foreach or for-loop
    width  bytes of an element of its states
    clip   whether gradients are clipped to a norm before (`torch.nn.utils.clip_grad_norm_`)
    cuda   whether it runs on a GPU
    """

    optimizer: str = ""
    how: str = ""
    width: int = FLOAT
    clip: bool = False
    cuda: bool = False


@dataclass(frozen=True)
class OptimizerClass:
    """An optimizer as PyTorch's users have it: its class, and the implementations that there are, the default first."""

    name: str
    implementations: Sequence[str] = ("fused", "foreach", "for-loop")


CLASSES: Mapping[str, OptimizerClass] = {
    "sgd": OptimizerClass("SGD"),
    "momentum": OptimizerClass("SGD with momentum"),
    "adamw": OptimizerClass("AdamW"),
    "rmsprop": OptimizerClass("RMSprop", ("for-loop", "foreach")),
    "adafactor": OptimizerClass("Adafactor", ("for-loop", "foreach")),
    "muon": OptimizerClass("Muon for matrices and fused AdamW for all else", ("for-loop",)),
    "lion": OptimizerClass("Lion", ("fused", "for-loop")),
    "adamw8bit": OptimizerClass("AdamW8bit of bitsandbytes", ("fused",)),
    "adam8bit": OptimizerClass("Adam8bit of bitsandbytes", ("fused",)),
}
"""Of `torch.optim`; Lion and AdamW8bit of bitsandbytes, where fused. Lion's for-loop is that of google/automl."""

FOREACH_ON_GPU = ("rmsprop",)
"""The optimizers whose default on a GPU is foreach, where they have no fused implementation (`torch.optim`)."""

CHUNK = 65536
"""Elements that a block of `torch._foreach_norm` reduces on a GPU (`kChunkSize`, MultiTensorApply.cuh)."""


def default_implementation(optimizer: str, cuda: bool) -> str:
    """Return the implementation of an optimizer where none is named."""
    return "foreach" if cuda and optimizer in FOREACH_ON_GPU else CLASSES[optimizer].implementations[0]


def step_weights(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """Allocate and free the temporaries of an optimizer's step over weights of these shapes."""
    if stepping.clip:
        _clip(stepping, shapes, new)
    if run := TEMPORARIES.get((stepping.optimizer, stepping.how)):
        run(stepping, shapes, new)


def _clip(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """`torch.nn.utils.clip_grad_norm_`: a norm of every gradient; on a GPU one of each of its chunks."""
    norms = [new(1, stepping.width) for _ in shapes]
    if stepping.cuda and shapes:
        chunks = new(len(shapes) * max(-(-prod(shape) // CHUNK) for shape in shapes), FLOAT)
        del chunks
    stacked = new(len(shapes), stepping.width)
    del norms, stacked


def _roots(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """`_multi_tensor_adamw`, `_multi_tensor_rmsprop`: `torch._foreach_sqrt` of all second moments."""
    roots = [new(prod(shape), stepping.width) for shape in shapes]
    del roots


def _adamw(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """`_single_tensor_adamw`: exp_avg_sq.sqrt() / bias_correction2_sqrt."""
    denominator: object = None
    for shape in shapes:
        root = new(prod(shape), stepping.width)
        denominator = new(prod(shape), stepping.width)
        del root
    del denominator


def _rmsprop(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """`_single_tensor_rmsprop`: square_avg.sqrt()."""
    average: object = None
    for shape in shapes:
        average = new(prod(shape), stepping.width)
    del average


def _lion(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """google/automl, lion_pytorch.py: update = exp_avg * beta1 + grad * (1 - beta1)."""
    update: object = None
    for shape in shapes:
        parts = [new(prod(shape), stepping.width) for _ in range(2)]
        update = new(prod(shape), stepping.width)
        del parts
    del update


def _adafactor(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """`_single_tensor_adafactor`: means of squares; their product is the update."""
    row: object = None
    column: object = None
    squared: object = None
    estimate: object = None
    update: object = None
    for shape in shapes:
        elements, width = prod(shape), stepping.width
        if len(shape) > 1:
            row = new(elements // shape[-1], width)
            column = new(elements // shape[-2], width)
        else:
            squared = new(elements, width)
        estimate = new(elements, width)
        update = estimate
    del row, column, squared, estimate, update


def _adafactor_foreach(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """`_multi_tensor_adafactor`: all matrices, then all vectors, while the matrices' list is still held."""
    width = stepping.width
    estimates: list[object] = []
    for matrices in (True, False):
        group = [shape for shape in shapes if (len(shape) > 1) == matrices]
        if matrices:
            for axis in (-1, -2):
                means = [new(prod(shape) // shape[axis], width) for shape in group]
                del means
        else:
            squared = [new(prod(shape), width) for shape in group]
            del squared
        estimates = [new(prod(shape), width) for shape in group]
    del estimates


NEWTON_SCHULZ = 5
"""The steps of `torch.optim.Muon` by default."""


def _muon(stepping: Stepping, shapes: Shapes, new: New) -> None:
    """`_single_tensor_muon` of matrices, with `_zeropower_via_newtonschulz` in bf16; fused AdamW of all else."""
    update: object = None
    for shape in (shape for shape in shapes if len(shape) == 2):
        elements = prod(shape)
        update = new(elements, stepping.width)
        update = _orthogonal(shape, stepping.width, update, new)
        if stepping.width != BFLOAT16 and not stepping.cuda:  # add_ casts its operand on a CPU
            cast = new(elements, stepping.width)
            del cast
    del update


def _orthogonal(shape: tuple[int, ...], width: int, update: object, new: New) -> object:
    """`_zeropower_via_newtonschulz`, with the matrix and its square, of the shorter side, at each step."""
    elements, square = prod(shape), min(shape) ** 2
    result = update if width == BFLOAT16 else new(elements, BFLOAT16)
    gram: object = None
    change: object = None
    for _ in range(NEWTON_SCHULZ):
        gram = new(square, BFLOAT16)
        change = new(square, BFLOAT16)
        result = new(elements, BFLOAT16)
    del gram, change
    return result


TEMPORARIES: Mapping[tuple[str, str], Callable[[Stepping, Shapes, New], None]] = {
    ("adamw", "foreach"): _roots,
    ("adamw", "for-loop"): _adamw,
    ("rmsprop", "foreach"): _roots,
    ("rmsprop", "for-loop"): _rmsprop,
    ("lion", "for-loop"): _lion,
    ("adafactor", "for-loop"): _adafactor,
    ("adafactor", "foreach"): _adafactor_foreach,
    ("muon", "for-loop"): _muon,
}
"""By optimizer and implementation; all others step in-place."""
