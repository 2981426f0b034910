"""Resolve users' names in a model's table: head, embeddings, biases, projections, layers."""

from __future__ import annotations

from collections.abc import Iterable

from learncost.ir.errors import InputError, nearest, shown
from learncost.ir.line import Line, Sum
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.models.model import Model
from learncost.models.modules import is_module, joint, names, weights_named
from learncost.models.purposes import layers_with, linear_layers
from learncost.ops import is_normalization
from learncost.passes.rewrite_lora import LoraTarget, is_linear, is_lookup, is_of_experts

_HEAD, _EMBEDDINGS = ("head", "lm_head", "proj_out"), ("embeddings", "wte", "embed_tokens", "word_embeddings")
_LINEAR, _GROUPS = ("all-linear", "linear"), ("attention", "feed_forward")
_MOST_NAMES = 40  # known names in one error message
_PARTS = ("all", "none", "head", "embeddings", "biases")


def sliced(table: Table) -> set[str]:
    """Return the stacks that the iterations of loops read slices of."""
    return {outer for repeat in table.repeats for _, outer in repeat.each}


def spans(text: str, count: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges (first, last) of layers that a text means, in order; layers are counted from 0 to `count` - 1.

    >>> spans("0,2,5-7", 12), spans("last 2", 12)
    (((0, 0), (2, 2), (5, 7)), ((10, 11),))
    """
    wrong = InputError(
        f"train_layers must be a range of the layers 0 to {count - 1:,}, such as 10-11, 0,2,5-7 or last 2, not "
        f"{shown(text)}"
    )
    end, _, number = text.partition(" ")
    if end in ("first", "last"):
        if not _is_number(number) or not 1 <= int(number) <= count:
            raise wrong
        return ((0, int(number) - 1),) if end == "first" else ((count - int(number), count - 1),)
    stretches: list[tuple[int, int]] = []
    for item in text.split(","):
        first, dash, last = (part.strip() for part in item.partition("-"))
        last = last if dash else first
        if not (_is_number(first) and _is_number(last)) or not int(first) <= int(last) < count:
            raise wrong
        stretches.append((int(first), int(last)))
    merged: list[tuple[int, int]] = []
    for first_, last_ in sorted(stretches):
        if merged and first_ <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last_, merged[-1][1])
        else:
            merged.append((first_, last_))
    return tuple(merged)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 13


class NamedParts:
    """The parts of a model's table that users may name."""

    def __init__(self, model: Model) -> None:
        self.model, self.table = model, model.table
        self.family = model.configuration.family
        self.weights = frozenset(self.table.weights)
        self.in_blocks = sliced(self.table) & self.weights
        self.lines = tuple(line for line, _ in walk(self.table.lines))
        places = [place for place, line in enumerate(self.table.lines) if isinstance(line, Loop)]
        outside = [line for line in self.table.lines if isinstance(line, Line)]
        after = self.table.lines[places[-1] + 1 :] if places else self.table.lines
        # The head is everything after the last block except norms: also BERT's transformation, and a pooler. A network
        # without blocks ends with its last product with a weight.
        if not places:
            last = max((n for n, line in enumerate(after) if self._multiplies(line)), default=0)
            after = after[last:]
        norms = layers_with(self.lines, is_normalization) - layers_with(self.lines, self._multiplies)
        self.head = self.read_by(line for line in after if isinstance(line, Line) and line.meta.layer not in norms)
        self.embeddings = tuple(w for w in self.table.weights if any(_looks_up(line, w) for line in outside))
        linear = linear_layers(model)
        self.linear = tuple(weight for weight in self.table.weights if weight in linear)
        if model.configuration.layer and model.learns:  # without a separate name for the output layer
            self.linear = tuple(weight for weight in self.linear if weight not in self.head)

    def read_by(self, lines: Iterable[Line]) -> tuple[str, ...]:
        """Return the weights that some lines read."""
        read = {name for line in lines for name in line.reads}
        return tuple(weight for weight in self.table.weights if weight in read)

    def _multiplies(self, line: Statement) -> bool:
        return isinstance(line, Line) and any(is_linear(line, name) for name in line.reads if name in self.weights)

    def is_counted(self, repeat: Loop) -> bool:
        """Return whether a loop is over blocks, whose number is known; a recurrence is over the positions of a run."""
        return repeat.count.isdigit() or repeat.count in self.model.sizes

    def iterations(self, repeat: Loop) -> int:
        """Return the number of blocks of a loop; a recurrence is one."""
        return int(size_of(repeat.count, self.model.sizes)) if self.is_counted(repeat) else 1

    def biases(self) -> tuple[str, ...]:
        """Return the biases: weights that are only added to values and not looked up."""

        def adds(line: Line, weight: str) -> bool:
            values = [term for term in line.right if isinstance(term, Term) and term.name != weight]
            return isinstance(line, Sum) and bool(values) and not _looks_up(line, weight)

        readers = {weight: [line for line in self.lines if weight in line.reads] for weight in self.table.weights}
        return tuple(weight for weight, lines in readers.items() if all(adds(line, weight) for line in lines))

    def stretches(self, layers: str) -> tuple[tuple[int, int], ...] | None:
        """Return the ranges of chosen layers, counted over all loops; None if no layers are chosen."""
        if not layers:
            return None
        name = self.model.configuration.name
        iterations = sum(map(self.iterations, self.table.repeats))
        counted = self.model.configuration.sizes.get("num_hidden_layers", iterations)
        if self.model.two_sided or counted != iterations or not iterations:
            raise InputError(f"train_layers: {name} has no single stack of layers: use train")
        if common := [n for repeat in self.table.repeats for n in repeat.shared if n in self.table.weights]:
            raise InputError(f"train_layers: all layers of {name} share {common[0]}; use train")
        return spans(layers, counted)

    def weights_meant(self, name: str) -> tuple[str, ...]:
        """Return the weights that a name in `train` means; those of a module include its biases."""
        if name in ("all", "none"):
            return self.table.weights if name == "all" else ()
        if named := self._of_module(name):
            return named
        if name in _HEAD:
            return self._some(self.head, "train", name, "head")
        if name in _EMBEDDINGS and name not in self.table.weights:
            return self._some(self.embeddings, "train", name, "embeddings")
        if name == "biases":
            return self._some(self.biases(), "train", name, "biases")
        if name in _LINEAR:
            return self.with_biases(self.linear)
        if name in _GROUPS:
            group = self.read_by(line for line in self.lines if name in line.meta.layer)
            return self._some(group, "train", name, name.replace("_", "-"))
        if name in ("encoder", "decoder") and (side := self._side(name)):
            return side
        return self.with_biases(self.weights_for("train", name, (*_PARTS, "attention", "feed_forward", "all-linear")))

    def _of_module(self, name: str) -> tuple[str, ...]:
        """Return the weights of a module by its name in a layer that is the model."""
        return weights_named(name, self.family, self.table.weights) if self.model.configuration.layer else ()

    def _side(self, name: str) -> tuple[str, ...]:
        """Return the weights of an encoder or a decoder; shared weights belong to neither."""
        first = next((place for place, line in enumerate(self.lines) if line.meta.block), 0)
        stem = self.lines[:first] if self.lines[first].meta.block == name else ()  # convolutions before the blocks
        inside = {*self.read_by((*stem, *(line for line in self.lines if line.meta.block == name)))}
        others = {
            *self.read_by(line for line in self.lines if line.meta.block not in (name, "", None)),
            *self.embeddings,
        }
        named_weights = {weight for weight in self.table.weights if weight.startswith(f"{name}.")}
        chosen = (inside - others | named_weights) if inside and self.model.two_sided else set()
        return tuple(weight for weight in self.table.weights if weight in chosen)

    def _some(self, weights: tuple[str, ...], option: str, name: str, part_text: str) -> tuple[str, ...]:
        if not weights:
            raise InputError(f"{option}: {self.model.configuration.name} has no {part_text} with weights ({name})")
        return weights

    def with_biases(self, weights: Iterable[str]) -> tuple[str, ...]:
        """Return the weights with the biases that are added to their products; embeddings have no products."""
        chosen = set(weights)
        multiplied = chosen - set(self.embeddings)
        products = {line.name for line in self.lines for weight in multiplied if is_linear(line, weight)}
        added = (line for line in self.lines if isinstance(line, Sum) and products & set(line.reads))
        chosen |= set(self.read_by(added))
        return tuple(weight for weight in self.table.weights if weight in chosen)

    def weights_for(self, option: str, name: str, words: Iterable[str]) -> tuple[str, ...]:
        weights = weights_named(name, self.family, self.table.weights)
        if not weights:
            names_there = (*words, *names(self.family, self.table.weights))
            several = ", ".join(names_there[:_MOST_NAMES]) + (", ..." if len(names_there) > _MOST_NAMES else "")
            hint = nearest(name, names_there) or f"; there are {several}"
            raise InputError(f"{option}: {self.model.configuration.name} has no weights called {shown(name)}{hint}")
        return weights

    def projections(self, lora_names: Iterable[str]) -> tuple[LoraTarget, ...]:
        """Return the low-rank paths that `lora` names; the weights of one module share a path if all of them are
        named. As in peft, names of modules of other families are passed over next to those that the model has."""
        all_names = [*lora_names]
        there = [name for name in all_names if weights_named(name, self.family, self.table.weights)]
        lora_names = [name for name in all_names if name in there or not (there and is_module(name))]
        weights: dict[str, None] = {}
        others: dict[str, LoraTarget] = {}
        for name in lora_names:
            if name in _HEAD and not self._of_module(name):
                for weight in self._some(self.multiplied("head"), "lora", name, "head"):
                    # tied: separate from the embedding's
                    path = weight if weight.startswith("head") else f"head.{weight}"
                    others["head"] = LoraTarget(path, (weight,), ("head",))
                continue
            projected = self._projected(name)
            for weight in projected:
                if weight in self.embeddings:
                    lookups = tuple(dict.fromkeys(li.meta.layer for li in self.lines if is_lookup(li, weight)))
                    others[weight] = LoraTarget(weight, (weight,), lookups)
                else:
                    weights[weight] = None
        groups = []
        for name, group in joint(self.family, weights):
            groups.append(LoraTarget(name, group))
            weights = {weight: None for weight in weights if weight not in group}
        return (*others.values(), *groups, *(LoraTarget(weight, (weight,)) for weight in weights))

    def multiplied(self, layer: str = "") -> tuple[str, ...]:
        """Return the weights of matrix products in layers whose names contain this part."""
        layer_lines = [line for line in self.lines if layer in line.meta.layer]
        matrices = {name for line in layer_lines for name in line.reads if is_linear(line, name)}
        return tuple(weight for weight in self.table.weights if weight in matrices)

    def _projected(self, name: str) -> tuple[str, ...]:
        if name in _LINEAR:
            return self._some(self.linear, "lora", name, "linear layers")
        if name in _GROUPS:
            linear_weights = tuple(weight for weight in self.multiplied(name) if weight in self.linear)
            return self._some(linear_weights, "lora", name, f"projections in its {name.replace('_', '-')} layers")
        tables = tuple(w for w in self.embeddings if any(is_lookup(line, w) for line in self.lines))
        if name in _EMBEDDINGS and name not in self.table.weights:
            return self._some(tables, "lora", name, "embeddings")
        groups = {group: set(self.multiplied(group)) & set(self.linear) for group in _GROUPS}
        words = {**groups, "all-linear": self.linear, "lm_head": self.multiplied("head"), "embeddings": tables}
        weights = self.weights_for("lora", name, (word for word, there in words.items() if there))
        experts = {name for line in self.lines for name in line.reads if is_of_experts(line, name)}
        matrices = {*self.multiplied(), *tables, *experts}
        fit = tuple(weight for weight in weights if weight in matrices)
        if len(fit) < len(weights) and ("*" in name or not fit):
            other = next(weight for weight in weights if weight not in fit)
            raise InputError(
                f"lora: {shown(name)} means {other}, which is not a matrix of a product: name a projection, such "
                f"as {', '.join(self.linear[:4])}"
            )
        return fit


def _looks_up(line: Line, weight: str) -> bool:
    terms = [term for term in line.right if isinstance(term, Term) and term.name == weight]
    return any(term.indexed for term in terms)
