"""Split a step into pipeline stages over a mesh axis: derive the tables of each stage, with its sends and receives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta
from learncost.ir.loop import Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.ops import applied
from learncost.ops.collectives import is_collective
from learncost.passes.stages import StageStep, StageValue, even
from learncost.sharding.clauses import Clause
from learncost.sharding.mesh import Mesh
from learncost.sharding.place import Placed, place

BLOCKS = "blocks"
"""The name in clauses of the iterations of all loops over blocks, whatever their trip counts are called."""


@dataclass(frozen=True)
class Pipeline:
    """The mesh axis that splits blocks into stages, and the remaining mesh for the devices of each stage.

    blocks  the number of blocks of each stage, if the clause gives it
    """

    axis: str
    stages: int
    mesh: Mesh
    clauses: tuple[Clause, ...]
    clause: Clause
    blocks: tuple[int, ...] = ()

    def layers(self, iterations: int) -> tuple[int, ...]:
        """Return the number of blocks of each stage, which the clause gives or which is equal. Raises `InputError`."""
        return self.blocks or even(iterations, self.stages)


def pipeline_of(table: Table, mesh: Mesh, chosen: Iterable[Clause]) -> Pipeline | None:
    """Return the pipeline that a clause such as `blocks over pp` describes, also by the name of the trip count, as
    `n_layer over pp`.

    `blocks over pp of 3 5 4` gives the number of blocks of each stage. Raises `InputError` if such a clause has other
    NAMES or other axes, if several have different mesh axes, and if the count of numbers differs from that of the
    stages.
    """
    counts = {base(line.count).partition("/")[0] for line in table.repeats} | {BLOCKS}
    chosen = tuple(chosen)
    sharded_over = [clause for clause in chosen if {*clause.axes} & counts]
    if not sharded_over:
        return None
    axis = sharded_over[0].mesh
    for clause in chosen:
        alone = {*clause.axes} <= counts and _numbers(clause)
        if (clause.mesh == axis) != (clause in sharded_over) or (clause in sharded_over and not alone):
            raise InputError(
                f"blocks need a single clause, `{BLOCKS} over {axis}`, or with the number of each stage, "
                f"`{BLOCKS} over {axis} of 3 5 4`, not {str(clause)!r}"
            )
    sharded_over[0].check(mesh)
    inner = Mesh(tuple(pair for pair in mesh.axes if pair[0] != axis))
    stages, blocks = mesh.sizes[axis], tuple(map(int, sharded_over[0].names))
    if blocks and len(blocks) != stages:
        raise InputError(f"{str(sharded_over[0])!r} gives the blocks of {len(blocks)} stages, but {mesh} has {stages}")
    others = tuple(clause for clause in chosen if clause not in sharded_over)
    return Pipeline(axis, stages, inner, others, sharded_over[0], blocks)


def _numbers(clause: Clause) -> bool:
    """Return whether all NAMES of a clause are numbers."""
    return all(name.isdecimal() for name in clause.names)


def place_stages(
    steps: Sequence[StageStep], pipeline: Pipeline, mesh: Mesh, sizes: Mapping[str, int], whole: Table, plan: str = ""
) -> tuple[Placed, ...]:
    """Return the tables of the devices of each stage, with the lines that send and receive.

    whole  the step of all stages together, to which the clauses apply
    plan   as in `place`
    """
    iterations = [dict(step.stage.iterations) for step in steps]
    every = [
        place(step.table, pipeline.mesh, pipeline.clauses, {**sizes, **stage_iterations}, whole, plan=plan)
        for step, stage_iterations in zip(steps, iterations, strict=True)
    ]
    # stages send in the order of computation
    order = [{name: at for at, line in enumerate(placed.table.lines) for name in line.makes} for placed in every]
    result = []
    for step, placed, stage_iterations in zip(steps, every, iterations, strict=True):
        received = sorted(step.receives, key=lambda sent: order[sent.source][sent.made])
        table = _with_sends(placed, step, {sent.read: sent for sent in received}, pipeline.axis)
        clauses = (pipeline.clause, *placed.clauses)
        result.append(
            replace(
                placed,
                table=table,
                mesh=mesh,
                clauses=clauses,
                iterations=stage_iterations,
                first=dict(step.stage.first),
            )
        )
    return tuple(result)


def _with_sends(placed: Placed, step: StageStep, received: Mapping[str, StageValue], axis: str) -> Table:
    """Return a sharded stage with its sends and receives, and the sums of gradients of tied weights."""
    table = placed.table
    sends: dict[str, list[StageValue]] = {}
    for sent in step.sends:
        sends.setdefault(sent.made, []).append(sent)
    values, lines, waiting = dict(table.values), list[Statement](), dict(received)
    tied, names = dict(step.tied), dict[str, str]()
    # A fused update waits for another stage, which may wait for later results of this one: it is therefore last.
    # For values that depend on such sums, such as a norm, the sum is computed where it is read.
    sums, late, late_names = dict[str, Line](), list[Statement](), set[str]()

    def line(name: str, op: str, operand: str, places: Iterable[int], why: str) -> Line:
        axes = values[operand or name].axes
        values[name] = replace(values[operand or name], axes=axes)
        right = (Term(operand, axes),) if operand else ()
        meta = Meta("pipeline", phase=phase, local=name, note=why)
        return applied(op, Term(name, axes), right, meta, (axis, *map(str, places)))

    for last in table.lines:
        phase = next(inner for inner, _ in walk((last,))).meta.phase
        phase = phase if phase in ("forward", "optimizer_step") else "backward"  # all other phases count as backward
        for name, sent in list(waiting.items()):
            if phase == "forward" and not step.stage.table.known.get(name):
                continue  # gradients arrive after the forward pass
            why = f"{name} comes from stage {sent.source}, which makes it"
            lines.append(line(name, "receive", "", (sent.source,), why))
            del waiting[name]
        summed = [name for name in last.reads if placed.holds.get(name, name) in tied]
        if phase != "optimizer_step" or is_collective(last):
            summed = []
        for name in summed:
            if name not in names:
                value, stages = table.values[placed.holds.get(name, name)], tied[placed.holds.get(name, name)]
                names[name] = f"{name}.tied"
                total = line(names[name], "all_reduce", name, stages, _why_summed(value, stages))
                if value.role == "gradient":
                    sums[name] = total
                else:
                    late.append(total)
        if summed or late_names & {*last.reads}:
            late.append(last.renamed({name: names[name] for name in summed}))
            late_names |= {*last.makes}
        else:
            lines.append(last)
        for name in last.makes:
            for sent in sends.get(name, ()):
                why = (
                    f"stage {sent.target} reads {name}"
                    if phase == "forward"
                    else f"stage {sent.target} made what it is of"
                )
                lines.append(line(f"{name}.sent.{sent.target}", "send", name, (sent.target,), why))
    lines += [*(sums[name] for name in sorted(sums)), *late]
    inputs = tuple(name for name in table.inputs if name not in received)
    return replace(table, lines=tuple(lines), values=values, inputs=inputs)


def _why_summed(value: Value, stages: Iterable[int]) -> str:
    who = " and ".join(map(str, stages))
    if value.role == "gradient":
        return f"stages {who} have the same weight: its gradients are summed"
    return f"gradients are clipped by the norm of all together, those of stages {who}"
