"""The memory of PyTorch's operators in a module's own step, one by one, beside what its allocator gives.

Quick tests have a sample; `-m slow` has all of them, in both types.
"""

import imported_peaks as peaks
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it

from allocator import apart
from sampling import sampled

B, M, W = 8, 64, 128
CLASSES = torch.randint(0, W, (B, M))
TRUE = torch.rand(B, M, W) > 0.5
PLACES = torch.randint(0, M, (B, M, W))

SEQUENCES = {
    "mse": lambda x: F.mse_loss(x, x.detach() * 0.5),
    "mse sum": lambda x: F.mse_loss(x, x.detach() * 0.5, reduction="sum"),
    "mse none": lambda x: F.mse_loss(x, x.detach() * 0.5, reduction="none"),
    "l1": lambda x: F.l1_loss(x, x.detach() * 0.5),
    "smooth": lambda x: F.smooth_l1_loss(x, x.detach() * 0.5),
    "huber": lambda x: F.huber_loss(x, x.detach() * 0.5),
    "huber sum": lambda x: F.huber_loss(x, x.detach() * 0.5, reduction="sum"),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), TRUE.to(x)),
    "bcel": lambda x: F.binary_cross_entropy_with_logits(x, TRUE.to(x)),
    "bce sum": lambda x: F.binary_cross_entropy(x.sigmoid(), TRUE.to(x), reduction="sum"),
    "ce": lambda x: F.cross_entropy(x.flatten(0, 1), CLASSES.flatten()),
    "ce ls": lambda x: F.cross_entropy(x.flatten(0, 1), CLASSES.flatten(), label_smoothing=0.1),
    "ce prob": lambda x: F.cross_entropy(x.flatten(0, 1), x.detach().softmax(-1).flatten(0, 1)),
    "nll": lambda x: F.nll_loss(x.log_softmax(-1).flatten(0, 1), CLASSES.flatten()),
    "ce w": lambda x: F.cross_entropy(x.flatten(0, 1), CLASSES.flatten(), weight=torch.ones(W).to(x)),
    "kl": lambda x: F.kl_div(x.log_softmax(-1), x.detach().softmax(-1), reduction="batchmean"),
    "softmargin": lambda x: F.soft_margin_loss(x, TRUE.to(x) * 2 - 1),
    "multimargin": lambda x: F.multi_margin_loss(x.flatten(0, 1), CLASSES.flatten()),
    "mlsm": lambda x: F.multilabel_soft_margin_loss(x.flatten(0, 1), TRUE.flatten(0, 1).to(x)),
    "cosemb": lambda x: F.cosine_embedding_loss(x[:, 0], x[:, 1], torch.ones(B)),
    "triplet": lambda x: F.triplet_margin_loss(x[:, 0], x[:, 1], x[:, 2]),
    "poisson": lambda x: F.poisson_nll_loss(x, x.detach().exp()),
    "gaussnll": lambda x: F.gaussian_nll_loss(x, x.detach(), x.exp()),
    "hinge": lambda x: F.hinge_embedding_loss(x, TRUE.to(x) * 2 - 1),
    "margin": lambda x: F.margin_ranking_loss(x, -x, TRUE.to(x) * 2 - 1),
    "relu6": F.relu6,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "leaky": F.leaky_relu,
    "hardswish": F.hardswish,
    "hardsig": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "mish": F.mish,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "logsig": F.logsigmoid,
    "gelu t": lambda x: F.gelu(x, approximate="tanh"),
    "glu": F.glu,
    "prelu": lambda x: F.prelu(x, torch.tensor(0.2).to(x)),
    "softmax": lambda x: x.softmax(-1),
    "softmax1": lambda x: x.softmax(1),
    "softmin": lambda x: F.softmin(x, -1),
    "logsoftmax": lambda x: x.log_softmax(1),
    "lse": lambda x: x.logsumexp(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cummax": lambda x: x.cummax(1)[0],
    "prod": lambda x: x.prod(1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(-1),
    "norm": lambda x: x.norm(dim=-1),
    "norm1": lambda x: x.norm(1, dim=-1),
    "norm3": lambda x: x.norm(3, dim=-1),
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(1)[0],
    "median": lambda x: x.median(1)[0],
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(4, -1)[0],
    "kth": lambda x: x.kthvalue(3, 1)[0],
    "mean1": lambda x: x.mean(1),
    "sum1": lambda x: x.sum((0, 1)),
    "aminmax": lambda x: sum(x.aminmax(dim=-1)),
    "gather": lambda x: x.gather(1, PLACES),
    "index": lambda x: x[:, [1, 5, 5, 2]],
    "index2": lambda x: x[torch.arange(8)[:, None], CLASSES % M],
    "isel": lambda x: x.index_select(1, torch.tensor([1, 2, 2])),
    "take_along": lambda x: x.take_along_dim(PLACES, 1),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, PLACES, x),
    "scadd": lambda x: torch.zeros_like(x).scatter_add(1, PLACES, x),
    "iadd": lambda x: torch.zeros_like(x).index_add(1, CLASSES[0] % M, x),
    "icopy": lambda x: torch.zeros_like(x).index_copy(1, torch.randperm(M), x),
    "iput": lambda x: torch.zeros_like(x).index_put((torch.arange(8)[:, None], CLASSES % M), x, accumulate=True),
    "masked": lambda x: x.masked_fill(TRUE, 0.0),
    "mscatter": lambda x: torch.where(TRUE, x, 0.0),
    "tril": lambda x: x.tril(),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "rint": lambda x: x.repeat_interleave(2, 1),
    "expand": lambda x: x[:, :1].expand(B, M, W) * x,
    "pad": lambda x: F.pad(x, (0, 0, 1, 0)),
    "padr": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "padc": lambda x: F.pad(x, (2, 2), mode="circular"),
    "padrep": lambda x: F.pad(x, (2, 2), mode="replicate"),
    "unfold": lambda x: x.unfold(1, 4, 2),
    "diag": lambda x: x.diagonal(0, 1, 2),
    "chunk": lambda x: x.chunk(2, -1)[0],
    "stack": lambda x: torch.stack([x, x * 2]),
    "cat": lambda x: torch.cat([x, x.exp()], 1),
    "T": lambda x: x.mT.contiguous(),
    "slice": lambda x: x[:, ::2],
    "select": lambda x: x[:, 3],
    "unbind": lambda x: sum(x.unbind(1)),
    "split": lambda x: x.split([32, 96], -1)[1].exp(),
    "exp": torch.exp,
    "log": lambda x: (x.abs() + 1).log(),
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "atan": torch.atan,
    "erf": torch.erf,
    "erfinv": lambda x: (x * 0.1).erfinv(),
    "lgamma": lambda x: (x.abs() + 1).lgamma(),
    "digamma": lambda x: (x.abs() + 1).digamma(),
    "sqrt": lambda x: (x * x + 1).sqrt(),
    "rsqrt": lambda x: (x * x + 1).rsqrt(),
    "pow3": lambda x: x**3,
    "powt": lambda x: (x * x + 1) ** x,
    "2pow": lambda x: 2**x,
    "recip": lambda x: 1 / (x * x + 1),
    "div": lambda x: x / (x * x + 1),
    "abs": torch.abs,
    "sign": lambda x: x.sign() * x,
    "clamp": lambda x: x.clamp(-1, 1),
    "max2": lambda x: torch.maximum(x, x * 2),
    "fmod": lambda x: x.fmod(2),
    "rem": lambda x: x.remainder(2),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "addcdiv": lambda x: torch.addcdiv(x, x, x * x + 1),
    "hypot": lambda x: torch.hypot(x, x + 1),
    "atan2": lambda x: torch.atan2(x, x * x + 1),
    "xlogy": lambda x: torch.xlogy(x, x * x + 1),
    "logaddexp": lambda x: torch.logaddexp(x, 2 * x),
    "logit": lambda x: x.sigmoid().logit(1e-6),
    "sinc": torch.sinc,
    "expm1": torch.expm1,
    "log1p": lambda x: (x * x).log1p(),
    "round": lambda x: x.round() + x,
    "frac": torch.frac,
    "heaviside": lambda x: x * (x > 0),
    "matmul": lambda x: x @ x.mT,
    "einsum": lambda x: torch.einsum("bmd,bnd->bmn", x, x),
    "bmm": lambda x: torch.bmm(x, x.mT),
    "baddbmm": lambda x: torch.baddbmm(x @ x.mT, x, x.mT),
    "cdist": lambda x: torch.cdist(x, x[:, :8]),
    "cdist2": lambda x: torch.cdist(x, x[:, :40]),
    "pdist": lambda x: F.pdist(x[0]),
    "cos_sim": lambda x: F.cosine_similarity(x, x.flip(1), dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "outer": lambda x: torch.outer(x[0, 0], x[0, 1]),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(8, W, W).to(x)),
    "kron": lambda x: torch.kron(x[0, :4, :4], x[1, :8, :8]),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 3:6]),
    "mv": lambda x: x @ x[0, 0],
    "dot": lambda x: x[0, 0].dot(x[0, 1]),
    "ln": lambda x: F.layer_norm(x, (W,)),
    "rms": lambda x: F.rms_norm(x, (W,)),
    "ln2": lambda x: F.layer_norm(x, (M, W)),
    "gn": lambda x: F.group_norm(x, 4),
    "in1": lambda x: F.instance_norm(x),
    "bn1": lambda x: F.batch_norm(x, None, None, training=True),
    "lrn": lambda x: F.local_response_norm(x, 3),
    "dropout": lambda x: F.dropout(x, 0.1),
    "adrop": lambda x: F.alpha_dropout(x, 0.1, True),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "sdpa": lambda x: F.scaled_dot_product_attention(x, x, x),
    "sdpa mask": lambda x: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], attn_mask=torch.ones(M, M).tril().bool()
    ),
    "sdpa drop": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.1),
    "conv1": lambda x: F.conv1d(x, torch.ones(M, M, 3).to(x)),
    "avg1": lambda x: F.avg_pool1d(x, 3),
    "max1": lambda x: F.max_pool1d(x, 3),
    "ada1": lambda x: F.adaptive_avg_pool1d(x, 7),
    "adam1": lambda x: F.adaptive_max_pool1d(x, 7),
    "lp1": lambda x: F.lp_pool1d(x, 2, 3),
    "int1": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "complex": lambda x: (
        torch.view_as_real(
            torch.view_as_complex(x.reshape(B, M, -1, 2)) * torch.polar(torch.ones(M, 64), torch.ones(M, 64))
        )
        if x.dtype == torch.float32
        else x
    ),
    "fft": lambda x: torch.fft.rfft(x.float()).abs(),
    "ste": lambda x: x + (x.round() - x).detach(),
    "ckpt": lambda x: torch.utils.checkpoint.checkpoint(lambda y: y.exp().sin(), x, use_reentrant=False),
    "one_hot": lambda x: x * F.one_hot(CLASSES, W),
    "embbag": lambda x: F.embedding_bag(CLASSES % M, x[0]),
    "embbagmean": lambda x: F.embedding_bag(CLASSES % M, x[0], mode="mean"),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "trapz": lambda x: torch.trapezoid(x),
    "diff": lambda x: x.diff(dim=1),
    "cov": lambda x: torch.cov(x[0]),
    "quantile": lambda x: x.float().quantile(0.5, dim=1),
    "nansum": lambda x: x.nansum(1),
    "T softmax": lambda x: x.mT.softmax(-1),
    "T logsoftmax": lambda x: x.mT.log_softmax(-1),
    "T ln": lambda x: F.layer_norm(x.mT, (M,)),
    "T linear": lambda x: F.linear(x.mT, torch.ones(96, M).to(x), torch.ones(96).to(x)).exp(),
    "rows linear": lambda x: F.linear(x[:, :50], torch.ones(96, W).to(x), torch.ones(96).to(x)).exp(),
    "T padr": lambda x: F.pad(x.mT, (1, 1), mode="reflect"),
    "T isel": lambda x: x.mT.index_select(1, torch.tensor([1, 2, 2])),
    "T logsig": lambda x: F.logsigmoid(x.mT),
    "searchs": lambda x: x * torch.bucketize(x.detach(), torch.linspace(-1, 1, 9).to(x)),
}
"""Of what a linear layer makes, of 8 sequences of 64 rows of 128 numbers."""

