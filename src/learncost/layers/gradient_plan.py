"""Find the names that have a gradient, and represent where a learning procedure stops or replaces gradients.

A name has a gradient if it depends on the wanted names (needed) and the outputs depend on it (alive).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op
from learncost.ir.loop import Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import terms_of
from learncost.ir.value import IdentityKey, Value
from learncost.layers.spelling import differentiable, operand
from learncost.ops import entry

Scope: TypeAlias = tuple[tuple[str, ...], ...]
"""The path of a scope: the names that each loop around it defines, the outermost first; () for the table."""


@dataclass(frozen=True)
class GradientSource:
    """The replacement of a gradient: its name, the lines that compute it, and their values.

    beyond   for a loop-carried value: whether the gradient of the initial value is replaced, too
    """

    name: str
    lines: tuple[Line, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    beyond: bool = False


@dataclass(frozen=True)
class GradientOverrides:
    """The overrides and stops of a derivation.

    stopped   operands that get no gradient from a line: the line, and the operand's number on its right side
    given     by scope, the replacements of values' gradients; lines that read such a value add nothing to its gradient
    between   by the scope of a loop and the name of a loop-carried value, the replacement of the gradient that an
              iteration passes to the previous one; the initial value still has the gradient of the first iteration
    slices    by the scope of a loop, the slices that the replacements' lines read from stacks of the same names
    """

    stopped: frozenset[tuple[IdentityKey[Line], int]] = frozenset()
    given: Mapping[Scope, Mapping[str, GradientSource]] = field(default_factory=dict)
    between: Mapping[Scope, Mapping[str, GradientSource]] = field(default_factory=dict)
    slices: Mapping[Scope, Mapping[str, Value]] = field(default_factory=dict)

    def stops(self, line: Line, i: int) -> bool:
        """Return whether an operand gets no gradient from a line."""
        return bool(self.stopped) and (IdentityKey(line), i) in self.stopped


NONE = GradientOverrides()


@dataclass
class GradientPlan:
    """The names of one scope that have gradients; `inner` has the plans of its loops, by the names that these
    define."""

    weights: frozenset[str]  # names computed only from weights, whose gradients belong to the weight update
    needed: set[str] = field(default_factory=set)
    alive: set[str] = field(default_factory=set)
    expected: dict[str, int] = field(default_factory=dict)  # the number of parts of each gradient
    inner: dict[tuple[str, ...], GradientPlan] = field(default_factory=dict)
    overrides: GradientOverrides = NONE
    scope: Scope = ()
    constants: frozenset[str] = frozenset()  # constants that lines read only with weights, and names computed from them
    closed: set[str] = field(default_factory=set)  # reentrant checkpoints without an input that has a gradient

    def through(self, line: Line) -> list[int]:
        """Return the numbers of the operands that get a gradient from a line, without stopped and overridden ones."""
        if self.closed and not self.closed.isdisjoint(_reentrant(line)):
            return []
        return [
            i
            for i in differentiable(line)
            if not self.overrides.stops(line, i) and not self.is_given(operand(line, i).name)
        ]

    def is_given(self, name: str) -> bool:
        """Return whether the gradient of a name is overridden, so that lines that read it add nothing to its
        gradient."""
        return name in self.overrides.given.get(self.scope, {})

    def hands_in(self, name: str) -> bool:
        """Return whether lines that read a name contribute to its gradient."""
        return name in self.needed and not self.is_given(name)

    def needs(self, lines: Sequence[Statement], start: set[str]) -> None:
        """Mark as needed the names that depend on the wanted names."""
        self.needed |= start
        undecided = _reads_from_outside(lines)
        self.closed = set()
        for line in lines:
            if isinstance(line, Loop):
                self._repeat_needs(line)
                continue
            for checkpoint in _reentrant(line):
                if checkpoint in undecided and self.needed.isdisjoint(undecided.pop(checkpoint) - self.weights):
                    self.closed.add(checkpoint)
            if any(operand(line, i).name in self.needed for i in self.through(line)):
                self.needed |= {*line.makes}
            if self.constants.issuperset(line.reads):
                self.constants |= {*line.makes}
            elif (self.weights | self.constants).issuperset(line.reads) and _is_as_wide(line, self.weights):
                self.weights |= {*line.makes}

    def _repeat_needs(self, line: Loop) -> None:
        weights_inside = {inside for inside, outside in line.each if outside in self.weights}
        constants_inside = {inside for inside, outside in line.each if outside in self.constants}
        inner = GradientPlan(
            frozenset(weights_inside | (self.weights & set(line.shared))),
            overrides=self.overrides,
            scope=(*self.scope, line.makes),
            constants=frozenset(constants_inside | (self.constants & set(line.shared))),
        )
        start = {inside for inside, outside in line.each if self.hands_in(outside)}
        start |= {name for name in line.shared if self.hands_in(name)}
        start |= {carry.start for carry in line.carry if self.hands_in(carry.initial)}
        while True:
            inner.needs(line.lines, start)
            more = {carry.start for carry in line.carry if carry.end in inner.needed} - inner.needed
            if not more or line.runs_once:
                break
            start |= more
        self.needed |= {carry.final for carry in line.carry if carry.end in inner.needed}
        self.needed |= {outer for inside, outer in line.keep if inside in inner.needed}
        self.inner[line.makes] = inner

    def live(self, lines: Iterable[Statement], outputs: set[str]) -> None:
        """Mark as alive the names that the outputs depend on, and count the parts of each gradient."""
        self.alive |= outputs | (self.overrides.given.get(self.scope, {}).keys() & self.needed)
        for line in reversed(tuple(lines)):
            if isinstance(line, Loop):
                self._repeat_live(line)
            elif any(term.name in self.alive for term in line.left):
                if isinstance(line, Op) and entry(line.op).body and not entry(line.op).gradient:
                    if any(name in self.needed for name in line.reads):
                        raise InputError(f"the operator {line.op} has no gradient, in line: {line}")
                    continue
                for i in self.through(line):
                    self.expect(operand(line, i).name)

    def _repeat_live(self, line: Loop) -> None:
        inner = self.inner[line.makes]
        ends = {c.end for c in line.carry if c.final in self.alive and c.end in inner.needed}
        stacked = [inside for inside, outer in line.keep if outer in self.alive and inside in inner.needed]
        while True:
            inner.alive, inner.expected = set(), {}
            inner.live(line.lines, ends | set(stacked))
            for name in stacked:
                inner.expect(name)
            more = {c.end for c in line.carry if c.start in inner.alive and c.end in inner.needed} - ends
            if not more or line.runs_once:
                break
            ends |= more
        for carry in line.carry:
            if carry.start in inner.alive and carry.start in inner.needed:
                self.expect(carry.initial)
        for inside, outside in line.each:
            if inside in inner.alive:
                self.expect(outside)
        for name in line.shared:
            if name in inner.alive:
                self.expect(name)

    def expect(self, name: str) -> None:
        """Count one more part of a value's gradient."""
        if self.hands_in(name):
            self.alive.add(name)
            self.expected[name] = self.expected.get(name, 0) + 1

    def wants(self, name: str) -> bool:
        """Return whether the name has a gradient."""
        return name in self.needed and name in self.alive


