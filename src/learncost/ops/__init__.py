"""Define the operators, each with body, gradient and Jacobian as tables in the notation; optimizers; collectives."""

from learncost.ops import collectives, composites, optimizers, primitives  # noqa: F401, which register operators
from learncost.ops.op_def import (
    OpDef,
    applied,
    canonical,
    define,
    entries,
    entry,
    is_choice,
    is_log_softmax,
    is_normalization,
    is_softmax,
    op_called,
    plain,
)

__all__ = [
    "OpDef",
    "applied",
    "canonical",
    "define",
    "entries",
    "entry",
    "is_choice",
    "is_log_softmax",
    "is_normalization",
    "is_softmax",
    "op_called",
    "plain",
]
