"""Override and stop gradients at the parts of a model that a procedure names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from learncost.autodiff.tangent import MARK
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError, named_one
from learncost.ir.line import Line, Meta, Product
from learncost.ir.loop import Loop
from learncost.ir.polynomial import base
from learncost.ir.term import Term
from learncost.ir.value import Axes, IdentityKey, Value
from learncost.layers.gradient_plan import GradientOverrides, GradientSource, Scope
from learncost.models.model import Model
from learncost.ops import applied
from learncost.procedures.directions import Directions
from learncost.procedures.places import (
    LinePlace,
    blocks,
    followed,
    linears,
    places,
    scores,
    stacks,
    stream,
    sums,
    targets,
)
from learncost.procedures.procedure import Procedure


@dataclass(frozen=True)
class Signals:
    """The gradient overrides of a derivation, and the additional inputs that their lines read.

    directions  the directions along which activities are perturbed in the forward pass, if any
    along       by scope, the direction of each perturbed value
    """

    overrides: GradientOverrides
    inputs: Mapping[str, Value]
    directions: Directions | None = None
    along: Mapping[Scope, Mapping[str, GradientSource]] = field(default_factory=dict)


def signals(model: Model, chosen: Procedure) -> Signals:
    """Return the gradient overrides of a procedure for a model. Raises `InputError` if the model lacks a part."""
    making = _SignalsBuilder(model, chosen)
    for move in chosen.all_moves:
        if move.form == "stopped at PLACE":
            making.stopped |= _stops(model, chosen, move.named)
        elif move.form == "given SIGNAL at PLACE":
            making.give(*move.names)
    overrides = GradientOverrides(frozenset(making.stopped), making.given, making.between, making.slices)
    return Signals(overrides, making.inputs, making.directions, making.along)


# Stops of gradients.


def _stops(model: Model, chosen: Procedure, place: str) -> set[tuple[IdentityKey[Line], int]]:
    """Return the operands that get no gradient: lines, and the operands' numbers."""
    places_of = named_one("place", place, _STOPS)
    return {(IdentityKey(line), i) for block in blocks(model, chosen.name) for line, i in places_of(block, model)}


def _block_inputs(block: LinePlace, model: Model) -> Iterator[tuple[Line, int]]:
    """Yield the lines outside the residual stream that read a block's input, with the operand's number."""
    yield from _off(block, stream(block, model), frozenset(carry.start for carry in block.repeats[-1].carry))


def _branch_inputs(block: LinePlace, model: Model) -> Iterator[tuple[Line, int]]:
    """Yield the lines outside the residual stream that read a value of it, with the operand's number."""
    on_stream = stream(block, model)
    yield from _off(block, on_stream, on_stream)


def _off(block: LinePlace, on_stream: frozenset[str], names: frozenset[str]) -> Iterator[tuple[Line, int]]:
    for line in block.lines_of_scope:
        if sums(line) or on_stream.isdisjoint(line.makes):
            yield from ((line, i) for i, term in enumerate(line.right) if term.name in names)


def _linear_inputs(block: LinePlace, model: Model) -> Iterator[tuple[Line, int]]:
    """Yield products with weights, each with the number of an operand that is not the weight."""
    for line, weight in linears(block):
        yield from ((line, i) for i, term in enumerate(line.right) if i != weight and isinstance(term, Term))


_STOPS: Mapping[str, Callable[[LinePlace, Model], Iterator[tuple[Line, int]]]] = {
    "block-inputs": _block_inputs,
    "branch-inputs": _branch_inputs,
    "linear-inputs": _linear_inputs,
}
"""The parts of a model where a backward pass may stop."""


# Overrides of gradients.


