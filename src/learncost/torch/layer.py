"""A table or any layer as a `torch.nn.Module`: parameters by its names, a forward pass, the derived backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch

from learncost.engines.weights import DEVIATION, kinds, shape
from learncost.ir.errors import InputError
from learncost.ir.loop import walk, windows
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.layers.layer import Layer, shipped_layer
from learncost.layers.layer import layer as read
from learncost.layers.rewrite import with_masks
from learncost.models.argument import layer_given
from learncost.torch.passes import DifferentiablePasses


class TableModule(torch.nn.Module):
    """The base of layers and models: parameters, dropout, and the passes of the executed tables.

    A weight `attn.WQ` of the table is the parameter `attn.WQ`; those of a model's repeated block are stacks.
    """

    def __init__(self, table: Table, sizes: Mapping[str, int], chances: Mapping[str, float], **tensor: Any) -> None:
        super().__init__()
        self.table, self.sizes, self._chances = table, dict(sizes), dict(chances)
        self._drops = any(self._chances.values())
        self._passes: dict[Any, DifferentiablePasses] = {}
        for name in table.weights:
            self._register(name, torch.nn.Parameter(torch.empty(shape(table, name, self.sizes), **tensor)))
        self.reset_parameters()

    def _register(self, name: str, parameter: torch.nn.Parameter) -> None:
        *path, last = name.split(".")
        module: torch.nn.Module = self
        try:
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, parameter)
        except KeyError:
            raise InputError(f"a torch.nn.Module cannot have a parameter {name!r}: rename the weight") from None

    def reset_parameters(self) -> None:
        """Initialize the weights as all engines do, with torch's generator: biases 0, gains 1, matrices normal
        with deviation 0.02, BERT's and GPT-2's initializer_range."""
        kind_of = kinds(self.table)
        with torch.no_grad():
            for name, parameter in self.weights().items():
                if kind_of[name] == "matrix":
                    parameter.normal_(0.0, DEVIATION)
                else:
                    parameter.fill_(1.0 if kind_of[name] == "gain" else 0.0)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights by the table's names."""
        return {name: self._weight(name) for name in self.table.weights}

    def _weight(self, name: str) -> torch.Tensor:
        module: Any = self
        weight: torch.Tensor = reduce(getattr, name.split("."), module)
        return weight

    def chosen(self, key: tuple[bool, ...]) -> Table:
        """Return the table for a mode, such as with dropout."""
        raise NotImplementedError

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _emit(self, key: tuple[bool, ...]) -> None:
        """Compile the passes of a table; torch.compile does not trace it."""
        if key not in self._passes:
            self._passes[key] = DifferentiablePasses(self.chosen(key), self.sizes)

    def passes(self, key: tuple[bool, ...]) -> DifferentiablePasses:
        """Return the passes of a table."""
        self._emit(key)
        return self._passes[key]

    def _run(self, passes: DifferentiablePasses, values: dict[str, torch.Tensor]) -> Any:
        """Return the outputs, a single one without a tuple; random numbers are drawn with torch's generator."""
        values = values | self.weights()
        masks = [name for name in passes.inputs if name in self._chances]
        if masks:
            lengths = passes.lengths(values)
            like = next(value for value in (*self.parameters(), *values.values()) if value.is_floating_point())
            for name in masks:
                drawn = torch.empty(passes.shape(name, lengths), dtype=like.dtype, device=like.device)
                keep = 1 - self._chances[name]
                values[name] = drawn.bernoulli_(keep).div_(keep)  # 0, or so much more than 1 that the mean is 1
        results = passes(values)
        return results[0] if len(results) == 1 else results

    def extra_repr(self) -> str:
        return ", ".join(f"{axis}={size}" for axis, size in self.sizes.items())


def chance(dropout: float, name: str = "dropout") -> float:
    """Return a dropout probability. Raises InputError."""
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise InputError(f"{name} must be a number from 0 to below 1, not {dropout!r}")
    return float(dropout)


def by_names(
    names: tuple[str, ...], inputs: tuple[Any, ...], keywords: Mapping[str, Any], whose: str
) -> dict[str, Any]:
    """Return the inputs by name. Raises InputError for missing, unknown or repeated ones, and for no tensors."""
    if len(inputs) > len(names):
        raise InputError(f"{whose} takes {len(names)} inputs, not {len(inputs)}: {', '.join(names)}")
    by_name = dict(zip(names, inputs, strict=False))
    for name, value in keywords.items():
        if name not in names or name in by_name:
            problem = "is given twice" if name in by_name else f"is not an input: there are {', '.join(names)}"
            raise InputError(f"{whose}: {name} {problem}")
        by_name[name] = value
    for name in names:
        if name not in by_name:
            raise InputError(f"{whose} needs {name}: it takes {', '.join(names)}")
        if not isinstance(by_name[name], torch.Tensor):
            raise InputError(f"{whose}: {name} must be a tensor, not {type(by_name[name]).__name__}")
    return by_name


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
        return with_masks(self.layer, self._dropped).table if key[0] else self.table

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
