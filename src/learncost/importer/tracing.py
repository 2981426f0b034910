"""Trace a module into a new one: one concrete run, without the branches that it did not take, or a forward pass with
the gradients that it takes.

An export drops gradients by torch.autograd.grad from its graph, as models of energies and differential equations take
them. Traced below autograd, a gradient is ordinary operations, and a table derives the gradient of a step through them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from operator import getitem
from typing import Any

import torch
import torch._decomp.decompositions_for_jvp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel

from learncost.importer.calls import answered
from learncost.importer.examples import as_called, flattened, plain
from learncost.importer.functions import RequiresGradChangedError
from learncost.importer.nested import PADDED
from learncost.importer.recorder.module_step import ends
from learncost.importer.recurrences import unpacked
from learncost.importer.refusals import FUNC, NESTED, VMAP, GradientInForwardError
from learncost.importer.tried import copied, drawn, gradients, has_fraction, identical, restored
from learncost.ir.errors import InputError

SELECTING = "_selecting"
"""The attribute of a traced run's module with the number of results that selected positions."""


def straight(module: Any, values: Mapping[str, Any]) -> Any:
    """Return a module that repeats the operations of one run of this one with these values. The run uses numbers.

    It has the same parameters and buffers under the same paths, and takes the values that are tensors, those in rows
    and mappings by the names of `flattened`.
    """
    names, run = called_with(module, values)
    tensors, assigned = flattened(values), list[str]()
    trace: Any = make_fx(
        _with_assigned(module, run, assigned),
        tracing_mode="real",
        pre_dispatch=True,
        _error_on_data_dependent_ops=False,
    )
    given = copied([tensors[name] for name in names])
    unkept = "its forward pass asks for a gradient of an input, which one run does not keep"
    try:
        with restored(module), answered(module, unpacked(numbers=True)) as forward:
            ran = trace(*copied(given))
        if forward.taken:  # above autograd, what autograd saves for a gradient is not a value of the graph
            raise GradientInForwardError(forward.taken[0])
        if forward.asked:
            raise InputError(unkept)
    except (GradientInForwardError, RequiresGradChangedError) as error:
        try:
            written, asked_names = with_traced_gradients(module, values, str(error))
        except GradientInForwardError:
            raise InputError(str(error)) from error
        if asked_names:
            raise InputError(unkept) from None
        return straight(written, values)
    except InputError as error:  # reported with its source line, like what an export refuses
        raise InputError(str(error)) from error
    _assign(ran, module, assigned)
    with restored(module):
        traced, selecting = _with_its_places(ran, given)
    graph = traced.graph
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and _looks(node.target):
            graph.erase_node(node)
    whole = of_graph(traced, module, names)
    setattr(whole, SELECTING, selecting)
    return whole


def _with_assigned(module: Any, run: Any, assigned: list[str]) -> Any:
    """Return a run that also returns the tensors that it assigns to buffers, as in `self.codes = new`."""

    def call(*tensors: Any) -> Any:
        before = dict(module.named_buffers())
        result = run(*tensors)
        after = dict(module.named_buffers())
        assigned[:] = [
            path
            for path, each in before.items()
            if after.get(path, each) is not each and each.shape == after[path].shape
        ]
        return result, [after[path] for path in assigned]

    return call


def _assign(traced: Any, module: Any, assigned: Sequence[str]) -> None:
    """Replace the extra results of a run by copies into the buffers that it assigned them to."""
    graph, buffers = traced.graph, dict(module.named_buffers())
    output = graph.output_node()
    result, new = output.args[0]
    output.args = (result,)
    with graph.inserting_before(output):
        for place, (path, each) in enumerate(zip(assigned, new, strict=True)):
            name = f"assigned_{place}"
            setattr(traced, name, buffers[path])
            graph.call_function(torch.ops.aten.copy_.default, (graph.get_attr(name), each))


