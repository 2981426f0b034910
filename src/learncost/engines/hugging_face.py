"""Read and write weights and configurations in the format of transformers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from learncost.engines.tokenizer import Tokenizer
from learncost.engines.weights import shape
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.models.configuration import Configuration, family_of
from learncost.models.model import Model
from learncost.models.storage import check_finite, read_arrays, read_json

Arrays = Mapping[str, Any]

ADVICE = "give the folder of a checkpoint as transformers saves it"
WEIGHTS, INDEX, TORCH = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"


@dataclass(frozen=True)
class CheckpointLayout:
    """The layout of a family's weights in a checkpoint; layouts.toml describes the fields."""

    source: str
    bare: str
    transposed: tuple[str, ...]
    tensors: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, str]

    def of(self, model: Model) -> Iterator[tuple[str, tuple[str, ...], int | None]]:
        """Yield every tensor of a checkpoint: its name, the weights of the table in it, and the number of the block."""
        for name, ours in self.tensors.items():
            if not set(ours) <= set(model.table.weights):
                continue
            if "{}" not in name:
                yield name, ours, None
                continue
            for block in range(model.sizes[model.table.axes[ours[0]][0]]):
                yield name.format(block), ours, block


@cache
def layouts() -> Mapping[str, CheckpointLayout]:
    """Return every family whose checkpoints can be read and written."""
    text = Path(__file__).with_name("layouts.toml").read_text(encoding="utf-8")
    by_family: dict[str, CheckpointLayout] = {}
    for family, table in tomllib.loads(text).items():
        also = table.pop("also", ())
        by_family |= dict.fromkeys(
            (family, *also), CheckpointLayout(**{**table, "transposed": tuple(table["transposed"])})
        )
    return by_family


def layout(family: str) -> CheckpointLayout:
    """Return the layout of a family's checkpoints. Raises InputError."""
    if family not in layouts():
        raise InputError(
            f"checkpoints of {family} cannot be read: only the layouts of {', '.join(layouts())} are known"
        )
    return layouts()[family]


def to_checkpoint(model: Model, weights: Arrays) -> dict[str, Any]:
    """Return the tensors of a checkpoint, from our weights."""
    their_layout, result = layout(model.configuration.family), {}
    for name, ours, block in their_layout.of(model):
        parts = [weights[weight] if block is None else weights[weight][block] for weight in ours]
        joined = np.concatenate(
            [_flat(part, name, model.table.axes[weight]) for part, weight in zip(parts, ours, strict=True)], -1
        )
        result[name] = joined.T if name.endswith(their_layout.transposed) else joined
    return result


def from_checkpoint(model: Model, tensors: Arrays, where: str) -> dict[str, Any]:
    """Return our weights from the tensors of a checkpoint; `where` names it in an InputError."""
    their_layout = layout(model.configuration.family)
    parts_of: dict[str, list[Any]] = {}
    for name, ours, block in their_layout.of(model):
        tensor = tensors.get(name, tensors.get(name.removeprefix(their_layout.bare)))
        if tensor is None:
            raise InputError(f"{where} has no tensor {name}")
        tensor = tensor.T if name.endswith(their_layout.transposed) else tensor
        shapes = [shape(model.table, weight, model.sizes)[block is not None :] for weight in ours]
        flat = [_flat(np.empty(size), name, model.table.axes[w]).shape for size, w in zip(shapes, ours, strict=True)]
        expected = (*flat[0][:-1], sum(size[-1] for size in flat))
        if tensor.shape != expected:
            raise InputError(f"{where}: {name} is {tensor.shape}, but by config.json it must be {expected}")
        parts = np.split(tensor, np.cumsum([size[-1] for size in flat])[:-1], -1)
        for weight, part, size in zip(ours, parts, shapes, strict=True):
            parts_of.setdefault(weight, []).append(part.reshape(size))
    if missing := set(model.table.weights) - set(parts_of):
        raise InputError(f"{where}: the checkpoint's tensor for {min(missing)} is unknown")
    stacked = {name for name in parts_of if model.table.axes[name][0].startswith("n_")}
    return {name: np.stack(parts_of[name]) if name in stacked else parts_of[name][0] for name in model.table.weights}


def _flat(array: Any, name: str, axes: tuple[str, ...]) -> Any:
    """Return a vector, or a matrix of inputs by outputs; the model's width is one full side."""
    if array.ndim == 1 or name.endswith(".bias"):
        return array.reshape(-1)
    inner = axes[-array.ndim :]
    return array.reshape(array.shape[0], -1) if inner[0] == "d" else array.reshape(-1, array.shape[-1])


def read(model: Model, folder: Path) -> dict[str, Any]:
    """Read our weights from a folder that transformers saved: one file, or several with an index. Raises InputError."""
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX, ADVICE).get("weight_map", {})
        files = sorted({str(name) for name in names.values()}) if isinstance(names, dict) else []
    else:
        files = [WEIGHTS]
        if not (folder / WEIGHTS).exists() and (folder / TORCH).exists():
            raise InputError(f"{folder / TORCH} is a pickle, which is not read: save it as safetensors")
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= read_arrays(folder / Path(file).name, ADVICE)[0]
    weights = from_checkpoint(model, tensors, str(folder))
    check_finite(weights, str(folder), ADVICE)
    return weights


def config(configuration: Configuration, dropout: float, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the keys of a config.json that transformers and `configure` read identically.

    dropout    the probability of every dropout of the family
    tokenizer  gives the token that ends a document, and the decoder's start token of an encoder-decoder
    """
    tokens = {} if tokenizer is None else {"bos_token_id": tokenizer.end, "eos_token_id": tokenizer.end}
    if tokenizer is not None and configuration.two_sided:
        start = tokenizer.number(family_of(configuration).start)
        tokens |= {"pad_token_id": tokenizer.end, "decoder_start_token_id": start}
    keys = layouts()[configuration.family].keys if configuration.family in layouts() else {}
    values: dict[str, Any] = {**configuration.sizes, **configuration.settings}
    if "activation" in values:
        values["activation"] = _ACTIVATIONS.get(str(values["activation"]), values["activation"])
    return {
        "model_type": configuration.family,
        **({"architectures": [configuration.architecture]} if configuration.architecture else {}),
        **{keys.get(name, name): value for name, value in values.items()},
        **dict.fromkeys(configuration.dropout, dropout),
        **tokens,
        "torch_dtype": "float32",
    }


_ACTIVATIONS = {"gelu_tanh": "gelu_new"}
"""Our ops with other names in transformers."""
