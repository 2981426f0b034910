"""Export a module, read its graph and write it as a layer in the notation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from learncost.importer import rules  # they register themselves on import
from learncost.importer.axes import AxisClass, Size
from learncost.importer.constants import NodeConstants
from learncost.importer.equations import Equation
from learncost.importer.export import Exported
from learncost.importer.fold import every_item, folded, with_scans
from learncost.importer.layer_text import LayerText
from learncost.importer.loops import rolled
from learncost.importer.nodes import SAME_SIZES, is_float, is_leaf, operator_name, size_of
from learncost.importer.opaque import CalledOperator
from learncost.importer.reader import GraphReader
from learncost.importer.reading import read
from learncost.importer.registered import body_of
from learncost.importer.rewrites import before_masks, needed, read_in_products
from learncost.importer.text import TextWriter
from learncost.importer.tried import has_fraction
from learncost.importer.unit_dims import as_given, kept_axes
from learncost.importer.views import Complex, GivenTensor, IntegerValue, SelectedPositions, StoredValue, View
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.ir.stated import Limit
from learncost.layers.products import PRODUCT_OPERATORS


@dataclass
class ImportedModule:
    """A module as a layer, with the sources of its values.

    text      the layer in the notation
    inputs    the sources of its inputs, by name: one, or those of all iterations of a loop
    weights   the parameters' paths, by name: one, or those of all iterations
    outputs   their names; `output_nodes` are their nodes in the graph
    changed   the buffer, parameter or input that an output is the new value of, if it is changed in place
    calls     the operators of lines without derivation, by the name of their first result
    left_out  the remark on integers and booleans that the module computes and returns, which are no outputs here
    derived   the sizes that follow from open ones
    met       sizes of axes without an open letter, in the order in which they got a letter
    """

    text: str
    exported: Exported
    reader: GraphReader
    inputs: Mapping[str, tuple[StoredValue, ...]]
    weights: Mapping[str, tuple[str, ...]]
    outputs: Sequence[str]
    output_nodes: Sequence[str]
    derived: Mapping[str, Size]
    met: Sequence[Size] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, CalledOperator] = field(default_factory=dict)
    left_out: str = ""

    def at(self, size: Size, sizes: Mapping[str, int]) -> int:
        """Return a derived size for given sizes. Raises `InputError` if some of them are missing."""
        letters = {each: self.exported.letters.symbols.get(str(each), str(each)) for each in size.free_symbols}
        if unknown := sorted({*letters.values()} - sizes.keys()):
            raise InputError(f"the size {size} needs {', '.join(unknown)}, which depend on values")
        return int(size.xreplace({each: sympy.Integer(sizes[letter]) for each, letter in letters.items()}))


def read_exported(
    exported: Exported,
    module: Any,
    *,
    name: str = "",
    fold: bool = True,
    unknown: str = "refuse",
    stated: Mapping[int, Size] = {},
    taken: Iterable[str] = (),
) -> ImportedModule:
    """Return the layer of an exported module; `stated` refines the sizes in `met`, by position, beyond their number in
    this export. The letters in `taken` are not used for sizes. Raises `InputError`.
    """
    SAME_SIZES.set(exported.letters.same_sizes)
    tensors, graph = _tensors(exported, module), exported.program.graph
    makes = not exported.weights.paths and not any(exported.wants_gradient.values())
    reader = GraphReader(graph, unknown == "zero", makes, unsettled(exported), constants=NodeConstants(tensors))
    whole = {node: exported.examples[node.name] for node in graph.nodes if node.name in exported.examples}
    reader.examples = NodeConstants(tensors | whole)
    reader.buffers = dict(exported.program.graph_signature.inputs_to_buffers)
    reader.counted = frozenset(exported.program.graph_signature.buffers_to_mutate.values())
    reader.averages = frozenset(path for path, part in module.named_modules() if getattr(part, "momentum", 0.0) is None)
    reader.learned = _learned(exported)
    weights: dict[StoredValue, str] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            reader.values[node] = _given(reader, exported, node, weights)
        elif node.op == "get_attr":
            reader.values[node] = body_of(node) or GivenTensor(node)
        elif node.op == "call_function":
            read(reader, node)
            if is_leaf(node):
                reader.values[node] = reader.leaf(node)
    writer = TextWriter(exported.letters.symbols, stated)
    writer.axes.taken |= set(taken)
    return _written(reader, exported, weights, name or type(module).__name__, fold, writer)


WITHOUT_GRADIENT = (
    *("detach", "sign", "sgn", "floor", "ceil", "round", "trunc", "heaviside", "floor_divide"),
    *("bernoulli", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
"""Operators that pass no gradient to their arguments."""


def _learned(exported: Exported) -> set[Any]:
    """Return the nodes that follow from trainable values by operators that pass a gradient."""
    learned = set[Any]()
    for node in exported.program.graph.nodes:
        path = exported.weights.paths.get(node.name)
        if node.op == "placeholder":
            if (path is not None and exported.weights.learns[path]) or exported.wants_gradient.get(node.name):
                learned.add(node)
            continue
        values = node.meta.get("val")
        has_gradient = any(map(has_fraction, values if isinstance(values, tuple | list) else (values,)))
        name = operator_name(node.target).partition(".")[0]
        read = node.all_input_nodes[:1] if name == "type_as" else node.all_input_nodes  # of the second the type alone
        if is_leaf(node) or (has_gradient and name not in WITHOUT_GRADIENT and not learned.isdisjoint(read)):
            learned.add(node)
    return learned


def _check_given(exported: Exported, reader: GraphReader, given: Mapping[str, Sequence[StoredValue]]) -> None:
    """Refuse an input of the table that follows from trainable values: its gradient would be lost silently."""
    nodes = {node.name: node for node in exported.program.graph.nodes}
    for stored in (each for several in given.values() for each in several):
        node = nodes.get(stored.target)
        if stored.kind in ("constant", "real part", "imaginary part") and node in reader.learned:
            reader.node = node
            raise reader.refusal(f"{stored.name}, an input of the table that depends on trainable values,")


def _tensors(exported: Exported, module: Any) -> dict[Any, Any]:
    """Return buffers and lifted constants by the graph's nodes, without floats that the module changes in place."""
    program, changed = exported.program, {of for _, of in exported.changed}
    held = {**program.state_dict, **program.constants, **dict(module.named_buffers(remove_duplicate=False))}
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    tensors = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name in ("BUFFER", "CONSTANT_TENSOR") and spec.arg.name in nodes:
            tensor = held.get(spec.target)
            if tensor is not None and not (spec.target in changed and tensor.is_floating_point()):
                tensors[nodes[spec.arg.name]] = tensor
    return tensors


