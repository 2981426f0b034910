"""Differentiate a scope in reverse mode: one rule for products, one for sums, one gradient table per op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement, walk
from learncost.ir.scope import settle, show_declared
from learncost.ir.term import Axis, Literal, Operand, Term
from learncost.ir.value import Role, Value, axes_of
from learncost.layers.gradient_plan import GradientPlan, GradientSource
from learncost.layers.spelling import merging, operand, place_of, primed, spell, stacking_line, tiled, with_one
from learncost.ops import applied, entry


@dataclass(frozen=True)
class GradientSum:
    """The accumulation of a gradient from its parts.

    out     the lines so far, to which lines are appended
    made    the number of the line that defines each part
    values  the values of gradients and their parts
    sizes   the known sizes of axes
    meta    the metadata of the added lines
    """

    out: list[Statement]
    made: MutableMapping[str, int]
    values: MutableMapping[str, Value]
    sizes: Mapping[str, int]
    meta: Meta

    def add(self, name: str, parts: Sequence[str]) -> None:
        """Define a gradient from its parts, by concatenation where they tile an axis, otherwise by addition."""
        if self._tile(name, parts):
            return
        together = self._put_once(name, parts)
        if together != [name]:
            self._sum(name, together, self.values[name].axes)

    def _sum(self, name: str, terms: Iterable[str], axes: Sequence[Axis]) -> None:
        right = tuple(Term(term, tuple(axes)) for term in terms)
        self.out.append(Sum((Term(name, tuple(axes)),), right, (), self.meta, (1,) * len(right)))

    def _tile(self, name: str, parts: Sequence[str]) -> bool:
        """Concatenate the parts if each covers one position of an axis and together they cover all; return whether they
        do."""
        lefts = [left for part in parts if (left := self._left(part))]
        number = tiled(lefts, self.sizes) if len(lefts) == len(parts) else None
        if number is None:
            return False
        at: dict[int, list[str]] = {}
        for part, left in zip(parts, lefts, strict=True):
            self._write(part, with_one(left.axes, number), with_one(self.values[part].axes, number))
            at.setdefault(place_of(left.axes[number]) or 0, []).append(part)
        names = []
        for place, several in sorted(at.items()):
            names.append(several[0])
            if len(several) > 1:
                names[-1] = f"{name}:{place}"
                self.values[names[-1]] = self.values[several[0]]
                self.add(names[-1], several)
        self.out.append(stacking_line(Term(name, self.values[name].axes), names, number, self.meta))
        return True

    def _put_once(self, name: str, parts: Sequence[str]) -> list[str]:
        """Add up parts that are scattered at equal indices, so that the sum is scattered once; return the remaining
        parts, or only the gradient if all parts have equal indices."""
        groups: dict[tuple[Axis, ...] | str, list[str]] = {}
        for part in parts:
            left = self._left(part)
            groups.setdefault(left.axes if left and left.indexed and left.apart else part, []).append(part)
        together = []
        for axes, several in groups.items():
            if isinstance(axes, str) or len(several) == 1:
                together += several
                continue
            left, added = Term(f"{several[0]}:put" if len(groups) > 1 else name, axes), f"{several[0]}:sum"
            self.values.setdefault(left.name, self.values[several[0]])
            for part in several:
                self._write(part, left.loops, left.loops)
            self.values[added] = self.values[several[0]]
            self._sum(added, several, left.loops)
            self.out.append(Product((left,), (Term(added, left.loops),), (), replace(self.meta, local="")))
            together.append(left.name)
        return together

    def _left(self, part: str) -> Term | None:
        """Return the left side of the line that defines a part; None if the line defines other values, too."""
        line = self.out[self.made[part]] if part in self.made else None
        return line.left[0] if isinstance(line, Line) and len(line.left) == 1 else None

    def _write(self, part: str, axes: Sequence[Axis], declared: Sequence[Axis]) -> None:
        """Change the axes at which the line of a part writes."""
        line = self.out[self.made[part]]
        assert isinstance(line, Line)
        self.out[self.made[part]] = line.with_changed(left=(Term(part, tuple(axes)),))
        self.values[part] = replace(self.values[part], axes=tuple(map(str, declared)))


Exposed = dict[tuple[str, ...], dict[str, tuple[str, ...]]]
"""The axes of values of ops' bodies that derived lines read, by the names that the line or the loop defines."""