def called_with(module: Any, values: Mapping[str, Any]) -> tuple[list[str], Any]:
    """Return the names of the input tensors, also those nested in tuples, lists and dicts, and the module as a function
    of these.
    """
    flat = flattened(values)
    names = [name for name, value in flat.items() if isinstance(value, torch.Tensor)]

    def run(*tensors: Any) -> Any:
        leaves = iter((flat | dict(zip(names, tensors, strict=True))).values())

        def filled(value: Any) -> Any:
            if isinstance(value, list | tuple):
                parts = [filled(each) for each in value]
                return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
            if isinstance(value, Mapping):
                return {key: filled(each) for key, each in value.items()}
            return next(leaves)

        row, by_name = as_called(module, {name: filled(value) for name, value in values.items()})
        return plain(module(*row, **by_name))

    return names, run


def of_graph(traced: Any, module: Any, names: Sequence[str]) -> Any:
    """Return a module that runs a traced graph, with the parameters and buffers of the original under the same
    paths.
    """
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    paths = {id(value): path for path, value in held.items()}
    graph = traced.graph
    graph.eliminate_dead_code()
    places = iter(names)
    for node in graph.nodes:
        if node.op == "placeholder":
            node.target = next(places)
        elif node.op == "get_attr":
            value = getattr(traced, node.target)
            if id(value) in paths:
                node.target = paths[id(value)]
            held[node.target] = value
    result = torch.fx.GraphModule(held, graph, type(module).__name__)
    for path, each in module.named_parameters(remove_duplicate=False):  # results that no line reads are stored, too
        torch.fx.graph_module._assign_attr(each, result, path)
    return result


