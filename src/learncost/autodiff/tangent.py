"""Differentiate in forward mode: compute tangents of every value, line by line with the forward pass.

Product: one product per factor with a tangent, and their sum. Sum: the sum of the tangents. Op: its gradient table,
applied to the operand's tangent in place of the result's gradient, if its Jacobian is symmetric; otherwise its tangent
table. A loop carries, slices and stacks tangents as it does values. Nothing is saved for a backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from learncost.autodiff.reverse import Exposed, bound
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Operand, Term
from learncost.ir.value import Value
from learncost.layers.gradient_plan import GradientSource, Scope
from learncost.layers.spelling import differentiable, operand, spell
from learncost.ops import applied, entry

MARK = ">"
"""The suffix of the names of tangents."""


def tangent(
    table: Table,
    along: Mapping[Scope, Mapping[str, GradientSource]],
    slices: Mapping[Scope, Mapping[str, Value]] = {},
    by_row: Mapping[str, tuple[str, ...]] = {},
) -> tuple[Table, Mapping[str, str]]:
    """Return the table with the lines of tangents added, and the names of the outputs' tangents.

    along   by scope, the direction of each perturbed value; that of a line's result is added to the result's tangent
    slices  by the scope of a loop, the slices that the directions' lines read from stacks of the same names
    by_row  outputs whose tangents keep axes that the last line sums over
    Raises `InputError` for a line without a derivation, and for an op without a tangent.
    """
    scope = _Tangents(dict(table.values), (), along, slices, {}, by_row)
    lines = scope.through(table.lines)
    outputs = {name: scope.known[name] for name in table.outputs if name in scope.known}
    result = replace(table, lines=tuple(lines), values=scope.values, outputs=(*table.outputs, *outputs.values()))
    return result, outputs


def along_inputs(table: Table, names: Iterable[str]) -> Table:
    """Return the table with tangents along directions that are additional inputs, named `X>` for X."""
    names = tuple(names)
    moved, _ = tangent(table, {(): {name: GradientSource(f"{name}{MARK}") for name in names}})
    directions = {f"{name}{MARK}": Value(table.axes[name], "tangent", name) for name in names}
    return replace(moved, values={**moved.values, **directions}, inputs=(*moved.inputs, *directions))


@dataclass
class _Tangents:
    """The state of one scope: `known` maps its names, and those of the scopes around it, to their tangents."""

    values: dict[str, Value]
    scope: Scope
    along: Mapping[Scope, Mapping[str, GradientSource]]
    slices: Mapping[Scope, Mapping[str, Value]]
    known: dict[str, str]
    by_row: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    out: list[Statement] = field(default_factory=list)
    exposed: Exposed = field(default_factory=dict)

    def through(self, lines: Iterable[Statement]) -> list[Statement]:
        for line in lines:
            if isinstance(line, Loop):
                self.repeat(line)
            else:
                self.line(line)
        return self.out

    def of(self, name: str) -> str | None:
        """Return the name of a value's tangent; None if the value does not depend on a perturbed one."""
        source = self.along.get(self.scope, {}).get(name)
        if name not in self.known and source is not None:
            self.take(source)
            self.known[name] = source.name
        return self.known.get(name)

    def take(self, source: GradientSource) -> None:
        self.values |= source.values
        self.out += source.lines

    def make(self, name: str, of: str, axes: tuple[str, ...] | None = None) -> str:
        """Declare a tangent of a value, or a part of one, and return its name."""
        self.values[name] = Value(self.values[of].axes if axes is None else axes, "tangent", of)
        return name

    def line(self, line: Line) -> None:
        if isinstance(line, Op) and line.opaque is not None:
            raise InputError(f"{line.meta.operator or line.op} has no derivation, so no tangent, in line: {line}")
        moved = [i for i in differentiable(line) if self.of(operand(line, i).name)]
        at = len(self.out)
        name = line.name
        source = self.along.get(self.scope, {}).get(name)
        parts: list[Line] = []
        rows = self.by_row.get(name, ())
        if moved:
            if isinstance(line, Op) and len(entry(line.op).outputs) > 1:
                raise InputError(f"no tangent can be derived of an operator with several results, in line: {line}")
            if isinstance(line, Product):
                parts = [self.product(line, i, rows) for i in moved]
            elif isinstance(line, Sum):
                parts = [self.sum(line, moved)]
            else:
                assert isinstance(line, Op)
                parts = [part for i in moved for part in self.op(line, i)]
        forward: Line = line
        if more := self.exposed.get(line.makes):
            assert isinstance(line, Op)
            terms = tuple(Term(f"{line.name}:{inner}", axes) for inner, axes in more.items())
            forward = replace(line, left=(*line.left, *terms), gives=(*line.gives, *more))
        self.out.insert(at, forward)
        if not moved and source is None:
            return
        summands = [part.name for part in parts if part.name.startswith(f"{name}{MARK}+")]
        target = self.make(f"{name}{MARK}", name, rows or None)
        axes = self.values[target].axes
        if len(summands) == 1 and source is None:
            self.values.pop(summands[0])
            self.out += (part.renamed({summands[0]: target}) for part in parts)
        else:
            self.out += parts
            if source is not None:
                self.take(source)
                summands.append(source.name)
            right = tuple(Term(summand, axes) for summand in summands)
            self.out.append(Sum((Term(target, axes),), right, (), self.meta(line, "merge"), (1,) * len(right)))
        self.known[name] = target

    def meta(self, line: Line, local: str = "") -> Meta:
        local = local or f"{line.meta.local}{MARK}"
        return replace(line.meta, local=local, locals=(), gradients=(), jacobian="", equation="", note=None)

    def part(self, line: Line, number: int, axes: tuple[str, ...] | None = None) -> Term:
        """Return the term of the next part of a result's tangent."""
        name = self.make(f"{line.name}{MARK}+{number + 1}", line.name, axes)
        return Term(name, line.left[0].axes if axes is None else axes)

    def product(self, line: Product, i: int, rows: tuple[str, ...]) -> Product:
        factor = operand(line, i)
        right = tuple(Term(self.known[factor.name], factor.axes) if j == i else t for j, t in enumerate(line.right))
        return Product((self.part(line, i, rows or None),), right, line.where, self.meta(line))

    def sum(self, line: Sum, moved: list[int]) -> Sum:
        """Return the sum of the tangents with their signs, plus zeros of the result's shape if all tangents are
        broadcast."""
        terms: list[Operand] = [Term(self.known[operand(line, i).name], operand(line, i).axes) for i in moved]
        signs = [line.signs[i] for i in moved]
        if all(set(term.loops) < set(line.left[0].loops) for term in terms):
            zeros = Term(self.make(f"{line.name}{MARK}:zeros", line.name), line.left[0].axes)
            self.out.append(applied("zeros", zeros, (), self.meta(line)))
            terms, signs = [zeros, *terms], [1, *signs]
        if len(moved) > 1 and moved == [*range(len(moved))] and all(operand(line, i).indexed for i in moved):
            # The first arrays of a concatenation alone do not fill its axis: the others' tangents are zeros.
            others = [operand(line, i) for i in range(len(moved), len(line.right))]
            terms += [Term(self.zeros(each.name), each.axes) for each in others]
            signs = [*line.signs]
        return Sum((self.part(line, 0),), tuple(terms), line.where, self.meta(line), tuple(signs))

    def op(self, line: Op, i: int) -> list[Line]:
        op, given = entry(line.op), line.given[i]
        bindings: dict[str, Operand] = dict(zip(line.given, line.right, strict=True))
        bindings |= dict(zip(line.gives, line.left, strict=True))
        moving = Term(self.known[operand(line, i).name], operand(line, i).axes)
        own_lines = op.tangents.get(given)
        if own_lines is not None:
            return self.written(line, i, own_lines, {**bindings, f"t{given}": moving})
        if not op.pointwise and not op.symmetric:
            raise InputError(f"{line.op} has no tangent for {operand(line, i).name}, in line: {line}")
        gives = (f"d{given}",)
        reads = op.gradient_reads(gives)
        bindings[f"d{op.outputs[0]}"] = moving
        right = tuple(map(bound(line, bindings, self.exposed, self.values), reads))
        left = self.part(line, i)
        return [Op((left,), right, line.where, self.meta(line), op.name, line.axes, "gradient", reads, gives)]

    def written(self, line: Op, i: int, lines: Iterable[Line], bindings: dict[str, Operand]) -> list[Line]:
        """Return the lines of an op's tangent table, bound to the op's operands."""
        result: list[Line] = []
        for tangent_line in lines:
            last = tangent_line.name == f"t{line.gives[0]}"
            axes = spell(tangent_line.left[0].declared, line)
            if last:
                left = self.part(line, i)
            else:
                left = Term(self.make(f"{line.name}{MARK}:{line.given[i]}.{tangent_line.name}", line.name, axes), axes)
            read = bound(line, bindings, self.exposed, self.values)
            right = tuple(read(term.name) if isinstance(term, Term) else term for term in tangent_line.right)
            acts = isinstance(tangent_line, Op) and bool(tangent_line.axes)
            loops = {axis for term in (left, *right) for axis in term.loops}
            bounded = isinstance(tangent_line, Product) or acts or (last and isinstance(tangent_line, Sum))
            where = tuple(c for c in line.where if c.axes <= loops) if bounded else ()
            made = replace(tangent_line, left=(left,), right=right, where=where, meta=self.meta(line))
            if isinstance(made, Op):
                op = entry(made.op)
                acted = tuple(axis for name in made.axes for axis in spell((name,), line))
                made = replace(made, op=op.name, axes=acted, given=op.inputs, gives=op.outputs)
            bindings[tangent_line.name] = left
            result.append(made)
        return result

    # Loops.

    def repeat(self, line: Loop) -> None:
        for name in (*line.shared, *(stack for _, stack in line.each)):
            self.of(name)
        moved = {carry.start for carry in line.carry if self.of(carry.initial)}
        while True:
            inner = self.inside(line, moved)
            more = {carry.start for carry in line.carry if carry.end in inner.known} - moved
            if not more:
                break
            moved |= more
        carries = [carry for carry in line.carry if carry.start in moved]
        tangents = []
        for carry in carries:
            initial = self.of(carry.initial) or self.zeros(carry.initial)
            end = inner.known.get(carry.end) or inner.zeros(carry.end)
            final = self.make(f"{carry.final}{MARK}", carry.final)
            self.known[carry.final] = final
            tangents.append(Carry(f"{carry.start}{MARK}", end, initial, final))
        each = [(inner.known[i], self.known[o]) for i, o in line.each if o in self.known and i in inner.known]
        read = {name for inner_line in inner.out for name in inner_line.reads}
        each += [(name, name) for name in self.slices.get(inner.scope, {}) if name in read]
        keep = []
        for inside, outer in line.keep:
            if inside in inner.known:
                self.known[outer] = self.make(f"{outer}{MARK}", outer)
                keep.append((inner.known[inside], self.known[outer]))
        self.out.append(
            replace(
                line,
                lines=tuple(inner.out),
                values=inner.values,
                carry=(*line.carry, *tangents),
                each=(*line.each, *each),
                keep=(*line.keep, *keep),
            )
        )

    def inside(self, line: Loop, moved: set[str]) -> _Tangents:
        """Return the scope of a loop's iterations with the tangents of these loop-carried values."""
        known = {name: moving for name, moving in self.known.items() if name not in line.inside}
        values = dict(line.values)
        scope = (*self.scope, line.makes)
        inner = _Tangents(values, scope, self.along, self.slices, known)
        for start in moved:
            inner.known[start] = inner.make(f"{start}{MARK}", start)
        for inside, outer in line.each:
            if outer in self.known:
                inner.known[inside] = inner.make(f"{inside}{MARK}", inside)
        inner.values |= self.slices.get(scope, {})
        inner.through(line.lines)
        return inner

    def zeros(self, name: str) -> str:
        target = self.make(f"{name}{MARK}", name)
        axes = self.values[name].axes
        self.out.append(applied("zeros", Term(target, axes), (), Meta()))
        return target
