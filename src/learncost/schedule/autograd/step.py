"""A training step as PyTorch's autograd runs it: all gradients are there when the optimizer steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from learncost.equation.count import base, shape_of, size_of
from learncost.equation.line import Line, Product, Sum, Word
from learncost.equation.repeat import Repeat, Statement
from learncost.equation.table import Table
from learncost.equation.term import Literal, Operand, Read, Term
from learncost.schedule.account import Room
from learncost.schedule.autograd.blocks import blocks_of, places, whole_block
from learncost.schedule.autograd.calls import (
    Attention,
    Call,
    Dropout,
    Embedding,
    Experts,
    Linear,
    Loss,
    Norm,
    Projection,
    Rotary,
    Scope,
    Single,
)
from learncost.schedule.autograd.module import Module, Scores
from learncost.schedule.autograd.operators import BOOLEAN, INTEGER, Tensor, cat, linear
from learncost.schedule.autograd.parts import Parts, after_makers, with_parts
from learncost.schedule.autograd.tape import Node, Tape, Value
from learncost.schedule.autograd.wrapped import BUCKETS, Group, Sharded, Wrapping
from learncost.vocabulary import entry

Values = dict[str, Tensor]
OPTIMIZERS = ("fused", "foreach", "for-loop")
ROOT = ()
"""The group of weights that no block has."""


@dataclass(frozen=True)
class Asked:
    """What a step is besides its table.

    state        bytes that the optimizer remembers, copies of weights among them
    width        bytes of a weight
    learning     the weights that learn
    drawn        the inputs that are noise of dropout
    checkpoint   "" or how every block runs under `torch.utils.checkpoint`: "frames" or "reentrant"
    blocks       how many there are, where a turn of a repeat may have several; 0: a turn is one
    adamw        fused, foreach or for-loop; any other optimizer steps in place
    coded        the weights that are stored as codes and scales, and the bytes of these
    wrapping     how the module lies on several devices
    """

    module: Module
    state: int
    width: int
    learning: Collection[str]
    drawn: Collection[str] = ()
    checkpoint: str = ""
    blocks: int = 0
    adamw: str = ""
    coded: Mapping[str, int] = field(default_factory=dict)
    wrapping: Wrapping | None = None


def run_step(tape: Tape, table: Table, sizes: Mapping[str, int], settings: Asked) -> None:
    """One step of a model's forward table on a tape."""
    step = _Step(tape, table, sizes, settings)
    tape.label = "optimizer state"
    rooms = [Room(tape.account, settings.state), Room(tape.account, settings.module.buffers)]
    if settings.wrapping and settings.wrapping.parts == 1:
        tape.label = BUCKETS
        learned = sum(step.count(table.axes[name]) for name in settings.learning)
        rooms.append(Room(tape.account, learned * settings.wrapping.reduced))
    outputs = [tensor.value for tensor in step.forward()]
    if step.sharded:
        step.sharded.before_backward(step.sharded.group(ROOT))
    tape.backward(outputs)
    outputs.clear()
    if step.sharded:
        step.sharded.finish()
    step.inputs.clear()
    step.masks.clear()
    tape.label = "optimizer step"
    step_weights(settings.adamw, tape.learned, tape.new)
    del rooms


def step_weights(adamw: str, weights: Sequence[int], new: Callable[[int], object]) -> None:
    """What AdamW takes while it steps weights of so many elements: `new` makes an array of some."""
    if adamw == "foreach":  # torch._foreach_sqrt of all second moments
        roots = [new(elements) for elements in weights]
        del roots
    if adamw == "for-loop":  # exp_avg_sq.sqrt() / bias_correction2_sqrt, weight by weight
        for elements in weights:
            root, denominator = new(elements), new(elements)
            del root, denominator


