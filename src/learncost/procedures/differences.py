"""Updates by differences: the deltas of PEPITA and MEMPEPITA are differences of two forward passes.

A plain pass gives the error; it is added to the input (modulation.py); a modulated pass follows, whose differences to
the plain one stand for gradients in the update lines (difference_updates.py). Where the plain pass runs again beside
the modulated one, nothing of the first is kept. Pau & Aymone 2024, Algorithms 1 and 2, table 2, sections 5.1.2 and 5.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from learncost.autodiff.derive import derive_once
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op
from learncost.ir.loop import Carry, Loop, Statement, defined
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.models.configuration import family_of
from learncost.models.families import instead
from learncost.models.model import Model
from learncost.ops import entry
from learncost.procedures.difference_updates import DifferenceUpdates
from learncost.procedures.modulation import Modulation, identical
from learncost.procedures.procedure import PROCEDURES, Mode, Procedure


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
            f"{identical()} need one, as gpt2 or `encoder` has{instead(model.configuration.family)}"
        )
    return _Differences(model, chosen, mode).table(), {weight: f"d{weight}" for weight in model.table.weights}


class _Differences:
    """The passes of one step over one model's table."""

    def __init__(self, model: Model, chosen: Procedure, mode: Mode) -> None:
        self.model = model
        self.derived = derive_once(model.table, model.learning)
        reverse = self.derived.reverse.lines
        self.known = dict(self.derived.step.known)
        self.plain_again = any(move.form == "forward" for move in chosen.sweeps[-1])
        # Of what the modulation reaches, the names in the modulated pass; those of the scope that is gone through.
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
        """A line of the modulated pass.

        What the standard pass chose holds here too: a difference is of one expert's outputs.
        """
        if isinstance(line, Op) and entry(line.op).kind == "choice":
            return []
        self.mirror |= {name: f"{name}^" for name in line.makes}
        return self.modulation.with_input(line, line.renamed(self.mirror))

    def repeat(self, line: Loop, reverse: Iterable[Statement]) -> tuple[Loop, list[Statement]]:
        """A repeat of the standard pass, and of the modulated one, after the zeros of the totals that it carries.

        Every turn of the latter: the standard lines again where nothing is kept, modulated lines, differences, updates.
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

    def backwards(self, line: Loop, reverse: Iterable[Statement]) -> Loop | None:
        """The backward repeat of a forward one, among the lines backwards of its scope; None where it needs none.

        What comes out of the last turn is whose gradient goes into the first turn backwards.
        """
        finals = {carry.final for carry in line.carry}
        for back in reverse:
            if isinstance(back, Loop):
                into = [self.known[carry.initial] for carry in back.carry]
                if any(value.role == "gradient" and value.of in finals for value in into):
                    return back
        return None

    def declared(self, lines: Iterable[Statement], values: Mapping[str, Value]) -> dict[str, Value]:
        """All names of a scope, with their axes as its lines and repeats show them."""
        result = dict(values)
        for line in lines:
            if isinstance(line, Loop):
                values_made = {carry.final: Value(line.axes[carry.end]) for carry in line.carry}
                values_made |= {outer: Value((line.count, *line.axes[name]), "kept", name) for name, outer in line.keep}
            else:
                values_made = {term.name: Value(term.declared) for term in line.left}
            result |= {name: self.known.get(name, value).along(value.axes) for name, value in values_made.items()}
        return result
