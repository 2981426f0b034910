"""Models as tables of layers: a configuration chooses a base table and the rewritings of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from learncost.equation.errors import InputError
from learncost.equation.table import Line, Repeat, Statement, Table
from learncost.layers.layer import Layer, layer, named
from learncost.layers.rewrite import (
    with_biases,
    with_epsilon,
    with_masks,
    with_padding,
    with_transposed,
    with_word,
)
from learncost.models.configuration import Configuration
from learncost.models.tables import Plan, plan

AXES = {
    "d": "hidden_size",
    "h": "num_attention_heads",
    "k": "head_dim",
    "f": "intermediate_size",
    "v": "vocab_size",
    "p": "max_position_embeddings",
    "s": "type_vocab_size",
    "n_layer": "num_hidden_layers",
    "n_enc": "n_enc",
    "n_dec": "n_dec",
}
"""The axes of the tables and the counts of their repeats, with the sizes that they have."""


@dataclass(frozen=True)
class Model:
    """A model's forward table, with the sizes of its axes but those of a run (B, M, N).

    `table.constants` are inputs without gradients; `masks` among them are the drawn masks of dropout and the padding.
    `projected` are inputs or embeddings to which PEPITA adds the output's error through a fixed random matrix; without
    them it is added to the one-hot tokens.
    """

    configuration: Configuration
    table: Table
    sizes: Mapping[str, int]
    masks: tuple[str, ...] = ()
    projected: tuple[str, ...] = ()

    @property
    def padded(self) -> bool:
        """Whether a mask of the keys comes in, for sequences of unequal length."""
        return any(name.endswith("keep.mask") for name in self.masks)

    @property
    def learns(self) -> bool:
        """Whether it has an output with targets to learn from."""
        return self.table.outputs == ("loss",)

    @property
    def two_sided(self) -> bool:
        """Whether there is an encoder and a decoder."""
        return self.configuration.family == "encoder-decoder"


@lru_cache(maxsize=64)
def _build(plan_: Plan, dropout: bool, padding: bool) -> Table:
    layers = {name: named(name) for name in plan_.layers}
    for name, changed in list(layers.items()):
        layers[name] = _rewritten(changed, plan_, dropout, padding)
    found = layer(plan_.text, layers)
    return _with_blocks(_with_roles(found.table), plan_.blocks)


def build(configuration: Configuration, dropout: bool = False, padding: bool = False) -> Model:
    """The model that a configuration describes.

    dropout   with drawn masks where the family has them
    padding   with a mask of the keys, for batches of sequences of unequal length
    """
    chosen = plan(configuration)
    table = _build(chosen, dropout, padding)
    sizes = {axis: configuration.sizes[size] for axis, size in AXES.items() if size in configuration.sizes}
    masks = tuple(name for name in table.inputs if name.endswith(".mask"))
    return Model(configuration, table, sizes, masks)


def _rewritten(given: Layer, plan_: Plan, dropout: bool, padding: bool) -> Layer:
    name = given.name
    if name in ("feed_forward", "feed_forward_without_biases"):
        given = with_word(given, "gelu_tanh", plan_.activation)
    if name == "masked_lm_transform":
        given = with_word(given, "gelu", plan_.activation)
    given = with_epsilon(given, plan_.epsilon)
    if name in ("attention", "cross_attention"):
        if plan_.attention_biases:
            given = with_biases(given, {"WQ": "bQ", "WK": "bK", "WV": "bV", "WO": "bO"})
        if padding:
            given = with_padding(given)
    if name == "head":
        if plan_.head_bias:
            given = with_biases(given, {"W": "b"})
        if plan_.tied:
            given = with_transposed(given, "W")
    if dropout:
        given = with_masks(given, dict(plan_.dropped).get(name, ()))
    return given


def _with_roles(table: Table) -> Table:
    """Masks come in through the weights of layers, but are drawn, not trained."""
    masks = tuple(name for name in table.weights if name.endswith(".mask"))
    return replace(
        table,
        inputs=(*table.inputs, *masks),
        weights=tuple(name for name in table.weights if name not in masks),
        constants=table.constants | frozenset(masks),
    )


def _with_blocks(table: Table, blocks: tuple[str, ...]) -> Table:
    """Every line says whether it stands in an encoder or a decoder block; with both, their embeddings say so too."""
    two_sided = len(blocks) > 1
    stack = iter(blocks)
    lines: list[Statement] = []
    for line in table.lines:
        if isinstance(line, Repeat):
            block = next(stack)
            lines.append(replace(line, lines=tuple(_in_block(own, block) for own in line.lines)))
        elif two_sided and line.tag.layer in ("embedding", "positions", "sinusoidal_positions", "dropout"):
            lines.append(_in_block(line, "encoder" if "N" in line.loops else "decoder"))
        else:
            lines.append(line)
    return replace(table, lines=tuple(lines))


def _in_block(line: Statement, block: str) -> Statement:
    assert isinstance(line, Line)
    return replace(line, tag=replace(line.tag, block=block))


def run_sizes(model: Model, batch_size: int, seq_len: int | None, target_len: int | None) -> dict[str, int]:
    """The sizes of all axes: the model's, and B, M, N of a run. Lengths are checked against learned positions.

    An encoder-decoder reads seq_len tokens on the encoder's side (N) and target_len on the decoder's (M); every other
    model has seq_len tokens (M). Raises `InputError`.
    """
    configuration = model.configuration
    longest = configuration.sizes.get("max_position_embeddings")
    if seq_len is None:
        if longest is None:
            raise InputError(f"{configuration.name} has no default length: give --seq-len")
        seq_len = longest
    if target_len is not None and not model.two_sided:
        raise InputError(f"{configuration.name} has no decoder beside an encoder: --target-len does not apply")
    lengths = {"seq_len": seq_len} | ({"target_len": target_len or seq_len} if model.two_sided else {})
    if longest is not None and configuration.positions == "learned":
        for name, length in lengths.items():
            if length > longest:
                raise InputError(
                    f"{name} {length} is longer than the {longest} positions that {configuration.name} learns"
                )
    sizes = {**model.sizes, "B": batch_size}
    if model.two_sided:
        return {**sizes, "N": seq_len, "M": lengths["target_len"]}
    return {**sizes, "M": seq_len}
