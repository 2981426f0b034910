"""Small modules whose training and evaluation differ, or whose weights a table has in other shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Case:
    """A module with what it reads: images of 8 by 8, or tokens."""

    build: Callable[[], nn.Module]
    reads: str = "x: float B 1 8 8"

    @property
    def inputs(self) -> dict[str, str]:
        """What it reads, in words."""
        name, _, sizes = self.reads.partition(": ")
        return {name: sizes, "targets": "int B 6" if name == "tokens" else "int B"}

    def batch(self, seed: int) -> dict[str, Tensor]:
        """A drawn batch of four."""
        drawing = torch.Generator().manual_seed(seed)
        if "tokens" in self.inputs:
            tokens, targets = torch.randint(0, 11, (2, 4, 6), generator=drawing)
            return {"tokens": tokens, "targets": targets}
        x = torch.randn((4, 1, 8, 8), generator=drawing, dtype=torch.float64)
        return {"x": x, "targets": torch.randint(0, 5, (4,), generator=drawing)}


class Classifier(nn.Module):
    """Features of an image, then a linear layer and the loss."""

    def __init__(self, width: int, *features: nn.Module) -> None:
        super().__init__()
        self.features, self.head = nn.Sequential(*features), nn.Linear(width, 5)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.features(x).flatten(1)), targets)


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(functional.relu(self.norm(self.conv(x))))


class Residual(nn.Module):
    """Equal blocks of linear layers behind a norm over the batch, in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 5)
        self.norms = nn.ModuleList([nn.BatchNorm1d(8, momentum=None) for _ in range(3)])
        self.linears = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = x + torch.tanh(linear(norm(x)))
        return functional.cross_entropy(self.last(x), targets)


class Transformer(nn.Module):
    """Two blocks with learned positions, the head tied to the embedding, a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.positions = nn.Parameter(0.1 * torch.randn(1, 6, 8))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.blocks((self.embedding(tokens) + self.positions) * self.scale)
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Twice(nn.Module):
    """One norm at two places, and another value in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4, momentum=0.3), nn.Linear(4, 5)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.second(functional.relu(self.norm(self.first(x))))))
        x = x.mean((2, 3)) if self.training else x.amax((2, 3))
        return functional.cross_entropy(self.head(x), targets)


def _convolutions() -> nn.Module:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1)
    return Classifier(96, nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), conv, nn.ReLU())


def _grouped() -> nn.Module:
    norm, conv = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, stride=2, groups=4)
    return Classifier(72, nn.Conv2d(1, 8, 3, padding=1), norm, nn.GELU(), conv, nn.GroupNorm(4, 8), nn.SiLU())


def _depthwise() -> nn.Module:
    depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
    norm = nn.BatchNorm2d(4, affine=False, eps=1e-3)
    return Classifier(6, nn.Conv2d(1, 4, 1), depthwise, norm, nn.ReLU6(), nn.Conv2d(4, 6, 1), nn.AdaptiveAvgPool2d(1))


def _instances() -> nn.Module:
    tracked = nn.InstanceNorm2d(4, affine=True, track_running_stats=True, momentum=0.2)
    return Classifier(64, nn.Conv2d(1, 4, 3, stride=2, padding=1), tracked, nn.ReLU(), nn.InstanceNorm2d(4))


def _blocks() -> nn.Module:
    return Classifier(4, nn.Conv2d(1, 4, 3, padding=1), *(Block(4) for _ in range(3)), nn.AdaptiveAvgPool2d(1))


CASES = {
    "convolutions": Case(_convolutions),
    "grouped": Case(_grouped),
    "depthwise": Case(_depthwise),
    "instances": Case(_instances),
    "blocks": Case(_blocks),
    "residual": Case(Residual),
    "transformer": Case(Transformer, "tokens: int B 6"),
    "twice": Case(Twice),
}


def values(arrays: dict[str, Any]) -> dict[str, Tensor]:
    """Arrays as a state_dict has them."""
    return {name: torch.as_tensor(array) for name, array in arrays.items()}


class Sequence(nn.Module):
    """A recurrent network whose state at the beginning is an input, for a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor, h0: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.gru(x, h0)[0][:, -1]), targets)


class Stream(Sequence):
    """Such a network that returns its state."""

    def forward(self, x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        y, h = self.gru(x, h0)
        return self.head(y[:, -1]), h


class Begun(Sequence):
    """Such a network behind a norm over the batch, whose state begins at PyTorch's zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        return functional.cross_entropy(self.head(self.gru(self.norm(x))[0][:, -1]), targets)


class Attending(nn.Module):
    """Queries, keys and values of three equal norms: parts of one bias have gradients that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.RMSNorm(4), nn.Linear(4, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        y, _ = self.attention(self.norm(x), self.norm(x), self.norm(x), need_weights=False)
        return functional.cross_entropy(self.head((x + y)[:, -1]), targets)


class Average(nn.Module):
    """A module that keeps a moving average in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        y = self.linear(x)
        self.average.mul_(0.9).add_(0.1 * y.detach().mean(0))
        y = y - self.average
        return y if targets is None else functional.cross_entropy(y, targets)
