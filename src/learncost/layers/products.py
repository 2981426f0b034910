"""Matrix products: which products are such, and their MACCs, in full or for the visible pairs of a `where`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from learncost.ir.dataclass import replace
from learncost.ir.line import Condition, Line, Product, sides
from learncost.ir.loop import Statement, groups, in_kernel, map_lines, repeats, walk
from learncost.ir.polynomial import ZERO, Polynomial, base, total
from learncost.ir.table import Table
from learncost.ir.term import Read, Term
from learncost.ops import is_softmax

_NAMESPACES = ("torch", "ops", "aten", "nn", "functional", "F")

PRODUCT_OPERATORS = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "_scaled_mm",
        "linear",
        "matmul",
        "einsum",
        "tensordot",
        "multi_dot",
        "_euclidean_dist",
        "affine_grid_generator",
        "convolution",
        "_convolution",
        "cudnn_convolution",
        "convolution_overrideable",
        "_slow_conv2d_forward",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "scaled_dot_product_attention",
        "multi_head_attention_forward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_attention_math",
        "_flash_attention_forward",
        "_efficient_attention_forward",
        "flex_attention",
    }
)
"""Operators with a formula in FlopCounterMode (torch 2.13.0, torch/utils/flop_counter.py, flop_registry), and those
that PyTorch dispatches to them. mv, dot, addbmm and outer have no formula there.
"""

# All axes that a factor loops over, and those that are not an index array's:
_Factor = tuple[tuple[str, ...], tuple[str, ...]]


def matrix_maccs(line: Product) -> Polynomial:
    """Return the MACCs of the matrix products of a line.

    A line that names its operator counts if PyTorch runs that operator as a matrix product, in which a vector is one
    row or column. In other lines, each factor must have an unsummed axis that the other lacks, and both must share a
    summed axis.

    An axis that only an index runs over is neither a row nor a column: a gathered weight, such as an expert, is one
    matrix for every element of the index. A scatter sums the axes of its index.
    """
    terms = [term for term in line.right if isinstance(term, Term)]
    if len(terms) == 2 and _runs_as_matrices(line, terms):
        return Polynomial.of(dict.fromkeys(chain.from_iterable(term.loops for term in terms)))
    factors = tuple([(term.loops, direct(term)) for term in terms])
    return _matrix_maccs((line.left[0].loops, direct(line.left[0])), factors)


def _runs_as_matrices(line: Product, terms: Sequence[Term]) -> bool:
    """Return whether PyTorch runs the line's operator, a product of two factors, as a matrix product.

    Convolutions with groups are decided by their axes, since PyTorch has separate kernels for single channels.
    `bilinear` runs bmm for both of its products and for the gradient of its weight, and multiplies the intermediate
    elementwise (torch 2.13.0, aten/src/ATen/native/Linear.cpp, _trilinear).
    """
    operator = operator_name(line.meta.operator)
    if operator == "bilinear":
        return line.meta.phase == "weight_update" or not set(line.left[0].loops).issuperset(line.loops)
    return operator in PRODUCT_OPERATORS and not ("conv" in operator and _groups(line, terms))


def _groups(line: Product, terms: Sequence[Term]) -> list[str]:
    """Return the axes that the factors and the result of a product share, such as the groups of a convolution."""
    return [axis for axis in line.left[0].loops if all(axis in term.loops for term in terms)]


def operator_maccs(line: Product) -> Polynomial:
    """Return the MACCs of a line by the formula of the operator that computes it: one MACC for every point of the axes
    of its factors.

    Every product of two factors counts, also a depthwise convolution, which multiplies no matrices.
    FlopCounterMode's formula of a convolution's backward pass computes the gradient of a grouped weight as if there
    were no groups (torch 2.13.0, torch/utils/flop_counter.py, conv_backward_flop), which is too large by their number.
    """
    terms = [term for term in line.right if isinstance(term, Term)]
    if len(terms) != 2:
        return matrix_maccs(line)
    loops = dict.fromkeys(chain.from_iterable(term.loops for term in terms))
    if line.meta.phase == "weight_update" and "conv" in line.meta.operator:
        return Polynomial.of((*loops, *_groups(line, terms)))
    return Polynomial.of(loops)


@lru_cache(maxsize=4096)
def operator_name(operator: str) -> str:
    """Return the name of an operator without namespace and overload: linear for aten.linear.default."""
    parts = [part for part in operator.replace("::", ".").split(".") if part not in _NAMESPACES]
    return parts[0] if parts else operator


IN_ITS_KERNEL = frozenset({"_euclidean_dist", "affine_grid_generator"})
"""Operators whose forward kernel multiplies matrices that counters of operators miss; the counters see the products of
the backward pass: `cdist` of more than 25 rows (torch 2.13.0, aten/src/ATen/native/Distance.cpp), `affine_grid`
(AffineGridGenerator.cpp there)."""


BOTH_GRADIENTS = frozenset({"_euclidean_dist"})
"""Operators whose backward pass computes the gradients of both factors even if only one is trained (torch 2.13.0,
tools/autograd/derivatives.yaml, _euclidean_dist_backward)."""


COUNTED_BACKWARD = frozenset({"addbmm"})
"""Operators without a formula in FlopCounterMode whose gradients autograd computes by bmm, which has one (torch 2.13.0,
tools/autograd/derivatives.yaml).
"""


def has_a_formula(line: Line, operators: Collection[str]) -> bool:
    """Return whether a counter with formulas of these operators counts a line."""
    operator = operator_name(line.meta.operator)
    return operator in operators or (operator in COUNTED_BACKWARD and line.meta.phase in ("backward", "weight_update"))


def is_in_a_kernel(line: Product) -> bool:
    """Return whether counters of operators miss a product because it is inside the kernel of another operator."""
    return line.meta.phase in ("forward", "recomputation") and line.meta.operator in IN_ITS_KERNEL


def with_a_second_gradient(lines: Iterable[Statement]) -> frozenset[str]:
    """Return the results of gradient products that count twice: their operator computes the gradients of both factors,
    but the table has only one of them, as the other factor is not trained."""
    of_gradient: dict[str, list[str]] = {}
    for line, _ in walk(lines):
        learns = isinstance(line, Product) and line.meta.phase in ("backward", "weight_update")
        if learns and line.meta.operator in BOTH_GRADIENTS:
            of_gradient.setdefault(line.reads[0], []).append(line.name)
    return frozenset(names[0] for names in of_gradient.values() if len(names) == 1)


def in_half(line: Product, maccs: Polynomial) -> Polynomial:
    """Return the MACCs of a line, halved if its `where` is a causal mask."""
    from fractions import Fraction  # only where a book halves

    return maccs * Polynomial.of((), Fraction(1, 2)) if _causal(line) else maccs


def inside(line: Product, maccs: Polynomial) -> Polynomial:
    """Return the MACCs of a line at the pairs of positions that its `where` keeps: M (M + 1) / 2 instead of M M."""
    condition = _causal(line)
    if condition is None:
        return maccs
    axis, visible = base(condition.lower), pairs(condition)
    return total(_with_pairs(monomial, int(number), axis, visible) for monomial, number in maccs.terms.items())


def in_blocks(line: Product, maccs: Polynomial, sizes: Mapping[str, Any]) -> Polynomial:
    """Return the MACCs of a line in a kernel that skips masked pairs: each tile of queries with all keys that a query
    of the tile attends to.

    M = 80 in tiles of 64 are 64 * 64 + 16 * 80 pairs. Where a size is unknown, all pairs count.
    """
    condition, kernel = _causal(line), line.meta.kernel
    length = None if condition is None else sizes.get(base(condition.upper))
    if condition is None or kernel is None or kernel.blocks is None or not isinstance(length, int):
        return maccs
    window = None if condition.window is None else int(sizes.get(condition.window, condition.window))
    visible = 0
    for first in range(0, length, kernel.blocks[1] or length):
        last = min(first + (kernel.blocks[1] or length), length)
        lowest = 0 if window is None else max(0, first - window + 1)
        visible += (last - first) * max(0, (last - 1 if condition.strict else last) - lowest)
    axis, visible_pairs = base(condition.lower), Polynomial.of((), visible)
    return total(_with_pairs(monomial, int(number), axis, visible_pairs) for monomial, number in maccs.terms.items())


def skipping(lines: Iterable[Statement], read_outside: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Return the lines of kernels that skip masked pairs of positions, as names of the kernel and of the line's result.

    A kernel skips no pairs if it writes an array of all pairs, or reads one transposed.

    read_outside   names of this scope that other scopes read
    """
    lines = tuple(lines)
    skipped = (_skipping(loop.lines, loop.ends) for loop in repeats(lines))
    return _skipping(lines, read_outside).union(*skipped)


