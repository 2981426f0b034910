"""Workspace of CPU kernels by operator, in PyTorch 2.13.

Each row is a function of the operator's arguments and results. Buffers of matrix-product libraries are not included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from numpy import broadcast_shapes
from torch._subclasses.fake_tensor import disable_fake_tensor_cache
from torch.utils._pytree import tree_leaves, tree_map_only

FLOAT = 4
"""Bytes of torch.float32."""
INTEGER = 8
"""Bytes of torch.int64."""


def _made_twice(gradient: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> int:
    """`Normalization.cpp`: if the gradient has the operand's strides, the result is allocated twice, and written
    once.
    """
    return x.nbytes if _layouts(x) & _layouts(gradient) else 0


def _layouts(x: Any) -> set[torch.memory_format]:
    """Return the layouts in which a tensor is contiguous: as it is, or an image with its channels last."""
    several = (torch.contiguous_format, torch.channels_last)[: 2 if x.dim() == 4 else 1]
    return {laid for laid in several if x.is_contiguous(memory_format=laid)}


def _outer(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *expanded: Sequence[int], **_: Any) -> int:
    """`Linear.cpp`: `_trilinear`, of `nn.Bilinear`, materializes the product of two factors in every iteration over the
    third.
    """
    first, second, third, summed = expanded[:4]
    sizes: list[list[int]] = [[*each.shape] for each in (x, y)]
    for shape, places in zip(sizes, (first, second), strict=True):
        for place in sorted(places):
            shape.insert(place, 1)
    joined = broadcast_shapes(*sizes)
    left = [size for place, size in enumerate(joined) if place not in third or place not in summed]
    return int(prod(left)) * x.element_size()


NONE, MEAN = 0, 1
"""The numbers of the reductions none and mean (`Reduction.h`)."""

NARROW = (torch.bfloat16, torch.float16)


def _in_float(x: torch.Tensor, *_: Any, **__: Any) -> int:
    return x.numel() * FLOAT if x.dtype in NARROW else 0


def _mean(x: torch.Tensor, dims: Sequence[int] | None = None, *_: Any, **named: Any) -> int:
    """`ReduceOps.cpp`: the mean of bf16 and fp16 is that of a copy in float, and is itself in float before its cast."""
    return _in_float(x) + _kept(x, dims) * FLOAT * (x.dtype in NARROW and not named)


def _kept(x: torch.Tensor, dims: Sequence[int] | None) -> int:
    """Return the number of elements of a reduction along dimensions, by default all."""
    summed = {place % x.dim() for place in dims or range(x.dim())}
    return prod(size for place, size in enumerate(x.shape) if place not in summed)


SMALL_IMAGE = 128
"""The rows and columns of an image, together, up to which it is scaled with its channels last (`UpSampleKernel.cpp`,
`_use_vectorized_kernel_cond_2d`)."""


def _with_channels_last(x: torch.Tensor, size: Sequence[int], *_: Any, **__: Any) -> int:
    copied = sum(size) <= SMALL_IMAGE and torch.channels_last not in _layouts(x)
    return copied * (prod((*x.shape[:2], *size)) * x.element_size() + x.nbytes)


def _losses(x: torch.Tensor, z: torch.Tensor) -> int:
    """Return the number of losses of pairs that are broadcast against each other."""
    return prod(broadcast_shapes(x.shape, z.shape))


def _bytes_of_mean(x: torch.Tensor, z: torch.Tensor, reduction: int) -> int:
    """`apply_loss_reduction` (`Loss.cpp`): a mean of losses; for bf16 and fp16 it is that of a copy in float."""
    return _losses(x, z) * FLOAT if reduction == MEAN and x.dtype in NARROW else 0


def _once(x: torch.Tensor, z: torch.Tensor, reduction: int = MEAN, *_: Any, **__: Any) -> int:
    return _losses(x, z) * x.element_size() * (reduction != NONE) + _bytes_of_mean(x, z, reduction)


def _in_result(x: torch.Tensor, z: torch.Tensor, *more: Any, reduction: int = MEAN, **_: Any) -> int:
    return _bytes_of_mean(x, z, more[-1] if more else reduction)


KERNELS: Mapping[str, Callable[..., int]] = {
    "aten::mean": _mean,
    # `ReduceOps.cpp`: the exponentials of differences to the maxima, and these.
    "aten::logsumexp": lambda x, dims, *_, **__: x.nbytes + _kept(x, dims) * x.element_size(),
    # `EmbeddingBag.cpp`: indices are sorted, with their places.
    "aten::_embedding_bag_backward": lambda _, places, *__, **___: 3 * places.numel() * INTEGER,
    # `ScatterGatherKernel.cpp`: a scatter into bf16 and fp16 uses a copy in float, and so does a gather of them.
    **{f"aten::scatter{name}": _in_float for name in ("", "_", "_add", "_add_")},
    "aten::gather": lambda x, _dim, places, **_: places.numel() * FLOAT if x.dtype in NARROW else 0,
    # `Loss.cpp`: the loss of every pair, and their mean; or losses that are written into the result, then their mean.
    **dict.fromkeys(("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"), _once),
    **dict.fromkeys(("aten::binary_cross_entropy", "aten::soft_margin_loss"), _in_result),
    # log_sigmoid and its buffer, whose memory the losses then use.
    "aten::binary_cross_entropy_with_logits": lambda x, z, weight=None, pos_weight=None, reduction=MEAN: (
        2 * _losses(x, z) * x.element_size() + _bytes_of_mean(x, z, reduction)
    ),
    # -z, and x times that, while the exponential of this is computed.
    "aten::soft_margin_loss_backward": lambda _, x, z, *__, **___: 2 * _losses(x, z) * x.element_size(),
    "aten::native_batch_norm_backward": _made_twice,
    "aten::_trilinear": _outer,
    # `Im2Col.cpp`: the result is first resized to the operand's size.
    "aten::im2col": lambda x, *_, **__: x.nbytes,
    # `Col2Im.cpp`: an operand that is not contiguous is copied.
    "aten::col2im": lambda x, *_, **__: 0 if x.is_contiguous() else x.nbytes,
    # `UpSampleKernel.cpp`: antialiasing goes dimension by dimension, with the rows in between as a buffer.
    **{
        f"aten::_upsample_{kind}2d_aa": lambda x, size, *_, **__: x.nbytes // x.shape[-1] * size[-1]
        for kind in ("bilinear", "bicubic")
    },
    **{
        f"aten::{kind}2d": _with_channels_last
        for kind in ("upsample_nearest", "_upsample_nearest_exact", "upsample_bilinear")
    },
    # `Sorting.cpp`: the median along another dimension than the last is that of a copy.
    "aten::median": lambda x, dim=None, *_, **__: 0 if dim is None or dim % x.dim() == x.dim() - 1 else x.nbytes,
    # `Sorting.cpp`: `kthvalue` sorts a copy of the values, and one of the indices.
    "aten::kthvalue": lambda x, *_, **__: x.numel() * (x.element_size() + INTEGER),
}
"""The bytes of workspace of an operator, by its arguments."""


def _workspace(func: Any, args: Any, result: Any) -> Any:
    """oneDNN's recurrent layers keep a workspace of unpublished size: it is measured by running one on zeros."""
    if not result[3].numel():
        with torch.utils._python_dispatch._disable_current_modes():
            zeros = tree_map_only(torch.Tensor, lambda each: torch.zeros(each.shape, dtype=each.dtype), args)
            size = func(*zeros)[3].numel()
        return (*result[:3], result[3].new_empty(size))
    return result