IMAGES = {
    "image bn": lambda x: F.batch_norm(x, None, None, training=True),
    "image in": lambda x: F.instance_norm(x),
    "image in aff": lambda x: F.instance_norm(x, weight=torch.ones(16).to(x), bias=torch.ones(16).to(x)),
    "image gn": lambda x: F.group_norm(x, 4),
    "image lrn": lambda x: F.local_response_norm(x, 5),
    "image max": lambda x: F.max_pool2d(x, 2),
    "image max31": lambda x: F.max_pool2d(x, 3, 1, 1),
    "image avg": lambda x: F.avg_pool2d(x, 2),
    "image avg3": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "image ada": lambda x: F.adaptive_avg_pool2d(x, 7),
    "image ada1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "image adam": lambda x: F.adaptive_max_pool2d(x, 7),
    "image lp": lambda x: F.lp_pool2d(x, 2, 2),
    "image near": lambda x: F.interpolate(x, scale_factor=2),
    "image small bil": lambda x: F.interpolate(x[..., ::2, ::2].exp(), scale_factor=2, mode="bilinear"),
    "image small near": lambda x: F.interpolate(x[..., ::2, ::2].exp(), scale_factor=2),
    "image T max": lambda x: F.max_pool2d(x.mT, 2),
    "image bil": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "image bic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "image area": lambda x: F.interpolate(x, size=16, mode="area"),
    "image aa": lambda x: F.interpolate(x, size=16, mode="bilinear", antialias=True),
    "image ps": lambda x: F.pixel_shuffle(x, 2),
    "image pu": lambda x: F.pixel_unshuffle(x, 2),
    "image cs": lambda x: F.channel_shuffle(x, 4),
    "image unf": lambda x: F.unfold(x, 3, padding=1),
    "image fold": lambda x: F.fold(F.unfold(x, 3, padding=1), (64, 64), 3, padding=1),
    "image grid": lambda x: F.grid_sample(x, torch.rand(8, 20, 20, 2).to(x), align_corners=False),
    "image affine": lambda x: F.grid_sample(
        x,
        F.affine_grid(torch.eye(2, 3).expand(8, 2, 3).to(x), [8, 16, 32, 32], align_corners=False),
        align_corners=False,
    ),
    "image conv": lambda x: F.conv2d(x, torch.ones(8, 16, 3, 3).to(x)),
    "image dw": lambda x: F.conv2d(x, torch.ones(16, 1, 3, 3).to(x), groups=16, padding=1),
    "image tconv": lambda x: F.conv_transpose2d(x, torch.ones(16, 8, 2, 2).to(x), stride=2),
    "image pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "image padr": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "image padrep": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "image padc": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "image drop2": lambda x: F.dropout2d(x, 0.2),
    "image perm": lambda x: x.permute(0, 2, 3, 1).flatten(1, 2) @ torch.ones(16, 8).to(x),
    "image cl": lambda x: x.contiguous(memory_format=torch.channels_last) * 2,
    "image prelu": lambda x: F.prelu(x, torch.ones(16).to(x)),
    "image nll2": lambda x: F.cross_entropy(x, torch.randint(0, 16, (8, 64, 64))),
    "image maxun": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "image glu": lambda x: F.glu(x, 1),
    "image msel": lambda x: F.mse_loss(x, x.detach()),
    "image softmax2": lambda x: x.softmax(1),
    "image mean": lambda x: x.mean((2, 3)),
    "image amax": lambda x: x.amax((2, 3)),
    "image sm2d": lambda x: F.softmax(x.flatten(2), -1),
}
"""Of what a convolution makes, of 8 images of 16 channels of 64 by 64 pixels."""

