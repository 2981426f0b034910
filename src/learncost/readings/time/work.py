"""What runs at once: priced lines put together as kernels or operators, with their products, points and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from learncost.equation.count import Count, size_of
from learncost.equation.precision import BYTES
from learncost.equation.sides import sides
from learncost.equation.table import Line, Literal, Sum, Term, Word, alias, terms_of
from learncost.layers.lower import lower_line
from learncost.layers.products import direct
from learncost.schedule.groups import groups, in_kernels, in_operators, is_bias, is_matrix, leaving, of_norm


class Priced(Protocol):
    """What is read of a priced line."""

    @property
    def repeat(self) -> Count:
        """How often it runs in a step."""

    @property
    def source(self) -> Line | str:
        """The line."""


@dataclass(frozen=True)
class MatrixProduct:
    """`batch` products of matrices m x k and k x n; in `orientation` a T is a factor that lies the other way round."""

    batch: int
    m: int
    n: int
    k: int
    orientation: str = "NN"

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def turned(self) -> tuple[bool, bool]:
        """Which of the factors lie in memory the other way round."""
        return self.orientation[0] == "T", self.orientation[1] == "T"

    def __str__(self) -> str:
        """Such as `72 × (64 × 256)ᵀ (256 × 256)`: a factor with a ᵀ lies in memory the other way round."""
        times = f"{self.batch:,} × " if self.batch > 1 else ""
        first_mark, two = ("ᵀ" if turned else "" for turned in self.turned)
        return f"{times}({self.m:,} × {self.k:,}){first_mark} ({self.k:,} × {self.n:,}){two}"


@dataclass(frozen=True)
class Work:
    """Lines that run at once: one kernel, one product, one operator. All numbers are of one turn.

    rows      the places of its lines among the priced ones; `main`, of the one with the most operations
    turns     how often it runs in a step
    products  its matrix products; `share` of them and of the points lies inside of what is visible
    points    how often each word or primitive is computed
    bytes     of each array that it reads or writes whole, by name
    made      bytes of those of them that it makes
    together  how many turns of a kernel can run at once; 0: it is no kernel
    """

    rows: tuple[int, ...]
    main: int
    turns: int
    macro: str
    products: tuple[MatrixProduct, ...]
    points: Mapping[str, int]
    bytes: Mapping[str, int]
    result_bytes: Mapping[str, int] = field(default_factory=dict)
    share: float = 1.0
    together: int = 0


def works(
    rows: Sequence[Priced], sizes: Mapping[str, int], dtype: str, operators: bool, words: Iterable[str] = ()
) -> Iterator[Work]:
    """The works of a step in order; rows without a line, and other names of the same array, are none.

    operators  put lines together as PyTorch's operators do: a bias with the product before it, a norm's lines; else
               only those of one kernel run at once
    words      those whose time is known as a whole; others count by the primitives of their bodies
    """
    word_names = frozenset(words)
    several = list(_groups(rows, operators))
    names = leaving([[line for _, line in group] for group in several])
    for group, leaves in zip(several, names, strict=True):
        first = group[0][1]
        of_lines = [_operations(line, group, sizes, word_names, operators) for _, line in group]
        matrix = tuple(product for products, _ in of_lines for product in products)
        points: Counter[str] = sum((line_points for _, line_points in of_lines), Counter())
        weights = [
            sum(product.flops for product in products) + sum(line_points.values()) for products, line_points in of_lines
        ]
        lines = [line for _, line in group]
        bits = _packed(lines, 8 * BYTES[dtype])
        moved = {
            name: elements * bits.get(name, 8 * BYTES[dtype]) // 8
            for name, elements in _arrays(lines, leaves, sizes).items()
        }
        bytes_made = {term.name: _size_of(term, sizes) * BYTES[dtype] for line in lines for term in line.left}
        share, together = 1.0, 0
        if kernel := first.tag.kernel:
            together = prod(_size(axis, sizes) for axis in kernel.axes)
            if kernel.blocks:
                matrix, share = _in_blocks(matrix, group, kernel.blocks, sizes)
        yield Work(
            rows=tuple(place for place, _ in group),
            main=group[weights.index(max(weights))][0],
            turns=int(rows[group[0][0]].repeat.at(sizes)),
            macro=first.tag.macro,
            products=matrix,
            points=points,
            bytes=moved,
            result_bytes={name: size for name, size in bytes_made.items() if name in leaves},
            share=share,
            together=together,
        )


_Numbered = tuple[int, Line]


def _groups(rows: Sequence[Priced], operators: bool) -> Iterator[list[_Numbered]]:
    numbered = [(n, row.source) for n, row in enumerate(rows) if isinstance(row.source, Line) and not alias(row.source)]
    rule = in_operators if operators else in_kernels

    def together(group: Sequence[_Numbered], item: _Numbered) -> bool:
        number, line = item
        return rule([member for _, member in group], line) and rows[number].repeat == rows[group[0][0]].repeat

    return groups(numbered, together)


def _size(axis: str, sizes: Mapping[str, int]) -> int:
    return int(size_of(axis, sizes))


def matrix_product(line: Line, sizes: Mapping[str, int]) -> MatrixProduct:
    """A line's product of matrices by its axes: what both factors have is summed or a batch.

    Weights read at an index, as those of experts, count as one matrix for all.
    """
    left, right = (term for term in line.right if isinstance(term, Term) and term.axes)
    last_axis = next(
        (axis for axis in reversed(direct(line.left[0])) if (axis in left.loops) != (axis in right.loops)), ""
    )
    if last_axis in left.loops:  # columns are what the result has last
        left, right = right, left
    axes = sides(direct(left), direct(right), line.left[0].loops)
    # The axes of an index are rows, or columns, of what it chooses.
    rows, columns = {*left.loops} - {*direct(right)}, {*right.loops} - {*left.loops}
    summed = {*axes.summed}

    def last(term: Term, side: set[str]) -> int:
        return max((place for place, axis in enumerate(term.loops) if axis in side), default=-1)

    turned = last(left, summed) < last(left, rows), last(right, summed) > last(right, columns)
    orientation = "TN" if turned[0] else "NT" if turned[1] else "NN"
    b, m, n, k = (prod(_size(axis, sizes) for axis in axes) for axes in (axes.batch, rows, columns, summed))
    if turned == (True, True):  # the transposed product of the other factors is the same work
        m, n, orientation = n, m, "NN"
    return MatrixProduct(b, m, n, k, orientation)


def _in_blocks(
    products: tuple[MatrixProduct, ...], group: list[_Numbered], blocks: tuple[str, int], sizes: Mapping[str, int]
) -> tuple[tuple[MatrixProduct, ...], float]:
    """The products as blocks of queries do them, and the share of the keys that the blocks see."""
    axis, most = blocks
    queries = _size(axis, sizes)
    rows = min(most, queries)
    conditions = [condition for _, line in group for condition in line.where if condition.ordered]
    share = 1.0
    if conditions:
        share = (queries + rows) / (2 * queries)  # the mean over the blocks of the keys up to a block's last query
        if windows := [_size(c.window, sizes) for c in conditions if c.window]:
            share = min(share, (max(windows) + rows) / queries)
    turns = max(1, queries // rows)
    cut = []
    for product in products:
        m, n, k = product.m, product.n, product.k
        # The axis of the queries is the one that is cut: rows of the scores, of what they are multiplied with, or sums.
        if m == queries:
            m = rows
        elif k == queries:
            k = rows
        else:
            n = min(n, rows)
        cut.append(MatrixProduct(product.batch * turns, m, n, k, product.orientation))
    return tuple(cut), share


def _operations(
    line: Line, group: list[_Numbered], sizes: Mapping[str, int], word_names: frozenset[str], operators: bool
) -> tuple[tuple[MatrixProduct, ...], Counter[str]]:
    """The matrix product of a line, or its points; of what an operator takes along with a product or a norm, none."""
    if is_matrix(line):
        return (matrix_product(line, sizes),), Counter()
    if operators and (is_bias(line, group[0][1]) or _belongs_to_norm(line, group)):
        return (), Counter()
    return (), _points(line, sizes, word_names)


def _belongs_to_norm(line: Line, group: list[_Numbered]) -> bool:
    """Whether a word in the group is the whole of an operator that this line is a part of."""
    return of_norm(line) and not isinstance(line, Word) and any(isinstance(member, Word) for _, member in group)


def _points(line: Line, sizes: Mapping[str, int], word_names: frozenset[str]) -> Counter[str]:
    """How often each known word or primitive of a line is computed."""
    if isinstance(line, Word):
        name = f"{line.word}'" if line.part == "gradient" else line.word
        if name in word_names:
            return Counter({name: _loops(line, sizes)})
    counts: Counter[str] = Counter()
    for primitive in lower_line(line):
        if all(isinstance(term, Literal) for term in primitive.right):
            continue
        size = _loops(primitive, sizes)
        if isinstance(primitive, Word):
            counts[primitive.word] += size
        elif isinstance(primitive, Sum):
            counts["add"] += size * (len(primitive.right) - 1)
        elif not set(primitive.left[0].loops).issuperset(primitive.loops):
            counts["sum"] += size
            counts["multiply"] += size * (len(primitive.right) - 1)
        else:
            counts["multiply"] += size * (len(primitive.right) - 1)
    return counts


def _loops(line: Line, sizes: Mapping[str, int]) -> int:
    return prod(_size(axis, sizes) for axis in line.loops)


def _packed(lines: Iterable[Line], bits: int) -> dict[str, int]:
    """Bits of an element of what has another type than the run: codes and scales of weights."""
    if not any(line.tag.types for line in lines):
        return {}
    from learncost.layers.rewrite_quantized import bits_of  # only where weights are quantized

    return {name: width for line in lines for name, width in bits_of(line, bits).items()}


def _arrays(lines: Sequence[Line], leaves: set[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Elements of every array that enters or leaves."""
    makes = {term.name for line in lines for term in line.left}
    elements: dict[str, int] = {}
    for line in lines:
        for operand in line.right:
            for term in terms_of(operand):
                if term.name not in makes:
                    elements[term.name] = max(elements.get(term.name, 0), prod(_size(a, sizes) for a in term.loops))
        for term in line.left:
            if term.name in leaves:
                count = _size_of(term, sizes) * (2 if term.indexed else 1)  # filled with zeros before
                elements[term.name] = max(elements.get(term.name, 0), count)
    return elements


def _size_of(term: Term, sizes: Mapping[str, int]) -> int:
    return prod(_size(axis, sizes) for axis in term.declared)
