"""A module that decides on values how much it computes: one run of it can be counted."""

from torch import nn


class Adaptive(nn.Module):
    """A layer that runs again until its output is small."""

    def __init__(self, width=16, most=4):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.most = most

    def forward(self, x):
        for _ in range(self.most):
            x = self.layer(x).tanh()
            if x.abs().mean() < 0.1:
                break
        return x
