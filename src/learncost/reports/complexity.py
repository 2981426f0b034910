"""Attention compared with recurrence and convolution: costs from the layers' tables, and their crossovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import product
from math import gcd
from typing import Any

from learncost.cost_models.books import price
from learncost.ir.dataclass import HIDDEN, Key, Serializable, attributes, dataclass, field
from learncost.ir.errors import InputError, shown
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, base, total
from learncost.layers.active import parameters
from learncost.layers.layer import Layer, shipped_layer
from learncost.models.sizes import check_size, resolve
from learncost.reports.crossing import (
    LETTERS,
    SignInterval,
    coefficients,
    lettered,
    order,
    python,
    sign_intervals,
    text,
)
from learncost.reports.question import question
from learncost.reports.sheet import FigureAnswer

VASWANI = "Vaswani et al. 2017, Attention is all you need, table 1 and section 4"


_EXPRESSION = Key(form=python).field  # expressions are Python's


def _order(count: Polynomial) -> str:
    return f"O({python(count)})"


def _sizes(sizes: Mapping[str, int]) -> dict[str, Any]:
    named_sizes = {name: sizes[letter] for name, letter in LETTERS.items() if letter in sizes}
    return {"letters": {letter: name for name, letter in LETTERS.items()}, "sizes": named_sizes}


@dataclass(frozen=True)
class LayerProduct(Serializable):
    """One product of a layer: its line, its total cost, and whether it is divided over the heads."""

    line: str
    text: str
    maccs: Polynomial = field(metadata=_EXPRESSION)
    heads: bool = field(metadata=HIDDEN)
    weighted: bool = field(metadata=HIDDEN)

    @property
    @Key()
    def maccs_per_head(self) -> str | None:
        """Return the MACCs of a head as a Python expression; None for a product without heads."""
        return f"({python(self.maccs)})/h" if self.heads else None


@dataclass(frozen=True)
class LayerKind(Serializable):
    """One kind of layer in the comparison.

    maccs, parameters   of one sequence, in the letters
    order               what the MACCs grow like
    sequential          how many steps must follow each other: the iterations of the table's loops
    path                the longest way between two positions, as in the source; none where positions never meet
    """

    name: str
    table: str
    maccs: Polynomial = field(metadata=_EXPRESSION)
    parameters: Polynomial = field(metadata=_EXPRESSION)
    sequential: Polynomial = field(metadata=Key("sequential_operations", form=_order).field)
    path: str | None = field(
        metadata=Key("maximum_path_length", form=lambda path: f"O({path})" if path else None).field
    )
    steps: tuple[LayerProduct, ...] = field(metadata=Key("products").field)
    source: str
    part: bool = field(default=False, metadata=HIDDEN)  # a variant of the kind before it

    @property
    @Key(form=_order, after="parameters")
    def order(self) -> Polynomial:
        return order(self.maccs)


@dataclass(frozen=True)
class LengthCrossing:
    """The length below which one kind costs less than another: exactly n = root/divisor."""

    cheaper: LayerKind
    dearer: LayerKind
    root: Polynomial
    divisor: int

    @property
    def never(self) -> bool:
        """Return whether the length is negative for all sizes."""
        return all(coefficient <= 0 for coefficient in self.root.terms.values())

    @property
    def length(self) -> str:
        """The length at which both cost the same."""
        if self.divisor == 1:
            return text(self.root)
        root_text = text(self.root)
        return f"({root_text})/{self.divisor}" if len(self.root.terms) > 1 else f"{root_text}/{self.divisor}"

    def at(self, sizes: Mapping[str, int]) -> tuple[Fraction, tuple[SignInterval, ...]] | None:
        """Return the numeric length, and the signs of cheaper minus dearer at integer lengths; None without sizes."""
        others = {letter: size for letter, size in sizes.items() if letter != "n"}
        if not self.difference.sizes <= {*others, "n"}:
            return None
        polynomial = self.difference.at(others)
        assert isinstance(polynomial, Polynomial)
        return Fraction(self.root.at(others), self.divisor), sign_intervals(coefficients(polynomial, "n"))

    @property
    def difference(self) -> Polynomial:
        return self.cheaper.maccs - self.dearer.maccs

    def to_dict(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Return the crossing as JSON data."""
        crossing = self.at(sizes)
        signs = None if crossing is None else attributes("first last sign")(crossing[1])
        return {
            "cheaper": self.cheaper.name,
            "dearer": self.dearer.name,
            "below": "never" if self.never else f"n < {self.length}",
            "length": None if crossing is None or crossing[0] <= 0 else float(crossing[0]),
            "stretches": signs,
        }


