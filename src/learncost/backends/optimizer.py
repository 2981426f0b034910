"""The printer of the optimizer's lines: one statement over the fields of a record of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from learncost.backends.expression import Code
from learncost.backends.records import WeightGroup, WeightRecords
from learncost.backends.scope import FunctionScope
from learncost.ir.line import Line, Op
from learncost.ops import entry
from learncost.ops.collectives import is_collective


def collapsed(scope: FunctionScope, lines: Sequence[Line], weights: WeightRecords) -> Iterator[tuple[Line | None, str]]:
    """Print the groups that can be one statement; return the remaining lines, with the heading of the first."""
    heading = "optimizer"
    left = list(lines)
    for group in weights.groups:
        ops = [line for line in left if isinstance(line, Op) and line.right and not is_collective(line)]
        stepped_lines = [line for line in ops if line.right[0].name in group.names]
        if _record(scope, stepped_lines, group, heading):
            left = [line for line in left if line not in stepped_lines]
            heading = ""
    for line in left:
        yield line, heading
        heading = ""


def _record(scope: FunctionScope, lines: Sequence[Op], group: WeightGroup, heading: str) -> bool:
    """Print one statement for all lines if they apply one operator to fields of the same records; return whether."""
    names, kind = group.names, group.record
    if [line.right[0].name for line in lines] != list(names) or len({line.op for line in lines}) != 1:
        return False
    op = entry(lines[0].op)
    fields: dict[str, str] = {}
    operands = []
    for place, operand_name in enumerate(op.inputs):
        every = [line.right[place].name for line in lines]
        if len(set(every)) == 1:
            operands.append(scope.wide(every[0]).text)
            continue
        starts = {scope.paths.get(name, "").rpartition(".")[0] for name in every}
        ends = [scope.paths.get(name, "").rpartition(".")[2] for name in every]
        if len(starts) != 1 or "" in starts or ends != [scope.identifiers.of(name) for name in names]:
            scope.read = []
            return False
        scope.read += every
        fields[operand_name] = starts.pop()
        operands.append(scope.backend.cast(Code(operand_name), "fp32").text if scope.low & {*every} else operand_name)
    variables = []
    for place in range(len(op.outputs)):
        end = lines[0].left[place].name.removeprefix(names[0])
        variable = scope.identifiers.of(f"{group.field}{end}", "record")
        own_names = [line.left[place].name for line in lines]
        scope.open_record(
            variable, {name: scope.identifiers.of(weight) for name, weight in zip(own_names, names, strict=True)}
        )
        variables.append(variable)
    function = scope.helpers.call(op.name, "body", op.outputs, operands, "")
    stepped = f"{function} for {', '.join(fields)} in zip({', '.join(fields.values())}, strict=True)"
    if len(variables) == 1:
        text = f"{variables[0]} = {kind}(*({stepped}))"
    else:
        stepped = stepped.replace(" for ", "\n    for ", 1)
        text = f"updated = zip(*(\n    {stepped}\n), strict=True)\n"
        text += f"{', '.join(variables)} = ({kind}(*each) for each in updated)"
    scope.put(text, [f"record {variable_name}" for variable_name in variables], "", heading)
    return True
