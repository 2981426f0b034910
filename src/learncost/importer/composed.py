"""Decompositions of operators into others that rules can read."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from learncost.importer.pointwise import POINTWISE, reduced
from learncost.importer.rule import with_settings
from learncost.importer.rules.attention import AttentionSettings
from learncost.importer.rules.reductions import BagSettings


def attention_with_dropout(query: Any, key: Any, value: Any, *, settings: AttentionSettings) -> Any:
    """Return `scaled_dot_product_attention` written out as in its documentation, with dropout between its products.

    A call without dropout is not decomposed.
    """
    import torch

    attn_mask, dropout_p, is_causal, scale, enable_gqa = settings
    if not dropout_p:
        return NotImplemented
    if enable_gqa and key.shape[-3] != query.shape[-3]:
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


def distances_of_rows(x: Any, p: float = 2.0) -> Any:
    """Return `pdist`, the distances of each row from the rows behind it."""
    import torch

    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind()
    return torch.linalg.vector_norm(x[first] - x[second], p, -1)


def several_labels_with_a_margin(x: Any, target: Any, reduction: int = 1) -> Any:
    """Return `multilabel_margin_loss`; a row's labels end at its first -1. PyTorch 2.13's decomposition also has terms
    for the positions behind that, which its kernels leave out.
    """
    import torch

    places = torch.arange(x.shape[-1], device=x.device)
    label = (target == -1).cumsum(-1) == 0
    places_of_labels = torch.where(label, target, 0)
    is_label = ((places == places_of_labels.unsqueeze(-1)) & label.unsqueeze(-1)).any(-2).unsqueeze(-2)
    apart = 1 - x.gather(-1, places_of_labels).unsqueeze(-1) + x.unsqueeze(-2)
    counts = label.unsqueeze(-1) & is_label.logical_not()
    each = torch.where(counts, apart.clamp_min(0), 0.0).sum((-2, -1)) / x.shape[-1]
    return reduced(each, reduction)


class GroupNormSettings(NamedTuple):
    """The sizes of an input of `native_group_norm`, and its settings."""

    N: Any
    C: Any
    HxW: Any
    group: int
    eps: float


def normalized_in_groups(x: Any, weight: Any, bias: Any, *, settings: GroupNormSettings) -> Any:
    """Return `native_group_norm` with its means and reciprocal deviations."""
    import torch

    parts = x.reshape(settings.N, settings.group, -1)
    variance, mean = torch.var_mean(parts, -1, correction=0, keepdim=True)
    share = torch.rsqrt(variance + settings.eps)
    result = ((parts - mean) * share).reshape(x.shape)
    row = [1, settings.C] + [1] * (x.dim() - 2)
    result = result if weight is None else result * weight.reshape(row)
    result = result if bias is None else result + bias.reshape(row)
    return result, mean.squeeze(-1), share.squeeze(-1)


def put(x: Any, places: Any, source: Any, accumulate: bool = False) -> Any:
    """Return `x.put(places, source)`, indexed into the flattened tensor."""
    return x.reshape(-1).index_put((places.reshape(-1),), source.reshape(-1), accumulate).reshape(x.shape)


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Return x with the first numbers of a source, in order, where a mask is true."""
    import torch

    mask = mask.expand(x.shape)
    places = mask.reshape(-1).cumsum(0).clamp_min(1) - 1
    return torch.where(mask, source.reshape(-1)[places].reshape(x.shape), x)


def bags_at_offsets(weight: Any, places: Any, offsets: Any, *, settings: BagSettings) -> Any:
    """Return `_embedding_bag`: each row is added to its bag; `max` mode is not read."""
    import torch

    scale_grad_by_freq, mode, _, per_sample_weights, include_last_offset, padding_idx = settings
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
    bags = rows.new_zeros(ends.shape[0], rows.shape[1]).index_add(0, bag, rows)
    size = torch.zeros(ends.shape[0], dtype=torch.long, device=places.device).index_add(0, bag, counts.long())
    if mode == 1:
        bags = bags / size.clamp_min(1).to(bags.dtype).unsqueeze(-1)
    return bags, bag, size, size


