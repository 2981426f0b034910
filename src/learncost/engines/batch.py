"""Batches: tokens of equal or unequal lengths, their masks and their targets, as the arrays that tables read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from learncost.engines.positions import at_positions
from learncost.equation.errors import InputError
from learncost.models.configuration import Configuration
from learncost.models.model import Model, run_sizes

NOT_OF_TOKENS = frozenset(("labels", "ends", "sign", "last", "image", "features", "bucket", "rows", "delta"))
"""Inputs of tables that a batch of tokens does not say: classes, answers, images, sounds, buckets of distances."""


@dataclass(frozen=True)
class Tokens:
    """Token numbers of a batch [B, M] and which of them are there; `keep` is None where all are."""

    array: Any
    keep: Any = None

    def rows(self, own: slice) -> Tokens:
        """Some of the sequences."""
        return Tokens(self.array[own], None if self.keep is None else self.keep[own])


def tokens_of(given: Any, mask: Any, vocabulary: int, causal: bool, name: str = "tokens") -> Tokens:
    """The tokens as one array; sequences of unequal length are padded on the right.

    mask   true (or 1) at tokens, false (or 0) at padding
    """
    if isinstance(given, (list, tuple)) and given and all(isinstance(row, (Sequence, np.ndarray)) for row in given):
        lengths = [len(row) for row in given]
        if len(set(lengths)) > 1:
            if mask is not None:
                raise InputError(f"{name} have unequal lengths, which says what is padding: leave the mask out")
            keep: Any = np.arange(max(lengths)) < np.array(lengths)[:, None]
            array: Any = np.zeros(keep.shape, int)
            array[keep] = np.concatenate([np.asarray(row, int) for row in given])
            return _checked(array, keep, vocabulary, causal, name)
    array = np.asarray(given)
    if array.ndim != 2:
        raise InputError(f"{name} must be a batch of sequences, not an array with {array.ndim} axes")
    keep = None if mask is None else np.asarray(mask).astype(bool)
    if keep is not None and keep.shape != array.shape:
        raise InputError(f"the mask of {name} is {keep.shape}, but they are {array.shape}")
    if keep is not None and keep.all():
        keep = None
    return _checked(array, keep, vocabulary, causal, name)


def _checked(array: Any, keep: Any, vocabulary: int, causal: bool, name: str) -> Tokens:
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} must be integers, not {array.dtype}")
    there = array if keep is None else array[keep]
    if there.size == 0:
        raise InputError(f"there are no {name}")
    if there.min() < 0 or there.max() >= vocabulary:
        raise InputError(f"{name} must be from 0 to {vocabulary - 1}")
    if keep is not None:
        if not (keep[:, 0] if causal else keep.any(axis=1)).all():
            raise InputError(f"every sequence of {name} needs a token{', padded on the right' if causal else ''}")
        array = np.where(keep, array, 0)
    return Tokens(array, keep)


def next_tokens(tokens: Tokens) -> Any:
    """The targets of a language model: each token's successor, -1 where there is none (the last of every sequence)."""
    targets = np.full(tokens.array.shape, -1)
    targets[:, :-1] = tokens.array[:, 1:]
    if tokens.keep is not None:
        targets[:, :-1][~tokens.keep[:, 1:]] = -1
    return targets


def targets_of(given: Any, tokens: Tokens, vocabulary: int) -> tuple[Any, Any, int]:
    """Targets as an index, where there are any, and how many. A negative target says that there is none."""
    targets = _ragged(given) if tokens.keep is not None else np.asarray(given)
    if targets.shape != tokens.array.shape or targets.dtype.kind not in "iu":
        raise InputError(f"targets must be integers shaped as the tokens {tokens.array.shape}, not {targets.shape}")
    there = targets >= 0
    if tokens.keep is not None:
        there = there & tokens.keep
    count = int(there.sum())
    if not count:
        raise InputError("the batch has no target")
    if targets[there].max() >= vocabulary:
        raise InputError(f"targets must be below {vocabulary}")
    return np.where(there, targets, 0), there, count


def _ragged(given: Any) -> Any:
    """Sequences of unequal length as one array, -1 where they end."""
    if isinstance(given, np.ndarray):
        return given
    rows = [np.asarray(row) for row in given]
    result = np.full((len(rows), max(map(len, rows), default=0)), -1)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result


