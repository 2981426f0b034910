"""Price complete models by the formulas of publications, row by row instead of line by line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path

from learncost.cost_models import Book, PricedLine, kind
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Product
from learncost.ir.loop import walk
from learncost.ir.polynomial import ZERO, Polynomial, base, total
from learncost.ir.term import Axis
from learncost.layers.active import active_parameters, choices, parameters
from learncost.layers.products import matrix_maccs
from learncost.models.families import instead
from learncost.models.model import Model
from learncost.ops import is_softmax

FORMULA = "formula"
"""The pricing rule of these books."""

BACKWARD = 2
"""The FLOPs of backward and weight update relative to forward in all of these publications."""


@dataclass(frozen=True)
class FormulaRow:
    """A row of a publication's formula: FLOPs in the forward pass of a step, written in the publication's letters."""

    layer: str
    name: str
    flops: str
    kind: str
    blocks: bool = False


@dataclass(frozen=True)
class PublishedFormula:
    """The formula of a publication: its conditions on a model, the meanings of its letters, and its rows."""

    book: Book
    needs: tuple[str, ...]
    letters: Mapping[str, str]
    rows: tuple[FormulaRow, ...]
    recomputes: bool = False


@cache
def formulas() -> Mapping[str, PublishedFormula]:
    """Return the formulas by the names of their price books, in the order of formulas.toml."""
    text = Path(__file__).with_name("formulas.toml").read_text(encoding="utf-8")
    by_name = {}
    for name, entry in tomllib.loads(text).items():
        rows = tuple(FormulaRow(**row) for row in entry.pop("rows"))
        needs, book = tuple(entry.pop("needs")), Book(name, entry.pop("title"), entry.pop("source"), FORMULA)
        by_name[name] = PublishedFormula(book, needs, rows=rows, **entry)
    return by_name


def priced(model: Model, book: Book, procedure: str) -> tuple[PricedLine, ...]:
    """Return the priced rows of one step under a formula, as polynomials in the sizes of the model's axes.

    Raises `InputError` where the formula does not cover the model or the procedure.
    """
    formula = formulas()[book.name]
    if procedure != "bp" and not (procedure == "recompute" and formula.recomputes):
        procedures = "bp and recompute" if formula.recomputes else "bp"
        raise InputError(f"price book {book.name} is a formula of {procedures} and does not apply to {procedure}")
    if set(model.learning) != set(model.table.weights):
        raise InputError(f"price book {book.name} applies only to models whose weights are all trained")
    reading = FormulaValues(model)
    for need in formula.needs:
        if refusal := _NEEDS[need](reading):
            name = model.configuration.name
            raise InputError(f"price book {book.name} is a formula of {_CONDITIONS[need]}: {name} {refusal}")
    letters = {letter: reading.quantity(meaning) for letter, meaning in formula.letters.items()}
    return tuple(_rows(formula, letters, reading.blocks, procedure == "recompute"))


def _rows(
    formula: PublishedFormula, letters: Mapping[str, Polynomial], blocks: Polynomial, again: bool
) -> Iterator[PricedLine]:
    times = {"forward": 1, "recomputation": int(again), "backward": BACKWARD}
    for phase, factor in times.items():
        for operation in formula.rows:
            if factor and (operation.blocks or phase != "recomputation"):
                flops = value(operation.flops, letters) * factor
                yield PricedLine(
                    operation.name,
                    operation.layer or "model",
                    None,
                    phase,
                    "",
                    ZERO if operation.kind == "elementwise" else _half(flops),
                    flops,
                    ZERO,
                    blocks if operation.blocks else Polynomial.of(()),
                    operation.kind,
                    source=f"{operation.name}: {operation.flops}",
                )


def _half(count: Polynomial) -> Polynomial:
    return Polynomial({monomial: coefficient // 2 for monomial, coefficient in count.terms.items()})


def value(text: str, letters: Mapping[str, Polynomial]) -> Polynomial:
    """Return the polynomial of a product such as `4 B s^2 h l`, with its letters replaced."""
    product = Polynomial.of(())
    for factor in text.split():
        name, _, power = factor.partition("^")
        for _ in range(int(power or 1)):
            product = product * (Polynomial.of((), int(name)) if name.isdigit() else letters[name])
    return product


@dataclass(frozen=True)
class FormulaValues:
    """The values of the formulas' letters, derived from a model's table."""

    model: Model

    def quantity(self, meaning: str) -> Polynomial:
        """Return a named quantity, or a product of axes."""
        quantities: Mapping[str, Callable[[], Polynomial]] = {
            "blocks": lambda: self.blocks,
            "parameters": lambda: parameters(self.model.table),
            "parameters without positions": lambda: parameters(self.model.table) - self.positions,
            "active parameters": lambda: active_parameters(self.model.table),
            "heads": lambda: self.heads,
            "attention matrices": lambda: self.matrices(attention=True),
            "other matrices": lambda: self.matrices(attention=False),
        }
        return quantities[meaning]() if meaning in quantities else Polynomial.of(meaning.split())

    @cached_property
    def lines(self) -> tuple[tuple[Line, tuple[str, ...]], ...]:
        """The lines of the forward pass, with the trip counts of the loops around them."""
        return tuple((line, nest.counts) for line, nest in walk(self.model.table.lines))

    @cached_property
    def attention(self) -> tuple[tuple[Product, tuple[str, ...]], ...]:
        """The products that compute scores and those that read them."""
        table = self.model.table
        products = [
            (line, iterations)
            for line, iterations in self.lines
            if isinstance(line, Product) and kind(line, table) == "attention"
        ]
        return tuple(products)

    @cached_property
    def blocks(self) -> Polynomial:
        """The number of attention blocks."""
        layers = {line.meta.layer for line, _ in self.attention}
        return total(
            Polynomial.of(iterations)
            for line, iterations in self.lines
            if is_softmax(line) and line.meta.layer in layers
        )

    @cached_property
    def heads(self) -> Polynomial:
        """The width of all heads of all blocks, which is the number of MACCs of the scores for one pair of tokens."""
        return self.widths[0]

    @cached_property
    def widths(self) -> tuple[Polynomial, Polynomial]:
        """The MACCs for one pair of tokens: of the products that compute scores, and of those that read them."""
        scores, values = (
            total(
                matrix_maccs(line) * Polynomial.of(iterations)
                for line, iterations in self.attention
                if (sum(base(axis) == "M" for axis in line.left[0].loops) > 1) is makes_pairs
            )
            for makes_pairs in (True, False)
        )
        return _of_a_pair(scores), _of_a_pair(values)

    @cached_property
    def positions(self) -> Polynomial:
        """The parameters of learned positions: weights that are added at token positions, the same for every
        sequence."""
        table = self.model.table
        found = {
            term.name
            for line, _ in self.lines
            if not (isinstance(line, Product) and matrix_maccs(line))
            for term in line.terms
            if term.name in table.weights and any(map(_of_places, term.axes))
        }
        return total(Polynomial.of(table.axes[name]) for name in found)

    def matrices(self, attention: bool) -> Polynomial:
        """Return the number of parameters of the blocks' matrices: those of attention, or the others."""
        table, layers = self.model.table, {line.meta.layer for line, _ in self.attention}
        is_attention: dict[str, bool] = {}
        for line, iterations in self.lines:
            if isinstance(line, Product) and iterations and matrix_maccs(line):
                for name in line.reads:
                    if name in table.weights:
                        is_attention[name] = line.meta.layer in layers
        return total(
            Polynomial.of(table.axes[name]) for name, of_attention in is_attention.items() if of_attention is attention
        )


