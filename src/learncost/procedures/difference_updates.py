"""Update lines that read differences of two passes in the place of gradients.

A weight's update line is the one that derivation gives, with the difference of the compared value in the place of the
gradient that it reads, and the modulated pass's values in the place of the forward ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.term import Read, Term
from learncost.ir.value import Role, Value
from learncost.models.model import Model
from learncost.ops import entry
from learncost.procedures.modulation import Modulation, identical
from learncost.procedures.procedure import Mode


class DifferenceUpdates:
    """What is made of the update lines of one model's backward pass.

    known  what there is to know of every value of the step, to which whoever goes through the passes adds
    """

    def __init__(
        self, model: Model, mode: Mode, modulation: Modulation, known: dict[str, Value], reverse: tuple[Statement, ...]
    ) -> None:
        self.model, self.mode, self.modulation, self.known = model, mode, modulation, known
        self.of_weights = _updated(reverse)

    def of_scope(
        self, forward: Iterable[Statement], reverse: Iterable[Statement], mirror: Mapping[str, str]
    ) -> list[Line]:
        """The update lines of a scope, each after the difference that it needs: delta = (a - a_mod)/count.

        mirror  the names of the plain pass, and of the modulated one
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
                if name in self.of_weights:  # of a value that both passes make of weights alone: it has no difference
                    continue
                if role == "gradient" and source in lines and name not in {e.name for e in self.modulation.error}:
                    compared = self.followed(source, forward)
                    if compared not in differences:
                        differences[compared] = self.difference(lines[compared], mirror)
                        result += differences[compared]
                    names[name] = differences[compared][-1].name
                elif role == "gradient" and source in mirror and source not in lines:
                    raise InputError(
                        f"{source} is read by the turns of a repeat inside of a block, not by a product, which "
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
        left = Term(line.left[0].name, line.left[0].declared)  # whole, also where the line fills a part of it
        undivided, delta = Term(f"difference.{left.name}", left.axes), Term(f"delta.{left.name}", left.axes)
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
        """The embedding: rows of its tokens as derived, and every row from the error, (strength e)^T delta."""
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
        """The value that stands for a product's output: after biases and pointwise words, while it has one reader."""
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
        """What backpropagation has a value for, and of which other one."""
        value = self.known.get(name, Value(()))
        return value.role, value.of


def _updated(lines: Iterable[Statement]) -> frozenset[str]:
    """What lines of the weight update make, and what repeats hand out of it."""
    names: set[str] = set()
    for line in lines:
        if isinstance(line, Loop):
            inside = _updated(line.lines)
            names |= inside | {carry.final for carry in line.carry if carry.end in inside}
        elif line.meta.phase == "weight_update":
            names |= set(line.makes)
    return frozenset(names)
