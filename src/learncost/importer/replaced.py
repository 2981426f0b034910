"""Replacements of functions that ask for values, or that PyTorch does not decompose at symbolic sizes."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, cast
from unittest.mock import patch

import torch
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_hop
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets
from torch.nn.attention import flex_attention

from learncost.ir.errors import InputError

LOG_OF_ZERO = -1e30
"""The logarithm of probability 0, as a finite number, so that sums of such terms have gradients, which are 0."""


def temporal_classification(
    logarithms: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int | str = 1,
    zero_infinity: bool = False,
) -> Any:
    """Return `ctc_loss` position by position: the logarithms of the forward variables (Graves et al. 2006, eq. 5 to 8).

    Where a target is the blank, PyTorch's backward pass differs from finite differences of its loss; this one does not.

    logarithms  (time, batch, classes) or (time, classes); targets (batch, longest), or concatenated
    """
    alone = logarithms.dim() == 2
    if alone:
        logarithms, targets = logarithms.unsqueeze(1), targets.reshape(1, -1)
    device = targets.device
    many, lasts = (
        torch.as_tensor(lengths, device=device).reshape(-1).long() for lengths in (input_lengths, target_lengths)
    )
    if targets.dim() == 1:
        parts = targets.split(target_lengths.tolist() if hasattr(target_lengths, "tolist") else list(target_lengths))
        targets = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
    blanks = torch.full_like(targets, blank)
    labels = torch.cat([torch.stack([blanks, targets], -1).flatten(1), blanks[:, :1]], 1)
    skips = torch.nn.functional.pad(labels[:, 2:] != labels[:, :-2], (2, 0))
    chances = logarithms.gather(2, labels.expand(logarithms.shape[0], -1, -1))
    first = torch.arange(labels.shape[1], device=device) < 2
    state = torch.where(first, chances[0], LOG_OF_ZERO)
    for time in range(1, logarithms.shape[0]):
        one, two = (torch.nn.functional.pad(state, (by, -by), value=LOG_OF_ZERO) for by in (1, 2))
        scores = torch.logaddexp(torch.logaddexp(state, one), torch.where(skips, two, LOG_OF_ZERO))
        state = torch.where((many > time).unsqueeze(-1), scores + chances[time], state)
    ends = state.gather(1, 2 * lasts.unsqueeze(-1)).squeeze(-1)
    labelled = state.gather(1, (2 * lasts - 1).clamp_min(0).unsqueeze(-1)).squeeze(-1)
    each = -torch.logaddexp(ends, torch.where(lasts > 0, labelled, LOG_OF_ZERO))
    each = torch.where(each < -LOG_OF_ZERO / 2, each, 0.0 if zero_infinity else math.inf)
    if reduction in (1, "mean"):
        return (each / lasts.clamp_min(1)).mean()
    return each.sum() if reduction in (2, "sum") else each[0] if alone else each


def _fake_quantized(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """Return the nearest of the numbers that codes represent; the gradient passes where a code is in range."""
    step = scale if isinstance(scale, torch.Tensor) else torch.full((), scale, dtype=x.dtype, device=x.device)
    code = ((x / step).round() + zero).detach()  # no product with 1/scale, which another number may round to
    kept = code.clamp(float(low), float(high))
    passed = (kept == code) * x
    return passed + ((kept - zero) * scale - passed).detach()


def _fake_quantized_by_channel(x: Any, scale: Any, zero: Any, dim: int, low: int, high: int) -> Any:
    shape = [-1 if place == dim else 1 for place in range(x.dim())]
    return _fake_quantized(x, scale.reshape(shape), zero.reshape(shape), low, high)


def gaussian(input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    """Return `gaussian_nll_loss` without its check for negative variances; its gradient passes at the bound."""
    variance = var * torch.ones_like(input) if isinstance(var, float) else var
    if variance.dim() == input.dim() - 1:
        variance = variance.unsqueeze(-1)
    variance = variance + (variance.clamp_min(eps) - variance).detach()
    each = 0.5 * (variance.log() + (input - target) ** 2 / variance)
    if full:
        each = each + 0.5 * math.log(2 * math.pi)
    return {"none": each, "mean": each.mean(), "sum": each.sum()}[reduction]


def covariance(x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Return `cov` of unweighted observations. Raises `InputError` for weighted ones."""
    if fweights is not None or aweights is not None:
        raise InputError("cov with weighted observations depends on values: write it with sums of products")
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    apart = rows - rows.mean(1, keepdim=True)
    result = apart @ apart.mT / (rows.shape[1] - correction)
    return result if x.dim() == 2 else result.reshape(())


