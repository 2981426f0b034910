"""Known identities of procedures that replace gradients at blocks or at linear layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from learncost.autodiff.derive import derive
from learncost.autodiff.tangent import MARK
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import Product
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base, shape_of
from learncost.ir.table import Table, features
from learncost.ir.term import Term
from learncost.ir.value import Axes, Value
from learncost.layers.gradient_plan import GradientSource, Scope
from learncost.models.model import Model
from learncost.procedures.directions import Site, sites
from learncost.procedures.feedback import with_feedback
from learncost.procedures.places import LinePlace, linears, places
from learncost.procedures.procedure import Procedure
from learncost.procedures.signals import signals
from learncost.procedures.step import step
from learncost.verification.check import values_of
from learncost.verification.report import Check
from learncost.verification.sample import small_sizes
from learncost.verification.stepped import arrays_of, gradients_of, held, sizes_of


@dataclass(frozen=True)
class _GivenGradient:
    """The replacement of the gradient of a value, by name, in the iterations of a scope."""

    place: LinePlace
    name: str
    at: GradientSource

    @property
    def stack(self) -> str:
        """The name of this gradient's stack over all iterations."""
        return _stack(f"d{self.name}", len(self.place.repeats))

    @property
    def matrix(self) -> str:
        """The name of the matrix that projects the error to this value."""
        return self.at.lines[0].right[1].name

    @property
    def axes(self) -> Axes:
        return self.at.values[self.at.name].axes


def _all_given(model: Model, chosen: Procedure) -> list[_GivenGradient]:
    """Return all replacements of gradients, within scopes or carried between iterations."""
    overrides = signals(model, chosen).overrides
    of_scope = {place.scope: place for place in places(model.table)}
    all_given = [*overrides.given.items(), *overrides.between.items()]
    return [_GivenGradient(of_scope[scope], name, at) for scope, given in all_given for name, at in given.items()]


def _stack(name: str, depth: int) -> str:
    """Return the name of a value's stack over all iterations of the nested loops."""
    return f"{name}:all{depth}" if depth else name


def _watched(table: Table, names: Iterable[tuple[str, int]]) -> Table | None:
    """Return the table that also returns the stacks of names in nested loops, as `_stack` names them.

    Returns None unless one loop defines each name.
    """
    wanted = {pair for pair in names if pair[1]}
    lines, stacks = _keeping(table.lines, wanted, 1)
    if len(stacks) != len(wanted) or len(dict(stacks)) != len(wanted):
        return None
    values = {**table.values, **{name: Value(axes) for name, axes in stacks}}
    return replace(table, lines=lines, values=values, outputs=(*table.outputs, *dict(stacks)))


def _keeping(
    lines: Iterable[Statement], wanted: Collection[tuple[str, int]], depth: int
) -> tuple[tuple[Statement, ...], list[tuple[str, Axes]]]:
    """Return the lines of a scope with loops that stack the requested names, and the stacks with their axes."""
    statements, stacks = list[Statement](), list[tuple[str, Axes]]()
    for line in lines:
        if isinstance(line, Loop):
            inside, deeper = _keeping(line.lines, wanted, depth + 1)
            made = {name for statement in line.lines for name in statement.makes}
            here = [name for name, at in wanted if at == depth and name in made]
            kept = [(name, _stack(name, depth), line.values[name].axes) for name in here]
            kept += [(name, name, axes) for name, axes in deeper]
            stacks += [(stack, (line.count, *axes)) for _, stack, axes in kept]
            keep = (*line.keep, *((name, stack) for name, stack, _ in kept))
            values = {**line.values, **{name: Value(axes) for name, axes in deeper}}
            line = replace(line, lines=inside, values=values, keep=keep)
        statements.append(line)
    return tuple(statements), stacks


