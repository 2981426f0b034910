"""The axes and the role of a value. Names are for people; programs read the role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, Literal, TypeAlias, TypeVar

from learncost.ir.dataclass import dataclass, replace

Axes: TypeAlias = tuple[str, ...]

Role: TypeAlias = Literal[
    "value",  # what a line defines; also plain inputs and weights. `of` of X.2 is X
    "index",  # read only as an index
    "constant",  # an input without a gradient
    "number",  # a hyperparameter of the procedure or the optimizer; `of` is its name there, such as lr
    "share",  # -1/count where there is one `of` these targets, 0 elsewhere: the weight of each in the loss
    "sign",  # 1 where a target `of` these is yes, -1 elsewhere
    "kind",  # an index of a category `of` this axis; it defaults to 0
    "buffer",  # numbers `of` this axis that are stored with the weights and not trainable; they default to 0
    "end",  # an index of the last position `of` this axis in a sequence
    "mask",  # random, in dropout; `of` is the value that it multiplies
    "padding",  # which keys are not padding
    "projection",  # a fixed random matrix that projects the error to the value `of`; or a stand-in for a weight
    "feedback",  # a fixed random matrix that brings the error at the value `of` to another one for its gradient
    "direction",  # random in every step: the direction in which the value `of` is perturbed
    "received",  # in a pipeline stage: a value that another stage sends
    "state",  # optimizer state `of` a weight
    "running",  # a running statistic of a normalization, `of` which kind: mean, variance, count
    "gathered",  # the accumulated gradient `of` a weight over microbatches
    "gradient",  # `of` a value
    "part",  # a partial gradient `of` a value, one summand of several
    "tangent",  # the tangent of the value `of` in forward mode
    "unsummed",  # the gradient of an operand from an op's result `of`, before the reduction of broadcast axes
    "inner",  # an intermediate of the op that computes the value `of`, for its gradient
    "saved",  # the stack of a value `of` each iteration, saved for later
    "cache",  # the cached positions `of` a value
    "new",  # the value of a weight, a state or a cache `of` after the step
    "copy",  # of the value `of`, in another type
    "step",  # of lowering: an intermediate of the value `of`
]
"""The purpose of a value."""

DRAWN: frozenset[Role] = frozenset(("mask", "padding"))
"""Roles of inputs that a batch adds to those that a layer is called with."""

FIXED: frozenset[Role] = frozenset(
    (
        "constant",
        "number",
        "share",
        "sign",
        "buffer",
        "mask",
        "padding",
        "projection",
        "feedback",
        "direction",
        "state",
        "running",
        "gathered",
    )
)
"""Roles of inputs that have no gradient."""

RANDOM: frozenset[Role] = frozenset(("projection", "feedback"))
"""Roles of fixed random matrices, which a procedure adds to the weights."""

INDICES: frozenset[Role] = frozenset(("index", "kind", "end"))
"""Roles of values that are read only as an index."""

GIVEN: frozenset[Role] = frozenset(("index", "kind", "share", "sign", "buffer", "end"))
"""Roles that a declaration gives an input, as in `targets: index of v`, each `of` something."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a scope.

    Attributes
    ----------
    axes
        Its declared axes.
    role
        Its purpose.
    of
        The value that it is the gradient, a part, the stack, the next version or the cache of; the targets that it is a
        share or a sign of, the axis that it is an end of.
    group
        Where a loop was split by iterations, the value whose iterations these are.
    dtype
        Its data type; empty: that of the run.
    split
        Axes that are sharded over devices; none so far.
    power
        For an integer that represents another number: the power of two that it is multiplied by.
    """

    axes: Axes
    role: Role = "value"
    of: str = ""
    group: str = ""
    dtype: str = ""
    split: Axes = ()
    power: int | None = None

    def along(self, axes: Iterable[str]) -> Value:
        """Return the value with other axes."""
        return self if self.axes == (along := tuple(axes)) else replace(self, axes=along)

    def stacked(self, count: str) -> Value:
        """Return the value stacked over all iterations of a loop."""
        return replace(self, axes=(count, *self.axes))


def axes_of(values: Mapping[str, Value]) -> dict[str, Axes]:
    """Return the declared axes of every name."""
    return {name: value.axes for name, value in values.items()}


_Of = TypeVar("_Of")


@dataclass(frozen=True, eq=False, slots=True)
class IdentityKey(Generic[_Of]):
    """An object, such as a table, as a key that compares by identity. The object lives as long as the key."""

    content: _Of

    def __hash__(self) -> int:
        return id(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.content is other.content
