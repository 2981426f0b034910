"""A layer line by line, as a table, Markdown, LaTeX and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

from learncost.cost_models import Book
from learncost.ir.dataclass import attributes, dataclass, field, replace
from learncost.ir.line import Line
from learncost.ir.polynomial import Polynomial, total
from learncost.reports import notation as write
from learncost.reports.sheet import NO_BREAK, SPELLED, WIDTH, Sheet, SheetRow, TabularAnswer, number


@dataclass(frozen=True)
class ExplainedLine:
    """A line with its price; `line` is None for the difference of a publication's total from the sum of its lines."""

    equation: str
    text: str
    latex: str
    mathml: str
    maccs: Polynomial
    flops: Polynomial
    depth: int = 0
    outside_paper: bool = False


def explained(
    line: Line,
    names: Collection[str],
    counts: tuple[Polynomial, Polynomial],
    times: str = "",
    depth: int = 0,
    outside_paper: bool = False,
) -> ExplainedLine:
    """Return a line with its MACCs and FLOPs; `names` are those whose gradients are called by a `d` before them."""
    bare = replace(line, meta=replace(line.meta, equation=""))
    formulas = write.latex(bare, names), write.mathml(bare, names, display=False)
    return ExplainedLine(write.equation(line), f"{bare}{times}", *formulas, *counts, depth, outside_paper)


@dataclass(frozen=True)
class ExplainedPhase:
    """The lines of a macro-operation in execution order."""

    macro_operation: str
    steps: tuple[ExplainedLine, ...]

    @property
    def title(self) -> str:
        return self.macro_operation.replace("_", " ").capitalize()

    @property
    def maccs(self) -> Polynomial:
        return total(step.maccs for step in self.steps)

    @property
    def flops(self) -> Polynomial:
        return total(step.flops for step in self.steps)


@dataclass(frozen=True)
class SavedValue:
    """A saved tensor, and the lines that read it later."""

    name: str
    axes: tuple[str, ...]
    given: bool  # an input, which somebody keeps in any case
    readers: tuple[str, ...]
    op: str = ""  # of a value from inside an op's body: the op, and the name in its body
    line: str = ""

    @property
    def elements(self) -> Polynomial:
        return Polynomial.of(self.axes)

    @property
    def text(self) -> str:
        return f"{self.name}[{' '.join(self.axes)}]"


class SymbolicAnswer(TabularAnswer):
    """An answer whose counts are polynomials in the axes: per sequence if possible, and h d_k as d_model."""

    axes: frozenset[str]
    price_book: Book
    jacobian: bool

    @property
    def _counts(self) -> tuple[Polynomial, ...]:
        """All counts that are shown in letters."""
        raise NotImplementedError

    @cached_property
    def _per_sequence(self) -> bool:
        """Return whether counts are per sequence: every one has the batch as a factor, which is omitted."""
        return any(self._counts) and write.divided(self._counts, "B") is not None

    def _written(self, count: Polynomial) -> Polynomial:
        """Return the displayed count: per sequence if possible, with h d_k as d_model."""
        if self._per_sequence:
            (count,) = write.divided((count,), "B") or (count,)
        return write.one_width(count, self.axes)

    @property
    def _book_notes(self) -> list[str]:
        """Return the notes on the price book and its backward pass."""
        book = self.price_book
        backward = f"Backward {'through the explicit Jacobian' if self.jacobian else 'in closed form'}."
        notes = [f"Price book {book.name}: {book.title}; {book.source}."]
        return notes if self.jacobian == book.jacobian else [*notes, backward]


