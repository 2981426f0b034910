"""An operator for `explain` and `formulas`: its body and its gradient, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from learncost.cost_models import Book, executed
from learncost.ir.dataclass import replace
from learncost.ir.line import Line, Op
from learncost.ir.polynomial import Polynomial, total
from learncost.ir.term import Term
from learncost.ops import OpDef, entry
from learncost.passes.lower import lower_line
from learncost.reports.formulas.explanation import ExplainedLine, ExplainedPhase, Explanation, explained

_AXES: Mapping[str, str] = {"_": "B"}
_PARTS = {"forward": "body", "backward": "gradient", "jacobian": "jacobian"}


def op_explained(op: OpDef, book: Book) -> Explanation:
    """Return an operator's body, gradient and explicit Jacobian, if any, with the cost of their lines."""
    parts = []
    for phase, part in _PARTS.items():
        lines: Iterable[Line] = getattr(op, part)
        if part == "body" and not op.body:
            lines = _primitive(op)
        steps = tuple(_steps(lines, op))
        if steps or part == "gradient":
            parts.append(ExplainedPhase(phase, steps))
    source = op.source[:1].upper() + op.source[1:]
    kind = f"A primitive, {op.kind}." if op.kind else "An operator."
    letters = (
        "n: the axis that the operator acts on; B: all other axes"
        if not op.pointwise and op.kind != "constant"
        else "B: all elements"
    )
    return Explanation(
        op.name,
        " ".join(part for part in (kind, f"{source.rstrip('.')}." if source else "") if part),
        book,
        False,
        tuple(parts),
        (),
        frozenset({"B", "n"}),
        letters=letters,
    )


def _primitive(op: OpDef) -> tuple[Line, ...]:
    """Return a primitive as a table of one line."""
    if not op.outputs:
        return ()
    axes = ("_",) if op.pointwise else ("_", "n")
    left = ("_", "k") if op.chooses == "some" else ("_",) if op.reduces else axes
    right = tuple(Term(name, axes) for name in op.inputs)
    acted = ("n",) if op.inputs and not op.pointwise else ()
    outputs = tuple(Term(name, left) for name in op.outputs)
    return (Op(outputs, right, op=op.name, axes=acted, given=op.inputs, gives=op.outputs),)


def _steps(lines: Iterable[Line], op: OpDef) -> Iterator[ExplainedLine]:
    op_lines = tuple(lines)
    names_known = frozenset({*op.inputs, *op.outputs})
    for line in op_lines:
        moved = line.renamed({}, _AXES)
        if isinstance(moved, Op):
            own_op = entry(moved.op)
            moved = replace(moved, given=own_op.inputs, gives=own_op.outputs)
        priced = [executed(part) for part in lower_line(moved)]
        maccs, flops = total(maccs for maccs, _ in priced), total(flops for _, flops in priced)
        yield explained(moved, names_known, (maccs or Polynomial(), flops or Polynomial()))
