"""The optimizer step of a device of a mesh as memory has it: in place, with states that are counted separately."""

from __future__ import annotations

from dataclasses import replace

from learncost.ir.line import Line, Op
from learncost.ir.loop import Loop, map_lines, map_loops, walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ops import entry
from learncost.ops.collectives import KIND
from learncost.ops.optimizers import OPTIMIZERS
from learncost.sharding.place import Placed


def updated_in_place(placed: Placed) -> Table:
    """Return the table of a device with an optimizer without states, which writes new weights over the old ones.

    New weights are gathered into the memory of the old ones, and shards of old ones share their memory.
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
