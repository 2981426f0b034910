"""The stages of a pipeline over an axis of the mesh: what every device of each of them runs, sends and receives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op
from learncost.ir.loop import Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.ops.collectives import is_collective
from learncost.passes.stages import Stage, StageValue, even
from learncost.sharding.clauses import Clause
from learncost.sharding.mesh import Mesh
from learncost.sharding.place import Placed, place

BLOCKS = "blocks"
"""Stands in a clause for the turns of all repeats of blocks, whatever a family calls their number."""


class StageProgram(Protocol):
    """The step of a stage: its table, what it sends and receives, and what several stages sum before they update."""

    @property
    def stage(self) -> Stage: ...
    @property
    def table(self) -> Table: ...
    @property
    def sends(self) -> tuple[StageValue, ...]: ...
    @property
    def receives(self) -> tuple[StageValue, ...]: ...
    @property
    def tied(self) -> Mapping[str, tuple[int, ...]]: ...


@dataclass(frozen=True)
class Pipeline:
    """The axis of the mesh that cuts blocks into stages, and what is left for the devices of a stage.

    blocks  how many each stage has, where the clause says it
    """

    axis: str
    stages: int
    mesh: Mesh
    clauses: tuple[Clause, ...]
    said: Clause
    blocks: tuple[int, ...] = ()

    def layers(self, iterations: int) -> tuple[int, ...]:
        """How many of all blocks each stage has: as the clause says, or as many. Raises `InputError`."""
        return self.blocks or even(iterations, self.stages)


def pipeline_of(table: Table, mesh: Mesh, chosen: Iterable[Clause]) -> Pipeline | None:
    """The pipeline that clauses ask for, `blocks over pp` or by the name of the number, as in `n_layer over pp`.

    `blocks over pp of 3 5 4` says how many each stage has. Raises `InputError` where such a clause has other NAMES or
    other axes, where several are over different axes, and where as many numbers as stages are not said.
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
                f"blocks are cut into stages by one clause alone, `{BLOCKS} over {axis}`, or with how many each has, "
                f"`{BLOCKS} over {axis} of 3 5 4`, not {str(clause)!r}"
            )
    sharded_over[0].check(mesh)
    inner = Mesh(tuple(pair for pair in mesh.axes if pair[0] != axis))
    stages, blocks = mesh.sizes[axis], tuple(map(int, sharded_over[0].names))
    if blocks and len(blocks) != stages:
        raise InputError(f"{str(sharded_over[0])!r} says the blocks of {len(blocks)} stages, and {mesh} has {stages}")
    others = tuple(clause for clause in chosen if clause not in sharded_over)
    return Pipeline(axis, stages, inner, others, sharded_over[0], blocks)


def _numbers(clause: Clause) -> bool:
    """Whether all that a clause names are numbers."""
    return all(name.isdecimal() for name in clause.names)


def place_stages(
    steps: Sequence[StageProgram], pipeline: Pipeline, mesh: Mesh, sizes: Mapping[str, int], whole: Table
) -> tuple[Placed, ...]:
    """The table that the devices of each stage run, with the lines that send and receive.

    whole  the step of all stages together, which the clauses are about
    """
    iterations = [dict(step.stage.iterations) for step in steps]
    every = [
        place(step.table, pipeline.mesh, pipeline.clauses, {**sizes, **stage_iterations}, whole)
        for step, stage_iterations in zip(steps, iterations, strict=True)
    ]
    order = [
        {name: at for at, line in enumerate(placed.table.lines) for name in line.makes} for placed in every
    ]  # what a stage sends comes in the order in which it is made
    result = []
    for step, placed, stage_iterations in zip(steps, every, iterations, strict=True):
        received = sorted(step.receives, key=lambda sent: order[sent.source][sent.made])
        table = _with_sends(placed, step, {sent.read: sent for sent in received}, pipeline.axis)
        said = (pipeline.said, *placed.clauses)
        result.append(
            replace(
                placed, table=table, mesh=mesh, clauses=said, iterations=stage_iterations, first=dict(step.stage.first)
            )
        )
    return tuple(result)


def _with_sends(placed: Placed, step: StageProgram, received: Mapping[str, StageValue], axis: str) -> Table:
    """A placed stage with what goes to other stages and comes from them, and the sums of gradients of tied weights."""
    table = placed.table
    sends: dict[str, list[StageValue]] = {}
    for sent in step.sends:
        sends.setdefault(sent.made, []).append(sent)
    values, lines, waiting = dict(table.values), list[Statement](), dict(received)
    tied, names = dict(step.tied), dict[str, str]()
    # Who updates a weight at once waits there for another stage, which may wait for what comes later: so it is last.
    # Of what follows from such sums, such as a norm, the sum stands where it is read.
    sums, late, late_names = dict[str, Line](), list[Statement](), set[str]()

    def line(name: str, op: str, operand: str, places: Iterable[int], why: str) -> Line:
        axes = values[operand or name].axes
        values[name] = replace(values[operand or name], axes=axes)
        right = (Term(operand, axes),) if operand else ()
        meta = Meta("pipeline", phase=phase, local=name, why=why)
        given = ("X",) if operand else ()
        return Op((Term(name, axes),), right, (), meta, op, (axis, *map(str, places)), "body", given, ("Y",))

    for last in table.lines:
        phase = next(inner for inner, _ in walk((last,))).meta.phase
        phase = phase if phase in ("forward", "optimizer_step") else "backward"  # whatever stands beside them
        for name, sent in list(waiting.items()):
            if phase == "forward" and not step.stage.table.known.get(name):
                continue  # gradients come when the forward pass is done
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