def bound(
    line: Op, bindings: Mapping[str, Operand], exposed: Exposed, values: dict[str, Value]
) -> Callable[[str], Operand]:
    """Return a function of the operand of a name that a derived line reads: what it is bound to, or a value of the op's
    body, which becomes an additional result of the forward line."""

    def operand_of(name: str) -> Operand:
        if name in bindings:
            return bindings[name]
        (result,) = (body.left[0] for body in entry(line.op).body if body.name == name)
        axes, inner = spell(result.declared, line), f"{line.name}:{name}"
        exposed.setdefault(line.makes, {})[name] = axes
        values[inner] = Value(axes, "inner", line.name)
        return Term(inner, axes)

    return operand_of


@dataclass
class Reverse:
    """The state of reverse-mode differentiation in one scope: the parts of gradients and the derived lines so far."""

    values: Mapping[str, Value]
    reach: GradientPlan
    jacobian: bool
    sizes: Mapping[str, int] = field(default_factory=dict)  # the known sizes
    made: dict[str, int] = field(default_factory=dict)  # the number of the line that defines a part
    parts: dict[str, list[str]] = field(default_factory=dict)
    seeded: set[str] = field(default_factory=set)
    out: list[Statement] = field(default_factory=list)
    derived_values: dict[str, Value] = field(default_factory=dict)  # the gradients
    readers: dict[str, Meta] = field(default_factory=dict)  # the metadata of the first line that reads a value
    exposed: Exposed = field(default_factory=dict)
    # The key is the names that a line or a loop defines:
    inner: dict[tuple[str, ...], Reverse] = field(default_factory=dict)
    stacks_of: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = field(default_factory=dict)
    stacks: dict[str, Value] = field(default_factory=dict)  # of saved tensors

    # Gradients and their parts.

    def seed(self, name: str) -> str:
        """Return the gradient of an output, which is an input of the backward pass."""
        self.seeded.add(name)
        return self._make(self._free(name), name)

    def _make(self, gradient: str, name: str, role: Role = "gradient") -> str:
        """Declare a gradient of a value, or a part of one, and return its name."""
        self.derived_values[gradient] = Value(self.values[name].axes, role, name)
        return gradient

    def _free(self, name: str) -> str:
        """Return the name of a gradient. Raises `InputError` if a value of the layer already has this name."""
        if f"d{name}" in self.values:
            raise InputError(f"d{name} is a value of the layer and the gradient of {name}: rename the value")
        return f"d{name}"

    def part(self, name: str) -> str:
        """Return the name of the next part of a gradient; the only part of a gradient has its name."""
        parts = self.parts.setdefault(name, [])
        gradient = self._free(name)
        alone = self.reach.expected.get(name, 0) == 1 and name not in self.seeded
        arguments = (gradient, name) if alone else (f"{gradient}+{len(parts) + 1}", name, "part")
        parts.append(self._make(*arguments))
        return parts[-1]

    def finish(self, name: str, meta: Meta) -> str | None:
        """Add up the parts of a gradient, all of which are defined now, and return its name."""
        if self.reach.is_given(name):
            return self._given(name) if self.reach.wants(name) else None
        parts = self.parts.get(name, [])
        if not parts:
            return f"d{name}" if name in self.seeded else None
        if len(parts) == 1 and name not in self.seeded:
            return parts[0]
        total = self._make(f"d{name}.total" if name in self.seeded else f"d{name}", name)
        phase = "weight_update" if name in self.reach.weights else "backward"
        meta = meta if meta.layer else self.readers.get(name, meta)
        seed = [f"d{name}"] if name in self.seeded else []
        GradientSum(self.out, self.made, self.derived_values, self.sizes, merging(meta, phase)).add(
            total, [*seed, *parts]
        )
        return total

    def _given(self, name: str) -> str:
        """Return the name of an overridden gradient, whose lines are emitted at its first use."""
        if f"d{name}" not in self.derived_values:
            self._make(self._free(name), name)
            self._elsewhere(self.reach.overrides.given[self.reach.scope][name])
        return f"d{name}"

    def _elsewhere(self, source: GradientSource) -> str:
        """Emit the lines of an overridden gradient and return its name."""
        self.derived_values |= {key: value for key, value in source.values.items() if key not in self.derived_values}
        self.out += source.lines
        return source.name

    # The rules.

    def reverse(self, lines: Iterable[Statement]) -> None:
        for line in reversed(tuple(lines)):
            if isinstance(line, Loop):
                self._repeat(line)
                continue
            if not any(self.reach.wants(term.name) for term in line.left):
                continue
            gradients = {t.name: self.finish(t.name, line.meta) for t in line.left if self.reach.wants(t.name)}
            targets = [i for i in self.reach.through(line) if self.reach.wants(operand(line, i).name)]
            if isinstance(line, Op) and line.opaque:
                self._opaque(line, gradients, targets)
            elif isinstance(line, Op):
                self._op(line, gradients, targets)
            else:
                name = gradients[line.name]
                assert name is not None
                gradient = Term(name, line.left[0].axes)
                for i in targets:
                    rule = self._product if isinstance(line, Product) else self._sum
                    rule(line, i, gradient)

    def _emit(self, derived: Line, line: Line, i: int) -> None:
        """Emit a derived line, with the conditions and metadata of its forward line."""
        target = derived.left[0].name
        source = line.right[i]
        self.readers[source.name] = line.meta
        phase = "weight_update" if isinstance(source, Term) and source.name in self.reach.weights else "backward"
        local, equation = derived.meta.local, derived.meta.equation
        if not local:
            local = f"d{line.meta.locals[i]}" if i < len(line.meta.locals) else ""
            equation = line.meta.gradients[i] if i < len(line.meta.gradients) else ""
        meta = replace(line.meta, phase=phase, local=local, equation=equation, locals=(), gradients=(), jacobian="")
        where = tuple(c for c in line.where if c.axes <= set(derived.loops))
        derived = derived.with_changed(meta=meta, where=where)
        if len(derived.left) == 1 and (target in self.derived_values or target in self.values):
            values = {
                name: self.derived_values.get(name) or self.values.get(name)
                for name in (*derived.makes, *derived.reads)
            }
            declared = axes_of({name: value for name, value in values.items() if value})
            derived = show_declared(settle(derived, declared), declared)
        self.made[target] = len(self.out)
        self.out.append(derived)

    def _product(self, line: Line, i: int, gradient: Term) -> None:
        target = operand(line, i)
        others = tuple(term for j, term in enumerate(line.right) if j != i)
        self._emit(Product((Term(self.part(target.name), target.axes),), (gradient, *others)), line, i)

    def _sum(self, line: Line, i: int, gradient: Term) -> None:
        assert isinstance(line, Sum)
        target = operand(line, i)
        left = (Term(self.part(target.name), target.axes),)
        if set(target.loops) == set(gradient.loops) and not target.indexed:
            self._emit(Sum(left, (gradient,), signs=(line.signs[i],)), line, i)
        else:
            sign: tuple[Operand, ...] = (Literal(-1.0),) if line.signs[i] < 0 else ()
            self._emit(Product(left, (*sign, gradient)), line, i)

    def _op(self, line: Op, gradients: Mapping[str, str | None], targets: list[int]) -> None:
        op = entry(line.op)
        operands = {i: line.given[i] for i in targets}
        if not operands:
            return
        bindings: dict[str, Operand] = dict(zip(line.given, line.right, strict=True))
        for name, term in zip(line.gives, line.left, strict=True):
            bindings[name] = term
            if gradients.get(term.name):
                bindings[f"d{name}"] = Term(str(gradients[term.name]), term.axes)
        if self.jacobian and op.jacobian and len(targets) == 1:
            self._through_jacobian(line, bindings, targets[0])
            return
        gives = tuple(f"d{name}" for name in operands.values())
        reads = op.gradient_reads(gives)
        right = tuple(map(bound(line, bindings, self.exposed, self.derived_values), reads))
        left, spread = [], []
        loops = tuple(line.right[0].loops if op.reduces else line.left[0].loops)
        along = {gradient_line.name for gradient_line in op.gradient if "n" in gradient_line.left[0].declared}
        for i in operands:
            target = operand(line, i)
            full = loops if f"d{line.given[i]}" in along else tuple(axis for axis in loops if axis not in line.axes)
            plain = not target.indexed and set(target.loops) == set(full)
            if plain:
                left.append(Term(self.part(target.name), target.axes))
            else:
                name = f"d{line.name}:{line.given[i]}"
                self.derived_values[name] = Value(full, "unsummed", line.name)
                left.append(Term(name, full))
                spread.append((i, Product((Term(self.part(target.name), target.axes),), (left[-1],))))
        derived = Op(tuple(left), right, op=op.name, axes=line.axes, part="gradient", given=reads, gives=gives)
        self._emit(derived, line, targets[0])
        for i, product in spread:
            self._emit(product, line, i)

    def _opaque(self, line: Op, gradients: Mapping[str, str | None], targets: list[int]) -> None:
        """Emit one line for all gradients of an opaque line, which reads the opaque line's operands."""
        if not targets:
            return
        known = [
            (f"d{name}", Term(gradient, term.axes))
            for name, term in zip(line.gives, line.left, strict=True)
            if (gradient := gradients.get(term.name))
        ]
        left = tuple(Term(self.part(operand(line, i).name), operand(line, i).axes) for i in targets)
        derived = replace(
            line,
            left=left,
            right=(*(term for _, term in known), *line.right),
            part="gradient",
            given=(*(name for name, _ in known), *line.given),
            gives=tuple(f"d{line.given[i]}" for i in targets),
            meta=Meta(),
        )
        values = [i for i in targets if operand(line, i).name not in self.reach.weights]
        self._emit(derived, line, next(iter(values), targets[0]))

    def _through_jacobian(self, line: Op, bindings: Mapping[str, Operand], i: int) -> None:
        """Emit the Jacobian J[_ n n'] as a line, then dX[_ n'] = dY[_ n] J[_ n n']."""
        op, target = entry(line.op), operand(line, i)
        second: dict[str, str] = {}
        for axis in line.axes:
            second[axis] = primed(axis, (*line.loops, *second.values()))
        reads = op.jacobian_reads()
        right = tuple(map(bound(line, bindings, self.exposed, self.derived_values), reads))
        loops = tuple(a for a in line.left[0].loops if a not in line.axes)
        name = f"J{target.name}"
        axes = (*loops, *line.axes, *second.values())
        self.derived_values[name] = Value(axes, "inner", line.name)
        derived = Op((Term(name, axes),), right, op=op.name, axes=line.axes, part="jacobian", given=reads, gives=("J",))
        meta = Meta(local=f"J{line.meta.locals[i]}", equation=line.meta.jacobian)
        self._emit(replace(derived, meta=meta), line, i)
        gradient = bindings[f"d{op.outputs[0]}"]
        left = Term(self.part(target.name), target.axes).renamed({}, second)
        self._emit(Product((left,), (gradient, Term(name, axes))), line, i)

    # Loops.

    def _repeat(self, line: Loop) -> None:
        inner = Reverse({**self.values, **line.values}, self.reach.inner[line.makes], self.jacobian, self.sizes)
        self.inner[line.makes] = inner
        carries = [c for c in line.carry if inner.reach.wants(c.end)]
        if not inner.reach.alive:
            return
        for carry in carries:
            if self.reach.wants(carry.final):
                self.finish(carry.final, Meta())
            inner.seed(carry.end)
        slices = [
            (inner.part(inside), str(self.finish(outer, Meta())))
            for inside, outer in line.keep
            if self.reach.wants(outer) and inner.reach.wants(inside)
        ]
        inner.reverse(line.lines)
        meta = Meta()
        starts = {c.start: inner.finish(c.start, meta) for c in carries}
        each = [(i, o) for i, o in line.each if inner.reach.wants(i)]
        keep = [(inner.finish(i, meta), self.part(o)) for i, o in each]
        totals = [self._accumulate(inner, name) for name in line.shared if inner.reach.wants(name)]
        for c in carries:
            if starts[c.start] is None and line.count != "1":  # no line of an iteration reads the value
                starts[c.start] = inner._zeros(inner._make(f"d{c.start}", c.start), Meta(phase="backward"))
        carry_lines = tuple(
            carried for c in carries for carried in self._carried(c, starts[c.start], str(self._initial(c)), inner)
        )
        names_inside = line.inside | {
            f"{op.name}:{name}" for op, _ in walk(line.lines) for name in inner.exposed.get(op.makes, ())
        }
        names_inside |= inner.stacks.keys()
        read = dict.fromkeys(n for derived in inner.out for n in derived.reads)
        drawn = {n: v for n, v in self.reach.overrides.slices.get(inner.reach.scope, {}).items() if n in read}
        inner.derived_values |= drawn
        stacked = dict(line.keep) | dict(line.each)
        stacked_now = tuple((n, f"{n}*") for n in read if n in names_inside and n not in stacked)
        self.stacks_of[line.makes] = stacked_now
        values = {**line.values, **inner.derived_values, **inner.stacks}
        self.stacks |= {stack: Value((line.count, *values[name].axes), "saved", name) for name, stack in stacked_now}
        self.out.append(
            Loop(
                line.count,
                tuple(inner.out),
                values,
                (*carry_lines, *totals),
                (*((n, stacked[n]) for n in read if n in stacked), *slices, *stacked_now, *((n, n) for n in drawn)),
                tuple((str(i), o) for i, o in keep),
                reverse=not line.reverse,
            )
        )
        for (inside, _), (_, outer) in zip(each, keep, strict=True):
            self.derived_values[outer] = self.derived_values[outer].along((line.count, *line.axes[inside]))

    def _carried(self, c: Carry, start: str | None, initial: str, inner: Reverse) -> Iterator[Carry]:
        """Yield what the reversed loop carries for a loop-carried value: its gradient, or its override and, separately,
        the gradient of the initial value.
        """
        wanted = self.reach.wants(c.initial) and inner.reach.wants(c.start)
        source = self.reach.overrides.between.get(inner.reach.scope, {}).get(c.start)
        unused = f"d{c.initial}:unused"
        if source is not None:
            handed = inner._elsewhere(source)
            if wanted and source.beyond:
                yield Carry(f"d{c.end}", handed, initial, self.part(c.initial))
                return
            yield Carry(f"d{c.end}", handed, initial, self._make(unused, c.initial, "part"))
            if wanted:
                later = inner._make(f"d{c.start}:later", c.start, "part")
                yield Carry(later, str(start), initial, self.part(c.initial))
        elif wanted:
            yield Carry(f"d{c.end}", str(start), initial, self.part(c.initial))
        else:
            # If an iteration computes no gradient for the previous one, it carries its own on, unused.
            yield Carry(f"d{c.end}", start or f"d{c.end}", initial, self._make(unused, c.initial, "part"))

    def _initial(self, carry: Carry) -> str:
        if carry.final in self.seeded and not self.parts.get(carry.final):
            return f"d{carry.final}"
        if carry.final in self.seeded:
            return f"d{carry.final}.total"
        if self.parts.get(carry.final):
            return f"d{carry.final}"
        return self._zeros(self._make(f"d{carry.final}", carry.final), Meta(phase="backward"))

    def _zeros(self, name: str, meta: Meta) -> str:
        self.out.append(applied("zeros", Term(name, self.derived_values[name].axes), (), meta))
        return name

    def _accumulate(self, inner: Reverse, name: str) -> Carry:
        """Return the loop-carried accumulator that sums the gradient of a value over all iterations that read it."""
        phase = "weight_update" if name in self.reach.weights else "backward"
        iteration = str(inner.finish(name, Meta()))
        part = self.part(name)
        axes = self.derived_values[part].axes
        zero = self._make(f"{part}:zero", name, "part")
        start, end = (inner._make(f"{part}:{sum}", name, "part") for sum in ("sum", "sum.2"))
        reader = inner.readers.get(name, Meta())
        meta = merging(reader, phase)
        self._zeros(zero, meta)
        inner.out.append(Sum((Term(end, axes),), (Term(start, axes), Term(iteration, axes)), (), meta, (1, 1)))
        return Carry(start, end, zero, part)

    def keeping(self, lines: Iterable[Statement], values: dict[str, Value]) -> tuple[Statement, ...]:
        """Return the forward lines with the additional results that the backward lines read."""
        result: list[Statement] = []
        for line in lines:
            if isinstance(line, Loop):
                own_values = dict(line.values)
                inner = self.inner.get(line.makes)
                body = inner.keeping(line.lines, own_values) if inner else line.lines
                stacked = self.stacks_of.get(line.makes, ())
                values |= {stack: self.stacks[stack] for _, stack in stacked}
                line = replace(line, lines=body, values=own_values, keep=(*line.keep, *stacked))
            elif line.makes in self.exposed:
                assert isinstance(line, Op)
                more = self.exposed[line.makes]
                terms = tuple(Term(f"{line.name}:{name}", own_axes) for name, own_axes in more.items())
                values.update({term.name: Value(term.declared, "inner", line.name) for term in terms})
                line = replace(line, left=(*line.left, *terms), gives=(*line.gives, *more))
            result.append(line)
        return tuple(result)
