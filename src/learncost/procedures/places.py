"""Find the parts of a model by its structure instead of names: blocks, linear layers, the residual stream, the
scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from learncost.autodiff.derive import derive
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.layers.gradient_plan import Scope
from learncost.models.model import Model
from learncost.ops import entry


@dataclass(frozen=True)
class LinePlace:
    """A scope of a model's table: the outermost one, or the body of a loop.

    scope    its path: the names that each surrounding loop defines
    repeats  the surrounding loops, the outermost first
    lines    its statements
    values   the Value of every visible name
    weights  the visible names that are weights or slices of weights
    """

    scope: Scope
    repeats: tuple[Loop, ...]
    lines: tuple[Statement, ...]
    values: Mapping[str, Value]
    weights: frozenset[str]

    @property
    def lines_of_scope(self) -> tuple[Line, ...]:
        """Return the lines of the scope without those of inner loops."""
        return tuple(line for line in self.lines if isinstance(line, Line))

    def iterations(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return the axes of a stack with one slice for each iteration of the surrounding loops."""
        return (*(repeat.count for repeat in self.repeats), *axes)


def places(table: Table) -> Iterator[LinePlace]:
    """Yield the outermost scope of a table and the scope of every loop."""

    def inside(around: LinePlace) -> Iterator[LinePlace]:
        yield around
        for line in around.lines:
            if isinstance(line, Loop):
                slices = {inner for inner, outer in line.each if outer in around.weights}
                weights = frozenset(slices | (around.weights - line.inside))
                scope, repeats = (*around.scope, line.makes), (*around.repeats, line)
                yield from inside(LinePlace(scope, repeats, line.lines, {**around.values, **line.values}, weights))

    yield from inside(LinePlace((), (), table.lines, table.values, frozenset(table.weights)))


def stacks(table: Table) -> tuple[LinePlace, ...]:
    """Return the scopes of loops over blocks, which carry a value from block to block, including nested ones.

    The iterations of such a loop have separate weights or no slices; iterations that read only slices of values are
    positions of a scan.
    """
    carrying = (place for place in places(table) if place.repeats and place.repeats[-1].carry)
    return tuple(
        place
        for place in carrying
        if not place.repeats[-1].each or any(name in place.weights for name, _ in place.repeats[-1].each)
    )


def blocks(model: Model, doing: str) -> tuple[LinePlace, ...]:
    """Return the scopes of the innermost loops over blocks.

    Raises `InputError` if there are none; `doing` is the subject of its message.
    """
    stacked = stacks(model.table)
    around = {place.scope[:depth] for place in stacked for depth in range(len(place.scope))}
    innermost = tuple(place for place in stacked if place.scope not in around)
    if not innermost:
        name = model.configuration.name
        raise InputError(f"{doing} needs blocks that pass a value from one to the next, which {name} does not have")
    return innermost


def linears(place: LinePlace) -> Iterator[tuple[Product, int]]:
    """Yield the products with one weight that sum over its axes or look up its rows, each with the weight's
    position."""
    for line in place.lines_of_scope:
        if not isinstance(line, Product):
            continue
        factors = [i for i, term in enumerate(line.right) if isinstance(term, Term) and term.name in place.weights]
        if len(factors) != 1:
            continue
        weight = line.right[factors[0]]
        left = set(line.left[0].loops)
        if weight.indexed or not left.issuperset(weight.loops):
            yield line, factors[0]


def sums(line: Line) -> bool:
    """Return whether a line is a product that sums over an axis, so that its result has other features than its
    factors."""
    return isinstance(line, Product) and not set(line.left[0].loops).issuperset(line.loops)


def followed(name: str, place: LinePlace, constant: frozenset[str]) -> str:
    """Return the value of a product's output after its bias and pointwise ops, as far as each value has a single
    reader."""
    while True:
        readers = [line for line in place.lines if name in line.reads]
        if len(readers) != 1 or not isinstance(reader := readers[0], Line):
            return name
        others = {term.name for term in reader.right if isinstance(term, Term) and term.name != name}
        term = next((term for term in reader.right if term.name == name), None)
        shift = isinstance(reader, Sum) and others <= (place.weights | constant)
        pointwise = isinstance(reader, Op) and entry(reader.op).pointwise and not others
        if term is None or not (shift or pointwise) or term.axes != reader.left[0].axes:
            return name
        name = reader.name


def stream(place: LinePlace, model: Model) -> frozenset[str]:
    """Return the residual stream of a block: the values on paths from its input to its output without summing products.

    Raises `InputError` if there is no such path.
    """
    repeat = place.repeats[-1]
    after = {carry.start for carry in repeat.carry}
    for line in place.lines_of_scope:
        if not sums(line) and not after.isdisjoint(term.name for term in line.right):
            after |= set(line.makes)
    before = {carry.end for carry in repeat.carry}
    for line in reversed(place.lines_of_scope):
        if not sums(line) and not before.isdisjoint(line.makes):
            before |= {term.name for term in line.right if isinstance(term, Term)}
    between = frozenset(after & before)
    if any(carry.end not in between for carry in repeat.carry):
        name = model.configuration.name
        raise InputError(f"{name} has no residual stream: its blocks pass their input on only through weights")
    return between


def scores(model: Model, doing: str) -> str:
    """Return the gradient of the head's scores: the last that backpropagation computes before it reads a weight.

    Raises `InputError` if there is no loss, or no value between the loss and the weights.
    """
    check_learns(model, doing)
    gradients = [line.name for line in _before_weights(model) if line.meta.phase == "backward"]
    if not gradients:
        name = model.configuration.name
        raise InputError(f"{doing} needs scores between the weights and the loss, which {name} does not have")
    return gradients[-1]


def targets(model: Model, doing: str) -> Line:
    """Return the backward line that computes the gradient of the target class's score at every position.

    Raises `InputError` if no loss looks up its targets.
    """
    scores(model, doing)
    for line in _before_weights(model):
        if isinstance(line, Product) and len(line.right) == 1 and line.left[0].indexed:
            return line
    name = model.configuration.name
    raise InputError(f"{doing} needs class targets that the loss looks up, which {name} does not have")


def _before_weights(model: Model) -> Iterator[Line]:
    """Yield the lines of the backward pass before the first that reads a weight or is in a loop."""
    for line in derive(model.table, wanted=model.learning).reverse.lines:
        if isinstance(line, Loop) or not {*model.table.weights}.isdisjoint(line.reads):
            return
        yield line


def check_learns(model: Model, doing: str) -> None:
    """Refuse a model without a loss."""
    if not model.learns:
        raise InputError(f"{doing} needs a loss: {model.configuration.name} {model.without_loss}")