def _in_their_whole_storage(func: Any, args: Any, result: Any) -> Any:
    """A loss that is written into the memory of the losses of all pairs, and keeps that memory (`resize_` frees
    none).
    """
    return result.new_empty(_losses(args[0], args[1])).as_strided((), ()) if not result.dim() else result


def _in_operand_memory(func: Any, args: Any, result: Any) -> Any:
    """`Col2Im.cpp`: the folded result is allocated with the size of its columns, and keeps that memory."""
    allocation = max(args[0].numel(), result.numel())
    return result.new_empty(allocation).as_strided(result.shape, result.stride())


RESULTS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "aten::mkldnn_rnn_layer": _workspace,
    "aten::col2im": _in_operand_memory,
    "aten::mse_loss": _in_their_whole_storage,
    "aten::smooth_l1_loss": _in_their_whole_storage,
    "aten::binary_cross_entropy": _in_their_whole_storage,
    "aten::soft_margin_loss": _in_their_whole_storage,
}
"""Operators whose results without values are smaller than in a run."""


def _grouped(func: Any, args: Any, kwargs: Any) -> Any:
    """A grouped product, which accepts only bf16 without values, and every type in a run."""
    narrow = [
        each.new_empty(each.shape, dtype=torch.bfloat16).as_strided(each.shape, each.stride()) for each in args[:2]
    ]
    return func(*narrow, *args[2:], **kwargs).to(args[0].dtype)


def _padded(func: Any, args: Any, kwargs: Any) -> Any:
    """An operator whose results are padded, which the cache of results without values does not keep."""
    with disable_fake_tensor_cache(args[0].fake_mode):
        return func(*args, **kwargs)


