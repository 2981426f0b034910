"""Record an operation without a rule as a line without derivation, with its known cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from learncost.importer.equations import Equation, NamedView
from learncost.importer.nodes import is_empty, size_of
from learncost.importer.registered import name_of, registered, run_bodies
from learncost.importer.tried import has_fraction
from learncost.importer.views import Complex, GivenTensor, IntegerValue, SelectedPositions, View, ViewAxis
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Op

if TYPE_CHECKING:
    from learncost.importer.reader import GraphReader


@dataclass(frozen=True)
class CalledOperator:
    """The call of a PyTorch operator, which a line without derivation stands for.

    given   for each tensor among its arguments, its dimensions that are axes of the line, in their order there
    """

    node: Any
    given: Sequence[Sequence[int]]

    def run(self, of_node: Mapping[str, Any], line: Op, arrays: Sequence[Any]) -> list[Any]:
        """Return the results of a line in float64, or the gradients that autograd has of them.

        of_node   the values of the graph, by name: numbers among the arguments, and the shapes and types of tensors
        """
        named = dict(zip(line.given, map(torch.tensor, arrays), strict=True))
        operands = {name: each for name, each in named.items() if name.startswith("X")}
        operands = {
            n: each.double().requires_grad_() if each.is_floating_point() else each for n, each in operands.items()
        }
        parts = zip(operands.values(), self.given, strict=True)

        def filled(leaf: Any) -> Any:
            value = of_node[leaf.name] if isinstance(leaf, torch.fx.Node) else leaf
            if not isinstance(leaf, torch.fx.Node) or not isinstance(value, torch.Tensor):
                return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

            def part() -> Any:
                numbers, dims = next(parts)
                inside = numbers.reshape([value.shape[dim] for dim in dims])
                inside = inside.permute([dims.index(dim) for dim in sorted(dims)])
                shape = [size if dim in dims else 1 for dim, size in enumerate(value.shape)]
                return inside.reshape(shape).expand(value.shape)

            if value.is_complex():
                return torch.complex(part(), part())
            numbers = part()
            return numbers if value.is_floating_point() else numbers.to(value.dtype)

        with torch.enable_grad():
            arguments, by_name = torch.utils._pytree.tree_map(filled, (self.node.args, self.node.kwargs))
            if isinstance(self.node.target, torch._ops.HigherOrderOperator):
                several = run_bodies(str(self.node.target), arguments)
            else:
                several = self.node.target(*arguments, **by_name)
        results = [
            part for each in _leaves(several) for part in ([each.real, each.imag] if each.is_complex() else [each])
        ]
        if line.part == "body":
            return [each.detach().numpy() for each in results]
        seeds = {place: named[f"dY{place}"] for place in range(1, len(results) + 1) if f"dY{place}" in named}
        gradients = torch.autograd.grad(
            [results[place - 1] for place in seeds],
            [operands[name.removeprefix("d")] for name in line.gives],
            [seed.reshape(results[place - 1].shape) for place, seed in seeds.items()],
            allow_unused=True,
        )
        targets = [named[name.removeprefix("d")] for name in line.gives]
        pairs = zip(gradients, targets, strict=True)
        return [(torch.zeros_like(of) if each is None else each).numpy() for each, of in pairs]


def _leaves(several: Any) -> list[Any]:
    """Return the results of an operator that a line has: its tensors of real or complex numbers with elements."""
    results = several if isinstance(several, tuple | list) else [several]
    return [each for each in results if has_fraction(each) and not is_empty(each)]


def opaque(reader: GraphReader, node: Any, arguments: Sequence[Any]) -> Any:
    """Record the line of a node; return one view, or several in a list. Raises `InputError` if its cost is unknown and
    must be known.
    """
    if getattr(node.meta["val"], "layout", torch.strided) is not torch.strided:
        raise reader.refusal("a sparse tensor", "; use dense tensors")
    known, missing = registered(node, reader.examples, {*node.all_input_nodes} - reader.learned)
    if missing and not reader.allows_unknown:
        what = f"the operator {name_of(node.target)}"
        raise reader.refusal(what, f"; no rule reads it, and {missing}, --unknown zero leaves them out")
    recorder = reader.recorder
    recorder.operator = name_of(node.target)
    operands = []
    for value in _tensors(reader, arguments):
        view = reader.view(value).fresh()
        stored = tuple(tuple(slot for slot in row if slot not in view.spread) for row in view.dims)
        if any(left and len(left) < len(row) for left, row in zip(stored, view.dims, strict=True)):
            view = recorder.whole_spread(view, range(len(view.dims)))
        else:  # a dimension that it broadcasts is not an axis of the line
            view = View(view.stored, view.index, stored)
        ordered = _places(view) == sorted(_places(view)) or all(len(row) < 2 for row in view.dims)
        operands.append(view if view.is_plain and ordered else recorder.regrouped_whole(view))
    reads = tuple(NamedView(view, _letters(view)) for view in operands)
    several = node.meta["val"]
    each_result = several if isinstance(several, tuple | list) else [several]
    results = [_result(reader, each, place) for place, each in enumerate(each_result)]
    left = tuple(NamedView(view, _letters(view)) for view in _tensors(reader, results) if isinstance(view, View))
    call = CalledOperator(node, [list(dict.fromkeys(_places(view))) for view in operands])
    recorder.add(Equation("op", left, reads, op="opaque", cost=known, call=call))
    return results[0] if isinstance(several, torch.Tensor) else results


def _tensors(reader: GraphReader, values: Sequence[Any]) -> list[Any]:
    """Return the tensors among arguments, also nested ones; a complex one gives both parts, of zeros where it has
    none.
    """
    tensors = []
    for value in values:
        if isinstance(value, list | tuple):
            tensors += _tensors(reader, value)
        elif isinstance(value, Complex):
            real = reader.view(value.real)
            tensors += [real, value.imaginary if value.imaginary != 0.0 else reader.filled(real.shape, 0.0)]
        elif isinstance(value, View | SelectedPositions | IntegerValue | GivenTensor):
            tensors.append(value)
    return tensors


def _places(view: View) -> list[int]:
    """Return the dimension of each axis of a plain view, in the order in which the axes lie."""
    dims = {slot: dim for dim, row in enumerate(view.dims) for slot in row}
    return [dims[slot] for slot in view.index if isinstance(slot, ViewAxis)]


def _letters(view: View) -> tuple[Hashable, ...]:
    """Return a letter for each dimension: dimensions of the same class share one, except within a view."""
    seen: Counter[Hashable] = Counter()
    letters: list[Hashable] = []
    for row in view.dims:
        roots = tuple(id(slot.axis.root) for slot in row)
        seen[roots] += 1
        letters.append((roots, seen[roots]))
    return tuple(letters)


def _result(reader: GraphReader, value: Any, place: int) -> Any:
    """Return a result of the operation, with new axes; integers and empty results are outside."""
    if not isinstance(value, torch.Tensor):  # a size, or nothing
        return value
    if not has_fraction(value) or is_empty(value):
        return reader.part(place)
    sizes, name = [size_of(size) for size in value.shape], reader.recorder.name
    part = View.new(name, sizes)
    return Complex(part, View.new(name, sizes)) if value.dtype.is_complex else part
