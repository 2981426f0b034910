"""Sheets: tables with headings and notes, as text of a given width, HTML, Markdown and LaTeX."""

from __future__ import annotations

import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from learncost.ir import displayed
from learncost.ir.dataclass import HIDDEN, Serializable, dataclass, field
from learncost.ir.displayed import FrameConvertible
from learncost.ir.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

WIDTH = 80
"""Columns of text where nothing says how many there are."""

_GAP = "  "
_SEPARATED = r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?"
_POWER = r"10\\\^\{\}([0-9]+)"  # as a cell is escaped for LaTeX
_NARROW = 16  # a column of words is not made narrower


FORMATS = ("table", "json", "csv", "md", "latex", "html")
"""The formats of every answer."""

SPELLED = {"text": "table", "markdown": "md"}
"""Other names of formats."""

_ENDLESS = 10**6


NO_BREAK = "\xa0"
"""The space in a cell's text at which it is broken only where a word is longer than a line."""


class _CellWrapper(textwrap.TextWrapper):
    """Wraps the text of a cell between words, and after the commas of lists such as plans."""

    wordsep_simple_re = re.compile(r"([\t\n\x0b\x0c\r ]+|(?<=[a-z],)(?=[a-z]))")

    def _split(self, text: str) -> list[str]:
        most = self.width - len(self.subsequent_indent)
        words = (re.split(f"({NO_BREAK})", word) if len(word) > most else [word] for word in super()._split(text))
        return [*chain.from_iterable(words)]


class Readable(FrameConvertible):
    """A result whose repr is its text; its dataclass must have `repr=False`."""

    def __repr__(self) -> str:
        return str(self)


class TabularAnswer(Serializable, Readable):
    """An answer: its fields, and the sheets that show them. All output formats derive from these."""

    _sheets_module: ClassVar[str] = ""
    """The module that makes the sheets, by a function `sheets(answer, width)`; it is imported when they are wanted.

    Where a file holds something else than a screen, it has `tables(answer)` for Markdown and LaTeX and
    `records(answer)`, rows for CSV.
    """

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the sheets to show below each other within a width in columns."""
        result: tuple[Sheet, ...] = self._by("sheets")(self, width)
        return result

    def _by(self, name: str) -> Any:
        return getattr(import_module(self._sheets_module), name, None) if self._sheets_module else None

    def _tables(self) -> tuple[Sheet, ...]:
        make = self._by("tables")
        return make(self) if make else self.sheets(_ENDLESS)

    def show(self, format: str = "table") -> str:
        """Return the answer as table, json, csv, md, latex or html."""
        match SPELLED.get(format, format):
            case "table":
                return str(self)
            case "json":
                return json.dumps(self.to_dict(), indent=2)
            case "csv":
                make = self._by("records")
                return csv_of(make(self)) if make else "\n".join(sheet.csv() for sheet in self._tables())
            case "md":
                return "\n\n".join(sheet.markdown() for sheet in self._tables())
            case "latex":
                return "\n\n".join(sheet.latex() for sheet in self._tables())
            case "html":
                return self._repr_html_()
        raise InputError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")

    def _rows(self) -> list[Mapping[str, Any]]:
        rows = self._by("rows") or self._by("records")
        if rows:
            return list(rows(self))
        from learncost.ir.displayed import records  # is needed for frames alone

        return [
            row
            for sheet in self._tables()
            for row in records(sheet.columns, (row_of_cells.cells for row_of_cells in sheet.rows))
        ]

    def _lines(self, width: int) -> Iterator[tuple[str, str]]:
        for place, sheet in enumerate(self.sheets(width)):
            yield from chain([("", "")] if place else [], sheet.lines(width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from styled(self._lines(options.max_width))

    def text(self, width: int = WIDTH) -> str:
        """Return the answer as plain text, with no line longer than the width."""
        return "\n".join(line for line, _ in self._lines(width))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return "".join(sheet.html() for sheet in self.sheets(_ENDLESS))


@dataclass(frozen=True, repr=False, kw_only=True)
class AtLength(TabularAnswer):
    """An answer about sequences of a given or default length."""

    _length_note: str = field(default="", compare=False, metadata=HIDDEN)  # of a default below the context


def plan_text(counted: str, executed: str = "", what: str = "timed") -> str:
    """Return the plan that is counted, and that of the time or the memory if it is another, as a first line has them.

    what  is under the second plan
    """
    differs = executed if executed != counted else ""
    return (f" under {counted}" if counted else "") + (f", {what} under {differs}" if differs else "")


def batch_text(
    batch_size: int | None,
    seq_len: int,
    target_len: int | None = None,
    context: int | None = None,
    sample: str = "sequence",
    letters: str = "",
    length_note: str = "",
) -> str:
    """Return the batch and the lengths of an answer, as its first line states them.

    batch_size  None for any number of sequences
    seq_len     0 for a model without sequences
    letters  the sizes of a table in its own letters, in place of the rest
    context  the tokens in the KV cache before a step of decode
    """
    several = f"{sample}s" if batch_size is None else f"{batch_size:,} {sample}{'s' if batch_size > 1 else ''}"
    if not seq_len:
        return letters or several
    if context is not None:
        new = seq_len if target_len is None else target_len
        source = "" if target_len is None else f", {seq_len:,} of the encoder"
        return f"{several}, {new:,} new token{'s' if new > 1 else ''} after {context:,}{source}{length_note}"
    sides = "" if target_len is None else f" and {target_len:,}"
    tokens = "token" if seq_len == 1 and not sides else "tokens"
    return (letters or f"{several} of {seq_len:,}{sides} {tokens}") + length_note


def microbatches_text(number: int) -> str:
    """Return the remark that a batch is cut into several microbatches."""
    return f" in {number:,} microbatches" if number > 1 else ""


class FigureAnswer(TabularAnswer):
    """An answer with figures."""

    _figures: ClassVar[tuple[str, ...]] = ()
    """The kinds, the usual one first."""

    _notebook_figure: ClassVar[str] = ""
    """The kind that a notebook shows over the table, where matplotlib is installed."""

    def plot(self, figure: str = "", columns: int = 1) -> Any:
        """Return the answer as a matplotlib Figure, which a notebook shows; `savefig` writes it.

        Parameters
        ----------
        figure
            The kind of figure, if there are several, as in `learncost figure`.
        columns
            The width in columns of a page, 1 or 2.

        Raises
        ------
        InputError
            If matplotlib is not installed, or if the answer has no data for this kind of figure.
        """
        return displayed.drawing().figure_of(figure or self._figure, self, columns)

    @property
    def _figure(self) -> str:
        return self._figures[0]

    @property
    def _panels(self) -> tuple[TabularAnswer, ...]:
        """Return the answers with one panel each."""
        return (self,)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        picture = ""
        if self._notebook_figure:
            picture = displayed.drawing().figure_html(self._notebook_figure, self)
        return {"text/plain": str(self), "text/html": picture + self._repr_html_()}


def csv_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as comma-separated values with full numbers and a heading; "" without rows."""
    import csv  # imported when used, for a fast start

    rows, text = list(rows), io.StringIO()
    if rows:
        writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


