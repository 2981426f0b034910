"""Known identities of learning procedures, which follow from their moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from learncost.autodiff.derive import derive
from learncost.ir.dataclass import replace
from learncost.ir.line import Line, Op
from learncost.ir.loop import Statement, map_lines, map_loops
from learncost.ir.polynomial import base, shape_of
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import IdentityKey, Value
from learncost.models.model import Model
from learncost.models.parts import NamedParts
from learncost.procedures.forward_gradients import by_two_sides
from learncost.procedures.places import blocks
from learncost.procedures.procedure import Procedure
from learncost.procedures.projection import with_projection
from learncost.procedures.signals import signals
from learncost.procedures.step import iterations_of, run_by, step, trained_by
from learncost.verification.check import finite_arrays, values_of
from learncost.verification.known_given import exact, slope_of_activities
from learncost.verification.report import Check
from learncost.verification.sample import small_sizes
from learncost.verification.stepped import arrays_of, gradients_of, held, sizes_of


def known(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check the identities that hold for a schedule with certain moves and no others.

    Substitutes of a weight have the weight's values here, whatever the procedure's lines compute.
    """
    chosen = replace(chosen, lines=())
    moves = {move.form for move in chosen.all_moves}
    for form, besides, holds in _KNOWN:
        if form in moves and moves <= {form, *besides}:
            yield from holds(model, chosen, name)


