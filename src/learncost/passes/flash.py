"""Apply the plan flash (FlashAttention): attention scores are never stored in full, nor saved for the backward pass.

Lines that compute values with an axis of queries and an axis of keys run as one kernel per sequence and head, in tiles
of queries. Their results are recomputed in the backward pass instead of being saved. A causal or window condition
bounds the keys of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import FusedKernel, Line, Op
from learncost.ir.loop import Loop, Statement, defined, map_scopes, repeats, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table, features
from learncost.ir.term import terms_of
from learncost.layers.names import KernelNames, propagate_copies
from learncost.ops import entry, is_softmax
from learncost.passes.recompute import inverted, saving_block_inputs
from learncost.passes.rematerialization import recomputed, run_once

QUERIES = 32
"""The number of queries in a tile: their scores with two thousand keys, and the scores' gradients, take half a
mebibyte, which fits in a core's cache. Under a causal condition, half of the square on the diagonal is computed in
vain.
"""

Pairs = dict[str, tuple[tuple[str, ...], str]]
"""Values with an axis of queries and an axis of keys, each with its tiled axes and its axis of queries."""


def flash(table: Table) -> Table:
    """Fuse the lines between queries, keys and values into kernels, which are recomputed in the backward pass.

    If full blocks are recomputed, as in the procedure `recompute`, the kernel is recomputed with them. Dao et al. 2022,
    FlashAttention, algorithms 1 and 4, here with complete rows of a tile's scores.
    """
    return _recomputing_scores(propagate_copies(table), "flash", _in_kernels) or table


def ring(table: Table) -> Table:
    """Return the step with scores recomputed for ring attention; sharding makes the rings (sharding/ring.py).

    Keys and values move around a ring of devices instead of being all-gathered. Scores are not saved, as no device has
    complete rows. On one device, the plan only recomputes scores.
    """
    pairs = scores(table)
    is_flash = any(line.meta.kernel and not pairs.keys().isdisjoint(line.makes) for line, _ in walk(table.lines))
    return table if is_flash else _recomputing_scores(table, "ring", lambda again, pairs: again) or table


def _recomputing_scores(table: Table, plan: str, change: Callable[[Table, Pairs], Table]) -> Table | None:
    """Return the step with scores recomputed in the backward pass, changed, and then recomputed with full blocks if
    these are; None without scores.
    """
    kept = saving_block_inputs(table)
    once = run_once(kept)
    pairs = scores(once)
    if not pairs:
        return None
    if any(line.meta.again and line.meta.phase == "recomputation" for line, _ in walk(table.lines)):
        raise InputError(
            f"{plan} recomputes scores that a checkpoint of the module recomputes already: remove "
            f"torch.utils.checkpoint from the module, and use --procedure recompute with --plan {plan}"
        )
    again = change(recomputed(once, lambda line: not pairs.keys().isdisjoint(line.makes)), pairs)
    if once is table:
        return again
    return inverted(again) if kept is not table else recomputed(again, lambda line: True, whole=True)


def _in_kernels(again: Table, pairs: Pairs) -> Table:
    """Return the step with the lines that compute or read scores in kernels."""
    # Their gradients are included, except those by an explicit Jacobian, which have more axes.
    gradients = {name: value.of for name, value in again.known.items() if value.role == "gradient"}
    pairs = pairs | {name: pairs[of] for name, of in gradients.items() if of in pairs and name not in pairs}
    names = KernelNames(again)
    return replace(again, lines=map_scopes(again.lines, lambda lines: _kernels(lines, pairs, names)))


def is_fused(table: Table) -> bool:
    """Return whether fused kernels compute the attention of a step: its scores gather nothing that is computed for it.

    DeBERTa's disentangled attention gathers products of queries and relative positions, which would be saved for the
    backward pass in addition to the scores.
    """
    pairs = scores(table)
    return bool(pairs) and not any(
        term.indexed and term.name not in pairs and term.name in computed
        for loop in repeats(table.lines)
        for computed in [defined(loop.lines)]
        for line in loop.lines
        if isinstance(line, Line) and line.meta.phase == "forward" and not pairs.keys().isdisjoint(line.makes)
        for operand in line.right
        for term in terms_of(operand)
    )


def scores(table: Table) -> Pairs:
    """Return the values with an axis of queries and an axis of keys, each with its tiled axes and its axis of
    queries."""
    score_axes: Pairs = {}
    of_loops = [(loop, line) for loop in repeats(table.lines) for line in loop.lines if is_softmax(line)]
    for loop, softmax in of_loops:
        keys, *others = softmax.axes
        queries = None if others else _queries(softmax, keys, table)
        if queries is None:
            continue
        iterations = tuple(axis for axis in softmax.left[0].declared if axis not in (queries, keys))
        bases = sorted((base(queries), base(keys)))
        for name, axes in loop.axes.items():
            own_bases = sorted(base(axis) for axis in axes if base(axis) in bases)
            if set(iterations) <= set(axes) and own_bases == bases and len(set(axes)) == len(axes):
                score_axes[name] = (iterations, queries)
    return score_axes


def _queries(softmax: Op, keys: str, table: Table) -> str | None:
    """Return the axis of queries in the scores: the other axis of the same size, or the only other axis that is no
    feature axis; None for other softmaxes."""
    own = [axis for axis in softmax.left[0].declared if axis != keys and base(axis) == base(keys)]
    if len(own) == 1:
        return own[0]  # of self-attention, also where a weight has positions, as in ViT
    sizes = features(table) | _chosen(table)
    rows = [axis for axis in softmax.left[0].declared if base(axis) not in sizes and axis != "B"]
    if keys not in rows or len(rows) != 2:
        return None  # for example, the softmax of a router
    return next(axis for axis in rows if axis != keys)


def _chosen(table: Table) -> frozenset[str]:
    """Return the axes that enumerate selected entries, such as the experts of a token."""
    return frozenset(
        base(axis)
        for line, _ in walk(table.lines)
        if isinstance(line, Op) and line.part == "body" and entry(line.op).kind == "choice"
        for axis in line.chosen
    )


def _kernels(lines: Sequence[Statement], pairs: Pairs, names: KernelNames) -> tuple[Statement, ...]:
    """Return the lines of a scope, in which lines that compute or read scores are in kernels."""
    result: list[Statement] = []
    group: list[Line] = []

    def close() -> None:
        if group:
            names_of = (name for line in group for name in (*line.makes, *line.reads))
            iterations, queries = next(pairs[name] for name in names_of if name in pairs)
            wish = f"{group[0].meta.layer or 'attention'}_scores"
            if any(line.meta.phase == "backward" for line in group):
                wish = f"{wish}_backward"
            kernel = FusedKernel(names.of(wish), iterations, (queries, QUERIES))
            result.extend(replace(line, meta=replace(line.meta, kernel=kernel)) for line in group)
            group.clear()

    for line in lines:
        if isinstance(line, Loop):
            close()
            result.append(line)
        elif not pairs.keys().isdisjoint((*line.makes, *line.reads)):
            group.append(line)
        else:
            close()
            result.append(line)
    close()
    return tuple(result)