def _skipping(lines: Sequence[Statement], read_outside: Iterable[str]) -> frozenset[tuple[str, str]]:
    kernels_lines = set[tuple[str, str]]()
    for group in groups(lines, in_kernel):
        kernel_lines = [line for line in group if isinstance(line, Line)]
        kernel = kernel_lines[0].meta.kernel if kernel_lines else None
        if kernel is None or kernel.blocks is None:
            continue
        others = {
            name for line in lines if not any(line is member for member in kernel_lines) for name in line.reads
        } | {*read_outside}
        makes = {term.name for line in kernel_lines for term in line.left}
        if all(_skips(line, makes, others, kernel.blocks[0]) for line in kernel_lines):
            kernels_lines |= {(kernel.name, line.name) for line in kernel_lines}
    return frozenset(kernels_lines)


def _skips(line: Line, made_inside: set[str], others: set[str], queries: str) -> bool:
    """Return whether a line needs only the pairs of positions that its condition keeps."""
    terms = [term for term in (*line.left, *line.right) if isinstance(term, Term)]
    pairs = {
        term.name
        for term in terms
        if any(condition.axes <= set(term.loops) for condition in line.where if condition.ordered)
    }
    swaps_sides = any(
        base(condition.upper) == base(queries) and condition.upper != queries
        for condition in line.where
        if condition.ordered
    )
    return not pairs & made_inside & others and (not swaps_sides or bool(pairs & made_inside))


