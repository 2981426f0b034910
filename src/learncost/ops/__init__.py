"""Define the operators, each with body, gradient and Jacobian as tables in the notation; optimizers; collectives."""

from learncost.ops import collectives as _collectives
from learncost.ops import composites as _composites
from learncost.ops import optimizers as _optimizers
from learncost.ops import primitives as _primitives
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

_DEFINING = (_primitives, _composites, _optimizers, _collectives)  # imported to register their operators
