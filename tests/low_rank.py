"""LoRA in plain torch: what the peft library does to a module, written out."""

import torch


class LowRank(torch.nn.Module):
    """A linear layer (torch's, or GPT-2's Conv1D) and a path of low rank: base(x) + B(A(dropout(x))) * scale."""

    def __init__(self, base, rank, alpha, dropout):
        super().__init__()
        plain = isinstance(base, torch.nn.Linear | Coded)
        wide, narrow = base.weight.shape if plain else base.weight.shape[::-1]
        self.base, self.scale = base, alpha / rank
        self.dropout = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()
        device = None if isinstance(base, Coded) else base.weight.device
        self.A = torch.nn.Linear(narrow, rank, bias=False, dtype=base.weight.dtype, device=device)
        self.B = torch.nn.Linear(rank, wide, bias=False, dtype=base.weight.dtype, device=device)

    @property
    def weight(self):
        """T5 looks at the type of its last projection's."""
        return self.base.weight

    @property
    def bias(self):
        """Mamba-2 looks at its last projection's."""
        return self.base.bias

    def forward(self, x):
        result = self.base(x)
        if isinstance(self.base, Coded):
            result = result.clone()  # as peft does
        return result + self.B(self.A(self.dropout(x))) * self.scale


class Decomposed(LowRank):
    """DoRA as peft 0.21.2 computes it (tuners/lora/dora.py): magnitudes of the adapted weight's columns, whose norm
    is detached; the weight of the path is made by products with an identity."""

    def __init__(self, *given):
        super().__init__(*given)
        coded = isinstance(self.base, Coded)
        size = self.B.weight.shape[0]
        norm = torch.ones(size) if coded else self.norm_of(self._whole(), self.B.weight @ self.A.weight)
        self.M = torch.nn.Parameter(norm.detach().to(self.B.weight.dtype))

    def _whole(self):
        if isinstance(self.base, Coded):
            return torch.empty(self.base.weight.shape, dtype=torch.bfloat16).normal_()
        return self.base.weight if isinstance(self.base, torch.nn.Linear) else self.base.weight.T

    def norm_of(self, weight, path):
        weight = weight + self.scale * path
        return torch.linalg.norm(weight, dim=1).to(weight.dtype)

    def decomposed(self, x, base_result):
        identity = torch.eye(self.A.weight.shape[1], dtype=self.A.weight.dtype)
        path = self.B(self.A(identity)).T.to(x.dtype)
        weight = self._whole().to(x.dtype)
        norm = self.norm_of(weight, path.detach()).detach()
        scale = (self.M / norm).view(1, -1)
        result = self.B(self.A(x))
        if base_result is None:
            base_result = torch.nn.functional.linear(x, weight)
        elif self.base.bias is not None:
            base_result = base_result - self.base.bias
        return (scale - 1) * base_result + scale * result * self.scale

    def forward(self, x):
        result = self.base(x)
        if isinstance(self.base, Coded):
            result = result.clone()
        dtype = result.dtype
        x = x.to(self.A.weight.dtype)
        if isinstance(self.dropout, torch.nn.Identity):
            result = result + self.decomposed(x, result)
        else:
            result = result + self.decomposed(self.dropout(x), None)
        return result.to(dtype)


def adapt(module, ends, rank=8, alpha=16, layers=None, dropout=0.0, path=LowRank):
    """Every parameter frozen; a path beside every module whose name has one of the ends, in the given layers."""
    module.requires_grad_(False)
    for name, submodule in list(module.named_modules()):
        number = next((int(part) for part in name.split(".") if part.isdigit()), None)
        if any(f".{name}".endswith(f".{end}") for end in ends) and (layers is None or number in layers):
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, path(submodule, rank, alpha, dropout))
    return module


class Factors(torch.nn.Module):
    """The low-rank path of experts' weights, merged into a copy of them as peft 0.21.2 does (`_LoraFactorsProxy`)."""

    def __init__(self, weight, rank, scale):
        super().__init__()
        experts, rows, columns = weight.shape
        self.A, self.B = (
            torch.nn.Parameter(torch.randn(experts, *shape, dtype=weight.dtype) / 10)
            for shape in ((rows, rank), (rank, columns))
        )
        self.scale = scale

    def forward(self, weight):
        return torch.baddbmm(weight, self.A, self.B, alpha=self.scale)


def adapt_experts(module, names=("gate_up_proj", "down_proj"), rank=8, alpha=16):
    """Every parameter frozen but a path beside the experts' weights."""
    module.requires_grad_(False)
    for submodule in [
        each for each in module.modules() if isinstance(getattr(each, names[0], None), torch.nn.Parameter)
    ]:
        for name in names:
            path = Factors(getattr(submodule, name), rank, alpha / rank)
            torch.nn.utils.parametrize.register_parametrization(submodule, name, path, unsafe=True)
    return module


class _Coded(torch.autograd.Function):
    """bitsandbytes' `MatMul4Bit`: the weight is made of its codes in both directions; only codes are held."""

    @staticmethod
    def forward(own, x, codes, bias, shape):
        own.codes, own.shape, own.dtype = codes, shape, x.dtype
        return torch.nn.functional.linear(x, torch.empty(shape, dtype=x.dtype).normal_(), bias)

    @staticmethod
    def backward(own, gradient):
        return gradient @ torch.empty(own.shape, dtype=own.dtype).normal_(), None, None, None


class Coded(torch.nn.Module):
    """A linear layer whose frozen weight is stored in so many bytes of codes and scales; their numbers are drawn.

    As `bitsandbytes.nn.Linear4bit` of bf16: its operand is cast to that, and its result to the operand's type.
    """

    def __init__(self, base, taken):
        super().__init__()
        self.weight, self.bias = torch.empty_like(base.weight, device="meta"), base.bias
        self.codes = torch.nn.Parameter(torch.empty(taken, dtype=torch.uint8), requires_grad=False)

    def forward(self, x):
        cast = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
        return _Coded.apply(x.to(cast), self.codes, self.bias, self.weight.shape).to(x.dtype)


def coded(module):
    """Every linear layer inside of blocks in nf4 by blocks of 64, with scales of 8 bits by blocks of 256 (QLoRA)."""
    for block in blocks_of(module):
        for name, submodule in list(block.named_modules()):
            if isinstance(submodule, torch.nn.Linear):
                parent, _, last = name.rpartition(".")
                setattr(
                    block.get_submodule(parent),
                    last,
                    Coded(submodule, int(submodule.weight.numel() * (1 / 2 + 1 / 64 + 4 / 64 / 256))),
                )
    return module


def blocks_of(module):
    """The blocks: the one list of modules."""
    return next(module for module in module.modules() if isinstance(module, torch.nn.ModuleList))


def learn_only(module, chosen):
    """Only the parameters that `chosen` takes, by their name, learn."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(chosen(name))
    return module


def parameters_of(module):
    """How many there are, and how many learn: an untied BERT has a bias that nothing reads, so it has no gradient."""
    names = dict(module.named_parameters())
    learning = {name: parameter.numel() for name, parameter in names.items() if parameter.requires_grad}
    if any(name.startswith("cls.predictions.decoder.") and name.endswith("bias") for name in names):
        learning.pop("cls.predictions.bias", None)
    return sum(parameter.numel() for parameter in names.values()), sum(learning.values())
