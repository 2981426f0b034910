"""Export PyTorch's functional graph of a module, in which composite operators are kept if a rule reads them, otherwise
decomposed: with the letters of open sizes, its parameters, inputs and outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias

import sympy
import torch
from torch._export.utils import _is_preservable_cia_op, node_inline_
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils.flop_counter import flop_registry

from learncost.importer.calls import answered, decided
from learncost.importer.composed import WRITTEN_OUT
from learncost.importer.examples import (
    arguments,
    as_called,
    distinct_examples,
    dynamic,
    flattened,
    named_inputs,
    parts_of,
    plain,
    readable,
)
from learncost.importer.functions import RequiresGradChangedError, check_changes, check_hooks, check_registered
from learncost.importer.nodes import operator_name
from learncost.importer.recurrences import unpacked
from learncost.importer.refusals import GradientInForwardError, transform_of
from learncost.importer.registered import UnusedProducts, unused
from learncost.importer.rule import RULES
from learncost.importer.sized import constants, exact, interval, open_sizes, plain_sizes
from learncost.importer.tracing import SELECTING, with_traced_gradients
from learncost.importer.tried import has_fraction
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.ir.stated import LARGEST, Limit


@dataclass
class Letters:
    """The letters of open sizes.

    symbols     the letters, by the graph's symbols
    where_open  the input dimension of a letter
    fixed       letters for which the module allows only one size
    same_sizes  symbols that are the same size, such as those of one letter, by the first of them
    limits      the allowed sizes of a letter, if the code behaves differently for others
    """

    symbols: dict[str, str] = field(default_factory=dict)
    where_open: dict[str, tuple[str, int]] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    same_sizes: dict[Any, Any] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)


@dataclass
class ModuleParameters:
    """The parameters of a module.

    paths   their paths, by placeholder of the graph
    same    the first path of a tied parameter, by each other path
    learns  whether it is trainable, by path
    counts  the number of elements, by path; a complex element counts twice
    shapes  of parameters and buffers, by path
    """

    paths: dict[str, str]
    same: dict[str, str] = field(default_factory=dict)
    learns: dict[str, bool] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Exported:
    """An exported graph with its inputs and outputs.

    inputs          the inputs' names, by placeholder
    outputs         the names of the results in order; None for those that the user's module does not return
    selecting       the nodes by whose values a traced run selected positions, returned behind its results
    changed         the buffers, parameters and inputs that are changed in place, by the node of the new value
    wants_gradient  whether a float input requires a gradient, by placeholder
    examples        the example inputs of whole numbers, by placeholder
    unused          dead products that the module computes, which the graph does not have
    unrolled        whether loops over positions, which the graph has step by step, become scans
    """

    program: Any
    weights: ModuleParameters
    inputs: Mapping[str, str]
    outputs: Sequence[str | None]
    selecting: Sequence[str]
    changed: Sequence[tuple[str, str]]
    letters: Letters
    wants_gradient: Mapping[str, bool]
    unused: UnusedProducts
    examples: Mapping[str, Any] = field(default_factory=dict)
    unrolled: bool = False


def export(module: Any, inputs: Any, symbols: Mapping[str, str]) -> Exported:
    """Return the functional graph of a module, with composite operators kept. Raises `InputError`."""
    readable(module)
    check_hooks(module)
    given = _given(module, inputs, symbols)
    shapes = {name: dynamic(name, value, symbols.get(name, "")) for name, value in given.items()}
    *others, last = distinct_examples(given, symbols)
    for examples in others:
        with suppress(Exception):  # any error that a user's module raises: it may require certain sizes
            program, asked, left_out = traced(module, examples, shapes)
            break
    else:
        try:
            program, asked, left_out = traced(module, last, shapes if symbols else None)
        except Exception as error:
            text = str(error).strip()
            message = text.splitlines()[0] if text else type(error).__name__
            raise InputError(f"PyTorch cannot export it: {message}") from error
    signature, flat = program.graph_signature, flattened(given)
    inputs_by_place = {node: node for node in signature.user_inputs if isinstance(node, str)}
    inputs_by_place |= dict(zip(signature.user_inputs, flat, strict=False))
    outputs = [
        spec.arg.name if spec.kind.name == "USER_OUTPUT" and hasattr(spec.arg, "name") else None
        for spec in signature.output_specs
    ]
    behind = len(outputs) - getattr(module, SELECTING, 0)
    outputs, selecting = [*outputs[:behind], *(None for _ in outputs[behind:])], outputs[behind:]
    changed = [
        (spec.arg.name, inputs_by_place.get(spec.target, spec.target))
        for spec in signature.output_specs
        if spec.kind.name in CHANGES
    ]
    wants = {
        place: place in asked or bool(getattr(flat.get(name), "requires_grad", False))
        for place, name in inputs_by_place.items()
    }
    examples = {
        place: flat[name]
        for place, name in inputs_by_place.items()
        if str(getattr(flat.get(name), "dtype", "")).startswith(("torch.int", "torch.uint"))
    }
    letters = _letters(program, inputs_by_place, symbols)
    weights = _weights(module, signature)
    selected = [name for name in selecting if name]
    return Exported(program, weights, inputs_by_place, outputs, selected, changed, letters, wants, left_out, examples)


CHANGES = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")
"""The kinds of graph outputs that are new values of changed buffers, parameters or inputs."""


def _given(module: Any, inputs: Any, symbols: Mapping[str, str]) -> dict[str, Any]:
    """Return the example inputs by name; a tensor that is given several times is copied."""
    given = arguments(module, inputs)
    for name in symbols:
        if name not in given:
            raise InputError(f"there is no input {name}; the inputs are {', '.join(given)}")
    tensors = {id(v): None for v in given.values() if isinstance(v, torch.Tensor)}
    if len(tensors) < sum(isinstance(v, torch.Tensor) for v in given.values()):
        return {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in given.items()}
    return given


def _letters(program: Any, inputs: Mapping[str, str], symbols: Mapping[str, str]) -> Letters:
    """Return the letters of open sizes and the constraints of the exported program on them."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    letters = Letters()
    first_of: dict[str, Any] = {}
    follow: list[tuple[str, Any]] = []
    for place, name in inputs.items():
        value = placeholders[place].meta["val"] if place in placeholders else None
        ops = symbols.get(name, "").split()
        for dim, (op, size) in enumerate(zip(ops, getattr(value, "shape", ()), strict=False)):
            if op.isdigit():
                continue
            expression: Any = None if isinstance(size, int) else size.node.expr
            if not op.isidentifier():
                follow.append((op, size if expression is None else expression))
                continue
            letters.where_open.setdefault(op, (name, dim))
            if expression is None or expression.is_Integer:  # for example, an unrolled loop over it
                letters.fixed[op] = int(size)
                continue
            if op in first_of and first_of[op] != expression:
                letters.same_sizes[expression] = first_of[op]
            first_of.setdefault(op, expression)
            letters.symbols.setdefault(str(first_of[op]), op)
            limit = letters.limits.get(op, Limit()) & _limit(program.range_constraints.get(expression))
            letters.limits[op] = limit & interval(size.node.shape_env.guards, expression, int(size.node.hint))
    for op, expression in follow:
        times, letter, more = parts_of(op)
        if isinstance(expression, int) or expression.is_Integer:
            letters.fixed.setdefault(letter, (int(expression) - more) // times)
        elif expression.is_Symbol and (whole := first_of.get(letter)) is not None:
            if whole.has(expression):  # PyTorch writes the letter in terms of this size
                letters.symbols[letter] = letters.symbols.pop(str(whole))
                whole = sympy.Symbol(letter, integer=True, positive=True)
            letters.same_sizes[expression] = times * whole + more
    within = {first_of[op]: letters.limits[op] for op in first_of}
    known = exact(program.graph.nodes) | constants(open_sizes(program.graph.nodes), within)
    of_letters = dict(letters.same_sizes)
    letters.same_sizes |= {
        size: value if isinstance(value, int) else value.xreplace(of_letters) for size, value in known.items()
    }
    return letters


def _limit(values: Any) -> Limit:
    """Return the range of sizes that an export is valid for. PyTorch specializes size 1 and reports a minimum of 2."""
    if values is None:
        return Limit()
    least, most = (int(end) if end.is_Integer else None for end in (values.lower, values.upper))
    return Limit(least if least is not None and least > 2 else 1, LARGEST if most is None else min(most, LARGEST))


def _weights(module: Any, signature: Any) -> ModuleParameters:
    weights = ModuleParameters({s.arg.name: s.target for s in signature.input_specs if s.kind.name == "PARAMETER"})
    first: dict[int, str] = {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            weights.same[path] = first[id(parameter)]
        first.setdefault(id(parameter), path)
        weights.learns[path] = bool(parameter.requires_grad)
        weights.counts[path] = int(parameter.numel()) * (2 if parameter.is_complex() else 1)
        weights.shapes[path] = tuple(map(int, parameter.shape))
    for path, buffer in module.named_buffers(remove_duplicate=False):
        weights.shapes[path] = tuple(map(int, buffer.shape))
    return weights


# The graph


Traced: TypeAlias = tuple[Any, Set[str], UnusedProducts]
"""A functional graph, the placeholders of inputs for which the forward pass sets requires_grad, and the dead products
of the module, which the graph does not have."""


def traced(module: Any, given: Mapping[str, Any], shapes: Any) -> Traced:
    """Return the graph of a module for inputs with dynamic dimensions `shapes`. Raises what the module raises."""
    try:
        return _graph(module, given, shapes)
    except (GradientInForwardError, RequiresGradChangedError) as error:
        try:
            written, asked = with_traced_gradients(module, given, str(error))
        except GradientInForwardError:
            raise error from None
        names = [name for name in given if name in inspect.signature(written.forward).parameters]
        few = {name: given[name] for name in names}
        sizes = {node.target: node.meta["val"].shape for node in written.graph.nodes if node.op == "placeholder"}
        opens: dict[str, Any] = {  # without those that the trace fixed
            name: {dim: each for dim, each in (shapes[name] or {}).items() if not is_concrete_int(sizes[name][dim])}
            for name in (names if shapes else ())
        }
        program, _, left_out = _graph(written, few, opens and {name: opens[name] or None for name in names})
        places = zip(names, program.graph_signature.user_inputs, strict=True)
        return program, {place for name, place in places if name in asked}, left_out


@plain_sizes()
def _graph(module: Any, given: Mapping[str, Any], shapes: Any) -> Traced:
    opt_einsum = torch.backends.opt_einsum.enabled
    opens = any(leaf is not None for leaf in torch.utils._pytree.tree_leaves(shapes))
    torch.backends.opt_einsum.enabled = opt_einsum and not opens  # it would fix the sizes of batches
    row, by_name = as_called(module, given)
    hook = module.register_forward_hook(_of_known_types)
    try:
        with answered(module, unpacked(), decided()) as forward, named_inputs(module, by_name):
            try:
                program = torch.export.export(module, row, by_name, dynamic_shapes=shapes, strict=False)
            except InputError:
                raise
            except Exception as error:
                if by := (forward.taken[0] if forward.taken else transform_of(error)):
                    raise GradientInForwardError(by) from None
                raise
        held = (each for each in program.constants.values() if isinstance(each, torch.Tensor))
        if forward.taken and any(map(torch._C._functorch.is_functorch_wrapped_tensor, held)):
            raise GradientInForwardError(forward.taken[0])  # what it computes below a derivative is not in the graph
        check_registered(program, module)
        asked = {name for place, name in enumerate(program.graph_signature.user_inputs) if place in forward.asked}
        check_changes(program, _with_gradient(program, module, given) | asked)
        _stop_gradients(program)
        _take_branches(program)
        left_out = unused(program)
        program = _decomposed(program, {**_of_changes(), **_decompositions(program)})
        for _ in range(MOST_ROUNDS):
            if not (parts := _decompositions(program)):
                break
            program = _decomposed(program, parts)
    finally:
        hook.remove()
        torch.backends.opt_einsum.enabled = opt_einsum
    return program, asked, left_out


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
    # A composite operator that stays whole has no derivative in forward mode.
    whole = {} if any("_make_dual" in str(node.target) for node in program.graph.nodes) else _read_whole()
    of_composites = {**whole, **{op: each for op, each in parts.items() if op._can_decompose()}}
    return exports._decompose_exported_program(
        program,
        cia_to_decomp=of_composites,
        python_decomp_table={op: each for op, each in parts.items() if op not in of_composites},
        joint_loss_index=None,
        decompose_custom_triton_ops=False,
    )


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
                if not has_fraction(value):
                    return each
                with graph.inserting_before(output):
                    mark = graph.call_function(torch.ops.aten.detach.default, (each,))
                mark.meta = dict(each.meta)
                return mark

            output.args = torch.fx.map_arg(output.args, stopped)
            inside.recompile()


def _take_branches(program: Any) -> None:
    """Replace each `cond` on sizes by the branch of these sizes, which limits them as Python's `if` does."""
    graph = program.graph
    for node in [each for each in graph.nodes if each.target is torch.ops.higher_order.cond]:
        holds, first, second, operands = node.args
        known = holds.meta["val"] if isinstance(holds, torch.fx.Node) else holds
        if not isinstance(known, torch.Tensor):
            with graph.inserting_before(node):
                called = graph.call_module((first if known else second).target, operands)
            node.replace_all_uses_with(called)
            for each in (node, *{first, second}):
                graph.erase_node(each)
            with program.graph_module._set_replace_hook(program.graph_signature.get_replace_hook()):
                node_inline_(called)
            if isinstance(known, torch.SymBool):
                ranges = known.node.shape_env.var_to_range
                program.range_constraints.update({size: ranges[size] for size in program.range_constraints})


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
            if has_fraction(value):
                learned.add(node)
            continue
        if node.op != "call_function" or learned.isdisjoint(node.all_input_nodes):
            continue
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool | None):
            continue
        if isinstance(value, torch.Tensor) and not has_fraction(value):
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
        if parts_of is not None and not counted and not is_of_primitives(parts_of):
            parts[node.target] = parts_of
    return parts


RECOMPUTES = ("_scaled_dot_product_", "_flash_attention", "_efficient_attention")
"""Prefixes of operators that compute products again backward, which their decompositions do not."""


def is_of_primitives(function: Any) -> bool:
    """Return whether a decomposition is a reference in PyTorch's primitives, which are the same operators by other
    names, or has nan for a number.
    """
    code = inspect.unwrap(function).__code__
    return not {"prims", "copy_to", "signbit", "nan", "_cumsumprod_common"}.isdisjoint(
        (*code.co_names, *code.co_consts)
    )