def _one_block(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that a model of one block of each kind, or of one group, has bp's gradients: nothing is cut."""
    compared = "gradients of one block with bp's"
    places = blocks(model, chosen.name)
    counts = {repeat.count for place in places for repeat in place.repeats}
    several = int(chosen.moves.get("groups of NUMBER", "1"))
    carries = [carry for place in places for repeat in place.repeats for carry in repeat.carry]
    follows = {carry.initial for carry in carries} & {carry.final for carry in carries}
    if follows or any(count.isdigit() for count in counts):
        yield Check(name, compared, "its blocks are of several kinds", None)
        return
    table, plain = step(model, chosen), step(model, "bp")
    sizes = small_sizes(table) | small_sizes(model.table) | dict.fromkeys(counts, several)
    arrays = arrays_of(model, table, sizes) | arrays_of(model, plain, sizes)
    yield held(name, compared, *(gradients_of(model, each, sizes, arrays) for each in (table, plain)))


def _given(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check signals given between blocks: none with one block; with several, bp's gradients by exact matrices."""
    given = [move.names for move in chosen.all_moves if move.form == "given SIGNAL at PLACE"]
    if all(place == "blocks" for _, place in given):
        yield from _one_block(model, chosen, name)
    if all(signal in ("error", "targets") for signal, _ in given):
        yield from exact(model, chosen, name)
    if given == [("tangent", "linears")]:
        yield from slope_of_activities(model, chosen, name)


def _stopped(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that a cut gives the gradients of a table with a stop-gradient operator at that place."""
    stops = signals(model, chosen).overrides.stopped

    def change(line: Line) -> tuple[Line, ...]:
        copies: list[Line] = []
        right = list(line.right)
        for i, term in enumerate(line.right):
            if (IdentityKey(line), i) in stops and isinstance(term, Term):
                whole, copy = (
                    Term(name, term.declared) for name in (term.name, f"{term.name}:stopped{len(copies)}:{line.name}")
                )
                copies.append(Op((copy,), (whole,), (), line.meta, op="stop_gradient", given=("X",), gives=("Y",)))
                right[i] = Term(copy.name, term.axes)
        return (*copies, replace(line, right=tuple(right))) if copies else (line,)

    table = _with_values(replace(model.table, lines=map_lines(model.table.lines, change)))
    known = step(model, chosen)
    sizes = small_sizes(model.table)
    arrays = arrays_of(model, known, sizes)
    expected = derive(table, wanted=(*model.differentiated, *model.learning)).step
    step_gradients = gradients_of(model, known, sizes, arrays)
    of_stopped = {
        key: array for key, array in gradients_of(model, expected, sizes, arrays).items() if key in step_gradients
    }
    yield held(name, "gradients with bp's of the table with stop_gradient there", step_gradients, of_stopped)


def _with_values(table: Table) -> Table:
    """Return the table with the values of the copies in it and in its loops."""

    def copies(lines: Iterable[Statement]) -> dict[str, Value]:
        ops = (line for line in lines if isinstance(line, Op) and line.op == "stop_gradient")
        return {line.name: Value(line.left[0].declared) for line in ops if line.name not in table.known}

    lines = map_loops(table.lines, lambda loop: replace(loop, values={**loop.values, **copies(loop.lines)}))
    return replace(table, lines=lines, values={**table.values, **copies(table.lines)})


def _comes_nearer(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that weights approach their feedback: with equal updates and decay, the difference decays."""
    table = step(model, chosen, "momentum")
    sizes = small_sizes(table) | small_sizes(model.table)
    values = values_of(table, finite_arrays(table, sizes), sizes)
    apart, after = {}, {}
    for other in table.following:
        weight = table.values[other].of
        apart[other] = (1 - chosen.decay) * (values[other] - values[weight])
        after[other] = values[table.renewed[other]] - values[table.renewed[weight]]
    yield held(name, f"the difference of both weights after a step with {1 - chosen.decay:g} of it", after, apart)


def _projected(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that a projection onto all axes gives the optimizer the same gradients as no projection."""
    plain = step(model, "bp", "adamw")
    table = with_projection(plain, replace(model, sizes={}), replace(_to(chosen, WHOLE), scale=1.0, held=2))
    matrices = {f"{weight}.P": axes for weight in model.learning if (axes := table.axes.get(f"{weight}.P"))}
    drawn = {key for key in table.known if key.partition(":")[0] in matrices}
    lines = map_lines(table.lines, lambda line: () if drawn & set(line.makes) else (line,))
    table = replace(table, lines=lines, inputs=tuple(dict.fromkeys((*table.inputs, *matrices))))
    sizes = small_sizes(plain) | {base(axes[-2]): WHOLE for axes in matrices.values()}
    arrays = finite_arrays(plain, sizes)
    identity = (1.0 if chosen.finds else WHOLE**0.5) * np.eye(WHOLE)
    arrays |= {key: np.broadcast_to(identity, shape_of(axes, sizes)).copy() for key, axes in matrices.items()}
    arrays |= {key: np.asarray(1.0) for key in table.inputs if key not in arrays}
    expected, step_values = (values_of(each, arrays, sizes) for each in (plain, table))
    new = [*plain.renewed.values()]
    compared = "new weights and states with bp's, where its directions are the axes"
    yield held(name, compared, {key: step_values[key] for key in new}, {key: expected[key] for key in new})


def _to(chosen: Procedure, rank: int) -> Procedure:
    """Return the procedure that projects to a number of directions."""
    forms = [sweep.replace(f"projected to {chosen.projected_to}", f"projected to {rank}") for sweep in chosen.schedule]
    return replace(chosen, schedule=forms)


def _found(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that found directions are orthogonal, with NumPy's largest singular values as norms of their gradients."""
    yield from _projected(model, chosen, name)
    table = step(replace(model, sizes={}), replace(_to(chosen, 2), held=2), "sgd", iteration=1)
    sizes = small_sizes(table)
    values = values_of(table, finite_arrays(table, sizes), sizes)
    lengths, expected = {}, {}
    for state, found in table.renewed.items():
        if table.values[state].role != "state":
            continue
        weight, axes = table.values[state].of, table.axes[state]
        seen = table.axes[f"{weight}.seen"]
        stack = [axis for axis in axes[:-1] if axis in seen]
        order = [*axes[:-1], *(axis for axis in seen if axis not in (*stack, axes[-1]))]
        transposed = values[f"d{weight}"].transpose([table.axes[weight].index(axis) for axis in order])
        number = int(np.prod([values[found].shape[i] for i in range(len(stack))], dtype=int))
        vectors = values[found].reshape(number, -1, 2)
        matrices = transposed.reshape(number, vectors.shape[1], -1)
        lengths[weight] = vectors.transpose(0, 2, 1) @ matrices @ matrices.transpose(0, 2, 1) @ vectors
        largest = np.linalg.svd(matrices, compute_uv=False)[:, :2]
        expected[weight] = np.stack([np.diag(pair**2) for pair in largest])
        lengths[f"{weight}, angles"] = vectors.transpose(0, 2, 1) @ vectors
        expected[f"{weight}, angles"] = np.broadcast_to(np.eye(2), (number, 2, 2))
    yield held(name, "the gradient in its directions with its largest singular values", lengths, expected)


def _inverts(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that gradients with inputs recomputed from a block's outputs equal those with saved inputs.

    Weights are small, because recomputed values differ by a rounding, which every iteration enlarges by its slope.
    """
    table, plain = step(model, chosen), step(run_by(model, chosen), "bp")
    sizes = sizes_of(model, table)
    arrays = _of_smaller_weights(plain, arrays_of(model, plain, sizes), 0.25)
    yield held(
        name,
        "gradients with bp's of the model of two streams",
        *(gradients_of(model, each, sizes, arrays) for each in (table, plain)),
    )


def _of_smaller_weights(table: Table, arrays: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Return the arrays with weights scaled down."""
    return {**arrays, **{key: share * arrays[key] for key in table.weights}}


def _iterations(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that the block trained in an iteration has bp's gradients, and that nothing else has one."""
    plain, last = step(model, "bp"), iterations_of(model, chosen) - 1
    counts = {
        repeat.count: NamedParts(model).iterations(repeat)
        for repeat in model.table.repeats
        if not repeat.count.isdigit()
    }
    for iteration in sorted({0, last}):
        table, learning = step(model, chosen, iteration=iteration), trained_by(model, chosen, iteration).learning
        sizes = small_sizes(table) | counts
        arrays = finite_arrays(table, sizes)
        stacks: dict[str, list[Any]] = {}
        first: dict[str, int] = {}
        for key in table.weights:
            parts = stacks.setdefault(table.values[key].group or key, [])
            first[key] = sum(map(len, parts)) if table.values[key].group else 0
            parts.append(arrays[key])
        whole = {key: parts[0] if key in arrays else np.concatenate(parts) for key, parts in stacks.items()}
        results, values = values_of(table, arrays, sizes), values_of(plain, {**arrays, **whole}, sizes)
        expected = {
            f"d{key}": values[f"d{table.values[key].group or key}"][first[key] :][: len(arrays[key])]
            for key in learning
        }
        of_weights = {f"d{key}": results[f"d{key}"] for key in table.weights if f"d{key}" in results}
        yield held(f"{name}, block {iteration}", "its gradients with bp's, and no others", of_weights, expected)


def _slope(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that the replacement of a gradient is s v for a direction v of signs, where <gradient, v> = s."""
    table, plain = step(model, chosen), step(model, "bp")
    sizes = sizes_of(model, table)
    arrays = arrays_of(model, table, sizes) | arrays_of(model, plain, sizes) | {"dloss": np.asarray(1.0)}
    drawn, exact = (gradients_of(model, each, sizes, arrays) for each in (table, plain))
    square = max(float(np.abs(array).max()) for array in drawn.values()) ** 2
    parts = [float(np.sum(drawn[key] * exact[key])) for key in drawn]
    signs = all(np.allclose(array**2, square, 1e-12, 0.0) for array in drawn.values())
    apart = abs(sum(parts) - square) / max(square, sum(map(abs, parts)))
    yield Check(
        name, "its slope with <bp's gradient, direction>", f"a difference of {apart:.1e}", signs and apart < 1e-10
    )


def _quarter(model: Model, chosen: Procedure, name: str) -> Iterator[Check]:
    """Check that the error of central differences falls to a quarter when the distance is halved.

    It does if the distance is small against the curvature and no choice changes between the two sides, as ReLU's and
    a router's do. So distances are halved until the error is a quarter twice, which a one-sided difference never
    shows; if a choice is too near, weights of another size are used.
    """
    ratios: list[float] = []
    for share in (1.0, 0.5, 0.25):
        ratios = list(_ratios(model, chosen, share))
        if quarters := all(3.8 < ratio < 4.2 for ratio in ratios[-2:]):
            break
    text = f"{ratios[-2]:.3f} and {ratios[-1]:.3f} times as far"
    yield Check(name, "its error with four times that of half the distance", text, quarters)


def _ratios(model: Model, chosen: Procedure, share: float) -> Iterator[float]:
    """Yield the factors by which errors of gradients shrink when the distance halves, until two of them are four."""
    sizes, gradients_by_step, quarters = small_sizes(model.table), list[Mapping[str, Any]](), 0
    for halved in range(14):  # the last distance is 5e-8: roundings are larger then
        table, _ = by_two_sides(model, replace(chosen, distance=4e-4 * 0.5**halved))
        arrays = _of_smaller_weights(table, arrays_of(model, table, sizes), share)
        gradients_by_step.append(gradients_of(model, table, sizes, arrays))
        if len(gradients_by_step) > 2:
            first, second = (
                max(float(np.abs(larger[key] - smaller[key]).max()) for key in larger)
                for larger, smaller in (gradients_by_step[-3:-1], gradients_by_step[-2:])
            )
            ratio = first / max(second, 1e-300)
            yield ratio
            quarters = quarters + 1 if 3.8 < ratio < 4.2 else 0
            if quarters == 2:
                return


WHOLE = 12
"""A size of what is projected, and as many directions."""

_BACKWARD = ("forward", "forward again", "backward", "update")
_READING = (*_BACKWARD, "backward reading NAME for weights", "NAME follows weights")
_TWO = ("forward at plus", "forward at minus", "times NUMBER")
_Checker = Callable[[Model, Procedure, str], Iterator[Check]]

_KNOWN: tuple[tuple[str, tuple[str, ...], _Checker], ...] = (
    ("loss at blocks by HEAD", (*_BACKWARD, "groups of NUMBER"), _one_block),
    ("given SIGNAL at PLACE", (*_READING, "tangents along PLACE"), _given),
    ("stopped at PLACE", _BACKWARD, _stopped),
    ("NAME follows weights", _READING, _comes_nearer),
    ("projected to NUMBER", _BACKWARD, _projected),
    ("projected to NUMBER singular vectors", _BACKWARD, _found),
    ("forward again from outputs", (*_BACKWARD, "forward in two streams"), _inverts),
    ("update of alternating blocks", _BACKWARD, _iterations),
    ("update by tangents", ("forward", "tangents along PLACE"), _slope),
    ("update by both sides", _TWO, _quarter),
)
"""A move, the moves allowed with it, and the check that then holds."""
