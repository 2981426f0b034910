"""A small decoder as one writes it in PyTorch: learncost cost examples/modules/transformer.py:build --B 8 --M 64."""

from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Causal attention and a feed-forward network, each on a normalized input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Model(nn.Module):
    """Blocks between an embedding and a head; with targets it gives the loss."""

    def __init__(self, vocabulary=96, width=64, heads=4, depth=6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def build():
    """The module, with its usual sizes."""
    return Model()


def inputs():
    """What forward takes: sequences B of M tokens."""
    return {"tokens": "int B M", "targets": "int B M"}
