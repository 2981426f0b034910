"""What is known of procedures that give something in the place of gradients, at blocks or at linear layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from learncost.equation.count import base, shape_of
from learncost.equation.table import Line, Repeat, Statement, Table, Term, features
from learncost.equation.value import Value
from learncost.layers.cuts import Elsewhere
from learncost.layers.tangent import MARK
from learncost.models.model import Model
from learncost.procedures.directions import Site, sites
from learncost.procedures.places import blocks, linears
from learncost.procedures.procedure import Procedure
from learncost.procedures.signals import signals
from learncost.procedures.step import step
from learncost.proof.check import values_of
from learncost.proof.report import Check
from learncost.proof.sample import small_sizes
from learncost.proof.stepped import arrays_of, gradients_of, held, sizes_of


def _watched(table: Table, names: Iterable[str]) -> Table | None:
    """The table in which what turns make of names is kept, called `NAME:all`; None but where one repeat makes each."""
    lines, values, kept = list[Statement](), dict(table.values), list[str]()
    for line in table.lines:
        if isinstance(line, Repeat):
            made = {name for inner in line.lines if isinstance(inner, Line) for name in inner.makes}
            here = [name for name in names if name in made]
            kept += here
            values |= {f"{name}:all": Value((line.count, *line.values[name].axes)) for name in here}
            line = replace(line, keep=(*line.keep, *((name, f"{name}:all") for name in here)))
        lines.append(line)
    outputs = (*table.outputs, *(f"{name}:all" for name in kept))
    return replace(table, lines=tuple(lines), values=values, outputs=outputs) if sorted(kept) == sorted(names) else None


def _given_at(model: Model, chosen: Procedure) -> dict[str, Elsewhere]:
    """What is given in the place of gradients, by the names of these; of what turns make `NAME:all`."""
    given = signals(model, chosen).cuts.given
    return {f"{at.name}:all" if scope else at.name: at for scope, all_at in given.items() for at in all_at.values()}


def exact_at_blocks(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Of one token of one sequence a matrix brings the error to any gradient: e F = g with F = e^T g / |e|^2."""
    compared = "gradients with bp's where the matrices are exact"
    table, (place, *others) = step(model, chosen.name), blocks(model, chosen.name)
    matrices = [key for key in table.inputs if table.values[key].role == "feedback"]
    if others or len(place.repeats) > 1 or len(matrices) != 1:
        yield Check(name, compared, "its blocks are of several kinds", None)
        return
    (matrix,), start = matrices, place.repeats[0].carry[0].start
    plain = step(model, "bp")
    wide = features(model.table)
    e, tokens = f"d{table.values[matrix].of}", place.values[start].axes
    sizes = small_sizes(table) | small_sizes(model.table)
    sizes |= {base(a): 1 for a in (*plain.axes[e], *tokens) if base(a) not in wide}
    back = next((line for line in plain.lines if isinstance(line, Repeat) and line.reverse), None)
    if back is None or f"d{start}" not in back.inside or any(base(a) not in sizes for a in tokens):
        yield Check(name, compared, "its blocks hand on what is no gradient of one token", None)
        return
    kept = replace(back, keep=(*back.keep, (f"d{start}", "handed")))
    stack = Value((back.count, *back.values[f"d{start}"].axes))
    lines = tuple(kept if line is back else line for line in plain.lines)
    watched = replace(
        plain, lines=lines, values={**plain.values, "handed": stack}, outputs=(*plain.outputs, e, "handed")
    )
    arrays = arrays_of(model, plain, sizes)
    values = _of_one_token(watched, arrays, sizes)
    if values is None:
        yield Check(name, compared, "it has no inputs of one token", None)
        return
    scores, handed = values[e].reshape(-1), values["handed"]
    if handed[0].size != handed.shape[-1]:
        yield Check(name, compared, "it has no inputs of one token", None)
        return
    exact = np.stack([np.outer(scores, turn.reshape(-1)) / (scores @ scores) for turn in handed])
    gradients = gradients_of(model, table, sizes, {**arrays, matrix: exact})
    yield held(name, compared, gradients, {key: values[f"d{key}"] for key in gradients})


