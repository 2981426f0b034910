"""Count active parameters, which process one token, and look up the function of layers in a model.

The file of a shipped layer declares its function in a model, as in `part: norm`, and the name that reports show, as in
`shown as: norm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from learncost.ir.dataclass import dataclass
from learncost.ir.line import Line, Op
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, base, total
from learncost.ir.table import Table
from learncost.ir.term import Read, Term


@dataclass(frozen=True)
class ExpertChoice:
    """The axis of a weight along which each token reads selected entries, and the index's axes that enumerate these."""

    axis: str
    chosen: tuple[str, ...]


def choices(table: Table) -> Mapping[str, ExpertChoice]:
    """Return the weights of experts: those from which a line reads several selected entries for each token, as
    `WG[e=chosen[B M t] d f]` does.

    The selection must be a line of the table, such as `topk`. Look-ups at an input (embeddings, bags of them, relative
    positions) do not count, nor do weights that another line reads in a different way.
    """
    makers = {name: line for line, _ in walk(table.lines) for name in line.makes}
    found: dict[str, ExpertChoice] = {}
    others = set()
    weights = set(table.weights)
    for line, _ in walk(table.lines):
        for term in line.right:
            if isinstance(term, Term) and term.name in weights:
                choice = next((made for axis in term.axes if (made := _choice(axis, makers))), None)
                if choice is None:
                    others.add(term.name)
                else:
                    found[term.name] = choice
    return {name: choice for name, choice in found.items() if name not in others}


def _choice(axis: object, makers: Mapping[str, Line]) -> ExpertChoice | None:
    """Return the choice by which an axis is read; None if no line selects several entries per token."""
    if not isinstance(axis, Read) or not isinstance(axis.at, Term):
        return None
    chosen = _chosen(axis.at.name, makers)
    places = [each for each, is_chosen in zip(axis.at.axes, chosen, strict=False) if is_chosen]
    several = tuple(each for each in places if isinstance(each, str))
    return ExpertChoice(base(axis.axis), several) if several else None


def _chosen(name: str, makers: Mapping[str, Line]) -> Sequence[bool]:
    """Return, for each axis of an index, whether it enumerates the entries selected for one token; moves of the index
    are followed."""
    line = makers.get(name)
    if line is None:
        return ()
    axes = line.left[0].loops
    if isinstance(line, Op):
        return [axis in line.chosen for axis in axes]
    terms = [term for term in line.right if isinstance(term, Term)]
    if len(terms) != 1:
        return ()
    above = dict(zip(terms[0].axes, _chosen(terms[0].name, makers), strict=False))
    return [above.get(axis, False) for axis in axes]


def active_parameters(table: Table, sizes: Mapping[str, int] | None = None) -> Polynomial:
    """Return the number of parameters that process one token: t of e experts, and all other weights; if `sizes` are
    given, at most the number of all parameters.

    Embeddings count in full, as in the publications of Mixtral (12.9B) and Qwen1.5-MoE (2.7B); the publications of
    gpt-oss (3.6B) and DeepSeek leave out the input embedding.
    """
    chosen = choices(table)

    def met(name: str) -> Polynomial:
        axes, choice = table.axes[name], chosen.get(name)
        whole = Polynomial.of(axes)
        if choice is None:
            return whole
        part = Polynomial.of(
            [met for axis in axes for met in (choice.chosen if base(axis) == choice.axis else (axis,))]
        )
        return part if sizes is None or part.at(sizes) <= whole.at(sizes) else whole

    return total(met(name) for name in table.weights)


def parameters(table: Table) -> Polynomial:
    """Return the number of parameters of all weights of the table."""
    return total(Polynomial.of(table.axes[name]) for name in table.weights)


PART = "part:"
SHOWN = "shown as:"
NAMES = "names:"

SHIPPED_KEYWORDS = (PART, SHOWN, NAMES)
"""The keywords of lines that only the files of shipped layers have."""

NO_LAYER = "shared_weights"  # the layer of lines that add gradients of weights shared by iterations

Part: TypeAlias = Literal["", "embedding", "positions", "norm", "residual", "head", "loss", "pooler"]

NORM: Part = "norm"

# These run before or after the blocks: recomputation of blocks does not include them.
OUTSIDE_BLOCKS: frozenset[Part] = frozenset({"embedding", "positions", "head", "loss", "pooler"})


def shown_layer(name: str) -> str:
    """Return the name by which reports show a layer of a model's table."""
    return _declarations(name).get(SHOWN, name) if name else NO_LAYER


def words_of(name: str) -> Mapping[str, str]:
    """Return what people call the values and weights of a shipped layer, such as queries for Q, by their letters."""
    words = (letter.partition(" ") for letter in _declarations(name).get(NAMES, "").split(", ") if letter)
    return {letter: word for letter, _, word in words}


def part_of(name: str) -> Part:
    """Return the function of a layer in a model, by its name in the table or in reports; empty if none is declared."""
    return _PARTS[_declarations(shown_layer(name)).get(PART, "")]


def is_norm(name: str) -> bool:
    """Return whether a layer is a norm: a shipped norm, or a user's layer with the word norm in its name."""
    return part_of(name) == NORM or NORM in name.split("_")


def of_part(line: Line, part: Part) -> bool:
    """Return whether a line belongs to a layer with this function in a model."""
    return part_of(line.meta.layer) == part


_PARTS: Mapping[str, Part] = {part: part for part in get_args(Part)}


@lru_cache(maxsize=4096)
def _declarations(name: str) -> Mapping[str, str]:
    """Return the declarations in the file of a shipped layer, by their keywords; empty for other layers."""
    file = Path(__file__).with_name("tables") / f"{name}.table"
    if not name.isidentifier() or not file.is_file():
        return {}
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    by_key = {k: [line.removeprefix(k).strip() for line in lines if line.startswith(k)] for k in SHIPPED_KEYWORDS}
    return {key: ", ".join(several) for key, several in by_key.items() if several}
