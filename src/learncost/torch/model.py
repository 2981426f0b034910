"""Any model as a `torch.nn.Module`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from learncost.engines.batch import NOT_OF_TOKENS, sinusoids
from learncost.engines.positions import at_positions
from learncost.equation.count import base
from learncost.equation.errors import InputError
from learncost.equation.table import Table
from learncost.models.configuration import Configuration, configure
from learncost.models.expression import evaluate
from learncost.models.families import instead
from learncost.models.model import Model, build
from learncost.models.sizes import LARGEST
from learncost.procedures.inference import to_logits
from learncost.torch.module import TableModule, chance
from learncost.training import hugging_face

Side: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None]
"""The tokens of the encoder's or the decoder's side, and which of them are there."""


class ModelModule(TableModule):
    """A model: `forward` gives the loss where there are targets, else the logits; of a bare model its outputs."""

    def __init__(self, configuration: Configuration, dropout: float, **tensor: Any) -> None:
        self.configuration = configuration
        plain = build(configuration)
        # Sizes that the length of a run limits, as windows are, are without limit here.
        endless = {**configuration.values, "B": 1, "M": LARGEST, "N": LARGEST}
        stands = {base(axis) for name in plain.table.inputs for axis in plain.table.axes[name]}
        late = {axis for axis in plain.rules if axis not in plain.sizes and axis not in stands}
        sizes = {**plain.sizes, **{axis: int(evaluate(plain.rules[axis], endless)) for axis in sorted(late)}}
        masks = build(configuration, dropout=True).masks
        super().__init__(plain.table, sizes, dict.fromkeys(masks, chance(dropout)), **tensor)
        self.configuration, self._learns = configuration, plain.learns
        self._at: dict[Any, torch.Tensor] = {}
        frozen = set(plain.table.weights) - set(plain.learning)
        for name in frozen:
            self._weight(name).requires_grad_(False)

    @property
    def model(self) -> Model:
        """The model's table with its sizes, as `cost` prices it."""
        return build(self.configuration)

    def forward(
        self,
        tokens: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        encoder_tokens: torch.Tensor | None = None,
        encoder_mask: torch.Tensor | None = None,
        **inputs: torch.Tensor,
    ) -> Any:
        """The loss (nats a target) of these targets; without targets the logits, or the outputs of a bare model.

        tokens   numbers [B, M]; of a model that reads images or sounds these are given by the names of its table
        targets  [B, M], what is to be said at each position, negative where nothing is
        mask, encoder_mask   true at tokens, false at padding
        inputs   any input of the table by its name, in the place of what it would be
        """
        loss = targets is not None or "targets" in inputs
        if loss and "targets" not in self.table.inputs:
            given = f"{', '.join(self.table.outputs)}{instead(self.configuration.family)}"
            raise InputError(f"{self.configuration.name} reads no targets: it gives {given}")
        padded = mask is not None or encoder_mask is not None
        passes = self.passes((loss, padded, self.training and self._drops))
        sides = {"encoder": (encoder_tokens, encoder_mask), "": (tokens, mask)}
        values = {}
        for name in passes.inputs:
            if name in inputs:
                values[name] = inputs[name]
            elif name not in self._chances:
                values[name] = self._input(name, sides, targets)
        return self._run(passes, values)

    def chosen(self, key: tuple[bool, ...]) -> Table:
        loss, padded, drops = key
        table = build(self.configuration, dropout=drops, padding=padded).table
        return to_logits(table) if self._learns and not loss else table

    def _input(self, name: str, sides: Mapping[str, Side], targets: torch.Tensor | None) -> torch.Tensor:
        """An input of the table, as the batch says it."""
        side, _, last = name.rpartition(".")
        tokens, mask = sides["encoder" if side == "encoder" else ""]
        is_padding = name not in self.table.inputs  # what the batch alone brings along, masks that are drawn aside
        if is_padding:
            stack = base(self.table_axes(name)[-1]) == "N"
            tokens, mask = sides["encoder" if stack and sides["encoder"][0] is not None else ""]
        if tokens is None or last in NOT_OF_TOKENS:
            raise InputError(f"{self.configuration.name} needs {name}: give it by this name, or the tokens it is of")
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise InputError(f"tokens must be integers [B, M], not {tokens.dtype} of the shape {tuple(tokens.shape)}")
        if last == "tokens":
            return tokens
        if last == "types":
            return torch.zeros_like(tokens)
        if last == "targets" and targets is not None:
            return targets.clamp(min=0)
        if last == "share" and targets is not None:
            there = targets >= 0 if mask is None else (targets >= 0) & mask.bool()
            return there.to(self._like.dtype) / -there.sum()
        if is_padding:
            keep = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
            axes = self.table_axes(name)
            return keep.expand(*(self.sizes[axis] for axis in axes[:-2]), *keep.shape)
        return self._fixed(last, tokens.shape[1], self._like)

    def table_axes(self, name: str) -> tuple[str, ...]:
        """The axes of an input, of padding too."""
        return build(self.configuration, padding=True).table.axes[name]

    @property
    def _like(self) -> torch.Tensor:
        return self._weight(self.table.weights[0])

    def _fixed(self, name: str, length: int, like: torch.Tensor) -> torch.Tensor:
        """An input that positions alone say, made once for a length."""
        key = (name, length, like.device, like.dtype)
        self._place(*key)
        return self._at[key]

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _place(self, name: str, length: int, device: torch.device, dtype: torch.dtype) -> None:
        """Make such an input; torch.compile does not look in here."""
        if (name, length, device, dtype) in self._at:
            return
        array = at_positions(self.configuration, name, np.arange(length), self.sizes)
        if array is None and name == "S":
            array = sinusoids(length, self.configuration.sizes["hidden_size"])
        if array is None:
            raise InputError(f"{self.configuration.name} needs {name}: give it by this name")
        found = torch.from_numpy(np.ascontiguousarray(array)).to(device)
        self._at[name, length, device, dtype] = found.to(dtype) if found.is_floating_point() else found

    def load_hugging_face(self, source: str | Path | Mapping[str, torch.Tensor]) -> ModelModule:
        """Take the weights of a state dict of transformers, or of a folder that it saved. Raises InputError."""
        if isinstance(source, (str, Path)):
            found = hugging_face.read(self.model, Path(source))
        else:
            arrays = {name: _array(tensor) for name, tensor in source.items()}
            found = hugging_face.from_theirs(self.model, arrays, "the state dict")
        with torch.no_grad():
            for name, parameter in self.weights().items():
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(found[name])))
        return self

    def hugging_face(self) -> dict[str, torch.Tensor]:
        """The weights under the names and in the shapes that transformers has for them. Raises InputError."""
        arrays = {name: _array(tensor) for name, tensor in self.weights().items()}
        found = hugging_face.to_theirs(self.model, arrays)
        return {name: torch.tensor(array, dtype=self._like.dtype) for name, array in found.items()}

    def extra_repr(self) -> str:
        return self.configuration.name


def _array(tensor: torch.Tensor) -> Any:
    """As NumPy has it, which has no bfloat16."""
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy()


def model(
    model: str | Configuration,
    /,
    *,
    dropout: float = 0.0,
    device: Any = None,
    dtype: torch.dtype | None = None,
    **sizes: Any,
) -> ModelModule:
    """A model as a module whose backward pass is the one that is derived from its table.

    model    a preset, the path of a config.json or of its folder, or encoder, decoder, encoder-decoder with sizes
    dropout  the probability of a zero wherever the family has dropout; drawn in training alone
    sizes    any size or setting of the model, in any accepted spelling
    Raises `InputError`.
    """
    configuration = model if isinstance(model, Configuration) else configure(model, sizes)
    return ModelModule(configuration, dropout, device=device, dtype=dtype)
