"""The choice of a model's task by its head and inputs."""

from __future__ import annotations

from collections.abc import Mapping

from learncost.engines.options import Options
from learncost.engines.tokenizer import Tokenizer, tokenizer
from learncost.engines.weights import shape
from learncost.ir.errors import InputError
from learncost.models.configuration import Configuration, family_of
from learncost.models.families import instead
from learncost.models.model import Model, build, run_sizes
from learncost.training.data.media import Images, Sounds
from learncost.training.data.readers import Classes, ExampleRows, Pairs, Words
from learncost.training.data.task import Task
from learncost.training.data.text import Rule, Text, masked, next_tokens, replaced, two_sentences

_RULES: Mapping[str, Rule] = {
    "masked-language-model": masked,
    "pre-training": two_sentences,
    "discriminator": replaced,
}
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
