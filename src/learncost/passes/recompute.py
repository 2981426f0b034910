"""The plan recompute: selective activation recomputation, by the forward lines of the blocks that are recomputed."""

from __future__ import annotations

from learncost.ir.errors import InputError, named_one
from learncost.ir.line import Line, Op, Product
from learncost.ir.loop import walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.layers.layer import shipped
from learncost.ops import canonical, entries
from learncost.passes.rematerialization import recomputed
from learncost.passes.segments import in_segments

ALL = {"block": "every line of a block", "all": "every line of a block that its backward pass needs"}
BLOCK = ("block",)
SEGMENTS = "block/"


def recompute(table: Table, parts: tuple[str, ...]) -> Table:
    """Recompute the chosen forward lines of every loop in its backward loop.

    parts  block: all lines of a block, at the beginning of its backward iteration, as in the procedure `recompute`;
           block/3: all lines of 3 blocks, at the beginning of their backward iteration, from the first one's input; the
           other parts are then recomputed once more in each block's own iteration;
           all: those that the backward pass needs, each before its first reader there;
           an operator, such as softmax, or a prefix, such as gelu: its lines, and the products with masks and gates
           that
           read them; a layer or a part of its name, such as attention or norm: its lines; a module or an operator of a
           table's lines, such as mlp or layer_norm: those; a value, such as mlp.G: its line
    Raises `InputError` where a part is none of these.
    """
    lines = [line for line, iterations in walk(table.lines) if iterations]
    if segments := [part for part in parts if part.startswith(SEGMENTS)]:
        rest = tuple(part for part in parts if part not in segments)
        iterations = _iterations(segments)
        return (
            in_segments(recompute(table, rest) if rest else table, iterations)
            if iterations > 1
            else recompute(table, BLOCK)
        )
    names = [canonical(part) for part in parts]
    ops = {part for part in names if any(_begins(entry.name, part) for entry in entries())}
    layers = {part for part in names if part not in ops} - ALL.keys()
    values = {part for part in layers if any(term.name == part for line in lines for term in line.left)}
    layers -= values
    every = (*shipped(), *dict.fromkeys(line.meta.layer for line in lines))
    modules = {name for line in lines for name in (*line.meta.module.split("."), line.meta.operator)}
    for part in layers - modules:
        if not any(_within(layer, part) for layer in every):
            used = dict.fromkeys(line.op for line in lines if isinstance(line, Op) and line.part == "body")
            named_one("part of a block", part, dict.fromkeys((*ALL, *filter(None, every[len(shipped()) :]), *used)))
    if ALL.keys() & names:
        return recomputed(table, lambda line: True, whole="block" in names)
    acted: set[str] = set()
    for line in lines:
        if _passes_on(line, acted) or (isinstance(line, Op) and any(_begins(line.op, op) for op in ops)):
            acted.add(line.name)

    def chosen(line: Line) -> bool:
        makes = {term.name for term in line.left}
        of_modules = {*line.meta.module.split("."), line.meta.operator}
        return bool(makes & (acted | values)) or any(_within(line.meta.layer, p) or p in of_modules for p in layers)

    return recomputed(table, chosen)


def _iterations(segments: list[str]) -> int:
    """Return the number of blocks of a segment: 3 for `block/3`."""
    number, plans_text = segments[0].removeprefix(SEGMENTS), " and ".join(segments)
    if len(segments) > 1 or not number.isdigit() or int(number) < 1:
        raise InputError(f"recompute saves the input of every k-th block as in block/2: k from 1, not {plans_text}")
    return int(number)


def _begins(name: str, part: str) -> bool:
    """Return whether a name is the part or begins with it: gelu_tanh begins with gelu."""
    return name == part or name.startswith(f"{part}_")


def _within(name: str, part: str) -> bool:
    """Return whether a name contains the part: norm is a part of rms_norm and of norm_without_shift."""
    return f"_{part}_" in f"_{name}_"


def _passes_on(line: Line, names: set[str]) -> bool:
    """Return whether a line is a product with a mask or a gate: elementwise, without a sum."""
    terms = [term for term in line.right if isinstance(term, Term)]
    if not isinstance(line, Product) or len(terms) < 2 or any(term.indexed for term in (*terms, *line.left)):
        return False
    return any(term.name in names for term in terms) and set(line.loops) == set(line.left[0].loops)