@dataclass(frozen=True, repr=False)
class Explanation(SymbolicAnswer):
    """A layer line by line under a price book, and its saved tensors.

    Attributes
    ----------
    layer
        The explained layer, operator or model, by name.
    source
        The publication.
    price_book
        The price book, a `Book`.
    jacobian
        True if the backward pass goes through explicit Jacobians.
    parts
        A part for each macro-operation: its `title`, its `steps` (`equation`, `text`, `latex`, `maccs`, `flops`), and
        its `maccs` and `flops` in all. Counts are polynomials in the sizes.
    saved
        Saved tensors: `name`, `axes`, `elements`, and the lines that read them.
    axes
        Every axis of the layer.
    sizes
        Of a model, the sizes at which counts are shown.
    letters
        The meanings of the axes, if known.
    part
        Of a model, the layer that was asked for; "" where all are here.
    made
        Of a model, the lines that make what follows from positions and settings alone, once and outside of the step.

    Examples
    --------
    >>> found = lc.explain("norm")
    >>> [(part.title, str(part.flops)) for part in found.parts]
    [('Forward', '7 B M d + 4 B M'), ('Backward', '8 B M d + 2 B M'), ('Weight update', '3 B M d')]
    """

    layer: str
    source: str
    price_book: Book
    jacobian: bool
    parts: tuple[ExplainedPhase, ...]
    saved: tuple[SavedValue, ...]
    axes: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)  # of a model: counts are shown at these
    letters: str = ""  # what the axes stand for, where it is known
    part: str = ""  # of a model: the layer that was asked for
    made: tuple[str, ...] = ()  # of a model: the lines that make inputs from positions and settings, once

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the lines of all phases, and the saved tensors, as one table."""
        left = frozenset({0, 3} if self.sizes else range(4))
        title = f"{self.layer}: {self.source}" if self.source else self.layer
        rows = tuple(self._sheet_rows(in_columns=width > 2 * WIDTH))
        return (Sheet(title, ("line", "MACCs", "FLOPs", ""), rows, self._notes, left),)

    def _rows(self) -> list[Mapping[str, Any]]:
        parts = self.to_dict()["macro_operations"]
        return [{"macro_operation": name, **line} for name, part in parts.items() for line in part["lines"]]

    def _sheet_rows(self, in_columns: bool) -> Iterator[SheetRow]:
        """Yield the lines as rows of one table; totals are in its columns, or below each other as they are long."""
        written: Callable[[str], str] = str if in_columns else _unbroken
        for place, part in enumerate(self.parts):
            yield from [SheetRow(())] if place else []
            yield SheetRow((part.title if part.steps else f"{part.title}: nothing",), "bold")
            for step in part.steps:
                counts = self._short(step.maccs), self._short(step.flops) + ("*" if step.outside_paper else "")
                is_priced = step.latex or step.equation  # not the heading of a loop
                yield SheetRow(
                    (written(step.text), *(counts if is_priced else ("", "")), step.equation), "", step.depth
                )
            totals = {"MACCs": self._total_text(part.maccs), "FLOPs": self._total_text(part.flops)}
            if len(part.steps) > 1 and in_columns:
                yield SheetRow(("total", *totals.values()), "bold")
            elif len(part.steps) > 1:
                yield from (SheetRow((f"{name}  {total}",), "bold", 1) for name, total in totals.items())
        if self.saved:
            yield from (SheetRow(()), SheetRow(("Saved tensors", "elements"), "bold"))
        for array in self.saved:
            read = f"  {'input, ' if array.given else ''}read by {', '.join(array.readers) or 'later iterations'}"
            yield SheetRow((f"{written(array.text)}{read}", self._short(array.elements)))
        if self.saved:
            yield SheetRow((f"elements  {self._short(self.saved_total)}",), "bold", 1)

    def show(self, format: str = "table") -> str:
        """Return the explanation as table, json, csv, md, latex or html."""
        own = {"md": self.markdown, "latex": self._latex}.get(SPELLED.get(format, format))
        return own() if own else super().show(format)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as data; counts are Python expressions, to be multiplied by `times`."""

        def expression(count: Polynomial) -> str:
            return write.python(self._written(count), {} if self.sizes else write.SYMBOLS)

        def counts(of: ExplainedPhase | ExplainedLine) -> dict[str, Any]:
            both = {"maccs": of.maccs, "flops": of.flops}
            values = {f"{name}_value": self._at(count) for name, count in both.items()} if self.sizes else {}
            return {name: expression(count) for name, count in both.items()} | values

        return {
            "schema": 1,
            **({"model": self.layer, "layer": self.part or None} if self.sizes else {"layer": self.layer}),
            "source": self.source,
            "price_book": attributes("name source")(self.price_book),
            "jacobian": self.jacobian,
            "times": "B" if self._per_sequence else "",
            **({"sizes": dict(self.sizes)} if self.sizes else {}),
            "macro_operations": {
                part.macro_operation: {
                    **counts(part),
                    "lines": [
                        {
                            **attributes("equation", line="text", latex="latex")(step),
                            **counts(step),
                            "outside_paper": step.outside_paper,
                        }
                        for step in part.steps
                    ],
                }
                for part in self.parts
            },
            "saved": [
                {
                    "name": array.name,
                    "axes": list(array.axes),
                    "elements": expression(array.elements),
                    "input": array.given,
                    "read_by": list(array.readers),
                }
                for array in self.saved
            ],
            **({"made": list(self.made)} if self.made else {}),
        }

    # How counts are written.

    @property
    def _counts(self) -> tuple[Polynomial, ...]:
        """All counts; none of a model, whose are at its sizes."""
        counts = [c for part in self.parts for step in part.steps for c in (step.maccs, step.flops)]
        return () if self.sizes else (*counts, *(array.elements for array in self.saved))

    def _at(self, count: Polynomial) -> int:
        """Return the count at the model's sizes."""
        return int(count.at(self.sizes)) if count.terms else 0

    def _short(self, count: Polynomial) -> str:
        """Return the count in the letters of the axes; for a model, the number."""
        return number(self._at(count)) if self.sizes else write.plain(self._written(count), {})

    def _total_text(self, count: Polynomial) -> str:
        """Return a total in letters, and for a model also as a number."""
        letters = write.plain(self._written(count), {})
        return f"{letters} = {self._short(count)}" if self.sizes and count.terms else letters

    @property
    def _notes(self) -> tuple[str, ...]:
        """Return the notes: axes, meaning of counts, price book and its source."""
        letters = (
            []
            if self.letters
            else [f"{axis} = {symbol}" for axis, symbol in write.SYMBOLS.items() if axis in self.axes - {symbol}]
        )
        notes = [", ".join(letters) + "."] if letters else []
        if self.letters:
            notes.append(f"{self.letters}.")
        if {"d", "h", "k"} <= self.axes and "g" not in self.axes:
            notes.append("h k is written d in counts.")
        if self._per_sequence:
            sequence = "Counts are per sequence; multiply by B for a batch of B sequences."
            notes.append("Counts are for B = 1." if self.letters else sequence)
        if any(step.depth for part in self.parts for step in part.steps):
            notes.append("Lines of a loop are listed once, with the counts of all iterations.")
        if any(step.outside_paper for part in self.parts for step in part.steps):
            notes.append("* not in the publication, priced by run.")
        notes += [f"{array.name} is line {array.line} of the body of {array.op}." for array in self.saved if array.line]
        notes += self._book_notes
        if self.made:
            notes += ["Computed once, outside the step, from positions and settings:", *self.made]
        return tuple(notes)

    @property
    def saved_total(self) -> Polynomial:
        """The number of elements of all saved tensors."""
        return total(array.elements for array in self.saved)

    # The formats.

    def markdown(self) -> str:
        """Return the explanation as Markdown with LaTeX formulas between dollar signs."""

        def formula(count: Polynomial) -> str:
            return f"${write.latex(self._written(count))}$"

        lines = [f"# {self.layer}", "", self.source, ""]
        for part in self.parts:
            lines += [f"## {part.title}", ""]
            if not part.steps:
                lines += ["Nothing.", ""]
                continue
            lines += ["| equation | line | | MACCs | FLOPs |", "| --- | --- | --- | --- | --- |"]
            for step in part.steps:
                written = f"${step.latex}$" if step.latex else ""
                text = f"`{step.text}`" if step.latex else step.text
                cells = (step.equation, text, written, formula(step.maccs), formula(step.flops))
                lines.append(f"| {' | '.join(cells)} |")
            lines += [f"| | **total** | | {formula(part.maccs)} | {formula(part.flops)} |", ""]
        if self.saved:
            lines += ["## Saved tensors", "", "| value | elements | read by |", "| --- | --- | --- |"]
            for array in self.saved:
                name = f"`{array.text}`" + (" (input)" if array.given else "")
                lines.append(f"| {name} | {formula(array.elements)} | {', '.join(f'`{r}`' for r in array.readers)} |")
            lines += [f"| **total** | {formula(self.saved_total)} | |", ""]
        return "\n".join([*lines, *(note + "\n" for note in self._notes)]).rstrip() + "\n"

    def _latex(self) -> str:
        lines = [f"% {self.layer}: {self.source}" if self.source else f"% {self.layer}"]
        for part in self.parts:
            if not part.steps:
                continue
            lines += [rf"\paragraph{{{part.title}}}", r"\begin{align*}"]
            rows = []
            for step in part.steps:
                maccs, flops = write.latex(self._written(step.maccs)), write.latex(self._written(step.flops))
                number = rf" \tag{{{step.equation.strip('()')}}}" if step.equation else ""
                left = step.latex or rf"\text{{{step.text}}}"
                rows.append(rf"& {left} && {maccs}\ \text{{MACCs}},\ {flops}\ \text{{FLOPs}}{number}")
            lines += [" \\\\\n".join(rows), r"\end{align*}"]
        return "\n".join([*lines, *(f"% {note}" for note in self._notes)])


def _unbroken(text: str) -> str:
    """Return a line that a cell breaks between its terms."""
    term = r"\[(?:[^][]|\[[^][]*\])*\]|where \S+ <=? \S+|\(\d+ equal lines\)"
    return re.sub(term, lambda match: match[0].replace(" ", NO_BREAK), text)