@dataclass(frozen=True, repr=False)
class Complexity(FigureAnswer):
    """Costs of kinds of layers for one sequence, and the lengths at which they cross.

    `sizes` holds what was given, by letter; with it counts are numbers where every letter is known.
    """

    _figures = ("complexity",)
    _schema = 1

    _sheets_module = "learncost.reports.show_complexity"

    kinds: tuple[LayerKind, ...] = field(metadata=HIDDEN)
    crossings: tuple[LengthCrossing, ...] = field(metadata=HIDDEN)
    sizes: Mapping[str, int] = field(default_factory=dict, metadata=Key(form=_sizes, inline=True).field)

    def kind(self, name: str) -> LayerKind:
        """Return a kind by name."""
        for kind in self.kinds:
            if kind.name == name:
                return kind
        raise InputError(
            f"no kind of layer is called {shown(name)} (there are {', '.join(k.name for k in self.kinds)})"
        )

    def value(self, count: Polynomial) -> int | Polynomial:
        """Return a count at the given sizes: an integer if all its letters are given."""
        evaluated: int | Polynomial = count.at(self.sizes)
        return evaluated

    @property
    @Key()
    def layers(self) -> list[dict[str, Any]]:
        """Return the kinds as data, with `at` if all sizes of a kind are given."""
        rows = []
        for kind in self.kinds:
            numbers = {"maccs": self.value(kind.maccs), "parameters": self.value(kind.parameters)}
            has_sizes = all(isinstance(number, int) for number in numbers.values())
            rows.append({**kind.to_dict(), "at": numbers if has_sizes else None})
        return rows

    @property
    @Key("crossings")
    def _written_crossings(self) -> list[dict[str, Any]]:
        """Return the crossings as data, with their lengths at the sizes."""
        return [crossing.to_dict(self.sizes) for crossing in self.crossings]

    @property
    @Key()
    def source(self) -> str:
        """Return the source of the table."""
        return VASWANI


# Which tables, and what the source says of them; every count is read off the table.
_ATTENTION, _WITHOUT = "self-attention", "self-attention without projections"
_RESTRICTED, _RESTRICTED_WITHOUT = "restricted attention", "restricted attention without projections"
_RECURRENT, _CONVOLUTION, _SEPARABLE = "recurrent", "convolution", "separable convolution"
_FEED_FORWARD = "feed-forward"

_KINDS: tuple[tuple[str, str, str | None], ...] = (
    (_ATTENTION, "attention", "1"),
    (_WITHOUT, "attention", "1"),
    (_FEED_FORWARD, "feed_forward_without_biases", None),
    (_RECURRENT, "recurrent", "n"),
    (_CONVOLUTION, "convolution", "log_k(n)"),
    (_SEPARABLE, "separable_convolution", "log_k(n)"),
    (_RESTRICTED, "restricted_attention", "n/r"),
    (_RESTRICTED_WITHOUT, "restricted_attention", "n/r"),
)


def _steps(layer: Layer) -> Iterator[LayerProduct]:
    """Return the products of a layer that sum, with their terms in all iterations."""
    rows = price(layer, {}, "run").rows
    for row, (line, _) in zip(rows, walk(layer.table.lines), strict=True):
        if row.maccs:
            heads = any(base(axis) == "h" for axis in line.left[0].loops)
            weighted = any(name in layer.table.weights for name in line.reads)
            yield LayerProduct(row.line, str(line).partition("  (")[0], lettered(row.maccs), heads, weighted)


def _kind(name: str, table: str, path: str | None) -> LayerKind:
    layer = shipped_layer(table)
    without = name.endswith("without projections")
    steps = tuple(step for step in _steps(layer) if not (without and step.weighted))
    iterations = max(
        (Polynomial.of(nest.counts) for _, nest in walk(layer.table.lines)),
        key=lambda count: max(map(len, count.terms)),
    )
    return LayerKind(
        name,
        table,
        total(step.maccs for step in steps),
        Polynomial() if without else lettered(parameters(layer.table)),
        lettered(iterations),
        path,
        steps,
        layer.source,
        without,
    )


