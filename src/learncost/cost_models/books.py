"""Define the price books as data with their sources; the books `run` and `matmul` need no numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learncost.cost_models import Book, OpPrice, Override, Price
from learncost.cost_models import price as _price
from learncost.ir.errors import named_one
from learncost.ir.polynomial import ZERO, Polynomial, checked_sizes
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.layers.products import PRODUCT_OPERATORS

PAPER = "Pau & Aymone 2024, Eng 5(1), 34-50"


def points(axes: str) -> Polynomial:
    """Return the product of the axes' sizes."""
    return Polynomial.of(axes.split())


_NORM = "sections 5.5.1 and 5.5.2: per element mean, subtract, square, variance, subtract, divide; Jacobian 9"
_SOFTMAX = "section 5.3.1: 5 FLOPs per element; (28): one per element of the Jacobian"
_GELU = "section 5.4.1: 8 FLOPs forward and 13 for the derivative, in either form"

_OPERATORS = {
    "softmax": OpPrice(body=5, jacobian=1, source=_SOFTMAX),
    "log_softmax": OpPrice(body=5, gradient=0, source="(45) and section 5.6.2: target - s has no FLOPs"),
    "normalize": OpPrice(body=6, jacobian=9, source=_NORM),
    "gelu": OpPrice(body=8, gradient=13, source=_GELU),
    "gelu_tanh": OpPrice(body=8, gradient=13, source=_GELU),
}

_SKIP = Override(ZERO, points("B M d"), "section 5.5.2: adding the derivative of the skip branch")
_SKIP_OF_COLUMNS = Override(ZERO, points("T d"), _SKIP.source)
_BETA = Override(ZERO, points("B M d"), "(42)")
_SLICE = Override(points("B M M N h"), points("B M M N h") * 2, "(29) as printed, M N M h: erratum E2")
_DENSE = Override(ZERO, ZERO, "section 5.1: the modulated input is one dense product, already charged")

# Lines that the rule of shapes does not cover, each with its equation.
_OVERRIDES: dict[tuple[str, str], Override] = {
    ("norm", "db"): _BETA,
    ("add_norm", "db"): _BETA,
    ("add_norm", "dX"): _SKIP,
    ("residual", "dX"): _SKIP,
    ("embedding", "e W"): _DENSE,
    ("embedding", "x + F e"): _DENSE,
    ("masked_lm_transform", "dbeta"): _BETA,
    ("jiang_block", "db"): Override(ZERO, points("T d"), _BETA.source),
    ("jiang_block", "dX"): _SKIP_OF_COLUMNS,
    ("jiang_block", "dO"): _SKIP_OF_COLUMNS,
}

_ERRATA: dict[tuple[str, str], Override] = {("attention", "dS"): _SLICE, ("cross_attention", "dS"): _SLICE}

# Section 5.2, section 5.6.2 and Algorithms 1 and 2 count neither positions, nor the loss, nor the optimizer step.
_UNPRICED = frozenset({"positions", "sinusoidal_positions", "token_types", "dropout", "padding", "loss", "optimizer"})

# Section 5.1 and (48): T is one-hot, and its products are charged in full.
_ONE_HOT = frozenset({"embedding", "error_projection"})

