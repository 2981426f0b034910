"""First attempts that come from other ways of writing, and what to write in the notation instead.

A row is a pattern that such a line has and the advice. Rows are looked at only once a line has been refused; the first
that fits speaks.
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
    return f"axes are parted by blanks: write {with_blanks}"


def _number(match: re.Match[str]) -> str:
    return f"a number has empty brackets: write {match['number']}[] {match['value']}"


def _lone(match: re.Match[str]) -> str:
    return f"a number has empty brackets: write {match['lone']}[]"


def _word(match: re.Match[str]) -> str:
    return f"a word has its operands in parentheses: {match['word']}({match['value']})"


def _inner(match: re.Match[str]) -> str:
    """What stands in a word's parentheses gets a line of its own, which has the axes of the line's left."""
    left, inner = match.string.partition("=")[0].strip(), " ".join(match["inner"].split())
    value = _other(left, match.string)
    return f"a word takes values, not a calculation: first {value} = {inner}, then {left} = {match['word']}({value})"


def _other(left: str, text: str) -> str:
    """A value with the axes of the left that the line does not have yet."""
    name = next(name for name in "HGUTZ" if not re.search(rf"\b{name}\[", text))
    return f"{name}[{left.partition('[')[2] or ']'}"


_SQUARE = "a square is a product, Y[M] = X[M] X[M]; a size has a power, #k^-0.5[]"

ATTEMPTS: tuple[tuple[str, Advice], ...] = (
    (r"#\s+\S|\s//|\s#\s*$|\s%", "a remark is a line of its own that begins with %"),
    (r"^\s*(?:return|def|let|for|if)\b", "a line is `value[axes] = ...`; outputs are named in the header"),
    (r"[−–—]", "a minus is the sign - of the keyboard"),
    (r"[′’‘`]", "a prime is the sign ' of the keyboard: N'"),
    (r"\{[^{}]*\}", "axes stand in square brackets: Y[M f]"),
    (r"[-+*/]=", "a line has one `=`, and names what it reads: X[M d] = X[M d] + b[d]"),
    (r":=|==|<-|←", "a line has one `=`, as in Y[M f] = X[M d] W[d f]"),
    (r"\beinsum\b", "a product needs no word: write its factors side by side, Y[M f] = X[M d] W[d f]"),
    (r"\*\*", _SQUARE),
    (
        r"\s@\s*(?:[\w.*:/-]+\s+){2,}[\w.*:/-]+\s*$|\s@\s*$",
        "a line ends in the module that it is of and what computes it there: @ encoder.*.fc1 linear",
    ),
    (
        r"[@⊗⊙·×]|\*(?!\*)|\b(?:matmul|mm|bmm|dot|mul|multiply|linear)\b\s*\(",
        "factors stand side by side without a sign between them: Y[M f] = X[M d] W[d f]",
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
    (
        r"\b(?:average|avg|reduce_mean)\s*[\[(]",
        "the mean over d is Y[M] = mean[d](X[M d])",
    ),
    (r"\bmax(?:imum)?\s*\(|\bclamp\b|\bclip\b", "the larger of two is maximum(X[M], 0[]), and of 0 and X relu(X[M])"),
    (
        r"(?i)\b(?:layer_?norm|batch_?norm|group_?norm)\b",
        "a normalization is normalize[d](X[M d]), or the layer norm(X; g b)",
    ),
    (r"(?i)\b(?:concat\w*|cat|stack|hstack|vstack)\b", "what would stand side by side is multiplied apart, and added"),
    (r"(?i)\bdropout\b", "dropout is a product with an input, drawn outside: Y[M d] = X[M d] mask[M d]"),
    (
        r"\^T\b|\.T\b|\.mT\b|ᵀ|\b(?:transpose|permute|swapaxes|reshape|view|rearrange)\b",
        "axes have names and need no turning: write them in the order in which the value has them",
    ),
    (r"\b(?:dim|axis|axes)\s*=", "a word has its axes in square brackets before its operands: softmax[N](S[M N])"),
    (r"[^\W\d]\w*\([^()\[\]]*\)\s*=", "axes stand in square brackets: Y[M f]"),
    (r"[^\W\d]\w*\s*\[[^\[\]=]*,[^\[\]]*\]", _blanks),
    (r"\[[^\]]*(?<![\w'.=#^-])\d[^\]]*\]", "an axis has a name, of which the size is given later: Y[M d]"),
    (rf"(?<![\w.\]\[^-])(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?)\s*(?P<value>{_VALUE})", _number),
    (rf"{_WORD}\((?P<inner>\s*{_VALUE}\s*(?:[-+]\s*)?{_VALUE}[^,()]*)\)", _inner),
    (rf"{_WORD}\((?P<inner>\s*{_NAME}(?:\[[^\]]*\])?\(.*\)\s*)\)\s*$", _inner),
    (rf"{_WORD}\((?P<inner>\s*{_NAME}\s+{_NAME}\s*)\)", _inner),
    (r"=\s*\(|[-+]\s*\(|\]\s*\(", "a line has one operation and no parentheses: give the inner one a line of its own"),
    (rf"=\s*(?P<word>{_NAME})\s+(?P<value>{_VALUE})\s*$", _word),
    (r"(?<![\w.\[\]^'-])(?P<lone>\d+\.?\d*(?:[eE][-+]?\d+)?)(?![\w.\[])", _lone),
)

_BARE = re.compile(rf"(?<![\w.]){_NAME}(?![\w.'\[(])")


def advice(text: str) -> str:
    """What to write in place of a refused line, after a semicolon; empty where no row fits."""
    if text.count("[") != text.count("]"):
        return "; a square bracket is open: every [ has its ]"
    for pattern, hint in ATTEMPTS:
        if match := re.search(pattern, text):
            return f"; {hint if isinstance(hint, str) else hint(match)}"
    if bare := _BARE.search(re.sub(r"\[[^\[\]]*\]", "[]", text)):
        return f"; a value shows its axes, as in {bare[0]}[M d]; one without axes has {bare[0]}[]"
    return ""


def in_two_lines(text: str) -> str:
    """What to write in place of a line that multiplies and adds, after a semicolon: a product, then the sum."""
    left, _, right = (part.strip() for part in text.partition("="))
    terms = re.split(r"(?<=\])\s*([-+])\s*", right)
    place = next((at for at in range(0, len(terms), 2) if len(re.findall(_VALUE, terms[at])) > 1), None)
    if place is None:
        return ""
    value = _other(left, text)
    rest = " ".join((*terms[:place], value, *terms[place + 1 :]))
    return f"; first {value} = {terms[place].strip()}, then {left} = {rest}"


HEADERS: tuple[tuple[str, str], ...] = (
    (r"^\s*(?:#|//)", "a remark begins with %"),
    (r"^\s*(?:def|class|layer|function)\s", "without a word before the name"),
    (r"→|=>|⇒", "the arrow is ->"),
    (r":\s*$", "without a colon at the end"),
    (r"\[", "names stand there without their axes, which the first line that reads them declares"),
    (r"->\s*\(", "outputs have no parentheses"),
    (r"^\s*[\w ]*-[\w -]*\(", "a name has _ and no hyphen"),
    (r"^\s*\(", "a layer has a name"),
    (r"->\s*$", "the outputs stand behind the arrow"),
    (r"\)\s*$", "the outputs stand behind an arrow, -> Y"),
)


def header_advice(text: str) -> str:
    """What to write in place of a refused header, after a semicolon; empty where no row fits."""
    return next((f"; {hint}" for pattern, hint in HEADERS if re.search(pattern, text)), "")
