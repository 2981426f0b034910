"""PEPITA and MEMPEPITA on a model's table: deltas are differences of two forward passes.

A standard pass gives the error; it is added to the input; a modulated pass follows. A weight's update line is the one
that derivation gives, with the difference of the compared value in place of the gradient that it reads, and the
modulated pass's values in place of the forward ones. MEMPEPITA keeps nothing and runs a second standard pass beside the
modulated one. Pau & Aymone 2024, Algorithms 1 and 2, table 2, sections 5.1.2 and 5.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from learncost.equation.errors import InputError
from learncost.equation.table import Carry, Line, Product, Repeat, Statement, Sum, Table, Tag, Term, Word, defined
from learncost.equation.value import Role, Value
from learncost.layers.derive import Derived
from learncost.layers.layer import named
from learncost.layers.recompute import in_macro
from learncost.layers.rewrite import with_padding
from learncost.models.families import instead
from learncost.models.model import Model
from learncost.procedures.backpropagation import backpropagation, backwards
from learncost.vocabulary import entry

CONTROLS = ("count", "strength")
"""Scalars of a step: how many targets there are, and sign x scale of the modulation.

Beside them comes one over the count, `inverse_count`; with a padding mask it is an array, `inverse_count.M` for the
decoder's rows (or the only ones) and `inverse_count.N` for the encoder's, 0 at padded ones.
"""


@dataclass(frozen=True)
class Mode:
    """Which pass an update reads its inputs from, how far values are followed, and how the input is modulated."""

    sign: float
    scale: float
    modulated_inputs: bool
    through_residuals: bool
    source: str


MODES: Mapping[str, Mode] = {
    "paper": Mode(1.0, 1.0, True, False, "Pau & Aymone 2024, Algorithms 1 and 2; on transformers it diverges"),
    "stable": Mode(-1.0, 0.05, False, True, "small, turned round, compared after the residual sum; small trials"),
}


def forward_learning(model: Model, memory_efficient: bool, mode: str = "paper") -> Table:
    """One step of PEPITA, or of MEMPEPITA where `memory_efficient`, as a table whose outputs are the weights' updates.

    Raises `InputError` for a model without an output to learn from.
    """
    if not model.learns:
        raise InputError(
            f"{model.configuration.name} has no output to learn from (counted: {model.configuration.counted}); "
            f"pepita and mempepita need one, as gpt2 or `encoder` has{instead(model.configuration.family)}"
        )
    return _Schedule(model, backpropagation(model), MODES[mode], memory_efficient).table()


class _Schedule:
    """The passes of one step over one model's table."""

    def __init__(self, model: Model, derived: Derived, mode: Mode, memory_efficient: bool) -> None:
        self.model = model
        self.derived = derived
        self.known = dict(derived.step.known)
        self.mode = mode
        self.memory_efficient = memory_efficient
        # Of what the modulation reaches, the names in the modulated pass; those of the scope that is gone through.
        self.mirror = {name: f"{name}^" for name in model.projected if name in model.table.inputs}
        self.error = self.error_lines()
        self.check_modulation()
        # Beside the model's own inputs:
        self.given = {"dloss": Value((), "gradient", "loss"), **dict.fromkeys(CONTROLS, Value((), "constant"))}

    def table(self) -> Table:
        plain = self.model.table
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
                second += [line, *self.modulated(line)] if self.memory_efficient else self.modulated(line)
        updates = self.updates(plain.lines, self.derived.reverse.lines)
        lines = (*first, *self.error, *self.projected(), *second, *updates)
        return replace(
            plain,
            lines=lines,
            values=self.declared(lines, {**plain.values, **self.given}),
            inputs=(*plain.inputs, *self.given),
            outputs=(*plain.outputs, *self.derived.gradients.values()),
        )

    def check_modulation(self) -> None:
        """The error must be over positions and vocabulary, as the one-hot input is that it is added to."""
        lines = [line for line in self.model.table.lines if isinstance(line, Line) and line.tag.layer == "embedding"]
        vocabularies = {self.model.table.axes[line.right[0].name][0] for line in lines}
        axes = self.error[-1].left[0].axes
        if not self.model.projected and (len(axes) < 3 or vocabularies != {axes[-1]}):
            name, counted = self.model.configuration.name, self.model.configuration.counted
            raise InputError(
                f"the output of {name} (counted: {counted}) is not over the vocabulary: pepita and mempepita add its "
                f"error to the one-hot tokens; bp does without{instead(self.model.configuration.family)}"
            )

    def error_lines(self) -> tuple[Line, ...]:
        """e = s - target: backpropagation's own lines from the loss to the scores of the head, times the count."""
        lines: list[Line] = []
        for line in self.derived.reverse.lines:
            if isinstance(line, Repeat) or set(self.model.table.weights) & set(line.reads):
                break
            if line.tag.macro == "backward":
                lines.append(line)
        scores = lines[-1].left[0]
        e = Product((Term("e", scores.axes),), (scores, Term("count", ())), (), Tag("loss", local="e"))
        return (*in_macro(lines, "forward"), e)

    def projected(self) -> tuple[Line, ...]:
        """The error brought to the encoder's input, where there is one: equation (48)."""
        if not self.model.two_sided:
            return ()
        layer = named("error_projection")
        if self.model.padded:
            layer = with_padding(layer, "S", "M")
            self.given["error.keep.mask"] = layer.table.values["keep.mask"]
        lines = in_macro(layer.table.lines, "error_projection")
        names = {line.name: f"error.{line.name}" for line in lines}
        names |= {"tokens": "encoder.tokens", "F": "error.F", "keep.mask": "error.keep.mask"}
        return tuple(line.renamed(names) for line in lines)

    def input_error(self, line: Line) -> str:
        return "error.F" if self.model.two_sided and line.tag.block == "encoder" else "e"

    def modulated(self, line: Line) -> list[Line]:
        """A line of the modulated pass. The embedding's input is dense: (T + strength e) W = rows + strength (e W)."""
        self.mirror |= {name: f"{name}^" for name in line.makes}
        if line.tag.layer != "embedding":
            return [line.renamed(self.mirror)]
        (left,), table = line.left, line.right[0]
        if left.name in self.model.projected:
            rows = Term(f"{left.name}^rows", left.axes)
            return [replace(line, left=(rows,)), *self.projection(left, rows, line.tag)]
        vocabulary, width = self.model.table.axes[table.name]
        rows, dense, scaled = (Term(f"{left.name}^{part}", left.axes) for part in ("rows", "dense", "scaled"))
        error = Term(self.input_error(line), (*left.axes[:-1], vocabulary))
        tag = replace(line.tag, local="e W", equation="", locals=())
        return [
            replace(line, left=(rows,)),
            Product((dense,), (error, Term(table.name, (vocabulary, width))), (), tag),
            Product((scaled,), (dense, Term("strength", ())), (), replace(tag, local="F e")),
            Sum((Term(self.mirror[left.name], left.axes),), (rows, scaled), (), replace(tag, local="x + F e"), (1, 1)),
        ]

    def projection(self, value: Term, plain: Term, tag: Tag) -> list[Line]:
        """A value of the modulated pass to which the error is added through a fixed random matrix, x + strength e F.

        It is the same in every sequence and at every position, and has all other axes of the value: an image's pixels.
        """
        error, own = self.error[-1].left[0], value.loops
        wide = tuple(axis for axis in own if axis not in ("B", "M", "N", *error.loops))
        fixed = Term(f"{value.name}.F", (*(axis for axis in error.loops if axis not in own), *wide))
        self.given[fixed.name] = Value(fixed.loops, "projection", value.name)
        axes = tuple(axis for axis in own if axis in (*error.loops, *wide))
        dense, scaled = (Term(f"{value.name}^{part}", axes) for part in ("dense", "scaled"))
        tag = replace(tag, macro="forward", equation="", locals=())
        return [
            Product((dense,), (error, fixed), (), replace(tag, local="F e")),
            Product((scaled,), (dense, Term("strength", ())), (), replace(tag, local="F e")),
            Sum((Term(self.mirror[value.name], own),), (plain, scaled), (), replace(tag, local="x + F e"), (1, 1)),
        ]

    def repeat(self, line: Repeat, reverse: Iterable[Statement]) -> tuple[Repeat, list[Statement]]:
        """A repeat of the standard pass, and of the modulated one, after the zeros of the totals that it carries.

        Every turn of the latter: the standard lines again where nothing is kept, modulated lines, differences, updates.
        """
        reverse = tuple(reverse)
        back = backwards(line, reverse, self.known)
        around = self.mirror
        slices = {inside: outer for inside, outer in line.each if outer in around}
        own = (*(carry.start for carry in line.carry), *slices)
        self.mirror = around | {name: f"{name}^" for name in own}
        first, lines = self.turn(line.lines, back.lines if back else ())
        lines += self.updates(line.lines, back.lines if back else ())
        made = defined(lines)
        totals = tuple(carry for carry in back.carry if carry.end in made) if back else ()
        zeros = [one for one in reverse if not {carry.initial for carry in totals}.isdisjoint(one.makes)]
        values = {**line.values, **{self.mirror[name]: Value(line.axes[name]) for name in own}}
        values |= {carry.start: self.known[carry.start] for carry in totals}
        inner, self.mirror = self.mirror, around | {name: f"{name}^" for name in line.makes}
        carry = tuple(
            Carry(inner[c.start], inner[c.end], around.get(c.initial, c.initial), self.mirror[c.final])
            for c in line.carry
        )
        each = tuple((inner[inside], around[outer]) for inside, outer in slices.items())
        keep = [(inner[inside], self.mirror[outer]) for inside, outer in line.keep]
        self.known |= {self.mirror[outer]: self.known[outer] for _, outer in line.keep}
        keep += [(inside, outer) for inside, outer in back.keep if inside in made] if back else []
        if self.memory_efficient:
            whole = replace(
                line,
                lines=tuple(lines),
                values=self.declared(lines, values),
                carry=(*line.carry, *carry, *totals),
                each=(*line.each, *each),
                keep=(*line.keep, *keep),
            )
            return line, [*zeros, whole]
        read = dict.fromkeys(name for one in lines for name in one.reads)
        standard = {c.start for c in line.carry} | defined(first)
        kept = {name: dict(line.keep).get(name, f"{name}*") for name in read if name in standard}
        given = [pair for pair in line.each if pair[0] not in slices or pair[0] in read]
        more = tuple(pair for pair in kept.items() if pair not in line.keep)
        plain = replace(line, lines=tuple(first), values=self.declared(first, line.values), keep=(*line.keep, *more))
        whole = replace(
            line,
            lines=tuple(lines),
            values=self.declared(lines, values | {name: plain.values[name] for name in kept}),
            carry=(*carry, *totals),
            each=(*given, *each, *kept.items()),
            keep=tuple(keep),
        )
        return plain, [*zeros, whole]

    def turn(self, lines: Iterable[Statement], reverse: Iterable[Statement]) -> tuple[list[Statement], list[Statement]]:
        """The lines of a turn in the standard pass, and in the modulated one."""
        first: list[Statement] = []
        second: list[Statement] = []
        modulated: list[Statement] = []
        for line in lines:
            if isinstance(line, Line):
                first.append(line)
                second += [line] if self.memory_efficient else []
                modulated += self.modulated(line)
                continue
            standard, whole = self.repeat(line, reverse)
            first.append(standard)
            second += [*modulated, *whole]
            modulated = []
        return first, [*second, *modulated]

    def updates(self, forward: Iterable[Statement], reverse: Iterable[Statement]) -> list[Line]:
        """The update lines of a scope, each after the difference that it needs: delta = (a - a_mod)/count."""
        forward = tuple(forward)
        lines = {term.name: line for line in forward if isinstance(line, Line) for term in line.left}
        made: dict[str, list[Line]] = {}
        result: list[Line] = []
        for update in reverse:
            if isinstance(update, Repeat) or update.tag.macro != "weight_update" or not update.reads:
                continue
            names = dict(self.mirror) if self.mode.modulated_inputs else {}
            for name in update.reads:
                role, source = self.about(name)
                if role == "gradient" and source in lines and name not in {e.name for e in self.error}:
                    compared = self.followed(source, forward)
                    if compared not in made:
                        made[compared] = self.difference(lines[compared])
                        result += made[compared]
                    names[name] = made[compared][-1].name
                elif role == "unsummed":
                    word, (_, weight) = lines[source], self.about(update.name)
                    assert isinstance(word, Word)
                    raise InputError(
                        f"{weight} is read by {word.word}, not by a product, which pepita and mempepita do not "
                        "support; bp does"
                    )
            _, first = self.about(update.right[0].name)
            embeds = first in lines and lines[first].tag.layer == "embedding"
            dense = embeds and self.mode.modulated_inputs and first not in self.model.projected
            result += self.dense_update(lines[first], update.renamed(names)) if dense else [update.renamed(names)]
        return result

    def difference(self, line: Line) -> list[Line]:
        left = Term(line.left[0].name, line.left[0].declared)  # whole, also where the line fills a part of it
        whole, delta = Term(f"difference.{left.name}", left.axes), Term(f"delta.{left.name}", left.axes)
        tag = Tag(line.tag.layer, line.tag.block, "weight_update", local=f"{line.tag.local} - {line.tag.local}_mod")
        standard, modulated = Term(left.name, left.axes), Term(self.mirror[left.name], left.axes)
        return [
            Sum((whole,), (standard, modulated), (), tag, (1, -1)),
            Product((delta,), (whole, self.inverse_count(left)), (), replace(tag, local=f"delta {line.tag.local}")),
        ]

    def inverse_count(self, value: Term) -> Term:
        axes = tuple(axis for axis in value.loops if axis in ("B", "M", "N")) if self.model.padded else ()
        term = Term(".".join(("inverse_count", *axes[1:])), axes)
        self.given[term.name] = Value(axes, "constant")
        return term

    def dense_update(self, line: Line, update: Line) -> list[Line]:
        """The embedding: rows of its tokens as derived, and every row from the error, (strength e)^T delta."""
        delta, declared = update.right[0], update.left[0].declared
        assert isinstance(delta, Term)
        total, rows, dense = (Term(f"{update.name}{part}", declared) for part in ("", "^rows", "^dense"))
        scaled = Term(f"{delta.name}^scaled", delta.axes)
        error = Term(self.input_error(line), (*delta.loops[:-1], declared[0]))
        tag = replace(update.tag, local="e^T delta", equation="")
        return [
            replace(update, left=(Term(rows.name, update.left[0].axes),)),
            Product((scaled,), (delta, Term("strength", ())), (), replace(tag, local="F delta")),
            Product((dense,), (error, scaled), (), tag),
            Sum((total,), (rows, dense), (), replace(tag, local="merge"), (1, 1)),
        ]

    def followed(self, name: str, scope: tuple[Statement, ...]) -> str:
        """The value that stands for a product's output: after biases and pointwise words, while it has one reader."""
        given = {*self.model.table.weights, *self.model.table.inputs}
        while True:
            readers = [line for line in scope if name in line.reads]
            if len(readers) != 1 or not isinstance(reader := readers[0], Line):
                return name
            others = [term.name for term in reader.right if isinstance(term, Term) and term.name != name]
            term = next(term for term in reader.right if term.name == name)
            bias = isinstance(reader, Sum) and (self.mode.through_residuals or given.issuperset(others))
            pointwise = isinstance(reader, Word) and entry(reader.word).pointwise and not others
            if not (bias or pointwise) or term.axes != reader.left[0].axes:
                return name
            name = reader.name

    def about(self, name: str) -> tuple[Role, str]:
        """What backpropagation has a value for, and of which other one."""
        value = self.known.get(name, Value(()))
        return value.role, value.of

    def declared(self, lines: Iterable[Statement], values: Mapping[str, Value]) -> dict[str, Value]:
        """All names of a scope, with their axes as its lines and repeats show them."""
        result = dict(values)
        for line in lines:
            if isinstance(line, Repeat):
                found = {carry.final: Value(line.axes[carry.end]) for carry in line.carry}
                found |= {outer: Value((line.count, *line.axes[name]), "kept", name) for name, outer in line.keep}
            else:
                found = {term.name: Value(term.declared) for term in line.left}
            result |= {name: self.known.get(name, value).along(value.axes) for name, value in found.items()}
        return result
