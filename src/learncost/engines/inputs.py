"""Build a step's inputs from users' data: tokens, targets, images, padding masks.

The role of an input (`learncost.ir.value`) decides its meaning; an input without a role holds numbers or positions of
an axis. This code is independent of models and works for NumPy arrays and PyTorch tensors.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from copy import copy
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from learncost.engines.computed_inputs import computed_inputs, names_computed
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.polynomial import base, shape_of, size_of
from learncost.ir.stated import indexed
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.models.model import Model, lengths_open, run_sizes

Arrays = dict[str, Any]

MASKS: Mapping[str, str] = {"mask": "M", "encoder_mask": "N"}
"""Return the name of the padding mask of an axis: true at tokens, false at padding."""

ALIASES: Mapping[str, str] = {"token_types": "types"}
"""Other names of data: transformers'."""


@dataclass(frozen=True)
class Datum:
    """A data input of a batch.

    name     the user's name; of several inputs with this name, the one along the last positions keeps it
    input    the table's name; "" for targets of which the table reads only the sign
    axes     its axes
    places   the axis whose positions it holds; "" for numbers; "2" for booleans
    answers  whether it is a target of a loss; a negative number means no target
    usual    whether it is optional, with 0 as its default
    """

    name: str
    input: str
    axes: tuple[str, ...]
    places: str
    answers: bool
    usual: bool


@lru_cache(maxsize=64)
def _data(table: IdentityKey[Table], fixed: frozenset[str]) -> tuple[Datum, ...]:
    table_found, values = table.content, table.content.values
    places = indexed(table_found)
    answers = {values[name].of: values[name].axes for name in table_found.inputs if values[name].role == "share"}
    names = [name for name in table_found.inputs if values[name].role in ("value", "index", "constant", "kind")]
    names = [name for name in names if name not in fixed]
    last = {name.rpartition(".")[2]: name for name in names}
    result = [
        Datum(
            name.rpartition(".")[2] if last[name.rpartition(".")[2]] == name else name.replace(".", "_"),
            name,
            values[name].axes,
            base(places.get(name, "")),
            name in answers,
            values[name].role == "kind",
        )
        for name in names
    ]
    signed = {values[name].of: values[name].axes for name in table_found.inputs if values[name].role == "sign"}
    result += [Datum(name, "", axes[:-1], "2", True, False) for name, axes in signed.items() if name not in names]
    return tuple(result)


def data(model: Model) -> tuple[Datum, ...]:
    """Return a model's data inputs, without those that positions determine and those that dequantize weights."""
    stored = {name for weight in model.quantized for name in weight.reads}
    return _data(IdentityKey(model.table), names_computed(model) | stored)


def derived_inputs(table: Table, arrays: Mapping[str, Any], keeps: Mapping[str, Any], unit: Any) -> Arrays:
    """Return the inputs that targets and sequence lengths determine; missing targets become 0.

    arrays   the given arrays, by the names of the table's inputs and of targets
    keeps    the padding mask [B, axis] of each axis of positions; no padding if absent
    unit     the number 1 in the type of the results
    """
    result: Arrays = {}
    for name in table.inputs:
        value = table.values[name]
        if name in arrays or value.of not in (arrays if value.role in ("share", "sign") else keeps):
            continue
        if value.role == "end":
            result[name] = keeps[value.of].sum(-1) - 1
            continue
        answers = arrays[value.of]
        if value.role == "sign":
            derived = (2 * (answers > 0) - 1) * unit
        else:
            is_answered = answered(answers, table.values[name].axes, keeps)
            derived = is_answered * unit / -is_answered.sum()
            if value.of in table.inputs:
                result[value.of] = answers * is_answered
        result[name] = derived.reshape((*derived.shape, *[1] * (len(value.axes) - derived.ndim)))
    return result


def with_derived(table: Table, data_given: Mapping[str, Any], keeps: Mapping[str, Any]) -> tuple[Arrays, int]:
    """Return the arrays with the inputs derived from them, and the number of targets of the loss; 0 without targets.

    Raises InputError if there is no target.
    """
    values = table.values
    shares = [name for name in table.inputs if values[name].role == "share"]
    for name in shares:
        answers = None if name in data_given else data_given.get(values[name].of)
        if answers is not None and not answered(answers, values[name].axes, keeps).any():
            raise InputError("the batch has no target: give at least one that is not negative")
    arrays = {**data_given, **derived_inputs(table, data_given, keeps, np.float64(1))}
    return arrays, int(np.count_nonzero(arrays[shares[0]])) if shares and shares[0] in arrays else 0


