"""Common mistakes that come from other notations, each with a correction.

Each row is a regular expression and the advice. Rows are searched only after a line was refused; the first match is
used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

Advice: TypeAlias = str | Callable[[re.Match[str]], str]

_NAME = r"[^\W\d][\w.]*"
_VALUE = rf"{_NAME}\[[^\]]*\]"
_WORD = rf"(?P<word>{_NAME}(?:\[[^\]]*\])?)"


def _blanks(match: re.Match[str]) -> str:
    with_blanks = re.sub(r"[\s,]+", " ", match[0])
    return f"axes are separated by spaces: write {with_blanks}"


def _number(match: re.Match[str]) -> str:
    return f"a number has empty brackets: write {match['number']}[] {match['value']}"


def _lone(match: re.Match[str]) -> str:
    return f"a number has empty brackets: write {match['lone']}[]"


def _operator(match: re.Match[str]) -> str:
    return f"an operator has its operands in parentheses: {match['word']}({match['value']})"


def _inner(match: re.Match[str]) -> str:
    """Advise a separate line for an expression in an operator's parentheses, with the axes of the left side."""
    left, inner = match.string.partition("=")[0].strip(), " ".join(match["inner"].split())
    value = _other(left, match.string)
    return f"an operator takes values: write first {value} = {inner}, then {left} = {match['word']}({value})"


def _other(left: str, text: str) -> str:
    """Return an unused name with the axes of the left side."""
    name = next(name for name in "HGUTZ" if not re.search(rf"\b{name}\[", text))
    return f"{name}[{left.partition('[')[2] or ']'}"


_SQUARE = "a square is a product, Y[M] = X[M] X[M]; a size has a power, #k^-0.5[]"

ATTEMPTS: tuple[tuple[str, Advice], ...] = (
    (r"#\s+\S|\s//|\s#\s*$|\s%", "a comment is a separate line that begins with %"),
    (r"^\s*(?:return|def|let|for|if)\b", "a line is `value[axes] = ...`; outputs are named in the header"),
    (r"[−–—]", "a minus is the sign - of the keyboard"),
    (r"[′’‘`]", "a prime is the sign ' of the keyboard: N'"),
    (r"\{[^{}]*\}", "axes are written in square brackets: Y[M f]"),
    (r"[-+*/]=", "a line has one `=`, and names what it reads: X[M d] = X[M d] + b[d]"),
    (r":=|==|<-|←", "a line has one `=`, as in Y[M f] = X[M d] W[d f]"),
    (r"\beinsum\b", "a product needs no operator: write its factors one after the other, Y[M f] = X[M d] W[d f]"),
    (r"\*\*", _SQUARE),
    (
        r"\s@\s*(?:[\w.*:/-]+\s+){2,}[\w.*:/-]+\s*$|\s@\s*$",
        "a line ends in the path of its module and the operator there: @ encoder.*.fc1 linear",
    ),
    (
        r"[@⊗⊙·×]|\*(?!\*)|\b(?:matmul|mm|bmm|dot|mul|multiply|linear)\b\s*\(",
        "factors are written one after the other without a sign: Y[M f] = X[M d] W[d f]",
    ),
    (r"\^(?!T\b)(?!\s*-?\d)|\]\s*\^(?!T\b)|[²³]", _SQUARE),
    (
        r"\]\s*/|/\s*\w",
        "a quotient is divide(X[M], Z[M]); by a number it is a product, 0.5[] X[M], and by a size #d^-1[] X[M]",
    ),
    (
        r"∑|Σ|\bsum_\w+|\b(?:reduce_sum|add_reduce)\s*[\[(]",
        "an axis that is not on the left is summed, and the sum of one value over d is Y[M] = sum[d](X[M d])",
    ),
    (r"\b(?:average|avg|reduce_mean)\s*[\[(]", "the mean over d is Y[M] = mean[d](X[M d])"),
    (r"\bmax(?:imum)?\s*\(|\bclamp\b|\bclip\b", "the larger of two is maximum(X[M], 0[]), and of 0 and X relu(X[M])"),
    (
        r"(?i)\b(?:layer_?norm|batch_?norm|group_?norm)\b",
        "a normalization is normalize[d](X[M d]), or the layer norm(X; g b)",
    ),
    (r"(?i)\b(?:concat\w*|cat|stack|hstack|vstack)\b", "multiply each value by its part of the weight, and add"),
    (r"(?i)\bdropout\b", "dropout is a product with a random mask that is an input: Y[M d] = X[M d] mask[M d]"),
    (
        r"\^T\b|\.T\b|\.mT\b|ᵀ|\b(?:transpose|permute|swapaxes|reshape|view|rearrange)\b",
        "axes have names, so no transpose is needed: write them in the order in which the value declares them",
    ),
    (r"\b(?:dim|axis|axes)\s*=", "an operator has its axes in square brackets before its operands: softmax[N](S[M N])"),
    (r"[^\W\d]\w*\([^()\[\]]*\)\s*=", "axes are written in square brackets: Y[M f]"),
    (r"[^\W\d]\w*\s*\[[^\[\]=]*,[^\[\]]*\]", _blanks),
    (r"\[[^\]]*(?<![\w'.=#^-])\d[^\]]*\]", "an axis is a name; its size is given later: Y[M d]"),
    (rf"(?<![\w.\]\[^-])(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?)\s*(?P<value>{_VALUE})", _number),
    (rf"{_WORD}\((?P<inner>\s*{_VALUE}\s*(?:[-+]\s*)?{_VALUE}[^,()]*)\)", _inner),
    (rf"{_WORD}\((?P<inner>\s*{_NAME}(?:\[[^\]]*\])?\(.*\)\s*)\)\s*$", _inner),
    (rf"{_WORD}\((?P<inner>\s*{_NAME}\s+{_NAME}\s*)\)", _inner),
    (r"=\s*\(|[-+]\s*\(|\]\s*\(", "a line has one operation and no parentheses: give the inner one its own line"),
    (rf"=\s*(?P<word>{_NAME})\s+(?P<value>{_VALUE})\s*$", _operator),
    (r"(?<![\w.\[\]^'-])(?P<lone>\d+\.?\d*(?:[eE][-+]?\d+)?)(?![\w.\[])", _lone),
)

