"""Rule of `scan`, which runs a function at each position of an axis: a loop whose lines are written once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from learncost.importer.axes import AxisSplitError, equal, unify_axes
from learncost.importer.equations import Equation, Fold, NamedView
from learncost.importer.nodes import module_of, size_of
from learncost.importer.opaque import opaque
from learncost.importer.reader import GraphReader, UnsupportedOperatorError
from learncost.importer.reading import read
from learncost.importer.registered import body_of
from learncost.importer.rule import rule
from learncost.importer.tried import has_fraction
from learncost.importer.views import GivenTensor, StoredValue, View


@rule("scan")
def scan(reader: GraphReader, body: Any, starts: Sequence[Any], stacks: Sequence[Any], others: Sequence[Any]) -> Any:
    """Record the lines of its function once, between the beginning and the end of a loop.

    A function of integers, or with numbers that it makes itself, is not derived.

    starts  the initial loop-carried values
    stacks  its values at all positions, along the first dimension
    """
    node, before, given = reader.node, len(reader.recorder.equations), set(reader.given)
    tensors = [each.meta["val"] for each in (*node.args[1], *node.args[2])]
    if starts and all(map(has_fraction, tensors)) and not equal(size_of(node.args[2][0].meta["val"].shape[0]), 1):
        origin = reader.recorder.origin()
        with suppress(UnsupportedOperatorError, AxisSplitError):
            results = _loop(reader, body, starts, stacks, others)
            if not any(
                known.graph is body.graph for known, _ in reader.given.keys() - given if hasattr(known, "graph")
            ):
                return results
        del reader.recorder.equations[before:]
        for key in reader.given.keys() - given:
            del reader.given[key]
        reader.node = node
        reader.recorder.go_back(origin)
    return opaque(reader, node, [body, starts, stacks, others])


def _loop(
    reader: GraphReader, body: Any, starts: Sequence[Any], stacks: Sequence[Any], others: Sequence[Any]
) -> list[View]:
    recorder, node, origin = reader.recorder, reader.node, reader.recorder.origin()
    views = [reader.view(each).fresh() for each in stacks]
    whole = [recorder.in_order(view if len(view.dims[0]) == 1 else recorder.merged(view, 0)) for view in views]
    initial = [recorder.in_order(reader.view(each)) for each in starts]
    axis = whole[0].stored.axes[0]
    for view in whole:
        unify_axes([axis], [view.stored.axes[0]])
    axis.keep_whole()
    one = [_new(f"{view.stored.name}_now", view.dims[1:]) for view in whole]
    _edge(reader, Fold(axis, [], [], {}), one, whole)
    begins = len(recorder.equations)
    nodes = [each for each in body.graph.nodes if each.op == "placeholder"]
    reader.values |= dict(zip(nodes, [*initial, *one, *others], strict=True))
    reader.learned = {*reader.learned, *(each for each in body.graph.nodes if has_fraction(each.meta.get("val")))}
    for each in body.graph.nodes:
        if each.op == "get_attr":
            reader.values[each] = body_of(each) or GivenTensor(each)
        elif each.op == "call_function":
            read(reader, each)
    reader.node = node
    recorder.go_back(origin)
    for equation in recorder.equations[begins:]:
        equation.module = equation.module or module_of(node)
    results = [reader.view(reader.values[each]) for each in body.graph.output_node().args[0]]
    made = {each.view.stored for equation in recorder.equations[begins:] for each in equation.left}
    carried = list[View]()
    for first, view in zip(initial, results, strict=False):
        last = recorder.in_order(view, only=lambda stored: stored in made - {each.stored for each in carried})
        carried.append(last)
        for row, other in zip(first.fresh().dims, last.fresh().dims, strict=True):
            unify_axes([slot.axis for slot in row], [slot.axis for slot in other])
    made |= {view.stored for view in carried}
    kept = [recorder.in_order(view, only=made.__contains__) for view in results[len(initial) :]]
    lasts = [_new(view.stored.name, view.fresh().dims) for view in carried]
    along = whole[0].fresh().dims[0]
    every = [_new(f"{view.stored.name}_all", (along, *view.fresh().dims)) for view in kept]
    each_of = {a.stored: b.stored for a, b in zip(one, whole, strict=True)}
    carry = [(a.stored, b.stored, c.stored) for a, b, c in zip(initial, carried, lasts, strict=True)]
    keep = [(a.stored, b.stored) for a, b in zip(kept, every, strict=True)]
    _edge(reader, Fold(axis, [], carry, {}, stacks=each_of, keep=keep), [*lasts, *every], [*carried, *kept, *one])
    return [*lasts, *every]


def _new(name: str, dims: Sequence[Sequence[Any]]) -> View:
    """Return a new value with the axes of these dimensions, in their order."""
    return View.of(StoredValue(name, tuple(slot.axis for row in dims for slot in row)), [len(row) for row in dims])


def _edge(reader: GraphReader, loop: Fold, left: Sequence[View], right: Sequence[View]) -> None:
    """Record the beginning or the end of a loop."""
    named = [tuple(NamedView(view, tuple(range(len(view.dims)))) for view in views) for views in (left, right)]
    reader.recorder.add(Equation("op", named[0], named[1], op="scan", scan=loop))
