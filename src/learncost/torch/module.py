"""A table as a `torch.nn.Module`: parameters by the table's names, a forward pass, and the derived backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from learncost.engines.weights import DEVIATION, kinds, shape
from learncost.ir.errors import InputError
from learncost.ir.table import Table
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
        for part in name.split("."):
            module = getattr(module, part)
        weight: torch.Tensor = module
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
