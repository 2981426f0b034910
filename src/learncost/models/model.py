"""Build models as tables of layers: a configuration chooses a base table and the rewritings of its layers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import Loop, Statement, repeats, walk
from learncost.ir.polynomial import Polynomial, base
from learncost.ir.table import Table
from learncost.ir.term import Literal
from learncost.ir.value import DRAWN, IdentityKey
from learncost.layers.active import parameters
from learncost.layers.layer import Layer, defined, shipped_layer
from learncost.layers.rewrite import REWRITINGS, with_masks, with_padding
from learncost.layers.spelling import read_place_by_place
from learncost.models.compose import CompositionPlan, PlannedLayer, plan
from learncost.models.configuration import PROJECTED, Configuration, family_of, of_layer
from learncost.models.expression import evaluate, names
from learncost.models.families import instead
from learncost.models.tables import RUN, check_limits, check_open, family_of_layer, letters, lookup_axes

if TYPE_CHECKING:
    from learncost.passes.quantized import Quantized


RUN_AXES = frozenset({"B", "M", "N"})


@dataclass(frozen=True)
class Model:
    """A model: its forward table, and the sizes of its axes except those of a run (B, M, N).

    `table.constants` are inputs without gradients, `masks` those among them that are masks of dropout or padding.
    `projected` are inputs or embeddings to which PEPITA adds the output's error through a fixed random matrix; without
    them the error is added to the one-hot tokens. `rules` are the family's expressions for the axes of the table.
    """

    configuration: Configuration
    table: Table
    sizes: Mapping[str, int]
    masks: tuple[str, ...] = ()
    projected: tuple[str, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    trained: tuple[str, ...] | None = None  # the trainable weights; None for all
    differentiated: tuple[str, ...] = ()  # inputs with gradients
    quantized: tuple[Quantized, ...] = ()  # weights stored as codes and scales
    plain: Table | None = None  # with the dequantized weights
    whole: bool = False  # whether matrix products multiply codes
    integers: bool = False  # whether its steps are integer-only
    saved: str = ""  # the type in which saved tensors are stored, if it differs

    @property
    def learning(self) -> tuple[str, ...]:
        """Return the trainable weights."""
        return self.table.weights if self.trained is None else self.trained

    @property
    def parameters(self) -> Polynomial:
        """Return the number of parameters: those of the table, and stored parameters that no line reads."""
        return parameters(self.table) + Polynomial.of((), self.configuration.unread)

    @property
    def quantized_widths(self) -> dict[str, int]:
        """Return 0 bytes per element for each array that replaces a quantized weight.

        The packed arrays are counted by `Quantized.bytes`; block numbers and levels are inside of kernels.
        """
        arrays = (array.name for weight in self.quantized for array in (weight.codes, *weight.scales))
        return dict.fromkeys((*arrays, *(name for weight in self.quantized for name in weight.constants)), 0)

    @property
    def padded(self) -> bool:
        """Return whether it has a padding mask as input, for sequences of unequal length."""
        return any(self.table.values[name].role == "padding" for name in self.masks)

    @property
    def without_dropout(self) -> str:
        """Return the note that the configuration has dropout and the step none; empty where it has none, or masks."""
        most = max(self.configuration.dropout.values(), default=0.0)
        if not most or any(self.table.values[name].role == "mask" for name in self.masks):
            return ""
        return f"no dropout (the configuration has {most:g}: --dropout {most:g} counts it)"

    @property
    def learns(self) -> bool:
        """Return whether its output is a loss."""
        return self.table.outputs == ("loss",)

    @property
    def changed(self) -> tuple[str, ...]:
        """Return the buffers and inputs that the forward pass of a module changes in place."""
        found = (name for name in self.table.outputs if name.endswith(".after"))
        return tuple(name.removesuffix(".after") for name in found)

    @property
    def without_loss(self) -> str:
        """Return why no procedure trains it, as a verb phrase with what can be done: its output is not a loss."""
        if self.changed and "loss" in self.table.outputs:
            changed = ", ".join(self.changed)
            return f"changes {changed} in its forward pass, and trains only without: move the change out of forward"
        counted, hint = self.configuration.counted, instead(self.configuration.family)
        return f"has no output to learn from (counted: {counted}){hint}"

    @property
    def causal(self) -> bool:
        """Return whether it predicts the next token: its last stack is a decoder."""
        return family_of(self.configuration).blocks[-1] == "decoder"

    @property
    def two_sided(self) -> bool:
        """Return whether there is an encoder and a decoder."""
        return self.configuration.two_sided

    @property
    def depth(self) -> int:
        """Return the number of blocks, where an iteration of a loop may contain several; 0: an iteration is one."""
        return 0 if self.two_sided else self.configuration.sizes.get("num_hidden_layers", 0)

    def lengths(self, axes: Mapping[str, int]) -> tuple[int, int, int | None]:
        """Return the batch, the length of a sequence, and of an encoder-decoder the length of the decoder's."""
        if self.two_sided:
            return axes["B"], axes["N"], axes["M"]
        if "M" in axes_of(self.table):
            return axes["B"], axes["M"], None
        rows = max((prod(axes[base(axis)] for axis in each) for each in lookup_axes(self.table)), default=0)
        return axes["B"], rows // axes["B"] or 1, None  # of the largest embedding, whatever the length is called

    def tokens(self, axes: Mapping[str, int]) -> int:
        """Return the tokens of a step: those of the decoder, where there is an encoder too."""
        batch, length, target = self.lengths(axes)
        return batch * (length if target is None else target)

    @property
    def sample(self) -> str:
        """Return the noun for one element of a batch: image if the model reads images, else sequence."""
        return "image" if "image" in self.table.inputs else "sequence"

    @property
    def positions(self) -> int | None:
        """Return the context that the configuration states; None for a model with a fixed length or without a
        context."""
        return context_of(self.configuration)


