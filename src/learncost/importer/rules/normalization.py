"""Normalizations: layer, group, batch and RMS norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learncost.importer.equations import NumberOperand
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.views import reshaped
from learncost.importer.views import View


def normal(reader: GraphReader, x: View, dims: Sequence[int], epsilon: float) -> View:
    """Record (x - mean) / sqrt(variance + epsilon) over dimensions; over one element it is 0."""
    if not any(x.dims[dim] for dim in dims):
        return reader.multiply(0.0, x)
    return reader.along("normalize", x, dims, NumberOperand(float(epsilon)))


def scaled(reader: GraphReader, value: View, gain: Any, shift: Any) -> View:
    if gain is not None:
        value = reader.multiply(value, gain)
    return value if shift is None else reader.add(value, shift)


@rule("layer_norm", "native_layer_norm")
def layer_norm(
    reader: GraphReader,
    x: View,
    shape: Sequence[Any],
    gain: Any = None,
    shift: Any = None,
    epsilon: float = 1e-5,
    *_: Any,
) -> Any:
    count = len(x.dims)
    result = scaled(reader, normal(reader, x, range(count - len(shape), count), epsilon), gain, shift)
    return [result, None, None] if reader.recorder.operator == "native_layer_norm" else result


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(reader: GraphReader, x: View, shape: Sequence[Any], gain: Any = None, epsilon: float | None = None) -> Any:
    dims = range(len(x.dims) - len(shape), len(x.dims))
    # PyTorch's default is the machine epsilon of the type.
    small = NumberOperand(2.220446049250313e-16 if epsilon is None else float(epsilon))
    value = reader.along("rms_normalize", x, dims, small) if any(x.dims[dim] for dim in dims) else x
    return scaled(reader, value, gain, None)


def channels(each: Any, reader: GraphReader, count: int) -> View | None:
    """Return a value per channel for broadcasting with a tensor of this many dimensions: (C) as (1, C, 1, 1)."""
    if each is None:
        return None
    view = reader.view(each)
    return view.with_dims([(), *view.dims, *[()] * (count - 2)])


@rule("group_norm")
def group_norm(
    reader: GraphReader,
    x: View,
    groups: int,
    gain: Any = None,
    shift: Any = None,
    epsilon: float = 1e-5,
    _: bool = True,
) -> View:
    shape = x.shape
    grouped = reshaped(reader, x, [shape[0], groups, shape[1] // groups, *shape[2:]])
    value = normal(reader, grouped, range(2, len(grouped.dims)), epsilon)
    return scaled(
        reader, reshaped(reader, value, shape), channels(gain, reader, len(shape)), channels(shift, reader, len(shape))
    )


def _by_statistics(
    reader: GraphReader, x: View, mean: Any, variance: Any, gain: Any, shift: Any, epsilon: float
) -> View:
    """Record (x - mean) / sqrt(variance + epsilon) with given statistics of each channel."""
    count = len(x.dims)
    middle, spread = channels(mean, reader, count), channels(variance, reader, count)
    assert spread is not None
    root = reader.op("sqrt", reader.add(spread, float(epsilon)))
    value = reader.op("divide", reader.add(x, middle, signs=[1, -1]), root)
    return scaled(reader, value, channels(gain, reader, count), channels(shift, reader, count))


@rule(
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit.no_stats",
    "_batch_norm_with_update_functional",
)
def batch_norm(reader: GraphReader, x: View, gain: Any, shift: Any, *_: Any) -> Any:
    given, count = vars(reader.settings), len(x.dims)
    mean, variance = given.get("running_mean"), given.get("running_var")
    if not given.get("training", "no_training" not in reader.recorder.operator):
        result = _by_statistics(reader, x, mean, variance, gain, shift, given["eps"])
    else:
        value = normal(reader, x, [0, *range(2, count)], given["eps"])
        reader.keep(value, mean, variance, given["momentum"])
        result = scaled(reader, value, channels(gain, reader, count), channels(shift, reader, count))
    several = reader.node.meta["val"]
    if not isinstance(several, tuple | list):
        return result
    # Batch statistics update buffers, which are not trainable: they are outside.
    return [result, *(reader.part(number) for number in range(1, len(several)))]