@dataclass
class _Step:
    tape: Tape
    table: Table
    sizes: Mapping[str, int]
    settings: Asked
    rooms: dict[str, Room] = field(default_factory=dict)
    leaves: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    masks: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    embedded: list[Tensor] = field(default_factory=list)
    cache: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    tokens: str = ""

    @cached_property
    def sharded(self) -> Sharded | None:
        """The weights in parts, where the module is wrapped so."""
        wrapping = self.settings.wrapping
        return Sharded(self.tape, wrapping, self.settings.width) if wrapping and wrapping.parts > 1 else None

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The repeats of the model, by who they are."""
        return {id(line): number for number, line in enumerate(self.table.repeats) if line in self.table.lines}

    @cached_property
    def blocks(self) -> dict[str, tuple[int, int]]:
        """The weights that are stacks of the blocks', each with its repeat and its block of a turn."""
        result = dict[str, tuple[int, int]]()
        for repeat in (line for line in self.table.lines if id(line) in self.numbers):
            assert isinstance(repeat, Repeat)
            for place, (lines, _, _) in enumerate(blocks_of(repeat, self.cuts)):
                reads = {name for line in lines for name in line.reads}
                stacks = (outer for inside, outer in repeat.each if inside in reads and outer in self.table.weights)
                result |= dict.fromkeys(stacks, (self.numbers[id(repeat)], place))
        return result

    def group(self, block: tuple[int, int], turn: int) -> Group:
        """The weights of a block of a turn."""
        assert self.sharded
        names = [name for name, of in self.blocks.items() if of == block]
        return self.sharded.group((*block, turn), [self.count(self.table.axes[name][1:]) for name in names])

    @cached_property
    def cuts(self) -> int:
        """How many places a block has at which one value alone is alive, its end among them; 0: a turn is a block."""
        repeats = self.table.repeats
        all_places = sum(size_of(repeat.count, self.sizes) * len(places(repeat)) for repeat in repeats)
        return (
            all_places // self.settings.blocks if self.settings.blocks and not all_places % self.settings.blocks else 0
        )

    def forward(self) -> list[Tensor]:
        table, values, settings = self.table, Values(), self.settings
        for name in (*table.inputs, *table.weights):
            if name in settings.drawn:
                continue
            self.tape.label = name
            elements = self.count(table.axes[name])
            width = INTEGER if name in table.indices else settings.width if name in table.weights else self.tape.width
            size = settings.coded.get(name, elements * width)
            if self.sharded and name in table.weights:
                learned = self.sharded.wrapping.stored
                size = self.sharded.wrapping.part(elements) * (learned if name in settings.learning else width)
            room = Room(self.tape.account, size)
            if name in table.weights:
                self.rooms[name] = room
            else:
                values[name] = Tensor(self.tape, Value(elements, width, room))
                if table.values[name].role == "value":
                    self.inputs.append(values[name])  # images or sounds: who calls the model has them
        weights = {name: (name,) for name in table.weights}
        scope = _Scope(self, table.axes, weights, frozenset(settings.drawn), {})
        if self.sharded:
            others = [self.count(table.axes[name]) for name in table.weights if name not in self.blocks]
            root = self.sharded.group(ROOT, others)
            self.sharded.before_forward(root)
        scope.run(scope.calls(table.lines, table.outputs), values, table.outputs)
        self.embedded.clear()
        self.cache.clear()
        if not settings.checkpoint:
            self.masks.clear()
        if self.sharded:
            self.sharded.after_forward(root, keeps=True)
        return [values[name] for name in table.outputs]

    def leaf(self, names: Sequence[tuple[str, ...]], elements: int) -> Tensor:
        """A weight, or several that are one, of a turn."""
        key = tuple(part for name in names for part in name)
        if key not in self.leaves:
            room, width = self.rooms[names[0][0]], 0 if names[0][0] in self.settings.coded else self.settings.width
            learns = any(name[0] in self.settings.learning for name in names)
            if self.sharded:
                block = self.blocks.get(names[0][0])
                group = self.group(block, int(names[0][1])) if block else self.sharded.group(ROOT)
                room = group.room
            value = self.tape.weight(elements, width, room) if learns else Value(elements, width, room)
            if self.sharded:
                group.weights.append(value)
            self.leaves[key] = Tensor(self.tape, value)
        return self.leaves[key]

    def embeds(self, weight: str, embedded: Tensor) -> None:
        """What an embedding makes stays until the model returns; under checkpoints the tokens' has a gradient."""
        if self.table.values[self.table.inputs[0]].role == "index":
            self.tokens = self.tokens or weight
        if self.settings.module.holds == "embeddings":
            self.embedded.append(embedded)
        if self.settings.checkpoint and not embedded.learns and weight == self.tokens:  # enable_input_require_grads
            embedded.value.node = Node(None)
            self.inputs.append(embedded)

    def mask(self, key: tuple[object, ...], elements: int, width: int) -> Tensor:
        """A mask that is made once, and stays until the model returns; where blocks run again, as long as these."""
        if key not in self.masks:
            self.masks[key] = Tensor(self.tape, self.tape.new(elements, width))
        return self.masks[key]

    def count(self, axes: Sequence[str]) -> int:
        return int(prod(shape_of(axes, self.sizes)))


