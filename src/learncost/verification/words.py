"""Operators as layers of one line, which are verified as layers are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from learncost.ir.line import Condition, Line, Meta, Op, Product
from learncost.ir.table import Table
from learncost.ir.term import Operand, Term
from learncost.ir.value import Value
from learncost.layers.layer import Layer
from learncost.ops import OpDef
from learncost.verification.report import Check

# Operands that are numbers, and operands that the word asks for a logarithm, a root, a divisor or a condition of.
ROWS = frozenset(("z",))  # operands with one number for all that the word acts along
SCALARS = frozenset(("lr", "mu", "b1", "c1", "b2", "c2", "k1", "k2", "eps", "decay", "e", "a"))


def op_layer(entry: OpDef, masked: bool = False) -> Layer:
    """Return a layer of the operator on operands of axes a and n, along n if it has axes; masked: where n <= a."""
    axes = () if entry.pointwise else ("n",)
    operands = tuple(name for name in entry.inputs if name not in SCALARS or not entry.defaults)
    shapes: dict[str, tuple[str, ...]] = {name: () if name in SCALARS else ("a", "n") for name in operands}
    shapes |= {name: ("a",) for name in operands if name in ROWS}
    left = ("a", "k") if entry.chooses == "some" else ("a",) if entry.reduces else ("a", "n")
    shapes |= {f"{name}.out": left for name in entry.outputs}
    right: tuple[Operand, ...] = (*(Term(name, shapes[name]) for name in operands), *entry.defaults)
    outputs = tuple(f"{name}.out" for name in entry.outputs)
    line = Op(
        tuple(Term(name, left) for name in outputs),
        right,
        (Condition("n", "a"),) if masked else (),
        Meta(layer=entry.name, local=outputs[0], locals=entry.inputs),
        entry.name,
        axes,
        "body",
        entry.inputs,
        entry.outputs,
    )
    learn = {*_derived(entry)}
    values = {name: Value(operand_axes) for name, operand_axes in shapes.items()}
    values |= {name: Value(shapes[name], "constant") for name in operands if f"d{name}" not in learn}
    return Layer(entry.name, Table((line,), values, operands, (), outputs, entry.name))


def _derived(entry: OpDef) -> Iterator[str]:
    return (term.name for line in entry.gradient for term in line.left)


def consistent(entry: OpDef) -> Check:
    """Check that every line of an operator's tables uses names with their declared axes."""
    all_axes = ("_",) if entry.pointwise else ("_", "n")
    axes = {name: () if name in SCALARS else all_axes for name in entry.inputs}
    axes |= {name: ("_",) for name in entry.inputs if name in ROWS}
    axes |= dict.fromkeys(entry.outputs, ("_",) if entry.reduces else all_axes)
    axes |= {f"d{name}": axes_of_name for name, axes_of_name in axes.items()}
    body = _axes_after(entry.body, axes)
    problem = body if isinstance(body, str) else ""
    for lines in (entry.gradient, entry.jacobian):
        result = _axes_after(lines, axes if isinstance(body, str) else body)
        problem = problem or (result if isinstance(result, str) else "")
    return Check(entry.name, "axes of its body, gradient and Jacobian", problem or "consistent", not problem)


def _axes_after(lines: Iterable[Line], axes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]] | str:
    """Return the axes of every name after the lines, or the first error."""
    axes_made: dict[str, tuple[str, ...]] = {}
    for line in lines:
        terms = [term for term in line.right if isinstance(term, Term)]
        left = line.left[0].declared
        if left != axes.get(line.name, left):
            return f"{line.left[0]} has other axes, in line: {line}"
        for term in terms:
            have = axes_made.get(term.name) or axes.get(term.name)
            if have is None:
                return f"{term.name} is not known, in line: {line}"
            read = term.declared if "n" in term.declared else tuple(axis.replace("n'", "n") for axis in term.declared)
            if read != have:
                return f"{term} has other axes, in line: {line}"
        right = {axis for term in terms for axis in term.declared}
        loose = isinstance(line, Product) or (isinstance(line, Op) and (line.axes or not terms))
        spread = isinstance(line, Product) and len(line.right) == 2 and len(terms) == 1  # a number times one value
        if (not set(left) <= right and terms and not spread) or (not loose and set(left) != right):
            return f"the axes on the left are not those on the right, in line: {line}"
        axes_made[line.name] = left
    return {**axes, **axes_made}
