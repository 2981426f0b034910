"""Lines, tables and counts as text, LaTeX and MathML."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from html import escape

from learncost.ir.line import Line
from learncost.ir.loop import Loop
from learncost.ir.polynomial import Polynomial
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.reports.notation.counts import SYMBOLS, divided, node, one_width, plain, python, terms
from learncost.reports.notation.lines import aligned, equation, line_node, rows_of
from learncost.reports.notation.tree import MathMark, MathRow
from learncost.reports.notation.tree import latex as _latex
from learncost.reports.notation.tree import mathml as _mathml

__all__ = [
    "SYMBOLS",
    "breakable",
    "divided",
    "equation",
    "latex",
    "mathml",
    "mathml_grid",
    "mathml_inner",
    "one_width",
    "plain",
    "python",
    "size_mathml",
    "terms",
    "text",
]

Printable = Line | Loop | Table | Layer | Polynomial


def text(what: Printable) -> str:
    """Return a line, table or layer in the notation; a count in the paper's symbols, such as 2*M*d_model^2."""
    if isinstance(what, Polynomial):
        return plain(what)
    return str(what.table if isinstance(what, Layer) else what)


def latex(what: Printable, known: Collection[str] | None = None) -> str:
    """Return it in LaTeX without dollar signs: a table is an `aligned` with one equation per row.

    known   the names that a `d` before them makes gradients of; those of the table itself, or capitals where a line
            stands alone
    """
    if isinstance(what, Polynomial):
        return _latex(node(what))
    if isinstance(what, Line):
        return _latex(line_node(what, known))
    return aligned(rows_of(what, known))


def mathml(what: Printable, known: Collection[str] | None = None, display: bool = True) -> str:
    """Return it as one `math` element of MathML Core: a table is an `mtable` with one equation per row."""
    if isinstance(what, Polynomial):
        return _wrapped(_mathml(node(what)), display)
    if isinstance(what, Line):
        return _wrapped(_mathml(line_node(what, known)), display)
    rows = []
    for left, right, number in rows_of(what, known):
        if right == MathRow(()):  # the heading of a repeat
            rows.append(f'<mtr><mtd columnspan="3" style="text-align: left">{_mathml(left)}</mtd></mtr>')
            continue
        cells = (
            f'<mtd style="text-align: right">{_mathml(left)}</mtd><mtd style="text-align: left">{_mathml(right)}</mtd>'
        )
        rows.append(f"<mtr>{cells}<mtd><mtext>{number}</mtext></mtd></mtr>")
    return _wrapped(f"<mtable>{''.join(rows)}</mtable>", display)


def size_mathml(axis: str, symbols: Mapping[str, str] = SYMBOLS) -> str:
    """Return the symbol of an axis's size as an inline `math` element."""
    return _wrapped(_mathml(node(Polynomial.of((axis,)), symbols)), display=False)


def mathml_inner(count: Polynomial) -> str:
    """Return a count in MathML without the enclosing `math` element."""
    return _mathml(node(count))


def mathml_grid(rows: Iterable[tuple[str, str, Polynomial]], notes: Iterable[str]) -> str:
    """Return counts in MathML as a grid, each with its name and meaning, and notes as paragraphs below."""
    lines = []
    for name, unit, count in rows:
        cells = f"<mtext>{escape(name)}</mtext>", f"<mtext>{escape(unit)}</mtext>", mathml_inner(count)
        lines.append("<mtr>" + "".join(f'<mtd style="text-align: left">{cell}</mtd>' for cell in cells) + "</mtr>")
    table = "\n".join(["<mtable>", *lines, "</mtable>"])
    paragraphs = "".join(f"<p>{escape(note)}</p>\n" for note in notes)
    return f"<div>\n{_wrapped(f'{chr(10)}{table}{chr(10)}', display=True)}\n{paragraphs}</div>"


def breakable(count: Polynomial, symbols: Mapping[str, str] = SYMBOLS) -> str:
    """Return a count with a `math` element for each term, so that lines can break between terms.

    symbols  of axes, by default the paper's; another axis is its own
    """
    tree = node(count, symbols)
    text, sign = "", ""
    for part in tree.parts if isinstance(tree, MathRow) else (tree,):
        if isinstance(part, MathMark):
            sign = "−" if part.text == "-" else part.text
            continue
        text += (f" {sign}\u00a0" if text else sign) + _wrapped(_mathml(part), display=False)
    return text


def _wrapped(inner: str, display: bool) -> str:
    layout = "block" if display else "inline"
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML" display="{layout}">{inner}</math>'