def _with_its_places(traced: Any, given: Sequence[Any]) -> tuple[Any, int]:
    """Fix the positions that values select, as `torch.where(mask)` and `x[mask]` do, to those of this run. Their number
    is a size of the graph, which an export would leave open. The selecting tensors are returned behind the results, so
    that their lines are not removed; the second result is the number of these tensors.
    """
    aten = torch.ops.aten
    by_parts = (aten.where.default, aten.nonzero_numpy.default, aten.argwhere.default)
    selects: list[Any] = []
    masked: list[Any] = []
    for node in traced.graph.nodes:
        if node.target in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
            several = len(node.args) < 3 or node.args[2].meta["val"].dim() > 0  # one number is written without places
            masked += [node] if several and any(map(_is_mask, node.args[1])) else []
        elif node.target is aten.one_hot.default and len(node.args) > 1 and node.args[1] >= 0:
            continue  # as many as are said
        elif torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ()) or node.target in by_parts:
            parts = node.users if isinstance(node.meta["val"], tuple | list) else [node]
            selects += [each for each in parts if not has_fraction(each.meta["val"])]
    wanted = {*selects, *(mask for node in masked for mask in filter(_is_mask, node.args[1]))}
    if not wanted:
        return traced, 0
    of_node: dict[Any, Any] = {}

    class SavedInputs(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            result = super().run_node(node)
            if node in wanted:
                of_node[node] = result
            return result

    SavedInputs(traced).run(*copied(given))

    def constant(before: Any, value: Any) -> Any:
        name = f"places_{before.name}_{len(of_node)}"
        while hasattr(traced, name):
            name += "_"
        traced.register_buffer(name, value)
        with traced.graph.inserting_before(before):
            made = traced.graph.get_attr(name)
        made.meta = {key: each for key, each in before.meta.items() if key != "val"} | {"val": value}
        return made

    selecting = {mask for node in masked for mask in filter(_is_mask, node.args[1])}
    for node in selects:  # one result of several belongs to the node that selects it
        selecting.update((node.args[0] if node.target is getitem else node).all_input_nodes)
    for node in masked:
        places: list[Any] = []
        for each in node.args[1]:
            rows_of = of_node[each].nonzero(as_tuple=True) if _is_mask(each) else ()
            places += [constant(node, rows) for rows in rows_of] if _is_mask(each) else [each]
        node.args = (node.args[0], places, *node.args[2:])
    for node in selects:
        node.replace_all_uses_with(constant(node, of_node[node]))
    output = traced.graph.output_node()
    output.args = ((output.args[0], sorted(selecting, key=[*traced.graph.nodes].index)),)
    traced.graph.eliminate_dead_code()
    return traced, len(selecting)


def _is_mask(index: Any) -> bool:
    """Return whether an index of a graph is a boolean tensor."""
    return index is not None and index.meta["val"].dtype == torch.bool


def _looks(target: Any) -> bool:
    """Return whether an operation only reads or checks a value for Python and adds nothing to the graph."""
    return any(op in str(target) for op in ("item", "_assert", "_local_scalar_dense", "is_nonzero"))


TOLERANCE = 1e-3
"""The allowed difference of both gradients in the module's precision, relative to the largest."""


def with_traced_gradients(module: Any, values: Mapping[str, Any], by: str) -> tuple[Any, set[str]]:
    """Return an equivalent module in which the gradients taken in forward are operations, and the names of inputs for
    which it sets requires_grad.

    The result is tested with random numbers. Raises `GradientInForwardError` if its gradients differ, or if it is not
    traceable.

    by   the function that takes a gradient; for nested tensors, the run has the lengths of these
    """
    names, run = called_with(module, values)
    others = [value for name, value in values.items() if name not in names]
    if any(isinstance(each, torch.Tensor) for each in torch.utils._pytree.tree_leaves(others)):
        raise GradientInForwardError(by)
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        sizes: Any = StatelessSymbolicContext([DimDynamic.DUCK] * value.dim())  # each a separate symbol
        return mode.from_tensor(value.detach(), symbolic_context=sizes).requires_grad_(value.requires_grad)

    of_run = by == NESTED
    how: dict[str, Any] = {"tracing_mode": "symbolic", "_allow_non_fake_inputs": True}
    if of_run:
        how = {"tracing_mode": "real", "_error_on_data_dependent_ops": False, "decomposition_table": PADDED}
    try:
        with answered(module, unpacked(numbers=of_run), changes=True) as forward:
            trace: Any = make_fx(run, **how)
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the gradient of these has no gradient
                traced = trace(*(copied(values[name]) if of_run else fake(values[name]) for name in names))
    except Exception:  # any error that a user's module raises there
        raise GradientInForwardError(by) from None
    if not forward.taken and by not in (FUNC, NESTED, VMAP):
        raise GradientInForwardError(by)
    for node in list(traced.graph.nodes):
        if (
            node.target is torch.ops.aten.detach.default and node.name not in forward.let_go
        ):  # how autograd saves a result
            node.replace_all_uses_with(node.args[0])
    written = of_graph(traced, module, names)
    if not _has_its_gradients(written, module, values):
        raise GradientInForwardError(by)
    inputs = {name: object() for name in names}
    row = torch.utils._pytree.tree_leaves(as_called(module, {**values, **inputs}))
    return written, {name for name, each in inputs.items() if any(row[place] is each for place in forward.asked)}


def _has_its_gradients(written: Any, module: Any, values: Mapping[str, Any]) -> bool:
    """Return whether the rewritten module has the same gradients as the module, at random numbers."""
    with torch.random.fork_rng([]), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(0)
        numbers = _numbers(module)
        given = {name: _like(value, 1.0) for name, value in values.items()}
        found = []
        try:
            for original in (module, written):
                twin = deepcopy(original)
                weights = {
                    path: number.clone().requires_grad_(number.requires_grad) for path, number in numbers.items()
                }
                taken = inspect.signature(twin.forward).parameters  # a rewritten module takes only tensors
                row, by_name = as_called(twin, {name: given[name] for name in given if name in taken})
                with answered(twin, changes=True):
                    results = ends(torch.func.functional_call(twin, weights, row, by_name))
                learning = [weight for weight in weights.values() if weight.requires_grad]
                found.append(gradients(results, learning))
        except Exception:  # any error that a user's module raises
            return False
    theirs, ours = found
    return identical(theirs, ours, TOLERANCE)


def _numbers(module: Any) -> dict[str, Any]:
    """Return random parameters, as uninitialized ones hold arbitrary memory; buffers keep their values if they have
    any.
    """
    return {path: _like(each, 0.3) for path, each in module.named_parameters()} | {
        path: _like(each, 0.3) if each.device.type == "meta" else each.detach().clone()
        for path, each in module.named_buffers()
    }


def _like(value: Any, deviation: float) -> Any:
    """Return a random tensor of the same type and requires_grad; other values are returned unchanged."""
    made = drawn(value)
    return (deviation * made).to(value.dtype).requires_grad_(value.requires_grad) if has_fraction(value) else made
