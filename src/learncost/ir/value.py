"""What is known of a value: its axes, and what it is there for. Names are shown and read by people; this is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeAlias, TypeVar

Axes: TypeAlias = tuple[str, ...]

Role: TypeAlias = Literal[
    "value",  # what a line makes; and inputs and weights, of which the table says that they are. `of` of X.2 is X
    "index",  # read as an index alone
    "constant",  # given, and without a gradient
    "number",  # a number of the procedure or of the optimizer; `of` is what it is called there, such as lr
    "share",  # -1/count where there is one `of` these answers, 0 elsewhere: what each counts in the loss
    "sign",  # 1 where `of` these answers it is yes, -1 elsewhere
    "kind",  # an index of what kind something is `of` this axis; 0 where nothing says it
    "buffer",  # numbers `of` this axis that are stored beside weights, and do not learn; 0 where nothing says them
    "end",  # an index of the last place `of` this axis that a sequence reaches
    "mask",  # drawn, in dropout; `of` what is dropped from
    "padding",  # which keys are there
    "projection",  # fixed random matrix, by which PEPITA's error comes to the value `of`; or what is read for a weight
    "feedback",  # fixed random matrix, by which the error at the value `of` comes to another one for its gradient
    "direction",  # drawn anew in every step: which way the value `of` is moved
    "received",  # of a stage of a pipeline: what another one makes, as its own
    "state",  # what the optimizer remembers `of` a weight
    "running",  # a running statistic of a normalization, `of` which kind: mean, variance, count
    "gathered",  # the sum of the gradients `of` a weight over microbatches
    "gradient",  # `of` a value
    "part",  # a part of the gradient `of` a value, which a sum adds up with others
    "tangent",  # how the value `of` moves when others are moved
    "unsummed",  # what the gradient `of` a word's result makes of an operand, before it is summed
    "inner",  # made by the word that makes the value `of`, for its gradient
    "kept",  # the stack of a value `of` a turn, one turn beside the other, for what comes later
    "cache",  # the cached positions `of` a value
    "new",  # what a weight, a state or a cache, `of`, is after the step
    "copy",  # of the value `of`, in another type
    "step",  # of lowering: on the way to the value `of`
]
"""What a value is there for."""

DRAWN: frozenset[Role] = frozenset(("mask", "padding"))
"""Roles of inputs that a batch brings along, beside those that a layer is called with."""

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
"""Roles of fixed random matrices, which a procedure has beside the weights."""

INDICES: frozenset[Role] = frozenset(("index", "kind", "end"))
"""Roles of what is read as an index alone."""

GIVEN: frozenset[Role] = frozenset(("index", "kind", "share", "sign", "buffer", "end"))
"""Roles that a line of the notation gives an input, as in `targets: index of v`, each `of` something."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a scope.

    Attributes
    ----------
    axes
        Its declared axes.
    role
        What it is there for.
    of
        The value that it is the gradient of, a part of, the stack, the next one, the cache; the answers that it is a
        share or a sign of, the axis that it is an end of.
    group
        Where a repeat was split by turns, the value whose turns these are.
    dtype
        Its data type; empty: that of the run.
    split
        Axes that are cut over devices; none so far.
    power
        Of a whole number that stands for another: the power of two by which it is multiplied for that.
    """

    axes: Axes
    role: Role = "value"
    of: str = ""
    group: str = ""
    dtype: str = ""
    split: Axes = ()
    power: int | None = None

    def along(self, axes: Iterable[str]) -> Value:
        """The same with other axes."""
        return replace(self, axes=tuple(axes))

    def stacked(self, count: str) -> Value:
        """The same of all turns of a repeat, one beside the other."""
        return replace(self, axes=(count, *self.axes))


def axes_of(values: Mapping[str, Value]) -> dict[str, Axes]:
    """The declared axes of every name."""
    return {name: value.axes for name, value in values.items()}


_Of = TypeVar("_Of")


@dataclass(frozen=True, eq=False, slots=True)
class IdentityKey(Generic[_Of]):
    """An object, such as a table, as a key: equal to itself alone. It lives as long as the key does."""

    content: _Of

    def __hash__(self) -> int:
        return id(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.content is other.content
