"""Backward and weight update from the forward table: one rule for products, one for sums, one row per word.

A product: the gradient of a factor is the output's gradient times the other factors, and the factor's own term stands
on the left; an index on the left is a scatter. A sum: the gradient passes on, reduced where the term was spread. A
word: its entry's gradient table, or its explicit Jacobian and a product. A repeat: the repeat backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from learncost.equation.count import base
from learncost.equation.errors import InputError
from learncost.equation.scope import settle, show_declared
from learncost.equation.table import (
    Carry,
    Line,
    Literal,
    Operand,
    Product,
    Repeat,
    Statement,
    Sum,
    Table,
    Tag,
    Term,
    Word,
    each_line,
    walk,
)
from learncost.layers.layer import Layer
from learncost.vocabulary import entry

Axes = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Derived:
    """What derivation gives: the forward table with what it keeps, and the two tables that follow from it.

    `reverse` holds backward and update in the order in which they run; `backward` and `update` are its two halves.
    `gradients` says what the gradient of each wanted name is called (only those that the outputs depend on).
    """

    forward: Table
    reverse: Table
    gradients: Mapping[str, str]

    @property
    def backward(self) -> Table:
        return part(self.reverse, "backward", self.step)

    @property
    def update(self) -> Table:
        return part(self.reverse, "weight_update", self.step)

    @property
    def step(self) -> Table:
        """Forward, then backward and update, as one table."""
        names = tuple(f"d{name}" for name in self.forward.outputs)
        return replace(
            self.forward,
            lines=(*self.forward.lines, *self.reverse.lines),
            axes={**self.forward.axes, **self.reverse.axes},
            inputs=(*self.forward.inputs, *(n for n in names if n in self.reverse.inputs)),
            outputs=(*self.forward.outputs, *self.gradients.values()),
        )


def part(table: Table, macro: str, within: Table) -> Table:
    """The lines of one macro-operation, repeats around them kept."""
    lines = each_line(table.lines, lambda line: (line,) if line.tag.macro == macro else ())
    return replace(table, lines=_drop_empty(lines), within=within)


def _drop_empty(lines: Iterable[Statement]) -> tuple[Statement, ...]:
    result: list[Statement] = []
    for line in lines:
        if isinstance(line, Repeat):
            line = replace(line, lines=_drop_empty(line.lines))
            if not line.lines:
                continue
        result.append(line)
    return tuple(result)


def derive(
    layer: Layer | Table,
    wanted: Iterable[str] | None = None,
    jacobian: bool = False,
    given: Iterable[str] | None = None,
) -> Derived:
    """Backward and weight-update tables of a layer.

    wanted    names of inputs and weights whose gradients are wanted; all (indices and constants aside) by default
    jacobian  words with an explicit Jacobian are derived through it, as the paper prices them; else in closed form
    given     outputs whose gradients are given; all by default
    """
    table = layer.table if isinstance(layer, Layer) else layer
    possible = [n for n in (*table.inputs, *table.weights) if n not in table.indices and n not in table.constants]
    chosen = possible if wanted is None else list(wanted)
    for name in chosen:
        if name not in possible:
            raise InputError(f"no gradient of {name!r}: the table has {', '.join(possible)}")
    seeds = table.outputs if given is None else tuple(given)
    scope = _Scope(table.axes, frozenset(), jacobian, frozenset(table.weights))
    scope.needs(table.lines, set(chosen))
    scope.live(table.lines, set(seeds))
    for name in seeds:
        scope.seed(name)
    scope.reverse(table.lines)
    for name in chosen:
        scope.finish(name, Tag(macro="weight_update" if name in table.weights else "backward"))
    axes: Axes = dict(table.axes)
    forward = replace(table, lines=scope.keeping(table.lines, axes), axes=axes)
    gradients = {name: f"d{name}" for name in chosen if f"d{name}" in scope.made}
    reverse = Table(
        tuple(scope.out),
        {**axes, **scope.made},
        tuple(f"d{name}" for name in seeds if name in scope.alive),
        (),
        tuple(gradients.values()),
        title=table.title,
    )
    return Derived(forward, reverse, gradients)


@dataclass
class _Scope:
    """One scope on its way backwards: which names matter, the parts of their gradients, the lines made so far."""

    axes: Mapping[str, tuple[str, ...]]
    outer: frozenset[str]  # names of the scopes around that need a gradient
    jacobian: bool
    weights: frozenset[str]  # names made of weights alone: their gradients belong to the weight update
    needed: set[str] = field(default_factory=set)
    alive: set[str] = field(default_factory=set)
    parts: dict[str, list[str]] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    seeded: set[str] = field(default_factory=set)
    out: list[Statement] = field(default_factory=list)
    made: Axes = field(default_factory=dict)  # declared axes of the gradients
    readers: dict[str, Tag] = field(default_factory=dict)  # of a value: the tag of the first line that reads it
    exposed: dict[int, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    inner: dict[int, _Scope] = field(default_factory=dict)
    kept: dict[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    # What matters: names computed from wanted ones (needed) that the outputs depend on (alive).

    def needs(self, lines: Iterable[Statement], start: set[str]) -> None:
        self.needed |= start
        made_of_weights = set(self.weights)
        for line in lines:
            if isinstance(line, Repeat):
                self._repeat_needs(line)
                continue
            if any(self._term(line, i).name in self.needed for i in differentiable(line)):
                self.needed |= {term.name for term in line.left}
            if line.reads and made_of_weights.issuperset(line.reads):
                made_of_weights |= {term.name for term in line.left}
        self.weights = frozenset(made_of_weights)

    def _repeat_needs(self, line: Repeat) -> None:
        own = {inside for inside, outside in line.each if outside in self.weights}
        shared = frozenset(n for n in line.shared if n in self.needed)
        inner = _Scope(
            {**self.axes, **line.axes}, shared, self.jacobian, frozenset(own | (self.weights & set(line.shared)))
        )
        start = {inside for inside, outside in line.each if outside in self.needed} | set(shared)
        start |= {carry.start for carry in line.carry if carry.initial in self.needed}
        while True:
            inner.needs(line.lines, start)
            more = {carry.start for carry in line.carry if carry.end in inner.needed} - inner.needed
            if not more:
                break
            start |= more
        self.needed |= {carry.final for carry in line.carry if carry.end in inner.needed}
        self.inner[id(line)] = inner

    def live(self, lines: Iterable[Statement], outputs: set[str]) -> None:
        self.alive |= outputs
        for line in reversed(tuple(lines)):
            if isinstance(line, Repeat):
                self._repeat_live(line)
            elif any(term.name in self.alive for term in line.left):
                if isinstance(line, Word) and entry(line.word).body and not entry(line.word).gradient:
                    if any(name in self.needed for name in line.reads):
                        raise InputError(f"{line.word} has no gradient, in line: {line}")
                    continue
                for i in differentiable(line):
                    self._expect(self._term(line, i).name)

    def _repeat_live(self, line: Repeat) -> None:
        inner = self.inner[id(line)]
        ends = {c.end for c in line.carry if c.final in self.alive and c.end in inner.needed}
        while True:
            inner.alive, inner.expected = set(), {}
            inner.live(line.lines, set(ends))
            more = {c.end for c in line.carry if c.start in inner.alive and c.end in inner.needed} - ends
            if not more:
                break
            ends |= more
        for carry in line.carry:
            if carry.start in inner.alive and carry.start in inner.needed:
                self._expect(carry.initial)
        for inside, outside in line.each:
            if inside in inner.alive:
                self._expect(outside)
        for name in line.shared:
            if name in inner.alive:
                self._expect(name)

    def _expect(self, name: str) -> None:
        if name in self.needed:
            self.alive.add(name)
            self.expected[name] = self.expected.get(name, 0) + 1

    def _term(self, line: Line, i: int) -> Term:
        term = line.right[i]
        assert isinstance(term, Term)
        return term

    def wants(self, name: str) -> bool:
        return name in self.needed and name in self.alive

    # Gradients and their parts.

    def seed(self, name: str) -> str:
        """The gradient of an output, given from outside."""
        self.seeded.add(name)
        self.made[f"d{name}"] = self.axes[name]
        return f"d{name}"

    def part(self, name: str) -> str:
        """The name of the next part of a gradient; the only part is the gradient itself."""
        parts = self.parts.setdefault(name, [])
        alone = self.expected.get(name, 0) == 1 and name not in self.seeded
        parts.append(f"d{name}" if alone else f"d{name}+{len(parts) + 1}")
        self.made[parts[-1]] = self.axes[name]
        return parts[-1]

    def finish(self, name: str, tag: Tag) -> str | None:
        """Add the parts of a gradient once all of them are there; the gradient's name."""
        parts = self.parts.get(name, [])
        if not parts:
            return f"d{name}" if name in self.seeded else None
        if len(parts) == 1 and name not in self.seeded:
            return parts[0]
        total = f"d{name}.total" if name in self.seeded else f"d{name}"
        terms = ([f"d{name}"] if name in self.seeded else []) + parts
        axes = self.axes[name]
        macro = "weight_update" if name in self.weights else "backward"
        tag = tag if tag.layer else self.readers.get(name, tag)
        tag = Tag(layer=tag.layer, block=tag.block, macro=macro, binding=tag.binding, local="merge")
        right = tuple(Term(part, axes) for part in terms)
        self.out.append(Sum((Term(total, axes),), right, (), tag, (1,) * len(right)))
        self.made[total] = axes
        return total

    # The rules.

    def reverse(self, lines: Iterable[Statement]) -> None:
        for line in reversed(tuple(lines)):
            if isinstance(line, Repeat):
                self._repeat(line)
                continue
            if not any(self.wants(term.name) for term in line.left):
                continue
            gradients = {t.name: self.finish(t.name, line.tag) for t in line.left if self.wants(t.name)}
            targets = [i for i in differentiable(line) if self.wants(self._term(line, i).name)]
            if isinstance(line, Word):
                self._word(line, gradients, targets)
            else:
                name = gradients[line.name]
                assert name is not None
                given = Term(name, line.left[0].axes)
                for i in targets:
                    rule = self._product if isinstance(line, Product) else self._sum
                    rule(line, i, given)

    def _emit(self, made: Line, line: Line, i: int) -> None:
        """Add a derived line: where and tags come from its forward line, its left shows the declared axes."""
        target = made.left[0].name
        source = line.right[i]
        self.readers[source.name] = line.tag
        macro = "weight_update" if isinstance(source, Term) and source.name in self.weights else "backward"
        tag = replace(line.tag, macro=macro, local="", locals=(), gradients=(), jacobian="", equation="")
        if not made.tag.local:
            local = f"d{line.tag.locals[i]}" if i < len(line.tag.locals) else ""
            equation = line.tag.gradients[i] if i < len(line.tag.gradients) else ""
            tag = replace(tag, local=local, equation=equation)
        else:
            tag = replace(tag, local=made.tag.local, equation=made.tag.equation)
        where = tuple(c for c in line.where if c.axes <= set(made.loops))
        made = replace(made, tag=tag, where=where)
        declared = {**self.axes, **self.made}
        if len(made.left) == 1 and target in declared:
            made = show_declared(settle(made, declared), declared)
        self.out.append(made)

    def _product(self, line: Line, i: int, given: Term) -> None:
        target = self._term(line, i)
        others = tuple(term for j, term in enumerate(line.right) if j != i)
        self._emit(Product((Term(self.part(target.name), target.axes),), (given, *others)), line, i)

    def _sum(self, line: Line, i: int, given: Term) -> None:
        assert isinstance(line, Sum)
        target = self._term(line, i)
        left = (Term(self.part(target.name), target.axes),)
        if set(target.loops) == set(given.loops) and not target.indexed:
            self._emit(Sum(left, (given,), signs=(line.signs[i],)), line, i)
        else:
            sign: tuple[Operand, ...] = (Literal(-1.0),) if line.signs[i] < 0 else ()
            self._emit(Product(left, (*sign, given)), line, i)

    def _word(self, line: Word, gradients: Mapping[str, str | None], targets: list[int]) -> None:
        found = entry(line.word)
        wanted = {i: line.given[i] for i in targets}
        if not wanted:
            return
        known: dict[str, Operand] = dict(zip(line.given, line.right, strict=True))
        for name, term in zip(line.gives, line.left, strict=True):
            known[name] = term
            if gradients.get(term.name):
                known[f"d{name}"] = Term(str(gradients[term.name]), term.axes)
        if self.jacobian and found.jacobian and len(targets) == 1:
            self._through_jacobian(line, known, targets[0])
            return
        gives = tuple(f"d{name}" for name in wanted.values())
        reads = found.gradient_reads(gives)
        right = tuple(known[name] if name in known else self._expose(line, name) for name in reads)
        left, spread = [], []
        full = tuple(line.right[0].loops if found.kind == "reduction" else line.left[0].loops)
        for i in wanted:
            target = self._term(line, i)
            plain = not target.indexed and set(target.loops) == set(full)
            if plain:
                left.append(Term(self.part(target.name), target.axes))
            else:
                name = f"d{line.name}:{line.given[i]}"
                self.made[name] = full
                left.append(Term(name, full))
                spread.append((i, Product((Term(self.part(target.name), target.axes),), (left[-1],))))
        made = Word(tuple(left), right, word=found.name, axes=line.axes, part="gradient", given=reads, gives=gives)
        self._emit(made, line, targets[0])
        for i, product in spread:
            self._emit(product, line, i)

    def _through_jacobian(self, line: Word, known: Mapping[str, Operand], i: int) -> None:
        """J[_ n n'], priced as its own line, then dX[_ n'] = dY[_ n] J[_ n n']."""
        found, target = entry(line.word), self._term(line, i)
        second: dict[str, str] = {}
        for axis in line.axes:
            second[axis] = _second(axis, (*line.loops, *second.values()))
        reads = found.jacobian_reads()
        right = tuple(known[name] if name in known else self._expose(line, name) for name in reads)
        loops = tuple(a for a in line.left[0].loops if a not in line.axes)
        name = f"J{target.name}"
        axes = (*loops, *line.axes, *second.values())
        self.made[name] = axes
        made = Word(
            (Term(name, axes),), right, word=found.name, axes=line.axes, part="jacobian", given=reads, gives=("J",)
        )
        tag = Tag(local=f"J{line.tag.locals[i]}", equation=line.tag.jacobian)
        self._emit(replace(made, tag=tag), line, i)
        given = known[f"d{found.outputs[0]}"]
        left = Term(self.part(target.name), target.axes).renamed({}, second)
        self._emit(Product((left,), (given, Term(name, axes))), line, i)

    def _expose(self, line: Word, name: str) -> Term:
        """A line of the word's body that the gradient reads: the forward gives it as one more result."""
        (own,) = (body.left[0] for body in entry(line.word).body if body.name == name)
        axes = spell(own.declared, line)
        self.exposed.setdefault(id(line), {})[name] = axes
        self.made[f"{line.name}:{name}"] = axes
        return Term(f"{line.name}:{name}", axes)

    # Repeats.

    def _repeat(self, line: Repeat) -> None:
        inner = self.inner[id(line)]
        carries = [c for c in line.carry if inner.wants(c.end)]
        if not inner.alive:
            return
        for carry in carries:
            if any(self.wants(name) for name in (carry.final,)):
                self.finish(carry.final, Tag())
            inner.seed(carry.end)
        inner.reverse(line.lines)
        tag = Tag()
        starts = {c.start: inner.finish(c.start, tag) for c in carries}
        each = [(i, o) for i, o in line.each if inner.wants(i)]
        keep = [(inner.finish(i, tag), self.part(o)) for i, o in each]
        totals = [self._accumulate(inner, name) for name in line.shared if inner.wants(name)]
        carry_lines = tuple(
            Carry(f"d{c.end}", str(starts[c.start]), str(self._initial(c)), self.part(c.initial))
            if self.wants(c.initial)
            else Carry(f"d{c.end}", str(starts[c.start]), str(self._initial(c)), f"d{c.initial}:unused")
            for c in carries
        )
        for c in carry_lines:
            self.made.setdefault(c.final, inner.made[c.start])
        own = line.inside | {
            f"{word.name}:{name}" for word, _ in walk(line.lines) for name in inner.exposed.get(id(word), ())
        }
        own |= {stack for pairs in inner.kept.values() for _, stack in pairs}
        read = dict.fromkeys(n for made in inner.out for n in made.reads)
        stacked = dict(line.each)
        kept = tuple((n, f"{n}*") for n in read if n in own and n not in stacked)
        self.kept[id(line)] = kept
        axes = {**line.axes, **inner.made}
        self.out.append(
            Repeat(
                line.count,
                tuple(inner.out),
                axes,
                (*carry_lines, *totals),
                (*((n, stacked[n]) for n in read if n in stacked), *kept),
                tuple((str(i), o) for i, o in keep),
                reverse=not line.reverse,
            )
        )
        for _, outer in keep:
            self.made[outer] = (line.count, *next(line.axes[i] for i, o in each if _same(outer, o)))

    def _initial(self, carry: Carry) -> str:
        if carry.final in self.seeded and not self.parts.get(carry.final):
            return f"d{carry.final}"
        if carry.final in self.seeded:
            return f"d{carry.final}.total"
        if self.parts.get(carry.final):
            return f"d{carry.final}"
        return self._zeros(f"d{carry.final}", self.axes[carry.final], "backward")

    def _zeros(self, name: str, axes: tuple[str, ...], macro: str) -> str:
        self.out.append(Word((Term(name, axes),), (), (), Tag(macro=macro), word="zeros", gives=("Y",)))
        self.made[name] = axes
        return name

    def _accumulate(self, inner: _Scope, name: str) -> Carry:
        """The gradient of a value that all turns share: a carried total."""
        macro = "weight_update" if name in self.weights else "backward"
        turn = str(inner.finish(name, Tag()))
        axes = self.axes[name]
        part = self.part(name)
        start, end, zero = f"{part}:sum", f"{part}:sum.2", f"{part}:zero"
        self._zeros(zero, axes, macro)
        inner.made[start] = inner.made[end] = axes
        reader = inner.readers.get(name, Tag())
        tag = Tag(reader.layer, reader.block, macro, local="merge", binding=reader.binding)
        inner.out.append(Sum((Term(end, axes),), (Term(start, axes), Term(turn, axes)), (), tag, (1, 1)))
        return Carry(start, end, zero, part)

    def keeping(self, lines: Iterable[Statement], axes: Axes) -> tuple[Statement, ...]:
        """The forward lines with the results that the backward lines read besides."""
        result: list[Statement] = []
        for line in lines:
            if isinstance(line, Repeat):
                inner = self.inner[id(line)]
                own = dict(line.axes)
                body = inner.keeping(line.lines, own)
                kept = self.kept.get(id(line), ())
                for name, outer in kept:
                    axes[outer] = (line.count, *own[name])
                line = replace(line, lines=body, axes=own, keep=(*line.keep, *kept))
            elif id(line) in self.exposed:
                assert isinstance(line, Word)
                more = self.exposed[id(line)]
                terms = tuple(Term(f"{line.name}:{name}", own_axes) for name, own_axes in more.items())
                axes.update({term.name: term.declared for term in terms})
                line = replace(line, left=(*line.left, *terms), gives=(*line.gives, *more))
            result.append(line)
        return tuple(result)