def _causal(line: Product) -> Condition | None:
    """Return the condition of a line that compares two axes of equal size; None without one."""
    return next(
        (condition for condition in line.where if condition.ordered and base(condition.lower) == base(condition.upper)),
        None,
    )


def pairs(condition: Condition) -> Polynomial:
    """Return the number of pairs of positions that a condition keeps; a window must not be longer than the sequence."""
    from fractions import Fraction

    axis, diagonal = base(condition.lower), Polynomial.of((), -1 if condition.strict else 0)
    if condition.window is None:
        return (
            Polynomial.of((axis, axis), Fraction(1, 2))
            + Polynomial.of((axis,), Fraction(1, 2))
            + diagonal * Polynomial.of((axis,))
        )
    window = Polynomial.of((condition.window,))
    hidden = window * window - window
    return (window + diagonal) * Polynomial.of((axis,)) - hidden * Polynomial.of((), Fraction(1, 2))


def with_windows(table: Table, sizes: Mapping[str, Any]) -> Table:
    """Return the table without windows that mask nothing because the sequence is not longer than the window."""

    def hides(condition: Condition) -> bool:
        length = sizes.get(base(condition.lower))
        window = sizes.get(condition.window or "", condition.window)
        has_sizes = isinstance(length, int) and (isinstance(window, int) or str(window).isdigit())
        return not has_sizes or int(window or 0) < int(length or 0)

    def change(line: Line) -> tuple[Line, ...]:
        if not any(condition.window for condition in line.where):
            return (line,)
        where = tuple(
            condition if condition.window is None or hides(condition) else replace(condition, window=None)
            for condition in line.where
        )
        return (replace(line, where=where),)

    return replace(table, lines=map_lines(table.lines, change))


def _with_pairs(monomial: tuple[str, ...], number: int, axis: str, visible: Polynomial) -> Polynomial:
    others = list(monomial)
    for _ in range(2):
        if axis not in others:
            return Polynomial.of(monomial, number)
        others.remove(axis)
    return Polynomial.of(others, number) * visible


class ScoreGradients:
    """Tracks the gradient of attention's scores, from that of a softmax to the products that read it.

    A backward pass that recomputes the scores, as flash attention does, has one more product for each product that
    computed them, with as many MACCs as the product of the scores' gradient with one of its factors.
    """

    def __init__(self) -> None:
        self._gradients: set[str] = set()

    def again(self, line: Line, attends: bool) -> bool:
        """Process the next line of a table, and return whether it is the first product that reads such a gradient, if
        it `attends`."""
        if is_softmax(line) and line.part == "gradient":
            self._gradients.add(line.name)
            return False
        read = self._gradients.intersection(line.reads)
        if not read:
            return False
        if not isinstance(line, Product) or sum(isinstance(term, Term) for term in line.right) == 1:
            self._gradients.add(line.name)
            return False
        self._gradients -= read
        return attends


def direct(term: Term) -> tuple[str, ...]:
    """Return the axes of a term without those of index arrays, but with those of affine indices."""
    axes = (
        (() if isinstance(axis.at, Term) else axis.at.loops) if isinstance(axis, Read) else (axis,)
        for axis in term.axes
    )
    return tuple(dict.fromkeys(chain.from_iterable(axes)))


@lru_cache(maxsize=4096)
def _matrix_maccs(left: _Factor, right: tuple[_Factor, ...]) -> Polynomial:
    factors = list(right)
    count = ZERO
    while len(factors) > 1:
        (first, rows), (second, columns), *rest = factors
        later = {axis for loops, _ in rest for axis in loops}
        if sides(rows, columns, later.union(left[1])).are_of_matrices:
            count += Polynomial.of(dict.fromkeys((*first, *second)))
        remaining = later.union(left[0])
        factors = [(_among((*first, *second), remaining), _among((*rows, *columns), remaining)), *rest]
    return count


def _among(axes: Iterable[str], remaining: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for axis in axes if axis in remaining))
