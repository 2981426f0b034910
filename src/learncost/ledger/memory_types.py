"""What an element takes by its role and data type, and what optimizers remember of a weight: data with sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from learncost.equation.errors import InputError, named_one


@dataclass(frozen=True)
class Format:
    """Bytes of an element: of weights, their gradients, the values of the passes, and a second copy of the weights.

    state   of an element that an optimizer remembers
    master  of the copy that the optimizer updates; 0 where it updates the weights themselves
    """

    name: str
    weight: int
    gradient: int
    value: int
    state: int
    master: int
    source: str


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format("fp32", 4, 4, 4, 4, 0, "one type for all"),
        Format("fp64", 8, 8, 8, 8, 0, "one type for all"),
        Format("bf16", 2, 2, 2, 4, 4, "Micikevicius et al. 2018, Mixed precision training: fp32 master weights"),
        Format("fp16", 2, 2, 2, 4, 4, "Micikevicius et al. 2018, Mixed precision training: fp32 master weights"),
        Format("fp8", 1, 1, 1, 4, 4, "Micikevicius et al. 2022, FP8 formats for deep learning; fp32 master weights"),
        Format("int8", 1, 1, 1, 1, 0, "Lin et al. 2022, On-device training under 256KB memory: everything in int8"),
    )
}

INDEX = 4
"""Bytes of a token's number, whatever the type of the rest: int32."""


def format_of(name: str) -> Format:
    """A data type by its name; an unknown one is refused with those that exist."""
    return named_one("dtype", name, FORMATS)


@dataclass(frozen=True)
class State:
    """What an optimizer remembers of a weight of some shape: so many bytes, given those of an element of a state."""

    name: str
    bytes: Callable[[Sequence[int], int], int]
    source: str


def _times(count: int) -> Callable[[Sequence[int], int], int]:
    return lambda shape, width: count * width * prod(shape)


def _eight_bits(shape: Sequence[int], width: int) -> int:
    """Two states of a byte an element with a factor of fp32 for every block of 2,048; below 4,096 elements, fp32."""
    size = prod(shape)
    return 2 * 4 * size if size < 4096 else 2 * (size + 4 * -(-size // 2048))


def _factored(shape: Sequence[int], width: int) -> int:
    """The sums of rows and of columns of a matrix; of a vector, every element."""
    return width * (sum(shape) if len(shape) == 2 else prod(shape))


def _muon(shape: Sequence[int], width: int) -> int:
    """Momentum of matrices; of vectors AdamW's two states."""
    return width * prod(shape) * (1 if len(shape) == 2 else 2)


STATES: Mapping[str, State] = {
    one.name: one
    for one in (
        State("sgd", _times(0), "W := W - eta dW"),
        State("momentum", _times(1), "torch.optim.SGD: one buffer"),
        State("adamw", _times(2), "Loshchilov & Hutter 2019, Algorithm 2: m and v"),
        State("adam8bit", _eight_bits, "Dettmers et al. 2022, 8-bit optimizers via block-wise quantization, section 2"),
        State("adafactor", _factored, "Shazeer & Stern 2018, Adafactor, Algorithm 4 without momentum"),
        State("lion", _times(1), "Chen et al. 2023, Symbolic discovery of optimization algorithms, Algorithm 2"),
        State("muon", _muon, "Jordan et al. 2024, Muon: momentum of matrices in the blocks; AdamW for all else"),
    )
}


def state_of(name: str) -> State:
    """An optimizer's state by its name; an unknown one is refused with those that exist."""
    return named_one("optimizer", name, STATES)


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def bytes_of(name: str, text: object) -> int:
    """A number of bytes as it is written: 8GB, 256KiB, 1e9. Raises `InputError`."""
    written = str(text).strip().lower()
    digits = written.rstrip("kmgtib")
    try:
        number = float(digits) * _UNITS[written[len(digits) :]]
    except (ValueError, KeyError):
        number = 0.0
    if not 1 <= number < 10**18:
        raise InputError(f"{name} must be bytes such as 8GB, 256KiB or 1e9, not {str(text)!r}")
    return int(number)
