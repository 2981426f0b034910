"""Rewrite a step so that 8-bit codes with scales stand for factors of matrix products, or for saved tensors.

`with_whole` gives matrix products codes of 8 bits for both factors, and sums of 32:

    X.by_B.codes[B d], X.by_B.scales[B]      as `codes` computes them, a scale for each row
    W.by_f.codes[d f], W.by_f.scales[f]      a scale for each column
    Y.sum[B f] = X.by_B.codes[B d] W.by_f.codes[d f]
    Y.scaled[B f] = Y.sum[B f] X.by_B.scales[B]
    Y[B f] = Y.scaled[B f] W.by_f.scales[f]

Dettmers et al. 2022, LLM.int8(), section 2.1: scales do not vary along the summed axis, so that the integer sum is
exact. The products that compute gradients are rewritten in the same way. The weights and their update are unchanged:
scales are recomputed in every step, and codes have no gradients. An operand that has codes already is used as it is.
For a convolution, the image has a scale for each sample, and the kernel one for each result; window axes and summed
axes have none. Products with a condition or with index arrays are unchanged.

`with_saved_codes` stores saved tensors as codes with a scale per row:

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

from collections.abc import Iterable, Iterator, Sequence

from learncost.ir.affine import Affine
from learncost.ir.dataclass import replace
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


def with_whole(table: Table) -> Table:
    """Return the step in which matrix products multiply codes."""
    values = dict(table.values)
    lines = _scope(table.lines, values)
    return replace(table, lines=lines, values=values)


def is_whole(line: Line) -> bool:
    """Return whether a line is a product of two matrices or a convolution that may multiply codes."""
    if not isinstance(line, Product) or len(line.right) != 2 or line.where:
        return False
    terms = [term for term in (line.left[0], *line.right) if isinstance(term, Term)]
    of_windows = all(isinstance(axis, str) or isinstance(axis.at, Affine) for term in terms for axis in term.axes)
    if len(terms) != 3 or terms[1].name == terms[2].name or not of_windows:
        return False
    sums = not {*terms[1].loops, *terms[2].loops} <= {axis for axis in terms[0].axes if isinstance(axis, str)}
    return line.sides.are_of_matrices or (sums and any(term.indexed for term in terms))


def _scope(lines: Iterable[Statement], values: Values) -> tuple[Statement, ...]:
    """Return the lines of one scope, in which a factor is quantized once for all products with the same scales."""
    result: list[Statement] = []
    known: dict[tuple[str, tuple[str, ...]], tuple[Term, Term | None]] = {}
    for line in lines:
        if isinstance(line, Loop):
            inner = dict(line.values)
            slices = {inside: values[outer].along(values[outer].axes[1:]) for inside, outer in line.each}
            seen = {**values, **slices, **inner}
            before = {*seen}
            body = _scope(line.lines, seen)
            inner |= {name: value for name, value in seen.items() if name not in before}
            result.append(replace(line, lines=body, values=inner))
        elif is_whole(line):
            result += _whole(line, values, known)
        else:
            result.append(line)
        for name in line.makes:
            known = {key: pair for key, pair in known.items() if key[0] != name}
    return tuple(result)


def _whole(
    line: Line, values: Values, known: dict[tuple[str, tuple[str, ...]], tuple[Term, Term | None]]
) -> Iterable[Line]:
    left, scales = line.left[0], list[Term]()
    plain = [axis for axis in left.axes if isinstance(axis, str)]
    spread = Term(left.name, left.declared)
    factors: list[Term] = []
    lines: list[Line] = []
    for term in line.right:
        assert isinstance(term, Term)
        key = term.name, tuple(axis for axis in term.axes if isinstance(axis, str) and axis in plain)
        if values[term.name].dtype:
            known[key] = Term(term.name, term.axes), None
        elif key not in known:
            name, axes = f"{term.name}.by_{'_'.join(key[1]) or 'all'}", term.declared
            summed = tuple(axis for axis in axes if axis not in key[1])
            made = list(coded(Term(term.name, axes), name, summed, values, line.meta.phase))
            lines += made
            known[key] = made[-1].left[0], Term(f"{name}.scales", key[1])
        codes, scale = known[key]
        factors.append(Term(codes.name, term.axes))
        scales += [scale] if scale else []
    names = [f"{line.name}.{part}" for part in ("sum", "scaled")[: len(scales)]]
    for name in names:
        values[name] = replace(values[line.name], axes=left.declared, role="step", of=line.name)
    made_terms = [*(replace(spread, name=name) for name in names), spread]
    local = line.meta.local or line.name
    metas = [replace(line.meta, local=f"{local}.{name.rpartition('.')[2]}") for name in names] + [line.meta]
    first = replace(left, name=made_terms[0].name)
    lines.append(replace(line, left=(first,), right=tuple(factors), meta=replace(metas[0], locals=())))
    for before, after, meta, scale in zip(made_terms[:-1], made_terms[1:], metas[1:], scales, strict=True):
        lines.append(
            Product((after,), (before, scale), (), replace(meta, locals=(), equation="", gradients=(), operator=""))
        )
    return lines


def with_saved_codes(table: Table) -> Table:
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
        inner, reverse_values = dict(forward.values), dict(reverse.values)
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
                values[stack] = replace(inner[array].stacked(forward.count), role="saved", of=array)
                reverse_values[slice_name] = inner[array]
            again[inside] = self._again(inside, reverse_values)
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
            replace(reverse, lines=tuple(backward), values=reverse_values, each=tuple(given)),
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