def _reentrant(line: Line) -> Iterator[str]:
    """Yield the reentrant checkpoints around a line, each identified by its path of marks."""
    marks = line.meta.again.split("/")
    return ("/".join(marks[: depth + 1]).replace("-", "") for depth, mark in enumerate(marks) if "!!" in mark)


def _reads_from_outside(lines: Iterable[Statement]) -> dict[str, set[str]]:
    """Return the inputs and weights of each reentrant checkpoint: the names that its lines read and do not define."""
    reads, makes = dict[str, set[str]](), dict[str, set[str]]()
    for line in lines:
        for checkpoint in () if isinstance(line, Loop) else _reentrant(line):
            reads.setdefault(checkpoint, set()).update(line.reads)
            makes.setdefault(checkpoint, set()).update(line.makes)
    return {checkpoint: names - makes[checkpoint] for checkpoint, names in reads.items()}


def weight_constants(table: Table) -> frozenset[str]:
    """Return the constants among the inputs that belong to weights, such as the scales of codes, and not to the batch.

    Lines read them only together with weights, and broadcast them along an axis of the weights.
    """
    constants = {name for name in table.inputs if table.values[name].role in ("constant", "buffer")}
    while of_batch := _read_with_batch(table.lines, {name: {name} for name in constants}, set(table.weights)):
        constants -= of_batch
    answered = {value.of for value in table.values.values() if value.role == "share"}
    batch = [n for n in table.inputs if n not in answered | constants and table.values[n].role != "share"]
    return frozenset(constants if batch else ())


def _read_with_batch(lines: Iterable[Statement], roots: dict[str, set[str]], weights: set[str]) -> set[str]:
    """Return the constants that a line reads with a value that is not computed from weights.

    roots    the constants that each name is computed from
    weights  names computed from weights, or from weights and constants
    """
    of_batch: set[str] = set()
    for line in lines:
        if isinstance(line, Loop):
            names = {**{name: name for name in line.shared}, **dict(line.each)}
            inside = {name: roots[outer] for name, outer in names.items() if outer in roots}
            of_batch |= _read_with_batch(
                line.lines, inside, {name for name, outer in names.items() if outer in weights}
            )
            of_batch |= {root for carry in line.carry for root in roots.get(carry.initial, ())}
            continue
        of = {root for name in line.reads for root in roots.get(name, ())}
        own = [name for name in line.reads if name in weights]
        if any(name not in roots and name not in weights for name in line.reads):
            of_batch |= of
        elif not own:
            roots |= dict.fromkeys(line.makes, of)
        else:
            terms = [term for each in line.right for term in terms_of(each)]
            wide = {axis for term in terms if term.name in weights for axis in term.loops}
            spread = all(set(term.loops) < wide for term in terms if roots.get(term.name))
            if of and not (spread and wide <= {axis for term in line.left for axis in term.loops}):
                of_batch |= of
            if _is_as_wide(line, weights):
                weights |= {*line.makes}
    return of_batch


def _is_as_wide(line: Line, weights: Iterable[str]) -> bool:
    """Return whether a line's other operands have no axis that its weights lack, such as a batch axis."""
    terms = [term for each in line.right for term in terms_of(each)]
    wide = {axis for term in terms if term.name in weights for axis in term.loops}
    return all(set(term.loops) <= wide for term in terms)
