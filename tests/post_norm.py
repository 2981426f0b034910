"""The paper's transformer and PEPITA on it, written once more: torch, one-hot inputs, no tables.

Post-norm blocks, attention without biases, feed-forward with biases, gelu, untied head, sinusoidal positions. What
PEPITA compares and what it multiplies with is noted on the way, by the name of the weight.
"""

import math

import torch

EPSILON = 1e-5


class Pass:
    """One forward pass over one-hot (or modulated) inputs; `note[weight]` is a list of (compared, multiplied with)."""

    def __init__(self, weights, residual=False):
        self.weights = weights
        self.note = {}
        self.residual = residual  # compared after the residual sum

    def put(self, name, iteration, compared, before):
        self.note.setdefault(name, {})[iteration] = (compared, before)

    def of(self, name, iteration):
        return self.weights[name][iteration]

    def attention(self, prefix, iteration, queries, keys, causal=False, keep=None):
        q, k, v = (
            torch.einsum("bmd,dhk->bmhk", x, self.of(f"{prefix}.W{n}", iteration))
            for n, x in (("Q", queries), ("K", keys), ("V", keys))
        )
        for n, value, x in (("Q", q, queries), ("K", k, keys), ("V", v, keys)):
            self.put(f"{prefix}.W{n}", iteration, value, x)
        scores = torch.einsum("bmhk,bnhk->bhmn", q, k) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :], -math.inf)
        heads = torch.einsum("bhmn,bnhk->bmhk", scores.softmax(-1), v)
        out = torch.einsum("bmhk,hkd->bmd", heads, self.of(f"{prefix}.WO", iteration))
        self.put(f"{prefix}.WO", iteration, queries + out if self.residual else out, heads)
        return out

    def norm(self, prefix, iteration, x):
        z = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + EPSILON)
        y = z * self.of(f"{prefix}.g", iteration) + self.of(f"{prefix}.b", iteration)
        self.put(f"{prefix}.g", iteration, y, z)
        self.put(f"{prefix}.b", iteration, y, None)
        return y

    def feed_forward(self, prefix, iteration, x):
        u = x @ self.of(f"{prefix}.W1", iteration) + self.of(f"{prefix}.b1", iteration)
        hidden = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        out = hidden @ self.of(f"{prefix}.W2", iteration) + self.of(f"{prefix}.b2", iteration)
        self.put(f"{prefix}.W1", iteration, hidden, x)
        self.put(f"{prefix}.b1", iteration, hidden, None)
        compared = x + out if self.residual else out
        self.put(f"{prefix}.W2", iteration, compared, hidden)
        self.put(f"{prefix}.b2", iteration, compared, None)
        return out

    def embed(self, table, one_hot):
        out = one_hot @ self.weights[table]
        self.put(table, None, out, one_hot)
        positions, width = one_hot.shape[1], out.shape[-1]
        angles = torch.arange(positions)[:, None] / 10000.0 ** ((torch.arange(width) // 2).double() * 2 / width)
        even = torch.arange(width) % 2 == 0
        return out + torch.where(even, torch.sin(angles), torch.cos(angles))

    def one_sided(self, one_hot, causal, keep=None):
        x = self.embed("wte", one_hot)
        for iteration in range(len(self.weights["attn.WQ"])):
            x = self.norm("ln_1", iteration, x + self.attention("attn", iteration, x, x, causal, keep))
            x = self.norm("ln_2", iteration, x + self.feed_forward("mlp", iteration, x))
        return self.head(x)

    def two_sided(self, source, one_hot, source_keep=None, keep=None):
        c = self.embed("encoder.wte", source)
        for iteration in range(len(self.weights["encoder.attn.WQ"])):
            c = self.norm(
                "encoder.ln_1", iteration, c + self.attention("encoder.attn", iteration, c, c, False, source_keep)
            )
            c = self.norm("encoder.ln_2", iteration, c + self.feed_forward("encoder.mlp", iteration, c))
        x = self.embed("decoder.wte", one_hot)
        for iteration in range(len(self.weights["decoder.attn.WQ"])):
            x = self.norm("decoder.ln_1", iteration, x + self.attention("decoder.attn", iteration, x, x, True, keep))
            x = self.norm(
                "decoder.ln_2", iteration, x + self.attention("decoder.cross", iteration, x, c, False, source_keep)
            )
            x = self.norm("decoder.ln_3", iteration, x + self.feed_forward("decoder.mlp", iteration, x))
        return self.head(x)

    def head(self, x):
        self.note["head.W"] = {None: (None, x)}
        return x @ self.weights["head.W"]


def one_hot(numbers, vocabulary):
    return torch.nn.functional.one_hot(torch.as_tensor(numbers), vocabulary).double()


def error(logits, targets):
    """e = s - onehot(target), rows without a target zero; and how many targets there are."""
    targets = torch.as_tensor(targets)
    is_target = targets >= 0
    e = logits.softmax(-1) - one_hot(targets.clamp(min=0), logits.shape[-1])
    return e * is_target[..., None], int(is_target.sum())


def projected(source, e, keep=None):
    """Equation (48): softmax(T_enc e^T / sqrt(voc)) e; a padded row of e takes no part."""
    scores = source @ e.transpose(1, 2) / math.sqrt(e.shape[-1])
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None, :], -math.inf)
    return scores.softmax(-1) @ e


def outer(before, delta):
    """pre^T delta over all rows; with no pre, the sum of the rows."""
    delta = delta.flatten(0, 1)
    if before is None:
        return delta.sum(0)
    return torch.tensordot(before.flatten(0, 1), delta, ([0], [0]))


def updates(weights, first, second, e, count, stable=False):
    """Every weight's update from the notes of two passes; `stable` multiplies with values of the standard one."""
    stacked = {}
    for name, iterations in first.note.items():
        parts = []
        for iteration, (a, before) in iterations.items():
            modulated, before_modulated = second.note[name][iteration]
            before = before if stable else before_modulated
            if name == "head.W":
                parts.append(outer(before, e) / count)
            elif name.endswith(".g"):
                parts.append(((a - modulated) * before).flatten(0, 1).sum(0) / count)
            else:
                parts.append(outer(before, a - modulated) / count)
        stacked[name] = parts[0] if iterations.keys() == {None} else torch.stack(parts)
    return stacked