REPLACEMENTS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_dot_product_efficient_attention_backward": _padded,
}
"""Replacements of operators that refuse tensors without values and accept them in a run, or have larger results."""


def results(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the results of an operator, as large as in a run."""
    instead, row = REPLACEMENTS.get(func._schema.name), RESULTS.get(func._schema.name)
    result = instead(func, args, kwargs) if instead else func(*args, **kwargs)
    return row(func, args, result) if row else result


def buffers(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> int:
    """Return the bytes of workspace that an operator allocates besides its results, and frees."""
    name = func._schema.name
    row, tensors = KERNELS.get(name), (each for each in args if isinstance(each, torch.Tensor))
    copied = sum(each.nbytes for each in tensors if not _layouts(each)) if CONTIGUOUS.fullmatch(name) else 0
    return copied + (row(*args, **kwargs) if row else _in_one_type(func, args, result))


CONTIGUOUS = re.compile(
    r"aten::(_(log_)?softmax(_backward_data)?|native_layer_norm(_backward)?|log_sigmoid_forward|rrelu_with_noise|im2col"
    r"|_cdist_\w+|multi(label)?_margin_loss\w*|(pixel|channel)_shuffle|index_select|bucketize|(reflection|replication)_pad"
    r"\dd|_?(adaptive_)?(max|avg)_pool2d(_with_indices)?)"
)
"""Operators whose kernels first copy operands that are not contiguous."""


PRODUCTS = re.compile(
    r"aten::(addmm|mm|baddbmm|bmm|addmv|_grouped_mm|\w*(flash|efficient|cudnn)_attention\w*|mkldnn_\w+|\w*conv\w*)_?"
)
"""Operators that call libraries of products (oneDNN, MKL), which pack operands and results in blocks."""

CONVOLUTIONS = "aten::convolution", "aten::convolution_backward"

HALF = 2
"""The bytes of a 16-bit number."""

BLOCK = 16
"""Channels of a block of oneDNN's layouts for convolutions with AVX-512 (nChw16c, OIhw16i16o): others are padded."""


def packed(func: Any, args: Any, result: Any) -> int:
    """Return an upper bound of the bytes that a matrix-product library allocates while it runs: one packed copy of
    every operand and one of the result in float, in which products are summed; channels of convolutions padded to whole
    blocks. Without AVX-512 PyTorch convolves 16-bit numbers by columns of all samples (slow_conv2d, ConvUtils.h).
    """
    name = func._schema.name
    if not PRODUCTS.fullmatch(name):
        return 0
    backward = "backward" in name
    weight = args[1 + backward] if "conv" in name else None
    total = 0
    if weight is not None and weight.element_size() == HALF and name in CONVOLUTIONS:
        transposed, (before, after) = args[6 + backward], (args[1::-1] if backward else (args[0], result))
        total = weight.numel() // len(weight) * (before if transposed else after)[:, 0].numel() * HALF
    for leaves, least in ((args, 0), (result, FLOAT)):
        for each in tree_leaves(leaves):
            if isinstance(each, torch.Tensor):
                channels = () if weight is None else (0, 1) if each.shape == weight.shape else (1,)
                sizes = [-(-n // BLOCK) * BLOCK if place in channels else n for place, n in enumerate(each.shape)]
                total += prod(sizes) * max(each.element_size(), least if each.is_floating_point() else 0)
    return total


SUMS = ("aten::sum", "aten::nansum", "aten::prod", "aten::cumsum", "aten::cumprod")
MIXED = ("aten::clone", "aten::masked_fill", "aten::masked_fill_", "aten::native_dropout_backward")
"""Elementwise operators whose kernels take operands of several types."""


def _in_one_type(func: Any, args: Any, result: Any) -> int:
    """`TensorIterator.cpp`: operands of another type than the computation are copied to it."""
    name = func._schema.name
    if not isinstance(result, torch.Tensor):
        return 0
    if name in SUMS:
        return args[0].numel() * result.element_size() if args[0].dtype != result.dtype else 0
    if torch.Tag.pointwise not in func.tags or name in MIXED or "logical" in name:
        return 0
    operands = [each for each in args[name == "aten::where" :] if isinstance(each, torch.Tensor) and each.dim()]
    if not operands:
        return 0
    computed = reduce(torch.promote_types, (each.dtype for each in operands))
    if result.is_floating_point() and not computed.is_floating_point and not computed.is_complex:
        computed = result.dtype
    return sum(each.numel() * computed.itemsize for each in operands if each.dtype != computed)
