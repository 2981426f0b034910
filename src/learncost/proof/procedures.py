"""Learning procedures proved on a model: every count, and what mathematics says that each is the same as."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from learncost.equation.count import base, shape_of
from learncost.equation.errors import InputError
from learncost.equation.table import Line, Repeat, Statement, Table, Term, Word, each_line, features
from learncost.equation.value import Same, Value
from learncost.layers.derive import derive
from learncost.models.model import Model
from learncost.procedures.forward_gradients import by_two_sides
from learncost.procedures.places import blocks
from learncost.procedures.procedure import LEARNING, Procedure, step
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.projection import with_projection
from learncost.procedures.signals import signals
from learncost.proof.check import error, sound_arrays, survived, tally, values_of, worst
from learncost.proof.report import Check
from learncost.proof.sample import grouped, small_sizes
from learncost.vocabulary.optimizers import OPTIMIZERS


def verify_procedures(model: Model, name: str, procedures: Iterable[str] = LEARNING) -> Iterator[Check]:
    """Tallies of every step; procedures that are to give the same weights, such as recomputation, do bit for bit; and
    what else is known of each."""
    results: dict[str, Mapping[str, Any]] = {}
    for procedure in procedures:
        chosen = find_procedure(procedure)
        if chosen.part and procedures is LEARNING:
            continue  # another procedure on a model of which a part is frozen
        if not model.learns and chosen.compares:
            yield Check(f"{name}, {procedure}", "a step", "the model has no output with targets to learn from", None)
            continue
        try:
            step(model, procedure, "sgd")
        except InputError as refusal:  # such as weights that all turns share, for pepita
            yield Check(f"{name}, {procedure}", "a step", str(refusal), None)
            continue
        for optimizer in OPTIMIZERS:
            table = step(model, procedure, optimizer)
            sizes = small_sizes(table)
            arrays = sound_arrays(table, sizes)
            yield tally(f"{name}, {procedure} with {optimizer}", table, arrays, sizes)
        results[procedure] = _new_weights(model, procedure)
        yield from survived(f"{name}, {procedure}", _known(model, chosen, f"{name}, {procedure}"))
    for first, weights in results.items():
        second = find_procedure(first).equals
        if second:
            expected = results[second] if second in results else _new_weights(model, second)
            yield _bit_for_bit(name, first, second, weights, expected)


def _new_weights(model: Model, procedure: str) -> Mapping[str, Any]:
    table = step(model, procedure, "sgd")
    sizes = _sizes(model, table)
    values = values_of(table, _arrays(model, table, sizes), sizes)
    return {key: values[key] for key in table.renewed.values()}


def _sizes(model: Model, table: Table) -> dict[str, int]:
    """The same for every procedure, but that turns go in whole groups."""
    sizes = small_sizes(table)
    return sizes | small_sizes(model.table) | {count: sizes[count] for count in grouped(table)}


def _arrays(model: Model, table: Table, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The same arrays for every procedure: those that the model is given, then one for each further name.

    What is read for a weight is that weight, and so is what every block has for itself.
    """
    arrays = sound_arrays(model.table, sizes)
    for name in table.inputs:
        value = table.values[name]
        if name in arrays:
            continue
        if value.role == "projection" and value.of in table.weights:
            whole = shape_of(value.axes, sizes)
            arrays[name] = np.broadcast_to(arrays[value.of], whole).copy()
        else:
            alone = Table((), table.values, (name,))
            arrays |= sound_arrays(alone, sizes, seed=sum(map(ord, name)))
    return arrays


def _bit_for_bit(name: str, first: str, second: str, weights: Mapping[str, Any], expected: Mapping[str, Any]) -> Check:
    different = [key for key in expected if not np.array_equal(weights[key], expected[key])]
    text = f"{len(expected)} updated weights are the same" if not different else f"{different[0]} differs"
    same = bool(expected) and weights.keys() >= expected.keys() and not different
    return Check(name, f"{first} with {second}, bit for bit", text, same)


# What is known of a procedure by its moves.