def answered(answers: Any, axes: Sequence[str], keeps: Mapping[str, Any]) -> Any:
    """Return a mask that is true where a target is neither negative nor padding."""
    is_answered = answers >= 0
    keep = keeps.get(axes[1]) if len(axes) > 1 else None
    return is_answered if keep is None else is_answered & (keep > 0)


def random_data(model: Model, batch_size: int, seq_len: int, target_len: int, seed: int = 0) -> Arrays:
    """Draw random data for all inputs of a model: normal numbers, and indices below the size of their axis.

    A length that the model fixes or does not have is ignored.
    """
    return random_batch(
        model, run_sizes(model, batch_size, *lengths_open(model.configuration, seq_len, target_len)), seed
    )


def random_batch(model: Model, sizes: Mapping[str, int], seed: int = 0) -> Arrays:
    """Draw random data for all inputs of a model, given the sizes of all axes."""
    generator = np.random.default_rng(seed)

    def drawn(datum: Datum) -> Any:
        form = shape_of(datum.axes, sizes)
        if datum.places:
            return generator.integers(0, size_of(datum.places, sizes), form)
        return generator.uniform(-1, 1, form) if model.integers else generator.normal(size=form)

    return {datum.name: drawn(datum) for datum in data(model)}


class Batch:
    """The validated data of a step, from which it computes the inputs of a model's table.

    model      with or without a mask of padding: the data are the same
    given      the user's arrays by the names of `data`, and masks
    gradients  the gradients of the outputs of a model without a loss, in place of targets
    Raises InputError for what is missing, unknown, or does not fit.
    """

    def __init__(self, model: Model, data_given: Mapping[str, Any], gradients: Mapping[str, Any] | None = None) -> None:
        self.model, self.name = model, model.configuration.name
        self.gradients = dict(gradients or {})
        self._data = data(model)
        data_given = {ALIASES.get(name, name): array for name, array in data_given.items() if array is not None}
        self._check_names(data_given)
        self.keeps: Arrays = {}
        self.arrays = {
            self._key(datum): self._array(datum, data_given) for datum in self._data if datum.name in data_given
        }
        for name, axis in MASKS.items():
            if name in data_given:
                self._mask(axis, data_given[name])
        self._default()
        self.sizes = self._sizes()
        for datum in self._data:
            self.arrays[self._key(datum)] = self._fitting(datum, self.arrays[self._key(datum)])
        ends = {base(value.of) for value in model.table.values.values() if value.role == "end"}
        everywhere = {axis: self.keep(axis) for axis in ends}
        self.arrays, self.count = with_derived(model.table, self.arrays, everywhere | self.keeps)

    @staticmethod
    def _key(datum: Datum) -> str:
        return datum.input or datum.name

    def _check_names(self, data: Mapping[str, Any]) -> None:
        names = [datum.name for datum in self._data]
        masks = [name for name, axis in MASKS.items() if self._positions(axis)]
        if unknown := [name for name in data if name not in (*names, *masks)]:
            raise InputError(f"{self.name} has no input {unknown[0]}; it has {', '.join((*names, *masks))}")
        table = self.model.table
        outputs = {table.header(output) for output in table.outputs} - {"loss"}
        if wrong := set(self.gradients) - outputs:
            raise InputError(f"{self.name} has no output {min(wrong)}; gradients are of {', '.join(sorted(outputs))}")

    def _positions(self, axis: str) -> list[Datum]:
        """Return the data inputs with the positions of an axis: tokens and per-token data."""
        return [datum for datum in self._data if datum.axes == ("B", axis) and datum.places]

    def _array(self, datum: Datum, data: Mapping[str, Any]) -> Any:
        """Return data as one array; rows of unequal length are padded on the right."""
        array = data[datum.name]
        axis = datum.axes[-1] if datum.axes else ""
        rows = isinstance(array, (list, tuple)) and all(isinstance(row, (Sequence, np.ndarray)) for row in array)
        if rows and len({len(row) for row in array}) > 1:
            if datum not in self._positions(axis):
                raise InputError(f"{datum.name} must be an array [{' '.join(datum.axes)}], not rows of unequal length")
            if not datum.answers:
                if any(name in data for name, of in MASKS.items() if of == axis):
                    raise InputError(f"{datum.name} have unequal lengths, which define the padding: remove the mask")
                self.keeps[axis] = _keep(array)
            array = _ragged(array, -1 if datum.answers else 0)
        array = array if is_on_gpu(array) and not datum.places else np.asarray(array)
        if datum.places and array.dtype.kind not in "iu":
            raise InputError(f"{datum.name} must be integers, not {array.dtype}")
        if datum.places and array.ndim != len(datum.axes):
            shape_text = "a batch of sequences" if len(datum.axes) == 2 else f"[{' '.join(datum.axes)}]"
            raise InputError(f"{datum.name} must be {shape_text}, not an array with {array.ndim} axes")
        return array

    def _mask(self, axis: str, mask: Any) -> None:
        keep = np.asarray(mask).astype(bool)
        tokens = next(datum for datum in self._positions(axis) if not datum.answers)
        shape = self.arrays[tokens.input].shape if tokens.input in self.arrays else keep.shape
        if keep.shape != shape:
            raise InputError(f"the mask of {tokens.name} has shape {keep.shape}, but they have {shape}")
        if not keep.all():
            self.keeps[axis] = keep

    def _default(self) -> None:
        """Fill in missing inputs: the next tokens as targets of a language model, and token types of 0. Raises
        `InputError` for inputs without a default."""
        tokens = next((datum for datum in self._positions("M") if not datum.answers and not datum.usual), None)
        for datum in self._data:
            key = self._key(datum)
            if key in self.arrays:
                continue
            like = self.arrays.get(tokens.input) if tokens else None
            if datum.usual and like is not None:
                self.arrays[key] = np.zeros_like(like)
            elif datum.answers and tokens and like is not None and self.model.causal and self._same(datum, tokens):
                self.arrays[key] = next_tokens(like, self.keeps.get("M"))
            elif datum.answers and tokens and datum.name == "targets":
                raise InputError(f"{self.name} does not predict the next token: give targets")
            else:
                raise InputError(f"{self.name} needs {datum.name} [{' '.join(datum.axes)}]")

    def _same(self, answers: Datum, tokens: Datum) -> bool:
        return answers.axes == tokens.axes and answers.places == tokens.places

    def _sizes(self) -> dict[str, int]:
        lengths_found: dict[str, int] = {}
        for datum in self._data:
            array = self.arrays[self._key(datum)]
            if datum.axes and not array.ndim:
                raise InputError(f"{datum.name} must be [{' '.join(datum.axes)}], not one number")
            if "B" in datum.axes:
                given = array.shape[datum.axes.index("B") if array.ndim == len(datum.axes) else 0]
                rows = lengths_found.setdefault("B", given)
                if rows != given:
                    first = self._data[0].name
                    raise InputError(f"there are {rows} rows of {first}, but {given} of {datum.name}")
            if len(array.shape) == len(datum.axes):
                for axis, size in zip(datum.axes, array.shape, strict=True):
                    lengths_found.setdefault(axis, size)
        lengths = (
            (lengths_found.get("N"), lengths_found.get("M")) if self.model.two_sided else (lengths_found.get("M"), None)
        )
        return run_sizes(self.model, lengths_found.get("B", 1), *lengths)

    def _fitting(self, datum: Datum, array: Any) -> Any:
        shape = shape_of(datum.axes, self.sizes)
        if not datum.places and array.ndim < len(shape):
            if not _regrouped(array.shape, shape):
                array = array[_filled(array.shape, shape, {*self.model.configuration.sizes.values()})]
            if _regrouped(array.shape, shape):
                array = array.reshape(shape)  # an image [B c height width], whose patches are read in place
        if array.shape != shape:
            axes = " ".join(datum.axes)
            raise InputError(f"{datum.name} must have shape [{axes}], {shape}, not {array.shape}")
        if not datum.places:
            return array
        most = size_of(datum.places, self.sizes)
        keep = self.keeps.get(datum.axes[1]) if len(datum.axes) == 2 else None
        present = array if keep is None else array[keep]
        if present.size == 0:
            raise InputError(f"there are no {datum.name}")
        if present.max() >= most or (not datum.answers and present.min() < 0):
            raise InputError(
                f"{datum.name} must be below {most}" if datum.answers else f"{datum.name} must be from 0 to {most - 1}"
            )
        if keep is None or datum.answers:
            return array
        causal = self.model.causal and datum.axes[1] == "M"
        if not (keep[:, 0] if causal else keep.any(axis=1)).all():
            raise InputError(f"every sequence of {datum.name} needs a token{', padded on the right' if causal else ''}")
        return np.where(keep, array, 0)

    def part(self, number: int, parts: int) -> Batch:
        """Return one of several equal parts of the batch; the number of targets and their shares remain those of the
        full batch."""
        rows = self.sizes["B"]
        if rows % parts:
            raise InputError(
                f"{rows} sequences are not divisible into {parts} microbatches: give a multiple of {parts}"
            )
        size = rows // parts
        slice_of_rows = slice(number * size, (number + 1) * size)
        result = copy(self)
        result.arrays = {name: array[slice_of_rows] for name, array in self.arrays.items()}
        result.keeps = {axis: keep[slice_of_rows] for axis, keep in self.keeps.items()}
        result.gradients = {name: np.asarray(array)[slice_of_rows] for name, array in self.gradients.items()}
        result.sizes = {**self.sizes, "B": size}
        return result

    @property
    def padded(self) -> bool:
        return bool(self.keeps)

    def keep(self, axis: str) -> Any:
        """Return the padding mask of an axis, [B, axis]."""
        return self.keeps.get(axis, np.ones((self.sizes["B"], self.sizes[axis]), bool))

    def inputs(self, table: Table) -> Arrays:
        """Return the inputs of a table of this model that the batch and its positions determine."""
        made_arrays = computed_inputs(self.model.configuration, self.sizes)
        arrays = {name: array for name, array in made_arrays.items() if name in table.inputs}
        for name in table.inputs:
            value = table.values[name]
            if name in self.arrays:
                arrays[name] = self.arrays[name]
            elif value.role == "buffer":
                arrays[name] = np.zeros(shape_of(value.axes, self.sizes))
            elif value.role == "padding":
                keep = self.keep(base(value.axes[-1]))
                arrays[name] = np.broadcast_to(keep, shape_of(value.axes, self.sizes))  # for every iteration
            elif value.role == "number" and value.axes:  # one over the count, with a mask of padding
                arrays[name] = self.keep(base(value.axes[-1])) / self.count
        return arrays