def correlation(x: Any) -> Any:
    """Return `corrcoef`."""
    among = covariance(x)
    if not among.dim():
        return among / among
    widths = among.diagonal().sqrt()
    return among / widths.unsqueeze(1) / widths


def combinations(x: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """Return the combinations of the elements of a vector."""
    several = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    return x[torch.tensor(list(several(range(len(x)), r)), device=x.device)]


def selected(input: Any, mask: Any, **_: Any) -> Any:
    """Return `masked_select` as a read at a mask, after broadcasting both to one shape."""
    x, chosen = cast("Any", torch.broadcast_tensors)(input, mask)
    return x[chosen]


def least_squares(A: Any, B: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """Return `linalg.lstsq` of full rank, by a QR factorization. Raises `InputError` for fewer equations than
    unknowns.
    """
    if A.shape[-2] < A.shape[-1]:
        raise InputError("lstsq with fewer equations than unknowns depends on its rank: use torch.linalg.pinv")
    vectors = B.dim() == A.dim() - 1
    orthogonal, triangle = torch.linalg.qr(A)
    right = orthogonal.mT @ (B.unsqueeze(-1) if vectors else B)
    solution = torch.linalg.solve_triangular(triangle, right, upper=True)
    of_full_rank: Any = torch.return_types.linalg_lstsq  # type: ignore[attr-defined]
    return of_full_rank((solution.squeeze(-1) if vectors else solution, None, None, None))


def largest_of_windows(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    **_: Any,
) -> Any:  # fmt: skip
    """Return the implementation of `max_pool1d` that autograd runs; the other one converts a symbolic length to a
    number.
    """
    return torch.max_pool1d_with_indices(input, kernel_size, stride or [], padding, dilation, ceil_mode)[0]


class _UnsupportedResult:
    """A result of `flex_attention` in addition to its values, which is refused where it is read."""

    def numel(self) -> int:
        raise InputError("the logarithms of sums of flex_attention cannot be read: compute them from its scores")


def flexible_attention(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, *_: Any) -> Any:
    """Return `flex_attention` as attention under its mask, or written out if it changes scores.

    Its functions of a score and of positions are called once, for all positions: they are broadcast.
    """
    sides, seen, mask_mod = (*query.shape[:3], key.shape[2]), None, block_mask[-1]
    at = [
        torch.arange(side, device=query.device).view([-1 if place == dim else 1 for place in range(4)])
        for dim, side in enumerate(sides)
    ]
    if mask_mod is not flex_attention.noop_mask:
        seen = mask_mod(*at)
    if score_mod is flex_attention._identity:
        scale = None if scale == query.shape[-1] ** -0.5 else scale  # as attention divides without one
        several = query.shape[1] != key.shape[1]
        attention = torch.nn.functional.scaled_dot_product_attention
        return (
            attention(query, key, value, seen, scale=scale, enable_gqa=several),
            _UnsupportedResult(),
            _UnsupportedResult(),
        )
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = score_mod(query @ key.mT * scale, *at)
    if seen is not None:
        scores = scores.masked_fill(seen.logical_not(), -math.inf)
    return scores.softmax(-1) @ value, _UnsupportedResult(), _UnsupportedResult()


def spaced(start: Any, end: Any, steps: Any, **named: Any) -> Any:
    """Return `linspace`, also of a symbolic number of steps, which PyTorch converts to a number."""
    named["dtype"] = named.get("dtype") or torch.get_default_dtype()
    if not (isinstance(steps, torch.SymInt) and named["dtype"].is_floating_point):
        return torch.linspace(start, end, steps, **named)
    of_sizes: Any = torch
    return start + of_sizes.arange(steps, **named) * ((end - start) / of_sizes.sym_max(steps - 1, 1))


def mean_of_windows(pool: Any, count: int) -> Callable[..., Any]:
    """Return an average pool over this many sides, also over whole sides of symbolic size."""

    def answer(x: Any, kernel_size: Any, stride: Any = None, *more: Any, **named: Any) -> Any:
        several = kernel_size if isinstance(kernel_size, tuple | list) else [kernel_size] * count
        is_open = any(isinstance(each, torch.SymInt) for each in several)
        is_plain = not any((*more, *named.values()))  # with padding or another divisor it is no mean of the side
        if is_open and is_plain and all(size == side for size, side in zip(several, x.shape[-count:], strict=True)):
            return x.mean(tuple(range(-count, 0)), keepdim=True)
        return pool(x, kernel_size, stride, *more, **named)

    return answer


def attention_of_lengths(query: Any, key: Any, value: Any, *more: Any, **named: Any) -> Any:
    """Return `scaled_dot_product_attention`; of nested tensors, (batch, heads, lengths, points), that of each
    sequence.
    """
    run = torch.nn.functional.scaled_dot_product_attention
    if not query.is_nested:
        return run(query, key, value, *more, **named)
    ends = [each.offsets().tolist() for each in (query, key, value)]
    rows = [each.values() for each in (query, key, value)]
    places = range(len(ends[0]) - 1)
    parts = [
        run(*(row[:, end[at] : end[at + 1]] for row, end in zip(rows, ends, strict=True)), *more, **named)
        for at in places
    ]
    bounds = {"min_seqlen": query._get_min_seqlen(), "max_seqlen": query._get_max_seqlen()}
    made: Any = nested_view_from_values_offsets
    return made(torch.cat(parts, 1), query.offsets(), 2, **bounds)


def linear_of_sizes(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return `linear`; under `torch.func` it adds the bias separately, as PyTorch's converts sizes to numbers."""
    run = torch.nn.functional.linear
    if bias is None or torch._C._functorch.maybe_current_level() is None:
        return run(x, weight, bias)
    return run(x, weight) + bias


def root(value: Any, of_numbers: Any = math.sqrt) -> Any:
    """Return `math.sqrt`, also of a symbolic size, which Python's version converts to a number."""
    return value**0.5 if isinstance(value, torch.SymInt | torch.SymFloat) else of_numbers(value)


@contextmanager
def attributes_replaced(attributes: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Replace attributes of modules and classes inside, also those that they lack, such as PyTorch without CUDA.

    Attributes that a class inherits are inherited again afterwards.
    """
    with ExitStack() as replaced:
        for (of, name), value in attributes.items():
            replaced.enter_context(patch.object(of, name, value, create=True))
        yield


@contextmanager
def unchecked() -> Iterator[None]:
    """Disable the argument checks of distributions inside, which compare numbers that an export does not have."""
    kind: Any = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


def _without_device(tensor: Any) -> bool:
    """Return whether a tensor requires a gradient, but not to the check for a device with a kernel for it."""
    return bool(tensor.requires_grad) and calling().f_code is not flex_attention._validate_device.__code__


def calling(file: str = __file__) -> FrameType:
    """Return the frame that calls a function which is answered: the nearest outside this file, the file of its answer,
    and the protocol that finds the answer.
    """
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename in (__file__, file) or frame.f_code.co_name in ("_answer", "__torch_function__"):
        frame = frame.f_back
    return cast("FrameType", frame)


WRITTEN_OUT: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.ctc_loss, torch.nn.functional.ctc_loss), temporal_classification),
    torch.fake_quantize_per_tensor_affine: _fake_quantized,  # PyTorch has no shapes of it for open sizes
    torch.fake_quantize_per_channel_affine: _fake_quantized_by_channel,
    torch.nn.functional.gaussian_nll_loss: gaussian,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), covariance),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), correlation),
    torch.combinations: combinations,
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), selected),
    torch.linalg.lstsq: least_squares,
    torch.nn.functional.scaled_dot_product_attention: attention_of_lengths,
    torch.nn.functional.linear: linear_of_sizes,
    torch.linspace: spaced,
    torch.avg_pool1d: mean_of_windows(torch.avg_pool1d, 1),
    torch.nn.functional.avg_pool2d: mean_of_windows(torch.nn.functional.avg_pool2d, 2),
    torch.max_pool1d: largest_of_windows,
    torch.nn.functional.max_pool1d: largest_of_windows,
    flex_attention_hop: flexible_attention,
    torch.Tensor.requires_grad.__get__: _without_device,  # type: ignore[attr-defined]
}
"""The functions that are answered by others, in a traced forward pass."""
