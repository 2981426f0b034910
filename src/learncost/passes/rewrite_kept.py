"""Rewrite a step so that saved tensors are stored as 8-bit codes with a scale per row.

    A.size[B f] = abs(A[B f])
    A.most[B] = max[f](A.size[B f])
    A.least[B] = A.most[B] 0.00787[]
    A.scales[B] = maximum(A.least[B], 1e-30[])
    A.parts[B f] = divide(A[B f], A.scales[B])
    A.places[B f] = A.parts[B f] + 0.5[]
    A.codes[B f] = floor(A.places[B f])
    ...
    A.again[B f] = A.codes[B f] A.scales[B]

The forward pass computes with A as before; backward lines read A.again. Chakrabarti & Moseley 2019, Backprop with
approximate activations for memory-efficient network training, section 3, with 8 bits and the largest absolute value of
a row as its scale. Values under a condition, such as causal attention probabilities, results of the loss, and values
with a single axis are not quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from learncost.ir.line import Line, Meta, Op, Product
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base
from learncost.ir.table import Table, features
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.layers.active import of_part
from learncost.layers.spelling import condition_names
from learncost.ops import entry
from learncost.passes.integers import LAYER, Values, coded
from learncost.passes.rematerialization import pairs, phases


def with_kept(table: Table) -> Table:
    """Return the step with codes in place of the activations that the forward pass saves for the backward pass."""
    return _CompressedStep(table).table


def is_backward(line: Statement) -> bool:
    """Return whether a line belongs to a later phase than the forward pass."""
    return phases((line,)) != {"forward"}


class _CompressedStep:
    def __init__(self, table: Table) -> None:
        self.features = features(table)
        self.conditions = condition_names(table.lines) | table.indices
        self.outputs = {*table.outputs}
        self.table = table
        values = dict(table.values)
        lines = self._iterations(self._alone(table.lines, values), values)
        self.table = replace(table, lines=lines, values=values)

    def _keeps(self, line: Line, value: Value) -> bool:
        """Return whether the result of a forward line may be saved as codes."""
        several = len(line.left) > 1 or line.left[0].indexed or bool(line.where)
        if (
            is_backward(line)
            or several
            or of_part(line, "loss")
            or line.meta.layer == LAYER
            or line.name in self.conditions
        ):
            return False
        op = entry(line.op) if isinstance(line, Op) else None
        if op is not None and (op.truth or op.kind == "choice" or op.makes == "logarithms"):
            return False
        return not value.dtype and len(value.axes) > 1 and bool(self._inside(value.axes))

    def _inside(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return the axes along which numbers share a scale: the trailing feature axes, otherwise the last axis."""
        last = len(axes)
        while last and base(axes[last - 1]) in self.features:
            last -= 1
        inside = tuple(axes[last:]) or tuple(axes[-1:])
        return inside if len(inside) < len(axes) else ()

    def _alone(self, lines: Sequence[Statement], values: Values) -> tuple[Statement, ...]:
        """Return the lines of a scope outside of loops, with codes saved by its forward lines for its backward
        lines."""
        readers = {name for line in lines if is_backward(line) for name in line.reads}
        last = {name: place for place, line in enumerate(lines) for name in line.makes}
        result: list[Statement] = []
        names: dict[str, str] = {}
        for place, line in enumerate(lines):
            if is_backward(line):
                first = [name for name in line.reads if name in names and names[name] not in values]
                result += [self._again(name, values) for name in first]
                line = line.renamed(names)
            result.append(line)
            name = line.makes[0] if isinstance(line, Line) else ""
            if not isinstance(line, Line) or name not in readers or last[name] != place or name in self.outputs:
                continue
            if self._keeps(line, values[name]):
                result += self._coded(name, values)
                names[name] = f"{name}.again"
        return tuple(result)

    def _iterations(self, lines: Sequence[Statement], values: Values) -> tuple[Statement, ...]:
        """Return the lines with codes saved by forward loops for the reversed loops that read them."""
        result = list(lines)
        for (before, forward), (after, reverse), elsewhere in pairs(lines, self.outputs):
            result[before], result[after] = self._pair(forward, reverse, elsewhere, values)
        return tuple(result)

    def _pair(self, forward: Loop, reverse: Loop, elsewhere: set[str], values: Values) -> tuple[Loop, Loop]:
        made = {line.name: line for line in forward.lines if isinstance(line, Line)}
        read = {outer: inside for inside, outer in reverse.each}
        inner, behind = dict(forward.values), dict(reverse.values)
        kept, given = list(forward.keep), list(reverse.each)
        coded: dict[str, list[Line]] = {}
        again: dict[str, Line] = {}
        for name, outer in forward.keep:
            line = made.get(name)
            if line is None or outer in elsewhere or outer not in read or not self._keeps(line, inner[name]):
                continue
            inside = read[outer]
            coded[name] = list(self._coded(name, inner))
            kept.remove((name, outer))
            given.remove((inside, outer))
            for part in ("codes", "scales"):
                stack, slice_name = f"{outer}.{part}", f"{inside}.{part}"
                array = f"{name}.{part}"
                kept.append((array, stack))
                given.append((slice_name, stack))
                values[stack] = replace(inner[array].stacked(forward.count), role="kept", of=array)
                behind[slice_name] = inner[array]
            again[inside] = self._again(inside, behind)
            values.pop(outer, None)
        lines: list[Statement] = []
        for statement in forward.lines:
            lines += [statement, *(line for made_name in statement.makes for line in coded.get(made_name, ()))]
        names_behind = {inside: line.name for inside, line in again.items()}
        backward: list[Statement] = []
        for statement in reverse.lines:
            first = [again.pop(read_name) for read_name in statement.reads if read_name in again]
            backward += [*first, statement.renamed(names_behind)]
        return (
            replace(forward, lines=tuple(lines), values=inner, keep=tuple(kept)),
            replace(reverse, lines=tuple(backward), values=behind, each=tuple(given)),
        )

    def _coded(self, name: str, values: Values) -> Iterator[Line]:
        """Yield the lines that quantize a value."""
        number = Term(name, values[name].axes)
        return coded(number, name, self._inside(number.declared), values, "forward")

    def _again(self, name: str, values: Values) -> Line:
        """Return the line that dequantizes a value."""
        codes, scales = (Term(f"{name}.{part}", values[f"{name}.{part}"].axes) for part in ("codes", "scales"))
        again = Term(f"{name}.again", codes.declared)
        values[again.name] = Value(codes.declared)
        return Product((again,), (codes, scales), (), Meta(LAYER, phase="backward"))
