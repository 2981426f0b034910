"""Adaptation: rewrite a model's table so that chosen weights learn, and add low-rank paths (LoRA).

Frozen weights have no update in the derived step, which has only the backward lines that trainable weights need. The
iterations of a loop share one body, so a loop is split where its iterations differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, real_number, shown
from learncost.ir.table import Table
from learncost.layers.gradient_plan import GradientPlan
from learncost.models.model import Model, masks_of
from learncost.models.parts import NamedParts, sliced
from learncost.models.sizes import check_size
from learncost.passes.rewrite_lora import RANK, with_lora
from learncost.passes.split import LoopPart, flat, split

RANK_OF_PATHS, ALPHA = 8, 16.0
"""The default rank and alpha of low-rank paths: peft's r = 8, and alpha = 2 r."""


@dataclass(frozen=True)
class Adaptation:
    """The trainable parameters that a user requests: names of weights, layers, and projections with a low-rank path."""

    train: tuple[str, ...] = ()
    layers: str = ""
    lora: tuple[str, ...] = ()
    rank: int = RANK_OF_PATHS
    alpha: float = ALPHA
    decomposes: bool = False  # DoRA

    def __str__(self) -> str:
        blocks = f" of layers {self.layers}" if self.layers else ""
        path = f"{path_text(self.decomposes, self.rank, self.alpha, self.lora)}{blocks}"
        weights_text = ", ".join(self.train)
        if self.lora:
            return f"{path}; {weights_text}" if self.train else path
        if self.layers:
            return f"layers {self.layers}; {weights_text}" if self.train else f"layers {self.layers}"
        return weights_text or "all"


def adaptation(
    train: object = None,
    layers: object = None,
    lora: object = None,
    rank: object = None,
    alpha: object = None,
    dora: bool | None = None,
    quantizes: bool = False,
) -> Adaptation | None:
    """Return the validated arguments about trainable parameters; None if all weights are trained.

    train   all, none, head, embeddings, biases, or a comma-separated list of weights and modules
    layers  the blocks that are trained or have low-rank paths, from 0: 10-11, 0,2,5-7, first 2 or last 2
    lora    projections with a low-rank path: names of modules or weights, attention, feed_forward, all-linear
    dora    whether magnitudes of the adapted weights are trained, too
    quantizes  whether frozen matrices are quantized; a rank without `lora` then adapts all linear layers
    Raises `InputError`.
    """
    of_paths = {"--lora-rank": rank, "--lora-alpha": alpha, "--dora": dora or None}
    argument = next((flag for flag, given in of_paths.items() if given is not None), "")
    if argument and lora is None:
        if not quantizes:
            raise InputError(f"{argument} requires --lora, for example --lora all-linear")
        lora = "all-linear"
    chosen = _listed("train", train)
    if len(chosen) > 1 and ({"all", "none"} & set(chosen)):
        raise InputError(f"train must be all, none or names, not {shown(train)}")
    paths = _listed("lora", lora)
    where = _layers_text(layers)
    if not paths and not where and chosen in ((), ("all",)):
        return None
    size = RANK_OF_PATHS if rank is None else check_size("lora_rank", rank)
    if not 0 < (scale := ALPHA if alpha is None else real_number(alpha)) < inf:
        raise InputError(f"lora_alpha must be a number above 0, not {shown(alpha)}")
    return Adaptation(chosen, where, paths, size, scale, bool(dora))


def path_text(decomposes: bool, rank: int, alpha: float, adapted_names: Iterable[str]) -> str:
    """Return the text of low-rank paths and what they adapt."""
    return f"{'DoRA' if decomposes else 'LoRA'} of rank {rank} and alpha {alpha:g} on {', '.join(adapted_names)}"


def _listed(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    items = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else [value]
    names = [item.strip() if isinstance(item, str) else "" for item in items]
    if not names or not all(names):
        raise InputError(f"{name} must be a comma-separated list of names, not {shown(value)}")
    return tuple(dict.fromkeys(names))


def _layers_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    ):
        return ",".join(map(str, value))
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"train_layers must be a range such as 10-11, 0,2,5-7 or last 2, not {shown(value)}")
    return " ".join(value.split())


@dataclass(frozen=True)
class TrainableWeights:
    """The trainable weights of a live module.

    weights  names of weights, each with the iteration in which it is trained, counted over all loops; None for all
    paths    weights with a low-rank path in the iterations `path_iterations`
    """

    text: str
    weights: frozenset[tuple[str, int | None]]
    paths: tuple[str, ...] = ()
    path_iterations: frozenset[int] = frozenset()
    rank: int = RANK_OF_PATHS
    alpha: float = ALPHA
    decomposes: bool = False

    def __str__(self) -> str:
        return self.text


_Run = tuple[int, int, frozenset[str]]
"""The first and last iteration of a range, counted over all loops, and the weights that are trained in it."""


def adapted(model: Model, learned: Adaptation | TrainableWeights) -> Model:
    """Return the model with its table rewritten so that only the requested weights are trained.

    Weights of split loops are named by their layers, as in `attn.WQ@0-9` and `attn.WQ@10-11`. Raises `InputError`.
    """
    model = replace(model, table=flat(model.table, model.sizes))
    parts = NamedParts(model)
    projections = parts.projections(learned.paths if isinstance(learned, TrainableWeights) else learned.lora)
    table = with_lora(model.table, projections, learned.alpha / learned.rank, learned.decomposes)
    paths = frozenset(table.weights) - frozenset(model.table.weights)
    learning: frozenset[str]
    runs: list[_Run]
    if isinstance(learned, TrainableWeights):
        learning = paths | {name for name, _ in learned.weights}
        runs = _runs(learned, paths)
    else:
        learning = paths | _selected(parts, learned)
        all_iterations = ((0, sum(map(parts.iterations, model.table.repeats))),)
        runs = [(a, b, learning) for a, b in parts.stretches(learned.layers) or all_iterations]
    built = _apart(model, table, parts, learning, runs, paths)
    return replace(built, sizes={**model.sizes, RANK: learned.rank} if paths else model.sizes)


