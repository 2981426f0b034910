"""The choice of a model's task by its head and inputs, and text without separate targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learncost.engines.options import Options
from learncost.engines.tokenizer import Tokenizer, tokenizer
from learncost.engines.weights import shape
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.models.configuration import Configuration, family_of
from learncost.models.families import instead
from learncost.models.model import Model, build, run_sizes
from learncost.training.data import corpus
from learncost.training.data.corpus import DELIMITERS, Corpus, philox
from learncost.training.data.media import Images, Sounds
from learncost.training.data.readers import Classes, ExampleRows, Pairs, Words
from learncost.training.data.task import Report, Task, predicted
from learncost.training.engine import Batch

Rule = Callable[[Any, np.random.Generator, Tokenizer], Batch]
"""From windows of tokens [B, M + 1], random numbers and what the tokens are to a batch."""

CHOSEN, MASKED, CHANGED = 0.15, 0.8, 0.1
"""Devlin et al. 2019, section 3.1: the share of tokens that are predicted; of these, of masks and of random tokens."""


def next_tokens(rows: Any, draw: np.random.Generator, tokenizer: Tokenizer) -> Batch:
    """Return each token's successor as target."""
    return {"tokens": rows[:, :-1], "targets": rows[:, 1:]}


def masked(rows: Any, draw: np.random.Generator, tokenizer: Tokenizer) -> Batch:
    """Predict the original tokens at chosen positions: most are masked, some replaced, some kept (Devlin et al.)."""
    tokens = rows[:, :-1]
    chosen, kind = _chosen(tokens, draw, tokenizer.end), draw.random(tokens.shape)
    other = draw.integers(0, tokenizer.size, tokens.shape)
    changed = np.where(kind < MASKED, tokenizer.mask, np.where(kind < MASKED + CHANGED, other, tokens))
    return {"tokens": np.where(chosen, changed, tokens), "targets": np.where(chosen, tokens, -1)}


def replaced(rows: Any, draw: np.random.Generator, tokenizer: Tokenizer) -> Batch:
    """Predict which tokens were replaced: 15 % at random, unless the new token equals the old one (Clark et al. 2020,
    section 2, who train a generator for it; here there is none)."""
    tokens = rows[:, :-1]
    changed = np.where(_chosen(tokens, draw, tokenizer.end), draw.integers(0, tokenizer.size, tokens.shape), tokens)
    return {"tokens": changed, "targets": (changed != tokens).astype(int)}


def two_sentences(rows: Any, draw: np.random.Generator, tokenizer: Tokenizer) -> Batch:
    """Masked tokens, and whether the second half follows the first (label 0) or is another sequence's (1), which half
    of them are (Devlin et al. 2019, section 3.1)."""
    half = rows.shape[1] // 2
    strange = (draw.random(len(rows)) < 0.5) & (len(rows) > 1)
    mixed = np.where(strange[:, None] & (np.arange(rows.shape[1]) >= half), np.roll(rows, 1, axis=0), rows)
    types = np.broadcast_to(np.arange(rows.shape[1] - 1) >= half, mixed[:, :-1].shape).astype(int)
    return {**masked(mixed, draw, tokenizer), "types": types, "labels": strange.astype(int)}


def _chosen(tokens: Any, draw: np.random.Generator, end: int) -> Any:
    """Choose 15 % of each row's tokens, at least one; ends of documents are not chosen."""
    order = np.where(tokens == end, 2.0, draw.random(tokens.shape)).argsort(axis=1).argsort(axis=1)
    available = (tokens != end).sum(axis=1, keepdims=True)
    return order < np.minimum(np.maximum(1, np.rint(CHOSEN * available)), available)


@dataclass(frozen=True)
class Text:
    """Windows of long rows of tokens, from which a rule makes batches."""

    rule: Rule
    tokenizer: Tokenizer

    @property
    def reads(self) -> str:
        return "text files, or folders with text files in them"

    @property
    def classes(self) -> bool:
        return self.rule is replaced

    @property
    def example(self) -> Batch:
        return self.rule(np.zeros((2, 3), int), np.random.default_rng(0), self.tokenizer)

    def labels(self, paths: Sequence[str]) -> Sequence[str]:
        return ()

    def prepare(self, options: Options, folder: Path, say: Report) -> None:
        say("reading the documents")
        for path in options.paths:
            if Path(path).suffix.lower() in DELIMITERS:
                say(f"{path} is read as a text; as a list of examples a --model with another head reads it")
        corpus.prepare(options.paths, self.tokenizer, options.validation_share, folder)

    def load(self, options: Options, folder: Path, advice: str) -> TextData:
        loaded = corpus.load(folder, advice)
        assert options.seq_len is not None
        if len(loaded.training) <= options.seq_len or len(loaded.validation) < 2:
            raise InputError(
                f"{len(loaded.training):,} tokens are too few for sequences of {options.seq_len}: give more text, or a "
                "smaller --seq-len"
            )
        return TextData(self, loaded, options)