@dataclass(frozen=True)
class SheetRow:
    """The cells of a row, the first one indented `depth` times; `style` is "", "bold" or "dim"."""

    cells: tuple[str, ...]
    style: str = ""
    depth: int = 0


@dataclass(frozen=True)
class Sheet:
    """A table with its heading and notes. `left` are the text columns; the others are numbers.

    `answer` is what was asked in one sentence, where the table is its reason.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[SheetRow, ...]
    notes: tuple[str, ...] = ()
    left: frozenset[int] = frozenset({0})
    answer: str = ""

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
        """The width of the table as text, without its notes."""
        return sum(self.widths) + len(_GAP) * (len(self.columns) - 1)

    def lines(self, width: int = WIDTH) -> Iterator[tuple[str, str]]:
        """Return lines of text with styles, none longer than the width.

        Columns of words and the notes are broken; where the numbers still need more, their columns are in blocks,
        one below the other, each with the first column.
        """
        for part in textwrap.wrap(self.title, width, break_on_hyphens=False):
            yield part, "bold"
        for part in textwrap.wrap(self.answer, width, break_on_hyphens=False):
            yield part, ""
        widths = self._narrowed(width)
        for places in self._blocks(widths, width) if self.columns else ():
            yield "", ""
            if any(self.columns):
                yield from self._row(SheetRow(self.columns, "dim"), widths, places)
            for row in self.rows:
                yield from self._row(row, widths, places)
        if self.notes and (self.title or self.columns):
            yield "", ""
        for note in self.notes:
            for part in textwrap.wrap(note, width, break_on_hyphens=False):
                yield part, "dim"

    def _narrowed(self, width: int) -> list[int]:
        """Return the widths of the columns, with text columns narrowed if necessary, the last one first."""
        widths, last = list(self.widths), len(self.columns) - 1

        def over() -> int:
            return sum(widths) + len(_GAP) * last - width

        if last in self.left:
            widths[last] = max(min(widths[last], _NARROW), widths[last] - max(0, over()))
        while over() > 0 and (wide := [place for place in self.left if place <= last and widths[place] > _NARROW]):
            widths[max(wide, key=lambda place: widths[place])] -= 1
        return widths

    def _blocks(self, widths: Sequence[int], width: int) -> list[list[int]]:
        """Return the columns of each block of a wide table; the first column is in all of them."""
        blocks = [[0]]
        for place in range(1, len(widths)):
            needed = sum(widths[column] + len(_GAP) for column in blocks[-1]) + widths[place]
            if needed > width and len(blocks[-1]) > 1:
                blocks.append([0])
            blocks[-1].append(place)
        return blocks

    def _row(self, row: SheetRow, widths: Sequence[int], places: Sequence[int]) -> Iterator[tuple[str, str]]:
        """Return the row in as many lines as its longest text cell requires."""
        cells = []
        for place in places:
            text = row.cells[place] if place < len(row.cells) else ""
            indent = "  " * row.depth if place == 0 else ""
            if place in self.left and len(indent + text) > widths[place]:
                hanging = indent + ("  " if place == 0 else "")
                wrapper = _CellWrapper(
                    widths[place], initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False
                )
                cells.append(wrapper.wrap(text))
            else:
                cells.append([indent + text])
        for iteration in range(max(map(len, cells), default=0)):
            parts = (cell[iteration] if iteration < len(cell) else "" for cell in cells)
            texts = (
                part.ljust(widths[place]) if place in self.left else part.rjust(widths[place])
                for place, part in zip(places, parts, strict=True)
            )
            yield _GAP.join(texts).rstrip().replace(NO_BREAK, " "), row.style

    def text(self, width: int = WIDTH) -> str:
        """Return the sheet as plain text."""
        return "\n".join(line for line, _ in self.lines(width))

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from styled(self.lines(options.max_width))

    def html(self) -> str:
        """Return the sheet as self-contained HTML."""
        from html import escape  # imported when used, for a fast start

        def cells(kind: str, row: Sequence[str], depth: int = 0) -> str:
            html_cells = []
            for place, cell in enumerate(row):
                align = "left" if place in self.left else "right"
                indent = f";padding-left:{1.5 * depth + 0.5}em" if depth and place == 0 else ""
                html_cells.append(f'<{kind} style="text-align:{align}{indent}">{escape(cell)}</{kind}>')
            return f"<tr>{''.join(html_cells)}</tr>"

        body = []
        for row in self.rows:
            line = cells("td", row.cells, row.depth)
            body.append(line.replace("<tr>", '<tr style="font-weight:bold">') if row.style == "bold" else line)
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        answer = f"<div>{escape(self.answer)}</div>" if self.answer else ""
        table = f"<div>{escape(self.title)}{answer}</div>"
        if self.columns:
            table = (
                f'<table><caption style="text-align:left">{escape(self.title)}{answer}</caption>'
                f"<thead>{cells('th', self.columns)}</thead><tbody>{''.join(body)}</tbody></table>"
            )
        return f'<div class="learncost">{table}<div style="font-size:smaller">{notes}</div></div>'

    def markdown(self) -> str:
        """Return the sheet as a table of GitHub's Markdown."""

        def line(cells: Iterable[str]) -> str:
            return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

        rules = ["---" if place in self.left else "---:" for place in range(len(self.columns))]
        rows = [[f"**{cell}**" if row.style == "bold" and cell else cell for cell in row.cells] for row in self.rows]
        table = "\n".join([line(self.columns), line(rules), *map(line, rows)]) if self.columns else ""
        title = f"**{self.title}**" if self.title else ""
        return "\n\n".join(part for part in (title, self.answer, table, "\n".join(self.notes)) if part)

    def csv(self) -> str:
        """Return the sheet as comma-separated values, with numbers without separators."""
        import csv  # imported when used, for a fast start

        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for cells in (self.columns, *(row.cells for row in self.rows)):
            if any(cells):
                writer.writerow(cell.replace(",", "") if re.fullmatch(_SEPARATED, cell) else cell for cell in cells)
        return text.getvalue()

    def latex(self) -> str:
        """Return the sheet as a tabular with the rules of booktabs, with the title and notes as comments."""
        if not self.columns:
            return "\n".join(f"% {text}" for text in (self.title, *self.notes) if text)
        align = "".join("l" if place in self.left else "r" for place in range(len(self.columns)))
        lines = [r"% \usepackage{booktabs}", f"% {self.title}", rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
        lines += [_latex_line(self.columns), r"\midrule"] if any(self.columns) else []
        for row in self.rows:
            line = _latex_line(row.cells)
            lines += [r"\midrule", line] if row.style == "bold" and lines[-1] != r"\midrule" else [line]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in self.notes)])


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: its heading, the cell of an entry, and whether it is text, aligned left.

    shown  whether the table has it
    """

    heading: str
    cell: Callable[[Any], str]
    words: bool = False
    shown: bool = True


def words_of(names: str) -> Iterator[TableColumn]:
    """Yield text columns of attributes, under their names."""
    yield from (TableColumn(name, attrgetter(name), words=True) for name in names.split())


FACTS = (TableColumn("", itemgetter(0), words=True), TableColumn("", itemgetter(1), words=True))
"""The columns of names and their texts."""


def fitting(sheets: Iterable[Sheet], width: int) -> Sheet:
    """Return the first of these sheets that fits the width, else the last one."""
    for sheet in sheets:
        if sheet.width <= width:
            break
    return sheet


def table(
    title: str,
    columns: Iterable[TableColumn],
    entries: Iterable[Any],
    notes: Iterable[str] = (),
    answer: str = "",
    style: Callable[[Any], str] = lambda entry: "",
) -> Sheet:
    """Return the table with a row for each entry; `style` is that of an entry's row."""
    shown = [column for column in columns if column.shown]
    rows = tuple(SheetRow(tuple(column.cell(entry) for column in shown), style(entry)) for entry in entries)
    words = frozenset(place for place, column in enumerate(shown) if column.words)
    return Sheet(title, tuple(column.heading for column in shown), rows, tuple(notes), words, answer)