def _known(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """What a schedule with certain moves, and no others, has to be the same as."""
    moves = {move.form for move in chosen.all_moves}
    for form, besides, holds in _KNOWN:
        if form in moves and moves <= {form, *besides}:
            yield from holds(model, chosen, name)


def _gradients(model: Model, table: Table, sizes: Mapping[str, int], arrays: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: array for key, array in arrays.items() if key in (*table.inputs, *table.weights)}
    values = values_of(table, given, sizes)
    return {weight: values[f"d{weight}"] for weight in model.table.weights if f"d{weight}" in values}


def _held(name: str, compared: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> Check:
    if found.keys() != expected.keys() or not found:
        return Check(name, compared, "other weights have gradients", False)
    text, passed = worst({key: error(found[key], expected[key]) for key in expected})
    return Check(name, compared, text, passed)


def _one_block(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """With one block, or one group of them, there is nothing between blocks to be cut."""
    compared = "gradients of one block with bp's"
    places = blocks(model, chosen.name)
    counts = {repeat.count for place in places for repeat in place.repeats}
    several = int(chosen.moves.get("groups of NUMBER", "1"))
    if len(places) > 1 or any(count.isdigit() for count in counts):
        yield Check(name, compared, "its blocks are of several kinds", None)
        return
    table, plain = step(model, chosen.name), step(model, "bp")
    sizes = small_sizes(table) | small_sizes(model.table) | dict.fromkeys(counts, several)
    arrays = _arrays(model, table, sizes) | _arrays(model, plain, sizes)
    yield _held(name, compared, *(_gradients(model, each, sizes, arrays) for each in (table, plain)))


def _given(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """What is given between blocks: nothing of one block; of several bp's gradients, where the matrices make them."""
    given = [move.names for move in chosen.all_moves if move.form == "given SIGNAL at PLACE"]
    if all(place == "blocks" for _, place in given):
        yield from _one_block(model, chosen, name)
    if given == [("error", "blocks")]:
        yield from _exact_matrices(model, chosen, name)


def _stopped(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """A cut of the derivation is the derivation of a table that stops there by a word of its own."""
    stops = signals(model, chosen).cuts.stopped

    def change(line: Line) -> tuple[Line, ...]:
        copies: list[Line] = []
        right = list(line.right)
        for i, term in enumerate(line.right):
            if (Same(line), i) in stops and isinstance(term, Term):
                copy = Term(f"{term.name}:stopped{len(copies)}:{line.name}", term.axes)
                copies.append(Word((copy,), (term,), (), line.tag, word="stop_gradient", given=("X",), gives=("Y",)))
                right[i] = copy
        return (*copies, replace(line, right=tuple(right))) if copies else (line,)

    table = _with_values(replace(model.table, lines=each_line(model.table.lines, change)))
    known = step(model, chosen.name)
    sizes = small_sizes(model.table)
    arrays = _arrays(model, known, sizes)
    expected = derive(table, wanted=(*model.differentiated, *model.learning)).step
    found = _gradients(model, known, sizes, arrays)
    of_stopped = {key: array for key, array in _gradients(model, expected, sizes, arrays).items() if key in found}
    yield _held(name, "gradients with bp's of the table with stop_gradient there", found, of_stopped)


def _with_values(table: Table) -> Table:
    """The table, and its repeats, with what is known of the copies in it."""

    def inside(statement: Statement, around: Mapping[str, Value]) -> Statement:
        if not isinstance(statement, Repeat):
            return statement
        known = {**around, **statement.values}
        lines = tuple(inside(line, known) for line in statement.lines)
        return replace(statement, lines=lines, values={**statement.values, **copies(statement.lines, known)})

    def copies(lines: Iterable[Statement], known: Mapping[str, Value]) -> dict[str, Value]:
        words = (line for line in lines if isinstance(line, Word) and line.word == "stop_gradient")
        return {line.name: Value(line.left[0].declared) for line in words if line.name not in known}

    lines = tuple(inside(line, table.values) for line in table.lines)
    return replace(table, lines=lines, values={**table.values, **copies(table.lines, table.values)})


def _exact_matrices(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
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
    arrays = _arrays(model, plain, sizes)
    try:
        values = values_of(watched, arrays, sizes)
    except ValueError:  # positions that follow from other sizes, such as patches of an image
        yield Check(name, compared, "it has no inputs of one token", None)
        return
    scores, handed = values[e].reshape(-1), values["handed"]
    if handed[0].size != handed.shape[-1]:
        yield Check(name, compared, "it has no inputs of one token", None)
        return
    exact = np.stack([np.outer(scores, turn.reshape(-1)) / (scores @ scores) for turn in handed])
    found = _gradients(model, table, sizes, {**arrays, matrix: exact})
    yield _held(name, compared, found, {key: values[f"d{key}"] for key in found})


def _comes_nearer(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Both take the same steps and lose the same share, so that their difference loses it."""
    table = step(model, chosen.name, "momentum")
    sizes = small_sizes(table) | small_sizes(model.table)
    values = values_of(table, sound_arrays(table, sizes), sizes)
    apart, after = {}, {}
    for other in table.following:
        weight = table.values[other].of
        apart[other] = (1 - chosen.decay) * (values[other] - values[weight])
        after[other] = values[table.renewed[other]] - values[table.renewed[weight]]
    yield _held(name, f"the difference of both weights after a step with {1 - chosen.decay:g} of it", after, apart)


def _projected(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """In as many directions as there are, which are the axes themselves, the optimizer sees what it sees without."""
    plain = step(model, "bp", "adamw")
    table = with_projection(plain, model, chosen, WHOLE)
    matrices = {f"{weight}.P": axes for weight in model.learning if (axes := table.axes.get(f"{weight}.P"))}
    drawn = {key for key in table.known if key.partition(":")[0] in matrices}
    lines = each_line(table.lines, lambda line: () if drawn & set(line.makes) else (line,))
    table = replace(table, lines=lines, inputs=(*table.inputs, *matrices))
    sizes = small_sizes(plain) | {base(axes[-2]): WHOLE for axes in matrices.values()}
    arrays = sound_arrays(plain, sizes)
    identity = WHOLE**0.5 * np.eye(WHOLE)
    arrays |= {key: np.broadcast_to(identity, shape_of(axes, sizes)).copy() for key, axes in matrices.items()}
    arrays |= {key: np.asarray(1.0) for key in table.inputs if key not in arrays}
    expected, found = (values_of(each, arrays, sizes) for each in (plain, table))
    new = [*plain.renewed.values()]
    compared = "new weights and states with bp's, where its directions are the axes"
    yield _held(name, compared, {key: found[key] for key in new}, {key: expected[key] for key in new})


def _slope(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """A direction v of signs and a slope s: what stands for the gradient is s v, and <gradient, v> = s."""
    table, plain = step(model, chosen.name), step(model, "bp")
    sizes = _sizes(model, table)
    arrays = _arrays(model, table, sizes) | _arrays(model, plain, sizes) | {"dloss": np.asarray(1.0)}
    found, exact = (_gradients(model, each, sizes, arrays) for each in (table, plain))
    square = max(float(np.abs(array).max()) for array in found.values()) ** 2
    parts = [float(np.sum(found[key] * exact[key])) for key in found]
    signs = all(np.allclose(array**2, square, 1e-12, 0.0) for array in found.values())
    apart = abs(sum(parts) - square) / max(square, sum(map(abs, parts)))
    yield Check(name, "its slope with <bp's gradient, direction>", f"apart by {apart:.1e}", signs and apart < 1e-10)


def _quarter(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Both sides are apart from the slope by the square of the distance: halved, by a quarter."""
    sizes = small_sizes(model.table)
    found = []
    for distance in (4e-4, 2e-4, 1e-4):
        table, _ = by_two_sides(model, replace(chosen, distance=distance))
        found.append(_gradients(model, table, sizes, _arrays(model, table, sizes)))
    first, second = (
        max(float(np.abs(larger[key] - smaller[key]).max()) for key in larger)
        for larger, smaller in ((found[0], found[1]), (found[1], found[2]))
    )
    text = f"{first / second:.3f} times as far" if second else "no difference"
    yield Check(
        name, "its error with four times that of half the distance", text, 3.9 < first / max(second, 1e-300) < 4.1
    )


WHOLE = 12
"""A size of what is projected, and as many directions."""

_BACKWARD = ("forward", "forward again", "backward", "update")
_READING = (*_BACKWARD, "backward reading NAME for weights", "NAME follows weights")
_TWO = ("forward at plus", "forward at minus", "times NUMBER")
_Holds = Callable[[Model, Procedure, str], Iterator[Check]]

_KNOWN: tuple[tuple[str, tuple[str, ...], _Holds], ...] = (
    ("loss at blocks by HEAD", (*_BACKWARD, "groups of NUMBER"), _one_block),
    ("given SIGNAL at PLACE", _READING, _given),
    ("stopped at PLACE", _BACKWARD, _stopped),
    ("NAME follows weights", _READING, _comes_nearer),
    ("projected to NUMBER", _BACKWARD, _projected),
    ("update by tangents", ("forward", "tangents along PLACE"), _slope),
    ("update by both sides", _TWO, _quarter),
)
"""A move, the moves that may stand beside it, and what then holds."""