def is_on_gpu(array: Any) -> bool:
    """Return whether an array is a tensor on a GPU; numbers stay there, and indices are checked on the host."""
    return bool(getattr(array, "is_cuda", False))


def next_tokens(tokens: Any, keep: Any = None) -> Any:
    """Return a language model's targets: the next token, -1 at the end of every sequence."""
    targets = np.full(tokens.shape, -1)
    targets[:, :-1] = tokens[:, 1:]
    if keep is not None:
        targets[:, :-1][~keep[:, 1:]] = -1
    return targets


def _keep(rows: Sequence[Any]) -> Any:
    lengths = np.array([len(row) for row in rows])
    return np.arange(lengths.max()) < lengths[:, None]


def _ragged(rows: Sequence[Any], filler: int) -> Any:
    """Return sequences of unequal length as one array, padded with the filler."""
    keep = _keep(rows)
    result = np.full(keep.shape, filler)
    result[keep] = np.concatenate([np.asarray(row, int) for row in rows])
    return result


def _filled(sizes: Sequence[int], expected: Sequence[int], known: Container[int]) -> tuple[slice, ...]:
    """Return the slice of each dimension that is read: whole patches along sides of a known size, otherwise all."""
    rest, taken = list(expected), list[slice]()
    for size in sizes:
        first = rest.pop(0) if rest else size
        patches = bool(rest) and size in known and size % rest[0] != 0 and size // rest[0] == first
        taken.append(slice(first * rest.pop(0)) if patches else slice(None))
    return tuple(taken)


def _regrouped(sizes: Sequence[int], expected: Sequence[int]) -> bool:
    """Return whether the wanted axes are the given ones, some of them split into several."""
    rest = list(expected)
    for size in sizes:
        part = [rest.pop(0)] if rest else [0]
        while prod(part) < size and rest:
            part.append(rest.pop(0))
        if prod(part) != size:
            return False
    return not rest or prod(rest) == 1
