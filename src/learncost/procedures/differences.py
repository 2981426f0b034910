"""Update weights by differences: the deltas of PEPITA and MEMPEPITA are differences of two forward passes.

The error of a plain pass is added to the input (modulation.py) of a modulated pass. Differences between the activations
of both passes replace gradients in the update lines. If the plain pass runs again with the modulated one, no activation
of the first pass is saved. Pau & Aymone 2024, Algorithms 1 and 2, table 2, sections 5.1.2 and 5.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from learncost.autodiff.derive import derive_once
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement, defined, repeats, walk
from learncost.ir.table import Table
from learncost.ir.term import Read, Term
from learncost.ir.value import Role, Value
from learncost.models.configuration import family_of
from learncost.models.model import Model
from learncost.ops import entry, is_choice
from learncost.procedures.modulation import Modulation, identical
from learncost.procedures.procedure import PROCEDURES, Mode, Procedure


class DifferenceUpdates:
    """The update lines of a model's backward pass, rewritten to read differences.

    known  the Value of every name in the step, to which each pass adds its names
    """

    def __init__(
        self, model: Model, mode: Mode, modulation: Modulation, known: dict[str, Value], reverse: tuple[Statement, ...]
    ) -> None:
        self.model, self.mode, self.modulation, self.known = model, mode, modulation, known
        self.of_weights = _updated(reverse)

    def of_scope(
        self, forward: Iterable[Statement], reverse: Iterable[Statement], mirror: Mapping[str, str]
    ) -> list[Line]:
        """Return the update lines of a scope, each after the difference that it reads: delta = (a - a_mod)/count.

        mirror  maps names of the plain pass to those of the modulated pass
        """
        forward = tuple(forward)
        lines = {term.name: line for line in forward if isinstance(line, Line) for term in line.left}
        differences: dict[str, list[Line]] = {}
        result: list[Line] = []
        for update in reverse:
            if isinstance(update, Loop) or update.meta.phase != "weight_update" or not update.reads:
                continue
            names = dict(mirror) if self.mode.modulated_inputs else {}
            for name in update.reads:
                role, source = self.about(name)
                if name in self.of_weights:  # values computed only from weights are equal in both passes
                    continue
                if role == "gradient" and source in lines and name not in {e.name for e in self.modulation.error}:
                    compared = self.followed(source, forward)
                    if compared not in differences:
                        differences[compared] = self.difference(lines[compared], mirror)
                        result += differences[compared]
                    names[name] = differences[compared][-1].name
                elif role == "gradient" and source in mirror and source not in lines:
                    raise InputError(
                        f"{source} is read by a loop inside a block, not by a product, which "
                        f"{identical()} do not support; bp does"
                    )
                elif role == "unsummed":
                    op, (_, weight) = lines[source], self.about(update.name)
                    assert isinstance(op, Op)
                    raise InputError(
                        f"{weight} is read by {op.op}, not by a product, which {identical()} do not support; bp does"
                    )
            _, first = self.about(update.right[0].name)
            read = (
                self.modulation.one_hot(lines[first]) if first in lines and first not in self.model.projected else None
            )
            new = update.renamed(names)
            result += self.dense_update(read, new) if read and self.mode.modulated_inputs else [new]
        return result

    def difference(self, line: Line, mirror: Mapping[str, str]) -> list[Line]:
        left = Term(line.left[0].name, line.left[0].declared)  # the full axis, even if the line writes a part of it
        name = f"delta.{left.name}"
        name = f"delta.{name}" if name in self.model.table.known else name  # which a layer called delta has
        undivided, delta = Term(f"difference.{left.name}", left.axes), Term(name, left.axes)
        meta = Meta(
            line.meta.layer, line.meta.block, "weight_update", local=f"{line.meta.local} - {line.meta.local}_mod"
        )
        meta = replace(meta, module=line.meta.module)
        standard, modulated = Term(left.name, left.axes), Term(mirror[left.name], left.axes)
        return [
            Sum((undivided,), (standard, modulated), (), meta, (1, -1)),
            Product(
                (delta,), (undivided, self.inverse_count(left)), (), replace(meta, local=f"delta {line.meta.local}")
            ),
        ]

    def inverse_count(self, value: Term) -> Term:
        axes = tuple(axis for axis in value.loops if axis in self.modulation.positions("padding"))
        term = Term(".".join((self.modulation.numbers["inverse_count"], *axes[1:])), axes)
        self.modulation.given[term.name] = Value(axes, "number", "inverse_count")
        return term

    def dense_update(self, read: Read, update: Line) -> list[Line]:
        """Return the update of an embedding: of the tokens' rows as derived, and of every row by the error, (strength
        e)^T delta."""
        delta, declared = update.right[0], update.left[0].declared
        assert isinstance(delta, Term)
        total, rows, dense = (Term(f"{update.name}{part}", declared) for part in ("", "^rows", "^dense"))
        scaled = Term(f"{delta.name}^scaled", delta.axes)
        meta = replace(update.meta, local="e^T delta", equation="")
        return [
            replace(update, left=(Term(rows.name, update.left[0].axes),)),
            Product((scaled,), (delta, self.modulation.strength), (), replace(meta, local="F delta")),
            Product((dense,), (self.modulation.error_at(read), scaled), (), meta),
            Sum((total,), (rows, dense), (), replace(meta, local="merge"), (1, 1)),
        ]

    def followed(self, name: str, scope: tuple[Statement, ...]) -> str:
        """Return the value of a product's output after its bias and pointwise ops, as far as each value has a single
        reader."""
        constant = {*self.model.table.weights, *self.model.table.inputs}
        while True:
            readers = [line for line in scope if name in line.reads]
            if len(readers) != 1 or not isinstance(reader := readers[0], Line):
                return name
            others = [term.name for term in reader.right if isinstance(term, Term) and term.name != name]
            term = next(term for term in reader.right if term.name == name)
            bias = isinstance(reader, Sum) and (self.mode.through_residuals or constant.issuperset(others))
            pointwise = isinstance(reader, Op) and entry(reader.op).pointwise and not others
            if not (bias or pointwise) or term.axes != reader.left[0].axes:
                return name
            name = reader.name

    def about(self, name: str) -> tuple[Role, str]:
        """Return the role of a name, and the value that it belongs to, such as the value of a gradient."""
        value = self.known.get(name, Value(()))
        return value.role, value.of


def _updated(lines: Sequence[Statement]) -> frozenset[str]:
    """Return the names that the lines of the weight update compute, including loop outputs made of these."""
    names = {name for line, _ in walk(lines) if line.meta.phase == "weight_update" for name in line.makes}
    for loop in reversed([*repeats(lines)]):  # inner loops first
        names |= {carry.final for carry in loop.carry if carry.end in names}
    return frozenset(names)


def by_differences(model: Model, chosen: Procedure, mode: Mode) -> tuple[Table, Mapping[str, str]]:
    """Return one step as a table whose outputs are the weights' updates, and the name of each weight's update.

    Raises `InputError` for a partly frozen model, and for one without a loss.
    """
    if model.trained is not None:
        others = " and ".join(name for name, other in PROCEDURES.items() if not other.compares)
        frozen = family_of(model.configuration).frozen
        example = f"as {', '.join(frozen)} of {model.configuration.family}" if frozen else "and LoRA"
        raise InputError(f"{chosen.name} updates every weight: frozen weights {example} are for {others}")
    if not model.learns:
        raise InputError(
            f"{model.configuration.name} {model.without_loss}; {identical()} need one, as gpt2 or `encoder` has"
        )
    return _Differences(model, chosen, mode).table(), {weight: f"d{weight}" for weight in model.table.weights}


class _Differences:
    """The passes of a step over a model's table."""

    def __init__(self, model: Model, chosen: Procedure, mode: Mode) -> None:
        self.model = model
        self.derived = derive_once(model.table, model.learning)
        reverse = self.derived.reverse.lines
        self.known = dict(self.derived.step.known)
        self.plain_again = any(move.form == "forward" for move in chosen.sweeps[-1])
        # Maps values of the current scope that the modulation changes to their names in the modulated pass.
        self.mirror = {name: f"{name}^" for name in model.projected if name in model.table.inputs}
        self.modulation = Modulation(model, chosen, reverse)
        self.updates = DifferenceUpdates(model, mode, self.modulation, self.known, reverse)

    def table(self) -> Table:
        plain = self.model.table
        projections = tuple(self.modulation.brought())
        first: list[Statement] = []
        second: list[Statement] = []
        for name in self.model.projected:
            if name in plain.inputs:
                second += self.modulation.projection(*(Term(name, plain.axes[name]),) * 2, Meta("error_projection"))
        for line in plain.lines:
            if isinstance(line, Loop):
                standard, modulated = self.repeat(line, self.derived.reverse.lines)
                first.append(standard)
                second += modulated
            else:
                first.append(line)
                second += [line, *self.modulated(line)] if self.plain_again else self.modulated(line)
        updates = self.updates.of_scope(plain.lines, self.derived.reverse.lines, self.mirror)
        lines = (*first, *self.modulation.error, *projections, *second, *updates)
        given = self.modulation.given | self.modulation.masks
        return replace(
            plain,
            lines=lines,
            values=self.declared(lines, {**plain.values, **given}),
            inputs=(*plain.inputs, *given),
            outputs=(*plain.outputs, *self.derived.gradients.values()),
        )

    def modulated(self, line: Line) -> list[Line]:
        """Return the lines of the modulated pass for a line.

        Choices of the plain pass are reused, so that differences compare outputs of the same experts.
        """
        if is_choice(line):
            return []
        self.mirror |= {name: f"{name}^" for name in line.makes}
        return self.modulation.with_input(line, line.renamed(self.mirror))

    def repeat(self, line: Loop, reverse: Iterable[Statement]) -> tuple[Loop, list[Statement]]:
        """Return the loop of the plain pass, and that of the modulated pass after the zeros of its carried totals.

        An iteration of the modulated loop has the plain lines again if nothing was saved, the modulated lines,
        differences and updates.
        """
        reverse = tuple(reverse)
        back = self.backwards(line, reverse)
        around = self.mirror
        slices = {inside: outer for inside, outer in line.each if outer in around}
        names_inside = (*(carry.start for carry in line.carry), *slices)
        self.mirror = around | {name: f"{name}^" for name in names_inside}
        first, lines = self.iteration(line.lines, back.lines if back else ())
        lines += self.updates.of_scope(line.lines, back.lines if back else (), self.mirror)
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

    def iteration(
        self, lines: Iterable[Statement], reverse: Iterable[Statement]
    ) -> tuple[list[Statement], list[Statement]]:
        """Return the lines of an iteration in the plain pass and in the modulated pass."""
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

    def backwards(self, line: Loop, reverse: Iterable[Statement]) -> Loop | None:
        """Return the backward loop of a forward loop from the backward lines of its scope; None if there is none.

        The gradient of the last iteration's output enters the first backward iteration.
        """
        finals = {carry.final for carry in line.carry}
        for back in reverse:
            if isinstance(back, Loop):
                into = [self.known[carry.initial] for carry in back.carry]
                if any(value.role == "gradient" and value.of in finals for value in into):
                    return back
        return None

    def declared(self, lines: Iterable[Statement], values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the Values of all names of a scope, with the axes that its lines and loops define."""
        result = dict(values)
        for line in lines:
            if isinstance(line, Loop):
                values_made = {carry.final: Value(line.axes[carry.end]) for carry in line.carry}
                values_made |= {
                    outer: Value((line.count, *line.axes[name]), "saved", name) for name, outer in line.keep
                }
            else:
                values_made = {term.name: Value(term.declared) for term in line.left}
            result |= {name: self.known.get(name, value).along(value.axes) for name, value in values_made.items()}
        return result