@dataclass
class _SignalsBuilder:
    """A builder of the gradient overrides of a procedure for a model."""

    model: Model
    chosen: Procedure
    stopped: set[tuple[IdentityKey[Line], int]] = field(default_factory=set)
    given: dict[Scope, dict[str, GradientSource]] = field(default_factory=dict)
    between: dict[Scope, dict[str, GradientSource]] = field(default_factory=dict)
    slices: dict[Scope, dict[str, Value]] = field(default_factory=dict)
    inputs: dict[str, Value] = field(default_factory=dict)
    directions: Directions | None = None
    along: dict[Scope, dict[str, GradientSource]] = field(default_factory=dict)
    follows: dict[Scope, set[str]] = field(default_factory=dict)  # loop inputs from other loops
    e: str = ""  # the gradient that random matrices project to the parts
    at_targets: Line | None = None  # for the signal `targets`: the line that computes the target class's gradient

    def give(self, signal: str, place: str) -> None:
        """Override the gradients of a part's values by a signal: gradient (of the last block's output), error, targets
        or tangent."""
        named_one("signal", signal, dict.fromkeys(("gradient", "error", "targets", "tangent")))
        named_one("place", place, dict.fromkeys(("blocks", "linears")))
        if signal == "error":
            self.e = scores(self.model, self.chosen.name)
        elif signal == "targets":
            self.at_targets = targets(self.model, self.chosen.name)
            self.e = self.at_targets.name
        if place == "blocks":
            if signal == "tangent":
                raise InputError(f"{self.chosen.name}: give the tangent at linears, not at blocks")
            self.at_blocks(signal)
        elif signal == "gradient":
            raise InputError(f"{self.chosen.name}: give the last gradient at blocks, not at linears")
        else:
            self.at_linears(signal)

    def at_blocks(self, signal: str) -> None:
        """Override the gradients between iterations of loops and between consecutive loops."""
        blocks(self.model, self.chosen.name)
        for place in places(self.model.table):
            repeats = [line for line in place.lines if isinstance(line, Loop)]
            finals = {carry.final for repeat in repeats for carry in repeat.carry}
            self.follows |= {(*place.scope, r.makes): finals & {c.initial for c in r.carry} for r in repeats}
        for place in stacks(self.model.table):
            for carry in place.repeats[-1].carry:
                incoming = GradientSource(f"d{carry.end}")
                source = incoming if signal == "gradient" else self.error(place, carry.start, "handed")
                source = replace(source, beyond=carry.initial in self.follows[place.scope])
                self.between.setdefault(place.scope, {})[carry.start] = source

    def at_linears(self, signal: str) -> None:
        """Override the gradients of products with weights, after their biases and pointwise ops, except those of the
        scores."""
        constant = frozenset(self.model.table.inputs)
        exact, before = self.exact(), self.before_scores()
        if signal == "tangent":
            if "tangents along PLACE" not in self.chosen.moves:
                raise InputError(f"{self.chosen.name} gives a tangent: write the move tangents along linears before it")
            self.directions = Directions()
        for place in places(self.model.table):
            for line, weight in linears(place):
                name = followed(line.name, place, constant)
                if not place.repeats and name in exact:
                    continue
                if signal != "tangent" and before.isdisjoint(place.repeats[0].makes if place.repeats else {name}):
                    doing, of = self.chosen.name, self.model.configuration.name
                    raise InputError(
                        f"{doing} needs scores on which all of the loss depends: {name} of {of} is not among them"
                    )
                source = self.tangent(place, name) if signal == "tangent" else self.error(place, name)
                self.given.setdefault(place.scope, {})[name] = source
                self.stopped |= {
                    (IdentityKey(line), i)
                    for i, term in enumerate(line.right)
                    if i != weight and isinstance(term, Term)
                }
        if not self.given:
            name = self.model.configuration.name
            raise InputError(
                f"{self.chosen.name} needs products with weights below the head, which {name} does not have"
            )

    def tangent(self, place: LinePlace, name: str) -> GradientSource:
        """Return the override of a value's gradient by the loss's tangent times the value's direction."""
        assert self.directions is not None
        axes, label = self.axes(place, name), f"{name}{len(place.scope) or ''}"
        seed = self.directions.seed(label, place.iterations(()), place.scope)
        lines, values = self.directions.drawn(Term(seed, ()), axes, f"{name}{MARK}:direction")
        self.along.setdefault(place.scope, {})[name] = GradientSource(f"{name}{MARK}:direction", tuple(lines), values)
        meta = replace(
            next(line.meta for line in place.lines_of_scope if name in line.makes), phase="backward", local="draw"
        )
        meta = replace(meta, locals=(), equation="", gradients=(), jacobian="")
        again, values = self.directions.drawn(Term(seed, ()), axes, f"d{name}:direction", meta)
        slope = Term(f"loss{MARK}", self.rows)
        made = Product((Term(f"d{name}", axes),), (Term(f"d{name}:direction", axes), slope), (), meta)
        self.slices = {scope: dict(known) for scope, known in self.directions.slices.items()}
        return GradientSource(f"d{name}", (*again, made), {**values, f"d{name}": Value(axes, "gradient", name)})

    @property
    def rows(self) -> Axes:
        """Return the batch axis as a tuple if the last line of the loss sums over it, otherwise nothing."""
        last = next((line for line in reversed(self.model.table.lines) if "loss" in line.makes), None)
        return ("B",) if isinstance(last, Product) and "B" in last.loops else ()

    def exact(self) -> frozenset[str]:
        """Return the values that lead to the scores without summing products, whose gradients are exact."""
        gradient = scores(self.model, self.chosen.name)
        names = {gradient.removeprefix("d")}
        for line in reversed(self.model.table.lines):
            if isinstance(line, Line) and not sums(line) and not names.isdisjoint(line.makes):
                names |= {term.name for term in line.right if isinstance(term, Term)}
        for line in self.model.table.lines:
            if isinstance(line, Line) and not sums(line) and not names.isdisjoint(line.reads):
                names |= set(line.makes)
        return frozenset(names)

    def before_scores(self) -> frozenset[str]:
        """Return the scores and the values of the outermost scope that they depend on."""
        names = {scores(self.model, self.chosen.name).removeprefix("d")}
        for line in reversed(self.model.table.lines):
            if not names.isdisjoint(line.makes):
                names |= set(line.reads)
        return frozenset(names)

    def axes(self, place: LinePlace, name: str) -> Axes:
        return place.values[name].axes

    def error(self, place: LinePlace, name: str, handed: str = "") -> GradientSource:
        """Return the override of a value's gradient by the scores' gradient through a fixed random matrix, e F.

        For the signal `targets`, e is the one-hot target: Frenkel et al. 2021. e F is summed over positions that the
        value does not have, and repeated along those that the scores do not have. Positions share one random matrix,
        even if they have learned embeddings.
        """
        errors = self.model.table.axes[self.e.removeprefix("d")]
        axes = self.axes(place, name)
        wide_axes = tuple(axis for axis in axes if base(axis) in self.wide and axis not in errors)
        classes = tuple(axis for axis in errors if base(axis) in self.wide and axis not in axes)
        fixed = f"{name}.F" + (str(len(place.scope)) if len(place.scope) > 1 else "")
        of = self.e.removeprefix("d")
        self.inputs[fixed] = Value(place.iterations((*classes, *wide_axes)), "feedback", of)
        for depth in range(1, len(place.repeats) + 1):
            inside = self.inputs[fixed].axes[depth:]
            self.slices.setdefault(place.scope[:depth], {})[fixed] = Value(inside, "feedback", of)
        inner = (*classes, *wide_axes)
        factors = self.factors(Term(fixed, inner), errors)
        target = f"d{name}" + (f":{handed}" if handed else "")
        reached = tuple(axis for axis in axes if axis in errors or axis in wide_axes)
        layer = next((line.meta.layer for line in place.lines_of_scope if name in (*line.makes, *line.reads)), "")
        meta = Meta(layer, next((line.meta.block for line in place.lines_of_scope), None), "backward", local="F e")
        values = {fixed: Value(inner, "feedback", of), target: Value(axes, "gradient", name)}
        if reached == axes:
            return GradientSource(target, (Product((Term(target, axes),), factors, (), meta),), values)
        dense, ones = (
            Term(f"{target}.dense", reached),
            Term(f"{target}.ones", tuple(a for a in axes if a not in reached)),
        )
        values |= {term.name: Value(term.loops, "part", name) for term in (dense, ones)}
        spread = Product((Term(target, axes),), (dense, ones), (), meta)
        all_ones = applied("ones", ones, (), meta)
        return GradientSource(target, (Product((dense,), factors, (), meta), all_ones, spread), values)

    @property
    def wide(self) -> frozenset[str]:
        """Return the feature axes, which are the axes of weights in products."""
        multiplied = (line.right[at] for place in places(self.model.table) for line, at in linears(place))
        return frozenset(base(axis) for weight in multiplied for axis in weight.declared)

    def factors(self, matrix: Term, errors: Axes) -> tuple[Term, Term]:
        """Return the factors of e F: the error and the matrix, or for targets, the weight and the matrix's row of the
        target class."""
        if self.at_targets is None:
            return Term(self.e, errors), matrix
        (weight,) = (term for term in self.at_targets.right if isinstance(term, Term))
        at = {axis.axis: axis for axis in self.at_targets.left[0].indexed_axes}
        return weight, Term(matrix.name, tuple(at.get(axis, axis) for axis in matrix.declared))
