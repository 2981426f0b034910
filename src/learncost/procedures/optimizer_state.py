"""What optimizers remember of a weight: data with sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from learncost.ir.precision import BLOCKS, bytes_of_type
from learncost.ops.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer remembers of a weight of some shape: so many bytes, given the type of its states."""

    name: str
    bytes: Callable[[Sequence[int], str], int]
    source: str


def _times(count: int) -> Callable[[Sequence[int], str], int]:
    return lambda shape, kind: count * bytes_of_type(kind, prod(shape))


def _eight_bits(shape: Sequence[int], kind: str) -> int:
    """Two states in 8 bits, whatever the type of states is."""
    return 2 * bytes_of_type("int8-2048", prod(shape))


def _factored(shape: Sequence[int], kind: str) -> int:
    """The sums of rows and of columns of a matrix; of a vector, every element."""
    arrays = shape if len(shape) == 2 else (prod(shape),)
    return sum(bytes_of_type(kind, size) for size in arrays)


def _muon(shape: Sequence[int], kind: str) -> int:
    """Momentum of matrices; of vectors AdamW's two states."""
    return (1 if len(shape) == 2 else 2) * bytes_of_type(kind, prod(shape))


STATES: Mapping[str, OptimizerState] = {
    state.name: state
    for state in (
        *(OptimizerState(name, _times(len(optimizer.state)), optimizer.kept) for name, optimizer in OPTIMIZERS.items()),
        OptimizerState("adam8bit", _eight_bits, BLOCKS["int8-2048"].source),
        OptimizerState("adafactor", _factored, "Shazeer & Stern 2018, Adafactor, Algorithm 4 without momentum"),
        OptimizerState(
            "lion", _times(1), "Chen et al. 2023, Symbolic discovery of optimization algorithms, Algorithm 2"
        ),
        OptimizerState(
            "muon", _muon, "Jordan et al. 2024, Muon: momentum of matrices in the blocks; AdamW for all else"
        ),
    )
}