def sinusoids(length: int, width: int) -> Any:
    """Vaswani et al. 2017, section 3.5: sin(p / 10000^(2i/d)) at the even places, cos at the odd ones."""
    places = np.arange(width)
    angles = np.arange(length)[:, None] / 10000.0 ** (2 * (places // 2) / width)
    return np.where(places % 2 == 0, np.sin(angles), np.cos(angles))


class Batch:
    """What a step was given, as the inputs of a table."""

    def __init__(
        self,
        model: Model,
        configuration: Configuration,
        tokens: Any,
        targets: Any = None,
        *,
        mask: Any = None,
        encoder_tokens: Any = None,
        encoder_mask: Any = None,
        token_types: Any = None,
        gradients: Mapping[str, Any] | None = None,
    ) -> None:
        name = configuration.name
        if other := [one for one in model.table.inputs if one.rpartition(".")[2] in NOT_OF_TOKENS]:
            raise InputError(
                f"{name} reads {', '.join(other)}, which a batch of tokens does not say: use learncost.run"
            )
        vocabulary = configuration.sizes["vocab_size"]
        self.configuration, self.width = configuration, configuration.sizes["hidden_size"]
        causal = model.causal
        self.own = tokens_of(tokens, mask, vocabulary, causal)
        self.other: Tokens | None = None
        if model.two_sided != (encoder_tokens is not None):
            raise InputError(f"{name} {'needs' if model.two_sided else 'does not take'} encoder_tokens")
        if model.two_sided:
            self.other = tokens_of(encoder_tokens, encoder_mask, vocabulary, False, "encoder_tokens")
            if len(self.other.array) != len(self.own.array):
                raise InputError(f"{len(self.other.array)} sequences for the encoder, {len(self.own.array)} to decode")
        self.gradients, self.count = dict(gradients or {}), 0
        if model.learns:
            if targets is None and not causal:
                raise InputError(f"{name} does not predict the next token: give targets")
            targets = next_tokens(self.own) if targets is None else targets
            self.targets, self.there, self.count = targets_of(targets, self.own, vocabulary)
        outputs = {model.table.header(output) for output in model.table.outputs} - {"loss"}
        if unknown := set(self.gradients) - outputs:
            raise InputError(f"{name} has no output {min(unknown)}; gradients are of {', '.join(sorted(outputs))}")
        self.types = np.zeros_like(self.own.array) if token_types is None else np.asarray(token_types)
        if self.types.shape != self.own.array.shape:
            raise InputError(f"token_types must be shaped as the tokens, {self.own.array.shape}")
        rows, length = self.own.array.shape
        if self.other is None:
            self.sizes = run_sizes(model, rows, length, None)
        else:
            self.sizes = run_sizes(model, rows, self.other.array.shape[1], length)

    def part(self, number: int, parts: int) -> Batch:
        """One of so many equal parts of the sequences. `count` stays the whole batch's, and with it what is a share."""
        rows = len(self.own.array)
        if rows % parts:
            raise InputError(f"{rows} sequences are not {parts} equal microbatches: give a multiple of {parts}")
        size = rows // parts
        own = slice(number * size, (number + 1) * size)
        found = copy(self)
        found.own = self.own.rows(own)
        found.other = None if self.other is None else self.other.rows(own)
        found.types = self.types[own]
        found.gradients = {name: np.asarray(array)[own] for name, array in self.gradients.items()}
        if self.count:
            found.targets, found.there = self.targets[own], self.there[own]
        found.sizes = {**self.sizes, "B": size}
        return found

    @property
    def padded(self) -> bool:
        return self.own.keep is not None or (self.other is not None and self.other.keep is not None)

    def keep(self, encoder: bool) -> Any:
        side = self.other if encoder and self.other is not None else self.own
        return np.ones(side.array.shape, bool) if side.keep is None else side.keep

    def array(self, name: str) -> Any:
        """An input by its name in the tables; None where it is not the batch's to give."""
        side, _, last = name.rpartition(".")
        tokens = self.other if side == "encoder" and self.other is not None else self.own
        length = tokens.array.shape[1]
        if name in ("inverse_count.M", "inverse_count.N"):
            return self.keep(encoder=name == "inverse_count.N") / self.count
        if last == "tokens":
            return tokens.array
        if (fixed := at_positions(self.configuration, last, np.arange(length), self.sizes)) is not None:
            return fixed
        if last == "S":
            return sinusoids(length, self.width)
        if last == "types":
            return self.types
        if last == "targets":
            return self.targets
        return np.where(self.there, -1 / self.count, 0.0) if last == "share" else None
