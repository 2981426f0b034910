"""Values that a module changes in place (buffers, parameters, inputs): their new values become outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from learncost.importer.equations import Equation
from learncost.importer.export import Exported
from learncost.importer.nodes import is_float, operator_name
from learncost.importer.reader import GraphReader
from learncost.importer.views import ChosenPlaces, Complex, GivenTensor, StoredValue, View
from learncost.ir.dataclass import dataclass
from learncost.layers.products import PRODUCT_OPERATORS


@dataclass(frozen=True)
class Change:
    """A value that is changed in place: its source, its new value, and the node of the graph that makes that."""

    of: str
    value: View
    node: str


def changes(reader: GraphReader, exported: Exported, weights: Mapping[StoredValue, str]) -> list[Change]:
    """Return the changes of float values that have lines.

    They have no gradient: an optimizer steps along the gradients of what the module returns. Values that follow from
    buffers alone get lines here. The state that an operator updates itself, such as the running statistics of
    batch_norm, has no line: a line is the operator without it.
    """
    nodes = {node.name: node for node in exported.program.graph.nodes}
    learned = following(reader.recorder.equations, exported, weights)
    found = []
    makes, reader.makes = reader.makes, True
    for name, of in exported.changed:
        node = nodes[name]
        if node.op != "call_function" or not (is_float(node) or node.meta["val"].is_complex()):
            continue
        reader.node = node
        for view, label in _parts(reader, reader.values.get(node), of):
            reader.set_position(node)
            kept = reader.op("stop_gradient", view) if view.stored in learned else view
            found.append(Change(label, kept, name))
    reader.makes = makes
    return found


def unsettled(exported: Exported) -> set[Any]:
    """Return the nodes that follow from floats which the module changes in place, and from matrix products of values
    that it selects, such as a codebook's rows. They are computed in every run and do not follow from settings.
    """
    graph, signature = exported.program.graph, exported.program.graph_signature
    changed = {of for _, of in exported.changed}
    names = {spec.arg.name for spec in signature.input_specs if spec.target in changed}
    found, computed = set[Any](), set[Any]()
    for node in graph.nodes:
        if node.op == "placeholder":
            if node.name in exported.weights.paths or node.name in exported.inputs:
                computed.add(node)
        elif not computed.isdisjoint(node.all_input_nodes) and not _of_shape_alone(node):
            computed.add(node)
        product = node in computed and is_float(node) and operator_name(node.target) in PRODUCT_OPERATORS
        if product or (node.name in names and is_float(node)) or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _of_shape_alone(node: Any) -> bool:
    """Return whether a node uses only the shape and type of its argument, not its numbers."""
    name = operator_name(node.target).partition(".")[0]
    return name.startswith("new_") or name.endswith("_like")


def following(
    equations: Iterable[Equation], exported: Exported, weights: Mapping[StoredValue, str]
) -> set[StoredValue]:
    """Return the values that have a gradient: trainable weights, inputs that require one, and what follows from
    them.
    """
    learned = {stored for stored, path in weights.items() if exported.weights.learns[path]}
    for equation in equations:
        learned |= {s for s in equation.reads if s.kind == "leaf" or exported.wants_gradient.get(s.target)}
        if equation.op != "stop_gradient" and not learned.isdisjoint(equation.reads):
            learned |= {read.view.stored for read in equation.left}
    return learned


def _parts(reader: GraphReader, value: Any, of: str) -> Iterator[tuple[View, str]]:
    """Yield the views of a changed value; a complex one has two."""
    if isinstance(value, GivenTensor):
        value = reader.made(value)
    if isinstance(value, Complex):
        for part, called in ((value.real, "real"), (value.imaginary, "imaginary")):
            if isinstance(part, View):
                yield part, f"{of}.{called}"
    elif isinstance(value, View | ChosenPlaces):
        yield reader.view(value), of