@dataclass(frozen=True, eq=False)
class Structure:
    """A cache key of a model's structure: its table, which is one object for equal structures, its sizes, and its
    trainable weights."""

    model: Model

    @property
    def _key(self) -> tuple[object, ...]:
        model = self.model
        counts = frozenset((name, size) for name, size in model.sizes.items() if name not in model.rules)
        learning = model.trained, model.differentiated
        return IdentityKey(model.table), counts, *learning, model.saved, model.whole, model.integers

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self._key == other._key


@lru_cache(maxsize=128)
def _build(plan_: CompositionPlan, dropout: bool, padding: bool) -> tuple[Table, tuple[str, ...]]:
    """Return the table of a composition and its axes; compositions that differ only in counts share one table."""
    layers = {planned.name: _rewritten(replace(planned, name=""), dropout, padding) for planned in plan_.layers}
    table = defined(plan_.header, plan_.lines, layers).table
    if plan_.sided:
        table = replace(table, lines=tuple(_with_side(line, plan_.sided) for line in table.lines))
    return table, axes_of(table)


def build(configuration: Configuration, dropout: bool = False, padding: bool = False) -> Model:
    """Return the model that a configuration describes.

    dropout   whether to add dropout masks where the family has them
    padding   whether to add a padding mask, for sequences of unequal length
    Raises `InputError` for a partly frozen or adapted live module, which `adapted` supports.
    """
    if configuration.learned is not None:
        raise InputError(
            f"{configuration.name} is partly frozen or adapted ({configuration.learned}), which only cost, "
            f"compare, memory and conventions support: give its config here"
        )
    family = family_of(configuration)
    if family.layer is not None:
        return _of_layer(configuration, family.layer, dropout)
    chosen = plan(configuration)
    table, axes = _build(replace(chosen, counts=()), dropout, padding)
    rules = {axis: family.axes[axis] for axis in axes if axis in family.axes}
    values = configuration.values
    sizes = {axis: _size(axis, rule, values) for axis, rule in rules.items() if not names(rule) & RUN_AXES}
    if family.fixed:
        sizes["N" if family.two_sided else "M"] = evaluate(family.fixed, values)
    masks = masks_of(table)
    trained = tuple(name for name in table.weights if name not in family.frozen) if family.frozen else None
    return Model(configuration, table, {**sizes, **dict(chosen.counts)}, masks, family.projected, rules, trained)


