"""Display of rules of thumb: a table per rule, with the exact values in its rows and the parts of its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from learncost.reports.sheet import WIDTH, Sheet, SheetRow, batch_text, number, rounded

if TYPE_CHECKING:
    from learncost.reports.rules_of_thumb import Number, Rule, Rules


def sheets(rules: Rules, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Return the title of all rules and a sheet of each; numbers are rounded where the columns are few."""
    written = _whole if width > 2 * WIDTH else _number
    return Sheet(title(rules), (), ()), *(_table(rule, written) for rule in rules.rules)


def records(rules: Rules) -> Iterator[dict[str, Any]]:
    """Return a row for each case, with full numbers."""
    for rule in rules.to_dict()["rules"]:
        for case in rule["cases"]:
            fields = {name: case[name] for name in ("subject", "price_book", "rule", "exact", "relative_error")}
            yield {"key": rule["key"], "formula": rule["formula"], **fields, "source": rule["source"]}


def title(rules: Rules) -> str:
    """Return the title of the rules: the model, its parameters, the batch and the lengths."""
    batch = batch_text(rules.batch_size, rules.seq_len, rules.target_len, length_note=rules._length_note)
    of_step = rules.batch_size * (rules.target_len or rules.seq_len)
    run = "" if rules.tokens == of_step else f", {rules.tokens:,} tokens in all"
    return (
        f"{rules.model}, rules of thumb: {batch}{run}; "
        f"{rules.parameters:,} parameters; 1 MACC = 2 FLOPs; error = rule / exact - 1"
    )


def _table(rule: Rule, written: Callable[[Number], str]) -> Sheet:
    rows = []
    for case in rule.cases:
        subject = f"{case.subject} ({case.price_book})" if case.price_book else case.subject
        rows.append(SheetRow((subject, written(case.rule), written(case.exact), percent(case.error))))
        for part in case.parts:
            share = percent(float(Fraction(part.amount) / Fraction(case.exact)))
            rows.append(SheetRow((part.what, written(part.amount), "", share), depth=1))
    thumb = rule.thumb
    letters = ", ".join(f"{letter} {meaning}" for letter, meaning in thumb.letters.items())
    formula = f"{thumb.formula}   ({letters})" if letters else thumb.formula
    heading = thumb.title[0].upper() + thumb.title[1:]
    notes = (thumb.because, f"Source: {thumb.source}.")
    return Sheet(heading, ("", "rule", "exact", "error"), tuple(rows), notes, answer=formula)


def _number(value: Number) -> str:
    if value == int(value):
        rounded_down = int(value)
        return number(rounded_down) if abs(rounded_down) < 10**12 else rounded(rounded_down)
    return f"{float(value):,.5g}" if abs(float(value)) < 10**4 else f"{float(value):,.1f}"


def _whole(value: Number) -> str:
    return number(int(value)) if value == int(value) else f"{float(value):.6g}"


def percent(share: float) -> str:
    """Return a signed percentage: tiny ones in powers of ten, huge ones as a factor."""
    if share == 0:
        return "0"
    if abs(share) >= 10:
        return f"{share:+.3g} x"
    if abs(share) < 5e-5:
        return f"{share * 100:+.1e} %"
    return f"{share * 100:+.2f} %"
