"""A model whose blocks are written one by one: the oracle of what a repeat takes."""

from dataclasses import replace

from learncost.ir.line import Line
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.models.model import Model
from learncost.passes.split import LoopPart, flat, split


def unrolled(model: Model) -> Model:
    """The model with every turn of its repeats as lines of their own, on weights of their own."""
    table = model.table
    if any(repeat.repeats for repeat in table.repeats):
        table = flat(table, model.sizes)
    for repeat in table.repeats:
        iterations = int(size_of(repeat.count, model.sizes))
        table = split(table, repeat, [LoopPart(iteration, iteration, repeat) for iteration in range(iterations)])
    return replace(model, table=_inlined(table))


def _inlined(table: Table) -> Table:
    """The lines of repeats of one turn in their place; a stack of one is what lies in it."""
    lines: list[Line] = []
    values = dict(table.values)
    for line in table.lines:
        if isinstance(line, Line):
            lines.append(line)
            continue
        assert line.count == "1"
        for inside, stack in line.each:
            values[stack] = values[stack].along(line.axes[inside])
        names = {carry.start: carry.initial for carry in line.carry} | {carry.end: carry.final for carry in line.carry}
        names |= dict(line.each)
        values |= {name: value for name, value in line.values.items() if name not in names}
        lines += [line.renamed(names) for line in line.lines if isinstance(line, Line)]
    return replace(table, lines=tuple(lines), values=values)
