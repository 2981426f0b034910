"""Trace one concrete run of a module into a new module, without the branches that the run did not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from learncost.importer.calls import answered
from learncost.importer.examples import as_called, flattened
from learncost.importer.export import SELECTING
from learncost.importer.gradients import written_through
from learncost.importer.learning import ChangedError
from learncost.importer.recurrences import unpacked
from learncost.importer.refusals import GradientTakenError
from learncost.importer.tried import copied, restored
from learncost.importer.wrappers import plain
from learncost.ir.errors import InputError


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
            raise GradientTakenError(forward.taken[0])
        if forward.asked:
            raise InputError(unkept)
    except (GradientTakenError, ChangedError) as error:
        try:
            written, asked_names = written_through(module, values, str(error))
        except GradientTakenError:
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
        if node.target is aten.masked_select.default:
            _as_index(node)
        if node.target in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
            several = len(node.args) < 3 or node.args[2].meta["val"].dim() > 0  # one number is written without places
            masked += [node] if several and any(map(_is_mask, node.args[1])) else []
        elif node.target is aten.one_hot.default and len(node.args) > 1 and node.args[1] >= 0:
            continue  # as many as are said
        elif torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ()) or node.target in by_parts:
            parts = node.users if isinstance(node.meta["val"], tuple | list) else [node]
            selects += [each for each in parts if not _is_float(each.meta["val"])]
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


def _as_index(node: Any) -> None:
    """Rewrite `masked_select(x, mask)` as `x[mask]`, after broadcasting both to one shape."""
    shape = torch.broadcast_shapes(*(each.meta["val"].shape for each in node.args))  # type: ignore[no-untyped-call]
    spread = []
    for each in node.args:
        with node.graph.inserting_before(node):
            made = node.graph.call_function(torch.ops.aten.expand.default, (each, list(shape)))
        made.meta = {key: value for key, value in node.meta.items() if key != "val"}
        made.meta["val"] = each.meta["val"].expand(shape)
        spread.append(made)
    node.target, node.args = torch.ops.aten.index.Tensor, (spread[0], [spread[1]])


def _is_mask(index: Any) -> bool:
    """Return whether an index of a graph is a boolean tensor."""
    return index is not None and index.meta["val"].dtype == torch.bool


def _is_float(value: Any) -> bool:
    return bool(value.is_floating_point() or value.is_complex())


def _looks(target: Any) -> bool:
    """Return whether an operation only reads or checks a value for Python and adds nothing to the graph."""
    return any(op in str(target) for op in ("item", "_assert", "_local_scalar_dense", "is_nonzero"))
