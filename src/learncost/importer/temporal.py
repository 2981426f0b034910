"""CTC loss as what it is made of: its kernel asks for lengths as numbers, which an export does not have."""

from __future__ import annotations

import math
from typing import Any

NO_CHANCE = -1e30
"""The logarithm of a probability that is none: a number, so that sums of such have gradients, which are 0."""


def temporal_classification(
    logarithms: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:
    """`ctc_loss`, place by place: the forward variables of Graves et al. 2006, equations 5 to 8, as logarithms.

    logarithms  (time, batch, classes) or (time, classes); targets (batch, longest), or one after the other
    """
    import torch

    alone = logarithms.dim() == 2
    if alone:
        logarithms, targets = logarithms.unsqueeze(1), targets.reshape(1, -1)
    device = targets.device
    many, lasts = (
        torch.as_tensor(lengths, device=device).reshape(-1).long() for lengths in (input_lengths, target_lengths)
    )
    if targets.dim() == 1:
        parts = targets.split(target_lengths.tolist() if hasattr(target_lengths, "tolist") else list(target_lengths))
        targets = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
    blanks = torch.full_like(targets, blank)
    labels = torch.cat([torch.stack([blanks, targets], -1).flatten(1), blanks[:, :1]], 1)
    skips = torch.nn.functional.pad((labels[:, 2:] != labels[:, :-2]) & (labels[:, 2:] != blank), (2, 0))
    chances = logarithms.gather(2, labels.expand(logarithms.shape[0], -1, -1))
    first = torch.arange(labels.shape[1], device=device) < 2
    state = torch.where(first, chances[0], NO_CHANCE)
    for time in range(1, logarithms.shape[0]):
        one, two = (torch.nn.functional.pad(state, (by, -by), value=NO_CHANCE) for by in (1, 2))
        ways = torch.logaddexp(torch.logaddexp(state, one), torch.where(skips, two, NO_CHANCE))
        state = torch.where((many > time).unsqueeze(-1), ways + chances[time], state)
    ends = state.gather(1, 2 * lasts.unsqueeze(-1)).squeeze(-1)
    labelled = state.gather(1, (2 * lasts - 1).clamp_min(0).unsqueeze(-1)).squeeze(-1)
    each = -torch.logaddexp(ends, torch.where(lasts > 0, labelled, NO_CHANCE))
    each = torch.where(each < -NO_CHANCE / 2, each, 0.0 if zero_infinity else math.inf)
    if reduction == 1:
        return (each / lasts.clamp_min(1)).mean()
    return each.sum() if reduction else each[0] if alone else each
