"""Estimate gradients by forward passes: by the loss's tangent along a random direction, or by a finite difference."""

from __future__ import annotations

from collections.abc import Mapping

from learncost.autodiff.derive import Derived
from learncost.autodiff.tangent import MARK, tangent
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Axes, Value
from learncost.layers.gradient_plan import GradientSource, Scope
from learncost.models.model import Model
from learncost.ops import applied
from learncost.procedures.directions import NUMBER, Directions, layer_metas, sites
from learncost.procedures.needed import needed
from learncost.procedures.places import check_learns, places
from learncost.procedures.procedure import Procedure
from learncost.procedures.signals import Signals


def by_tangents(model: Model, chosen: Procedure) -> tuple[Table, Mapping[str, str]]:
    """Return a step whose gradients are a random direction of all weights, scaled by the loss's tangent along it.

    Baydin et al. 2022, Gradients without backpropagation, algorithm 1, with directions of signs.
    """
    check(model, chosen)
    table, directions = model.table, Directions()
    along: dict[Scope, dict[str, GradientSource]] = {}
    for weight in model.learning:
        for site in sites(table, weight):
            axes = site.place.values[site.name].axes
            seed = directions.seed(weight, site.counts, site.place.scope)
            lines, values = directions.drawn(Term(seed, ()), axes, f"{site.name}{MARK}")
            along.setdefault(site.place.scope, {})[site.name] = GradientSource(
                f"{site.name}{MARK}", tuple(lines), values
            )
    moved, outputs = tangent(table, along, directions.slices)
    if "loss" not in outputs:
        raise InputError(
            f"{chosen.name} needs a loss that depends on a weight, which {model.configuration.name} does not have"
        )
    updates, values = _updates(model, directions, Term(outputs["loss"], ()))
    return _step(model, directions, (*directions.lines, *moved.lines, *updates), {**moved.values, **values})


def by_two_sides(model: Model, chosen: Procedure) -> tuple[Table, Mapping[str, str]]:
    """Return a step whose gradients are random directions, scaled by the difference of losses on both sides along each.

    Spall 1992, with directions of signs; Malladi et al. 2023, algorithm 1; several pairs: Salimans et al. 2017.
    """
    check(model, chosen)
    several = int(chosen.moves.get("times NUMBER", "1"))
    directions = Directions(NUMBER if several == 1 else "pair.draw")
    table = model.table
    lines: list[Statement] = []
    values: dict[str, Value] = dict(table.values)
    for side, sign in (("plus", 1), ("minus", -1)):
        if f"forward at {side}" not in chosen.moves:
            raise InputError(f"{chosen.name} needs both sides: forward at plus, forward at minus")
        passed, known = _moved(model, directions, side, sign * chosen.distance)
        lines += passed
        values |= known
    meta = Meta("loss", local="both sides")
    plus, minus = Term("loss.plus", ()), Term("loss.minus", ())
    lines += [
        Sum((Term("loss.difference", ()),), (plus, minus), (), meta, (1, -1)),
        Product((Term("loss.slope", ()),), (Term("loss.difference", ()), Literal(0.5 / chosen.distance)), (), meta),
        Sum((Term("loss.both", ()),), (plus, minus), (), meta, (1, 1)),
        Product((Term("loss", ()),), (Term("loss.both", ()), Literal(0.5)), (), meta),
    ]
    values |= dict.fromkeys(("loss.difference", "loss.slope", "loss.both"), Value(()))
    slope = Term("loss.slope", ())
    if several == 1:
        updates, known = _updates(model, directions, slope)
        return _step(model, directions, (*directions.lines, *lines, *updates), values | known)
    return _several(model, directions, several, lines, values)


