"""What optimizers remember of a weight: data with sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod


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