def crossing(cheaper: LayerKind, dearer: LayerKind) -> LengthCrossing:
    """Return the length at which two layers cost the same: n is in every term, and the difference over n is linear."""
    rising, rest = Polynomial(), Polynomial()
    for monomial, coefficient in (cheaper.maccs - dearer.maccs).terms.items():
        power = monomial.count("n")
        part = Polynomial.of((name for name in monomial if name != "n"), coefficient)
        assert power in (1, 2), "costs grow with the length or with its square"
        rising, rest = (rising + part, rest) if power == 2 else (rising, rest + part)
    ((slope, steepness),) = rising.terms.items()
    assert steepness > 0, "attention grows faster"
    root = Polynomial()
    for monomial, coefficient in rest.terms.items():
        names = list(monomial)
        for name in slope:
            names.remove(name)
        root += Polynomial.of(names, -coefficient)
    common = gcd(steepness, *root.terms.values())
    return LengthCrossing(
        cheaper, dearer, Polynomial({m: c // common for m, c in root.terms.items()}), steepness // common
    )


@cache
def _all() -> tuple[tuple[LayerKind, ...], tuple[LengthCrossing, ...]]:
    kinds = {name: _kind(name, table, path) for name, table, path in _KINDS}
    pairs = [*product((_WITHOUT, _ATTENTION), (_RECURRENT, _CONVOLUTION, _SEPARABLE, _FEED_FORWARD))]
    pairs += [(_WITHOUT, _RESTRICTED_WITHOUT), (_ATTENTION, _RESTRICTED)]
    return tuple(kinds.values()), tuple(crossing(kinds[kind], kinds[other]) for kind, other in pairs)


@question()
def complexity(
    *,
    seq_len: int | str | None = None,
    hidden_size: int | str | None = None,
    num_attention_heads: int | str | None = None,
    kernel_size: int | str | None = None,
    window: int | str | None = None,
    **sizes: int | str,
) -> Complexity:
    """Compare self-attention, feed-forward, recurrence, convolution and restricted attention.

    MACCs, parameters, orders, sequential operations, maximum path lengths, and the sequence lengths at which attention
    is cheaper. Omitted sizes are symbolic.

    Parameters
    ----------
    seq_len
        Tokens in a sequence, n.
    hidden_size
        The width of every layer, d.
    num_attention_heads
        The number of heads, h; it divides the width.
    kernel_size
        Positions that a convolution reads, k.
    window
        Positions that restricted attention reads, r.
    sizes
        The same sizes in any other accepted spelling, such as `d_model` 512.

    Returns
    -------
    Complexity
        A row for each kind of layer, and the lengths at which one becomes cheaper than another.

    Raises
    ------
    InputError
        If a size is not a whole number from 1 to 10^12, or the heads do not divide the width.

    Commands
    --------
    learncost complexity
        Symbolic costs, and where they cross.
    learncost complexity --seq-len 1024 --hidden-size 768 --num-attention-heads 12 --kernel-size 3 --window 128
        The same for given sizes.

    Examples
    --------
    >>> found = lc.complexity(hidden_size=512)
    >>> [(kind.name, str(kind.maccs)) for kind in found.kinds][:2]
    [('self-attention', '4 d^2 n + 2 d n^2'), ('self-attention without projections', '2 d n^2')]
    """
    by_name = {
        "seq_len": seq_len,
        "hidden_size": hidden_size,
        "num_attention_heads": num_attention_heads,
        "kernel_size": kernel_size,
        "window": window,
    }
    spelling = {name: name for name in by_name}
    for name, value in sizes.items():
        canonical = resolve(name)
        if canonical not in by_name:
            raise InputError(f"{name} does not apply: the sizes are {', '.join(by_name)}")
        if by_name[canonical] is not None and str(by_name[canonical]) != str(value):
            raise InputError(f"{name} {shown(value)} contradicts {spelling[canonical]} {shown(by_name[canonical])}")
        by_name[canonical], spelling[canonical] = value, name
    by_letter = {
        LETTERS[name]: check_size(spelling[name].replace("_", "-"), value)
        for name, value in by_name.items()
        if value is not None
    }
    if by_letter.get("d", 0) % by_letter.get("h", 1):
        raise InputError(f"{spelling['hidden_size']} {by_letter['d']} is not a multiple of its {by_letter['h']} heads")
    kinds, crossings = _all()
    return Complexity(kinds, crossings, by_letter)
