"""The memory of one device of many: its table, and its part of what no line says."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from learncost.ir.line import Line, Op
from learncost.ir.loop import Loop, map_lines, map_loops, walk
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Axes, Value
from learncost.models.model import Model
from learncost.ops import entry
from learncost.ops.collectives import KIND
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.plan import planned
from learncost.procedures.optimizer import DEFAULT, without_gradients
from learncost.procedures.step import step as step_of
from learncost.reports.memory.step import MemoryStep, gathering, points, stacks_of, state_bytes
from learncost.reports.mesh_cost import OverMesh, padded_step, part_of, refuse_stages
from learncost.sharding.clauses import ShardSpecs, parts_of
from learncost.sharding.collective import collectives, widths_of
from learncost.sharding.layout import ShardLayout
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.padding import sizes_of, with_filled
from learncost.sharding.place import Placed, place
from learncost.sharding.presets import chosen, chosen_for
from learncost.sharding.stages import pipeline_of


def placed_step(
    step: MemoryStep, mesh: str, place_: str | None, placement: str | None, trains: bool = False
) -> MemoryStep:
    """A step as each device of a mesh has it.

    trains  as learncost train has it: a vocabulary that does not divide stays whole
    Raises `InputError` where an axis does not divide.
    """
    grid = parse_mesh(mesh)
    clauses = chosen_for(grid, step.run.axes, place_, placement) if trains else chosen(place_, placement)
    # Of an optimizer of which the state alone is known, the lines are those of one that has a state too.
    optimizer = step.optimizer.name if step.optimizer.name in OPTIMIZERS else DEFAULT
    if pipeline := pipeline_of(step.model.table, grid, clauses):
        refuse_stages(pipeline.said)
    procedure, plan, gathers = step.procedure, step.plan, step.accumulate > 1

    def table_of(model: Model) -> Table:
        table = planned(without_gradients(step_of(model, procedure, optimizer)), plan)
        return gathering(table) if gathers else table

    _, table, sizes, padded = padded_step(step.model, table_of, grid, clauses, step.sizes())
    placed = place(table, grid, clauses, sizes)
    result = copy(step)
    if padded:
        result = step.of(with_filled(step.run.model, padded), {**step.run.axes, **sizes_of(padded)})
    over = OverMesh(placed, collectives(placed, sizes, widths_of(step.kind)), sizes, padded)
    specs = ShardSpecs(table, grid, clauses, sizes)
    local = {**sizes, **placed.sizes}
    step, stacks = result, {*stacks_of(step.model.table), *step.stepped_projections}

    def shape_here(name: str, axes: Axes) -> list[int]:
        cut_axes = _cut(specs, f"{name}.state", Value(axes, "state", name))
        return [*shape_of(cut_axes, {**local, **specs.filled})]

    def stepped_here(name: str, axes: Axes) -> list[int]:
        shape = shape_here(name, axes)
        return step.stepped_shape(name, axes, shape) if name in step.model.learning else shape

    names = (*step.model.learning, *step.stepped_projections)
    shapes = {name: stepped_here(name, step.seen.get(name, table.axes[name])) for name in names}
    of, states = step.optimizer.bytes, step.kind.states
    result.state = sum(state_bytes(of, shape, name in stacks, states) for name, shape in shapes.items())
    result.master = step.kind.master * sum(points(shape_here(n, table.axes[n])) for n in step.model.learning)
    wide = {array: step.widths[name] for array, name in placed.holds.items() if name in step.widths}
    moved = {array for array in placed.holds if part_of(placed, array) == "gradients"}
    moved |= {name for name in table.known if part_of(placed, name) == "gradients"}
    widened = dict.fromkeys(placed.scores, step.kind.scores)
    result.widths = {**step.widths, **widened, **wide, **dict.fromkeys(moved, step.kind.gradient)}
    result.mesh = mesh, place_, placement, trains
    result.placed(in_place(placed), over, parts_of(table, grid, clauses, sizes))
    return result


def _cut(specs: ShardSpecs, name: str, value: Value) -> tuple[str, ...]:
    return ShardLayout(specs.spec(name, value)).cut(value.axes)


def in_place(placed: Placed) -> Table:
    """The table with an optimizer whose states no line says, which writes new weights over the old ones.

    Where new weights are gathered they are so in the old ones' place, and shards of old ones are no separate arrays.
    """
    table, whole = placed.table, placed.whole
    results = {value.of: name for name, value in table.known.items() if value.role == "new" and name in whole.known}

    def change(line: Line) -> tuple[Line, ...]:
        if not isinstance(line, Op) or line.meta.phase != "optimizer_step":
            return (line,)
        held = placed.holds.get(line.name, "")
        if entry(line.op).kind == KIND:
            return () if held in whole.weights or (held and whole.known[held].role == "new") else (line,)
        if line.op not in OPTIMIZERS:
            return (line,)
        operands = dict(zip(line.given, line.right, strict=True))
        weight = placed.holds.get(operands["W"].name, operands["W"].name)
        if weight not in results:  # what is stepped from is made of the weight before, so that it does not lie there
            left, right = line.left[:1], (operands["W"], operands["G"], operands["lr"])
        else:
            axes = table.known[weight].axes
            left = (Term(results[weight], axes),)
            right = (Term(weight, axes), operands["G"], operands["lr"])
        return (replace(line, left=left, right=right, op="sgd", given=("W", "G", "lr"), gives=("U",)),)

    states = {name for name, value in table.known.items() if value.role == "state"}
    renewed = {name for name, value in table.known.items() if value.role == "new" and value.of in states}
    gone = states | renewed

    def without_states(loop: Loop) -> Loop:
        kept = ((name, stack) for name, stack in loop.keep if stack not in gone)
        return replace(
            loop,
            each=tuple(pair for pair in loop.each if pair[1] not in gone),
            keep=tuple((placed.holds.get(n, n) if stack in results.values() else n, stack) for n, stack in kept),
        )

    lines = map_loops(map_lines(table.lines, change), without_states)
    read = {name for line, _ in walk(lines) for name in line.reads}
    unread = {name for name in table.inputs if table.values[name].role == "number"} - read
    return replace(
        table,
        lines=lines,
        inputs=tuple(name for name in table.inputs if name not in states | unread),
        outputs=tuple(name for name in table.outputs if name not in renewed),
    )
