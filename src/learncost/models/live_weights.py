"""What learns in a live module: its parameters, their `requires_grad`, and peft's low-rank paths, as weights of ours.

A parameter is found by the module that holds it: projections by the families' `[modules]`, embeddings and a head by
what the table does with them, and what is left of a block (norms, single biases) by whether it is a gain or a shift.
What is left and is frozen in part, so that names would decide, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from learncost.equation.count import Count
from learncost.equation.errors import InputError
from learncost.equation.table import Line, Repeat, Word, walk
from learncost.models.adaptation import Learned
from learncost.models.model import Model
from learncost.models.modules import module_of
from learncost.models.parts import Parts, repeats

_PATHS = ("lora_A", "lora_B")


@dataclass(frozen=True)
class Parameter:
    """A parameter: the path of the module that holds it, its own name there, its size, whether it learns."""

    path: str
    leaf: str
    size: int
    learns: bool

    @property
    def block(self) -> int | None:
        """The first number in its path."""
        return next((int(part) for part in self.path.split(".") if part.isdigit()), None)


@dataclass(frozen=True)
class Path:
    """A low-rank path of peft: the module that it is beside, its rank, what its result is multiplied by."""

    path: str
    rank: int
    scale: float


def parameters_of(module: Any) -> tuple[list[Parameter], list[Path]]:
    """The parameters as they are without adapters, each once, and peft's paths. Raises `InputError` for others."""
    plain: list[Parameter] = []
    paths: dict[str, Path] = {}
    for name, own in module.named_parameters():
        path, _, leaf = name.rpartition(".")
        steps = [step for step in path.split(".") if step != "base_layer"]
        if "original_module" in steps:
            continue  # beside it stands the copy that learns
        found = next((place for place, step in enumerate(steps) if step.startswith(("lora_", "modules_to_save"))), None)
        if found is not None and steps[found] == "modules_to_save":
            steps = steps[:found] + steps[found + 2 :]
        elif found is not None:
            beside = ".".join(steps[:found])
            if steps[found] not in _PATHS or leaf != "weight":
                raise InputError(f"{beside} has a {steps[found]}: of peft's adapters only LoRA on projections is known")
            if steps[found] == "lora_A":
                if beside in paths:
                    raise InputError(f"{beside} has several adapters: keep the one that is to be counted")
                scaling = module.get_submodule(path.partition(".lora_A")[0]).scaling[steps[found + 1]]
                paths[beside] = Path(beside, int(own.shape[0]), float(scaling))
            continue
        plain.append(Parameter(".".join(steps), leaf, int(own.numel()), bool(own.requires_grad)))
    return plain, list(paths.values())


def learned(model: Model, plain: list[Parameter], paths: list[Path]) -> Learned | None:
    """What learns of a model, of a module whose parameters these are; None where all do. Raises `InputError`."""
    if all(own.learns for own in plain) and not paths:
        return None
    if any(isinstance(line, Repeat) for repeat in repeats(model.table) for line in repeat.lines):
        raise InputError(
            "a module whose blocks share weights is counted as a whole: say with train and lora what learns"
        )
    reader = _Reader(model)
    try:
        weights = frozenset(reader.weights(plain))
        reader.check(weights, plain)
        return reader.told(weights, paths)
    except InputError as error:
        raise InputError(f"{error}{_call(paths)}") from None


def _call(paths: list[Path]) -> str:
    """The call that is nearest to a module's low-rank paths, for the end of a refusal."""
    if not paths:
        return "; lc.cost(module.config.to_dict(), train=..., train_layers=...) says in words what learns"
    names = ",".join(dict.fromkeys(own.path.rpartition(".")[2] for own in paths))
    ranks = f"lora_rank={paths[0].rank}, lora_alpha={paths[0].rank * paths[0].scale:g}"
    return f"; the nearest call is lc.cost(module.config.to_dict(), lora='{names}', {ranks})"