def _given(reader: GraphReader, exported: Exported, node: Any, weights: dict[StoredValue, str]) -> Any:
    """Return the operand of a placeholder: a weight, a float input, or an outside value."""
    value = node.meta.get("val")
    paths, same = exported.weights.paths, exported.weights.same
    if node.name in paths:
        path = same.get(paths[node.name], paths[node.name])  # a tied parameter has a second name
        sizes = [*map(size_of, value.shape), *((2,) if value.dtype.is_complex else ())]  # two numbers for each
        for stored, known in weights.items():
            if known == path:
                return _looked(reader, as_given(stored, sizes, reader.kept[stored]), value)
        names = [name for name, known in paths.items() if same.get(known, known) == path]
        kept = kept_axes(sizes, (each for each in exported.program.graph.nodes if each.name in names))
        view = _input(path, sizes, kept, "weight")
        weights[view.stored] = path
        reader.kept[view.stored] = kept
        return _looked(reader, view, value)
    if not isinstance(value, torch.Tensor):
        return value
    if node.name in exported.inputs and value.dtype.is_floating_point:
        sizes = [size_of(size) for size in value.shape]
        view = _input(exported.inputs[node.name], sizes, kept_axes(sizes, [node]), "input")
        view.stored.target = node.name
        reader.given[node, "constant"] = view
        return view
    return GivenTensor(node)


def _looked(reader: GraphReader, view: View, value: Any) -> View | Complex:
    """Return a weight in the type of the graph: complex numbers are stored as pairs."""
    return rules.complex.view_as_complex(reader, view) if value.dtype.is_complex else view


