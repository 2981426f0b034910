"""Comparison of the operations that an engine executed with the price of its table, line by line."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from learncost.cost_models import PricedLine, price
from learncost.cost_models.books import book
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import Product
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, size_of
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.layers.products import skipping
from learncost.verification.report import Check

BLOCKS = replace(book("matmul"), name="blocks", causal="blocks")
"""Matrix products, causal attention at the blocks that kernels take; a table without kernels costs the same by both."""


@dataclass
class ExecutedLine:
    """The executed operations of a line.

    products   calls of a library
    maccs      m n k of these
    elements   of results that were written to memory
    """

    products: int = 0
    maccs: int = 0
    elements: int = 0


class ExecutedLines:
    """The lines of a table in order, the price of each, and its executed operations.

    sizes    of all axes and counts
    written  the results that are stored in memory, each with the number of its line; None: elements are not compared
    unseen   the numbers of the products that a kernel computes in inner loops without a result
    """

    def __init__(self, table: Table, sizes: Mapping[str, int]) -> None:
        self.lines = tuple(line for line, _ in walk(table.lines))
        self.rows = price(table, sizes, BLOCKS).rows
        self._whole = price(table, sizes, book("matmul")).rows
        self._few = skipping(table.lines, table.outputs)
        self._sizes = sizes
        self.ran = tuple(ExecutedLine() for _ in self.lines)
        self.written: set[tuple[int, str]] | None = None
        self.unseen: set[int] = set()

    def maccs(self, at: int, unskipped: bool = False) -> int:
        """Return the priced MACCs of a line in all iterations."""
        return int((self._whole if unskipped else self.rows)[at].maccs.at(self._sizes))

    def skips(self, at: int) -> bool:
        """Return whether a line's kernel skips pairs of positions."""
        line = self.lines[at]
        return line.meta.kernel is not None and (line.meta.kernel.name, line.name) in self._few

    def elements(self, at: int) -> int:
        """Return the stored elements of a line's results, in all iterations."""
        stored = [term for term in self.lines[at].left if (at, term.name) in (self.written or ())]
        counts = (Polynomial.of(term.declared) * self.rows[at].repeat for term in stored)
        return sum(int(count.at(self._sizes)) for count in counts)

    def iterations(self, count: str) -> int:
        """Return the number of iterations of a loop."""
        return int(size_of(count, self._sizes))

    def checks(self, subject: str) -> Iterator[Check]:
        """Yield one comparison for each macro-operation, in order of their first lines."""
        parts: dict[str, list[int]] = {}
        for at, row in enumerate(self.rows):
            parts.setdefault(row.macro_operation, []).append(at)
        for phase, lines in parts.items():
            yield self._check(subject, phase.replace("_", " "), lines)

    def _check(self, subject: str, phase: str, lines: Sequence[int]) -> Check:
        ran = sum(self.ran[at].maccs for at in lines)
        seen = [at for at in lines if at not in self.unseen]
        priced, unskipped = (sum(self.maccs(at, dense) for at in seen) for dense in (False, True))
        in_loops = sum(self.maccs(at) for at in lines if at in self.unseen)
        text = f"{sum(self.ran[at].products for at in lines):,} products of {ran:,} MACCs executed, {priced:,} priced"
        text += f" ({unskipped:,} with what blocks skip)" if unskipped != priced else ""
        text += f"; {in_loops:,} more are priced in loops of kernels, which cannot be watched" if in_loops else ""
        if self.written is not None:
            written, results = sum(self.ran[at].elements for at in lines), sum(self.elements(at) for at in lines)
            text += f"; {written:,} elements written, {results:,} priced"
        wrong = next((difference for at in lines if (difference := self._difference(at))), "")
        return Check(subject, f"{phase} executed with priced, line by line", f"{text}: {wrong or 'equal'}", not wrong)

    def _difference(self, at: int) -> str:
        """Return the mismatch of a line, or ""."""
        ran, priced = self.ran[at], 0 if at in self.unseen else self.maccs(at)
        if ran.maccs != priced:
            return f"{ran.maccs:,} MACCs executed, {priced:,} priced, of {_shown(self.rows[at])}"
        if self.written is not None and ran.elements != self.elements(at):
            return f"{ran.elements:,} elements written, {self.elements(at):,} priced, of {_shown(self.rows[at])}"
        return ""


def _shown(row: PricedLine) -> str:
    return f"{row.layer}: {row.text}" if row.layer else row.text


def places(executed: Sequence[Hashable], expected: Sequence[Hashable]) -> list[int]:
    """Return the index of the expected item for each executed one; an unexpected one has an equal neighbour's."""
    if list(executed) == list(expected):
        return list(range(len(expected)))
    matched: list[int] = []
    matcher = SequenceMatcher(None, expected, executed, autojunk=False)
    for _, start, end, first, last in matcher.get_opcodes():
        for i, mark in enumerate(executed[first:last], start):
            near = (i, end - 1) if start < end else (start, start - 1)
            inside = [at for at in near if 0 <= at < len(expected) and (start == end or at < end)]
            matched.append(next((at for at in inside if expected[at] == mark), inside[-1]))
    return matched


def factors(line: Product) -> tuple[Term, ...]:
    """Return the arrays that a product multiplies."""
    return tuple(term for term in line.right if isinstance(term, Term))
