"""The head and the loss in chunks of tokens, in plain torch: what Liger's fused linear cross-entropy allocates."""

from types import SimpleNamespace

import torch


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


def chunked_loss(module):
    """Call the model without its head, then the head and the loss in chunks."""
    head = module.get_output_embeddings()

    def called(labels, **given):
        hidden = module.base_model(**given).last_hidden_state
        rows = hidden.reshape(-1, hidden.shape[-1])
        return SimpleNamespace(loss=_LinearCrossEntropy.apply(rows, head.weight, head.bias, labels.reshape(-1)))

    return called