def _input(name: str, sizes: Sequence[Size], kept: Sequence[int], kind: str) -> View:
    """Return the view of an input, with the axes that are kept."""
    return as_given(StoredValue(name, tuple(AxisClass(sizes[place]) for place in kept), kind, name), sizes, kept)


def _outputs(reader: GraphReader, exported: Exported, node: Any, changes: bool) -> list[tuple[str, View, str]]:
    """Return the float outputs that follow from values of the table, by name; for a module that computes inputs of
    others, the booleans too.

    If all other outputs lead to one number, that is the loss, and the only output.

    changes   whether the module changes a value in place, in which case it may have no output
    """
    every: list[tuple[str, View, str]] = []
    for number, (source, name) in enumerate(zip(node.args[0], exported.outputs, strict=False)):
        value = reader.values.get(source)
        if isinstance(value, GivenTensor):
            value = reader.made(value)
        if name is None or not isinstance(value, View):
            continue
        if not source.meta["val"].dtype.is_floating_point and not (reader.makes and value.stored.kind == "truth"):
            continue
        every.append((name or f"output_{number}", value, str(source.name)))
    if not every and not changes:
        raise InputError("the module returns no float tensor that depends on its weights or its float inputs")
    for _, value, node_name in every:
        ancestors = () if value.dims else _ancestors(reader.recorder.equations, value.stored)
        if ancestors and all(other.stored in ancestors for _, other, _ in every):
            return [("loss", value, node_name)]
    return every


def _ancestors(equations: Sequence[Equation], end: StoredValue) -> set[StoredValue]:
    """Return every value through which an end passes a gradient."""
    ancestors = {end}
    for equation in reversed(equations):
        if equation.op != "stop_gradient" and any(read.view.stored in ancestors for read in equation.left):
            ancestors.update(equation.reads)
    return ancestors


def _written(
    reader: GraphReader, exported: Exported, weights: dict[StoredValue, str], name: str, fold: bool, writer: TextWriter
) -> ImportedModule:
    """Return the layer of a graph whose nodes are recorded."""
    changed = changes(reader, exported, weights)
    outputs = _outputs(reader, exported, exported.program.graph.output_node(), bool(changed))
    if exported.unrolled:  # behind a loop, the number of a node differs with the steps
        outputs = [(re.sub(r"_\d+$", "", label), value, node) for label, value, node in outputs]
    recorder = reader.recorder
    recorder.module, recorder.operator, recorder.again = "", "output", ""
    results: list[StoredValue] = []
    returned = len(outputs)
    outputs = [*outputs, *((f"{of}.after", value, node) for of, value, node in changed)]
    made = {each for equation in recorder.equations for each in equation.made}
    for label, value, _ in outputs:  # as the module returns it, with its axes in the order of its dimensions
        copied = recorder.in_order(value, label, lambda stored: stored in made and stored not in results)
        results.append(copied.stored)
    kept = [*results]
    equations = needed(recorder.equations, kept)
    while before := [each for each in _behind(reader, exported, equations) if each not in kept]:
        kept += before
        equations = needed(recorder.equations, kept)
    equations = needed(before_masks(equations), kept)
    equations = needed(read_in_products(equations, kept), kept)
    learned = following(equations, exported, weights)
    items = with_scans(equations)
    if exported.unrolled:
        items = rolled(items, kept, learned.__contains__)
    if fold:
        items = folded(items, kept, learned.__contains__)
    limits = _limits(exported, reader)
    layer_text = LayerText(items, results, exported, weights, writer, limits)
    writer.values.taken |= set(exported.letters.symbols.values())
    layer_text.prepare([label for label, *_ in outputs])
    unused = ", ".join(exported.unused.places)
    remarks = [f"{name}, read from PyTorch.", *([f"Nothing reads a result of {unused}."] if unused else [])]
    of_changed = dict(zip(map(writer.name, results[returned:]), (of for of, *_ in changed), strict=True))
    left_out = _left_out(exported, [node for *_, node in outputs])
    remarks += [left_out] if left_out else []
    remarks += [f"{result} is {of} after the call, which changes it in place." for result, of in of_changed.items()]
    text = layer_text.text(name, remarks)
    read = [s for s in layer_text.given if s.kind != "running"]
    given = {layer_text.header_name(s): tuple(layer_text.stacks.get(s, [s])) for s in read}
    _check_given(exported, reader, {name: several for name, several in given.items() if several[0] not in weights})
    return ImportedModule(
        text,
        exported,
        reader,
        {name: several for name, several in given.items() if several[0] not in weights},
        {name: tuple(weights[s] for s in several) for name, several in given.items() if several[0] in weights},
        tuple(map(writer.name, results)),
        tuple(node for *_, node in outputs),
        {letter: size for letter, size in writer.sizes.items() if not isinstance(size, int)},
        writer.met,
        of_changed,
        {writer.name(each.stored): each.call for each in every_item(items) if isinstance(each, Equation) and each.call},
        left_out,
    )


