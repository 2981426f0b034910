"""A price book: by which rule lines are priced, and what a publication says of single words and lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from learncost.ir.displayed import Displayed
from learncost.ir.polynomial import Polynomial


@dataclass(frozen=True)
class OpPrice:
    """FLOPs per element of the result of a word, of its gradient, of its explicit Jacobian; None: the book has none."""

    body: int | None = None
    gradient: int | None = None
    jacobian: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Override:
    """What a book says of one line, in the layer's own axes, instead of its rule."""

    maccs: Polynomial
    flops: Polynomial
    source: str


@dataclass(frozen=True)
class Book(Displayed):
    """A price book: what one operation costs, and who says so.

    Attributes
    ----------
    name
        What it is called.
    title
        What it counts, in a few words.
    source
        The publication or the program that counts like that.
    rule
        How a line is priced. "executed" counts the primitive operations that run; "matrix" counts matrix products
        alone; "printed" follows a publication line by line; "formula" prices a whole model and no line.
    jacobian
        Whether the backward pass goes through explicit Jacobians of softmax and normalization.
    ops
        What a word of the vocabulary costs, in FLOPs per element of its result, where the book says so itself.
    overrides
        What the book says of single lines instead of its rule: (layer, line) -> MACCs, FLOPs and source.
    unpriced
        Layers that the publication counts as nothing.
    withdrawn
        Lines that the publication's own total leaves out: (layer, line) -> erratum.
    one_hot
        Layers whose look-ups are priced as products with one-hot rows.
    causal
        How products under a causal mask are counted: in "full", in "half", those "inside" the mask alone, or in the
        "blocks" that a kernel takes.
    again
        Whether the backward pass of attention computes its scores once more, as flash attention does.
    operators
        The operators that it knows: of a line that says which one computes it, others cost nothing. Empty: lines cost
        what they are, whatever computes them.
    optimizer
        The optimizer of who wrote it, which a step has where none is named; empty where they say none.

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