def _of_one_token(table: Table, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Mapping[str, Any] | None:
    """The values of a table; None where positions follow from other sizes, such as patches of an image."""
    try:
        return values_of(table, arrays, sizes)
    except ValueError:
        return None


def exact_at_linears(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """The same for what every linear layer makes: of one token of one sequence the error brings its gradient."""
    compared = "gradients with bp's where the matrices are exact"
    table, plain = step(model, chosen.name), step(model, "bp")
    given = _given_at(model, chosen)
    matrices = {key: term.name for key, at in given.items() if isinstance(term := at.lines[0].right[1], Term)}
    scores = next(f"d{table.values[matrix].of}" for matrix in table.inputs if table.values[matrix].role == "feedback")
    watched = _watched(plain, [key.removesuffix(":all") for key in given if key.endswith(":all")])
    if watched is None:
        yield Check(name, compared, "its blocks are of several kinds", None)
        return
    wide, sizes = features(model.table), small_sizes(table) | small_sizes(model.table)
    axes = [*plain.axes[scores], *(axis for at in given.values() for axis in at.values[at.name].axes)]
    sizes |= {base(axis): 1 for axis in axes if base(axis) not in wide}
    arrays = arrays_of(model, plain, sizes)
    values = _of_one_token(watched, arrays, sizes)
    if values is None:
        yield Check(name, compared, "it has no inputs of one token", None)
        return
    e, exact = values[scores].reshape(-1), {}
    for key, matrix in matrices.items():
        turns = values[key] if key.endswith(":all") else values[key][None]
        made = np.stack([np.outer(e, turn.reshape(-1)) / (e @ e) for turn in turns])
        if made.size != np.prod(shape := shape_of(table.axes[matrix], sizes)):
            yield Check(name, compared, "it has no inputs of one token", None)
            return
        exact[matrix] = made.reshape(shape)
    # Nothing goes back through what a linear layer reads, so that a gain before one has less than its gradient.
    multiplied = {weight for weight in model.learning for site in sites(model.table, weight) if _multiplies(site)}
    gradients = gradients_of(model, table, sizes, {**arrays, **exact})
    gradients = {key: array for key, array in gradients.items() if key in multiplied}
    yield held(name, compared, gradients, {key: values[f"d{key}"] for key in gradients})


def _multiplies(site: Site) -> bool:
    """Whether a weight is the one of a linear layer there."""
    return any(line.right[at].name == site.name for line, at in linears(site.place))


def slope_of_activities(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """What is given where a value y was moved by signs v is s v, and s is the sum of <bp's gradient, v> over all y.

    A sequence has a slope of its own where the loss is a sum over them.
    """
    compared = "its slopes with <bp's gradients, directions> of what linear layers make"
    table, plain = step(model, chosen.name), step(model, "bp")
    given = _given_at(model, chosen)
    inside = [key.removesuffix(":all") for key in given if key.endswith(":all")]
    first, second = _watched(table, inside), _watched(plain, inside)
    if first is None or second is None:
        yield Check(name, compared, "its blocks are of several kinds", None)
        return
    sizes = sizes_of(model, table)
    arrays = arrays_of(model, table, sizes) | arrays_of(model, plain, sizes) | {"dloss": np.asarray(1.0)}
    gradients, exact = (
        values_of(each, {key: arrays[key] for key in (*each.inputs, *each.weights)}, sizes) for each in (first, second)
    )
    if "B" in table.known[f"loss{MARK}"].axes and any("B" not in at.values[at.name].axes for at in given.values()):
        yield Check(name, compared, "it moves what all sequences share", None)
        return
    rows_apart = "B" in table.known[f"loss{MARK}"].axes
    slopes, expected = list[Any](), 0.0
    for key, at in given.items():
        rows = at.values[at.name].axes.index("B") + key.endswith(":all") if rows_apart else None
        made, bp = gradients[key], exact[key]
        sums = tuple(i for i in range(made.ndim) if i != rows)
        slopes.append(np.abs(made).max(sums))
        expected = expected + np.sum(bp * np.sign(made), sums)
    same = all(np.allclose(slope, slopes[0], 1e-12, 0.0) for slope in slopes)
    apart = float(np.max(np.abs(expected - slopes[0])) / np.max(slopes[0]))
    yield Check(name, compared, f"apart by {apart:.1e}", same and apart < 1e-10)
