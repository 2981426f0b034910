"""Rules of thumb in their sources' letters, from rules.toml, and their values."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import HIDDEN, Key, Serializable, attributes, dataclass, field
from learncost.ir.polynomial import Polynomial, total
from learncost.reports.sheet import AtLength

Number = int | Fraction


@dataclass(frozen=True)
class RuleOfThumb:
    """A rule of thumb as its source states it."""

    key: str
    title: str
    formula: str
    letters: Mapping[str, str]
    source: str
    because: str
    parts: Mapping[str, str]

    def at(self, **letters: Number) -> Number:
        """Return the estimate of the rule for these values of its letters."""
        return evaluate(self.formula, letters)


@dataclass(frozen=True)
class ErrorPart:
    """A part of an error, in the units of the numbers; the parts of a case sum to rule minus exact."""

    what: str
    amount: Number


@dataclass(frozen=True)
class Case(Serializable):
    """The estimate of a rule for one subject, and the exact value."""

    subject: str
    rule: Number
    exact: Number
    price_book: str = field(default="", metadata=Key(form=lambda name: name or None, after="subject").field)
    parts: tuple[ErrorPart, ...] = field(default=(), metadata=HIDDEN)

    @property
    @Key("relative_error")
    def error(self) -> float:
        """The error: rule minus exact, relative to exact."""
        return float(Fraction(self.rule - self.exact) / Fraction(self.exact))

    @property
    @Key()
    def error_parts(self) -> list[dict[str, object]]:
        """Return the parts of the error, with their shares of the exact number."""
        return [
            {"what": part.what, "amount": part.amount, "share": float(Fraction(part.amount) / self.exact)}
            for part in self.parts
        ]


@dataclass(frozen=True)
class Rule(Serializable):
    """A rule of thumb with its comparisons."""

    thumb: RuleOfThumb = field(
        metadata=Key(form=attributes("key title formula source because letters"), inline=True).field
    )
    cases: tuple[Case, ...]


@dataclass(frozen=True, repr=False)
class Rules(AtLength):
    """Rules of thumb compared with a model at the sizes of one step, and with GPT-3, which some are about.

    Attributes
    ----------
    model
        The model, by name.
    batch_size
        Sequences in a step.
    seq_len
        Tokens in a sequence.
    target_len
        Tokens of the decoder's sequence, where there is an encoder too; else None.
    tokens
        Tokens of the training run.
    parameters
        Parameters of the model.
    rules
        Every rule: its `thumb` (title, formula, source) and its `cases`, with what the `rule` says, what is `exact`,
        and the `error`, rule over exact minus 1.

    Examples
    --------
    >>> found = lc.rules("gpt2")
    >>> found.tokens, found.parameters
    (1024, 124439808)
    """

    _sheets_module = "learncost.reports.show_rules"
    _schema = 1

    model: str
    batch_size: int
    seq_len: int
    target_len: int | None
    tokens: int
    parameters: int
    rules: tuple[Rule, ...]

    def __getitem__(self, key: str) -> Rule:
        return next(rule for rule in self.rules if rule.thumb.key == key)


@cache
def rules_of_thumb() -> Mapping[str, RuleOfThumb]:
    """Return the rules of thumb by key, in the order of rules.toml."""
    text = Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
    return {key: RuleOfThumb(key, **{"parts": {}, **row}) for key, row in tomllib.loads(text).items()}


def evaluate(formula: str, letters: Mapping[str, Number]) -> Number:
    """Return the value of a sum of products such as `24 b s h^2 + 4 b s^2 h`, or of a ratio of two."""
    values: list[Any] = [_polynomial(part).at(letters) for part in formula.split(" / ")]
    assert not any(isinstance(value, Polynomial) for value in values), f"{formula} has unknown letters"
    value: Number = values[0] if len(values) == 1 else Fraction(values[0]) / values[1]
    return value


def _polynomial(text: str) -> Polynomial:
    def factors(term: str) -> Iterator[str]:
        for factor in term.split():
            name, _, power = factor.partition("^")
            yield from [name] * int(power or 1)

    return total(Polynomial.of(factors(term)) for term in text.split(" + "))
