"""LoRA in plain torch: what the peft library does to a module, written out."""

import torch


class LowRank(torch.nn.Module):
    """A linear layer (torch's, or GPT-2's Conv1D) and a path of low rank: base(x) + B(A(x)) * scale."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        wide, narrow = base.weight.shape if isinstance(base, torch.nn.Linear) else base.weight.shape[::-1]
        self.base, self.scale = base, alpha / rank
        self.A = torch.nn.Linear(narrow, rank, bias=False, dtype=base.weight.dtype, device=base.weight.device)
        self.B = torch.nn.Linear(rank, wide, bias=False, dtype=base.weight.dtype, device=base.weight.device)

    @property
    def weight(self):
        """T5 looks at the type of its last projection's."""
        return self.base.weight

    def forward(self, x):
        return self.base(x) + self.B(self.A(x)) * self.scale


def adapt(module, ends, rank=8, alpha=16, layers=None):
    """Every parameter frozen; a path beside every module whose name has one of the ends, in the given layers."""
    module.requires_grad_(False)
    for name, own in list(module.named_modules()):
        number = next((int(part) for part in name.split(".") if part.isdigit()), None)
        if any(f".{name}".endswith(f".{end}") for end in ends) and (layers is None or number in layers):
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, LowRank(own, rank, alpha))
    return module


def blocks_of(module):
    """The blocks: the one list of modules."""
    return next(own for own in module.modules() if isinstance(own, torch.nn.ModuleList))


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
