"""Weights that a module makes of its parameters, as quantization-aware training does: their gradients are updates."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from learncost.autodiff.derive import derive


class Aware(nn.Module):
    """A convolution and a linear layer, whose weights go through `quantize` on their way."""

    def __init__(self, quantize, layers=1):
        super().__init__()
        self.quantize = quantize
        self.stem = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1, bias=False) for _ in range(layers))
        self.head = nn.Linear(6 * 36, 5, bias=False)
        for part in (self.stem, *self.blocks, self.head):
            part.register_buffer("scale", torch.full((part.weight.shape[0],), 0.01))
            part.register_buffer("zero", torch.zeros(part.weight.shape[0], dtype=torch.int32))

    def forward(self, x, targets):
        for part in (self.stem, *self.blocks):
            x = torch.relu(functional.conv2d(x, self.quantize(part), padding=1))
        return functional.cross_entropy(functional.linear(x.flatten(1), self.quantize(self.head)), targets)


def channels(part):
    return torch.fake_quantize_per_channel_affine(part.weight, part.scale, part.zero, 0, -127, 127)


def straight_through(part):
    scale = part.scale.reshape(-1, *[1] * (part.weight.ndim - 1))
    codes = torch.clamp(torch.round(part.weight / scale), -127, 127) * scale
    return part.weight + (codes - part.weight).detach()


def scaled(part):
    return part.weight * part.scale.reshape(-1, *[1] * (part.weight.ndim - 1))


def counted(module):
    """MACCs of each macro-operation, as PyTorch's counter counts."""
    model = lc.from_module(module, inputs=(torch.randn(4, 2, 6, 6), torch.randint(0, 5, (4,))))
    found = Counter()
    for row in lc.cost(model, price_book="torch-flop-counter", optimizer="sgd").rows:
        found[row.macro_operation] += row.maccs
    return found


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("quantize", [channels, straight_through, scaled])
def test_products_for_gradients_of_weights_are_updates(quantize):
    """PyTorch's counter sees the gradients of all weights, and those that values have besides."""
    layers = 2
    module = Aware(quantize, layers)
    x, targets = torch.randn(4, 2, 6, 6), torch.randint(0, 5, (4,))
    loss = module(x, targets)
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    every = counter.get_total_flops()
    images, head = 4 * 36, 4 * 6 * 36 * 5
    values = layers * images * 6 * 6 * 9 + head  # the image of the stem has no gradient
    found = counted(module)
    assert found["backward"] == values
    assert found["weight_update"] * 2 == every - 2 * values
    assert found == counted(Aware(lambda part: part.weight, layers))


def test_a_batch_that_meets_weights_first_is_no_part_of_them():
    """A learned offset that is added to an image, and numbers that scale rows: what follows are gradients of values."""
    text = """offsets(X N targets share; P R W) -> loss
  targets: index of v
  share: share of targets
  constants: X N
  sizes: m=3 d=4 v=5
  H[m d] = X[m d] + P[m d]
  G[m d] = N[m] R[m d]
  U[m d] = H[m d] + G[m d]
  L[v] = U[m d] W[m d v]
  Q[v] = log_softmax[v](L[v])
  T[B] = Q[v=targets[B]]
  loss[] = T[B] share[B]"""
    phases = {line.name: line.meta.phase for line in derive(lc.layer(text)).step.lines}
    assert phases["dU"] == phases["dH"] == "backward"
    assert phases["dW"] == phases["dP"] == "weight_update"


def test_a_learned_query_that_is_spread_over_the_batch_is_a_value():
    text = """query(X targets share; p W) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: d=4 v=5
  E[B d] = ones()
  Q[B d] = E[B d] p[d]
  H[B d] = Q[B d] + X[B d]
  L[B v] = H[B d] W[d v]
  S[B v] = log_softmax[v](L[B v])
  T[B] = S[B v=targets[B]]
  loss[] = T[B] share[B]"""
    phases = {line.name: line.meta.phase for line in derive(lc.layer(text)).step.lines}
    assert phases["dH"] == phases["dQ"] == "backward"
    assert phases["dp"] == "weight_update"
