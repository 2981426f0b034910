"""How rules of thumb are shown: a block a rule that fits its width, and flat tables for Markdown, CSV and HTML."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from learncost.ledger.sheet import WIDTH, Row, Sheet, number, rounded, styled

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from learncost.ledger.thumbs import Case, Number, Rule, Rules

_COLUMNS = ("subject", "rule", "exact", "error")
_NUMBERS = (15, 15, 10)  # the widths of the columns of numbers


class RulesTable:
    """The renderable of rich."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from styled(_lines(self.rules, min(options.max_width, 100)))


def rules_table(rules: Rules) -> RulesTable:
    """The rules for rich."""
    return RulesTable(rules)


def as_text(rules: Rules, width: int = WIDTH) -> str:
    """The rules as plain text."""
    return "\n".join(line for line, _ in _lines(rules, width))


def as_markdown(rules: Rules) -> str:
    """A heading and a table a rule."""
    parts = [f"**{title(rules)}**"]
    for rule in rules.rules:
        parts.append(f"### {rule.thumb.title[0].upper()}{rule.thumb.title[1:]}: `{rule.thumb.formula}`")
        parts.append(_table(rule).markdown().split("\n\n", 1)[1])
        parts.append(f"{rule.thumb.because}\n\nSource: {rule.thumb.source}.")
    return "\n\n".join(parts)


def as_html(rules: Rules) -> str:
    """The rules as self-contained HTML."""
    return "".join(_table(rule).html() for rule in rules.rules)


def as_csv(rules: Rules) -> str:
    """A row a case; numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("key", "formula", "subject", "price_book", "rule", "exact", "relative_error", "source"))
    for rule in rules.to_dict()["rules"]:
        for case in rule["cases"]:
            own = [case[name] for name in ("subject", "price_book", "rule", "exact", "relative_error")]
            writer.writerow((rule["key"], rule["formula"], *own, rule["source"]))
    return text.getvalue()


def title(rules: Rules) -> str:
    """What all numbers are about."""
    lengths = f"seq_len {number(rules.seq_len)}"
    if rules.target_len is not None:
        lengths += f", target_len {number(rules.target_len)}"
    return (
        f"Rules of thumb for {rules.model}: {number(rules.parameters)} parameters, batch_size "
        f"{number(rules.batch_size)}, {lengths}, {number(rules.tokens)} tokens; 1 MACC = 2 FLOPs; error = rule / exact "
        "- 1"
    )


def _lines(rules: Rules, width: int) -> Iterator[tuple[str, str]]:
    for line in textwrap.wrap(title(rules), width):
        yield line, "bold"
    for rule in rules.rules:
        yield "", ""
        yield from _block(rule, width)


def _block(rule: Rule, width: int) -> Iterator[tuple[str, str]]:
    heading = rule.thumb.title[0].upper() + rule.thumb.title[1:]
    for line in textwrap.wrap(heading, width):
        yield line, "bold"
    letters = ", ".join(f"{letter} {meaning}" for letter, meaning in rule.thumb.letters.items())
    formula = f"{rule.thumb.formula}   ({letters})" if letters else rule.thumb.formula
    for line in textwrap.wrap(formula, width - 2, break_on_hyphens=False):
        yield f"  {line}", ""
    first = width - sum(_NUMBERS) - 2 * len(_NUMBERS)
    yield _cells(("", *_COLUMNS[1:]), first), "dim"
    for case in rule.cases:
        for i, line in enumerate(textwrap.wrap(_subject(case), first - 2)):
            numbers = (_number(case.rule), _number(case.exact), percent(case.error)) if i == 0 else ("", "", "")
            yield _cells((f"  {line}", *numbers), first), ""
        for part in case.parts:
            yield from _part(part.what, percent(float(Fraction(part.amount) / Fraction(case.exact))), width)
    for text in (rule.thumb.because, f"Source: {rule.thumb.source}."):
        for line in textwrap.wrap(text, width - 2, break_on_hyphens=False):
            yield f"  {line}", "dim"


def _part(what: str, share: str, width: int) -> Iterator[tuple[str, str]]:
    first = width - _NUMBERS[-1] - 2
    for i, line in enumerate(textwrap.wrap(what, first - 6)):
        yield (
            f"{'    - ' if i == 0 else '      '}{line}".ljust(first + 2)
            + (share if i == 0 else "").rjust(_NUMBERS[-1]),
            "",
        )


def _cells(cells: tuple[str, ...], first: int) -> str:
    numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells[1:], _NUMBERS, strict=True))
    return f"{cells[0]:<{first}}{numbers}".rstrip()


def _subject(case: Case) -> str:
    return f"{case.subject} ({case.price_book})" if case.price_book else case.subject


def _table(rule: Rule) -> Sheet:
    rows = []
    for case in rule.cases:
        rows.append(Row((_subject(case), _whole(case.rule), _whole(case.exact), percent(case.error))))
        for part in case.parts:
            share = percent(float(Fraction(part.amount) / Fraction(case.exact)))
            rows.append(Row((part.what, _whole(part.amount), "", share), depth=1))
    return Sheet(rule.thumb.title, _COLUMNS, tuple(rows), (rule.thumb.because, f"Source: {rule.thumb.source}."))


def _number(value: Number) -> str:
    if value == int(value):
        whole = int(value)
        return number(whole) if abs(whole) < 10**12 else rounded(whole)
    return f"{float(value):,.5g}" if abs(float(value)) < 10**4 else f"{float(value):,.1f}"


def _whole(value: Number) -> str:
    return number(int(value)) if value == int(value) else f"{float(value):.6g}"


def percent(share: float) -> str:
    """A signed share: "0" where it is nothing, tiny ones in powers of ten, huge ones as a factor."""
    if share == 0:
        return "0"
    if abs(share) >= 10:
        return f"{share:+.3g} x"
    if abs(share) < 5e-5:
        return f"{share * 100:+.1e} %"
    return f"{share * 100:+.2f} %"