def _of_layer(configuration: Configuration, layer: Layer, dropout: bool) -> Model:
    """Return the model of a layer in the notation, whose inputs have gradients, except indices and constants."""
    if dropout:
        raise InputError(f"dropout does not apply to {configuration.name}: the table defines its own dropout")
    table, sizes = layer.marked, dict(configuration.sizes)
    along = {axis for name in table.weights for axis in table.axes[name]}
    sizes |= {axis: size for axis, size in layer.sizes.items() if axis in RUN_AXES & along}  # of learned positions
    stated = {name: sizes.get(name, size) for name, size in table.sizes.items()}
    matter = read_place_by_place(table.lines, stated)  # other sizes give the same table, so they are not shown
    table = replace(table, sizes={name: size for name, size in stated.items() if name in matter})
    fixed = table.indices | table.constants
    inputs = tuple(name for name in table.inputs if name not in fixed)
    trained = tuple(name for name in table.weights if name not in layer.frozen) if layer.frozen else None
    rules = {size: size for size in sizes} | dict(layer.follows)
    projected = tuple(configuration.settings.get(PROJECTED, ()))
    return Model(configuration, table, sizes, (), projected, rules, trained, inputs)


def _size(axis: str, rule: str, values: Mapping[str, Any]) -> int:
    size = evaluate(rule, values)
    if not isinstance(size, int) or size < 1:
        if off := [name for name in sorted(names(rule)) if values.get(name) == 0]:
            raise InputError(f"{off[0]} must be at least 1, not 0 or null: the axis {axis} has the size {rule}")
        numbers = ", ".join(f"{name} {values[name]}" for name in sorted(names(rule)) if name in values)
        raise InputError(
            f"the axis {axis} would have the size {size} ({rule}) with {numbers}, but it must be at least 1"
        )
    return size


def axes_of(table: Table) -> tuple[str, ...]:
    """Return the names of a table's axes and of the sizes in its numbers and windows."""
    scopes = (table.values, *(loop.values for loop in repeats(table.lines)))
    axes = {axis for values in scopes for value in values.values() for axis in value.axes}
    for line, _ in walk(table.lines):
        axes.update(line.loops, line.windows, *(term.sizes for term in line.right if isinstance(term, Literal)))
    return tuple(sorted({base(axis) for axis in axes}))


@lru_cache(maxsize=256)  # for one layer under several names, and in several models
def _rewritten(planned: PlannedLayer, dropout: bool, padding: bool) -> Layer:
    layer = shipped_layer(planned.base)
    for name, argument in planned.rewritings:
        layer = REWRITINGS[name](layer, json.loads(argument))
    if padding and planned.padded:
        layer = with_padding(layer)
    return with_masks(layer, planned.dropped) if dropout and planned.dropped else layer


def masks_of(table: Table) -> tuple[str, ...]:
    """Return the masks of dropout and padding among a table's inputs."""
    return tuple(name for name in table.inputs if table.values[name].role in DRAWN)


def _with_side(line: Statement, sided: tuple[str, ...]) -> Statement:
    """Return a line outside of blocks with its side, encoder or decoder, if its layer is one of these."""
    if isinstance(line, Loop) or line.meta.layer not in sided:
        return line
    return replace(line, meta=replace(line.meta, block="encoder" if "N" in line.loops else "decoder"))


def lengths_open(configuration: Configuration, seq_len: int, target_len: int) -> tuple[int | None, int | None]:
    """Return the lengths of a run, with None for those that the model fixes, such as an image's, or does not have."""
    fixed = family_of(configuration).fixed
    return None if fixed else seq_len, target_len if configuration.two_sided else None


def context_of(configuration: Configuration) -> int | None:
    """Return the context that a configuration states; None of a model with a fixed length or without one."""
    family = family_of(configuration)
    if family.fixed or family.layer is not None:
        return None
    return int(evaluate(family.length, configuration.values)) or None