@dataclass
class _Scope:
    """Names of one scope: their axes, which are weights, of which turn, which are noise; others are those around it."""

    step: _Step
    axes: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, tuple[str, ...]]
    drawn: frozenset[str]
    around: Values

    def calls(self, lines: Sequence[Statement], outputs: Sequence[str]) -> list[Call | Repeat]:
        module, values = self.step.settings.module, self.step.table.values

        def joins(projections: Sequence[Projection]) -> Sequence[Sequence[Projection]]:
            outer = [self.weights[projection.weight][0] for projection in projections]
            return module.joins(projections, [values[name].group or name for name in outer])

        lines, parted = with_parts(lines, outputs, self.axes)
        in_order = list(Scope(lines, self.weights, self.drawn, outputs, joins, module.gathers).calls())
        in_order = after_makers(in_order, parted)
        place = next((at for at, call in enumerate(in_order) if _local(call) == module.after), 0)
        if place:
            early = [call for call in in_order[:place] if isinstance(call, Experts)]
            in_order = [*(call for call in in_order[: place + 1] if call not in early), *early, *in_order[place + 1 :]]
        return in_order

    def run(self, calls: Sequence[Call | Repeat], values: Values, outputs: Sequence[str]) -> None:
        """Call by call; a value goes when nobody reads it any more."""
        left = Counter(name for call in calls for name in call.reads) + Counter(outputs)
        module, values_read = self.step.settings.module, Values()
        for call in calls:
            if isinstance(call, Repeat):
                self._repeat(call, values)
            else:
                if isinstance(call, Linear | Loss) and not self.around:
                    self.step.embedded.clear()  # the model has returned, and its head begins
                self.step.tape.label = call.title
                self._call(call, values)
            for name in call.reads:
                left[name] -= 1
                if not left[name] and name in values:
                    tensor = values.pop(name)
                    if module.holds == "sublayers" and isinstance(call, Linear | Single):
                        values_read[name] = tensor
                    del tensor
            if isinstance(call, Norm):
                values_read.clear()

    def _repeat(self, repeat: Repeat, values: Values) -> None:
        tape, how, sharded = self.step.tape, self.step.settings.checkpoint, self.step.sharded
        number = self.step.numbers.get(id(repeat), -1)
        sharded = sharded if (number, 0) in self.step.blocks.values() else None
        if any(isinstance(line, Repeat) for line in repeat.lines):
            how = ""
        starts_given = [values.pop(carry.initial) for carry in repeat.carry]
        around = {name: self._found(name, values) for name in repeat.shared if self._is_value(name)}
        turns, stacks = size_of(repeat.count, self.step.sizes), self._unbound(repeat, values)
        scope = self._inside(repeat, 0, around, values, stacks)
        parts = [
            (scope.calls(lines, ends), starts, ends)
            for lines, starts, ends in (blocks_of(repeat, self.step.cuts) if how or sharded else (whole_block(repeat),))
        ]
        kept: list[list[Tensor]] = [[] for _ in repeat.keep]
        for turn in range(turns)[:: -1 if repeat.reverse else 1]:
            for place, (calls, starts, ends) in enumerate(parts):
                if sharded:
                    group = self.step.group((number, place), turn)
                    sharded.before_forward(group)
                    starts_given = sharded.entered(group, starts_given)
                scope = self._inside(repeat, turn, around, values, stacks)
                if how == "reentrant":
                    names = [*starts, *(name for name, tensor in around.items() if tensor.learns)]
                    scope.around = {name: tensor for name, tensor in scope.around.items() if name not in names}
                    more = [around[name].value for name in names[len(starts) :]]
                    results = tape.reentrant(
                        _turn(scope, calls, names, ends), [*(tensor.value for tensor in starts_given), *more]
                    )
                else:
                    again = _held(_turn(scope, calls, starts, ends), [tensor.value for tensor in starts_given])
                    results = tape.checkpoint(again) if how else again()
                starts_given = [Tensor(tape, value) for value in results]
                del results
                if sharded:
                    sharded.after_forward(group)
                    starts_given = sharded.left(group, starts_given)
            for several in reversed(kept):
                several.append(starts_given.pop())
        for carry, tensor in zip(repeat.carry, starts_given, strict=True):
            values[carry.final] = tensor
        for (_, stack), several in zip(repeat.keep, kept, strict=True):
            values[stack] = cat(several)

    def _unbound(self, repeat: Repeat, values: Values) -> dict[str, list[Tensor]]:
        """Every turn's part of the stacks that have gradients, by the names of the parts."""
        turns, stacks = size_of(repeat.count, self.step.sizes), {}
        for inside, outer in repeat.each:
            if self._is_value(outer) and (stack := self._found(outer, values)).learns:
                stacks[inside] = stack.split([stack.elements // turns] * turns)
        return stacks

    def _inside(
        self, repeat: Repeat, turn: int, around: Values, values: Values, stacks: Mapping[str, Sequence[Tensor]]
    ) -> _Scope:
        """The scope of a turn."""
        weights, drawn, slices = dict(self.weights), set(self.drawn), Values()
        for inside, outer in repeat.each:
            if outer in self.weights:
                weights[inside] = (*self.weights[outer], str(turn))
            elif outer in self.drawn:
                drawn.add(inside)
            elif inside in stacks:
                slices[inside] = stacks[inside][turn]
            else:
                stack, elements = self._found(outer, values).value, self.step.count(repeat.axes[inside])
                slices[inside] = Tensor(self.step.tape, Value(elements, stack.width, stack.room, view=True))
        names = {**self.around, **around, **slices}
        return _Scope(self.step, {**self.axes, **repeat.axes}, weights, frozenset(drawn), names)

    def _is_value(self, name: str) -> bool:
        return name not in self.weights and name not in self.drawn

    def _found(self, name: str, values: Values) -> Tensor:
        """A value by its name, or a weight."""
        if name in values or name in self.around:
            return values[name] if name in values else self.around[name]
        return self._leaf(name).decoded()

    def _leaf(self, *names: str) -> Tensor:
        elements = sum(self.step.count(self.axes[name]) for name in names)
        return self.step.leaf([self.weights[name] for name in names], elements)

    def _operand(self, term: Operand, values: Values) -> Tensor:
        """An operand: a value, a weight, noise, or what an index names of one."""
        assert isinstance(term, Term)
        elements = self.step.count(term.loops)
        if term.name in self.drawn:
            return self._fresh(elements)
        tensor = self._found(term.name, values)
        reads = [axis for axis in term.axes if isinstance(axis, Read)]
        if not reads:
            return tensor
        index = next((read.at.name for read in reads if read.at.name), "")
        keeps = term.name not in self.weights  # torch.gather keeps what it reads, an embedding does not
        if not index:  # as many of them are the same ones in another shape
            return tensor if elements == tensor.elements else tensor.slice(elements)
        places = self._found(index, values)
        if keeps and self.step.settings.module.attention == "disentangled":
            places = places.copied()  # clamped in every layer
        return tensor.gather(places, elements, keeps)

    def _fresh(self, elements: int) -> Tensor:
        return Tensor(self.step.tape, self.step.tape.new(elements))

    # Calls.

    def _call(self, call: Call, values: Values) -> None:
        if isinstance(call, Linear):
            self._linear(call, values)
            return
        if isinstance(call, Parts):
            whole, parts = self._found(call.value, values), self.step.count((call.axis,))
            views = whole.split([whole.elements // parts] * parts)
            values |= {term.name: views[place] for term, place in zip(call.makes, call.places, strict=True)}
            return
        kinds: dict[type[Call], Callable[..., Tensor]] = {
            Attention: self._attention,
            Norm: self._norm,
            Loss: self._loss,
            Rotary: self._rotary,
            Experts: self._experts,
            Dropout: self._dropout,
            Embedding: self._embedding,
            Single: self._single,
        }
        values[call.makes[0].name] = kinds[type(call)](call, values)

    def _linear(self, call: Linear, values: Values) -> None:
        for group in call.groups:
            x = self._found(call.value, values)
            sizes = [self.step.count(projection.makes.declared) for projection in group]
            biases = [projection.bias for projection in group if projection.bias]
            bias = self._leaf(*biases) if biases else None
            weight = self._leaf(*(projection.weight for projection in group))
            if _local(call) in self.step.settings.module.floats:
                x, weight = x.in_float(), weight.in_float()
            path, low = self._path(group, x)
            parts_made = self.step.settings.module.linear(x, weight, bias, sizes, path, low)
            for projection in reversed(group):
                part = parts_made.pop()
                if call.heads:
                    part = part.transpose()
                if call.heads and self.step.settings.module.heads == "copies":
                    part = part.contiguous()
                values[projection.makes.name] = part
            del x, part

    def _path(self, group: Sequence[Projection], x: Tensor) -> tuple[list[Tensor], int]:
        """A and B beside a product, and how many elements there are between them."""
        first, _ = group[0].path
        if not first:
            return [], 0
        *inward, rank = self.axes[first]
        low = x.elements // self.step.count(inward) * self.step.count((rank,))
        return [self._leaf(first), self._leaf(*(projection.path[1] for projection in group))], low

    def _attention(self, call: Attention, values: Values) -> Tensor:
        count, (first, last) = self.step.count, (call.lines[0], call.lines[-1])
        assert isinstance(first, Product)
        assert isinstance(last, Product)
        keys, queries = first.sides.columns, first.sides.rows
        place = next((where.upper for where in first.where if where.ordered), queries[-1])
        groups = count([axis for axis in queries if axis != place])
        length = count(keys)
        scores = count(first.left[0].loops)
        widths = [count(line.sides.summed) for line in call.scores]
        q = self._joined([self._found(name, values) for name, _ in call.pairs], widths)
        k = self._joined([self._found(name, values) for _, name in call.pairs], widths)
        batch = first.left[0].loops[:1] if first.left[0].loops[0] in first.sides.batch else ()
        windows = [where.window for where in first.where if where.window]
        terms = [term for line in call.lines for term in line.right if isinstance(term, Term)]
        masks = count((*batch, place)) * length
        attention_scores = Scores(
            groups=groups,
            heads=count([axis for axis in first.sides.batch if axis not in batch]),
            elements=scores,
            results=count(last.left[0].declared),
            rows=scores // length,
            masked=masks,
            causal=bool(first.where),
            windowed=any(size_of(window, self.step.sizes) < length for window in windows),
            padded=call.padded,
            added=[self._operand(term, values) for term in terms if term.name in call.added],
            capped=call.capped,
            scaled=call.scaled,
            sink=self._leaf(call.sink) if call.sink else None,
            dropped=call.dropped,
            cached=bool(first.where) or base(keys[-1]) != base(place),
            alike=sum(widths) == count(last.sides.columns),
            cache=self.step.cache,
        )

        def mask(width: int, elements: int = 0) -> Tensor:
            spread = call.padded or width > BOOLEAN
            elements = elements or (masks if spread else count((place,)) * length)
            return self.step.mask((masks, width, *first.where), elements, width)

        return self.step.settings.module.attended(q, k, self._found(call.values, values), attention_scores, mask)

    def _joined(self, parts: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
        """Parts of heads side by side, one that all heads share repeated."""
        if len(parts) == 1:
            return parts[0]
        heads = max(part.elements // width for part, width in zip(parts, widths, strict=True))
        return cat(parts, shares=[heads * width for width in widths])

    def _norm(self, call: Norm, values: Values) -> Tensor:
        x = self._found(call.word.right[0].name, values)
        rows = x.elements // self.step.count(call.word.axes)
        weights = [self._leaf(name) for name in call.weights]
        return self.step.settings.module.normed(x, call.word, weights, call.from_one, rows)

    def _loss(self, call: Loss, values: Values) -> Tensor:
        targets = self._found(call.targets, values) if call.targets else None
        return self.step.settings.module.loss(self._found(call.scores, values), targets)

    def _rotary(self, call: Rotary, values: Values) -> Tensor:
        x, cosine, sine = (self._found(name, values) for name in (call.value, call.cosine, call.sine))
        return self.step.settings.module.rotated(x, cosine, sine)

    def _dropout(self, call: Dropout, values: Values) -> Tensor:
        return self._found(call.value, values).dropout()

    def _experts(self, call: Experts, values: Values) -> Tensor:
        """transformers' `grouped_mm_experts_forward`: tokens sorted by experts, products of groups, sorted back.

        Python's names hold the sorted tokens, and the biases of the last product, to the end.
        """
        count, tape = self.step.count, self.step.tape
        shares = self._found(call.shares, values)
        order = Tensor(tape, tape.new(shares.elements, INTEGER))
        selected = count(call.outward.left[0].declared)
        rows = self._found(call.value, values).gather(order, selected)
        sizes = [count(line.left[0].declared) for line in call.inward]
        parts = linear(rows, self._leaf(*(line.right[1].name for line in call.inward)), sum(sizes)).split(sizes)
        local = {**values, **{line.name: part for line, part in zip(call.inward, parts, strict=True)}}
        left = Counter(name for line in call.lines for name in line.reads)
        del parts
        biased: set[str] = set()
        biases: list[Tensor] = []
        for line in call.lines[:-1]:
            biased.add(line.name)
            if line == call.outward:
                local[line.name] = linear(local[line.right[0].name], self._leaf(line.right[1].name), selected)
            elif isinstance(line, Sum) and line.right[-1].name in self.weights:  # out.add_(bias)
                bias = self._operand(line.right[-1], local)
                biases = [bias] if call.outward.name in biased else [*biases, bias]
                local[line.name] = local[line.right[0].name].add_(bias)
                del bias
            elif line not in call.inward:
                local[line.name] = self._line(line, local)
            for name in line.reads:
                left[name] -= 1
                if not left[name]:
                    local.pop(name, None)
        (last,) = (term.name for term in call.lines[-1].right if term.name != call.shares)
        width = local[last].width
        result = local.pop(last) * self.step.settings.module.routed(shares).gather(order, shares.elements)
        local.clear()
        result = result.gather(order, selected)
        result = result.viewed().sum(count(call.makes[0].declared)).to(width)
        del rows, biases
        return result

    def _single(self, call: Single, values: Values) -> Tensor:
        return self._line(call.lines[0], values)

    def _embedding(self, call: Embedding, values: Values) -> Tensor:
        tensor = self._operand(call.lines[0].right[0], values)
        if len(call.lines) > 1:
            tensor = tensor * 1.0
        self.step.embeds(self.weights[call.lines[0].right[0].name][0], tensor)
        return tensor

    def _line(self, line: Line, values: Values) -> Tensor:
        """A line by itself: a product is multiplied and summed, a sum added, a word its function."""
        elements = self.step.count(line.left[0].loops)
        if isinstance(line, Word) and entry(line.word).kind == "choice":
            return Tensor(self.step.tape, self.step.tape.new(elements, INTEGER))  # places have no gradient
        if (pooled := _pooled(line)) is not None:
            return self._found(pooled.name, values).pooled(elements, isinstance(line, Word))
        operands = [self._operand(term, values) for term in line.right if isinstance(term, Term)]
        numbers = any(isinstance(term, Literal) for term in line.right)
        result = operands.pop(0) if operands else self._fresh(elements)
        if isinstance(line, Word):
            return self.step.settings.module.activated(result, line.word)
        module = self.step.settings.module
        if isinstance(line, Product) and len(line.right) == 2 and line.sides.sums and operands:
            if module.attention == "disentangled" and line.sides.batch:  # positions are spread to all sequences
                result, factor = result.contiguous(), operands.pop()
                spread = self.step.count(line.left[0].loops[:1])
                return result.matmul(factor.copied(factor.elements * spread), elements)
            return result.matmul(operands.pop(), elements)
        if module.attention == "disentangled" and isinstance(line, Product) and numbers and not operands:
            return result  # divided before
        for other in operands:
            result = result + other if isinstance(line, Sum) else result * other
        if numbers:
            result = result + 1.0 if isinstance(line, Sum) else result * 1.0
        return result.sum(elements) if result.elements > elements else result


def _pooled(line: Line) -> Term | None:
    """What a line takes the largest, or the mean, of in windows; None where it does not."""
    terms = [term for term in line.right if isinstance(term, Term)]
    if len(terms) != 1 or not terms[0].beyond or len(line.left) != 1:
        return None
    sums = isinstance(line, Product) and not {*terms[0].loops} <= {*line.left[0].loops}
    return terms[0] if sums or (isinstance(line, Word) and entry(line.word).kind == "reduction") else None


def _local(call: Call | Repeat) -> str:
    """What a call makes, as its layer's table says it."""
    tag = call.lines[-1].tag if isinstance(call, Call) else None
    return f"{tag.layer}.{tag.local}" if tag else ""


def _turn(
    scope: _Scope, calls: Sequence[Call | Repeat], names: Sequence[str], ends: Sequence[str]
) -> Callable[[Sequence[Value]], list[Value]]:
    """A turn, or a block of one, to be run once or again on what it is given."""
    tape = scope.step.tape

    def run(arguments: Sequence[Value]) -> list[Value]:
        values = {name: Tensor(tape, value) for name, value in zip(names, arguments, strict=True)}
        scope.run(calls, values, ends)
        return [values[name].value for name in ends]

    return run


def _held(run: Callable[[Sequence[Value]], list[Value]], arguments: Sequence[Value]) -> Callable[[], list[Value]]:
    """The turn with what it is given, which it holds."""
    return lambda: run(arguments)
