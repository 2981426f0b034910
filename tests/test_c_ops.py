"""Every operator and its gradient as a kernel of one line in C, against the interpreter."""

import numpy as np
import pytest

from kernels_in_c import Case, check, needs_compiler
from learncost.ir.line import FusedKernel, Op
from learncost.ir.term import Literal, Term
from learncost.ops import entries, entry

pytestmark = needs_compiler
SIZES = {"B": 3, "M": 5, "d": 37}
ROWS = ("B", "M")


def op(found, part):
    """A line of the word along d, its other operands without d as its table has them."""
    lines = found.lines(part, found.outputs) if part == "body" else found.gradient
    names = {line.name for line in lines}
    gives = found.outputs if part == "body" else tuple(name for name in names if name.startswith("d") and name != "d")
    body = {
        term.name: term for line in (*found.body, *found.gradient) for term in (*line.left, *line.right) if term.name
    }
    operands = found.inputs if part == "body" else found.gradient_reads(gives)
    acts = () if found.pointwise else ("d",)

    def operand(name):
        place = found.inputs.index(name) - len(found.inputs) + len(found.defaults) if name in found.inputs else -1
        if part == "body" and place >= 0 and found.defaults:
            return found.defaults[place]
        row = not found.pointwise and name in body and "n" not in body[name].axes
        scalar = name in body and body[name].axes == ()
        return Term(f"{found.name}.{name}", () if scalar else ROWS if row else (*ROWS, "d"))

    left = tuple(operand(name) for name in gives)
    right = tuple(operand(name) for name in operands)
    return Op(left, right, op=found.name, axes=acts, part=part, given=operands, gives=gives)


def known():
    """Words that have a body or are primitive in C, with a gradient where they have one."""
    for op in entries():
        if op.kind in ("constant", "reduction", "choice") or op.truth or op.conditions:
            continue
        yield op.name, "body"
        if op.gradient:
            yield op.name, "gradient"


def case(name, part, dtype, number):
    line = op(entry(name), part)
    axes = {term.name: term.declared for term in (*line.left, *line.right) if isinstance(term, Term)}
    outputs = {term.name for term in line.left}
    made_case = Case([line], axes, outputs, SIZES, FusedKernel(f"word_{number}", ROWS), dtype)
    for array in made_case.arrays:
        with np.errstate(all="ignore"):
            real = all(np.isfinite(value).all() for value in made_case.defined().values())
        if not real or (array.endswith((".g", ".w", ".s", ".D", ".Y")) and part == "gradient"):
            made_case.arrays[array] = made_case.exact(abs(made_case.arrays[array]) + 0.5)
    return made_case


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
def test_ops(dtype):
    check([case(name, part, dtype, number) for number, (name, part) in enumerate(known())])


def test_what_is_chosen():
    """select, less, equal, max and min, which take or give conditions, in one kernel."""
    x, z = Term("X", (*ROWS, "d")), Term("Z", (*ROWS, "d"))
    c, e, y, u = (Term(name, x.axes) for name in "CEYU")
    m, n = (Term(name, ROWS) for name in "mn")
    lines = [
        Op((c,), (x, z), op="less", given=("X", "Z"), gives=("Y",)),
        Op((m,), (x,), op="max", axes=("d",), given=("X",), gives=("Y",)),
        Op((n,), (x,), op="min", axes=("d",), given=("X",), gives=("Y",)),
        Op((e,), (x, m), op="equal", given=("X", "Z"), gives=("Y",)),
        Op((y,), (c, x, z), op="select", given=("C", "X", "Z"), gives=("Y",)),
        Op((u,), (e, y, Literal(0.5)), op="select", given=("C", "X", "Z"), gives=("Y",)),
    ]
    axes = {term.name: term.declared for term in (x, z)}
    check([Case(lines, axes, {"Y", "U", "m", "n"}, SIZES, FusedKernel("chosen", ROWS), dtype) for dtype in ("fp64",)])
