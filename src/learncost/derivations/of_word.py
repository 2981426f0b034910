"""A word of the vocabulary for `explain` and `formulas`: its body and its gradient, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from learncost.derivations.explanation import Explanation, Format, Part, Step
from learncost.equation.count import Count, total
from learncost.equation.table import Line, Term, Word
from learncost.layers.lower import lower_line
from learncost.readings import write
from learncost.readings.price import Book, executed
from learncost.vocabulary import Entry, entry

_AXES: Mapping[str, str] = {"_": "B"}
_PARTS = {"forward": "body", "backward": "gradient", "jacobian": "jacobian"}


def word_explained(found: Entry, book: Book, format: Format = "text") -> Explanation:
    """A word's body, its gradient and, where it has one, its Jacobian, with what their lines cost as they run."""
    parts = []
    for macro, part in _PARTS.items():
        lines: Iterable[Line] = getattr(found, part)
        if part == "body" and not found.body:
            lines = _primitive(found)
        steps = tuple(_steps(lines, found))
        if steps or part == "gradient":
            parts.append(Part(macro, steps))
    told = found.source[:1].upper() + found.source[1:]
    kind = f"A primitive, {found.kind}." if found.kind else "A word of the vocabulary."
    letters = "n: the axis that the word acts on; B: all other axes" if _acts(found) else "B: all elements"
    return Explanation(
        found.name,
        " ".join(part for part in (kind, f"{told.rstrip('.')}." if told else "") if part),
        book,
        False,
        tuple(parts),
        (),
        frozenset({"B", "n"}),
        format,
        letters=letters,
    )


def _acts(found: Entry) -> bool:
    return not found.pointwise and found.kind != "constant"


def _primitive(found: Entry) -> tuple[Line, ...]:
    """A primitive as the one line that it is."""
    if not found.outputs:
        return ()
    axes = ("_",) if found.pointwise else ("_", "n")
    left = ("_", "k") if found.chooses == "some" else ("_",) if found.reduces else axes
    right = tuple(Term(name, axes) for name in found.inputs)
    acted = ("n",) if found.inputs and not found.pointwise else ()
    outputs = tuple(Term(name, left) for name in found.outputs)
    return (Word(outputs, right, word=found.name, axes=acted, given=found.inputs, gives=found.outputs),)


def _steps(lines: Iterable[Line], found: Entry) -> Iterator[Step]:
    own = tuple(lines)
    known = frozenset({*found.inputs, *found.outputs})
    for line in own:
        moved = line.renamed({}, _AXES)
        if isinstance(moved, Word):
            own_word = entry(moved.word)
            moved = replace(moved, given=own_word.inputs, gives=own_word.outputs)
        priced = [executed(part) for part in lower_line(moved)]
        maccs, flops = total(maccs for maccs, _ in priced), total(flops for _, flops in priced)
        bare = replace(moved, tag=replace(moved.tag, equation=""))
        latex, mathml = write.latex(bare, known), write.mathml(bare, known, display=False)
        yield Step("", str(bare), latex, mathml, maccs or Count(), flops or Count())
