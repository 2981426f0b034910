"""Losses that are computed together with the head, in plain torch: what those of trainers allocate."""

from types import SimpleNamespace

import torch
from torch.nn.functional import cross_entropy


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradients of the head's operands are computed forward; logits, probabilities and their gradients share one
    buffer, as in Liger's Triton kernel."""

    @staticmethod
    def forward(own, hidden, weight, bias, targets):
        (rows, features), (classes, _) = hidden.shape, weight.shape
        chunks = -(-classes // features)
        tokens = 1
        while tokens < -(-rows // chunks):
            tokens *= 2
        tokens = min(tokens, rows)
        to_hidden = torch.zeros_like(hidden)
        to_weight = torch.zeros_like(weight) if weight.requires_grad else None
        to_bias = torch.zeros_like(bias) if bias is not None and bias.requires_grad else None
        buffer = hidden.new_empty(tokens, classes)
        loss = torch.zeros((), dtype=torch.float32)
        for start in range(0, rows, tokens):
            part, wanted = hidden[start : start + tokens], targets[start : start + tokens]
            logits = buffer[: len(part)]
            torch.mm(part, weight.t(), out=logits)
            if bias is not None:
                logits += bias
            torch.softmax(logits, -1, out=logits)
            picked = logits.gather(1, wanted[:, None])
            loss -= picked.float().log().sum()
            logits.scatter_(1, wanted[:, None], picked - 1)
            logits /= rows
            torch.mm(logits, weight, out=to_hidden[start : start + tokens])
            if to_weight is not None:
                torch.addmm(to_weight, logits.t(), part, out=to_weight)
            if to_bias is not None:
                to_bias += logits.sum(0)
        own.save_for_backward(to_hidden, to_weight, to_bias)
        return loss / rows

    @staticmethod
    def backward(own, _):
        return *own.saved_tensors, None


class _CutCrossEntropy(torch.autograd.Function):
    """A logsumexp of every token is saved next to the operands: scores are those of one token at a time."""

    @staticmethod
    def forward(own, hidden, weight, bias, targets):
        sums = torch.empty(len(hidden), dtype=torch.float32)
        loss = torch.zeros((), dtype=torch.float32)
        for row, target in enumerate(targets):
            scores = torch.nn.functional.linear(hidden[row], weight, bias).float()
            sums[row] = scores.logsumexp(-1)
            loss += sums[row] - scores[target]
        own.save_for_backward(hidden, weight, bias, sums, targets)
        return loss / len(targets)

    @staticmethod
    def backward(own, _):
        hidden, weight, bias, sums, targets = own.saved_tensors
        to_hidden = torch.zeros_like(hidden)
        to_weight = torch.zeros_like(weight) if weight.requires_grad else None
        to_bias = torch.zeros_like(bias) if bias is not None and bias.requires_grad else None
        for row, target in enumerate(targets):
            shares = (torch.nn.functional.linear(hidden[row], weight, bias).float() - sums[row]).exp()
            shares[target] -= 1
            shares = (shares / len(targets)).to(hidden.dtype)
            to_hidden[row] = shares @ weight
            if to_weight is not None:
                to_weight.addr_(shares, hidden[row])
            if to_bias is not None:
                to_bias += shares
        return to_hidden, to_weight, to_bias, None


class _FlashCrossEntropy(torch.autograd.Function):
    """Scores are saved, and their gradients are new; losses, logsumexps and z-losses are numbers of a token."""

    @staticmethod
    def forward(own, scores, targets):
        losses, sums, _ = (torch.empty(len(scores), dtype=torch.float32) for _ in range(3))
        for row, target in enumerate(targets):
            sums[row] = scores[row].float().logsumexp(-1)
            losses[row] = sums[row] - scores[row, target]
        own.save_for_backward(scores, sums, targets)
        return losses

    @staticmethod
    def backward(own, gradients):
        scores, sums, targets = own.saved_tensors
        to_scores = torch.empty_like(scores)
        for row, target in enumerate(targets):
            to_scores[row] = (scores[row].float() - sums[row]).exp()
            to_scores[row, target] -= 1
            to_scores[row] *= gradients[row]
        return to_scores, None


def _flat(hidden):
    return hidden.reshape(-1, hidden.shape[-1])


def _liger(hidden, head, labels, _):
    return _LinearCrossEntropy.apply(_flat(hidden), head.weight, head.bias, labels.reshape(-1))


def _cut(hidden, head, labels, _):
    return _CutCrossEntropy.apply(_flat(hidden), head.weight, head.bias, labels.reshape(-1))


def _torchtune(hidden, head, labels, _):
    """The tokens that count are selected, and the chunks of these have scores in float."""
    counts = torch.where(labels.reshape(-1) != -100)[0]
    rows, wanted = _flat(hidden).index_select(0, counts), labels.reshape(-1).index_select(0, counts)
    total = torch.zeros(())
    for chunk, targets in zip(rows.tensor_split(8), wanted.tensor_split(8), strict=True):
        scores = head(chunk)
        total += cross_entropy(scores.float(), targets, reduction="sum")
    return total / len(counts)


def _litgpt(hidden, head, labels, held):
    """The scores of 128 positions at a time, which the loop holds until it has the next ones."""
    made = [head(part) for part in hidden.split(128, dim=1)]
    scores = [part.float() for part in made]
    del made
    held[:] = scores
    several = zip(scores, labels.split(128, dim=1), strict=True)
    losses = [cross_entropy(_flat(each), wanted.reshape(-1), reduction="none") for each, wanted in several]
    return torch.cat(losses).sum() / labels.numel()


def _litgpt_full(hidden, head, labels, held):
    """The scores of all positions are held, and all but the last have a loss, of 128 tokens at a time."""
    scores = head(hidden).float()
    held[:] = [scores]
    shifted, wanted = _flat(scores[..., :-1, :]), labels[..., :-1].reshape(-1)
    several = zip(shifted.split(128), wanted.split(128), strict=True)
    return torch.cat([cross_entropy(each, part, reduction="none") for each, part in several]).sum() / len(wanted)


def _olmo(hidden, head, labels, _):
    """All but the last position's scores have a loss; those of all positions are there until it is computed."""
    scores = head(hidden)
    shifted = _flat(scores[:, :-1].contiguous())
    return _FlashCrossEntropy.apply(shifted, labels[:, :-1].reshape(-1)).sum() / shifted.shape[0]


LOSSES = {
    "liger": _liger,
    "cut": _cut,
    "torchtune": _torchtune,
    "litgpt": _litgpt,
    "litgpt-full": _litgpt_full,
    "olmo": _olmo,
}
"""By the name of `learncost memory --loss`."""


def with_loss(name):
    """Return what calls a model without its head, then the head and the loss of a trainer."""

    def wrap(module):
        head, held = module.get_output_embeddings(), []

        def called(labels, **given):
            hidden = module.base_model(**given).last_hidden_state
            scored = head
            if cap := getattr(module.config, "final_logit_softcapping", None):
                if name == "torchtune":
                    hidden = torch.tanh(hidden / cap) * cap  # Gemma2FinalNorm
                elif name.startswith("litgpt"):
                    scored = lambda part: torch.tanh(head(part) / cap) * cap  # noqa: E731
            return SimpleNamespace(loss=LOSSES[name](hidden, scored, labels, held))

        return called

    return wrap
