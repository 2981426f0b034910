"""Operators of PyTorch in groups: what each group makes of matrices of 3 by 4, of squares, rows, images and windows."""

import torch
from torch import nn
from torch.nn import functional

GROUPS = {}


class Together(nn.Module):
    """One module that returns what several operators make of its parameters."""

    def __init__(self, function, shapes):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(*shape) * 2 - 0.7) for shape in shapes])
        self.function = function

    def forward(self):
        return self.function(*[weight * 1.0 for weight in self.weights])


def group(*shapes):
    def register(function):
        GROUPS[function.__name__] = lambda: Together(function, shapes)
        return function

    return register


@group((3, 4), (3, 4))
def rounded_and_compared(a, b):
    p = b.abs() + 0.1
    return (
        a * torch.ceil(3 * a),
        a * torch.round(3 * a),
        torch.trunc(3 * a) * b,
        torch.frac(3 * a),
        torch.fmod(a, 0.3),
        torch.remainder(a, p),
        a * torch.div(a, p, rounding_mode="trunc"),
        a * torch.div((0 * a + 49).detach(), 49, rounding_mode="floor"),
        a * ((0 * b + 49).detach() // 49),
        a * torch.logical_xor(a > 0, b > 0),
        torch.copysign(a, b),
        torch.where(torch.isnan(a), 0.0, a),
        functional.threshold(a, 0.1, -2.0),
        torch.zeros_like(a) + a * torch.ones_like(b),
    )


@group((3, 4), (3, 4))
def composed_words(a, b):
    p = b.abs() + 0.1
    return (
        torch.asinh(a),
        torch.acosh(1 + p),
        torch.atanh(a / 3),
        torch.xlogy(p, p),
        torch.logaddexp2(a, b),
        functional.softplus(a),
        functional.mish(a),
        functional.hardsigmoid(3 * a),
        functional.normalize(a, dim=1),
        torch.cdist(a, b),
    )


@group((3, 4), (3, 4))
def norms_of_zeros(a, b):
    z = a * torch.tensor([[1.0], [0.0], [1.0]])
    norm = torch.linalg.vector_norm
    return (
        *(norm(z, order, 1) for order in (0, 0.5, 1, 1.5, 2, 3, float("inf"))),
        norm(a, -float("inf"), 1),
        functional.normalize(z, dim=1),
        functional.cosine_similarity(z, b),
        torch.cdist(z, z, p=3.0),
        functional.pdist(b),
        (0 * a + 2.0).std(1),
        torch.std_mean(a, 0)[0],
        torch.complex(z, 2 * z).abs(),
        functional.softplus(a, 2.0, 0.5),
        b.cummax(1)[0],
        b.cummin(0)[0],
    )


@group((3, 5), (4, 5), (12,))
def losses_and_bags(a, b, c):
    labels, places = torch.tensor([[3, 0, -1, 1, 2], [0, 1, 2, -1, 0], [4, 3, 2, 1, 0]]), torch.tensor([1, 2, 2, 0, 3])
    weights = torch.arange(1.0, 6.0)
    bags = {"offsets": torch.tensor([0, 3, 3]), "padding_idx": 2}
    return (
        functional.multilabel_margin_loss(a, labels),
        functional.cross_entropy(a, torch.tensor([1, 4, -100]), weight=weights, label_smoothing=0.1),
        functional.hinge_embedding_loss(a, labels.clamp(0, 1) * 2 - 1, reduction="none"),
        functional.hinge_embedding_loss(a, labels.clamp(0, 1) * 2 - 1, margin=0.5, reduction="sum"),
        functional.embedding_bag(places, b, mode="mean", **bags),
        functional.embedding_bag(places, b, mode="sum", per_sample_weights=c[:5], **bags),
        a.masked_scatter(torch.tensor([True, False, True, True, False]), c),
        a.put(torch.tensor([0, 3, 14]), c[:3]),
    )


@group((3, 4), (3, 4))
def ordered(a, b):
    return (
        a.sort(1)[0] * b,
        a.sort(0, descending=True)[0],
        a.median(1)[0],
        a.median(),
        a.kthvalue(2, 1)[0],
        a.cumprod(1),
        a.logcumsumexp(1),
        a.prod(),
        a.gather(1, b.argsort(1)),
        torch.zeros_like(a).scatter(1, b.topk(1, 1)[1], 1.0) * a,
        a.quantile(0.4, dim=1),
    )


@group((5, 4), (2, 4), (2,), (5, 2))
def written_at_places(a, b, c, d):
    places = torch.tensor([1, 3])
    several = a.clone()
    several[1:3] = b
    several[0] = 0
    apart = torch.zeros_like(a)
    apart[:, ::2] = d
    apart[:, 1::2] = 2 * d
    masked = a.clone()
    masked[a > 0.2] = 0.0
    at = torch.tensor([[0, 3], [1, 1], [2, 0], [3, 2], [0, 1]])
    return (
        several,
        apart * a,
        masked,
        a.index_put((places,), b),
        a.index_put((places, torch.tensor([2, 0])), c, accumulate=True),
        a.index_copy(0, places, b),
        a.index_add(0, torch.tensor([1, 1]), b, alpha=2),
        a.index_fill(0, torch.tensor([1, 3, 1]), 2.0),
        a.scatter(1, torch.tensor([[0, 3], [1, 2], [2, 0], [3, 2], [0, 1]]), d),
        a.scatter_add(1, at, d),
        a.scatter_reduce(1, at, d, "mean"),
    )


@group((2, 4, 4), (4,), (3, 4, 6))
def diagonals_and_complex_numbers(a, b, c):
    iteration = torch.polar(torch.ones(4, 3), torch.arange(12.0).reshape(4, 3))
    pairs = torch.view_as_complex(c.reshape(3, 4, 3, 2))
    return (
        torch.diagonal(a, 0, 1, 2),
        torch.diagonal(a, 1, 1, 2),
        torch.diag_embed(a[0]),
        torch.diag(b) @ a,
        torch.einsum("bii->b", a),
        torch.einsum("bii->bi", a),
        torch.einsum("bij,j->j", a, b),
        torch.view_as_real(pairs * iteration).flatten(2),
        (pairs * pairs.conj()).real,
        pairs.abs(),
        (torch.einsum("abc,cd->bad", pairs, iteration.T @ pairs[0]) + 1).real.sum(),
        torch.roll(a, 3),
    )


@group((1, 2, 5, 6))
def resized(a):
    change = functional.interpolate
    return (
        change(a, scale_factor=(1.3, 0.6), mode="bicubic"),
        change(a, scale_factor=1.7, mode="bilinear"),
        change(a, scale_factor=1.7, mode="nearest"),
        change(a, size=(7, 9), mode="nearest-exact"),
        change(a, size=(3, 4), mode="bilinear", antialias=True),
        change(a, size=(7, 9), mode="bilinear", align_corners=True),
        functional.adaptive_max_pool2d(a, 4),
        functional.adaptive_avg_pool2d(a, 4),
        functional.pad(a, (1, 1), value=float("-inf")).amax(-1),
        functional.pad(a, (1, 2), value=3.0),
        functional.fold(a.reshape(1, 4, 15)[:, :, :6], (3, 4), 2),
    )


@group((2, 4, 1, 1), (4, 4, 3, 3), (4, 1, 3, 3))
def sides_of_one_place(a, w, g):
    return (
        functional.conv2d(a, w, stride=2, padding=1),
        functional.conv2d(a, g, padding=1, groups=4),
        functional.conv_transpose2d(a, w, stride=2),
        functional.max_pool2d(a, 3, 2, 1),
        functional.avg_pool2d(a, 3, 2, 1),
        functional.pad(a, (1, 1, 1, 1)),
        torch.cat([a, a * a], 2),
        a[:, :, 0].unfold(2, 1, 1),
        torch.cat([a[:, :0], a], 1),
    )


@group((3, 1, 6))
def of_one_place_or_none(a):
    values, places = a.topk(1, 1)
    rest, _, last = a.split([4, 0, 2], 2)
    return (
        values * 2,
        a.sort(1)[0] + 1,
        a * torch.zeros_like(a).scatter_(1, places, 1.0),
        torch.cat([last * 2, a[:, :, :0], rest], 2),
    )


@group((3, 4), (3, 4), (4, 3), (4, 3))
def complex_numbers(a, b, c, d):
    z, w = torch.complex(a, b), torch.complex(c, d)
    both = torch.cat([z, w.mT], 0).sum(0)
    return (
        (z.exp() * 1j).real + (z / (2 + w.mT)).imag + (1 / z).real + (z * 1j + a).imag + (1 - z).imag,
        (z / 2).real + (z - 1j * a).imag + z.square().real,
        torch.view_as_real(torch.einsum("ab,bc->ac", z, w)),
        (z @ w).abs() + functional.linear(z, w.mT, w[0]).real,
        functional.conv1d(z, w.mT[:, :, None].mT.reshape(4, 3, 1), w[:, 0]).imag,
        torch.view_as_real(both) + torch.view_as_real(z.cumsum(1))[:1],
        torch.view_as_real(torch.nn.functional.pad(z, (1, 0)).flip(1)),
        torch.stack([z, w.mT]).mean(0).imag,
    )