def with_tangents(model: Model, derived: Derived, made: Signals) -> tuple[Table, Mapping[str, str]]:
    """Return a step whose gradients of linear outputs are random directions, scaled by the loss's tangent along them.

    Ren et al. 2023, Scaling forward gradient with local losses, section 3: activities are perturbed, and each sequence
    has its own tangent of the loss.
    """
    assert made.directions is not None
    last = next(line for line in reversed(model.table.lines) if "loss" in line.makes)
    rows: Axes = ("B",) if isinstance(last, Product) and "B" in last.loops else ()
    # A loop's scope has another name in `derived.forward`, where saved tensors are loop outputs, too.
    pairs = zip(places(model.table), places(derived.forward), strict=True)
    scopes = {place.scope: forward.scope for place, forward in pairs}
    along = {scopes[scope]: sources for scope, sources in made.along.items()}
    slices = {scopes[scope]: known for scope, known in made.directions.slices.items()}
    moved, outputs = tangent(derived.forward, along, slices, {"loss": rows} if rows else {})
    if "loss" not in outputs:
        raise InputError(f"{model.configuration.name} has no loss that depends on the outputs of its linear layers")
    directions, table = made.directions, derived.step
    gradients = {name: gradient for name, gradient in derived.gradients.items() if name in model.table.weights}
    lines = (*directions.lines, *moved.lines, *derived.reverse.lines)
    values = {**table.values, **moved.values, **directions.values}
    step = replace(table, lines=lines, values=values, inputs=(*table.inputs, NUMBER))
    step = replace(step, outputs=(*model.table.outputs, *gradients.values()))
    reached = needed(step, step.outputs)  # all inputs remain, also those that only lines of frozen weights read
    known = {name: step.values[name] for name in step.inputs if name in step.values}
    return replace(reached, weights=step.weights, inputs=step.inputs, values={**known, **reached.values}), gradients


def _several(
    model: Model, directions: Directions, several: int, lines: list[Statement], values: dict[str, Value]
) -> tuple[Table, Mapping[str, str]]:
    """Return a step with a loop over pairs of losses, each along a new direction, which computes the mean of their
    gradients."""
    table, share = model.table, Literal(1 / several)
    meta, update = Meta("loss", local="mean"), Meta("directions", phase="weight_update", local="merge")
    updates, known = _updates(model, directions, Term("loss.slope.share", ()))
    iteration: list[Statement] = [
        *directions.lines,
        *lines,
        Product((Term("loss.slope.share", ()),), (Term("loss.slope", ()), share), (), meta),
        Product((Term("loss.share", ()),), (Term("loss", ()), share), (), meta),
        *updates,
    ]
    inner = {**values, **known, **directions.values, "loss.slope.share": Value(()), "loss.share": Value(())}
    outer, before, carries = dict(table.values), list[Statement](), []
    totals: dict[str, tuple[str, Axes, Meta]] = {"loss": ("loss.share", (), meta)}
    totals |= {f"d{weight}": (f"d{weight}", table.axes[weight], update) for weight in model.learning}
    for name, (part, axes, of) in totals.items():
        zero, start, end = (Term(f"{name}:{what}", axes) for what in ("zero", "sum", "sum."))
        before.append(applied("zeros", zero, (), of))
        iteration.append(Sum((end,), (start, Term(part, axes)), (), of, (1, 1)))
        carries.append(Carry(start.name, end.name, zero.name, name))
        kind = Value(axes) if name == "loss" else Value(axes, "gradient", name.removeprefix("d"))
        inner |= {start.name: kind, end.name: kind}
        outer |= {zero.name: kind, name: kind}
    first, drawn, following = Directions(), directions.drawn_by, f"{directions.drawn_by}.2"
    iteration.append(_next(following, drawn, directions.last))
    inner |= {drawn: Value(()), following: Value(())}
    carries.append(Carry(drawn, following, NUMBER, f"{drawn}:last"))
    outer |= {f"{drawn}:last": Value(())}
    repeat = Loop(str(several), tuple(iteration), inner, tuple(carries))
    repeat = replace(repeat, values={name: inner[name] for name in inner if name in repeat.inside})
    return _step(model, first, (*before, repeat), outer)


def _next(name: str, drawn: str, last: Term) -> Op:
    """Return the line that computes the next pair's number from that of this pair and its last seed."""
    meta = Meta("directions", local="draw")
    return applied("hashed", Term(name, ()), (Term(drawn, ()), last), meta)


