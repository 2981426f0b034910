"""Weight decay as lines before the optimizer's: the gradient of half the squared weights is added to the gradient."""

from __future__ import annotations

from dataclasses import replace

from learncost.equation.table import Line, Product, Repeat, Statement, Sum, Table, Term, Word


def with_weight_decay(table: Table) -> Table:
    """The step with `dW + weight_decay W` in the place of `dW`, as torch.optim.SGD has it; two FLOPs a parameter.

    AdamW is left as it is: its own decay stands in its word.
    """
    axes = dict(table.axes) | {"weight_decay": ()}
    lines: list[Statement] = []
    for line in table.lines:
        changed = (
            isinstance(line, Word)
            and line.tag.macro == "optimizer_step"
            and "G" in line.given
            and "decay" not in line.given
        )
        lines += _decayed(line, axes) if changed and not isinstance(line, Repeat) else [line]
    if len(lines) == len(table.lines):
        return table
    constants = table.constants | {"weight_decay"}
    return replace(table, lines=tuple(lines), axes=axes, inputs=(*table.inputs, "weight_decay"), constants=constants)


def _decayed(line: Line, axes: dict[str, tuple[str, ...]]) -> list[Line]:
    weight, gradient = line.right[0], line.right[1]
    assert isinstance(gradient, Term)
    pull, whole = (Term(f"{gradient.name}.{part}", gradient.axes) for part in ("decay", "decayed"))
    axes |= {pull.name: pull.loops, whole.name: whole.loops}
    tag = replace(line.tag, local="weight_decay", locals=())
    return [
        Product((pull,), (weight, Term("weight_decay", ())), (), tag),
        Sum((whole,), (gradient, pull), (), tag, (1, 1)),
        replace(line, right=(weight, whole, *line.right[2:])),
    ]