def _same(part: str, name: str) -> bool:
    return part.removeprefix("d").split("+")[0] == name


def _second(axis: str, taken: Iterable[str]) -> str:
    taken = set(taken)
    second = axis + "'"
    while second in taken:
        second += "'"
    return second


def differentiable(line: Line) -> list[int]:
    """Which operands on the right can have a gradient."""
    terms = [i for i, term in enumerate(line.right) if isinstance(term, Term)]
    if isinstance(line, Word):
        if line.part != "body":
            return []
        made = {term.name for own in entry(line.word).gradient for term in own.left}
        return [i for i in terms if f"d{line.given[i]}" in made]
    return terms


def spell(axes: Iterable[str], line: Word, second: Mapping[str, str] = {}) -> tuple[str, ...]:
    """The axes of a body's line (`_`, `n`, `n'`) as the word's line has them."""
    others = [a for a in dict.fromkeys(a for term in line.left for a in term.loops) if a not in line.axes]
    others += [a for a in line.loops if a not in others and a not in line.axes]
    result: list[str] = []
    for axis in axes:
        if axis == "_":
            result.extend(others)
        elif base(axis) == "n":
            result.extend(line.axes if axis == "n" else (second[a] for a in line.axes))
        else:
            result.append(axis)
    return tuple(result)
