"""Active parameters: of the weights that tokens choose among, those that one token meets."""

from __future__ import annotations

from collections.abc import Mapping

from learncost.equation.count import Count, base, total
from learncost.equation.repeat import walk
from learncost.equation.table import Table
from learncost.equation.term import Read

POSITIONS = frozenset(("B", "M", "N"))  # the axes along which tokens stand


def choices(table: Table) -> Mapping[str, Read]:
    """The weights of which each token reads several entries, `WG[e=chosen[B M t] d f]`: experts, with this axis.

    A look-up of one entry for each token or pair of tokens, as embeddings and relative positions are, is no choice.
    """
    weights = set(table.weights)
    return {
        term.name: axis
        for line, _ in walk(table.lines)
        for term in line.right
        if term.name in weights
        for axis in term.axes
        if isinstance(axis, Read) and not POSITIONS.issuperset(map(base, axis.at.loops))
    }


def active_parameters(table: Table) -> Count:
    """The parameters that one token meets: t of e experts, of everything else all.

    Embeddings count in full, as in the publications of Mixtral (12.9B) and Qwen1.5-MoE (2.7B);
    those of gpt-oss (3.6B) and DeepSeek leave that of the input out.
    """
    chosen = choices(table)

    def met(name: str) -> Count:
        axes, read = table.axes[name], chosen.get(name)
        if read is None:
            return Count.of(axes)
        loops = [axis for axis in read.at.loops if base(axis) not in POSITIONS]
        return Count.of([looped for axis in axes for looped in (loops if base(axis) == base(read.axis) else (axis,))])

    return total(met(name) for name in table.weights)
