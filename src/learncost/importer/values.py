"""Evaluate the exported graph: the values of a module's inputs, weights and outside tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learncost.importer.nodes import operator_name
from learncost.importer.registered import OVER_POSITIONS, run_bodies
from learncost.importer.walk import ImportedModule
from learncost.ir.dataclass import dataclass


@dataclass
class GraphValues:
    """Every tensor of a graph, and its results."""

    of_node: Mapping[str, Any]
    outputs: list[Any]


def run_graph(
    imported: ImportedModule,
    module: Any,
    inputs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    known: Mapping[str, Any] = {},
) -> GraphValues:
    """Run the exported graph in float64 on inputs by name and parameters by path.

    `known` values are used instead of running their nodes, and nodes that only these need are not run.

    Conversions to single or half precision convert to double precision here.
    """
    import torch

    program = imported.exported.program
    floats = {torch.float32, torch.float16, torch.bfloat16}
    pairs = {torch.complex32, torch.complex64}
    of_node: dict[str, Any] = {}

    def double(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float64 if value in floats else torch.complex128 if value in pairs else value
        if isinstance(value, torch.Tensor):
            if value.dtype in pairs:
                return value.to(torch.complex128)
            return value.double() if value.dtype in floats else value
        if isinstance(value, list | tuple):
            return type(value)(map(double, value))
        return value

    runs = _before_outputs(program.graph, known)

    class InDouble(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            if node.op == "call_function" and (node not in runs or node.name in known):
                return known.get(node.name)
            result = super().run_node(node)
            of_node[node.name] = result
            return result

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if isinstance(target, torch._ops.HigherOrderOperator) and str(target) in ("cond", *OVER_POSITIONS):
                return double(run_bodies(str(target), args))
            if operator_name(target) == "_assert_tensor_metadata":
                return None
            if operator_name(target) == "with_effects":  # a check, with what orders it
                return None, None
            if operator_name(target) == "copy":  # it has no gradient under autograd
                base, source, *_ = args
                return double(source).expand(base.shape).to(double(base).dtype)
            if operator_name(target) == "view":  # strides differ where attention of doubles is another kernel
                return double(args[0]).reshape(args[1])
            named = {name: double(value) for name, value in kwargs.items()}
            return double(super().call_function(target, tuple(map(double, args)), named))

        def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
            return double(super().get_attr(target, args, kwargs))

    signature = program.graph_signature
    held = {**program.state_dict, **program.constants, **dict(module.named_buffers(remove_duplicate=False))}
    given = []
    names = imported.exported.inputs
    for spec in signature.input_specs:
        kind = spec.kind.name
        if kind == "PARAMETER":
            given.append(parameters[imported.exported.weights.same.get(spec.target, spec.target)])
        elif kind in ("BUFFER", "CONSTANT_TENSOR"):
            given.append(double(held[spec.target]))
        elif kind == "TOKEN":
            given.append(None)
        elif hasattr(spec.arg, "value"):  # not a tensor
            given.append(spec.arg.value)
        else:
            given.append(double(inputs[names[spec.arg.name]]) if hasattr(spec.arg, "name") else None)
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # computed from integers
    try:
        results = InDouble(program.graph_module).run(*given)
    finally:
        torch.set_default_dtype(kind)
    return GraphValues(of_node, list(results))


def _before_outputs(graph: Any, known: Mapping[str, Any]) -> set[Any]:
    """Return the nodes that a graph's outputs depend on, without looking behind known ones; all nodes if nothing is
    known.
    """
    if not known:
        return set(graph.nodes)
    left = [node for node in graph.nodes if node.op == "output"]
    found = set(left)
    while left:
        for node in left.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                left += [node] if node.name not in known else []
    return found