def check(model: Model, chosen: Procedure) -> None:
    """Refuse a model without a loss, and one with quantized weights."""
    check_learns(model, chosen.name)
    if model.quantized:
        raise InputError(
            f"{chosen.name} moves weights by small steps, which quantized weights cannot represent: choose a "
            f"precision without quantization"
        )


def _updates(model: Model, directions: Directions, slope: Term) -> tuple[list[Line], dict[str, Value]]:
    """Return the lines of every weight's gradient: its direction, drawn again, times a number; and their Values."""
    lines: list[Line] = []
    values: dict[str, Value] = {}
    metas = layer_metas(model.table, model.learning)
    for weight in model.learning:
        axes = model.table.axes[weight]
        seed = f"{weight}.seed"
        have: Axes = directions.values[seed].axes
        meta = replace(metas[weight], phase="weight_update", local="draw")
        name = f"d{weight}:direction"
        made, known = directions.drawn(Term(seed, axes[: len(have)]), axes[len(have) :], name, meta)
        gradient = Term(f"d{weight}", axes)
        lines += [*made, Product((gradient,), (Term(name, axes), slope), (), replace(meta, local="dW"))]
        values |= {**known, gradient.name: Value(axes, "gradient", weight)}
    return lines, values


def _step(
    model: Model, directions: Directions, lines: tuple[Statement, ...], values: Mapping[str, Value]
) -> tuple[Table, Mapping[str, str]]:
    table = model.table
    gradients = {weight: f"d{weight}" for weight in model.learning}
    every = {**values, **directions.values}
    step = replace(
        table,
        lines=lines,
        values=every,
        inputs=(*table.inputs, NUMBER),
        outputs=(*table.outputs, *gradients.values()),
    )
    return replace(needed(step, step.outputs), weights=table.weights, inputs=step.inputs), gradients


def _moved(
    model: Model, directions: Directions, side: str, distance: float
) -> tuple[list[Statement], dict[str, Value]]:
    """Return the forward pass with W + distance x direction in place of every trainable weight W."""
    table = model.table
    making: dict[Scope, dict[str, tuple[list[Line], dict[str, Value]]]] = {}
    for weight in model.learning:
        for site in sites(table, weight):
            axes = site.place.values[site.name].axes
            seed = directions.seed(weight, site.counts, site.place.scope)
            direction, scaled, moved = (Term(f"{site.name}.{part}", axes) for part in ("direction", "step", side))
            lines, values = directions.drawn(Term(seed, ()), axes, direction.name)
            meta = Meta("directions", local=f"W {side}")
            lines.append(Product((scaled,), (direction, Literal(abs(distance))), (), meta))
            lines.append(Sum((moved,), (Term(site.name, axes), scaled), (), meta, (1, 1 if distance > 0 else -1)))
            values |= {scaled.name: Value(axes), moved.name: Value(axes)}
            making.setdefault(site.place.scope, {})[site.name] = (lines, values)

    def through(
        statements: tuple[Statement, ...], scope: Scope, values: dict[str, Value], around: Mapping[str, str]
    ) -> list[Statement]:
        result: list[Statement] = []
        makers = making.get(scope, {})
        names = dict(around)
        for line in statements:
            for name in line.reads:
                if name in makers and name not in names:
                    lines, known = makers[name]
                    result += lines
                    values |= known
                    names[name] = f"{name}.{side}"
            if isinstance(line, Loop):
                inside = {name: new for name, new in names.items() if name not in line.inside}
                inner_scope, inner = (*scope, line.makes), dict(line.values)
                body = through(line.lines, inner_scope, inner, inside)
                slices = directions.slices.get(inner_scope, {})
                inner |= slices
                each = [(name, names.get(outer, outer)) for name, outer in line.each]
                each += [(name, name) for name in slices]
                line = replace(line, lines=tuple(body), values=inner, each=tuple(each))
                result.append(line)
            else:
                result.append(line.renamed(names))
        return result

    outer: dict[str, Value] = {}
    passed = through(table.lines, (), outer, {})
    made = {name for line in passed for name in line.makes}
    names = {name: f"{name}.{side}" for name in made if not name.endswith(f".{side}")}
    known = {names.get(name, name): value for name, value in {**table.values, **outer}.items() if name in made}
    return [line.renamed(names) for line in passed], known
