"""Decompositions of operators into others that rules can read."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch._meta_registrations import pooling_output_shape
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.traceback import annotate

from learncost.importer.functions import node_of
from learncost.importer.nodes import OPERATOR, arguments_of, place_of
from learncost.importer.rules.views import NEAREST, is_uneven
from learncost.importer.rules.windows import pool_windows
from learncost.importer.tried import size_of_example
from learncost.ir.errors import InputError


def attention_with_dropout(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    **others: Any,
) -> Any:  # fmt: skip
    """Return `scaled_dot_product_attention` written out as in its documentation, with dropout between its products.

    A call without dropout is not decomposed.
    """
    if not dropout_p:
        return NotImplemented
    scale = others.get("scale")
    if others.get("enable_gqa") and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(times, -3) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(seen.logical_not(), -math.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.dropout(scores.softmax(-1), dropout_p, True) @ value


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Return x with the first numbers of a source, in order, where a mask is true."""
    mask = mask.expand(x.shape)
    places = mask.reshape(-1).cumsum(0).clamp_min(1) - 1
    return torch.where(mask, source.reshape(-1)[places].reshape(x.shape), x)


def bags(weight: Any, places: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = 0, *more: Any) -> Any:
    """Return `_embedding_bag`: each row is added to its bag. The largest of rows is not decomposed.

    more  whether its gradient is sparse, the weights of rows, whether the last offset is an end, and the padding
    """
    defaults: tuple[Any, ...] = (False, None, False, -1)
    _, per_sample_weights, include_last_offset, padding_idx = (*more, *defaults[len(more) :])
    if scale_grad_by_freq or mode > 1:
        return NotImplemented
    ends = offsets[:-1] if include_last_offset else offsets
    bag = torch.searchsorted(ends, torch.arange(places.shape[0], device=places.device), right=True) - 1
    rows = weight[places]
    counts = places != (-1 if padding_idx is None else padding_idx)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx not in (None, -1):
        rows = torch.where(counts.unsqueeze(-1), rows, 0.0)
    result = rows.new_zeros(ends.shape[0], rows.shape[1]).index_add(0, bag, rows)
    size = torch.zeros(ends.shape[0], dtype=torch.long, device=places.device).index_add(0, bag, counts.long())
    if mode == 1:
        result = result / size.clamp_min(1).to(result.dtype).unsqueeze(-1)
    return result, bag, size, size


MOST_WITHOUT_A_PRODUCT = 25
"""The most rows on either side for which `cdist` uses no matrix product (torch 2.13.0, ATen/native/Distance.cpp)."""


def distances(x: Any, z: Any, order: float = 2.0, mode: int | None = None) -> Any:
    """Return `cdist`, norms of differences; over many rows |x|^2 + |z|^2 - 2 x z, by one product."""
    many = any(size_of_example(each.shape[-2]) > MOST_WITHOUT_A_PRODUCT for each in (x, z))
    if order != 2 or mode == 2 or not (mode == 1 or many):
        return torch.linalg.vector_norm(x.unsqueeze(-2) - z.unsqueeze(-3), order, -1)
    with annotate({OPERATOR: "_euclidean_dist"}):
        both = x @ z.mT
    squares = (x * x).sum(-1, keepdim=True) + (z * z).sum(-1).unsqueeze(-2) - 2 * both
    there = squares > 0
    return torch.where(there, torch.where(there, squares, 1.0).sqrt(), 0.0)


