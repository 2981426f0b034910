"""Modules of one's own, with examples of their inputs: what any module that is imported may do."""

import math

import torch
from torch import nn
from torch.nn import functional

CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


class Of(nn.Module):
    """What a function makes of a linear layer."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


def ids(*shape):
    return torch.randint(0, 50, shape)


class Attn(nn.Module):
    def __init__(self, C=12, H=3, T=16, flash=False):
        super().__init__()
        self.c_attn = nn.Linear(C, 3 * C)
        self.c_proj = nn.Linear(C, C)
        self.H = H
        self.flash = flash
        self.register_buffer("bias", torch.tril(torch.ones(T, T)).view(1, 1, T, T))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.H, C // self.H).transpose(1, 2)
        q = q.view(B, T, self.H, C // self.H).transpose(1, 2)
        v = v.view(B, T, self.H, C // self.H).transpose(1, 2)
        if self.flash:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            att = functional.softmax(att, dim=-1)
            y = att @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, C, H, flash):
        super().__init__()
        self.ln_1 = nn.LayerNorm(C)
        self.attn = Attn(C, H, flash=flash)
        self.ln_2 = nn.LayerNorm(C)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "gelu": nn.GELU(), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        m = self.mlp
        return x + m.c_proj(m.gelu(m.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, V=50, C=12, H=3, L=2, T=16, flash=True):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(V, C),
                "wpe": nn.Embedding(T, C),
                "h": nn.ModuleList([Block(C, H, flash) for _ in range(L)]),
                "ln_f": nn.LayerNorm(C),
            }
        )
        self.lm_head = nn.Linear(C, V, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        _B, T = idx.shape
        pos = torch.arange(0, T, dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for b in self.transformer.h:
            x = b(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        return logits, functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


S = {"idx": "B M", "targets": "B M"}


@case
def nanogpt_flash():
    return GPT(), (ids(2, 7), ids(2, 7)), S


@case
def nanogpt_manual():
    return GPT(flash=False), (ids(2, 7), ids(2, 7)), S


@case
def encoder():
    return (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True), 3).train(),
        (torch.randn(2, 7, 12),),
        {"src": "B M 12"},
    )


@case
def transformer():
    m = nn.Transformer(12, 3, 1, 1, 20, dropout=0.0, batch_first=True).train()
    return (
        m,
        {
            "src": torch.randn(2, 5, 12),
            "tgt": torch.randn(2, 7, 12),
            "tgt_mask": nn.Transformer.generate_square_subsequent_mask(7),
        },
        None,
    )


@case
def convnet():
    return (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, padding=1, groups=4),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(12, 5),
        ),
        (torch.randn(2, 3, 16, 16),),
        None,
    )


@case
def convnet_in_batches():
    return (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(8, 12, 3, padding=1, groups=4),
            nn.GroupNorm(3, 12),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(48, 5),
        ).eval(),
        (torch.randn(2, 3, 16, 16),),
        {"input": "B 3 16 16"},
    )


@case
def lstm():
    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.l(x)[0]

    return L(), (torch.randn(2, 3, 6),), None


@case
def state_space():
    class S(nn.Module):
        def __init__(self):
            super().__init__()
            self.A = nn.Parameter(torch.rand(4, 8))
            self.B = nn.Linear(4, 8)
            self.C = nn.Parameter(torch.randn(4, 8))

        def forward(self, x):
            h, outputs = torch.zeros(x.shape[0], 4, 8, dtype=x.dtype), []
            for place in range(x.shape[1]):
                h = h * torch.exp(-self.A) + x[:, place, :, None] * self.B(x[:, place])[:, None]
                outputs.append((h * self.C).sum(-1))
            return torch.stack(outputs, 1).pow(2).mean()

    return S(), (torch.randn(2, 3, 4),), None


@case
def latents():
    """Queries that are spread over the batch: their products are made for every row, as PyTorch does."""

    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(3, 8))
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.mixed = nn.Parameter(torch.randn(8, 8))

        def forward(self, x, hidden):
            latents = self.latents.expand(x.shape[0], -1, -1)
            y = self.attention(latents, x, x, key_padding_mask=hidden, need_weights=False)[0]
            return y + latents @ self.mixed

    return L(), (torch.randn(2, 5, 8), torch.arange(10).view(2, 5) == 4), None


@case
def smoothed_and_tied():
    class T(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(11, 6)
            self.h = nn.Linear(6, 11, bias=False)
            self.h.weight = self.e.weight

        def forward(self, x):
            y = self.e(x)
            y = y + y.relu().cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
            scores, answers = self.h(y)[:, :-1].reshape(-1, 11), x[:, 1:].reshape(-1)
            return functional.cross_entropy(scores, answers, label_smoothing=0.1, ignore_index=3)

    return T(), (torch.arange(10).view(2, 5) % 11,), None


@case
def weighted_losses():
    class W(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(6, 4)
            self.register_buffer("of_classes", torch.rand(4) + 0.2)

        def forward(self, x, classes, holds, shares):
            scores = self.l(x)
            weights = self.of_classes
            return (
                functional.cross_entropy(scores.transpose(1, 2), classes, weights, ignore_index=2)
                + functional.cross_entropy(scores.transpose(1, 2), classes, weights, reduction="none").sum()
                + functional.binary_cross_entropy_with_logits(scores, holds, pos_weight=weights)
                + functional.cross_entropy(scores[0], shares, weights, label_smoothing=0.1)
                + functional.cross_entropy(scores[1], shares, reduction="none").square().sum()
            )

    classes = torch.arange(15).view(3, 5) % 4
    return W(), (torch.randn(3, 5, 6), classes, torch.rand(3, 5, 4), torch.rand(5, 4).softmax(-1)), None


@case
def gru():
    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.GRU(6, 8)

        def forward(self, x):
            return self.l(x)[0]

    return L(), (torch.randn(3, 2, 6),), None


@case
def unet():
    class U(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(3, 8, 3, padding=1)
            self.g = nn.GroupNorm(2, 8)
            self.d = nn.Conv2d(8, 8, 3, stride=2, padding=1)
            self.q = nn.MultiheadAttention(8, 2, batch_first=True)
            self.u = nn.ConvTranspose2d(8, 8, 4, 2, 1)
            self.o = nn.Conv2d(16, 3, 1)

        def forward(self, x):
            h = functional.silu(self.g(self.a(x)))
            y = self.d(h)
            B, C, H, W = y.shape
            z = y.flatten(2).transpose(1, 2)
            z = z + self.q(z, z, z, need_weights=False)[0]
            y = z.transpose(1, 2).reshape(B, C, H, W)
            up = functional.interpolate(y, scale_factor=2, mode="nearest")
            y = self.u(y) + up
            return self.o(torch.cat([y, h], 1))

    return U(), (torch.randn(2, 3, 8, 8),), None


@case
def mamba_loop():
    class Mm(nn.Module):
        def __init__(self, d=6, n=4):
            super().__init__()
            self.i = nn.Linear(d, 2 * d)
            self.c = nn.Conv1d(d, d, 3, padding=2, groups=d)
            self.x = nn.Linear(d, 2 + 2 * n)
            self.dt = nn.Linear(2, d)
            self.A = nn.Parameter(torch.randn(d, n))
            self.D = nn.Parameter(torch.ones(d))
            self.n = n

        def forward(self, u):
            B, L, d = u.shape
            x, z = self.i(u).chunk(2, -1)
            x = functional.silu(self.c(x.transpose(1, 2))[..., :L]).transpose(1, 2)
            dt, Bm, C = self.x(x).split([2, self.n, self.n], -1)
            dt = functional.softplus(self.dt(dt))
            A = -torch.exp(self.A)
            h = torch.zeros(B, d, self.n)
            ys = []
            for t in range(L):
                h = torch.exp(dt[:, t, :, None] * A) * h + dt[:, t, :, None] * Bm[:, t, None, :] * x[:, t, :, None]
                ys.append((h * C[:, t, None, :]).sum(-1))
            y = torch.stack(ys, 1) + x * self.D
            return y * functional.silu(z)

    return Mm(), (torch.randn(2, 4, 6),), None


@case
def moe_dense():
    class E(nn.Module):
        def __init__(self):
            super().__init__()
            self.r = nn.Linear(6, 4)
            self.w = nn.Parameter(torch.randn(4, 6, 8))
            self.v = nn.Parameter(torch.randn(4, 8, 6))

        def forward(self, x):
            p = self.r(x).softmax(-1)
            w, i = p.topk(2, -1)
            W = self.w[i]
            V = self.v[i]
            h = functional.gelu(torch.einsum("bmd,bmtdf->bmtf", x, W))
            o = torch.einsum("bmtf,bmtfd->bmtd", h, V)
            return (o * w[..., None]).sum(-2)

    return E(), (torch.randn(2, 3, 6),), None


@case
def gcn():
    class G(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(5, 4)

        def forward(self, x, src, dst):
            h = self.l(x)
            m = h[src]
            return torch.zeros(x.shape[0], 4).index_add(0, dst, m)

    return G(), (torch.randn(6, 5), torch.randint(0, 6, (9,)), torch.randint(0, 6, (9,))), None


@case
def any_sides():
    """A U-Net whose sides stay open: what comes back from half of a side is as long as the side."""

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 4, 3, padding=1)
            self.down = nn.Conv2d(4, 4, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(4, 4, 4, 2, 1)
            self.last = nn.Conv2d(8, 3, 1)

        def forward(self, x):
            wide = functional.silu(self.first(x))
            return self.last(torch.cat([self.up(self.down(wide)), wide], 1))

    return Halves(), (torch.randn(2, 3, 8, 6),), {"x": "B 3 H W"}


@case
def self_loops():
    """Edges whose letter no axis of the table has: with those from each node to itself they are more."""

    class G(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(5, 4)

        def forward(self, x, edges):
            source, target = torch.cat([edges, torch.arange(x.shape[0]).expand(2, -1)], 1)
            return torch.zeros(x.shape[0], 4).index_add(0, target, self.l(x)[source])

    return G(), (torch.randn(6, 5), torch.randint(0, 6, (2, 9))), {"x": "N 5", "edges": "2 E"}


@case
def both_read_and_answers():
    """Tokens that are embedded and are answers too, of a head with weights of its own."""

    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(50, 6), nn.Linear(6, 50)

        def forward(self, tokens):
            return functional.cross_entropy(self.head(self.embedding(tokens)).flatten(0, 1), tokens.flatten())

    return Same(), (ids(2, 3),), None


@case
def chosen_tokens():
    """Experts that choose their tokens, and each point's nearest ones: reads at places of every row of a choice."""

    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.expert = nn.Linear(6, 3), nn.Parameter(torch.randn(3, 6, 6))

        def forward(self, x):
            score, place = self.router(x).softmax(-1).transpose(1, 2).topk(2, -1)
            rows = torch.gather(x[:, None].expand(-1, 3, -1, -1), 2, place[..., None].expand(-1, -1, -1, 6))
            near = torch.cdist(x, x).topk(2, largest=False).values
            return torch.einsum("bekd,edf->bekf", rows, self.expert) * score[..., None], near

    return Chosen(), (torch.randn(2, 5, 6, requires_grad=True),), {"x": "B 5 6"}


