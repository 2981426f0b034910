"""What rules of thumb are held against: exact quantities, read off priced tables and never typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from learncost.books.book import book as find_book
from learncost.equation.count import Count, total
from learncost.equation.table import Product, Term, walk
from learncost.layers.products import matrix_maccs
from learncost.ledger.cost import Run
from learncost.readings.price import Row

COUNTS = {"n_layer": "", "n_enc": "encoder ", "n_dec": "decoder "}  # of repeats, and what a block of one is called


@dataclass(frozen=True)
class Block:
    """One kind of block: the count of its repeat, what it is called, the axis of its tokens."""

    count: str
    title: str
    axis: str


@dataclass(frozen=True)
class Measures:
    """Exact numbers of one model at the sizes of one step."""

    run: Run

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The kinds of block that the model has."""
        counts = [count for count in COUNTS if any(count in turns for _, turns in walk(self.run.model.table.lines))]
        return tuple(Block(count, f"{COUNTS[count]}block", "N" if count == "n_enc" else "M") for count in counts)

    def rows(self, procedure: str, book: str) -> tuple[Row, ...]:
        """The priced lines of one step."""
        return self.run.rows(procedure, find_book(book))

    def at(self, count: Count) -> int:
        """A polynomial at the sizes of the step."""
        return int(count.at(self.run.axes))

    def flops(
        self, procedure: str, book: str, keep: Callable[[Row], bool] = lambda row: True, block: Block | None = None
    ) -> int:
        """FLOPs of one step, of the lines that are kept; with `block`, of one block of that kind."""
        return self._sum(procedure, book, keep, block, maccs=False)

    def maccs(
        self, procedure: str, book: str, keep: Callable[[Row], bool] = lambda row: True, block: Block | None = None
    ) -> int:
        """MACCs likewise."""
        return self._sum(procedure, book, keep, block, maccs=True)

    def _sum(self, procedure: str, book: str, keep: Callable[[Row], bool], block: Block | None, maccs: bool) -> int:
        rows = [row for row in self.rows(procedure, book) if keep(row) and (block is None or inside(row, block))]
        value = self.at(total(row.maccs if maccs else row.flops for row in rows))
        return value if block is None else value // self.run.axes[block.count]

    @cached_property
    def parameters(self) -> int:
        """What is trained, tied weights once."""
        return self.at(self.run.model.parameters)

    def block_parameters(self, block: Block) -> tuple[int, int]:
        """The parameters of one block: those of its matrices, and all."""
        table = self.run.model.table
        own = [name for name in table.weights if block.count in table.axes[name]]
        products = [line for line, _ in walk(table.lines) if isinstance(line, Product) and matrix_maccs(line)]
        read = {name for line in products for name in line.reads}
        each = {name: self.at(Count.of(table.axes[name])) // self.run.axes[block.count] for name in own}
        return sum(size for name, size in each.items() if name in read), sum(each.values())

    @cached_property
    def additions(self) -> tuple[int, int]:
        """The matrix products of the forward pass: their multiplications, and their additions, one less a sum."""
        multiplied, results = Count(), Count()
        for line, turns in walk(self.run.model.table.lines):
            if isinstance(line, Product) and (maccs := matrix_maccs(line)):
                left = line.left[0]
                assert isinstance(left, Term)
                multiplied += maccs * Count.of(turns)
                results += Count.of((*left.loops, *turns))
        return self.at(multiplied), self.at(multiplied) - self.at(results)

    def overtaking(self, block: Block | None = None) -> Fraction:
        """The length at which the products that grow with its square cost as much as those that grow with it.

        With an encoder and a decoder both lengths are this one.
        """
        sums = {1: 0, 2: 0}
        for row in self.rows("bp", "matmul"):
            if row.macro_operation != "forward" or (block is not None and not inside(row, block)):
                continue
            for monomial, coefficient in row.flops.rename({"N": "M"}).terms.items():
                power = monomial.count("M")  # 0 where a product is made once a sequence, as in a pooler
                rest = Count({tuple(name for name in monomial if name != "M"): coefficient})
                sums[power] = sums.get(power, 0) + self.at(rest)
        return Fraction(sums[1], sums[2])


def inside(row: Row, block: Block) -> bool:
    """Whether a line is in the blocks of a kind."""
    return block.count in row.repeat.sizes


def forward(row: Row) -> bool:
    """Whether a line is of the forward pass."""
    return row.macro_operation == "forward"


def backward(row: Row) -> bool:
    """Whether a line is of what backpropagation adds to it: the backward pass and the weights' updates."""
    return row.macro_operation in ("backward", "weight_update")
