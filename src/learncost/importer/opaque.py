"""Record an operation without a rule as a line without derivation, with its known cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from learncost.importer.axes import AxisClass, equal
from learncost.importer.equations import Equation, NamedView
from learncost.importer.nodes import size_of
from learncost.importer.operands import ChosenPlaces, Complex, GivenTensor, IntegerValue
from learncost.importer.registered import name_of, registered
from learncost.importer.views import StoredValue, View

if TYPE_CHECKING:
    from learncost.importer.reader import GraphReader


def opaque(reader: GraphReader, node: Any, arguments: Sequence[Any]) -> Any:
    """Record the line of a node; return one view, or several in a list. Raises `InputError` if its cost is unknown and
    must be known.
    """
    import torch

    if getattr(node.meta["val"], "layout", torch.strided) is not torch.strided:
        raise reader.refusal("a sparse tensor", "; use dense tensors")
    known, missing = registered(node, reader.examples)
    if missing and not reader.allows_unknown:
        what = f"the operator {name_of(node.target)}"
        raise reader.refusal(what, f"; no rule reads it, and {missing}, --unknown zero leaves them out")
    recorder = reader.recorder
    recorder.operator = name_of(node.target)
    operands = []
    for value in _tensors(arguments):
        view = reader.view(value).fresh()
        stored = tuple(tuple(slot for slot in row if slot not in view.spread) for row in view.dims)
        view = View(view.stored, view.index, stored)  # a dimension that it broadcasts is not an axis of the line
        operands.append(view if view.is_plain else recorder.regrouped_whole(view))
    reads = tuple(NamedView(view, _letters(view)) for view in operands)
    several = node.meta["val"]
    results = [_result(reader, each) for each in (several if isinstance(several, tuple | list) else [several])]
    left = tuple(NamedView(view, _letters(view)) for view in _tensors(results))
    recorder.add(Equation("op", left, reads, op="opaque", cost=known))
    if isinstance(several, torch.Tensor):
        return results[0]
    return results


def _tensors(values: Sequence[Any]) -> list[Any]:
    """Return the tensors among arguments, also nested ones; a complex one gives both parts."""
    tensors = []
    for value in values:
        if isinstance(value, list | tuple):
            tensors += _tensors(value)
        elif isinstance(value, Complex):
            tensors += _tensors([value.real, value.imaginary])
        elif isinstance(value, View | ChosenPlaces | IntegerValue | GivenTensor):
            tensors.append(value)
    return tensors


def _letters(view: View) -> tuple[Hashable, ...]:
    """Return a letter for each dimension: dimensions of the same class share one, except within a view."""
    seen: Counter[Hashable] = Counter()
    letters: list[Hashable] = []
    for row in view.dims:
        roots = tuple(id(slot.axis.root) for slot in row)
        seen[roots] += 1
        letters.append((roots, seen[roots]))
    return tuple(letters)


def _result(reader: GraphReader, value: Any) -> Any:
    """Return a result of the operation, with new axes; None for results without gradient, such as an error code, and
    empty ones.
    """
    import torch

    if not isinstance(value, torch.Tensor):  # a size, or nothing
        return value
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        return None
    sizes = [size_of(size) for size in value.shape]
    if any(equal(size, 0) for size in sizes):
        return None

    def part() -> View:
        stored = StoredValue(reader.recorder.name, tuple(AxisClass(size) for size in sizes if not equal(size, 1)))
        return View.of(stored, [0 if equal(size, 1) else 1 for size in sizes])

    return Complex(part(), part()) if value.dtype.is_complex else part()
