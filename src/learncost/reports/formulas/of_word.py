"""A word of the vocabulary for `explain` and `formulas`: its body and its gradient, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from learncost.cost_models import Book, executed
from learncost.ir.count import Polynomial, total
from learncost.ir.line import Line, Op
from learncost.ir.term import Term
from learncost.ops import OpDef, entry
from learncost.passes.lower import lower_line
from learncost.reports import notation as write
from learncost.reports.formulas.explanation import ExplainedLine, ExplainedPhase, Explanation, Format

_AXES: Mapping[str, str] = {"_": "B"}
_PARTS = {"forward": "body", "backward": "gradient", "jacobian": "jacobian"}


def word_explained(word: OpDef, book: Book, format: Format = "text") -> Explanation:
    """A word's body, its gradient and, where it has one, its Jacobian, with what their lines cost as they run."""
    parts = []
    for phase, part in _PARTS.items():
        lines: Iterable[Line] = getattr(word, part)
        if part == "body" and not word.body:
            lines = _primitive(word)
        steps = tuple(_steps(lines, word))
        if steps or part == "gradient":
            parts.append(ExplainedPhase(phase, steps))
    source = word.source[:1].upper() + word.source[1:]
    kind = f"A primitive, {word.kind}." if word.kind else "A word of the vocabulary."
    letters = "n: the axis that the word acts on; B: all other axes" if _acts(word) else "B: all elements"
    return Explanation(
        word.name,
        " ".join(part for part in (kind, f"{source.rstrip('.')}." if source else "") if part),
        book,
        False,
        tuple(parts),
        (),
        frozenset({"B", "n"}),
        format,
        letters=letters,
    )


def _acts(word: OpDef) -> bool:
    return not word.pointwise and word.kind != "constant"


def _primitive(word: OpDef) -> tuple[Line, ...]:
    """A primitive as the one line that it is."""
    if not word.outputs:
        return ()
    axes = ("_",) if word.pointwise else ("_", "n")
    left = ("_", "k") if word.chooses == "some" else ("_",) if word.reduces else axes
    right = tuple(Term(name, axes) for name in word.inputs)
    acted = ("n",) if word.inputs and not word.pointwise else ()
    outputs = tuple(Term(name, left) for name in word.outputs)
    return (Op(outputs, right, word=word.name, axes=acted, given=word.inputs, gives=word.outputs),)


def _steps(lines: Iterable[Line], word: OpDef) -> Iterator[ExplainedLine]:
    word_lines = tuple(lines)
    names_known = frozenset({*word.inputs, *word.outputs})
    for line in word_lines:
        moved = line.renamed({}, _AXES)
        if isinstance(moved, Op):
            own_word = entry(moved.word)
            moved = replace(moved, given=own_word.inputs, gives=own_word.outputs)
        priced = [executed(part) for part in lower_line(moved)]
        maccs, flops = total(maccs for maccs, _ in priced), total(flops for _, flops in priced)
        bare = replace(moved, tag=replace(moved.tag, equation=""))
        latex, mathml = write.latex(bare, names_known), write.mathml(bare, names_known, display=False)
        yield ExplainedLine("", str(bare), latex, mathml, maccs or Polynomial(), flops or Polynomial())
