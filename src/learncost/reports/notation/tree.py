"""Formulas as trees, which are printed as LaTeX and MathML Core."""

from __future__ import annotations

import re
from html import escape
from typing import TypeAlias

from learncost.ir.dataclass import dataclass

# A mark, how LaTeX writes it, and whether MathML makes it an operator or an identifier.
_MARKS = {
    "=": "=",
    "+=": r"\mathrel{+}=",
    "+": "+",
    "-": "-",
    "<=": r"\le",
    "!=": r"\ne",
    "<": "<",
    ",": ",",
    "times": r"\times",
    "∑": r"\sum",
    "∂": r"\partial",
    "ℒ": r"\mathcal{L}",
    "⌊": r"\lfloor",
    "⌋": r"\rfloor",
    "'": "'",
    " ": r"\quad",
    "thin": r"\,",
}
_MATHML_MARKS = {"<=": "≤", "!=": "≠", "<": "&lt;", "'": "′", "times": "×", "-": "−"}


@dataclass(frozen=True, slots=True)
class MathName:
    """A letter (italic) or a name of several letters (upright)."""

    text: str


@dataclass(frozen=True, slots=True)
class MathNumber:
    """Digits."""

    text: str


@dataclass(frozen=True, slots=True)
class MathMark:
    """An operator, a relation, a comma, a gap."""

    text: str


@dataclass(frozen=True, slots=True)
class MathRow:
    """Parts side by side."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A base with a lower and an upper script; under a sum the lower one is beneath the sign."""

    base: Node
    below: Node | None = None
    above: Node | None = None


@dataclass(frozen=True, slots=True)
class Fraction:
    """A fraction."""

    top: Node
    bottom: Node


@dataclass(frozen=True, slots=True)
class Root:
    """A square root."""

    inner: Node


@dataclass(frozen=True, slots=True)
class Fenced:
    """A tree in parentheses; `bar` puts a bar with a subscript behind it instead."""

    inner: Node
    bar: bool = False


Node: TypeAlias = MathName | MathNumber | MathMark | MathRow | Script | Fraction | Root | Fenced


def row(*parts: Node) -> MathRow:
    """Parts side by side."""
    return MathRow(parts)


def between(mark: MathMark, parts: list[Node]) -> MathRow:
    """Return parts with a mark between any two of them."""
    joined: list[Node] = []
    for part in parts:
        joined += [mark, part] if joined else [part]
    return MathRow(tuple(joined))


def symbol(text: str) -> Node:
    """Return a size's symbol; the text after an underscore is a subscript, as in d_model."""
    head, _, tail = text.partition("_")
    return Script(MathName(head), MathName(tail)) if head and tail else MathName(text)


# LaTeX.


def latex(node: Node) -> str:
    """Return the tree in LaTeX."""
    match node:
        case MathName(text):
            return text if len(text) == 1 else r"\mathrm{" + text.replace("_", r"\_").replace("~", r"\sim ") + "}"
        case MathNumber(text):
            return text
        case MathMark(text):
            return _MARKS[text]
        case MathRow(parts):
            return _spaced([latex(part) for part in parts])
        case Script(base, below, above):
            lower = f"_{{{latex(below)}}}" if below is not None else ""
            written = latex(above) if above is not None else ""
            if written.strip("'") == "":
                return latex(base) + written + lower
            return f"{latex(base)}{lower}^{{{written}}}"
        case Fraction(top, bottom):
            return rf"\frac{{{latex(top)}}}{{{latex(bottom)}}}"
        case Root(inner):
            return rf"\sqrt{{{latex(inner)}}}"
        case Fenced(inner, bar):
            text = latex(inner)
            if bar:
                return rf"\left.{text}\right\rvert"
            return rf"\left({text}\right)" if r"\frac" in text else f"({text})"


def _spaced(parts: list[str]) -> str:
    """Side by side; a space only where a command would swallow the next letter, and around relations and signs."""
    text = ""
    for part in parts:
        loose = part in ("=", "+", "-", r"\le", "<", r"\mathrel{+}=", r"\times")
        if text and part and (loose or re.search(r"\\[A-Za-z]+$", text)):
            text += " "
        text += part + (" " if loose or part == "," else "")
    return " ".join(text.split())


# MathML Core: mi, mn, mo, mrow, msub, msup, msubsup, munder, mfrac, msqrt.


def mathml(node: Node) -> str:
    """Return the tree in MathML Core without the enclosing `math` element."""
    match node:
        case MathName(text):
            return f"<mi>{escape(text)}</mi>"
        case MathNumber(text):
            sign, digits = ("<mo>−</mo>", text[1:]) if text.startswith("-") else ("", text)
            return f"{sign}<mn>{digits}</mn>" if not sign else f"<mrow>{sign}<mn>{digits}</mn></mrow>"
        case MathMark(text):
            if text in (" ", "thin"):
                return f'<mspace width="{"1em" if text == " " else "0.17em"}"/>'
            if text in "∂ℒ":
                return f"<mi>{text}</mi>"
            return f"<mo>{_MATHML_MARKS.get(text, text)}</mo>"
        case MathRow(parts):
            return f"<mrow>{''.join(mathml(part) for part in parts)}</mrow>"
        case Script(base, below, above):
            inner = mathml(base)
            if below is not None and above is not None:
                return f"<msubsup>{inner}{mathml(below)}{mathml(above)}</msubsup>"
            if below is not None:
                meta = "munder" if base == MathMark("∑") else "msub"
                return f"<{meta}>{inner}{mathml(below)}</{meta}>"
            return f"<msup>{inner}{mathml(above)}</msup>" if above is not None else inner
        case Fraction(top, bottom):
            return f"<mfrac>{mathml(top)}{mathml(bottom)}</mfrac>"
        case Root(inner_node):
            return f"<msqrt>{mathml(inner_node)}</msqrt>"
        case Fenced(inner_node, bar):
            left, right = ("", "&#124;") if bar else ("(", ")")  # a bare bar would end a cell in Markdown
            opening = f"<mo>{left}</mo>" if left else ""
            return f"<mrow>{opening}{mathml(inner_node)}<mo>{right}</mo></mrow>"