@case
def dropped_shares():
    """Attention that drops shares while it trains, beside one that drops none."""

    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(8, 8)

        def forward(self, x):
            q = self.q(x)[:, None]
            first = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            return functional.scaled_dot_product_attention(first, q, q, is_causal=True, dropout_p=0.5)

    return Drops(), (torch.randn(2, 3, 8),), {"x": "B M 8"}


@case
def loop_of_layers():
    """Layers and norms side by side in a loop whose own lines add what they make, and what stands behind it."""

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
            self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(4)])

        def forward(self, x):
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = x + functional.gelu(layer(norm(x)))
            return x.mean(1) * 2

    return Loop(), (torch.randn(2, 3, 8, requires_grad=True),), {"x": "B M 8"}


@case
def shared_by_turns():
    """Layers in a loop that all read a memory and a gain, which learn, and add to what the turn before made."""

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.gain = nn.Linear(6, 8), nn.Parameter(torch.rand(8))
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x, y):
            memory = self.encode(y)
            for layer in self.layers:
                scores = (layer(x) @ memory.transpose(1, 2)).softmax(-1)
                x = x + scores @ memory * self.gain
            return x.mean(1)

    inputs = (torch.randn(2, 3, 8), torch.randn(2, 4, 6))
    return Reads(), inputs, {"x": "B M 8", "y": "B N 6"}
