"""Map users' names of projections to the weights of a table, by data of the families and one matching rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from learncost.models.families import FAMILIES

Modules = Mapping[str, tuple[str, ...]]

# Default names of projections: suffixes of our names.
_ANY: Modules = {
    "q_proj": ("WQ",),
    "k_proj": ("WK",),
    "v_proj": ("WV",),
    "o_proj": ("WO",),
    "out_proj": ("WO",),
    "query": ("WQ",),
    "key": ("WK",),
    "value": ("WV",),
    "gate_proj": ("WG",),
    "up_proj": ("WU",),
    "down_proj": ("WD",),
    "fc1": ("mlp.W1",),
    "fc2": ("mlp.W2",),
}


def modules_of(family: str) -> Modules:
    """Return the `[modules]` of a family: the weights in each module of transformers, by a suffix of its path.

    A module with several weights of one layer is one matrix in transformers, so its low-rank path has one A.
    """
    return FAMILIES[family].modules if family in FAMILIES else {}


def weights_named(name: str, family: str, weights: Iterable[str]) -> tuple[str, ...]:
    """Return the weights that a name means: by the family's modules, by any family's modules, or by the table's names.

    As in peft, a module matches by a suffix of its path: dense also means attention.output.dense. The table's weights
    match by their name, a suffix of it, or a pattern with *. A part of the model whose name is a prefix of its weights,
    such as classifier in classifier.dense.W, matches by a suffix of its path and means all its weights.
    """
    endings = [
        weight for path, ours in modules_of(family).items() if f".{path}".endswith(f".{name}") for weight in ours
    ]
    patterns = endings or (*_ANY.get(name, ()), name)

    def is_meant(path: str) -> bool:
        return any(fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}") for pattern in patterns)

    weights = tuple(weights)
    if meant := tuple(w for w in weights if is_meant(w)):
        return meant
    return tuple(w for w in weights if any(map(is_meant, _holders(w))))


def _holders(weight: str) -> list[str]:
    """Return the paths of the modules that contain a weight, innermost first.

    >>> _holders("decoder.attn.WQ")
    ['decoder.attn', 'decoder']
    """
    return [weight.rsplit(".", up)[0] for up in range(1, weight.count(".") + 1)]


def is_module(name: str) -> bool:
    """Return whether a name is that of a module in some family."""
    paths = (path for family in FAMILIES.values() for path in family.modules)
    return name in _ANY or any(f".{path}".endswith(f".{name}") for path in paths)


def module_of(path: str, family: str, weights: Iterable[str]) -> tuple[str, ...]:
    """Return the weights of a module by its full path: by the family's longest matching suffix, else by any
    family's."""
    ends = [end for end in modules_of(family) if f".{path}".endswith(f".{end}")]
    endings = modules_of(family)[max(ends, key=len)] if ends else _ANY.get(path.rpartition(".")[2], ())
    return tuple(w for w in weights if any(w == ending or w.endswith(f".{ending}") for ending in endings))


def joint(family: str, weights: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the weights in groups that are one matrix in a module, each with a name.

    A name may mean several modules, as `q_proj` those of an encoder and of a decoder; they differ by the prefixes of
    their weights.
    """
    chosen = set(weights)
    joined = []
    for path, ours in modules_of(family).items():
        for group in _by_module(ours):
            for first in sorted(chosen):
                # A module's weights have the same prefix: nothing, or a kind of block.
                front = first.removesuffix(group[0])
                together = tuple(f"{front}{weight}" for weight in group)
                if len(group) > 1 and first == f"{front}{group[0]}" and chosen.issuperset(together):
                    joined.append((f"{front}{group[0].rpartition('.')[0]}.{path.rpartition('.')[2]}", together))
    return tuple(joined)


def _by_module(weights: Iterable[str]) -> Iterable[list[str]]:
    modules: dict[str, list[str]] = {}
    for weight in weights:
        modules.setdefault(weight.rpartition(".")[0], []).append(weight)
    return modules.values()


def names(family: str, weights: Iterable[str]) -> tuple[str, ...]:
    """Return every name of a module that matches some weight."""
    weights = tuple(weights)
    paths = [path for path, ours in modules_of(family).items() if weights_named(path, family, weights)]
    ends = (path[place:] for path in paths for place in (0, path.rfind(".") + 1))
    holders = (holder for weight in weights for holder in _holders(weight))
    return tuple(dict.fromkeys((*ends, *(n for n in _ANY if weights_named(n, family, weights)), *weights, *holders)))
