"""Updates by differences: the deltas of PEPITA and MEMPEPITA are differences of two forward passes.

A plain pass gives the error; it is added to the input; a modulated pass follows. A weight's update line is the one that
derivation gives, with the difference of the compared value in place of the gradient that it reads, and the modulated
pass's values in place of the forward ones. Where the plain pass runs again beside the modulated one, nothing of the
first is kept. Pau & Aymone 2024, Algorithms 1 and 2, table 2, sections 5.1.2 and 5.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from learncost.equation.count import base
from learncost.equation.errors import InputError
from learncost.equation.table import (
    Axis,
    Carry,
    Line,
    Product,
    Read,
    Repeat,
    Statement,
    Sum,
    Table,
    Tag,
    Term,
    Word,
    defined,
)
from learncost.equation.value import Role, Value
from learncost.layers.derive import derive
from learncost.layers.layer import shipped_layer
from learncost.layers.recompute import in_macro
from learncost.layers.rewrite import with_padding
from learncost.models.configuration import family_of
from learncost.models.families import instead
from learncost.models.model import Model
from learncost.procedures.moves import ELSEWHERE
from learncost.procedures.numbers import names_of_numbers, values_of_numbers
from learncost.procedures.procedure import LEARNING, PROCEDURES, Mode, Procedure
from learncost.vocabulary import entry

NUMBERS = ("count", "strength", "inverse_count")
"""Of a step: how many targets there are, and sign x scale of the modulation.

