"""Export PyTorch's functional graph of a module: composite operators are kept if a rule reads them, otherwise
decomposed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Set
from functools import cache
from typing import Any

import torch
from torch._export.utils import _is_preservable_cia_op
from torch.utils.flop_counter import flop_registry

from learncost.importer.as_run import written_through
from learncost.importer.calls import answered, decided
from learncost.importer.composed import WRITTEN_OUT
from learncost.importer.examples import as_called, flattened
from learncost.importer.functions import check_registered
from learncost.importer.nodes import operator_name
from learncost.importer.recurrences import unpacked
from learncost.importer.refusals import GradientTakenError, transform_of
from learncost.importer.registered import Unused, unused
from learncost.importer.rule import RULES
from learncost.importer.sized import plain_sizes
from learncost.importer.unseen import ChangedError, check_changes
from learncost.importer.wrappers import named_inputs, plain
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError


@dataclass(frozen=True)
class Traced:
    """A functional graph.

    asked   the placeholders of inputs for which the forward pass sets requires_grad
    unused  dead products of the module, which the graph does not have
    """

    program: Any
    asked: Set[str]
    unused: Unused


def traced(module: Any, given: Mapping[str, Any], shapes: Any) -> Traced:
    """Return the graph of a module for inputs with the dynamic dimensions in `shapes`. Raises what the module
    raises.
    """
    try:
        return _graph(module, given, shapes)
    except (GradientTakenError, ChangedError) as error:
        try:
            written, asked = written_through(module, given, str(error))
        except GradientTakenError:
            raise error from None
        names = [name for name in given if name in inspect.signature(written.forward).parameters]
        graph = _graph(
            written, {name: given[name] for name in names}, shapes and {name: shapes[name] for name in names}
        )
        places = zip(names, graph.program.graph_signature.user_inputs, strict=True)
        return replace(graph, asked={place for name, place in places if name in asked})


@plain_sizes()
def _graph(module: Any, given: Mapping[str, Any], shapes: Any) -> Traced:
    opt_einsum = torch.backends.opt_einsum.enabled
    opens = any(leaf is not None for leaf in torch.utils._pytree.tree_leaves(shapes))
    torch.backends.opt_einsum.enabled = opt_einsum and not opens  # it would fix the sizes of batches
    row, by_name = as_called(module, given)
    hook = module.register_forward_hook(_of_known_types)
    try:
        with (
            answered(module, unpacked(), decided()) as forward,
            named_inputs(module, by_name),
        ):
            try:
                program = torch.export.export(module, row, by_name, dynamic_shapes=shapes, strict=False)
            except InputError:
                raise
            except Exception as error:
                if by := (forward.taken[0] if forward.taken else transform_of(error)):
                    raise GradientTakenError(by) from None
                raise
        if forward.taken and any(map(torch._C._functorch.is_functorch_wrapped_tensor, _tensors(program))):
            raise GradientTakenError(forward.taken[0])  # what it computes below a derivative is not in the graph
        check_registered(program, module)
        asked = {name for place, name in enumerate(program.graph_signature.user_inputs) if place in forward.asked}
        check_changes(program, _with_gradient(program, module, given) | asked)
        _stop_gradients(program)
        left_out = unused(program)
        program = _decomposed(program, {**_of_changes(), **_decompositions(program)})
        for _ in range(MOST_ROUNDS):
            if not (parts := _decompositions(program)):
                break
            program = _decomposed(program, parts)
    finally:
        hook.remove()
        torch.backends.opt_einsum.enabled = opt_einsum
    return Traced(program, asked, left_out)


@cache
def _read_whole() -> Mapping[Any, Any]:
    """Return PyTorch's mark of preserved operators for the composite ones that rules read."""
    exports: Any = torch.export.exported_program
    kept = {}
    for name in (*RULES, *WRITTEN_OUT):
        packet, _, overload = name.partition(".")
        several: Any = getattr(torch.ops.aten, packet, None)
        overloads = [] if several is None else [each for each in several.overloads() if overload in ("", each)]
        for op in (getattr(several, each) for each in overloads):
            if _is_preservable_cia_op(op):
                kept[op] = exports._special_op_to_preserve_cia
    return kept


def _decomposed(program: Any, parts: Mapping[Any, Any]) -> Any:
    """Return a program with these decompositions, and with the composite operators decomposed that no rule reads.

    `ExportedProgram.run_decompositions` would list and preserve all composite operators of all libraries each time.
    """
    exports: Any = torch.export.exported_program
    of_composites = {**_read_whole(), **{op: each for op, each in parts.items() if op._can_decompose()}}
    return exports._decompose_exported_program(
        program,
        cia_to_decomp=of_composites,
        python_decomp_table={op: each for op, each in parts.items() if op not in of_composites},
        joint_loss_index=None,
        decompose_custom_triton_ops=False,
    )


