"""The exact quantities that rules of thumb are compared with, computed from priced tables."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cached_property

from learncost.cost_models import PricedLine
from learncost.cost_models.books import book as find_book
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Product
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, total
from learncost.ir.term import Term
from learncost.layers.products import matrix_maccs
from learncost.models.purposes import weighs_tokens
from learncost.reports.run import PreparedRun


@dataclass(frozen=True)
class BlockMeasure:
    """The blocks of one repeat: the size that says how often it runs, what a block is called, its tokens' axis.

    `number` is how many blocks all iterations have, and `kinds` how many one has. A count of a block is the
    mean of them.
    """

    count: str
    title: str
    axis: str
    number: int
    kinds: int


@dataclass(frozen=True)
class Measures:
    """Exact numbers of one model at the sizes of one step."""

    run: PreparedRun

    @cached_property
    def blocks(self) -> tuple[BlockMeasure, ...]:
        """The blocks that the model has, a repeat each: those of an encoder before those of a decoder."""
        result: list[BlockMeasure] = []
        repeats = self.run.model.table.repeats
        for repeat in repeats:
            softmaxes = [(line, nest.counts) for line, nest in walk([repeat]) if weighs_tokens(line)]
            kinds, number = len(softmaxes), self.at(total(Polynomial.of(iterations) for _, iterations in softmaxes))
            if not kinds:
                continue
            side = softmaxes[0][0].meta.block if self.run.model.two_sided else ""
            first = sum(block.number for block in result if block.title.startswith(side or "block"))
            title = f"{side} block".strip()
            if len(repeats) > (2 if side else 1):
                title += f" {first}" if number == 1 else f"s {first} to {first + number - 1}"
            title += f", the mean of {kinds} kinds" if kinds > 1 else ""
            result.append(BlockMeasure(repeat.count, title, "N" if side == "encoder" else "M", number, kinds))
        return tuple(result)

    def rows(self, procedure: str, book: str) -> tuple[PricedLine, ...]:
        """Return the priced lines of one step."""
        return self.run.rows(procedure, find_book(book))

    def at(self, count: Polynomial) -> int:
        """Return a polynomial at the sizes of the step."""
        return int(count.at(self.run.axes))

    def flops(
        self,
        procedure: str,
        book: str,
        keep: Callable[[PricedLine], bool] = lambda row: True,
        block: BlockMeasure | None = None,
    ) -> int | Fraction:
        """FLOPs of one step, of the lines that are kept; with `block`, of one block of those."""
        return self._sum(procedure, book, keep, block, maccs=False)

    def maccs(
        self,
        procedure: str,
        book: str,
        keep: Callable[[PricedLine], bool] = lambda row: True,
        block: BlockMeasure | None = None,
    ) -> int | Fraction:
        """MACCs likewise."""
        return self._sum(procedure, book, keep, block, maccs=True)

    def _sum(
        self, procedure: str, book: str, keep: Callable[[PricedLine], bool], block: BlockMeasure | None, maccs: bool
    ) -> int | Fraction:
        rows = [row for row in self.rows(procedure, book) if keep(row) and (block is None or inside(row, block))]
        value = self.at(total(row.maccs if maccs else row.flops for row in rows))
        return value if block is None else _mean(value, block.number)

    @cached_property
    def parameters(self) -> int:
        """The number of trained parameters, tied weights once."""
        return self.at(self.run.model.parameters)

    def block_parameters(self, block: BlockMeasure) -> tuple[int | Fraction, int | Fraction]:
        """Return the parameters that one block reads, shared ones too: those of its matrices, and all."""
        table = self.run.model.table
        (repeat,) = (line for line in table.repeats if line.count == block.count)
        iterations = {count for _, nest in walk([repeat]) for count in nest.counts}
        lines = [line for line, _ in walk([repeat])]
        read = {name for line in lines for name in line.reads}
        weights = [name for name in table.weights if name in read or block.count in table.axes[name]]
        each = {
            name: self.at(Polynomial.of(axis for axis in table.axes[name] if axis not in iterations))
            for name in weights
        }
        multiplied = {name for line in lines if isinstance(line, Product) and matrix_maccs(line) for name in line.reads}
        matrices = sum(size for name, size in each.items() if name in multiplied)
        return _mean(matrices, block.kinds), _mean(sum(each.values()), block.kinds)

    @cached_property
    def additions(self) -> tuple[int, int]:
        """The matrix products of the forward pass: their multiplications, and their additions, one less a sum."""
        multiplied, results = Polynomial(), Polynomial()
        for line, nest in walk(self.run.model.table.lines):
            if isinstance(line, Product) and (maccs := matrix_maccs(line)):
                left = line.left[0]
                assert isinstance(left, Term)
                multiplied += maccs * Polynomial.of(nest.counts)
                results += Polynomial.of((*left.loops, *nest.counts))
        return self.at(multiplied), self.at(multiplied) - self.at(results)

    def overtaking(self, block: BlockMeasure | None = None) -> Fraction | None:
        """Return the length at which products quadratic in it cost as much as those linear in it.

        With an encoder and a decoder both lengths are this one. None where nothing grows with the square.
        """
        sums = {1: 0, 2: 0}
        for row in self.rows("bp", "matmul"):
            if row.macro_operation != "forward" or (block is not None and not inside(row, block)):
                continue
            for monomial, coefficient in row.flops.rename({"N": "M"}).terms.items():
                power = monomial.count("M")  # 0 where a product is made once a sequence, as in a pooler
                rest = Polynomial({tuple(name for name in monomial if name != "M"): coefficient})
                sums[power] = sums.get(power, 0) + self.at(rest)
        return Fraction(sums[1], sums[2]) if sums[2] else None


def _mean(value: int, number: int) -> int | Fraction:
    mean = Fraction(value, number)
    return int(mean) if mean.denominator == 1 else mean


def inside(row: PricedLine, block: BlockMeasure) -> bool:
    """Return whether a line is in the blocks of a kind."""
    return block.count in row.repeat.sizes


def forward(row: PricedLine) -> bool:
    """Return whether a line is of the forward pass."""
    return row.macro_operation == "forward"


def backward(row: PricedLine) -> bool:
    """Return whether a line is of the backward pass or the weight updates."""
    return row.macro_operation in ("backward", "weight_update")
