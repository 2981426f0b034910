"""A model's table as a text in the notation, so that the same model can be given as a layer."""

from collections.abc import Iterable

from learncost.ir.line import Line
from learncost.ir.loop import Loop, Statement
from learncost.ir.stated import size_names
from learncost.ir.table import Table
from learncost.models.model import Model


def text_of(model: Model) -> str:
    """The model's own lines as a layer with its sizes fixed; versions of a name are that name again."""
    table = model.table
    names = {name: value.of for name, value in table.known.items() if value.role == "value" and value.of}
    frozen = [name for name in table.weights if name not in model.learning]
    outputs = " ".join(names.get(name, name) for name in table.outputs)
    head = f"{table.title}({' '.join(table.inputs)}; {' '.join(table.weights)}) -> {outputs}"
    sizes = {size: number for size, number in model.sizes.items() if size in size_names(table)}
    declarations = [f"sizes: {' '.join(f'{size}={number}' for size, number in sizes.items())}"]
    declarations += [f"frozen: {' '.join(frozen)}"] if frozen else []
    declarations += [f"unread: {model.configuration.unread}"] if model.configuration.unread else []
    declarations += _roles(table)
    return "\n".join([head, *(f"  {line}" for line in (*declarations, *_lines(table, table.lines, names)))])


def _roles(table: Table) -> list[str]:
    lines = []
    for name in table.inputs:
        value = table.values[name]
        if value.role == "constant":
            lines.append(f"constants: {name}")
        elif value.of:
            lines.append(f"{name}: {value.role} of {value.of}")
    return lines


def _lines(table: Table, lines: Iterable[Statement], names: dict[str, str]) -> list[str]:
    written = []
    for line in lines:
        if isinstance(line, Loop):
            given = {*table.inputs, *table.weights}
            each = [f"{names.get(a, a)}={b}" for a, b in line.each if a != b]
            keep = [f"{b}={names.get(a, a)}" for a, b in line.keep]
            shared = [name for name in line.shared if name in given and name in table.weights]
            head = f"repeat {line.count}{' backwards' if line.reverse else ''}"
            head += f" carry {' '.join(names.get(c.initial, c.initial) for c in line.carry)}"
            for op, pairs in (("each", each), ("keep", keep), ("shared", shared)):
                head += f" {op} {' '.join(pairs)}" if pairs else ""
            written += [f"{head}:", *(f"  {inner}" for inner in _lines(table, line.lines, names))]
        else:
            assert isinstance(line, Line)
            written.append(str(line.renamed(names)))
    return written
