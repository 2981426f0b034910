"""A training step as PyTorch's autograd runs it: all gradients are there when the optimizer steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from learncost.equation.count import shape_of, size_of
from learncost.equation.errors import InputError
from learncost.equation.table import Product, Read, Repeat, Statement, Sum, Table, Term, Word
from learncost.readings.rooms.autograd import operators
from learncost.readings.rooms.autograd.modules import Call, Scope, unknown
from learncost.readings.rooms.autograd.tape import Tape, Value
from learncost.schedule.account import Room

Values = dict[str, Value]


def run_step(
    tape: Tape,
    table: Table,
    sizes: Mapping[str, int],
    state: int,
    checkpointed: bool = False,
    adamw: str = "",
) -> None:
    """One step of a model's forward table on a tape.

    state         bytes that the optimizer remembers
    checkpointed  every turn of a repeat under `torch.utils.checkpoint`
    adamw         as fused, foreach or for-loop; any other optimizer steps in place
    Raises `InputError` where a line is none that a person would write with PyTorch's fused operators.
    """
    step = _Step(tape, table, sizes, checkpointed)
    tape.label = "optimizer state"
    kept = Room(tape.account, state)
    tape.backward(step.forward())
    tape.label = "optimizer step"
    weights = [leaf.elements for leaf in step.leaves.values()]
    if adamw == "foreach":  # torch._foreach_sqrt of all second moments
        roots = [tape.new(elements) for elements in weights]
        del roots
    if adamw == "for-loop":  # exp_avg_sq.sqrt() / bias_correction2_sqrt, weight by weight
        for elements in weights:
            root, denominator = tape.new(elements), tape.new(elements)
            del root, denominator
    del kept


@dataclass
class _Step:
    tape: Tape
    table: Table
    sizes: Mapping[str, int]
    checkpointed: bool
    rooms: dict[str, Room] = field(default_factory=dict)
    leaves: dict[tuple[str, ...], Value] = field(default_factory=dict)

    def forward(self) -> Value:
        table, values = self.table, Values()
        for name in (*table.inputs, *table.weights):
            self.tape.label = name
            elements = self.count(table.axes[name])
            room = Room(self.tape.account, elements * (8 if name in table.indices else self.tape.width))
            if name in table.weights:
                self.rooms[name] = room
            else:
                values[name] = Value(elements, room)
        weights = {name: (name, "") for name in table.weights}
        _Scope(self, table.axes, weights, {}).run(table.lines, values, table.outputs)
        return values["loss"]

    def leaf(self, names: Sequence[tuple[str, str]], elements: int) -> Value:
        """A weight, or several that are one, of a turn."""
        key = tuple(part for name in names for part in name)
        if key not in self.leaves:
            self.leaves[key] = self.tape.weight(elements, self.rooms[names[0][0]])
        return self.leaves[key]

    def count(self, axes: Sequence[str]) -> int:
        return prod(shape_of(axes, self.sizes))


@dataclass
class _Scope:
    """Names of one scope: their axes, and which are weights, of which turn; others are those around it."""

    step: _Step
    axes: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, tuple[str, str]]
    around: Values

    def run(self, lines: Sequence[Statement], values: Values, wanted: Sequence[str]) -> None:
        """Call by call; a value goes when nobody reads it any more."""
        calls = list(Scope(lines, self.weights).calls())
        left = Counter(name for call in calls for name in call.reads) + Counter(wanted)
        for call in calls:
            if isinstance(call, Repeat):
                self._repeat(call, values)
            else:
                self.step.tape.label = "+".join(term.name for term in call.makes)
                self._call(call, values)
            for name in call.reads:
                left[name] -= 1
                if not left[name]:
                    values.pop(name, None)

    def _repeat(self, repeat: Repeat, values: Values) -> None:
        given = {carry.start: values.pop(carry.initial) for carry in repeat.carry}
        around = {name: self._found(name, values) for name in repeat.shared if name not in self.weights}
        for turn in range(size_of(repeat.count, self.step.sizes)):
            own = {inside: (outer, str(turn)) for inside, outer in repeat.each}
            run = _turn(_Scope(self.step, {**self.axes, **repeat.axes}, {**self.weights, **own}, around), repeat, given)
            found = self.step.tape.checkpoint(run) if self.step.checkpointed else run()
            given = dict(zip((carry.start for carry in repeat.carry), found, strict=True))
        values |= {carry.final: given[carry.start] for carry in repeat.carry}

    def _found(self, name: str, values: Values) -> Value:
        return values[name] if name in values else self.around[name]

    def _leaf(self, *names: str) -> Value:
        elements = sum(self.step.count(self.axes[name]) for name in names)
        return self.step.leaf([self.weights[name] for name in names], elements)

    def _value(self, term: Term, values: Values) -> Value:
        """An operand: a value, a weight, or rows of a weight."""
        if not term.indexed:
            return self._leaf(term.name) if term.name in self.weights else self._found(term.name, values)
        reads = [axis for axis in term.axes if isinstance(axis, Read)]
        index = reads[0].at.name
        if term.name not in self.weights or len(reads) > 1 or not index:
            raise InputError(f"what autograd keeps where {term} is read at an index is not known")
        return operators.embedding(
            self.step.tape, self._leaf(term.name), self._found(index, values), self.step.count(term.loops)
        )

    # Calls.

    def _call(self, call: Call, values: Values) -> None:
        if call.kind == "linear":
            self._linear(call, values)
            return
        kinds = {
            "attention": self._attention,
            "norm": self._norm,
            "loss": self._loss,
            "rotary": self._rotary,
            "line": self._line,
        }
        values[call.makes[0].name] = kinds[call.kind](call, values)

    def _linear(self, call: Call, values: Values) -> None:
        tape = self.step.tape
        (name,) = (term.name for term in call.lines[0].right if term.name != call.weights[0])
        sizes = [self.step.count(term.declared) for term in call.makes]
        bias = self._leaf(*call.biases) if call.biases else None
        whole = operators.linear(tape, self._found(name, values), self._leaf(*call.weights), sum(sizes), bias)
        parts = operators.split(tape, whole, sizes) if len(sizes) > 1 else [whole]
        values |= {term.name: part for term, part in zip(call.makes, parts, strict=True)}

    def _attention(self, call: Call, values: Values) -> Value:
        first, last = call.lines[0], call.lines[-1]
        softmax = next(line for line in call.lines if isinstance(line, Word))
        rows = self.step.count([axis for axis in softmax.loops if axis not in softmax.axes])
        (v,) = (term.name for term in last.right if term.name not in call.lines[-2].makes)
        q, k = (self._found(term.name, values) for term in first.right)
        return operators.attention(
            self.step.tape, q, k, self._found(v, values), self.step.count(last.left[0].declared), rows
        )

    def _norm(self, call: Call, values: Values) -> Value:
        line = call.lines[0]
        assert isinstance(line, Word)
        x = self._found(line.right[0].name, values)
        rows = self.step.count([axis for axis in line.loops if axis not in line.axes])
        weights = [self._leaf(name) for name in call.weights]
        norm = operators.layer_norm if line.word == "normalize" else operators.rms_norm
        return norm(self.step.tape, x, weights, rows)

    def _loss(self, call: Call, values: Values) -> Value:
        (targets,) = call.lines[1].right[0].names[1:]
        scores = self._found(call.lines[0].right[0].name, values)
        return operators.cross_entropy(self.step.tape, scores, self._found(targets, values))

    def _rotary(self, call: Call, values: Values) -> Value:
        x, cosine = (self._found(term.name, values) for term in call.lines[0].right)
        return operators.turned(self.step.tape, x, cosine, self._found(call.lines[1].right[1].name, values))

    def _line(self, call: Call, values: Values) -> Value:
        (line,), tape = call.lines, self.step.tape
        terms = [term for term in line.right if isinstance(term, Term)]
        operands = [self._value(term, values) for term in terms]
        if isinstance(line, Word):
            if line.word not in operators.ACTIVATIONS or len(operands) > 1:
                raise unknown(line)
            return operators.activation(tape, operands[0], line.word)
        if not isinstance(line, Product | Sum) or (isinstance(line, Product) and line.sides.sums):
            raise unknown(line)
        result, *others = sorted(operands, key=lambda one: -one.elements)
        join = operators.plus if isinstance(line, Sum) else operators.times
        for other in others:
            result = join(tape, result, other)
        return operators.scaled(tape, result) if len(terms) < len(line.right) else result


def _turn(scope: _Scope, repeat: Repeat, given: Values) -> Callable[[], list[Value]]:
    """A turn, to be run once or again; it holds what it is given."""

    def run() -> list[Value]:
        values = dict(given)
        scope.run(repeat.lines, values, [carry.end for carry in repeat.carry])
        return [values[carry.end] for carry in repeat.carry]

    return run