def exact(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that bp's gradients as replacements give bp's gradients, and so do matrices that produce them."""
    compared = "gradients with bp's where what is given is exact"
    given = _all_given(model, chosen)
    plain = _watched(step(model, "bp"), [(f"d{each.name}", len(each.place.repeats)) for each in given])
    if plain is None:
        yield Check(name, compared, "its blocks are of several kinds", None)
        return
    # Nothing goes back through what a linear layer reads, so that a gain before one has less than its gradient.
    compares: Collection[str] = model.learning
    if any(move.names[1:] == ("linears",) for move in chosen.all_moves):
        compares = {weight for weight in model.learning for site in sites(model.table, weight) if _multiplies(site)}
    table = _given_exactly(model, chosen, given)
    sizes = sizes_of(model, table)
    values = values_of(plain, arrays_of(model, plain, sizes), sizes)
    arrays = arrays_of(model, table, sizes) | {f"{each.stack}:exact": values[each.stack] for each in given}
    gradients = gradients_of(model, table, sizes, arrays)
    gradients = {key: array for key, array in gradients.items() if key in compares}
    yield held(name, compared, gradients, {key: values[f"d{key}"] for key in gradients})
    yield _by_matrices(model, chosen, name, given, plain, compares)


def _given_exactly(model: Model, chosen: Procedure, given: Iterable[_GivenGradient]) -> Table:
    """Return the step that is given gradients as `STACK:exact` where the procedure makes others."""
    overrides = signals(model, chosen).overrides
    slices: dict[Scope, dict[str, Value]] = {}
    inputs: dict[str, Value] = {}
    exactly: dict[tuple[Scope, str], GradientSource] = {}
    for each in given:
        name, iterations = f"{each.stack}:exact", each.place.iterations(each.axes)
        inputs[name] = Value(iterations, "gradient", each.name)
        for depth in range(1, len(each.place.repeats) + 1):
            slices.setdefault(each.place.scope[:depth], {})[name] = inputs[name].along(iterations[depth:])
        copy = Product((Term(each.at.name, each.axes),), (Term(name, each.axes),), (), each.at.lines[0].meta)
        known = {each.at.name: each.at.values[each.at.name], name: inputs[name].along(each.axes)}
        exactly[each.place.scope, each.name] = replace(each.at, lines=(copy,), values=known)
    given_there, between = (
        {scope: {name: exactly[scope, name] for name in names} for scope, names in kind.items()}
        for kind in (overrides.given, overrides.between)
    )
    overrides = replace(overrides, given=given_there, between=between, slices=slices)
    table = derive(model.table, wanted=(*model.differentiated, *model.learning), overrides=overrides).step
    table = replace(table, values={**table.values, **inputs}, inputs=(*table.inputs, *inputs))
    reading = chosen.moves.get("backward reading NAME for weights")
    return with_feedback(table, reading, chosen.lines) if reading else table


def _by_matrices(
    model: Model, chosen: Procedure, name: str, given: Iterable[_GivenGradient], plain: Table, compares: Collection[str]
) -> Check:
    """Check with one token of one sequence, where F = e^T g / |e|^2 maps the error to any gradient: e F = g."""
    compared = "gradients with bp's where the matrices are exact"
    table = step(model, chosen)
    scores = next(f"d{table.values[matrix].of}" for matrix in table.inputs if table.values[matrix].role == "feedback")
    wide, sizes = features(model.table), small_sizes(table) | small_sizes(model.table)
    axes = [*plain.axes[scores], *(axis for each in given for axis in each.axes)]
    sizes |= {base(axis): 1 for axis in axes if base(axis) not in wide}
    arrays = arrays_of(model, plain, sizes)
    values = _of_one_token(plain, arrays, sizes)
    if values is None:
        return Check(name, compared, "its images are several tokens, which one matrix serves", None)
    e, matrices = values[scores].reshape(-1), {}
    for each in given:
        shape = shape_of(table.axes[each.matrix], sizes)
        iterations = values[each.stack].reshape(*shape[: len(each.place.repeats)], -1)
        made = np.einsum("c,...d->...cd", e, iterations) / (e @ e)
        if made.size != np.prod(shape):
            return Check(name, compared, "its sequences are several tokens, which one matrix serves", None)
        matrices[each.matrix] = made.reshape(shape)
    gradients = gradients_of(model, table, sizes, arrays_of(model, table, sizes) | matrices)
    gradients = {key: array for key, array in gradients.items() if key in compares}
    return held(name, compared, gradients, {key: values[f"d{key}"] for key in gradients})


def _of_one_token(table: Table, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Mapping[str, Any] | None:
    """Return the values of a table; None if positions derive from other sizes, such as patches of an image."""
    try:
        return values_of(table, arrays, sizes)
    except ValueError:
        return None


def _multiplies(site: Site) -> bool:
    """Return whether a weight is that of a linear layer there."""
    return any(line.right[at].name == site.name for line, at in linears(site.place))


def slope_of_activities(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that the signal at a value y, perturbed by signs v, is s v, with s the sum of <bp's gradient, v> over y.

    Each sequence has its slope where the loss is a sum over sequences.
    """
    compared = "its slopes with <bp's gradients, directions> of what linear layers make"
    table, plain = step(model, chosen), step(model, "bp")
    given = _all_given(model, chosen)
    stacks = [(f"d{each.name}", len(each.place.repeats)) for each in given]
    first, second = _watched(table, stacks), _watched(plain, stacks)
    if first is None or second is None:
        yield Check(name, compared, "its blocks are of several kinds", None)
        return
    sizes = sizes_of(model, table)
    arrays = arrays_of(model, table, sizes) | arrays_of(model, plain, sizes) | {"dloss": np.asarray(1.0)}
    gradients, of_bp = (
        values_of(each, {key: arrays[key] for key in (*each.inputs, *each.weights)}, sizes) for each in (first, second)
    )
    if "B" in table.known[f"loss{MARK}"].axes and any("B" not in each.axes for each in given):
        yield Check(name, compared, "it moves what all sequences share", None)
        return
    rows_apart = "B" in table.known[f"loss{MARK}"].axes
    slopes, expected = list[Any](), 0.0
    for each in given:
        rows = len(each.place.repeats) + each.axes.index("B") if rows_apart else None
        made, bp = gradients[each.stack], of_bp[each.stack]
        sums = tuple(i for i in range(made.ndim) if i != rows)
        slopes.append(np.abs(made).max(sums))
        expected = expected + np.sum(bp * np.sign(made), sums)
    same = all(np.allclose(slope, slopes[0], 1e-12, 0.0) for slope in slopes)
    apart = float(np.max(np.abs(expected - slopes[0])) / np.max(slopes[0]))
    yield Check(name, compared, f"a difference of {apart:.1e}", same and apart < 1e-10)
