"""What was compared with what, and how it came out."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from learncost.ledger.sheet import Readable

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Check:
    """One comparison: of what, with what, the worst error or the counts, and whether it passed (None: not made)."""

    subject: str
    compared: str
    found: str
    passed: bool | None

    def __str__(self) -> str:
        mark = {True: "passed", False: "FAILED", None: "not made"}[self.passed]
        return f"{mark}: {self.subject}, {self.compared}: {self.found}"


@dataclass(frozen=True, repr=False)
class Report(Readable):
    """All comparisons; `passed` if none failed. Prints as a table."""

    title: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed is not False for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __rich__(self) -> RichTable:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self.title, title_justify="left")
        for heading in ("of", "compared", "found", ""):
            table.add_column(heading, overflow="fold")
        marks = {True: Text("passed", "green"), False: Text("FAILED", "bold red"), None: Text("not made", "dim")}
        for check in self.checks:
            table.add_row(check.subject, check.compared, check.found, marks[check.passed])
        return table
