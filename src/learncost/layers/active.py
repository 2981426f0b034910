"""Active parameters: of the weights that tokens choose among, those that one token meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learncost.ir.line import Line, Op
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, base, total
from learncost.ir.table import Table
from learncost.ir.term import Read, Term


@dataclass(frozen=True)
class ExpertChoice:
    """The axis of a weight along which each token reads several entries, and along which axes it reads them."""

    axis: str
    chosen: tuple[str, ...]


def choices(table: Table) -> Mapping[str, ExpertChoice]:
    """The weights of which a line chooses several entries for each token, `WG[e=chosen[B M t] d f]`: experts.

    A line of the table chooses them, as `topk` does: what is looked up where an input says it, as embeddings, bags of
    them and relative positions are, is no choice, nor is a weight that another line reads otherwise.
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
    """What an axis that is read at an index chooses along; None where no line chooses several for a token."""
    if not isinstance(axis, Read) or not isinstance(axis.at, Term):
        return None
    chosen = _chosen(axis.at.name, makers)
    places = [each for each, is_chosen in zip(axis.at.axes, chosen, strict=False) if is_chosen]
    several = tuple(each for each in places if isinstance(each, str))
    return ExpertChoice(base(axis.axis), several) if several else None


def _chosen(name: str, makers: Mapping[str, Line]) -> Sequence[bool]:
    """Which of an index's axes have what is chosen for one token, where it is made or moved on."""
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
    """The parameters that one token meets: t of e experts, of everything else all; with sizes, no more than there are.

    Embeddings count in full, as in the publications of Mixtral (12.9B) and Qwen1.5-MoE (2.7B);
    those of gpt-oss (3.6B) and DeepSeek leave that of the input out.
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
    """What is trained: every weight of the table once, stacks of turns in full."""
    return total(Polynomial.of(table.axes[name]) for name in table.weights)