def cross_entropy(
    x: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Any:
    """Return `cross_entropy_loss` with label smoothing and class weights, as in PyTorch's documentation."""
    import torch

    if not label_smoothing or weight is None or target.is_floating_point():
        return NotImplemented
    classes = 1 if x.dim() > 1 else 0
    logarithms = torch.log_softmax(x, classes)
    counts = target != ignore_index
    label = torch.where(counts, target, 0)
    of_class = weight.index_select(0, label.reshape(-1)).reshape(label.shape)
    shares = torch.where(counts, of_class, 0.0)
    of_label = logarithms.gather(classes, label.unsqueeze(classes)).squeeze(classes) * shares
    by_class = weight.reshape([-1] + [1] * (x.dim() - classes - 1))
    of_all = torch.where(counts, (logarithms * by_class).sum(classes), 0.0)
    each = -(1 - label_smoothing) * of_label - label_smoothing / x.shape[classes] * of_all
    return each.sum() / shares.sum() if reduction == 1 else reduced(each, reduction)


def onto_a_diagonal(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return `diagonal_scatter`, x with other values on a diagonal of two of its dimensions."""
    import torch

    turned = x.movedim((dim1, dim2), (0, 1))
    places = torch.arange(source.shape[-1], device=x.device)
    at = (places + max(0, -offset), places + max(0, offset))
    return turned.index_put(at, source.movedim(-1, 0)).movedim((0, 1), (dim1, dim2))


def by_strides(x: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Return `as_strided` of a contiguous tensor as an indexed read."""
    return x.reshape(-1)[_places_by_strides(x, size, stride, storage_offset)]


def onto_strides(x: Any, source: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Return `as_strided_scatter` onto a contiguous tensor as an indexed write."""
    places = _places_by_strides(x, size, stride, storage_offset)
    return x.reshape(-1).index_put((places,), source).reshape(x.shape)


def _places_by_strides(x: Any, size: Any, stride: Any, storage_offset: int | None) -> Any:
    import torch

    places = torch.full((), storage_offset or 0, device=x.device)
    for count, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + step * torch.arange(count, device=x.device)
    return places


def logarithm_of_a_determinant(x: Any) -> Any:
    """Return `logdet` for a positive determinant; PyTorch returns nan for a negative one."""
    import torch

    return torch.linalg.slogdet(x)[1]


def pseudo_inverse(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """Return `linalg_pinv` by singular values; those no larger than a tolerance count as 0."""
    import torch

    left, values, right = torch.linalg.svd(x, full_matrices=False)
    largest = values.amax(-1, keepdim=True)
    if rtol is None:
        rtol = 0.0 if atol is not None else torch.finfo(x.dtype).eps * max(x.shape[-2:])
    bound = largest * rtol if atol is None else torch.maximum(largest * rtol, torch.zeros_like(largest) + atol)
    shares = torch.where(values > bound, 1 / values, 0.0)
    return (right.mT * shares.unsqueeze(-2)) @ left.mT


def sampled_in_space(x: Any, grid: Any, interpolation: int, padding: int, align_corners: bool) -> Any:
    """Return `grid_sampler_3d` as PyTorch's kernels compute it: eight corners, or the nearest position."""
    import torch

    sides = x.shape[2:]
    batch = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1, 1)
    at = [_along_a_side(grid[..., 2 - dim], side, padding, align_corners) for dim, side in enumerate(sides)]
    low = [place.round() if interpolation else place.floor() for place in at]
    result: Any = 0.0
    for corner in itertools.product(*[(0,) if interpolation else (0, 1)] * 3):
        weight: Any = 1.0
        holds: Any = True
        places = []
        for place, first, side, step in zip(at, low, sides, corner, strict=True):
            here = first + step
            if not interpolation:
                weight = weight * (place - first if step else 1 - (place - first))
            holds = (here >= 0) & (here < side) & holds
            places.append(here.clamp(0, side - 1).long())
        rows = x[batch, :, places[0], places[1], places[2]]
        share = torch.where(holds, weight, 0.0).to(x.dtype)
        result = result + rows * share.unsqueeze(-1)
    return result.movedim(-1, 1)


def _along_a_side(place: Any, side: int, padding: int, align_corners: bool) -> Any:
    """Map a coordinate from -1 to 1 to a point of a side; points beyond it are clamped or reflected."""
    import torch

    place = (place + 1) / 2 * (side - 1) if align_corners else ((place + 1) * side - 1) / 2
    if padding == 2:
        first, span = (0.0, side - 1) if align_corners else (-0.5, side)
        if not span:
            return torch.zeros_like(place)
        apart = (place - first).abs()
        iterations = (apart / span).floor()
        rest = apart - iterations * span
        place = torch.where(iterations % 2 == 0, rest, span - rest) + first
    return place.clamp(0, side - 1) if padding else place


def product_along(x: Any, dim: int | None = None, keepdim: bool = False, **_: Any) -> Any:
    """Return `prod` as a product of parts, whose gradient exists where a part is 0."""
    import torch

    result = functools.reduce(torch.mul, (x.reshape(-1) if dim is None else x).unbind(dim or 0))
    return result.unsqueeze(dim) if keepdim and dim is not None else result


def products_so_far(x: Any, dim: int, **_: Any) -> Any:
    """Return `cumprod` as products of parts."""
    import torch

    return torch.stack(list(itertools.accumulate(x.unbind(dim), torch.mul)), dim)


def extremes_so_far(x: Any, dim: int, largest: bool = True) -> Any:
    """Return `cummax` or `cummin`; among equal ones the last has the gradient."""
    import torch

    first, *others = x.unbind(dim)
    values, places = [first], [torch.zeros_like(first, dtype=torch.long)]
    for place, part in enumerate(others, 1):
        kept = part < values[-1] if largest else values[-1] < part
        values.append(torch.where(kept, values[-1], part))
        places.append(torch.where(kept, places[-1], place))
    return torch.stack(values, dim), torch.stack(places, dim)


def logarithm_of_sums_so_far(x: Any, dim: int) -> Any:
    """Return `logcumsumexp`."""
    import torch

    high = torch.ops.aten.detach.default(x).amax(dim, keepdim=True)
    return (x - high).exp().cumsum(dim).log() + high


def in_order(x: Any, place: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return `kthvalue`, the value at a place of the ascending order, and its position."""
    parts = [each.narrow(dim, place - 1, 1) for each in x.sort(dim)]
    return tuple(each if keepdim else each.squeeze(dim) for each in parts)


def middle(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return `median`, the lower one of an even number."""
    rows, along = (x.reshape(-1), 0) if dim is None else (x, dim)
    found = in_order(rows, (rows.shape[along] + 1) // 2, along, keepdim)
    return found[0] if dim is None else found


def _argument(node: Any, name: str) -> Any:
    """Return an argument of a call, or its default."""
    of_schema = node.target._schema.arguments
    place = next(place for place, each in enumerate(of_schema) if each.name == name)
    return node.args[place] if place < len(node.args) else node.kwargs.get(name, of_schema[place].default_value)


def _drops(node: Any) -> bool:
    """Return whether a call of attention has dropout."""
    return bool(_argument(node, "dropout_p"))


def _smooths_with_weights(node: Any) -> bool:
    return bool(_argument(node, "label_smoothing")) and _argument(node, "weight") is not None


def _lie_at_offsets(node: Any) -> bool:
    """Return whether bags have different lengths or rows that do not count, and the mode is not `max`."""
    identical = str(_argument(node, "offsets").target) == "aten.arange.start_step"
    padded = _argument(node, "padding_idx") not in (None, -1)
    return (padded or not identical) and not (_argument(node, "scale_grad_by_freq") or _argument(node, "mode") == 2)


def _is_contiguous(node: Any) -> bool:
    """Return whether the strided tensor is contiguous and of a fixed size."""
    numbers = (*_argument(node, "size"), *_argument(node, "stride"), _argument(node, "storage_offset") or 0)
    return bool(node.args[0].meta["val"].is_contiguous()) and all(isinstance(each, int) for each in numbers)


def _with_what_it_divides_by(node: Any) -> bool:
    """Return whether the means and deviations of a normalization are read, as when a forward pass takes its
    gradient.
    """
    return any(user.users for user in node.users if user.args[1] in (1, 2))


def _of_pytorch(name: str) -> Callable[..., Any]:
    """Return PyTorch's decomposition of an operator."""

    def parts(*arguments: Any, **named: Any) -> Any:
        import torch

        return torch._decomp.decomposition_table[getattr(torch.ops.aten, name).default](*arguments, **named)

    return parts


def _is_scaled(node: Any) -> bool:
    """Return whether an ELU or a softplus has other settings than the op of the vocabulary."""
    return any(setting not in (1, 20) for setting in node.args[2 if "elu" in str(node.target) else 1 :])


def _is_in_evaluation(node: Any) -> bool:
    return not _argument(node, "training")


def _is_listed(node: Any) -> bool:
    """Return whether an operator is along a dimension of fixed size."""
    shape = node.args[0].meta["val"].shape
    names = [each.name for each in node.target._schema.arguments]
    sizes = [shape[_argument(node, "dim")]] if "dim" in names and shape else shape
    return bool(shape) and all(isinstance(size, int) for size in sizes)


def _always(_: Any) -> bool:
    return True


WRITTEN_OUT: Mapping[str, tuple[Callable[..., Any], Callable[[Any], bool]]] = {
    **{name: (function, _always) for name, function in POINTWISE.items()},
    "scaled_dot_product_attention": (with_settings(AttentionSettings, attention_with_dropout), _drops),
    "cross_entropy_loss": (cross_entropy, _smooths_with_weights),
    "_embedding_bag": (with_settings(BagSettings, bags_at_offsets), _lie_at_offsets),
    "embedding_bag.padding_idx": (with_settings(BagSettings, bags_at_offsets), _lie_at_offsets),
    "_pdist_forward": (distances_of_rows, _always),
    "multilabel_margin_loss": (several_labels_with_a_margin, _always),
    "multilabel_margin_loss_forward": (lambda *given: (several_labels_with_a_margin(*given), given[1]), _always),
    "masked_scatter": (masked_scatter, _always),
    "put": (put, _always),
    "diagonal_scatter": (onto_a_diagonal, _always),
    "as_strided": (by_strides, _is_contiguous),
    "as_strided_scatter": (onto_strides, _is_contiguous),
    "prims.as_strided_scatter": (onto_strides, _is_contiguous),
    "logdet": (logarithm_of_a_determinant, _always),
    "grid_sampler_3d": (sampled_in_space, _always),
    "linalg_pinv.atol_rtol_tensor": (pseudo_inverse, _always),
    "prod": (product_along, _is_listed),
    "cumprod": (products_so_far, _is_listed),
    "cummax": (extremes_so_far, _is_listed),
    "cummin": (functools.partial(extremes_so_far, largest=False), _is_listed),
    "logcumsumexp": (logarithm_of_sums_so_far, _always),
    "kthvalue": (in_order, _is_listed),
    "median": (middle, _is_listed),
    "nanmedian": (middle, _is_listed),
    "elu": (POINTWISE["elu"], _is_scaled),
    "softplus": (POINTWISE["softplus"], _is_scaled),
    "rrelu_with_noise_functional": (POINTWISE["rrelu_with_noise_functional"], _is_in_evaluation),
    "native_layer_norm": (_of_pytorch("native_layer_norm"), _with_what_it_divides_by),
    "native_group_norm": (with_settings(GroupNormSettings, normalized_in_groups), _with_what_it_divides_by),
}
"""The decomposition of an operator by its name, and the calls that it applies to; `NotImplemented` keeps a call as it
is.
"""
