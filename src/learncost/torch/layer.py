"""Any layer as a `torch.nn.Module`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from learncost.ir.errors import InputError
from learncost.ir.loop import walk, windows
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.layers.layer import Layer, shipped_layer
from learncost.layers.layer import layer as read
from learncost.layers.rewrite import with_masks
from learncost.models.argument import layer_given
from learncost.torch.module import TableModule, by_names, chance

_OF_A_RUN = ("B", "M", "N")  # axes that are read off the inputs


class LayerModule(TableModule):
    """A layer: `forward` takes its inputs in the header's order or by name, and returns its outputs."""

    def __init__(self, layer: Layer, sizes: Mapping[str, int], dropout: Mapping[str, float], **tensor: Any) -> None:
        self.layer, table = layer, layer.table
        needed = dict.fromkeys(base(axis) for name in table.weights for axis in table.axes[name])
        needed |= dict.fromkeys(windows(table.lines))
        lines = [line for line, _ in walk(table.lines)]
        every = dict.fromkeys(base(axis) for line in lines for axis in line.loops)
        shown_axes = {base(axis) for name in (*table.inputs, *table.weights) for axis in table.axes[name]}
        needed |= dict.fromkeys(axis for axis in every if axis not in shown_axes)  # how many are chosen
        for axis in needed:
            if not axis.isdigit() and axis not in sizes:
                raise InputError(f"{layer.name} requires the size of {axis}: give {axis}=..., a whole number from 1")
        axes_known = {base(axis) for axes in table.axes.values() for axis in axes} | {*needed, *every}
        for axis, size in sizes.items():
            if axis not in axes_known:
                raise InputError(f"{layer.name} has no axis {axis!r}: it has {', '.join(sorted(axes_known))}")
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InputError(f"{axis} must be a whole number from 1, not {size!r}")
        makes = {term.name for line in table.lines for term in getattr(line, "left", ())}
        for name in dropout:
            if name not in makes:
                raise InputError(f"{layer.name} has no value {name!r} for dropout: it has {', '.join(sorted(makes))}")
        chances = {f"{name}.mask": chance(value, f"the dropout of {name}") for name, value in dropout.items()}
        super().__init__(table, sizes, chances, **tensor)
        self.layer, self._dropped = layer, tuple(dropout)
        for name in layer.frozen:
            self._weight(name).requires_grad_(False)

    def forward(self, *inputs: torch.Tensor, **keywords: torch.Tensor) -> Any:
        """Return the outputs: a tensor, or a tuple of several."""
        values = by_names(self.table.inputs, inputs, keywords, self.layer.name)
        return self._run(self.passes((self.training and self._drops,)), values)

    def chosen(self, key: tuple[bool, ...]) -> Table:
        (drops,) = key
        if not drops:
            return self.table
        return with_masks(self.layer, self._dropped).table

    def extra_repr(self) -> str:
        return f"{self.layer.name}, {super().extra_repr()}"


def layer(
    layer: str | Layer,
    /,
    *,
    dropout: Mapping[str, float] | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
    **sizes: int,
) -> LayerModule:
    """Return a layer as a module whose backward pass is derived from its table.

    layer    the name of a layer (`learncost list layers`), a text in the notation, the path of a file in it, or what
             `learncost.layer` gives
    dropout  values of the layer with the probability of a zero, such as {"P": 0.1}; drawn in training alone
    sizes    of the axes of its weights, and of its windows: d=768, h=12, k=64, where the layer does not fix them.
             Others are read off the inputs
    Raises `InputError`.
    """
    if isinstance(layer, str):
        layer = layer_given(layer) or (read(layer) if "(" in layer else shipped_layer(layer))
    fixed = {axis: size for axis, size in layer.sizes.items() if axis not in _OF_A_RUN}
    return LayerModule(layer, {**fixed, **sizes}, dropout or {}, device=device, dtype=dtype)
