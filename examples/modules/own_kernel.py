"""A module with an operation that PyTorch does not know, and the formula of its FLOPs."""

import torch
from torch import nn
from torch.utils.flop_counter import register_flop_formula


@torch.library.custom_op("examples::decay", mutates_args=())
def decay(x: torch.Tensor, rates: torch.Tensor) -> torch.Tensor:
    """A running sum along the length, of which the past decays."""
    state, states = torch.zeros_like(x[:, 0]), []
    for step in x.unbind(1):
        state = rates * state + step
        states.append(state)
    return torch.stack(states, 1)


@decay.register_fake
def _(x, rates):
    return torch.empty_like(x)


@torch.library.custom_op("examples::decay_backward", mutates_args=())
def decay_backward(
    gradient: torch.Tensor, states: torch.Tensor, rates: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `decay`: the same sum from the end, and its product with the states before."""
    of_x = decay(gradient.flip(1), rates).flip(1)
    return of_x, (of_x[:, 1:] * states[:, :-1]).sum((0, 1))


@decay_backward.register_fake
def _(gradient, states, rates):
    return torch.empty_like(gradient), torch.empty_like(rates)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(output, inputs[1])


decay.register_autograd(
    lambda ctx, gradient: decay_backward(gradient, *ctx.saved_tensors),
    setup_context=_keep,
)


@register_flop_formula(torch.ops.examples.decay)
def _(x, rates, *_, out_shape=None, **__):
    batch, length, width = x
    return 2 * batch * length * width


@register_flop_formula(torch.ops.examples.decay_backward)
def _(gradient, states, rates, *_, out_shape=None, **__):
    batch, length, width = gradient
    return 4 * batch * length * width


class Mixer(nn.Module):
    """Two projections around the running sum."""

    def __init__(self, width=64):
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.leave = nn.Linear(width, width)
        self.rates = nn.Parameter(torch.full((width,), 0.9))

    def forward(self, x):
        return self.leave(torch.ops.examples.decay(self.enter(x), self.rates))
