"""A price book: the rule that prices lines, and a publication's own prices of single operators and lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from learncost.ir.displayed import Displayed
from learncost.ir.polynomial import Polynomial


@dataclass(frozen=True)
class OpPrice:
    """FLOPs per element of an operator's result, of its gradient and of its explicit Jacobian; None: by the rule."""

    body: int | None = None
    gradient: int | None = None
    jacobian: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Override:
    """The price of one line in a book, in the layer's own axes, in place of the rule."""

    maccs: Polynomial
    flops: Polynomial
    source: str


@dataclass(frozen=True)
class Book(Displayed):
    """A price book: a convention for counting operations, with its source.

    Attributes
    ----------
    name
        Its name.
    title
        A short description of what it counts.
    source
        The publication or the program with this convention.
    rule
        The way a line is priced. "executed" counts the primitive operations that run; "matrix" counts only matrix
        products; "printed" follows a publication line by line; "formula" prices a complete model and no lines.
    jacobian
        Whether the backward pass goes through explicit Jacobians of softmax and normalization.
    ops
        FLOPs per element of an operator's result, where the book states them.
    overrides
        Prices of single lines in place of the rule: (layer, line) -> MACCs, FLOPs and source.
    unpriced
        Layers that the publication does not count.
    withdrawn
        Lines that the publication's own total leaves out: (layer, line) -> erratum.
    one_hot
        Layers whose look-ups are priced as products with one-hot rows.
    causal
        The way products under a causal mask are counted: in "full", in "half", only those "inside" the mask, or in the
        "blocks" that a kernel computes.
    again
        Whether the backward pass of attention recomputes its scores, as flash attention does.
    operators
        The operators that it counts, for lines that name their operator; others cost nothing. Empty: all lines are
        counted, whatever their operator.
    optimizer
        The default optimizer of the publication; empty where it names none.

    Examples
    --------
    >>> flash = lc.book("flash")
    >>> flash.rule, flash.causal, flash.again
    ('matrix', 'half', True)
    """

    name: str
    title: str
    source: str
    rule: str
    jacobian: bool = False
    ops: Mapping[str, OpPrice] = field(default_factory=dict)
    overrides: Mapping[tuple[str, str], Override] = field(default_factory=dict)
    unpriced: frozenset[str] = frozenset()
    withdrawn: Mapping[tuple[str, str], str] = field(default_factory=dict)
    one_hot: frozenset[str] = frozenset()
    causal: str = "full"
    again: bool = False
    optimizer: str = ""
    operators: frozenset[str] = frozenset()
