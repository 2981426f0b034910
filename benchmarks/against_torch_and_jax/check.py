"""Whether two sides do the same: the gradients of a first step, and the losses of a few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 3
"""So many losses are compared; all after the first depend on the gradients and on the optimizer."""

SMALL = 1e-3
"""The share of all gradients' norm below which a weight's own is not what its error is relative to. GPT-2's biases of
keys have the gradient 0: what is there is rounding."""


@dataclass(frozen=True)
class Tolerance:
    """How far losses and gradients may be apart, relative to them."""

    loss: float
    gradient: float


TOLERANCES: Mapping[str, Tolerance] = {"fp32": Tolerance(1e-4, 1e-4), "bf16": Tolerance(1e-3, 1e-1)}
"""fp32: rounding alone is some 1e-6. bf16 has 8 bits, and what is kept in them differs from side to side."""


@dataclass(frozen=True)
class Difference:
    """How far a side is from another: of losses, and of the gradient of the weight where it is largest."""

    side: str
    loss: float
    gradient: float
    weight: str

    def within(self, tolerance: Tolerance) -> bool:
        """Whether they are the same for all that rounding can tell; what is not a number is not."""
        return self.loss <= tolerance.loss and self.gradient <= tolerance.gradient

    def __str__(self) -> str:
        return f"losses {self.loss:.1e}, gradients {self.gradient:.1e} ({self.weight}) from those of {self.side}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, which has no nan."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


def difference(
    side: str,
    reference_folder: Path,
    reference_losses: Sequence[float],
    other_folder: Path,
    other_losses: Sequence[float],
) -> Difference:
    """How far the gradients in folder `two` are from those in `one`, which are of `side`, and the losses."""
    expected, computed = np.array(reference_losses), np.array(other_losses)
    loss = float(np.max(np.abs(computed - expected) / np.abs(expected)))
    distances, norms = {}, {}
    for path in sorted(reference_folder.glob("*.npy")):
        first, second = (np.load(folder / path.name, mmap_mode="r") for folder in (reference_folder, other_folder))
        norms[path.stem] = _norm(first)
        distances[path.stem] = _norm(second - first) if second.shape == first.shape else float("nan")
    least = SMALL * float(np.sqrt(sum(norm**2 for norm in norms.values())))
    errors = {name: distances[name] / max(norms[name], least) for name in norms}
    worst = max(errors, key=lambda name: np.inf if np.isnan(errors[name]) else errors[name])
    return Difference(side, loss, errors[worst], worst)


def _norm(array: Any) -> float:
    """The root of the sum of squares, added up in float64."""
    flat = np.asarray(array).reshape(-1)
    return float(np.sqrt(np.einsum("i,i->", flat, flat, dtype=np.float64)))