class _Reader:
    def __init__(self, model: Model) -> None:
        self.model, self.parts = model, Parts(model)
        self.family = model.configuration.family
        self.blocks = tuple(self._blocks())

    def _blocks(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Side, turn through all repeats and weights of every block, in order."""
        before = 0
        for repeat in repeats(self.model.table):
            turns = self.parts.turns(repeat)
            lines = [line for line, _ in walk(repeat.lines)]
            stacks = [outer for _, outer in repeat.each if outer in self.model.table.weights]
            kinds = _kinds(lines, stacks)
            side = str(lines[0].tag.block) if self.model.two_sided else ""
            for turn in range(turns):
                yield from ((side, before + turn, own) for own in kinds)
            before += turns

    def place(self, path: str) -> tuple[int, tuple[str, ...]] | None:
        """The turn and the weights of the block that a path is in."""
        number = Parameter(path, "", 0, False).block
        if number is None:
            return None
        side = next((part for part in path.split(".") if part in ("encoder", "decoder")), "")
        own = [(turn, weights) for where, turn, weights in self.blocks if not where or where == side]
        return own[number] if number < len(own) else None

    def held(self, path: str, among: Iterable[str]) -> tuple[str, ...]:
        return module_of(path, self.family, among)

    def weights(self, plain: list[Parameter]) -> Iterator[tuple[str, int | None]]:
        """The weights that learn, in which turn."""
        inside: dict[int, list[Parameter]] = {}
        places: dict[int, tuple[int, tuple[str, ...]]] = {}
        outside = []
        stacked = {name for _, _, weights in self.blocks for name in weights}
        others = [name for name in self.model.table.weights if name not in stacked]
        for own in plain:
            # What T5's first blocks hold for all blocks of their stack stands outside of ours.
            if (place := self.place(own.path)) is None or self.held(own.path, others):
                outside.append(own)
            else:
                key = self.blocks.index(next(b for b in self.blocks if b[1:] == place))
                inside.setdefault(key, []).append(own)
                places[key] = place
        for key, (turn, weights) in places.items():
            yield from ((name, turn) for name in self.matched(inside[key], weights, f"block {key}"))
        yield from ((name, None) for name in self.matched(outside, others, "what stands outside of the blocks"))

    def matched(self, theirs: list[Parameter], ours: Iterable[str], where: str) -> Iterator[str]:
        """Of our weights those that learn as theirs do."""
        left = dict.fromkeys(ours)
        shifts = set(self.parts.biases())
        rest = []
        for own in theirs:
            path = (
                own.path if own.leaf == "weight" else f"{own.path}.{own.leaf}"
            )  # experts are parameters by themselves
            held = self.held(path, left) if own.leaf != "bias" else ()
            if own.leaf == "bias" and (weights := self.held(own.path, self.model.table.weights)):
                held = tuple(name for name in self.parts.with_biases(weights) if name in left and name in shifts)
            if not held:
                rest.append(own)
            for name in held:
                left.pop(name)
                if own.learns:
                    yield name
        groups: dict[tuple[bool, int], tuple[list[bool], list[str]]] = {}
        for own in rest:
            groups.setdefault((own.leaf == "bias", own.size), ([], []))[0].append(own.learns)
        named = set(groups)
        for name in left:
            size = self.size(name)
            key = (name in shifts, size)
            if key not in named and (not key[0], size) in named:
                key = (not key[0], size)  # learned positions are added like a bias and called otherwise, as in ViT
            groups.setdefault(key, ([], []))[1].append(name)
        for learns, names in groups.values():
            if not names or not any(learns):
                continue
            if all(learns):
                yield from names
            elif len(learns) == len(names):  # of one kind and size, in the order in which they are read
                yield from (name for name, own in zip(names, learns, strict=True) if own)
            else:
                raise InputError(
                    f"some of {where} is frozen and some is not, and which of our weights those are is not known"
                )

    def check(self, weights: Iterable[tuple[str, int | None]], plain: list[Parameter]) -> None:
        """As many elements must learn as do there; what nothing reads may do as it likes."""
        own, theirs = sum(self.size(name) for name, _ in weights), sum(one.size for one in plain if one.learns)
        if not own <= theirs <= own + self.model.configuration.unread:
            raise InputError(f"{theirs:,} parameters learn, and of our weights {own:,} were found to")

    def size(self, name: str) -> int:
        """The elements of a weight, of one turn where it is a stack."""
        axes = self.model.table.axes[name]
        counts = {repeat.count for repeat in repeats(self.model.table)}
        return int(Count.of(axis for axis in axes if axis not in counts).at(self.model.sizes))

    def told(self, weights: frozenset[tuple[str, int | None]], paths: list[Path]) -> Learned:
        turns: dict[str, set[int]] = {}
        outside: dict[str, None] = {}
        for own in paths:
            place = self.place(own.path)
            among = place[1] if place else [w for w in self.model.table.weights if w not in self.parts.in_blocks]
            held = self.held(own.path, among) or (("head",) if not place and _is_head(own.path) else ())
            if not held:
                raise InputError(f"{own.path} has a low-rank path, and which of our weights it is beside is not known")
            for name in held:
                if place:
                    turns.setdefault(name, set()).add(place[0])
                else:
                    outside[name] = None
        shapes = {(own.rank, own.scale) for own in paths}
        if len(shapes) > 1:
            raise InputError(f"low-rank paths of different ranks or scales are not counted together: {sorted(shapes)}")
        if not paths:
            return Learned("as the live module's requires_grad says", weights)
        ((rank, scale),) = shapes
        alpha = scale * rank
        self.alike(turns)
        names = (*dict.fromkeys(turns), *outside)
        blocks = frozenset(turn for own in turns.values() for turn in own)
        text = f"LoRA of rank {rank} and alpha {alpha:g} on {', '.join(names)}, as the live module has it"
        more = "; and what its requires_grad says" if weights else ""
        return Learned(f"{text}{more}", weights, names, blocks, rank, alpha)

    def alike(self, turns: Mapping[str, set[int]]) -> None:
        """Every adapted weight must have its path in all of the adapted turns in which it stands."""
        every = {turn for own in turns.values() for turn in own}
        for name, own in turns.items():
            stands = {turn for _, turn, weights in self.blocks if name in weights}
            if own != every & stands:
                raise InputError(f"{name} has a low-rank path in other blocks than others have theirs: not known")


def _is_head(path: str) -> bool:
    """Whether a module is the matrix of the logits: lm_head, embed_out, or the decoder inside of an lm_head."""
    return "head" in path.rpartition(".")[2] or path.endswith(("lm_head.decoder", "predictions.decoder", "embed_out"))


def _kinds(lines: list[Line], stacks: list[str]) -> tuple[tuple[str, ...], ...]:
    """The weights of each block of a turn: with several blocks, by the name of the kind in front of theirs."""
    softmaxes = [li for li in lines if isinstance(li, Word) and li.word.startswith("softmax") and _attends(li)]
    if len(softmaxes) < 2:
        return (tuple(stacks),)
    found: dict[str, list[str]] = {}
    for name in stacks:
        found.setdefault(name.partition(".")[0], []).append(name)
    return tuple(map(tuple, found.values()))


def _attends(line: Line) -> bool:
    return "attention" in line.tag.layer and "cross" not in line.tag.layer