def _places(x: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    places = torch.full((), storage_offset or 0, device=x.device)
    for count, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + step * torch.arange(count, device=x.device)
    return places


def around(x: Any, pads: Any) -> Any:
    """Return x with circular padding, a pair for each dimension from the last one on, as indexed reads."""
    for place in range(len(pads) // 2):
        (before, after), dim = pads[2 * place : 2 * place + 2], x.dim() - 1 - place
        if before or after:
            places = torch.arange(-before, x.shape[dim] + after, device=x.device) % x.shape[dim]
            x = x.index_select(dim, places)
    return x


def product_along(x: Any, dim: int | None = None, keepdim: bool = False, **_: Any) -> Any:
    """Return `prod` as a product of parts, whose gradient exists where a part is 0."""
    result = functools.reduce(torch.mul, (x.reshape(-1) if dim is None else x).unbind(dim or 0))
    return result.unsqueeze(dim) if keepdim and dim is not None else result


def products_so_far(x: Any, dim: int, **_: Any) -> Any:
    """Return `cumprod` as products of parts."""
    return torch.stack(list(itertools.accumulate(x.unbind(dim), torch.mul)), dim)


def with_part(base: Any, part: Any, dim: int = 0, start: Any = None, _: Any = None, step: int = 1) -> Any:
    """Return `slice_scatter`: the base before the part, the part, and the base behind it; with a step, at places.

    A base that is made so stays in its parts: what a loop writes position by position is one concatenation.
    """
    size, width, dim = base.shape[dim], part.shape[dim], dim % base.dim()
    start = 0 if start is None else start + size if start < 0 else start
    with annotate({OPERATOR: "slice_scatter"}):
        if step != 1:
            places = start + step * torch.arange(width, device=base.device)
            return torch.ops.aten.index_put(base, [*[None] * dim, places], part)
        if statically_known_true(width == size):
            return part
        node = node_of(base)
        while node not in _PARTS and node.target is torch.ops.aten.slice.Tensor and _is_whole(node):
            node = node.args[0]
        along, pieces = _PARTS.get(node, (dim, [base]))
        before, after, place = list[Any](), list[Any](), 0
        for each in pieces if along == dim else [base]:
            end = place + each.shape[dim]
            if end <= start or place >= start + width:
                (before if end <= start else after).append(each)
            else:
                before += [each.narrow(dim, 0, start - place)] if place < start else []
                last = start + width
                after += [each.narrow(dim, last - place, end - last)] if end > last else []
            place = end
        result = torch.cat([*before, part, *after], dim)
        _PARTS[node_of(result)] = dim, [*before, part, *after]
        return result


def on_diagonal(base: Any, part: Any, offset: int = 0, first: int = 0, second: int = 1) -> Any:
    """Return `diagonal_scatter`, the part at the places (i, i + offset) of two dimensions, and the base elsewhere."""
    base, before = base.movedim((first, second), (-2, -1)), max(0, -offset)
    rows, columns = (torch.arange(side, device=base.device) for side in base.shape[-2:])
    part = torch.nn.functional.pad(part, (before, base.shape[-2] - before - part.shape[-1])).unsqueeze(-1)
    return torch.where(rows.unsqueeze(-1) + offset == columns, part, base).movedim((-2, -1), (first, second))


def _is_whole(node: Any) -> bool:
    """Return whether a slice has all elements of its operand."""
    return bool(node.meta["val"].shape == node.args[0].meta["val"].shape)


_PARTS = WeakKeyDictionary[Any, Any]()
"""The parts of tensors that are written part by part, with their dimension."""


def mean_of_windows(count: int) -> Callable[..., Any]:
    """Return `avg_pool` over this many sides where windows reach out of them: each sum times one over what is inside.

    Other calls are not decomposed.
    """

    def parts(x: Any, *settings: Any) -> Any:
        if not _reach_out(x.shape[-count:], *settings):
            return NotImplemented
        defaults: tuple[Any, ...] = (None, 0, False, True)
        kernel, stride, padding, ceil_mode, count_include_pad, *_ = (*settings, *defaults[len(settings) - 1 :])
        windows = pool_windows(count, kernel, stride, padding)
        sizes, strides, pads = ([*each] for each in (windows.sizes, windows.strides, windows.paddings))
        if count == 1:  # which has no divisor
            sizes, strides, pads, x = [1, *sizes], [1, *strides], [0, *pads], x.unsqueeze(-2)
        pool: Any = torch.ops.aten.avg_pool3d if count == 3 else torch.ops.aten.avg_pool2d
        total = pool(x, sizes, strides, pads, ceil_mode, True, 1)
        inside: Any = 1  # of integers, which the table reads as a constant
        for dim in range(-count, 0):
            border = pads[dim] if count_include_pad else 0
            first = torch.arange(total.shape[dim], device=x.device) * strides[dim] - pads[dim]
            many = (first + sizes[dim]).clamp(max=x.shape[dim] + border) - first.clamp(min=-border)
            inside = inside * many.reshape(-1, *[1] * (-1 - dim))
        shares = (1.0 / inside).to(x.dtype)
        with annotate({OPERATOR: f"avg_pool{count}d"}):
            result = total * shares
            return result.squeeze(-2) if count == 1 else result

    return parts


def _reach_out(
    sides: Sequence[Any], kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> bool:  # fmt: skip
    """Return whether some window of a mean reaches out of the sides, with elements that it does not count."""
    windows = pool_windows(len(sides), kernel, stride, padding)
    if divisor_override is not None or not (ceil_mode or any(windows.paddings)):
        return False
    if any(windows.paddings) and not count_include_pad:
        return True
    several = [(side, *windows.along(place)[:3]) for place, side in enumerate(sides)]
    rounded_up: Any = pooling_output_shape
    return ceil_mode and not all(
        isinstance(side, int)
        and (rounded_up(side, size, padding, stride, 1, True) - 1) * stride + size <= side + 2 * padding
        for side, size, stride, padding in several
    )


def affine_grid(theta: Any, size: Any, align_corners: bool = False) -> Any:
    """Return the places of an image from -1 to 1, with a 1 behind each, times the matrix of each image."""
    sides, larger = size[2:], cast("Any", torch.sym_max)

    def along(side: Any) -> Any:
        return (2 * torch.arange(side) - (side - 1)) / larger(side - 1 if align_corners else side, 1)

    places = torch.meshgrid(*map(along, sides), indexing="ij")
    grid = torch.stack([*places[::-1], torch.ones_like(places[0])], -1).to(theta)
    with annotate({OPERATOR: "affine_grid_generator"}):
        return grid @ theta.mT.reshape(theta.shape[0], *[1] * (len(sides) - 1), len(sides) + 1, len(sides))


def spread(name: str) -> Callable[..., Any]:
    """Return `var` or `std`, the sum of squares over the count minus a correction or its root, or one with the mean."""

    def parts(x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        along = list(dims or range(x.dim()))
        middle = x.mean(along, True)
        count = math.prod(x.shape[dim] for dim in along) - (1 if correction is None else correction)
        centered = x - middle
        if name.startswith("std"):
            value = torch.linalg.vector_norm(centered, 2, along, keepdim) * count**-0.5
        elif correction == 0:
            value = (centered * centered).mean(along, keepdim)
        else:
            value = (centered * centered).sum(along, keepdim) / count
        return (value, middle if keepdim else middle.squeeze(along)) if name.endswith("_mean") else value

    return parts


def _has_more(node: Any) -> bool:
    """Return true; refuse a variance of as many numbers as are subtracted, which divides by zero."""
    x, along, correction, _ = arguments_of(node).values()
    shape = x.meta["val"].shape
    count = math.prod(shape[dim] for dim in along or range(len(shape)))
    less = 1 if correction is None else correction
    if isinstance(count, int) and count <= less:
        raise InputError(
            f"a variance of {count} numbers, which divides by {max(count - less, 0):g}, cannot be read{place_of(node)}"
            "; give a size of more, or the correction 0, as unbiased=False does"
        )
    return True


# Elementwise operators and losses that PyTorch writes in its primitives, or with nan


def _rounded(x: Any, *, decimals: int = 0) -> Any:
    """Return the nearest integer, ties to even; or the nearest number with this many decimals."""
    if decimals:
        return _rounded(x * 10.0**decimals) * 10.0**-decimals
    raised = x + 0.5
    upper = raised.floor()
    odd = upper - (upper * 0.5).floor() * 2.0
    return upper - odd * (upper == raised)


def _detached(x: Any) -> Any:
    return torch.ops.aten.detach.default(x)


def _times_log(x: Any, z: Any) -> Any:
    """Return x log z, and 0 where x is 0 and z at most 0: the logarithm of 1 is taken there."""
    return torch.where((x == 0) & (z <= 0), 1.0, z).log() * x


def _across(x: Any) -> Any:
    """Return the root of 1 - x^2, by factors, without loss of digits."""
    return ((1 - x) * (x + 1.0)).sqrt()


# Losses

_LEAST_SPREAD = 9.999999960041972e-13
"""1e-12 in fp32, which it is in PyTorch's kernel for processors, whatever the type (EPSILON, ATen/native/Loss.cpp)."""


def reduced(each: Any, reduction: int) -> Any:
    """Return the terms of a loss, their mean or their sum, by PyTorch's number of a reduction."""
    return each.mean() if reduction == 1 else each.sum() if reduction else each


def _binary(x: Any, z: Any, weight: Any = None, reduction: int = 1) -> Any:
    """Return -(z log x + (1 - z) log(1 - x)) with logarithms >= -100, and the gradient (x - z) / max(x (1 - x), 1e-12).

    Both bounds are PyTorch's (torch.nn.BCELoss, and binary_cross_entropy_backward in ATen/native/Loss.cpp). The second
    bounds only the gradient, so a separate term provides it: slope x minus its detached value is 0 and has this
    gradient.
    """
    other = 1 - x
    yes, no = (_detached(each.log().clamp(min=-100.0)) for each in (x, other))
    along = _detached((x - z) / (x * other).clamp(min=_LEAST_SPREAD)) * x
    each = along - _detached(along) - (z * yes + (1 - z) * no)
    return reduced(each if weight is None else each * weight, reduction)


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "tan": lambda x: x.sin() / x.cos(),
    "sinh": lambda x: (x.exp() - (-x).exp()) * 0.5,
    "cosh": lambda x: (x.exp() + (-x).exp()) * 0.5,
    "asinh": lambda x: x.sign() * (x.abs() + (x * x + 1.0).sqrt()).log(),
    "acosh": lambda x: (x + (x * x - 1.0).sqrt()).log(),
    "atanh": lambda x: (x.log1p() - (-x).log1p()) * 0.5,
    "asin": lambda x: torch.atan2(x, _across(x)),
    "acos": lambda x: torch.atan2(_across(x), x),
    "log2": lambda x: x.log() * (1 / math.log(2)),
    "log10": lambda x: x.log() * (1 / math.log(10)),
    "exp2": lambda x: (x * math.log(2)).exp(),
    "erfc": lambda x: 1 - x.erf(),
    "xlogy.Tensor": _times_log,
    "copysign.Tensor": lambda x, z: torch.where(z < 0, -x.abs(), x.abs()),
    "lerp": lambda x, end, weight: x + (end - x) * weight,
    "hypot": lambda x, z: (x * x + z * z).sqrt(),
    "ceil": lambda x: -(-x).floor(),
    "round": _rounded,
    "fmod": lambda x, z: x - _detached(torch.div(x, z, rounding_mode="trunc")) * z,
    "remainder": lambda x, z: x - torch.div(x, z, rounding_mode="floor") * z,
    "binary_cross_entropy": _binary,
}


def _drops(node: Any) -> bool:
    """Return whether a call of attention has dropout."""
    return bool(arguments_of(node)["dropout_p"])


def _is_contiguous(node: Any) -> bool:
    """Return whether the strided tensor is contiguous and of a fixed size."""
    x, *_, size, stride, offset = arguments_of(node).values()
    return bool(x.meta["val"].is_contiguous()) and all(isinstance(n, int) for n in (*size, *stride, offset or 0))


def _with_what_it_divides_by(node: Any) -> bool:
    """Return whether the means and deviations of a normalization are read, as when a forward pass takes its
    gradient.
    """
    return any(user.users for user in node.users if user.args[1] in (1, 2))


def _of_pytorch(name: str, overload: str = "default") -> Callable[..., Any]:
    """Return PyTorch's decomposition of an operator."""

    def parts(*arguments: Any, **named: Any) -> Any:
        return torch._decomp.decomposition_table[getattr(getattr(torch.ops.aten, name), overload)](*arguments, **named)

    return parts


def _is_scaled(node: Any) -> bool:
    """Return whether an ELU, or a softplus, which is linear above 20 within 2e-9, is not the op of the vocabulary."""
    given = arguments_of(node)
    return given.get("threshold", 20) < 20 or any(given.get(name, 1) != 1 for name in ("scale", "input_scale", "beta"))


def _is_off_the_diagonal(node: Any) -> bool:
    """Return whether a triangle ends next to the diagonal, or is of one row or column."""
    return bool(arguments_of(node)["diagonal"]) or 1 in node.meta["val"].shape[-2:]


def _is_listed(node: Any) -> bool:
    """Return whether an operator is along a dimension of fixed size."""
    shape, named = node.args[0].meta["val"].shape, arguments_of(node)
    sizes = [shape[named["dim"]]] if "dim" in named and shape else shape
    return bool(shape) and all(isinstance(size, int) for size in sizes)


def _leaves_windows(node: Any) -> bool:
    """Return whether windows of a mean reach out of the sides."""
    x, *settings = node.args
    return _reach_out(x.meta["val"].shape[-int(str(node.target)[13]) :], *settings)


def _always(_: Any) -> bool:
    return True


WRITTEN_OUT: Mapping[str, tuple[Callable[..., Any], Callable[[Any], bool]]] = {
    **{name: (function, _always) for name, function in ELEMENTWISE.items()},
    "scaled_dot_product_attention": (attention_with_dropout, _drops),
    **dict.fromkeys(("_embedding_bag", "embedding_bag.padding_idx"), (bags, _always)),
    **dict.fromkeys(("cdist", "_cdist_forward"), (distances, _always)),
    **{f"{name}.correction": (spread(name), _has_more) for name in ("var", "std", "var_mean", "std_mean")},
    "addbmm": (lambda base, x, z, *, beta=1, alpha=1: beta * base + alpha * (x @ z).sum(0), _always),
    "masked_scatter": (masked_scatter, _always),
    "slice_scatter": (with_part, _always),
    **{f"avg_pool{count}d": (mean_of_windows(count), _leaves_windows) for count in (1, 2, 3)},
    "affine_grid_generator": (affine_grid, _always),
    "select_scatter": (lambda base, part, dim, at: with_part(base, part.unsqueeze(dim), dim, at), _always),
    "diagonal_scatter": (on_diagonal, _always),
    "as_strided": (lambda x, *strided: x.reshape(-1)[_places(x, *strided)], _is_contiguous),
    "as_strided_scatter": (  # PyTorch's gradient of the base is that of the part
        lambda x, part, *strided: x.flatten().scatter(0, _places(x, *strided).flatten(), part.flatten()).view(x.shape),
        _is_contiguous,
    ),
    **{name: (_of_pytorch(name), is_uneven) for name in NEAREST},
    **{f"{name}.vec": (_of_pytorch(name, "vec"), is_uneven) for name in NEAREST},
    **{name: (_of_pytorch(name), _is_off_the_diagonal) for name in ("tril", "triu")},
    "_pad_circular": (around, _always),
    "logdet": (lambda x: torch.linalg.slogdet(x)[1], _always),  # PyTorch's is nan where a determinant is negative
    "prod": (product_along, _is_listed),
    "cumprod": (products_so_far, _is_listed),
    **{name: (_of_pytorch(name), _is_scaled) for name in ("elu", "softplus")},
    **{name: (_of_pytorch(name), _with_what_it_divides_by) for name in ("native_layer_norm", "native_group_norm")},
}
"""The decomposition of an operator by its name, and the calls that it applies to; `NotImplemented` keeps a call as it
is.
"""
