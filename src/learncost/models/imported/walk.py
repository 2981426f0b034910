"""From a module to the text of a layer: its graph is exported, read, and written in the notation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from learncost.equation.errors import InputError
from learncost.models.imported import rules  # noqa: F401 - the rules register themselves
from learncost.models.imported.axes import Axis, equal
from learncost.models.imported.equations import Equation, Read
from learncost.models.imported.export import Exported, export
from learncost.models.imported.reader import SAME_SIZES, Outside, Reader, size_of
from learncost.models.imported.text import Writer, identifier, needed, tail
from learncost.models.imported.views import Stored, View


@dataclass
class Imported:
    """What was read of a module.

    text      the layer in the notation
    reader    where its inputs come from: nodes of the graph
    names     what stored values are called in the text
    """

    text: str
    exported: Exported
    reader: Reader
    names: Mapping[Stored, str]
    outputs: Sequence[str] = field(default_factory=tuple)
    output_nodes: Sequence[str] = field(default_factory=tuple)
    weights: Mapping[str, str] = field(default_factory=dict)  # names in the text, with the parameters' paths
    derived: Mapping[str, str] = field(default_factory=dict)  # sizes that follow from open ones, as expressions

    def at(self, expression: str, sizes: Mapping[str, int]) -> int:
        """A size that follows from others, given these."""
        import sympy

        return int(sympy.sympify(expression).subs(sizes))


def read_module(
    module: Any, inputs: Any, symbols: Mapping[str, str] | None = None, *, name: str = "", unknown: str = "refuse"
) -> Imported:
    """The layer that a PyTorch module is.

    Parameters
    ----------
    module
        A torch.nn.Module.
    inputs
        Example tensors: a tuple for the arguments of forward in their order, or a mapping by their names.
    symbols
        Of inputs, what their dimensions are called, such as `{"idx": "B M"}`: a letter is a size that stays open, a
        number one that is fixed.
    unknown
        What becomes of an operator of which nobody knows the cost: refuse, or zero, a line without a number.

    Raises
    ------
    InputError
        For what PyTorch cannot export or what no rule reads, with the user's own line.
    """
    exported = export(module, inputs, symbols or {})
    SAME_SIZES.set(exported.same_sizes)
    reader = Reader(exported.program.graph, allows_unknown=unknown == "zero")
    weights: dict[Stored, str] = {}
    graph = exported.program.graph
    outputs: list[tuple[str, View, str]] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            reader.values[node] = _given(reader, exported, node, weights)
        elif node.op == "get_attr":
            reader.values[node] = Outside(node)
        elif node.op == "call_function":
            reader.read(node)
        elif node.op == "output":
            outputs = _outputs(reader, exported, node)
    return _written(reader, exported, weights, outputs, name or type(module).__name__)


def _given(reader: Reader, exported: Exported, node: Any, weights: dict[Stored, str]) -> Any:
    """What a placeholder is: a weight, a float input, or what stays outside."""
    import torch

    value = node.meta.get("val")
    if node.name in exported.parameters:
        path = exported.parameters[node.name]
        if path in exported.same:  # a parameter under a second name
            path = exported.same[path]
        for stored, known in weights.items():
            if known == path:
                return View.of(stored, [0 if equal(size_of(s), 1) else 1 for s in value.shape])
        view = _input(path, value, "weight")
        weights[view.stored] = path
        return view
    if not isinstance(value, torch.Tensor):
        return value
    if node.name in exported.inputs and value.dtype.is_floating_point:
        view = _input(exported.inputs[node.name], value, "input")
        view.stored.target = node.name
        reader.given[(node, "constant")] = view.stored
        return view
    return Outside(node)


def _input(name: str, value: Any, kind: str) -> View:
    sizes = [size_of(size) for size in value.shape]
    stored = Stored(name, tuple(Axis(size) for size in sizes if not equal(size, 1)), kind, name)
    return View.of(stored, [0 if equal(size, 1) else 1 for size in sizes])


def _outputs(reader: Reader, exported: Exported, node: Any) -> list[tuple[str, View, str]]:
    """The float outputs that follow from what is in the table, by name; a loss alone where there is one."""
    every: list[tuple[str, View, str]] = []
    for number, (source, name) in enumerate(zip(node.args[0], exported.outputs, strict=False)):
        value = reader.values.get(source)
        if name is None or not isinstance(value, View) or not source.meta["val"].dtype.is_floating_point:
            continue
        every.append((name or f"output_{number}", value, str(source.name)))
    if not every:
        raise InputError("nothing that it returns is a float that follows from its weights or its float inputs")
    losses = [(value, node_name) for _, value, node_name in every if not value.dims]
    if len(losses) == 1:
        return [("loss", *losses[0])]
    return every


def _written(
    reader: Reader,
    exported: Exported,
    weights: Mapping[Stored, str],
    outputs: Sequence[tuple[str, View, str]],
    name: str,
) -> Imported:
    recorder = reader.recorder
    recorder.module, recorder.operator = "", "output"
    results: list[Stored] = []
    for label, value, _ in outputs:
        results.append(_as_output(reader, label, value, results))
    equations = needed(recorder.equations, results)
    _inline_reads(equations)
    writer = Writer(exported.symbols)
    used = {stored: None for equation in equations for stored in equation.reads}
    made = {read.view.stored for equation in equations for read in equation.left}
    given = [stored for stored in used if stored not in made]
    order = {name: place for place, name in enumerate(exported.inputs.values())}
    inputs = sorted((s for s in given if s not in weights), key=lambda s: order.get(s.target, len(order)))
    used_weights = [s for s in weights if s in used]
    writer.values.taken |= set(exported.symbols.values())
    for stored in (*inputs, *used_weights):
        writer.name(stored)
    for stored, (label, *_) in zip(results, outputs, strict=True):
        writer.names[stored] = writer.values.unique(identifier(label))
    for equation in equations:
        for read in equation.left:
            stored = read.view.stored
            if stored not in writer.names:
                writer.names[stored] = writer.values.unique(_value_name(equation, stored))
    writer.axes.taken |= writer.values.taken | set(exported.symbols.values())
    body = [f"  {writer.line(equation)}" for equation in equations]
    head = f"{identifier(name).replace('.', '_')}({' '.join(map(writer.name, inputs))}"
    head += f"; {' '.join(map(writer.name, used_weights))}" if used_weights else ""
    head += f") -> {' '.join(map(writer.name, results))}"
    lines = [f"% {name}, read from PyTorch.", head, *body]
    roles = _roles(reader, exported, writer, inputs)
    lines += roles
    if fixed := [f"{letter}={size}" for letter, size in writer.sizes.items() if isinstance(size, int)]:
        lines.append(f"sizes: {' '.join(fixed)}")
    frozen = [writer.name(s) for s in used_weights if not exported.learns[weights[s]]]
    if frozen:
        lines.append(f"frozen: {' '.join(frozen)}")
    read_paths = {weights[s] for s in used_weights}
    unread = sum(
        count for path, count in exported.counts.items() if path not in read_paths and path not in exported.same
    )
    if unread:
        lines.append(f"unread: {unread}")
    return Imported(
        "\n".join(lines) + "\n",
        exported,
        reader,
        writer.names,
        tuple(map(writer.name, results)),
        tuple(node for *_, node in outputs),
        {writer.name(s): weights[s] for s in used_weights},
        {letter: writer.size(size) for letter, size in writer.sizes.items() if not isinstance(size, int)},
    )


def _value_name(equation: Equation, stored: Stored) -> str:
    part = tail(equation.module)
    return identifier(f"{part}.{stored.name}" if part and part != stored.name else stored.name)


def _as_output(reader: Reader, label: str, value: View, taken: Sequence[Stored]) -> Stored:
    """A value as the module returns it: its axes in the order of its dimensions, in an array of its own."""
    value = value.fresh()
    made = {read.view.stored for equation in reader.recorder.equations for read in equation.left}
    order = [slot for row in value.dims for slot in row]
    if value.is_plain and list(value.index) == order and value.stored in made and value.stored not in taken:
        return value.stored
    value = reader.recorder.whole_spread(value, range(len(value.dims)))
    letters = tuple(range(len(value.dims)))
    result = reader.recorder.result([Read(value, letters)], letters, label)
    reader.recorder.add(Equation("product", (Read(result, letters),), (Read(value, letters),)))
    return result.stored


def _inline_reads(equations: list[Equation]) -> None:
    """What is read at an index and then by one product alone is read there: W[e=chosen[B M t] d f]."""


def _roles(reader: Reader, exported: Exported, writer: Writer, inputs: Sequence[Stored]) -> list[str]:
    """What the layer says of its inputs."""
    lines = []
    constants = []
    targets = next((s for s in inputs if s.kind == "targets"), None)
    for stored in inputs:
        if stored.kind.startswith("share mean") and targets is not None:
            lines.append(f"{writer.name(stored)}: share of {writer.name(targets)}")
        elif (
            stored.kind == "constant"
            or stored.kind.startswith("share")
            or (stored.kind == "input" and not exported.wants_gradient.get(stored.target))
        ):
            constants.append(writer.name(stored))
        elif stored.kind == "targets" and stored.reads is not None:
            lines.append(f"{writer.name(stored)}: index of {writer.letter(stored.reads)}")
    if constants:
        lines.append(f"constants: {' '.join(constants)}")
    return lines