def context_beyond(configuration: Configuration) -> int | None:
    """Return the context of a model whose default length is shorter; None of every other model."""
    context, family = context_of(configuration), family_of(configuration)
    return context if context and context > evaluate(family.usual_length, configuration.values) else None


def run_sizes(model: Model, batch_size: int | None, seq_len: int | None, target_len: int | None) -> dict[str, int]:
    """Return the sizes of all axes: those of the model, and B, M, N of a run, which learned positions limit.

    The encoder of an encoder-decoder reads seq_len tokens (N) and its decoder target_len (M); every other model reads
    seq_len tokens (M). A model that is a layer has the lengths that its axes M and N require. Raises `InputError`.
    """
    configuration = model.configuration
    family, values = family_of(configuration), configuration.values
    if family.layer is not None and not model.two_sided:  # its one length, under any name
        if None not in (seq_len, target_len) and seq_len != target_len:
            raise InputError(
                f"{configuration.name} has one length: give --seq-len or --target-len, not {seq_len} and {target_len}"
            )
        seq_len, target_len = seq_len or target_len, None
    longest = evaluate(family.limit, values) if family.limit and family.layer is None else 0
    fixed = evaluate(family.fixed, values) if family.fixed else 0
    if fixed and seq_len not in (None, fixed):
        raise InputError(f"{configuration.name} reads {fixed:,} positions, not {seq_len:,}: {family.fixed}")
    if family.layer is not None:
        _check_run(configuration, family.layer, dict(zip(RUN, (batch_size, seq_len, target_len), strict=True)))
    batch_size = batch_size or evaluate(family.batch, values)
    seq_len = seq_len or fixed or evaluate(family.usual_length, values) or None
    if seq_len is None:
        raise InputError(f"{configuration.name} has no default length: give --seq-len")
    if target_len is not None and not model.two_sided:
        raise InputError(f"{configuration.name} is not an encoder-decoder: remove --target-len")
    target = evaluate(family.usual_target_length, values) if family.target_length else seq_len
    lengths = {"seq_len": 0 if fixed else seq_len} | ({"target_len": target_len or target} if model.two_sided else {})
    for name, length in lengths.items():
        if longest and length > longest:
            raise InputError(f"{name} {length} is longer than the {longest} positions that {configuration.name} learns")
    run = {"B": batch_size} | ({"N": seq_len, "M": lengths["target_len"]} if model.two_sided else {"M": seq_len})
    if family.layer is not None:
        run = {"N": seq_len} | run
    late = {axis: _size(axis, rule, {**values, **run}) for axis, rule in model.rules.items() if axis not in model.sizes}
    every = {**model.sizes, **run, **late}
    if family.layer is not None:
        check_limits(family.layer, configuration.name, every)
    return every


def _check_run(configuration: Configuration, layer: Layer, lengths: Mapping[str, int | None]) -> None:
    """Refuse a run that does not give the size of an axis of a layer, or gives the size of a missing axis."""
    axes, given = letters(layer), {name for name, length in lengths.items() if length is not None}
    if {"seq_len", "target_len"} & given and not {"M", "N"} & axes.keys():
        raise InputError(f"{configuration.name} has no sequence dimension (axis M or N)")
    if lengths["batch_size"] not in (None, 1) and "B" not in axes:
        raise InputError(f"{configuration.name} has no batch dimension (axis B)")
    check_open(layer, configuration.name, {*configuration.sizes, *given})


def from_layer(layer: Layer, projected: Iterable[str] = ()) -> Model:
    """Return the model of a layer for training, without gradients of inputs; the layer must have the output `loss`.

    projected   inputs, or embeddings, to which PEPITA adds the output's error through a fixed random matrix: the
                training's input `X.F` for X
    """
    sizes = {name: size for name, size in family_of_layer(layer).sizes.items() if isinstance(size, int)}
    return replace(build(of_layer(layer, sizes, projected=projected)), differentiated=())