def _of_places(axis: Axis) -> bool:
    """Return whether an axis of a weight runs over token positions, directly or by an index."""
    if isinstance(axis, str):
        return base(axis) == "M"
    return "B" not in axis.at.loops and "M" in map(base, axis.at.loops)


def _of_a_pair(count: Polynomial) -> Polynomial:
    return Polynomial({_without(monomial, ("B", "M", "M")): n for monomial, n in count.terms.items()})


def _without(monomial: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
    left = list(monomial)
    for axis in axes:
        left.remove(axis)
    return tuple(left)


def _several_stacks(reading: FormulaValues) -> str:
    if reading.model.two_sided:
        return "has an encoder and a decoder"
    volumes = [monomial for line, _ in reading.attention for monomial in matrix_maccs(line).terms]
    if volumes and all(monomial.count("M") == 2 and "B" in monomial for monomial in volumes):
        return ""
    if volumes and not {"B", "M"} <= {base(axis) for line, _ in reading.attention for axis in line.loops}:
        return "has no axes named B and M: name its sequences and tokens so, as in --input 'x: int B M'"
    return "has another kind of attention" if volumes else "has no attention"


def _widths_of_heads(reading: FormulaValues) -> str:
    sizes = reading.model.sizes  # in numbers: the axes of keys and of values may have different names
    scores, values = (width.at(sizes) for width in reading.widths)
    return "" if scores == values else "has keys and values of different widths"


def _experts(reading: FormulaValues) -> str:
    return "has experts, and a token is processed by a few of them" if choices(reading.model.table) else ""


def _shared_weights(reading: FormulaValues) -> str:
    table = reading.model.table
    shared = any(
        name in table.weights and not set(iterations) <= set(table.axes[name])
        for line, iterations in reading.lines
        if isinstance(line, Product) and matrix_maccs(line)
        for name in line.reads
    )
    return "has blocks that share their weights" if shared else ""


def _other_blocks(reading: FormulaValues) -> str:
    sizes, blocks = reading.model.sizes, reading.blocks  # in numbers: grouped-query attention has one more axis
    heads = blocks * Polynomial.of(("d", "h", "k"), 4) - reading.matrices(attention=True)
    network = blocks * Polynomial.of(("d", "f"), 2) - reading.matrices(attention=False)
    return "has other matrices in its blocks" if heads.at(sizes) or network.at(sizes) else ""


def _other_widths(reading: FormulaValues) -> str:
    sizes = reading.model.sizes
    if not {"d", "h", "k", "f"} <= sizes.keys():
        return "has no axes named d, h, k and f"
    d, a, f = sizes["d"], sizes["h"] * sizes["k"], sizes["f"]
    return "" if d == a and f == 4 * d else f"has a width of {d}, heads of {a} together and a network of {f}"


def _no_head(reading: FormulaValues) -> str:
    ops = (isinstance(line, Product) and "v" in line.left[0].loops for line, _ in reading.lines)
    if reading.model.learns and any(ops):
        return ""
    is_of_ops = "v" in reading.model.sizes  # otherwise no class of its family has such a head
    return "has none" + (instead(reading.model.configuration.family) if is_of_ops else "")


_NEEDS: Mapping[str, Callable[[FormulaValues], str]] = {
    "one stack": _several_stacks,
    "dense": _experts,
    "own weights": _shared_weights,
    "one width": _widths_of_heads,
    "standard blocks": _other_blocks,
    "standard widths": _other_widths,
    "head": _no_head,
}
"""The conditions of formulas: each function returns how a model violates the condition, or ""."""

_CONDITIONS = {
    "one stack": "one stack of blocks with attention among its tokens",
    "dense": "dense models",
    "own weights": "blocks that have each their own weights",
    "one width": "heads with one width for queries, keys and values",
    "standard blocks": "blocks with multi-head attention and a feed-forward network of two matrices",
    "standard widths": "heads together as wide as the model and a network four times as wide",
    "head": "language models with their head",
}