@dataclass(frozen=True)
class TextData:
    """The text of a run."""

    task: Text
    corpus: Corpus
    options: Options

    @property
    def bytes_per_token(self) -> float | None:
        return self.corpus.bytes_per_token if self.task.rule is next_tokens else None

    def batch(self, step: int) -> Batch:
        options = self.options
        size, length = (options.batch_size or 1) * options.accumulate, options.seq_len or 1
        rows = self.corpus.windows(size, length, options.seed, step)
        return self.task.rule(rows, np.random.Generator(philox(options.seed, step, 1)), self.task.tokenizer)

    def check(self) -> Iterator[Batch]:
        rows, size = self.corpus.check(self.options.seq_len or 1), self.options.batch_size or 1
        for at in range(0, len(rows), size):
            yield self.task.rule(rows[at : at + size], np.random.Generator(philox(0, at, 2)), self.task.tokenizer)

    def show(self, batch: Batch, scores: Any) -> Sequence[str]:
        """Return the text with the predictions at target positions, or the tokens predicted as replaced."""
        tokenizer, lines = self.task.tokenizer, []
        for tokens, targets, predictions in zip(batch["tokens"], batch["targets"], predicted(scores), strict=True):
            is_asked = targets >= 0
            if self.task.classes:
                found_text = f"{(predictions & targets).sum()} of {targets.sum()} replaced tokens found"
                lines.append(
                    f"{tokenizer.decode(tokens)!r}: {found_text}, {(predictions > targets).sum()} others called so"
                )
            else:
                right = f"{(predictions == targets)[is_asked].sum()} of {is_asked.sum()} masked tokens right"
                lines.append(f"{tokenizer.decode(np.where(is_asked, predictions, tokens))!r}: {right}")
        return lines


_RULES: Mapping[str, Rule] = {"masked-language-model": masked, "pre-training": two_sentences, "discriminator": replaced}
"""The prediction rules for plain text by the head; a language model without causal masks also fills masks."""


def _inputs(model: Model) -> frozenset[str]:
    return frozenset(name.rpartition(".")[2] for name in model.table.inputs)


def _rule(model: Model) -> Rule | None:
    """Return the prediction rule for plain text; None where the files contain the targets."""
    head = model.configuration.head
    if model.configuration.layer is not None:
        return next_tokens
    if head == "language-model" and not model.two_sided:
        return next_tokens if model.causal else masked
    return _RULES.get(head)


def next_token(configuration: Configuration) -> bool:
    """Return whether the model predicts the next token of plain text, so that it can continue one."""
    return configuration.layer is None and _rule(build(configuration)) is next_tokens


def tokenizer_of(configuration: Configuration, name: str) -> Tokenizer | None:
    """Return the tokenizer of a name, with a mask token if the model requires it; None for a model without tokens."""
    model = build(configuration)
    return tokenizer(name, _rule(model) in (masked, two_sentences)) if "tokens" in _inputs(model) else None


def task(configuration: Configuration, tokenizer: Tokenizer | None, options: Options) -> Task:
    """Return the task of the model. Raises InputError where files cannot contain its targets."""
    model = build(configuration)
    inputs, name = _inputs(model), configuration.name
    if not model.learns:
        raise InputError(f"{name} has no answers to learn from{instead(configuration.family)}")
    if tokenizer is None:
        if "image" not in inputs:
            raise InputError(
                f"{name} reads {', '.join(sorted(inputs))}, which train cannot read from files: use lc.Training"
            )
        sizes = configuration.sizes
        return ExampleRows(Images(sizes["image_size"], sizes["image_width"], sizes["num_channels"]))
    if (rule := _rule(model)) is not None:
        return Text(rule, tokenizer)
    length, target = options.seq_len or 0, options.target_len or 0
    if "targets" not in inputs and "labels" not in inputs:
        raise InputError(f"{name} learns the positions of answers, which train cannot read from files: use lc.Training")
    if not model.two_sided:
        return ExampleRows(Words(tokenizer, length) if "targets" in inputs else Classes(tokenizer, length))
    if "targets" not in inputs:
        raise InputError(
            f"{name} classifies with an encoder and a decoder, which train does not support: use lc.Training"
        )
    start = tokenizer.number(family_of(configuration).start)
    if "features" not in inputs:
        return ExampleRows(Pairs(tokenizer, start, (length, target)))
    _, frames, channels = shape(model.table, "features", run_sizes(model, 1, None, None))
    return ExampleRows(Sounds(tokenizer, start, frames, channels, target))
