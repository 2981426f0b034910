"""The comparisons of a verification and their outcomes."""

from __future__ import annotations

from collections.abc import Iterable

from learncost.ir.dataclass import HIDDEN, Key, dataclass, field
from learncost.reports.sheet import WIDTH, Sheet, SheetRow, TabularAnswer

_MARKS = {True: "passed", False: "FAILED", None: "not made"}


@dataclass(frozen=True)
class Check:
    """A comparison: subject, reference, largest error or counts, and whether it passed (None: skipped)."""

    subject: str
    compared: str
    found: str
    passed: bool | None

    def __str__(self) -> str:
        return f"{_MARKS[self.passed]}: {self.subject}, {self.compared}: {self.found}"


@dataclass(frozen=True, repr=False)
class VerificationReport(TabularAnswer):
    """All comparisons; `passed` if none failed. Prints as a table of them, or if `summed` of their numbers."""

    _schema = 1

    title: str = field(metadata=HIDDEN)
    checks: tuple[Check, ...]
    summed: bool = field(default=False, metadata=HIDDEN)

    @property
    @Key(after="schema")
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed is not False for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def exit_code(self) -> int:
        return 0 if self.passed else 1

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        return (self._summary() if self.summed else self._lines_of_all(),)

    def _lines_of_all(self) -> Sheet:
        texts = ((c.passed, f"{c.subject}, {c.compared}: {c.found}") for c in self.checks)
        rows = (SheetRow((_MARKS[passed], text), "bold" if passed is False else "") for passed, text in texts)
        return Sheet(self._heading, ("", ""), tuple(rows), (_verdict(self.checks),), frozenset({0, 1}))

    def _summary(self) -> Sheet:
        """Return how many of each comparison passed, with failed and skipped ones in full."""
        rows = []
        states = [state for state in _MARKS if state is not None or any(c.passed is None for c in self.checks)]
        for compared in dict.fromkeys(_kind(check) for check in self.checks):
            outcomes = [check.passed for check in self.checks if _kind(check) == compared]
            rows.append(SheetRow((compared, *(str(outcomes.count(state)) for state in states))))
        notes = (*map(str, self.failed), _verdict(self.checks))
        columns = ("", *(_MARKS[state].lower() for state in states))
        return Sheet(self._heading, columns, tuple(rows), notes)

    @property
    def _heading(self) -> str:
        return self.title[:1].upper() + self.title[1:]


def _kind(check: Check) -> str:
    """Return the comparison's text without its number of points or directions."""
    return check.compared.partition(", ")[0]


def _verdict(checks: Iterable[Check]) -> str:
    states = [check.passed for check in checks]
    failed = f"{states.count(False)} of {len(states)} comparisons failed"
    left = states.count(None)
    missing = f"; {left} {'was' if left == 1 else 'were'} not made" if left else ""
    return (failed if False in states or not states else f"All {states.count(True)} comparisons passed") + missing + "."
