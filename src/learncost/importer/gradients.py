"""Trace torch.autograd.grad inside forward, as models of energies and differential equations call it.

An export drops these gradients from its graph. Traced below autograd, a gradient is ordinary operations, and a table
derives the gradient of a step through them.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
import torch._decomp.decompositions_for_jvp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel

from learncost.importer.calls import answered
from learncost.importer.recorder.module_step import ends
from learncost.importer.refusals import FUNC, VMAP, GradientTakenError
from learncost.importer.tried import drawn, gradients, has_fraction, identical

TOLERANCE = 1e-3
"""The allowed difference of both gradients in the module's precision, relative to the largest."""


def written_through(module: Any, values: Mapping[str, Any], by: str) -> tuple[Any, set[str]]:
    """Return an equivalent module in which the gradients taken in forward are operations, and the names of inputs for
    which it sets requires_grad.

    The result is tested with random numbers. Raises `GradientTakenError` if its gradients differ, or if it cannot be
    traced.

    by   the function that takes a gradient
    """
    from learncost.importer.as_run import called_with, of_graph
    from learncost.importer.examples import as_called

    names, run = called_with(module, values)
    others = [value for name, value in values.items() if name not in names]
    if any(isinstance(each, torch.Tensor) for each in torch.utils._pytree.tree_leaves(others)):
        raise GradientTakenError(by)
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        sizes: Any = StatelessSymbolicContext([DimDynamic.DUCK] * value.dim())  # each a separate symbol
        return mode.from_tensor(value.detach(), symbolic_context=sizes).requires_grad_(value.requires_grad)

    try:
        with answered(module, changes=True) as forward:
            trace: Any = make_fx(run, tracing_mode="symbolic", _allow_non_fake_inputs=True)
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the gradient of these has no gradient
                traced = trace(*(fake(values[name]) for name in names))
    except Exception:  # any error that a user's module raises there
        raise GradientTakenError(by) from None
    if not forward.taken and by not in (FUNC, VMAP):
        raise GradientTakenError(by)
    for node in list(traced.graph.nodes):
        if (
            node.target is torch.ops.aten.detach.default and node.name not in forward.let_go
        ):  # how autograd saves a result
            node.replace_all_uses_with(node.args[0])
    written = of_graph(traced, module, names)
    if not _has_its_gradients(written, module, values):
        raise GradientTakenError(by)
    inputs = {name: object() for name in names}
    row = torch.utils._pytree.tree_leaves(as_called(module, {**values, **inputs}))
    return written, {name for name, each in inputs.items() if any(row[place] is each for place in forward.asked)}


def _has_its_gradients(written: Any, module: Any, values: Mapping[str, Any]) -> bool:
    """Return whether the rewritten module has the same gradients as the module, at random numbers."""
    from learncost.importer.examples import as_called

    with torch.random.fork_rng([]), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(0)
        numbers = _numbers(module)
        given = {name: _like(value) for name, value in values.items()}
        found = []
        try:
            for original in (module, written):
                twin = deepcopy(original)
                weights = {
                    path: number.clone().requires_grad_(number.requires_grad) for path, number in numbers.items()
                }
                row, by_name = as_called(twin, {name: value for name, value in given.items() if _is_taken(twin, name)})
                results = ends(torch.func.functional_call(twin, weights, row, by_name))
                learning = [weight for weight in weights.values() if weight.requires_grad]
                found.append(gradients(results, learning))
        except Exception:  # any error that a user's module raises
            return False
    theirs, ours = found
    return identical(theirs, ours, TOLERANCE)


def _is_taken(module: Any, name: str) -> bool:
    """Return whether a module has an input of this name; a rewritten module takes only tensors."""
    import inspect

    return name in inspect.signature(module.forward).parameters


def _numbers(module: Any) -> dict[str, Any]:
    """Return random parameters, as uninitialized ones hold arbitrary memory; buffers keep their values if they have
    any.
    """

    def buffer(value: Any) -> Any:
        if value.device.type != "meta":
            return value.detach().clone()
        made = torch.zeros(value.shape, dtype=value.dtype)
        return made.normal_(std=0.3) if value.is_floating_point() else made

    def parameter(value: Any) -> Any:
        made = (0.3 * drawn(value)).to(value.dtype) if has_fraction(value) else drawn(value)
        return made.requires_grad_(value.requires_grad)

    return {path: parameter(each) for path, each in module.named_parameters()} | {
        path: buffer(each) for path, each in module.named_buffers()
    }


def _like(value: Any) -> Any:
    """Return a random tensor of the same type and requires_grad; other values are returned unchanged."""
    made = drawn(value)
    return made.to(value.dtype).requires_grad_(value.requires_grad) if has_fraction(value) else made