Beside them comes one over the count, `inverse_count`; with a padding mask it is an array, `inverse_count.M` for the
decoder's rows (or the only ones) and `inverse_count.N` for the encoder's, 0 at padded ones.
"""


def by_differences(model: Model, chosen: Procedure, mode: Mode) -> tuple[Table, Mapping[str, str]]:
    """One step as a table whose outputs are the weights' updates, and what these are called.

    Raises `InputError` for a model of which a part is frozen, or without an output to learn from.
    """
    if model.trained is not None:
        others = " and ".join(name for name, other in PROCEDURES.items() if not other.compares)
        frozen = family_of(model.configuration).frozen
        example = f"as {', '.join(frozen)} of {model.configuration.family}" if frozen else "and LoRA"
        raise InputError(f"{chosen.name} updates every weight: frozen weights {example} are for {others}")
    if not model.learns:
        raise InputError(
            f"{model.configuration.name} has no output to learn from (counted: {model.configuration.counted}); "
            f"{_alike()} need one, as gpt2 or `encoder` has{instead(model.configuration.family)}"
        )
    return _Differences(model, chosen, mode).table(), {weight: f"d{weight}" for weight in model.table.weights}


def _alike() -> str:
    """All procedures of this kind, in a message."""
    return " and ".join(name for name, procedure in LEARNING.items() if procedure.compares)


class _Differences:
    """The passes of one step over one model's table."""

    def __init__(self, model: Model, chosen: Procedure, mode: Mode) -> None:
        self.model = model
        self.derived = derive(model.table, wanted=model.learning)
        self.known = dict(self.derived.step.known)
        self.of_weights = _updated(self.derived.reverse.lines)
        self.mode = mode
        self.plain_again = any(move.form == "forward" for move in chosen.sweeps[-1])
        self.attention = chosen.moves.get(ELSEWHERE, "")
        # Of what the modulation reaches, the names in the modulated pass; those of the scope that is gone through.
        self.mirror = {name: f"{name}^" for name in model.projected if name in model.table.inputs}
        self.numbers = names_of_numbers(model.table, NUMBERS, chosen.name)
        self.error = self.error_lines()
        self.e = self.error[-1].left[0]
        self.elsewhere: dict[str, str] = {}  # the error at the positions of an index, by the index
        self.masks: dict[str, Value] = {}  # of padding, on the way there
        # Beside the model's own inputs:
        numbers = {name: self.numbers[name] for name in ("count", "strength")}
        self.given = {"dloss": Value((), "gradient", "loss"), **values_of_numbers(numbers)}

    def table(self) -> Table:
        plain = self.model.table
        projections = tuple(self.brought())
        first: list[Statement] = []
        second: list[Statement] = []
        for name in self.model.projected:
            if name in plain.inputs:
                second += self.projection(Term(name, plain.axes[name]), Term(name, plain.axes[name]), Tag())
        for line in plain.lines:
            if isinstance(line, Repeat):
                standard, modulated = self.repeat(line, self.derived.reverse.lines)
                first.append(standard)
                second += modulated
            else:
                first.append(line)
                second += [line, *self.modulated(line)] if self.plain_again else self.modulated(line)
        updates = self.updates(plain.lines, self.derived.reverse.lines)
        lines = (*first, *self.error, *projections, *second, *updates)
        self.given |= self.masks
        return replace(
            plain,
            lines=lines,
            values=self.declared(lines, {**plain.values, **self.given}),
            inputs=(*plain.inputs, *self.given),
            outputs=(*plain.outputs, *self.derived.gradients.values()),
        )

    def error_lines(self) -> tuple[Line, ...]:
        """e = s - target: backpropagation's own lines from the loss to the scores of the head, times the count."""
        lines: list[Line] = []
        for line in self.derived.reverse.lines:
            if isinstance(line, Repeat) or set(self.model.table.weights) & set(line.reads):
                break
            if line.tag.macro == "backward":
                lines.append(line)
        if not lines:
            name = self.model.configuration.name
            raise InputError(f"{name} has no scores between its weights and its loss, which {_alike()} compare")
        scores = lines[-1].left[0]
        e = Product(
            (Term("e", scores.axes),), (scores, Term(self.numbers["count"], ())), (), Tag(lines[0].tag.layer, local="e")
        )
        return (*in_macro(lines, "forward"), e)

    def one_hot(self, line: Statement) -> Read | None:
        """Where a line looks up rows of a weight at an index that comes in, along the axis of the error's classes."""
        if not isinstance(line, Product) or len(line.right) > 1 or line.right[0].name not in self.model.table.weights:
            return None
        reads = [axis for axis in line.right[0].axes if isinstance(axis, Read)]
        inputs = self.model.table.inputs
        lookups = [read for read in reads if read.axis in self.e.axes and read.at.name in inputs]
        return lookups[0] if len(lookups) == len(reads) == 1 else None

    def brought(self) -> Iterator[Line]:
        """The error brought to inputs at other positions than the output's, where there are some: equation (48)."""
        reads = [read for read in map(self.one_hot, self.model.table.lines) if read]
        same_places = [read for read in reads if {*read.at.loops, read.axis} == set(self.e.axes)]
        if not same_places and not self.model.projected:
            configuration = self.model.configuration
            others = "; lc.Training(..., projected=...) says other inputs" if configuration.layer else ""
            raise InputError(
                f"the output of {configuration.name} (counted: {configuration.counted}) is not over the vocabulary: "
                f"{_alike()} add its error to the one-hot tokens{others}; bp does without"
                f"{instead(configuration.family)}"
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
            lines = in_macro(table.lines, "error_projection")
            names = renamed | {line.name: f"error.{line.name}" for line in lines}
            yield from (line.renamed(names, axes) for line in lines)

    def error_at(self, read: Read) -> Term:
        """The error at the positions of an index."""
        return Term(self.elsewhere.get(read.at.name, self.e.name), (*read.at.loops, read.axis))

    def modulated(self, line: Line) -> list[Line]:
        """A line of the modulated pass. The embedding's input is dense: (T + strength e) W = rows + strength (e W).

        What the standard pass chose holds here too: a difference is of one expert's outputs.
        """
        if isinstance(line, Word) and entry(line.word).kind == "choice":
            return []
        self.mirror |= {name: f"{name}^" for name in line.makes}
        left, read = line.left[0], self.one_hot(line)
        again = line.renamed(self.mirror)
        if read is None and left.name not in self.model.projected:
            return [again]
        rows = Term(f"{left.name}^rows", left.axes)
        again = replace(again, left=(rows,))
        if read is None or left.name in self.model.projected:
            return [again, *self.projection(left, rows, line.tag)]
        weight = Term(line.right[0].name, line.right[0].declared)
        return [again, *self.with_error(left, rows, (self.error_at(read), weight), left.axes, line.tag, "e W")]

    def projection(self, value: Term, plain: Term, tag: Tag) -> list[Line]:
        """A value of the modulated pass to which the error is added through a fixed random matrix, x + strength e F.

        It is the same in every sequence and at every position, and has all other axes of the value: an image's pixels.
        """
        error, axes_of_value = self.e, value.loops
        wide = tuple(axis for axis in axes_of_value if axis not in {*self.positions("index"), *error.loops})
        fixed = Term(f"{value.name}.F", (*(axis for axis in error.loops if axis not in axes_of_value), *wide))
        self.given[fixed.name] = Value(fixed.loops, "projection", value.name)
        axes = tuple(axis for axis in axes_of_value if axis in (*error.loops, *wide))
        return self.with_error(
            Term(value.name, axes_of_value), plain, (error, fixed), axes, replace(tag, macro="forward"), "F e"
        )

    def with_error(
        self, value: Term, plain: Term, by: tuple[Term, Term], axes: tuple[Axis, ...], tag: Tag, local: str
    ) -> list[Line]:
        """A value of the modulated pass: the plain one, and the error times a matrix and the strength."""
        dense, scaled = (Term(f"{value.name}^{part}", axes) for part in ("dense", "scaled"))
        tag = replace(tag, local="F e", equation="", locals=())
        modulated = Term(self.mirror[value.name], value.axes)
        return [
            Product((dense,), by, (), replace(tag, local=local)),
            Product((scaled,), (dense, Term(self.numbers["strength"], ())), (), tag),
            Sum((modulated,), (plain, scaled), (), replace(tag, local="x + F e"), (1, 1)),
        ]

    def repeat(self, line: Repeat, reverse: Iterable[Statement]) -> tuple[Repeat, list[Statement]]:
        """A repeat of the standard pass, and of the modulated one, after the zeros of the totals that it carries.

        Every turn of the latter: the standard lines again where nothing is kept, modulated lines, differences, updates.
        """
        reverse = tuple(reverse)
        back = self.backwards(line, reverse)
        around = self.mirror
        slices = {inside: outer for inside, outer in line.each if outer in around}
        names_inside = (*(carry.start for carry in line.carry), *slices)
        self.mirror = around | {name: f"{name}^" for name in names_inside}
        first, lines = self.turn(line.lines, back.lines if back else ())
        lines += self.updates(line.lines, back.lines if back else ())
        makes = defined(lines)
        totals = tuple(carry for carry in back.carry if carry.end in makes) if back else ()
        zeros = [
            statement for statement in reverse if not {carry.initial for carry in totals}.isdisjoint(statement.makes)
        ]
        values = {**line.values, **{self.mirror[name]: Value(line.axes[name]) for name in names_inside}}
        values |= {carry.start: self.known[carry.start] for carry in totals}
        inner, self.mirror = self.mirror, around | {name: f"{name}^" for name in line.makes}
        carry = tuple(
            Carry(inner[c.start], inner[c.end], around.get(c.initial, c.initial), self.mirror[c.final])
            for c in line.carry
        )
        each = tuple((inner[inside], around[outer]) for inside, outer in slices.items())
        keep = [(inner[inside], self.mirror[outer]) for inside, outer in line.keep]
        self.known |= {self.mirror[outer]: self.known[outer] for _, outer in line.keep}
        keep += [(inside, outer) for inside, outer in back.keep if inside in makes] if back else []
        read = dict.fromkeys(name for statement in lines for name in statement.reads)
        standard = {c.start for c in line.carry} | defined(first)
        stacks = {name: dict(line.keep).get(name, f"{name}*") for name in read if name in standard}
        slices_read = [pair for pair in line.each if pair[0] not in slices or pair[0] in read]
        again, more = line, tuple(pair for pair in stacks.items() if pair not in line.keep)
        if not self.plain_again:
            again = replace(line, carry=(), each=(*slices_read, *stacks.items()), keep=())
            line = replace(line, lines=tuple(first), values=self.declared(first, line.values), keep=(*line.keep, *more))
            values |= {name: line.values[name] for name in stacks}
        modulated_repeat = replace(
            again,
            lines=tuple(lines),
            values=self.declared(lines, values),
            carry=(*again.carry, *carry, *totals),
            each=(*again.each, *each),
            keep=(*again.keep, *keep),
        )
        return line, [*zeros, modulated_repeat]

    def turn(self, lines: Iterable[Statement], reverse: Iterable[Statement]) -> tuple[list[Statement], list[Statement]]:
        """The lines of a turn in the standard pass, and in the modulated one."""
        first: list[Statement] = []
        second: list[Statement] = []
        modulated: list[Statement] = []
        for line in lines:
            if isinstance(line, Line):
                first.append(line)
                second += [line] if self.plain_again else []
                modulated += self.modulated(line)
                continue
            standard, modulated_repeat = self.repeat(line, reverse)
            first.append(standard)
            second += [*modulated, *modulated_repeat]
            modulated = []
        return first, [*second, *modulated]

    def updates(self, forward: Iterable[Statement], reverse: Iterable[Statement]) -> list[Line]:
        """The update lines of a scope, each after the difference that it needs: delta = (a - a_mod)/count."""
        forward = tuple(forward)
        lines = {term.name: line for line in forward if isinstance(line, Line) for term in line.left}
        differences: dict[str, list[Line]] = {}
        result: list[Line] = []
        for update in reverse:
            if isinstance(update, Repeat) or update.tag.macro != "weight_update" or not update.reads:
                continue
            names = dict(self.mirror) if self.mode.modulated_inputs else {}
            for name in update.reads:
                role, source = self.about(name)
                if name in self.of_weights:  # of a value that both passes make of weights alone: it has no difference
                    continue
                if role == "gradient" and source in lines and name not in {e.name for e in self.error}:
                    compared = self.followed(source, forward)
                    if compared not in differences:
                        differences[compared] = self.difference(lines[compared])
                        result += differences[compared]
                    names[name] = differences[compared][-1].name
                elif role == "gradient" and source in self.mirror and source not in lines:
                    raise InputError(
                        f"{source} is read by the turns of a repeat inside of a block, not by a product, which "
                        f"{_alike()} do not support; bp does"
                    )
                elif role == "unsummed":
                    word, (_, weight) = lines[source], self.about(update.name)
                    assert isinstance(word, Word)
                    raise InputError(
                        f"{weight} is read by {word.word}, not by a product, which {_alike()} do not support; bp does"
                    )
            _, first = self.about(update.right[0].name)
            read = self.one_hot(lines[first]) if first in lines and first not in self.model.projected else None
            new = update.renamed(names)
            result += self.dense_update(read, new) if read and self.mode.modulated_inputs else [new]
        return result

    def difference(self, line: Line) -> list[Line]:
        left = Term(line.left[0].name, line.left[0].declared)  # whole, also where the line fills a part of it
        undivided, delta = Term(f"difference.{left.name}", left.axes), Term(f"delta.{left.name}", left.axes)
        tag = Tag(line.tag.layer, line.tag.block, "weight_update", local=f"{line.tag.local} - {line.tag.local}_mod")
        tag = replace(tag, module=line.tag.module)
        standard, modulated = Term(left.name, left.axes), Term(self.mirror[left.name], left.axes)
        return [
            Sum((undivided,), (standard, modulated), (), tag, (1, -1)),
            Product((delta,), (undivided, self.inverse_count(left)), (), replace(tag, local=f"delta {line.tag.local}")),
        ]

    def positions(self, role: Role) -> frozenset[str]:
        """The axes along which inputs of a role come."""
        values = self.model.table.values
        inputs = (name for name in self.model.table.inputs if values[name].role == role)
        return frozenset(base(axis) for name in inputs for axis in values[name].axes)

    def inverse_count(self, value: Term) -> Term:
        axes = tuple(axis for axis in value.loops if axis in self.positions("padding"))
        term = Term(".".join((self.numbers["inverse_count"], *axes[1:])), axes)
        self.given[term.name] = Value(axes, "number", "inverse_count")
        return term

    def dense_update(self, read: Read, update: Line) -> list[Line]:
        """The embedding: rows of its tokens as derived, and every row from the error, (strength e)^T delta."""
        delta, declared = update.right[0], update.left[0].declared
        assert isinstance(delta, Term)
        total, rows, dense = (Term(f"{update.name}{part}", declared) for part in ("", "^rows", "^dense"))
        scaled = Term(f"{delta.name}^scaled", delta.axes)
        tag = replace(update.tag, local="e^T delta", equation="")
        return [
            replace(update, left=(Term(rows.name, update.left[0].axes),)),
            Product((scaled,), (delta, Term(self.numbers["strength"], ())), (), replace(tag, local="F delta")),
            Product((dense,), (self.error_at(read), scaled), (), tag),
            Sum((total,), (rows, dense), (), replace(tag, local="merge"), (1, 1)),
        ]

    def followed(self, name: str, scope: tuple[Statement, ...]) -> str:
        """The value that stands for a product's output: after biases and pointwise words, while it has one reader."""
        constant = {*self.model.table.weights, *self.model.table.inputs}
        while True:
            readers = [line for line in scope if name in line.reads]
            if len(readers) != 1 or not isinstance(reader := readers[0], Line):
                return name
            others = [term.name for term in reader.right if isinstance(term, Term) and term.name != name]
            term = next(term for term in reader.right if term.name == name)
            bias = isinstance(reader, Sum) and (self.mode.through_residuals or constant.issuperset(others))
            pointwise = isinstance(reader, Word) and entry(reader.word).pointwise and not others
            if not (bias or pointwise) or term.axes != reader.left[0].axes:
                return name
            name = reader.name

    def backwards(self, line: Repeat, reverse: Iterable[Statement]) -> Repeat | None:
        """The backward repeat of a forward one, among the lines backwards of its scope; None where it needs none.

        What comes out of the last turn is whose gradient goes into the first turn backwards.
        """
        finals = {carry.final for carry in line.carry}
        for back in reverse:
            if isinstance(back, Repeat):
                into = [self.known[carry.initial] for carry in back.carry]
                if any(value.role == "gradient" and value.of in finals for value in into):
                    return back
        return None

    def about(self, name: str) -> tuple[Role, str]:
        """What backpropagation has a value for, and of which other one."""
        value = self.known.get(name, Value(()))
        return value.role, value.of

    def declared(self, lines: Iterable[Statement], values: Mapping[str, Value]) -> dict[str, Value]:
        """All names of a scope, with their axes as its lines and repeats show them."""
        result = dict(values)
        for line in lines:
            if isinstance(line, Repeat):
                values_made = {carry.final: Value(line.axes[carry.end]) for carry in line.carry}
                values_made |= {outer: Value((line.count, *line.axes[name]), "kept", name) for name, outer in line.keep}
            else:
                values_made = {term.name: Value(term.declared) for term in line.left}
            result |= {name: self.known.get(name, value).along(value.axes) for name, value in values_made.items()}
        return result


def _updated(lines: Iterable[Statement]) -> frozenset[str]:
    """What lines of the weight update make, and what repeats hand out of it."""
    names: set[str] = set()
    for line in lines:
        if isinstance(line, Repeat):
            inside = _updated(line.lines)
            names |= inside | {carry.final for carry in line.carry if carry.end in inside}
        elif line.tag.macro == "weight_update":
            names |= set(line.makes)
    return frozenset(names)
