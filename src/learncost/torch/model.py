"""Any model as a `torch.nn.Module`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learncost.engines import hugging_face
from learncost.engines.computed_inputs import computed_inputs, names_computed
from learncost.engines.inputs import ALIASES, MASKS, data, derived_inputs
from learncost.ir.errors import InputError
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.models.argument import layer_given
from learncost.models.configuration import Configuration, configure
from learncost.models.expression import evaluate
from learncost.models.families import instead
from learncost.models.model import Model, build
from learncost.models.sizes import LARGEST
from learncost.procedures.inference import to_logits
from learncost.torch.layer import LayerModule, TableModule, chance, layer


class ModelModule(TableModule):
    """A model: `forward` returns the loss for given targets, else the logits; for a bare model its outputs."""

    def __init__(self, configuration: Configuration, dropout: float, **tensor: Any) -> None:
        self.configuration = configuration
        plain = build(configuration)
        # Sizes that the length of a run limits, as windows are, are without limit here.
        endless = {**configuration.values, "B": 1, "M": LARGEST, "N": LARGEST}
        present = {base(axis) for name in plain.table.inputs for axis in plain.table.axes[name]}
        late = {axis for axis in plain.rules if axis not in plain.sizes and axis not in present}
        sizes = {**plain.sizes, **{axis: int(evaluate(plain.rules[axis], endless)) for axis in sorted(late)}}
        masks = build(configuration, dropout=True).masks
        super().__init__(plain.table, sizes, dict.fromkeys(masks, chance(dropout)), **tensor)
        self.configuration, self._learns = configuration, plain.learns
        self._at: dict[Any, torch.Tensor] = {}
        self._positions = names_computed(plain)
        self._data = data(plain)
        frozen = set(plain.table.weights) - set(plain.learning)
        for name in frozen:
            self._weight(name).requires_grad_(False)

    @property
    def model(self) -> Model:
        """The model's table with its sizes, as `cost` prices it."""
        return build(self.configuration)

    def forward(
        self, tokens: torch.Tensor | None = None, targets: torch.Tensor | None = None, **others: torch.Tensor
    ) -> Any:
        """Return the loss in nats per target; without targets the logits, or the outputs of a bare model.

        tokens   numbers [B, M]
        targets  [B, M], the token to predict at each position, negative where there is none
        others   whatever else the model reads, by the names that `lc.Training.step` takes (mask and encoder_mask, true
                 at tokens; encoder_tokens, types, image, features, labels, ends ...), or any input of the table by its
                 name, in the place of what it would be
        """
        values = {"tokens": tokens, "targets": targets, **others}
        values = {ALIASES.get(name, name): value for name, value in values.items() if value is not None}
        keeps = {axis: values.pop(name) for name, axis in MASKS.items() if name in values}
        loss = any(datum.name in values or datum.input in values for datum in self._data if datum.answers)
        if not loss and "targets" in values:
            outputs = f"{', '.join(self.table.outputs)}{instead(self.configuration.family)}"
            raise InputError(f"{self.configuration.name} has no loss and takes no targets: it returns {outputs}")
        passes = self.passes((loss, bool(keeps), self.training and self._drops))
        return self._run(passes, self._inputs(passes.inputs, values, keeps))

    def _inputs(self, names: tuple[str, ...], values: Mapping[str, Any], keeps: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of the table from the batch."""
        arrays = {datum.input or datum.name: values[datum.name] for datum in self._data if datum.name in values}
        arrays |= {name: value for name, value in values.items() if name in self.table.inputs}
        for datum in self._data:
            array = arrays.get(datum.input or datum.name)
            if array is not None and datum.places and (array.dim() != len(datum.axes) or array.is_floating_point()):
                expected, shape = " ".join(datum.axes), tuple(array.shape)
                raise InputError(f"{datum.name} must be integers [{expected}], not {array.dtype} of the shape {shape}")
        # elements with positions, such as tokens
        of_two = (each for each in self._data if len(each.axes) == 2 and each.places and not each.answers)
        placed = {datum.axes[1]: arrays[datum.input] for datum in of_two if datum.input in arrays}
        for datum in self._data:
            if datum.usual and datum.axes[1] in placed:
                arrays.setdefault(datum.input, torch.zeros_like(placed[datum.axes[1]]))
        everywhere = {axis: torch.ones_like(tokens, dtype=torch.bool) for axis, tokens in placed.items()}
        keeps = {axis: keep.bool() for axis, keep in keeps.items()}
        unit = torch.ones((), dtype=self._like.dtype, device=self._like.device)
        ended = derived_inputs(self.table, arrays, everywhere | keeps, unit)
        # A length is a constant of what torch.compile compiles, since positions are made outside of it.
        lengths = {axis: len(range(tokens.shape[1])) for axis, tokens in placed.items()}
        inputs = {}
        for name in names:
            if name in self._chances:
                continue
            if name in ended or name in arrays:
                inputs[name] = ended.get(name, arrays.get(name))
            elif name not in self.table.inputs:  # what the batch alone brings along, masks that are drawn aside
                axes = build(self.configuration, padding=True).table.axes[name]
                keep = (everywhere | keeps)[base(axes[-1])]
                inputs[name] = keep.expand(*(self.sizes[axis] for axis in axes[:-2]), *keep.shape)
            elif name in self._positions:
                inputs[name] = self._fixed(name, lengths, self._like)
            elif self.table.values[name].role == "buffer":
                inputs[name] = self._like.new_zeros([self.sizes[axis] for axis in self.table.axes[name]])
            else:
                input_name = next((datum.name for datum in self._data if name == datum.input), name)
                raise InputError(f"{self.configuration.name} needs {input_name}: give it by this name")
        return inputs

    def chosen(self, key: tuple[bool, ...]) -> Table:
        loss, padded, drops = key
        table = build(self.configuration, dropout=drops, padding=padded).table
        return to_logits(table) if self._learns and not loss else table

    @property
    def _like(self) -> torch.Tensor:
        return self._weight(self.table.weights[0])

    def _fixed(self, name: str, lengths: Mapping[str, int], like: torch.Tensor) -> torch.Tensor:
        """Return an input that depends on positions alone, cached by lengths."""
        key = (name, tuple(lengths.items()), like.device, like.dtype)
        self._place(*key)
        return self._at[key]

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _place(self, name: str, lengths: tuple[tuple[str, int], ...], device: torch.device, dtype: torch.dtype) -> None:
        """Compute an input that depends on positions alone; torch.compile does not trace it."""
        if (name, lengths, device, dtype) in self._at:
            return
        with torch.inference_mode(False):  # a tensor for training, too
            tensor = torch.tensor(computed_inputs(self.configuration, dict(lengths))[name], device=device)
            self._at[name, lengths, device, dtype] = tensor.to(dtype) if tensor.is_floating_point() else tensor

    def load_hugging_face(self, source: str | Path | Mapping[str, torch.Tensor]) -> ModelModule:
        """Load the weights of a transformers state dict, or of a folder that it saved. Raises InputError."""
        if isinstance(source, (str, Path)):
            weights = hugging_face.read(self.model, Path(source))
        else:
            arrays = {name: _array(tensor) for name, tensor in source.items()}
            weights = hugging_face.from_checkpoint(self.model, arrays, "the state dict")
        with torch.no_grad():
            for name, parameter in self.weights().items():
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(weights[name])))
        return self

    def hugging_face(self) -> dict[str, torch.Tensor]:
        """Return the weights with transformers' names and shapes. Raises InputError."""
        arrays = {name: _array(tensor) for name, tensor in self.weights().items()}
        tensors = hugging_face.to_checkpoint(self.model, arrays)
        return {name: torch.tensor(array, dtype=self._like.dtype) for name, array in tensors.items()}

    def extra_repr(self) -> str:
        return self.configuration.name


def _array(tensor: torch.Tensor) -> Any:
    """Return a tensor as a NumPy array; bfloat16 becomes float32."""
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy()


def model(
    model: str | Configuration | Layer,
    /,
    *,
    dropout: float = 0.0,
    device: Any = None,
    dtype: torch.dtype | None = None,
    **sizes: Any,
) -> ModelModule | LayerModule:
    """Return a model as a module whose backward pass is derived from its table.

    model    a preset, the path of a config.json or of its folder, encoder, decoder, encoder-decoder with sizes, or a
             layer in the notation or its path, which gives what `learncost.torch.layer` does
    dropout  the probability of a zero wherever the family has dropout; drawn in training alone
    sizes    any size or setting of the model, in any accepted spelling
    Raises `InputError`.
    """
    table = model.layer if isinstance(model, Configuration) else layer_given(model)
    if table is not None:
        if dropout:
            raise InputError(f"dropout does not apply to {table.name}: the table defines its own dropout")
        fixed = model.sizes if isinstance(model, Configuration) else {}
        return layer(table, device=device, dtype=dtype, **{**fixed, **sizes})
    configuration = model if isinstance(model, Configuration) else configure(model, sizes)
    return ModelModule(configuration, dropout, device=device, dtype=dtype)
