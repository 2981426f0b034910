"""Flash: attention whose scores are never stored, neither for the backward pass nor as a whole.

Between the product of queries and keys and the product with the values, everything has an axis of queries and an axis
of keys. Those lines run as one kernel, a sequence and a head a turn, some queries at a time; their values are made
again in the backward pass instead of being kept. Which positions are visible bounds what a block computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.line import FusedKernel, Line, Op
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table, features
from learncost.layers.names import named_once
from learncost.ops import entry
from learncost.passes.inverse import inverted, kept_again
from learncost.passes.kernels import KernelNames
from learncost.passes.rematerialization import recomputed, run_once

QUERIES = 32
"""Queries of a block: their scores with two thousand keys, and the gradients of these, take half a mebibyte, which a
core's cache holds; under a causal condition a block computes half of its own square in vain."""


def flash(table: Table) -> Table:
    """The step with the lines between queries, keys and values as kernels, run again in the backward pass.

    Where all of a block runs again, as in the procedure `recompute`, it does so with its kernel. Dao et al. 2022,
    FlashAttention, algorithms 1 and 4, here with the whole rows of a block's scores at once.
    """
    table = named_once(table)
    kept = kept_again(table)
    once = run_once(kept)
    pairs = scores(once)
    if not pairs:
        return table
    if any(line.meta.again and line.meta.phase == "recomputation" for line, _ in walk(table.lines)):
        raise InputError(
            "flash makes scores again where a checkpoint of the module does so already: leave torch.utils.checkpoint "
            "out of the module, and say --procedure recompute with --plan flash"
        )
    again = recomputed(once, lambda line: not pairs.keys().isdisjoint(line.makes))
    # With their gradients: through an explicit Jacobian these have more axes, and are no pairs themselves.
    gradients = {name: value.of for name, value in again.known.items() if value.role == "gradient"}
    pairs |= {name: pairs[of] for name, of in gradients.items() if of in pairs and name not in pairs}
    planned = replace(again, lines=_kernels(again.lines, pairs, KernelNames(again)))
    if once is table:
        return planned
    return inverted(planned) if kept is not table else recomputed(planned, lambda line: True, whole=True)


def scores(table: Table) -> dict[str, tuple[tuple[str, ...], str]]:
    """Names of values that have queries and keys, by name: the axes that turns are taken over, and the queries."""
    return _pairs(table.lines, table)


def _pairs(lines: Sequence[Statement], table: Table) -> dict[str, tuple[tuple[str, ...], str]]:
    score_axes: dict[str, tuple[tuple[str, ...], str]] = {}
    for line in lines:
        if not isinstance(line, Loop):
            continue
        score_axes |= _pairs(line.lines, table)
        softmax = next(
            (inner for inner in line.lines if isinstance(inner, Op) and entry(inner.op).makes == "shares"), None
        )
        if softmax is None or len(softmax.axes) != 1:
            continue
        (keys,) = softmax.axes
        queries = _queries(softmax, keys, table)
        if queries is None:
            continue
        iterations = tuple(axis for axis in softmax.left[0].declared if axis not in (queries, keys))
        bases = sorted((base(queries), base(keys)))
        for name, axes in line.axes.items():
            own_bases = sorted(base(axis) for axis in axes if base(axis) in bases)
            if set(iterations) <= set(axes) and own_bases == bases and len(set(axes)) == len(axes):
                score_axes[name] = (iterations, queries)
    return score_axes


def _queries(softmax: Op, keys: str, table: Table) -> str | None:
    """The axis of the scores whose positions are the queries': the other one that no weight has."""
    sizes = features(table) | _chosen(table)
    rows = [axis for axis in softmax.left[0].declared if base(axis) not in sizes and axis != "B"]
    if keys not in rows or len(rows) != 2:
        return None  # a choice among experts, say
    return next(axis for axis in rows if axis != keys)


def _chosen(table: Table) -> frozenset[str]:
    """The axes that count what is chosen, such as the experts of a token."""
    return frozenset(
        base(axis)
        for line, _ in walk(table.lines)
        if isinstance(line, Op) and line.part == "body" and entry(line.op).kind == "choice"
        for axis in line.chosen
    )


def _kernels(
    lines: Sequence[Statement], pairs: dict[str, tuple[tuple[str, ...], str]], names: KernelNames
) -> tuple[Statement, ...]:
    """The lines of a scope, those that make or read scores in kernels."""
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
            result.append(replace(line, lines=_kernels(line.lines, pairs, names)))
        elif not pairs.keys().isdisjoint((*line.makes, *line.reads)):
            group.append(line)
        else:
            close()
            result.append(line)
    close()
    return tuple(result)
