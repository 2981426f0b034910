"""Lines that are no kernel in Triton, as PyTorch's operators, which allocate what they make."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from textwrap import indent

from learncost.backends.c import KernelFunction, KernelLines, Launch, SizeNeededError
from learncost.backends.executed import recorded
from learncost.backends.expression import Identifiers
from learncost.backends.program import program
from learncost.ir.line import Line, Product
from learncost.ir.polynomial import base, shape_of
from learncost.ir.table import Table
from learncost.ir.term import Term, terms_of
from learncost.ir.value import Value
from learncost.program.program import peak

OPERATOR = "operator"
"""The name of a launch that is PyTorch's."""
ROLES = {"int64": "index", "bool": "padding"}
"""The role of an array that lines read, by its type."""


def operators(given: KernelLines, why: str) -> KernelFunction:
    """Return the function of lines as PyTorch's operators, where `why` says why they are no kernel.

    They compute in fp32 what is stored in bf16. Raises `SizeNeededError` where a size is not known.
    """
    lines, axes, outputs, dtypes, sizes = given.lines, given.axes, given.outputs, given.dtypes, given.sizes
    terms = [term for line in lines for operand in (*line.right, *line.left) for term in terms_of(operand)]
    made = {term.name: term for line in lines for term in line.left}
    every = {**axes, **{each: term.declared for each, term in made.items()}}
    reads = tuple(dict.fromkeys(term.name for term in terms if term.name not in made))
    writes = tuple(each for each in made if each in outputs)
    spread = {axis for line in lines for axis in line.loops}.union(*(every[each] for each in (*reads, *made)))
    for size in map(base, spread):
        if size not in sizes and not size.isdigit():
            raise SizeNeededError(size)
    values = {each: Value(every[each]) for each in made}
    values |= {each: Value(every[each], ROLES.get(dtypes[each], "constant")) for each in reads}  # type: ignore[arg-type]
    table = Table(tuple(lines), values, reads, (), writes)
    written = program(table, "torch", "operators", sizes=sizes)
    shapes = {each: shape_of(axes_of, sizes) for each, axes_of in every.items()}
    taken = peak(recorded(written, table, sizes, "fp64" if "fp64" in dtypes.values() else "fp32", "torch", None)).bytes
    names = Identifiers(("torch", "operators", "made"))
    parameters = [str(tree) for tree in written.parameters]
    wide = {each: ".float()" if dtypes[each] == "bf16" else "" for each in parameters}
    arguments = [f"{names.of(each)}.view({shapes[each]}){wide[each]}" for each in parameters]
    _, _, text = written.text.partition("import torch\n")
    body = [indent(text.strip("\n"), "    "), "", f"    made = operators({', '.join(arguments)})"]
    for number, each in enumerate(map(str, written.results)):
        array = f"made[{number}]" if len(written.results) > 1 else "made"
        body.append(f"    {names.of(each)}.view({shapes[each]}).copy_({array})")
    head = [f"# {line}" for line in lines]
    head.append(f"def {given.name}({', '.join(map(names.of, (*reads, *writes)))}):")
    head.append(f'    """By PyTorch\'s operators, as {why.partition(", in line: ")[0]}."""\n')
    text, launches = "\n".join((*head, *body)) + "\n", tuple(_launch(line, sizes) for line in lines)
    return KernelFunction(given.name, text, reads, writes, (), (), launches=launches, allocates=taken, operators=why)


def _launch(line: Line, sizes: Mapping[str, int]) -> Launch:
    """Return the kernel of one operator; values that the function makes for itself are traffic without a place."""
    operands = [operand for operand in line.right if isinstance(operand, Term)]
    shapes = tuple(shape_of(term.loops, sizes) for term in (*operands, *line.left))
    product: tuple[int, ...] = ()
    if isinstance(line, Product) and not line.left[0].indexed and line.sides.are_of_matrices:
        sides = line.sides
        groups = (sides.batch, sides.rows, sides.columns, (*sides.summed, *sides.lone))
        product = tuple(prod(shape_of(group, sizes)) for group in groups)
    return Launch(OPERATOR, 0, (), (), product, shapes)