def _tensors(program: Any) -> Iterator[Any]:
    """Yield the tensors that an export keeps as constants."""
    yield from (each for each in program.constants.values() if isinstance(each, torch.Tensor))


def _of_known_types(module: Any, given: Any, results: Any) -> Any:
    """Return results without objects that no exported program returns, such as an encoder-decoder's cache next to a
    loss.
    """
    tree, results = torch.utils._pytree, plain(results)
    if not any(isinstance(each, torch.Tensor) for each in tree.tree_leaves(results)):
        return results

    def known(leaf: Any) -> Any:
        return leaf if type(leaf).__module__.partition(".")[0] in ("builtins", "torch") else None

    return tree.tree_map(known, results)


def _with_gradient(program: Any, module: Any, given: Mapping[str, Any]) -> set[str]:
    """Return the placeholders of trainable parameters, and of inputs that require a gradient."""
    learns = {path for path, each in module.named_parameters(remove_duplicate=False) if each.requires_grad}
    signature = program.graph_signature
    inputs = zip(signature.user_inputs, flattened(given).values(), strict=False)
    return {
        *(spec.arg.name for spec in signature.input_specs if spec.kind.name == "PARAMETER" and spec.target in learns),
        *(place for place, value in inputs if getattr(value, "requires_grad", False)),
    }


def _stop_gradients(program: Any) -> None:
    """Mark the results of code under `torch.no_grad` as without gradient, which their decompositions would lose."""
    wrapped = torch.ops.higher_order.wrap_with_set_grad_enabled
    for part in [each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]:
        for node in part.graph.nodes:
            if node.op != "call_function" or node.target is not wrapped or node.args[0]:
                continue
            inside = getattr(part, node.args[1].target)
            output = next(each for each in inside.graph.nodes if each.op == "output")

            def stopped(each: Any, graph: Any = inside.graph, output: Any = output) -> Any:
                value = each.meta.get("val")
                if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
                    return each
                with graph.inserting_before(output):
                    mark = graph.call_function(torch.ops.aten.detach.default, (each,))
                mark.meta = dict(each.meta)
                return mark

            output.args = torch.fx.map_arg(output.args, stopped)
            inside.recompile()


@cache
def _of_changes() -> Mapping[Any, Any]:
    """Return the decompositions of what changes in place become, in the round in which they become that."""
    return {getattr(torch.ops.aten, name).default: WRITTEN_OUT[name][0] for name in ("slice_scatter", "select_scatter")}


MOST_ROUNDS = 6
"""The most rounds of decomposition."""


def _decompositions(program: Any) -> dict[Any, Any]:
    """Return PyTorch's decompositions of the operators of a graph that no rule reads, without composite ones."""
    table = torch._decomp.decomposition_table
    parts: dict[Any, Any] = {}
    learned = set()  # nodes that follow from weights or float inputs: the others need no decomposition
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            if isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex):
                learned.add(node)
            continue
        if node.op != "call_function" or learned.isdisjoint(node.all_input_nodes):
            continue
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool | None):
            continue
        if isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex):
            continue  # indices, or comparisons: they have no gradient
        learned.add(node)
        if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
            continue
        name = operator_name(node.target)
        written_out = WRITTEN_OUT.get(name) or WRITTEN_OUT.get(name.partition(".")[0])
        if written_out is not None and written_out[1](node):
            parts[node.target] = written_out[0]
            continue
        if name in RULES or name.partition(".")[0] in RULES or node.target._can_decompose():
            continue
        parts_of = table.get(node.target)
        counted = name.startswith(RECOMPUTES) and node.target._overloadpacket in flop_registry
        if parts_of is not None and not counted and not _is_of_primitives(parts_of):
            parts[node.target] = parts_of
    return parts


RECOMPUTES = ("_scaled_dot_product_", "_flash_attention", "_efficient_attention")
"""Prefixes of operators that compute products again backward, which their decompositions do not."""


def _is_of_primitives(function: Any) -> bool:
    """Return whether a decomposition is a reference in PyTorch's primitives, which are the same operators by other
    names, or has nan for a number.
    """
    code = inspect.unwrap(function).__code__
    return not {"prims", "copy_to", "signbit", "nan"}.isdisjoint((*code.co_names, *code.co_consts))
