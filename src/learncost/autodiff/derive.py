"""Derive the backward pass and the weight update from the forward table: one rule for products, one for sums, one
gradient table per op.

Product: the gradient of a factor is the output's gradient times the other factors, written with the factor's own term;
an index there makes it a scatter. Sum: the gradient passes through, reduced over broadcast axes. Op: its gradient
table, or its explicit Jacobian and a product. Loop: the loop in reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from learncost.autodiff.reverse import Reverse
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.line import Meta
from learncost.ir.loop import map_lines, map_loops
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.layers.gradient_plan import NONE, GradientOverrides, GradientPlan, weight_constants
from learncost.layers.layer import Layer, table_of


@dataclass(frozen=True)
class Derived(Displayed):
    """The tables of a derivation: the forward pass with its saved tensors, the backward pass and the weight update.

    Attributes
    ----------
    forward
        The forward pass, with the values that the other passes read.
    reverse
        Backward and update together, in execution order.
    gradients
        The name of the gradient of each wanted name, for those that the outputs depend on.

    Examples
    --------
    >>> step = lc.derive(lc.layer('''linear(X; W) -> Y
    ...   Y[B M f] = X[B M d] W[d f]
    ... '''))
    >>> print(step.backward)
    dX[B M d] = dY[B M f] W[d f]
    >>> print(step.update)
    dW[d f] = dY[B M f] X[B M d]
    >>> dict(step.gradients)
    {'X': 'dX', 'W': 'dW'}
    """

    forward: Table
    reverse: Table
    gradients: Mapping[str, str]

    @property
    def backward(self) -> Table:
        """The lines that compute the gradients of inputs and values."""
        return part(self.reverse, "backward", self.step)

    @property
    def update(self) -> Table:
        """The lines that compute the gradients of weights."""
        return part(self.reverse, "weight_update", self.step)

    @property
    def step(self) -> Table:
        """Forward, then backward and update, as one table."""
        names = tuple(f"d{name}" for name in self.forward.outputs)
        return replace(
            self.forward,
            lines=(*self.forward.lines, *self.reverse.lines),
            values={**self.forward.values, **self.reverse.values},
            inputs=(*self.forward.inputs, *(n for n in names if n in self.reverse.inputs)),
            outputs=(*self.forward.outputs, *self.gradients.values()),
        )


def part(table: Table, phase: str, within: Table) -> Table:
    """Return the lines of one phase, with the loops around them."""
    lines = map_lines(table.lines, lambda line: (line,) if line.meta.phase == phase else ())
    return replace(table, lines=map_loops(lines, lambda loop: loop if loop.lines else None), within=within)


def derive(
    layer: Layer | Table,
    wanted: Iterable[str] | None = None,
    jacobian: bool = False,
    given: Iterable[str] | None = None,
    overrides: GradientOverrides = NONE,
) -> Derived:
    """Derive the backward pass and the weight update of a layer.

    Parameters
    ----------
    layer
        The layer, or its table.
    wanted
        Inputs and weights whose gradients are wanted; by default all but indices, constants and frozen weights.
    jacobian
        Whether softmax and normalization go through their explicit Jacobians, as the paper prices them, in place of the
        closed form.
    given
        Outputs whose gradients are given; by default all.
    overrides
        The gradient overrides and stops of a learning procedure.

    Returns
    -------
    Derived
        The tables.

    Raises
    ------
    InputError
        For a name that the layer does not have.

    Examples
    --------
    >>> linear = lc.layer('''linear(X; W) -> Y
    ...   Y[B M f] = X[B M d] W[d f]
    ... ''')
    >>> print(lc.derive(linear, wanted=["W"]).reverse)
    dW[d f] = dY[B M f] X[B M d]
    """
    table = table_of(layer)
    possible = [n for n in (*table.inputs, *table.weights) if n not in table.indices and n not in table.constants]
    frozen = layer.frozen if isinstance(layer, Layer) else ()
    chosen = [name for name in possible if name not in frozen] if wanted is None else list(wanted)
    for name in chosen:
        if name not in possible:
            raise InputError(f"{name!r} cannot have a gradient: choose among {', '.join(possible)}")
    seeds = table.outputs if given is None else tuple(given)
    reach = GradientPlan(frozenset(table.weights), overrides=overrides, constants=weight_constants(table))
    scopes = (*overrides.given.values(), *overrides.between.values())
    read = {name for each in scopes for source in each.values() for line in source.lines for name in line.reads}
    reach.needs(table.lines, {*chosen, *(name for name in table.values if f"d{name}" in read)})
    reach.live(table.lines, set(seeds))
    scope = Reverse(table.values, reach, jacobian, table.sizes)
    for name in seeds:
        scope.seed(name)
    scope.reverse(table.lines)
    for name in chosen:
        scope.finish(name, Meta(phase="weight_update" if name in table.weights else "backward"))
    values = dict(table.values)
    forward = replace(table, lines=scope.keeping(table.lines, values), values=values)
    gradients = {name: f"d{name}" for name in chosen if f"d{name}" in scope.derived_values}
    reverse = Table(
        tuple(scope.out),
        {**values, **scope.derived_values},
        tuple(f"d{name}" for name in seeds if name in reach.alive),
        (),
        tuple(gradients.values()),
        title=table.title,
    )
    return Derived(forward, reverse, gradients)


def derive_once(table: Table, wanted: tuple[str, ...] | None = None, jacobian: bool = False) -> Derived:
    """Return the result of `derive`, cached since the steps of several procedures and price books share one
    derivation."""
    return _derived(IdentityKey(table), wanted, jacobian)


@lru_cache(maxsize=8)
def _derived(same: IdentityKey[Table], wanted: tuple[str, ...] | None, jacobian: bool) -> Derived:
    return derive(same.content, wanted, jacobian)
