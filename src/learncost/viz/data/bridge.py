"""The difference between two conventions for one step, item by item without remainder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from learncost.ir.dataclass import Key, Serializable, dataclass, made_of
from learncost.ir.errors import InputError, named_one
from learncost.reports.conventions import REFERENCE_CONVENTION, Conventions

SMALL = 0.004
"""Items below this share of what the drawing reaches over are drawn together."""

CUT = 0.15
"""The share of the largest number below which differences are drawn with bars that do not begin at 0."""


@dataclass(frozen=True)
class Item:
    """A term that one convention has and the other has not, or has otherwise: more is positive."""

    what: str
    amount: int


@dataclass(frozen=True)
class BridgeBar:
    """A convention's number, as a multiple of that of matrix products alone."""

    price_book: str
    title: str
    source: str
    amount: int
    ratio: float | None


@dataclass(frozen=True)
class Bridge(Serializable):
    """The numbers of all price books, and the way from one of them to another.

    model, batch_size, seq_len, target_len  what step it is: one of backpropagation, its optimizer left aside
    start, end  the FLOPs of two books; the items sum to their difference
    items  from the largest to the smallest, what the one has more or less than the other
    bars  every convention that knows the model
    refused  why others say nothing of it, by name
    """

    model: str
    batch_size: int
    seq_len: int
    target_len: int | None
    start: BridgeBar
    end: BridgeBar
    items: tuple[Item, ...]
    bars: tuple[BridgeBar, ...]
    refused: dict[str, str]
    letters: str = ""  # of a run of a table: its sizes as the table calls them

    @property
    @Key(after="drawn")
    def reach(self) -> tuple[int, int]:
        """From and to where the bars are drawn: from 0, or where the difference is small from close below it."""
        levels = list(accumulate((item.amount for item in self.items), initial=self.start.amount))
        low, high = min(levels), max(levels)
        return (max(0, low - (high - low) // 4), high) if high - low < CUT * high else (0, high)

    @property
    @Key()
    def drawn(self) -> tuple[Item, ...]:
        """The items with the small ones together."""
        low, high = self.reach
        small = [item for item in self.items if abs(item.amount) < SMALL * (high - low)]
        if len(small) < 2:
            return self.items
        rest = Item(f"{len(small)} smaller ones", sum(item.amount for item in small))
        return (*(item for item in self.items if item not in small), rest)

    @property
    def finding(self) -> str:
        """The finding of the picture in one sentence."""
        if not self.items:
            return f"{self.end.price_book} and {self.start.price_book} give the same count"
        ratio = self.end.amount / self.start.amount if self.start.amount else 0.0
        return f"{self.end.price_book} gives {ratio:.3f} times the count of {self.start.price_book}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for the start, each item, and the end."""
        yield {"what": self.start.price_book, "kind": "total", "flops": self.start.amount}
        for item in self.items:
            yield {"what": item.what, "kind": "difference", "flops": item.amount}
        yield {"what": self.end.price_book, "kind": "total", "flops": self.end.amount}


def bridge(answer: Conventions, start: str = REFERENCE_CONVENTION, end: str = "run") -> Bridge:
    """Return the differences between the numbers of two price books, of an answer of `lc.conventions`.

    Raises `InputError` for a book that does not know the model, and for names that are not known.
    """
    books = {each.book.name: each for each in answer.conventions}
    named_one("price book", start, books)
    named_one("price book", end, books)
    bars = {
        name: BridgeBar(name, each.book.title, each.book.source, each.counts.whole.flops, answer.ratio(name))
        for name, each in books.items()
        if each.counts is not None
    }
    for name in (start, end):
        if name not in bars:
            raise InputError(f"price book {name} has no number of {answer.model}: {books[name].refused}")
    amounts: dict[str, int] = {}
    for name, sign in ((start, -1), (end, 1)):
        for reason in books[name].reasons:
            amounts[reason.what] = amounts.get(reason.what, 0) + sign * reason.amount.whole.flops
    items = [Item(item, amount) for item, amount in amounts.items() if amount]
    return made_of(
        Bridge,
        answer,
        start=bars[start],
        end=bars[end],
        items=tuple(sorted(items, key=lambda item: -abs(item.amount))),
        bars=tuple(bars.values()),
        refused={name: convention.refused for name, convention in books.items() if convention.counts is None},
    )
