"""Places of a model, told by its structure and never by names: blocks, linears, the stream, the scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from learncost.autodiff.derive import derive
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
    """Lines of one scope: those of a table, or of a repeat's turns.

    scope    what the repeats around make
    repeats  these repeats, the outermost first
    lines    the statements
    values   what is known of every name that they see
    weights  the names that are weights there
    """

    scope: Scope
    repeats: tuple[Loop, ...]
    lines: tuple[Statement, ...]
    values: Mapping[str, Value]
    weights: frozenset[str]

    @property
    def lines_of_scope(self) -> tuple[Line, ...]:
        """The lines that stand in no repeat inside."""
        return tuple(line for line in self.lines if isinstance(line, Line))

    def iterations(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The axes of what every turn has for itself, in one stack."""
        return (*(repeat.count for repeat in self.repeats), *axes)


def places(table: Table) -> Iterator[LinePlace]:
    """The table's own scope, and that of every repeat."""

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
    """The turns of repeats that hand a value on from block to block, those of blocks of blocks among them.

    Each has weights of its own, or nothing: turns that have slices of values alone are the positions of a scan.
    """
    carrying = (place for place in places(table) if place.repeats and place.repeats[-1].carry)
    return tuple(
        place
        for place in carrying
        if not place.repeats[-1].each or any(name in place.weights for name, _ in place.repeats[-1].each)
    )


def blocks(model: Model, doing: str) -> tuple[LinePlace, ...]:
    """The turns of the innermost stacks: what a model has of the same form, one after another.

    Raises `InputError`, which says what is done, where there are none.
    """
    stacked = stacks(model.table)
    around = {place.scope[:depth] for place in stacked for depth in range(len(place.scope))}
    innermost = tuple(place for place in stacked if place.scope not in around)
    if not innermost:
        name = model.configuration.name
        raise InputError(f"{doing} needs blocks that hand a value on, one to the next: {name} has no such repeat")
    return innermost


def linears(place: LinePlace) -> Iterator[tuple[Product, int]]:
    """Products of a scope with one weight that sum over an axis of it or look its rows up, and the weight's place."""
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
    """Whether a product sums over an axis: what such a line makes stands in another space than its factors."""
    return isinstance(line, Product) and not set(line.left[0].loops).issuperset(line.loops)


def followed(name: str, place: LinePlace, constant: frozenset[str]) -> str:
    """The value that stands for a product's output: after its shift and pointwise word, while it has one reader."""
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
    """The values on the way from what a block is handed to what it hands on that no product that sums lies on.

    Raises `InputError` where there is no such way.
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
        raise InputError(f"{name} has no stream: its blocks hand nothing on that they were handed but through weights")
    return between


def scores(model: Model, doing: str) -> str:
    """The value that backpropagation reaches from the loss before it meets a weight: what a head makes.

    Raises `InputError` where there is no loss, or nothing between it and the weights.
    """
    check_learns(model, doing)
    derived = derive(model.table, wanted=model.learning)
    gradient = ""
    for line in derived.reverse.lines:
        if isinstance(line, Loop) or set(model.table.weights) & set(line.reads):
            break
        if line.meta.phase == "backward":
            gradient = line.name
    if not gradient:
        name = model.configuration.name
        raise InputError(f"{doing} needs scores between the weights and the loss, which {name} does not have")
    return gradient


def targets(model: Model, doing: str) -> Line:
    """The line backwards from the loss that makes a gradient of one class at every position, that of the target.

    Raises `InputError` where no loss looks its targets up.
    """
    scores(model, doing)
    for line in derive(model.table, wanted=model.learning).reverse.lines:
        if isinstance(line, Loop) or set(model.table.weights) & set(line.reads):
            break
        if isinstance(line, Product) and len(line.right) == 1 and line.left[0].indexed:
            return line
    name = model.configuration.name
    raise InputError(f"{doing} needs targets that are classes, which the loss looks up: {name} has none")


def check_learns(model: Model, doing: str) -> None:
    """Refuse a model without a loss."""
    if not model.learns:
        from learncost.models.families import instead

        name, counted = model.configuration.name, model.configuration.counted
        raise InputError(
            f"{doing} needs a loss: {name} has no output to learn from (counted: {counted})"
            f"{instead(model.configuration.family)}"
        )