def _latex_line(cells: Iterable[str]) -> str:
    special = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "×": r"$\times$"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    escaped = ("".join(special.get(character, character) for character in cell) for cell in cells)
    return re.sub(_POWER, r"$10^{\1}$", " & ".join(escaped)) + r" \\"


def styled(lines: Iterable[tuple[str, str]]) -> Iterator[Text]:
    """Return lines for a terminal, which it does not wrap."""
    from rich.text import Text

    for line, style in lines:
        yield Text(line, style, no_wrap=True, overflow="crop")


def wrapped(text: str) -> str:
    """Return the wrapped line; paths and plans are not broken."""
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def number(value: int) -> str:
    """Return a count with separators."""
    return f"{value:,}"


def in_units(power: int, value: int) -> str:
    """Return a count in units of a power of ten, with three decimals."""
    return f"{value / 10**power:,.3f}"


def rounded(value: int) -> str:
    """Return a count that is too long for its column with four digits and a power of ten."""
    if abs(value) < 10**9:
        return number(value)
    power = len(str(abs(value))) - 1
    digits = round(value, 3 - power) // 10 ** (power - 3)
    if abs(digits) >= 10**4:
        digits, power = digits // 10, power + 1
    return f"{digits / 1000:.3f}e{power}"


def significant(value: float, digits: int = 3) -> str:
    """Return significant digits, three by default, with trailing zeros; larger numbers as an integer."""
    if not value:
        return "0"
    rounded_off = float(f"{value:.{digits}g}")
    return f"{rounded_off:,.0f}" if abs(rounded_off) >= 10 ** (digits - 1) else f"{rounded_off:#.{digits}g}"


def sizes_of(*counts: int) -> list[str]:
    """Return several numbers of bytes, with as many digits, three or more, as tell different ones apart."""
    for digits in range(3, 20):
        texts = [size_of(count, digits) for count in counts]
        if len(set(texts)) == len(set(counts)):
            break
    return texts


def size_of(count: int, digits: int = 3) -> str:
    """Return bytes with three digits, or as many as given, and a unit."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB", "EB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{significant(value, digits)} {unit}"


_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_JOULES = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"))


def seconds_of(seconds: float) -> str:
    """Return a time with three digits and a unit; "" for none."""
    return scaled(seconds, _SECONDS) if seconds >= 1e-9 else ""


def joules_of(joules: float) -> str:
    """Return an energy with three digits and a unit; "" for none."""
    return scaled(joules, _JOULES) if joules >= 1e-9 else ""


def scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Return a value with three digits in the first of the units of which it has at least one, else in the last."""
    scale, unit = next((candidate for candidate in units if value >= 0.9995 * candidate[0]), units[-1])
    return f"{significant(value / scale)} {unit}"
