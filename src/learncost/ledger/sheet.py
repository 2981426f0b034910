"""Sheets: headings, rows of cells, notes underneath, as text of a given width, HTML, Markdown and LaTeX."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

WIDTH = 80
"""Columns of text where nothing says how many there are."""

_GAP = "  "


@dataclass(frozen=True)
class Row:
    """Cells of a row, the first one indented `depth` times; `style` is "", "bold" or "dim"."""

    cells: tuple[str, ...]
    style: str = ""
    depth: int = 0


@dataclass(frozen=True)
class Sheet:
    """A table with what stands over and under it. `left` says which columns are words; the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    left: frozenset[int] = frozenset({0})

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of every column."""
        heads = [len(name) for name in self.columns]
        for row in self.rows:
            for place, cell in enumerate(row.cells):
                heads[place] = max(heads[place], len(cell) + (2 * row.depth if place == 0 else 0))
        return tuple(heads)

    @property
    def width(self) -> int:
        """The width of the table as text, its notes left aside."""
        return sum(self.widths) + len(_GAP) * (len(self.columns) - 1)

    def lines(self, width: int = WIDTH) -> Iterator[tuple[str, str]]:
        """Lines of text with their styles; a last column of words and the notes are broken to the width."""
        widths = list(self.widths)
        last = len(self.columns) - 1
        if last in self.left:
            widths[last] = max(16, min(widths[last], width - sum(widths[:last]) - len(_GAP) * last))
        for part in textwrap.wrap(self.title, width):
            yield part, "bold"
        if self.columns:
            yield "", ""
            if any(self.columns):
                yield self._line(self.columns, widths), "dim"
        for row in self.rows:
            cells = ("  " * row.depth + row.cells[0], *row.cells[1:]) if row.cells else ()
            parts = textwrap.wrap(cells[last], widths[last]) if last in self.left and len(cells) > last else []
            if len(parts) > 1:
                yield self._line((*cells[:last], parts[0]), widths), row.style
                for part in parts[1:]:
                    yield self._line((*("" for _ in cells[:last]), part), widths), row.style
            else:
                yield self._line(cells, widths), row.style
        if self.notes:
            yield "", ""
        for note in self.notes:
            for part in textwrap.wrap(note, width, break_on_hyphens=False):
                yield part, "dim"

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        parts = [
            cell.ljust(width) if place in self.left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        return _GAP.join(parts).rstrip()

    def text(self, width: int = WIDTH) -> str:
        """The sheet as plain text."""
        return "\n".join(line for line, _ in self.lines(width))

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from styled(self.lines(options.max_width))

    def html(self) -> str:
        """The sheet as one self-contained piece of HTML."""

        def cells(kind: str, row: Sequence[str], depth: int = 0) -> str:
            made = []
            for place, cell in enumerate(row):
                align = "left" if place in self.left else "right"
                indent = f";padding-left:{1.5 * depth + 0.5}em" if depth and place == 0 else ""
                made.append(f'<{kind} style="text-align:{align}{indent}">{escape(cell)}</{kind}>')
            return f"<tr>{''.join(made)}</tr>"

        body = []
        for row in self.rows:
            line = cells("td", row.cells, row.depth)
            body.append(line.replace("<tr>", '<tr style="font-weight:bold">') if row.style == "bold" else line)
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        return (
            '<div class="learncost">'
            f'<table><caption style="text-align:left">{escape(self.title)}</caption>'
            f"<thead>{cells('th', self.columns)}</thead><tbody>{''.join(body)}</tbody></table>"
            f'<div style="font-size:smaller">{notes}</div></div>'
        )

    def markdown(self) -> str:
        """The sheet as a table of GitHub's Markdown."""

        def line(cells: Iterable[str]) -> str:
            return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

        rules = ["---" if place in self.left else "---:" for place in range(len(self.columns))]
        rows = [[f"**{cell}**" if row.style == "bold" and cell else cell for cell in row.cells] for row in self.rows]
        table = "\n".join([line(self.columns), line(rules), *map(line, rows)])
        return "\n\n".join(part for part in (f"**{self.title}**", table, "\n".join(self.notes)) if part)

    def latex(self) -> str:
        """The sheet as a tabular that needs no package; the title and the notes are comments."""
        align = "".join("l" if place in self.left else "r" for place in range(len(self.columns)))
        lines = [f"% {self.title}", rf"\begin{{tabular}}{{{align}}}", r"\hline"]
        lines += [_latex_line(self.columns), r"\hline"]
        for row in self.rows:
            line = _latex_line(row.cells)
            lines += [r"\hline", line] if row.style == "bold" else [line]
        return "\n".join([*lines, r"\hline", r"\end{tabular}", *(f"% {note}" for note in self.notes)])


def _latex_line(cells: Iterable[str]) -> str:
    special = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "×": r"$\times$"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    made = ("".join(special.get(character, character) for character in cell) for cell in cells)
    return " & ".join(made) + r" \\"


def styled(lines: Iterable[tuple[str, str]]) -> Iterator[Text]:
    """Lines for a terminal, none of them broken again."""
    from rich.text import Text

    for line, style in lines:
        yield Text(line, style, no_wrap=True, overflow="crop")


def number(value: int) -> str:
    """A count with separators."""
    return f"{value:,}"


def rounded(value: int) -> str:
    """A count that is too long for its column, by four digits and a power of ten."""
    if abs(value) < 10**9:
        return number(value)
    power = len(str(abs(value))) - 1
    digits = round(value, 3 - power) // 10 ** (power - 3)
    if abs(digits) >= 10**4:
        digits, power = digits // 10, power + 1
    return f"{digits / 1000:.3f}e{power}"


def significant(value: float) -> str:
    """Three significant digits, also where the last of them are zeros; from a thousand on zeros fill up."""
    if not value:
        return "0"
    rounded_off = float(f"{value:.3g}")
    return f"{rounded_off:,.0f}" if abs(rounded_off) >= 100 else f"{rounded_off:#.3g}"


def size_of(count: int) -> str:
    """Bytes in the unit that leaves three digits."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB", "EB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{significant(value)} {unit}"


_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_JOULES = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))


def seconds_of(seconds: float) -> str:
    """A time in the unit that leaves three digits; nothing where there is none."""
    return _scaled(seconds, _SECONDS)


def joules_of(joules: float) -> str:
    """An energy in the unit that leaves three digits; nothing where there is none."""
    return _scaled(joules, _JOULES)


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    scale, unit = next((own for own in units if value >= 0.9995 * own[0]), units[-1])
    return f"{significant(value / scale)} {unit}" if value >= scale / 1000 else ""