# The books that price lines; formulas.toml has the formulas of complete models.
BOOKS: Mapping[str, Book] = {
    book.name: book
    for book in (
        Book("run", "what the NumPy run executes", "derived from the operators' bodies in normal form", "executed"),
        Book(
            "matmul",
            "matrix products only",
            "derived from the table as written: products with rows, columns and a sum, and what PyTorch's operators "
            "for matrix products compute of a vector, as torch's FlopCounterMode, "
            "the FLOPs blog (24bsh^2 + 4bs^2h) and the DSBA slides (4nd^2 + 2n^2d) count",
            "matrix",
        ),
        Book(
            "causal-half",
            "matrix products, causal attention in half",
            "as `matmul`; under a causal `where` half of the square, as Megatron-LM and MaxText count (pull "
            "request 1988)",
            "matrix",
            causal="half",
        ),
        Book(
            "causal-exact",
            "matrix products, causal attention at visible pairs",
            "as `matmul`; under a causal `where` M (M + 1) / 2 pairs of M positions",
            "matrix",
            causal="inside",
        ),
        Book(
            "flash",
            "matrix products as flash attention runs them",
            "as `causal-half`, and attention's scores once more in its backward pass, 5 products for 2: "
            "flash-attention, benchmarks/benchmark_flash_attention.py, and its issue 1525",
            "matrix",
            causal="half",
            again=True,
        ),
        Book(
            "torch-flop-counter",
            "products as FlopCounterMode counts on CUDA",
            "as `matmul`, with attention in fused kernels: 2 products forward, 5 backward, causal masks ignored; of "
            "lines that say what computes them, the operators that it has a formula for; torch 2.13.0, "
            "torch/utils/flop_counter.py, flop_registry, sdpa_flop_count and sdpa_backward_flop_count",
            "matrix",
            again=True,
            operators=PRODUCT_OPERATORS,
        ),
        Book(
            "paper",
            "Pau & Aymone as printed, errata included",
            PAPER,
            "printed",
            True,
            _OPERATORS,
            _OVERRIDES | _ERRATA,
            _UNPRICED,
            {("attention", "JS"): "E3", ("cross_attention", "JS"): "E3"},
            _ONE_HOT,
            optimizer="sgd",
        ),
        Book(
            "paper-corrected",
            "Pau & Aymone with errata E2 and E3 corrected",
            PAPER,
            "printed",
            True,
            _OPERATORS,
            _OVERRIDES,
            _UNPRICED,
            one_hot=_ONE_HOT,
            optimizer="sgd",
        ),
    )
}


def book(name: str | Book) -> Book:
    """Return a price book by its name.

    Parameters
    ----------
    name
        The name (`learncost list price-books`), or a `Book`, which is returned unchanged.

    Returns
    -------
    Book
        The price book.

    Raises
    ------
    InputError
        For an unknown name; the message lists those that exist.

    Examples
    --------
    >>> lc.book("matmul").title
    'matrix products only'
    >>> lc.book("paper").jacobian
    True
    """
    if isinstance(name, Book):
        return name
    return BOOKS[name] if isinstance(name, str) and name in BOOKS else named_one("price book", name, every())


def every() -> dict[str, Book]:
    """Return all price books by name: those that price single lines, and formulas of complete models."""
    from learncost.cost_models.formula import formulas  # imported when used, as it reads a file

    return {**BOOKS, **{name: formula.book for name, formula in formulas().items()}}


def price(
    table: Layer | Table, sizes: Mapping[str, Any] | None = None, book: str | Book = "run", dtype: str = "fp32"
) -> Price:
    """Price a table under a price book: MACCs, FLOPs and bytes, in total and line by line.

    Parameters
    ----------
    table
        A layer, which is priced as its forward pass, or a table that was derived from a layer.
    sizes
        Sizes of axes and trip counts of loops, by name. Whole numbers give exact whole numbers, and arrays give float64
        arrays; with sizes left out, the counts are polynomials in them.
    book
        A price book or its name. One MACC is two FLOPs in all of them.
    dtype
        The data type in which bytes are counted. Each line reads each operand once and writes each result once.

    Returns
    -------
    Price
        The rows and their totals.

    Raises
    ------
    InputError
        For sizes that are neither whole numbers from 1 nor arrays, and for an unknown book.

    Examples
    --------
    >>> linear = lc.layer('''linear(X; W) -> Y
    ...   Y[B M f] = X[B M d] W[d f]
    ... ''')
    >>> lc.price(linear, {"B": 1, "M": 128, "d": 768, "f": 3072}).maccs
    301989888
    >>> str(lc.price(linear, {"B": 1}).flops)
    '2 M d f'
    """
    return _price(table, checked_sizes(sizes or {}), _find(book), dtype)


_find = book