def _runs(learned: TrainableWeights, paths: frozenset[str]) -> list[_Run]:
    """Return ranges of consecutive iterations in which the same weights are trained."""
    iterations: dict[int, set[str]] = {iteration: set(paths) for iteration in learned.path_iterations}
    for name, iteration in learned.weights:
        if iteration is not None:
            iterations.setdefault(iteration, set()).add(name)
    runs: list[_Run] = []
    for iteration, names in sorted(iterations.items()):
        if runs and runs[-1][1] == iteration - 1 and runs[-1][2] == names:
            runs[-1] = (runs[-1][0], iteration, runs[-1][2])
        else:
            runs.append((iteration, iteration, frozenset(names)))
    return runs


def _apart(
    model: Model, table: Table, parts: NamedParts, learning: frozenset[str], runs: Iterable[_Run], paths: frozenset[str]
) -> Model:
    """Return the model with its loops split between iterations that train different weights; `table` has all low-rank
    paths."""
    reach = GradientPlan(frozenset(table.weights))
    reach.needs(table.lines, {*model.differentiated, *learning})
    split_table, trained, before = table, set(learning - sliced(table)), 0
    for repeat, plain in zip(table.repeats, model.table.repeats, strict=True):
        iterations = parts.iterations(repeat)
        learning_here = learning & ({outer for _, outer in repeat.each} | {*repeat.shared})
        stacks = learning_here & sliced(table)
        inside = [(max(a - before, 0), min(b - before, iterations - 1), weights) for a, b, weights in runs]
        # Weights shared by all iterations learn in every reader.
        inside = [
            (a, b, (weights | (learning_here - stacks)) & learning_here)
            for a, b, weights in inside
            if a <= b and weights & learning_here
        ]
        if not inside and learning_here - stacks:
            inside = [(0, iterations - 1, learning_here - stacks)]
        before += iterations
        every = any(name in reach.needed for name in repeat.shared)
        alone = parts.is_counted(repeat) and any(carry.initial not in reach.needed for carry in repeat.carry)
        pieces = [
            (LoopPart(a, b, repeat if weights & paths or not learning_here & paths else plain), weights)
            for a, b, weights in _pieces(iterations, inside, every, alone)
        ]
        if len(pieces) > 1 or (alone and iterations == 1 and pieces[0][1]):
            split_table = split(split_table, repeat, (part for part, _ in pieces))
            trained |= {f"{name}{part.mark}" for part, weights in pieces for name in weights & stacks}
            continue
        ((part, weights),) = pieces
        trained |= weights & stacks
        body = part.body if weights else plain
        split_table = replace(split_table, lines=tuple(body if line is repeat else line for line in split_table.lines))
    read = {name for line in split_table.lines for name in line.reads}  # a loop may have no layer with paths
    values = split_table.values
    split_table = replace(
        split_table, weights=tuple(n for n in split_table.weights if n in read or (values[n].group or n) not in paths)
    )
    return replace(
        model,
        table=split_table,
        masks=masks_of(split_table),
        trained=tuple(name for name in split_table.weights if name in trained),
    )


def trainable_text(model: Model, learned: Adaptation | TrainableWeights) -> str:
    """Return a description of the trainable parameters, with a note if a tied head and embedding are trained
    together."""
    read = [name for line in model.table.lines for name in line.reads]
    looked_up = {name for name in NamedParts(model).embeddings if read.count(name) > 1}
    both = "; head and embedding are tied, so both learn" if looked_up & {*model.learning} else ""
    return f"{learned}{both}"


def _selected(parts: NamedParts, asked_for: Adaptation) -> set[str]:
    """Return the trainable weights of the model, without adapters, in the chosen layers.

    If layers are chosen, weights outside of all layers are trained only if `train` names them.
    """
    everything = set(parts.table.weights)
    if not asked_for.train:
        return set() if asked_for.lora else everything & parts.in_blocks if asked_for.layers else everything
    chosen = {weight for name in asked_for.train for weight in parts.weights_meant(name)}
    if asked_for.layers and not asked_for.lora and asked_for.train != ("none",) and not chosen & parts.in_blocks:
        chosen |= parts.in_blocks
    return chosen


def _pieces(iterations: int, inside: Iterable[_Run], every: bool, alone: bool) -> tuple[_Run, ...]:
    """Return the ranges of identical iterations, each with the weights that are trained in it.

    every   whether all iterations have a backward pass, as they read a value with a gradient
    alone   whether the first iteration with a backward pass is separate, as no earlier line needs a gradient
    """
    inside = tuple(inside)
    cuts = {0, iterations} | {a for a, _, _ in inside} | {b + 1 for _, b, _ in inside}
    if alone and (every or inside):
        first = 0 if every else inside[0][0]
        cuts |= {first, first + 1}
    nothing: frozenset[str] = frozenset()

    def trained(iteration: int) -> frozenset[str]:
        return next((weights for low, high, weights in inside if low <= iteration <= high), nothing)

    return tuple((a, b - 1, trained(a)) for a, b in pairwise(sorted(cuts)))