_BARE = re.compile(rf"(?<![\w.]){_NAME}(?![\w.'\[(])")


def advice(text: str) -> str:
    """Return the correction of a refused line, after a semicolon; empty where no row matches."""
    if text.count("[") != text.count("]"):
        return "; a square bracket is open: every [ has its ]"
    for pattern, hint in ATTEMPTS:
        if match := re.search(pattern, text):
            return f"; {hint if isinstance(hint, str) else hint(match)}"
    if bare := _BARE.search(re.sub(r"\[[^\[\]]*\]", "[]", text)):
        return f"; a value is written with its axes, as in {bare[0]}[M d]; one without axes has {bare[0]}[]"
    return ""


def as_two_lines(text: str) -> str:
    """Return the correction of a line that multiplies and adds, after a semicolon: a product, then the sum."""
    left, _, right = (part.strip() for part in text.partition("="))
    terms = re.split(r"(?<=\])\s*([-+])\s*", right)
    place = next((at for at in range(0, len(terms), 2) if len(re.findall(_VALUE, terms[at])) > 1), None)
    if place is None:
        return ""
    value = _other(left, text)
    rest = " ".join((*terms[:place], value, *terms[place + 1 :]))
    return f"; first {value} = {terms[place].strip()}, then {left} = {rest}"


HEADERS: tuple[tuple[str, str], ...] = (
    (r"^\s*(?:#|//)", "a comment begins with %"),
    (r"^\s*(?:def|class|layer|function)\s", "write no keyword before the name"),
    (r"→|=>|⇒", "the arrow is ->"),
    (r":\s*$", "write no colon at the end"),
    (r"\[", "the header names values without their axes; the first line that reads a value declares them"),
    (r"->\s*\(", "outputs have no parentheses"),
    (r"^\s*[\w ]*-[\w -]*\(", "names use _ instead of a hyphen"),
    (r"^\s*\(", "a layer needs a name"),
    (r"->\s*$", "write the outputs after the arrow"),
    (r"\)\s*$", "write the outputs after an arrow, -> Y"),
)


def header_advice(text: str) -> str:
    """Return the correction of a refused header, after a semicolon; empty where no row matches."""
    return next((f"; {hint}" for pattern, hint in HEADERS if re.search(pattern, text)), "")
