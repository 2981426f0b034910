"""Adaptation: which weights of a model learn, and low-rank paths beside some. A rewriting of the model's table.

What is frozen is simply not wanted when the step is derived: no update of it, and no backward line that nothing trained
needs. The turns of a repeat share one body, so a repeat is split where its turns differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite

from learncost.ir.errors import InputError, shown
from learncost.ir.table import Table
from learncost.layers.gradient_plan import GradientPlan
from learncost.models.model import Model, masks_of
from learncost.models.parts import NamedParts, sliced
from learncost.models.sizes import check_size
from learncost.passes.rewrite_lora import RANK, with_lora
from learncost.passes.split import LoopPart, flat, split

RANK_OF_PATHS, ALPHA = 8, 16.0
"""Where none is given: r = 8 as peft has it, and alpha = 2 r."""


@dataclass(frozen=True)
class Adaptation:
    """What learns, as it was asked for: names of weights, layers, and projections with a low-rank path."""

    train: tuple[str, ...] = ()
    layers: str = ""
    lora: tuple[str, ...] = ()
    rank: int = RANK_OF_PATHS
    alpha: float = ALPHA

    def __str__(self) -> str:
        blocks = f" of layers {self.layers}" if self.layers else ""
        path = f"LoRA of rank {self.rank} and alpha {self.alpha:g} on {', '.join(self.lora)}{blocks}"
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
    quantizes: bool = False,
) -> Adaptation | None:
    """What `cost` is given about learning, checked; None where all weights learn.

    train   all, none, head, embeddings, biases, or names of weights and modules, with commas between
    layers  10-11, 0,2,5-7, first 2 or last 2: which blocks learn or have low-rank paths, counted from 0
    lora    projections with a low-rank path: names of modules or weights, attention, feed_forward, all-linear
    quantizes  whether frozen matrices are quantized: a rank alone is then that of paths beside all linear layers
    Raises `InputError`.
    """
    if quantizes and lora is None and (rank is not None or alpha is not None):
        lora = "all-linear"
    if lora is None and (rank is not None or alpha is not None):
        argument = "lora_rank" if rank is not None else "lora_alpha"
        raise InputError(
            f"{argument} belongs to low-rank paths: say with lora where they are, such as lora = 'all-linear'"
        )
    chosen = _listed("train", train)
    if len(chosen) > 1 and ({"all", "none"} & set(chosen)):
        raise InputError(f"train is all, none, or names: not {shown(train)}")
    paths = _listed("lora", lora)
    where = _layers_text(layers)
    if not paths and not where and chosen in ((), ("all",)):
        return None
    size = RANK_OF_PATHS if rank is None else check_size("lora_rank", rank)
    return Adaptation(chosen, where, paths, size, ALPHA if alpha is None else _alpha(alpha))


def _listed(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    items = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else [value]
    names = [item.strip() if isinstance(item, str) else "" for item in items]
    if not names or not all(names):
        raise InputError(f"{name} must be names with commas between them, not {shown(value)}")
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
        raise InputError(f"train_layers must be such as 10-11, 0,2,5-7 or last 2, not {shown(value)}")
    return " ".join(value.split())


def _alpha(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever does not convert is refused
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if isinstance(value, bool) or not isfinite(number) or number <= 0:
        raise InputError(f"lora_alpha must be a number above 0, not {shown(value)}")
    return number


@dataclass(frozen=True)
class Learned:
    """What learns, weight by weight, as a live module has it.

    weights  names of weights; with a number, only in that turn of the repeats, counted through all of them from 0
    paths    weights with a low-rank path, in the turns of `path_iterations`, of a rank and an alpha
    """

    text: str
    weights: frozenset[tuple[str, int | None]]
    paths: tuple[str, ...] = ()
    path_iterations: frozenset[int] = frozenset()
    rank: int = RANK_OF_PATHS
    alpha: float = ALPHA

    def __str__(self) -> str:
        return self.text


_Run = tuple[int, int, frozenset[str]]
"""From a turn to a turn of the repeats, counted through all of them: what learns there."""


def adapted(model: Model, learned: Adaptation | Learned) -> Model:
    """The model in which only what is asked for learns: its table rewritten, its `trained` weights named.

    Weights of split repeats are named apart by layers: `attn.WQ@0-9` and `attn.WQ@10-11`. Raises `InputError`.
    """
    model = replace(model, table=flat(model.table, model.sizes))
    parts = NamedParts(model)
    projections = parts.projections(learned.paths if isinstance(learned, Learned) else learned.lora)
    table = with_lora(model.table, projections, learned.alpha / learned.rank)
    paths = frozenset(table.weights) - frozenset(model.table.weights)
    learning: frozenset[str]
    runs: list[_Run]
    if isinstance(learned, Learned):
        learning = paths | {name for name, _ in learned.weights}
        runs = _runs(learned, paths)
    else:
        learning = paths | _selected(parts, learned)
        all_iterations = ((0, sum(map(parts.iterations, model.table.repeats))),)
        runs = [(a, b, learning) for a, b in parts.stretches(learned.layers) or all_iterations]
    built = _apart(model, table, parts, learning, runs, paths)
    return replace(built, sizes={**model.sizes, RANK: learned.rank} if paths else model.sizes)


def _runs(learned: Learned, paths: frozenset[str]) -> list[_Run]:
    """Turns with the same weights in one run."""
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
    """The model with its repeats split where their turns learn other weights. `table` has the paths in every turn."""
    reach = GradientPlan(frozenset(table.weights))
    reach.needs(table.lines, {*model.differentiated, *learning})
    split_table, trained, before = table, set(learning - sliced(table)), 0
    for repeat, plain in zip(table.repeats, model.table.repeats, strict=True):
        iterations = parts.iterations(repeat)
        learning_here = learning & ({outer for _, outer in repeat.each} | {*repeat.shared})
        stacks = learning_here & sliced(table)
        inside = [(max(a - before, 0), min(b - before, iterations - 1), weights) for a, b, weights in runs]
        # Weights that all turns share learn wherever they are read.
        inside = [
            (a, b, (weights | (learning_here - stacks)) & learning_here)
            for a, b, weights in inside
            if a <= b and weights & learning_here
        ]
        if not inside and learning_here - stacks:
            inside = [(0, iterations - 1, learning_here - stacks)]
        before += iterations
        every = any(name in reach.needed for name in repeat.shared)
        alone = any(carry.initial not in reach.needed for carry in repeat.carry)
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
    read = {name for line in split_table.lines for name in line.reads}  # paths may be in no layer of a repeat
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


def learned_text(model: Model, learned: Adaptation | Learned) -> str:
    """What learns, in words; where a matrix is both head and embedding, that training one is training both."""
    read = [name for line in model.table.lines for name in line.reads]
    looked_up = {name for name in NamedParts(model).embeddings if read.count(name) > 1}
    both = "; head and embedding are one matrix, which learns in both places" if looked_up & {*model.learning} else ""
    return f"{learned}{both}"


def _selected(parts: NamedParts, asked_for: Adaptation) -> set[str]:
    """The weights of the model itself that learn, in the layers that do.

    Where layers are given, what stands outside of them learns only if `train` names it.
    """
    everything = set(parts.table.weights)
    if not asked_for.train:
        return set() if asked_for.lora else everything & parts.in_blocks if asked_for.layers else everything
    chosen = {weight for name in asked_for.train for weight in parts.weights_meant(name)}
    if asked_for.layers and not asked_for.lora and asked_for.train != ("none",) and not chosen & parts.in_blocks:
        chosen |= parts.in_blocks
    return chosen


def _pieces(iterations: int, inside: Iterable[_Run], every: bool, alone: bool) -> tuple[_Run, ...]:
    """The turns in stretches that are alike: first, last, and what learns there.

    every   a value that all turns read has a gradient, so that every turn goes backward
    alone   nothing below wants a gradient: the first turn that goes backward stands by itself
    """
    inside = tuple(inside)
    cuts = {0, iterations} | {a for a, _, _ in inside} | {b + 1 for _, b, _ in inside}
    if alone and (every or inside):
        first = 0 if every else inside[0][0]
        cuts |= {first, first + 1}
    nothing: frozenset[str] = frozenset()

    def learns(iteration: int) -> frozenset[str]:
        return next((weights for low, high, weights in inside if low <= iteration <= high), nothing)

    return tuple((a, b - 1, learns(a)) for a, b in pairwise(sorted(cuts)))
