"""Map the trainable parameters of a live module (`requires_grad`, peft's LoRA) to the weights of its table.

Parameters are identified by their modules: projections by the families' `[modules]`, embeddings and the head by their
use in the table, and other weights of a block (norms, single biases) by being a gain or a shift. If these are partly
frozen, they are refused as ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial
from learncost.models.adaptation import TrainableWeights, path_text
from learncost.models.model import Model
from learncost.models.modules import module_of
from learncost.models.parts import NamedParts
from learncost.models.purposes import is_attention_softmax

_MAGNITUDE = "lora_magnitude_vector"
_HEADS = ("lm_head.decoder", "predictions.decoder", "embed_out")  # next to modules with "head" in their names
_PATHS = ("lora_A", "lora_B", _MAGNITUDE)


@dataclass(frozen=True)
class LiveParameter:
    """A parameter of a live module: the module's path, its name in it, its size, and whether it is trainable."""

    path: str
    leaf: str
    size: int
    learns: bool

    @property
    def block(self) -> int | None:
        """Return the first number in its path."""
        return next((int(part) for part in self.path.split(".") if part.isdigit()), None)


@dataclass(frozen=True)
class Path:
    """A low-rank path of peft: the adapted module, its rank and its scale, and whether it is DoRA."""

    path: str
    rank: int
    scale: float
    decomposes: bool = False


def parameters_of(module: Any) -> tuple[list[LiveParameter], list[Path]]:
    """Return the distinct parameters without those of adapters, and peft's low-rank paths. Raises `InputError` for
    other adapters."""
    plain: list[LiveParameter] = []
    paths: dict[str, Path] = {}
    for name, parameter in module.named_parameters():
        path, _, leaf = name.rpartition(".")
        steps = [step for step in path.split(".") if step != "base_layer"]
        if "original_module" in steps:
            continue  # its trainable copy is listed too
        adapter_place = next(
            (place for place, step in enumerate(steps) if step.startswith(("lora_", "modules_to_save"))), None
        )
        if adapter_place is not None and steps[adapter_place] == "modules_to_save":
            steps = steps[:adapter_place] + steps[adapter_place + 2 :]
        elif adapter_place is not None:
            target = ".".join(steps[:adapter_place])
            if steps[adapter_place] not in _PATHS or leaf != "weight":
                raise InputError(f"{target} has a {steps[adapter_place]}: only peft's LoRA on projections is supported")
            if steps[adapter_place] == "lora_A":
                if target in paths:
                    raise InputError(f"{target} has several adapters: keep one")
                scaling = module.get_submodule(path.partition(".lora_A")[0]).scaling[steps[adapter_place + 1]]
                paths[target] = Path(target, int(parameter.shape[0]), float(scaling))
            elif steps[adapter_place] == _MAGNITUDE:  # after A and B
                paths[target] = replace(paths[target], decomposes=True)
            continue
        plain.append(LiveParameter(".".join(steps), leaf, int(parameter.numel()), bool(parameter.requires_grad)))
    return plain, list(paths.values())


def learned(model: Model, plain: list[LiveParameter], paths: list[Path]) -> TrainableWeights | None:
    """Return the trainable weights of a module's model; None if all learn. Raises `InputError`."""
    if all(parameter.learns for parameter in plain) and not paths:
        return None
    if any(repeat.repeats for repeat in model.table.repeats):
        raise InputError("the module's blocks share weights: give train and lora instead of requires_grad")
    reader = _WeightsReader(model)
    try:
        weights = frozenset(reader.weights(plain))
        reader.check(weights, plain)
        return reader.learned(weights, paths)
    except InputError as error:
        raise InputError(f"{error}{_call(paths)}") from None


def _call(paths: list[Path]) -> str:
    """Return the text of an error that suggests the call with the most similar low-rank paths."""
    if not paths:
        return "; lc.cost(module.config.to_dict(), train=..., train_layers=...) names the trainable parameters"
    names = ",".join(dict.fromkeys(path.path.rpartition(".")[2] for path in paths))
    ranks = f"lora_rank={paths[0].rank}, lora_alpha={paths[0].rank * paths[0].scale:g}"
    return f"; the nearest call is lc.cost(module.config.to_dict(), lora='{names}', {ranks})"


