"""Tables as rows of trees: one equation a row, what a repeat holds indented under its heading."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from learncost.ir.loop import Loop, Statement
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.reports.notation.lines import equation, sides
from learncost.reports.notation.tree import MathMark, MathName, MathRow, Node, latex, row

Equation = tuple[Node, Node, str]  # left side, relation and right side, number


def rows_of(what: Table | Layer | Loop, known: Collection[str] | None = None) -> list[Equation]:
    """The equations of a table, of a layer's forward table, or of a repeat."""
    if isinstance(what, Layer):
        what = what.table
    if isinstance(what, Loop):
        return list(_rows((what,), known if known is not None else what.axes, 0))
    names = known if known is not None else {**(what.within.axes if what.within else {}), **what.axes}
    return list(_rows(what.lines, names, 0))


def _rows(lines: Iterable[Statement], known: Collection[str], depth: int) -> Iterable[Equation]:
    indent = (MathMark(" "),) * depth
    for line in lines:
        if isinstance(line, Loop):
            order = " backwards" if line.reverse else ""
            carried = ", ".join(f"{c.start} to {c.end}" for c in line.carry)
            heading = f"repeat {line.count} times{order}{', carrying ' + carried if carried else ''}:"
            yield MathRow((*indent, MathName(heading))), row(), ""
            yield from _rows(line.lines, {**dict.fromkeys(known), **line.axes}, depth + 1)
        else:
            left, right = sides(line, known)
            yield MathRow((*indent, *left.parts)), right, equation(line)


def aligned(rows: Iterable[Equation]) -> str:
    r"""Rows as LaTeX's `aligned`, numbers in a column of their own."""
    lines = []
    for left, right, number in rows:
        if not latex(right):
            lines.append(rf"& {_heading(latex(left))}")
            continue
        aside = rf" &\quad& \text{{{number}}}" if number else ""
        lines.append(f"{latex(left)} &{latex(right)}{aside}")
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"


def _heading(text: str) -> str:
    return text.replace(r"\mathrm{", r"\text{")
