"""Compute the error of a plain pass and add it to the input of a modulated pass.

The error over the vocabulary is added to the one-hot tokens of an embedding; if their positions differ from the
output's, an attention projects it to them. Any other input gets the error through a fixed random matrix. Pau & Aymone
2024, Algorithms 1 and 2, sections 5.1.2 and 5.7.
"""

from __future__ import annotations

from collections.abc import Iterator

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base
from learncost.ir.term import Axis, Read, Term
from learncost.ir.value import Role, Value
from learncost.layers.layer import shipped_layer
from learncost.layers.rewrite import with_padding
from learncost.models.families import instead
from learncost.models.model import Model
from learncost.models.tables import addable
from learncost.passes.rematerialization import in_phase
from learncost.procedures.optimizer import names_of_numbers, values_of_numbers
from learncost.procedures.procedure import ELSEWHERE, LEARNING, Procedure

NUMBERS = ("count", "strength", "inverse_count")
"""Inputs of a step: the number of targets, sign x scale of the modulation, and `inverse_count`.

`inverse_count` is one over the number of targets. With a padding mask it is an array that is 0 at padded rows:
`inverse_count.M` for the decoder's rows, or the only ones, and `inverse_count.N` for the encoder's.
"""


class Modulation:
    """The error of a model's plain pass, and the lines that add it to the input of the modulated pass.

    error  the lines that compute the error; the last one computes `e`
    given  the additional inputs of these lines and of those that read their results
    """

    def __init__(self, model: Model, chosen: Procedure, reverse: tuple[Statement, ...]) -> None:
        self.model = model
        self.attention = chosen.moves.get(ELSEWHERE, "")
        self.numbers = names_of_numbers(model.table, NUMBERS, chosen.name)
        self.error = self.error_lines(reverse)
        self.e = self.error[-1].left[0]
        self.elsewhere: dict[str, str] = {}  # the error at the positions of an index, by the index
        self.masks: dict[str, Value] = {}  # padding masks of the attention that projects it
        numbers = {name: self.numbers[name] for name in ("count", "strength")}
        self.given = {"dloss": Value((), "gradient", "loss"), **values_of_numbers(numbers)}

    @property
    def strength(self) -> Term:
        """Return the term of the error's factor, sign x scale."""
        return Term(self.numbers["strength"], ())

    def error_lines(self, reverse: tuple[Statement, ...]) -> tuple[Line, ...]:
        """Return the lines that compute e = s - target: backpropagation's lines from the loss to the scores, times the
        count."""
        lines: list[Line] = []
        for line in reverse:
            if isinstance(line, Loop) or set(self.model.table.weights) & set(line.reads):
                break
            if line.meta.phase == "backward":
                lines.append(line)
        if not lines:
            name = self.model.configuration.name
            raise InputError(f"{name} has no scores between its weights and its loss, which {identical()} compare")
        scores = lines[-1].left[0]
        e = Product(
            (Term("e", scores.axes),),
            (scores, Term(self.numbers["count"], ())),
            (),
            Meta(lines[0].meta.layer, local="e"),
        )
        return (*in_phase(lines, "forward"), e)

    def one_hot(self, line: Statement) -> Read | None:
        """Return the index by which a line looks up rows of a weight along the axis of the error's classes; None for
        other lines."""
        if not isinstance(line, Product) or len(line.right) > 1 or line.right[0].name not in self.model.table.weights:
            return None
        reads = line.right[0].indexed_axes
        inputs = self.model.table.inputs
        lookups = [read for read in reads if read.axis in self.e.axes and read.at.name in inputs]
        return lookups[0] if len(lookups) == len(reads) == 1 else None

    def brought(self) -> Iterator[Line]:
        """Yield the lines that project the error to the positions of inputs that differ from the output's: equation
        (48)."""
        reads = [read for read in map(self.one_hot, self.model.table.lines) if read]
        same_places = [read for read in reads if {*read.at.loops, read.axis} == set(self.e.axes)]
        if not same_places and not self.model.projected:
            configuration = self.model.configuration
            several = addable(self.model.table) if configuration.layer else ()
            others = f"; --projected adds it to other inputs or embeddings: {', '.join(several)}" if several else ""
            raise InputError(
                f"the output of {configuration.name} (counted: {configuration.counted}) is not over the vocabulary: "
                f"{identical()} add its error to the one-hot tokens{others}; bp does without"
                f"{'' if configuration.layer else instead(configuration.family)}"
            )
        for read in reads:
            if read in same_places or read.at.name in self.elsewhere:
                continue
            layer = shipped_layer(self.attention)
            layer = with_padding(layer) if self.model.padded else layer
            table, (index, error, *masks) = layer.table, layer.table.inputs
            renamed = {index: read.at.name, error: self.e.name, **{name: f"error.{name}" for name in masks}}
            axes = dict(zip(table.axes[index] + table.axes[error], (*read.at.loops, *self.e.loops), strict=True))
            self.masks |= {renamed[name]: table.values[name] for name in masks}
            self.elsewhere[read.at.name] = f"error.{table.outputs[0]}"
            lines = in_phase(table.lines, "error_projection")
            names = renamed | {line.name: f"error.{line.name}" for line in lines}
            yield from (line.renamed(names, axes) for line in lines)

    def error_at(self, read: Read) -> Term:
        """Return the error at the positions of an index."""
        return Term(self.elsewhere.get(read.at.name, self.e.name), (*read.at.loops, read.axis))

    def with_input(self, line: Line, again: Line) -> list[Line]:
        """Return a line of the modulated pass, followed by lines that add the error if it reads an input.

        The modulated input of an embedding is dense: (T + strength e) W = rows + strength (e W).
        """
        left, read = line.left[0], self.one_hot(line)
        if read is None and left.name not in self.model.projected:
            return [again]
        rows = Term(f"{left.name}^rows", left.axes)
        again = replace(again, left=(rows,))
        if read is None or left.name in self.model.projected:
            return [again, *self.projection(left, rows, line.meta)]
        weight = Term(line.right[0].name, line.right[0].declared)
        return [again, *self.with_error(left, rows, (self.error_at(read), weight), left.axes, line.meta, "e W")]

    def projection(self, value: Term, plain: Term, meta: Meta) -> list[Line]:
        """Return the lines that add the error to a value through a fixed random matrix, x + strength e F.

        The matrix is the same for every sequence and position, and has all other axes of the value, such as pixels.
        """
        error, axes_of_value = self.e, value.loops
        wide = tuple(axis for axis in axes_of_value if axis not in {*self.positions("index"), *error.loops})
        fixed = Term(f"{value.name}.F", (*(axis for axis in error.loops if axis not in axes_of_value), *wide))
        self.given[fixed.name] = Value(fixed.loops, "projection", value.name)
        axes = tuple(axis for axis in axes_of_value if axis in (*error.loops, *wide))
        return self.with_error(
            Term(value.name, axes_of_value), plain, (error, fixed), axes, replace(meta, phase="forward"), "F e"
        )

    def with_error(
        self, value: Term, plain: Term, by: tuple[Term, Term], axes: tuple[Axis, ...], meta: Meta, local: str
    ) -> list[Line]:
        """Return the lines that compute a value of the modulated pass: the plain value plus the error times a matrix
        and the strength."""
        dense, scaled = (Term(f"{value.name}^{part}", axes) for part in ("dense", "scaled"))
        meta = replace(meta, local="F e", equation="", locals=())
        modulated = Term(f"{value.name}^", value.axes)
        return [
            Product((dense,), by, (), replace(meta, local=local)),
            Product((scaled,), (dense, self.strength), (), meta),
            Sum((modulated,), (plain, scaled), (), replace(meta, local="x + F e"), (1, 1)),
        ]

    def positions(self, role: Role) -> frozenset[str]:
        """Return the axes of the inputs with a role."""
        values = self.model.table.values
        inputs = (name for name in self.model.table.inputs if values[name].role == role)
        return frozenset(base(axis) for name in inputs for axis in values[name].axes)


def identical() -> str:
    """Return the names of all procedures that compare two forward passes, for messages."""
    return " and ".join(name for name, procedure in LEARNING.items() if procedure.compares)