OF_VALUES = {
    "cumprod": "asks whether a factor is zero",
    "prod": "asks whether a factor is zero",
    "gaussnll": "asks whether a variance is negative: its module is not run, as the answer says, and is 9.3 % too high",
}
"""Operators that go another way by their values, which a step without values does not have."""
NOT_IN_BF16 = {"multimargin", "pdist", "image aa", "image lrn"}
"""Operators that PyTorch has no kernels of for bf16 on a processor."""


class After(nn.Module):
    """An operator of what a layer makes."""

    def __init__(self, layer, operator):
        super().__init__()
        self.layer, self.operator = layer, operator

    def forward(self, x):
        return self.operator(self.layer(x))


def _case(name):
    if name in SEQUENCES:
        return (lambda: After(nn.Linear(W, W), SEQUENCES[name])), lambda dtype: {"x": torch.randn(B, M, W, dtype=dtype)}
    return (lambda: After(nn.Conv2d(3, 16, 3, padding=1), IMAGES[name])), lambda dtype: {
        "x": torch.randn(B, 3, 64, 64, dtype=dtype)
    }


CASES = [
    (name, dtype)
    for name in (*SEQUENCES, *IMAGES)
    for dtype in ("fp32", "bf16")
    if name not in OF_VALUES and not (dtype == "bf16" and name in NOT_IN_BF16)
]


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(("name", "dtype"), sampled(CASES, 110, lambda case: case[1]))
def test_an_operator_takes_what_the_allocator_gives(name, dtype):
    torch.manual_seed(0)
    case = _case(name)
    _, measured = apart(lambda: peaks.train(*case, peaks.DTYPES[dtype]))
    assert peaks.predicted(*case, dtype) == pytest.approx(measured + _held(name), rel=0.01)


def _held(name):
    """The bytes of the constants that an operator reads, which are there before the profiler begins."""
    code = getattr((SEQUENCES | IMAGES)[name], "__code__", None)
    names = code.co_names if code else ()
    return sum(globals()[each].nbytes for each in ("CLASSES", "TRUE", "PLACES") if each in names)
