"""Import a module, and tell how far its table is from it in three numbers, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from learncost.importer.examples import as_called, plain
from learncost.importer.export import export
from learncost.importer.tried import copied, restored
from learncost.importer.walk import ImportedModule, read_exported
from learncost.ir.dataclass import dataclass
from learncost.layers.layer import layer
from learncost.verification.imported import as_numbers, gradient_error, real, run_both


def read_module(
    module: Any,
    inputs: Any,
    symbols: Mapping[str, str] | None = None,
    *,
    name: str = "",
    fold: bool = True,
    unknown: str = "refuse",
) -> ImportedModule:
    """Return the layer of a PyTorch module at example tensors. A fixed size has a number among the
    `symbols`, as in `{"idx": "B 16"}`. Raises `InputError`.
    """
    return read_exported(export(module, inputs, symbols or {}), module, name=name, fold=fold, unknown=unknown)


@dataclass(frozen=True)
class ModuleParity:
    """The largest differences between a table and its module.

    value      of the outputs, relative to the largest number of each
    gradient   of all gradients, relative to the largest gradient
    module     of the exported graph and the module itself: outputs in its own precision, gradients in float64

    A module that does not run in float64 has its outputs compared alone.
    """

    value: float
    gradient: float
    module: float
    parameters: int
    lines: int


def parity(module: Any, inputs: Any, imported: ImportedModule, seed: int = 0) -> ModuleParity:
    """Run a module in float64 under autograd, and its imported table with NumPy, and compare them."""
    ran = run_both(module, inputs, imported, layer(imported.text), seed)
    own, _ = gradient_error(module, ran)
    return ModuleParity(
        ran.value,
        ran.gradient,
        max(_apart_from_module(module, ran.given, ran.of_node, imported), own or 0.0),
        sum(real(p).numel() for p in module.parameters()),
        len(ran.read.text.splitlines()),
    )


def _apart_from_module(
    module: Any, given: Mapping[str, Any], of_node: Mapping[str, Any], imported: ImportedModule
) -> float:
    """Return the error of the module in its own precision, relative to the graph in float64."""
    given = copied(given)
    row, by_name = as_called(module, given)
    with restored(module):
        result = module(*row, **by_name)  # under autograd: it may take gradients itself
        leaves = torch.utils._pytree.tree_leaves((plain(result), given, *module.buffers(), *module.parameters()))
        tensors = [t.detach().clone() for t in leaves if isinstance(t, torch.Tensor)]
    theirs = [as_numbers(of_node[node].detach()) for node in imported.output_nodes]
    worst = 0.0
    for mine in theirs:
        near = [t for t in tensors if tuple(t.shape) == tuple(mine.shape) and _has_numbers(t)]
        scale = float(mine.detach().abs().max()) or 1.0
        apart = [float((t.double() - mine).abs().max()) / scale for t in near]
        worst = max(worst, min((each if each == each else float("inf") for each in apart), default=float("inf")))
    return worst


def _has_numbers(tensor: Any) -> bool:
    return bool(tensor.is_floating_point()) or tensor.dtype is torch.bool