class _WeightsReader:
    def __init__(self, model: Model) -> None:
        self.model, self.parts = model, NamedParts(model)
        self.family = model.configuration.family
        self.blocks = tuple(self._blocks())

    def _blocks(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Yield the side, the iteration counted over all loops, and the weights of every block, in order."""
        before = 0
        for repeat in self.model.table.repeats:
            iterations = self.parts.iterations(repeat)
            lines = [line for line, _ in walk(repeat.lines)]
            stacks = [outer for _, outer in repeat.each if outer in self.model.table.weights]
            kinds = _kinds(lines, stacks)
            side = str(lines[0].meta.block) if self.model.two_sided else ""
            for iteration in range(iterations):
                yield from ((side, before + iteration, weights) for weights in kinds)
            before += iterations

    def place(self, path: str) -> tuple[int, tuple[str, ...]] | None:
        """Return the iteration and the weights of the block that a module's path is in; None outside of blocks."""
        number = LiveParameter(path, "", 0, False).block
        if number is None:
            return None
        side = next((part for part in path.split(".") if part in ("encoder", "decoder")), "")
        of_side = [(iteration, weights) for where, iteration, weights in self.blocks if not where or where == side]
        return of_side[number] if number < len(of_side) else None

    def weights_of_path(self, path: str, among: Iterable[str]) -> tuple[str, ...]:
        return module_of(path, self.family, among)

    def weights(self, plain: list[LiveParameter]) -> Iterator[tuple[str, int | None]]:
        """Yield the trainable weights, each with its iteration; None outside of blocks."""
        inside: dict[int, list[LiveParameter]] = {}
        places: dict[int, tuple[int, tuple[str, ...]]] = {}
        outside = []
        stacked = {name for _, _, weights in self.blocks for name in weights}
        others = [name for name in self.model.table.weights if name not in stacked]
        for parameter in plain:
            # T5's first blocks hold weights for all blocks of their stack, which are outside of our blocks.
            if (place := self.place(parameter.path)) is None or self.weights_of_path(parameter.path, others):
                outside.append(parameter)
            else:
                key = self.blocks.index(next(b for b in self.blocks if b[1:] == place))
                inside.setdefault(key, []).append(parameter)
                places[key] = place
        for key, (iteration, weights) in places.items():
            yield from ((name, iteration) for name in self.matched(inside[key], weights, f"block {key}"))
        yield from ((name, None) for name in self.matched(outside, others, "the part outside of the blocks"))

    def matched(self, theirs: list[LiveParameter], ours: Iterable[str], where: str) -> Iterator[str]:
        """Yield those of the table's weights whose parameters in the module are trainable."""
        left = dict.fromkeys(ours)
        shifts = set(self.parts.biases())
        rest = []
        for parameter in theirs:
            # experts are parameters by themselves
            path = parameter.path if parameter.leaf == "weight" else f"{parameter.path}.{parameter.leaf}"
            weights_there = self.weights_of_path(path, left) if parameter.leaf != "bias" else ()
            if parameter.leaf == "bias" and (weights := self.weights_of_path(parameter.path, self.model.table.weights)):
                weights_there = tuple(
                    name for name in self.parts.with_biases(weights) if name in left and name in shifts
                )
            if not weights_there:
                rest.append(parameter)
            for name in weights_there:
                left.pop(name)
                if parameter.learns:
                    yield name
        groups: dict[tuple[bool, int], tuple[list[bool], list[str]]] = {}
        for parameter in rest:
            groups.setdefault((parameter.leaf == "bias", parameter.size), ([], []))[0].append(parameter.learns)
        group_keys = set(groups)
        for name in left:
            size = self.size(name)
            key = (name in shifts, size)
            if key not in group_keys and (not key[0], size) in group_keys:
                key = (not key[0], size)  # learned positions are added like a bias under another name, as in ViT
            groups.setdefault(key, ([], []))[1].append(name)
        for learns, names in groups.values():
            if not names or not any(learns):
                continue
            if all(learns):
                yield from names
            elif len(learns) == len(names):  # of one kind and size, in the order in which they are read
                yield from (name for name, is_learning in zip(names, learns, strict=True) if is_learning)
            else:
                raise InputError(
                    f"{where} is partly frozen, and its weights cannot be identified: freeze all or none of it"
                )

    def check(self, weights: Iterable[tuple[str, int | None]], plain: list[LiveParameter]) -> None:
        """Raise `InputError` if the module has more trainable elements than identified weights and unused
        parameters."""
        ours, theirs = (
            sum(self.size(name) for name, _ in weights),
            sum(parameter.size for parameter in plain if parameter.learns),
        )
        if not ours <= theirs <= ours + self.model.configuration.unread:
            raise InputError(f"{theirs:,} parameters are trainable, but only {ours:,} could be identified")

    def size(self, name: str) -> int:
        """Return the number of elements of a weight; for a stack, of one iteration."""
        axes = self.model.table.axes[name]
        counts = {repeat.count for repeat in self.model.table.repeats}
        return int(Polynomial.of(axis for axis in axes if axis not in counts).at(self.model.sizes))

    def learned(self, weights: frozenset[tuple[str, int | None]], paths: list[Path]) -> TrainableWeights:
        iterations: dict[str, set[int]] = {}
        outside: dict[str, None] = {}
        for path in paths:
            place = self.place(path.path)
            among = place[1] if place else [w for w in self.model.table.weights if w not in self.parts.in_blocks]
            is_head = "head" in path.path.rpartition(".")[2] or path.path.endswith(_HEADS)
            adapted = self.weights_of_path(path.path, among) or (("head",) if is_head and not place else ())
            if not adapted:
                raise InputError(f"{path.path} has a low-rank path whose weight cannot be identified")
            for name in adapted:
                if place:
                    iterations.setdefault(name, set()).add(place[0])
                else:
                    outside[name] = None
        shapes = {(path.rank, path.scale, path.decomposes) for path in paths}
        if len(shapes) > 1:
            raise InputError(f"low-rank paths with different ranks, scales or DoRA are not supported: {sorted(shapes)}")
        if not paths:
            return TrainableWeights("from the live module's requires_grad", weights)
        ((rank, scale, decomposes),) = shapes
        alpha = scale * rank
        self.identical(iterations)
        names = (*dict.fromkeys(iterations), *outside)
        blocks = frozenset(iteration for path_iterations in iterations.values() for iteration in path_iterations)
        text = f"{path_text(decomposes, rank, alpha, names)}, from the live module"
        more = "; and its requires_grad" if weights else ""
        return TrainableWeights(f"{text}{more}", weights, names, blocks, rank, alpha, decomposes)

    def identical(self, iterations: Mapping[str, set[int]]) -> None:
        """Raise `InputError` unless every adapted weight has a low-rank path in all adapted iterations."""
        every = {iteration for path_iterations in iterations.values() for iteration in path_iterations}
        for name, path_iterations in iterations.items():
            present = {iteration for _, iteration, weights in self.blocks if name in weights}
            if path_iterations != every & present:
                raise InputError(
                    f"{name} has a low-rank path in different blocks than other weights, which is not supported"
                )


def _kinds(lines: list[Line], stacks: list[str]) -> tuple[tuple[str, ...], ...]:
    """Return the weights of each block of an iteration; several blocks are distinguished by the prefixes of their
    weights."""
    if sum(map(is_attention_softmax, lines)) < 2:
        return (tuple(stacks),)
    kinds: dict[str, list[str]] = {}
    for name in stacks:
        kinds.setdefault(name.partition(".")[0], []).append(name)
    return tuple(map(tuple, kinds.values()))