def _left_out(exported: Exported, results: Sequence[str]) -> str:
    """Return the remark on integers and booleans that the module computes and returns; "" if there are none."""
    last, without_lines = exported.program.graph.output_node().args[0], list[str]()
    returned = [node for node, name in zip(last, exported.outputs, strict=False) if name is not None]
    for place, node in enumerate(returned, 1):
        is_left_out = getattr(node, "op", "") == "call_function" and node.name not in results
        if is_left_out and not has_fraction(value := node.meta["val"]):
            without_lines.append(f"{place} ({str(value.dtype).removeprefix('torch.')})")
    return f"The table has no lines for output {', '.join(without_lines)} of {len(returned)}." if without_lines else ""


def _limits(exported: Exported, reader: GraphReader) -> Mapping[str, Limit]:
    """Return the allowed ranges of open letters: those that the export is valid for, and the sizes of indexed
    tables.
    """
    limits = dict(exported.letters.limits)
    for size, most in reader.limits.items():
        if letter := exported.letters.symbols.get(str(size)):
            limits[letter] = limits.get(letter, Limit()) & Limit(most=most)
    return limits


def _behind(reader: GraphReader, exported: Exported, equations: Sequence[Equation]) -> list[StoredValue]:
    """Return values of the table from which outside inputs are computed, such as a mask of nan, or integers that the
    module returns: they are computed, too.
    """
    nodes = {node.name: node for node in exported.program.graph.nodes}
    left = [nodes[stored.target] for each in equations for stored in each.reads if stored.target in nodes]
    returned = [
        nodes[name]
        for name in (*exported.outputs, *exported.selecting)
        if name in nodes and nodes[name].op == "call_function"
    ]
    left += [node for node in returned if not isinstance(reader.values.get(node), View | Complex)]
    seen, values = set(left), dict[StoredValue, None]()
    selecting = (reader.values.get(nodes[name]) for name in exported.selecting if name in nodes)
    values |= dict.fromkeys(view.stored for view in selecting if isinstance(view, View))
    while left:
        for node in left.pop().all_input_nodes:
            value = reader.values.get(node)
            for part in (value.real, value.imaginary) if isinstance(value, Complex) else (value,):
                view = part.view if isinstance(part, SelectedPositions | IntegerValue) else part
                if isinstance(view, View):
                    values[view.stored] = None
            if isinstance(value, GivenTensor | SelectedPositions | IntegerValue) and node not in seen:
                seen.add(node)
                left.append(node)
    made = {read.view.stored for each in equations for read in each.left}  # an existing entry is kept
    return [stored for stored in values if stored.kind not in ("weight", "input") and stored not in made]


# Values that a module changes in place (buffers, parameters, inputs): their new values become outputs


def changes(reader: GraphReader, exported: Exported, weights: Mapping[StoredValue, str]) -> list[tuple[str, View, str]]:
    """Return the changes of float values that have lines: the source, its new value, and the node that makes that.

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
        if node.op != "call_function" or not has_fraction(node.meta["val"]):
            continue
        reader.node = node
        for view, label in _parts(reader, reader.values.get(node), of):
            reader.set_position(node)
            kept = reader.op("stop_gradient", view) if view.stored in learned else view
            found.append((label, kept, name))
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
    elif isinstance(value, View | SelectedPositions):
        yield reader.view(value), of
