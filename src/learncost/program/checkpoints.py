"""Lines that are recomputed in the first of every so many blocks alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, size_of
from learncost.ir.table import Table
from learncost.program.autograd.state import blocks_of, places_in_block


class RecomputedIterations(NamedTuple):
    """The iterations of a loop, by the name of their number, in which a line is recomputed: `fewer` of the `whole`."""

    loop: str
    fewer: int
    whole: int

    def of(self, counted: Polynomial) -> Polynomial:
        """Return a count over all iterations of the loop for fewer of them."""
        if self.loop in counted.sizes:
            return counted.with_sizes({self.loop: self.fewer})
        return Polynomial({names: number * self.fewer // self.whole for names, number in counted.terms.items()})


def fewer_recomputed(
    model: tuple[Table, int], table: Table, sizes: Mapping[str, int], every: int, within: Mapping[str, int] = {}
) -> dict[int, RecomputedIterations]:
    """Return by the places of a step's lines those that are recomputed in the first of every so many blocks alone.

    What a kernel of the backward pass computes again for itself runs in every block.
    model   its table and the number of its blocks
    within  the iterations of a pipeline stage, which counts its blocks by itself
    """
    if every == 1:
        return {}
    forward, number = model
    here, cuts = {**sizes, **within}, places_in_block(forward.repeats, number, sizes)
    kernels = {line.meta.kernel for line, _ in walk(table.lines) if line.meta.phase == "backward"} - {None}
    iterations, first, result = _first_blocks(forward, cuts, here, every), 0, dict[int, RecomputedIterations]()
    for place, (line, nest) in enumerate(walk(table.lines)):
        if line.meta.phase == "recomputation" and nest.loops:
            first = iterations.get(line.name, first)  # a line that a plan adds is of the block before it
            if line.meta.kernel not in kernels:
                count = nest.counts[0]
                result[place] = RecomputedIterations(count, first, int(size_of(count, here)))
    return result


def _first_blocks(forward: Table, cuts: int, sizes: Mapping[str, int], every: int) -> dict[str, int]:
    """Return by the name of a line the iterations in which its block is the first of every so many."""
    result, before = dict[str, int](), 0
    for repeat in forward.repeats:
        if repeat not in forward.lines or not any(outer in forward.weights for _, outer in repeat.each):
            continue
        blocks, iterations = blocks_of(repeat, cuts), int(size_of(repeat.count, sizes))
        for place, (lines, _, _) in enumerate(blocks, before):
            first = sum((place + len(blocks) * iteration) % every == 0 for iteration in range(iterations))
            result |= {line.name: first for line, _ in walk(lines)}
        before += iterations * len(blocks)
    return result
