"""Build steps with local losses: every block has a separate loss and gets no gradient from later blocks.

A block's backward pass and update directly follow its forward pass, so none of its activations is saved for later.
Layers before the first block are trained by that block's loss. Either all blocks use the model's head, and the last
block's loss is the model's, or every block has a separate trainable copy of the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from learncost.autodiff.derive import derive
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError, named_one
from learncost.ir.line import Line, Meta, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement, defined
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import IdentityKey, Value
from learncost.layers.gradient_plan import GradientPlan
from learncost.models.model import Model
from learncost.ops import applied
from learncost.passes.recompute import in_groups
from learncost.procedures.needed import needed
from learncost.procedures.places import check_learns, stacks
from learncost.procedures.procedure import Procedure

HEADS = ("model", "own")
"""The possible heads for a block's loss: the model's, or a separate one for each block."""


def by_local_losses(model: Model, chosen: Procedure) -> tuple[Table, Mapping[str, str]]:
    """Return one step as a table, and the names of the weights' gradients, including those of the blocks' heads."""
    check_learns(model, chosen.name)
    if model.quantized:
        raise InputError(f"{chosen.name} does not support quantized weights: choose a precision without quantization")
    head = chosen.moves["loss at blocks by HEAD"]
    named_one("head", head, dict.fromkeys(HEADS))
    return _Local(model, chosen, head == "own").step()


@dataclass
class _Local:
    """The parts of a model's table (before the blocks, blocks, head) and the gradients derived from them so far."""

    model: Model
    chosen: Procedure
    has_own_heads: bool
    inputs: dict[str, Value] = field(default_factory=dict)  # weights of the blocks' separate heads
    values: dict[str, Value] = field(default_factory=dict)
    parts: dict[str, list[str]] = field(default_factory=dict)  # the parts of every gradient
    whole: dict[str, str] = field(default_factory=dict)  # the only part of a gradient, mapped to the gradient's name

    def __post_init__(self) -> None:
        lines = self.model.table.lines
        name = self.model.configuration.name
        stacked = {IdentityKey(place.repeats[0]) for place in stacks(self.model.table)}
        repeated = ((place, line) for place, line in enumerate(lines) if isinstance(line, Loop))
        at = [place for place, line in repeated if len(line.carry) == 1 and IdentityKey(line) in stacked]
        first = last = at[-1] if at else 0
        while first and _hands_on(lines[first - 1], lines[first]):
            first -= 1
        repeats = [line for line in lines[first : last + 1] if isinstance(line, Loop)]
        if not repeats:
            raise InputError(
                f"{self.chosen.name} needs blocks that pass a value from one to the next, which {name} does not have"
            )
        if several := self.chosen.moves.get("groups of NUMBER"):
            repeats = [in_groups(repeat, int(several), self.model.table.values) for repeat in repeats]
            lines = (*lines[:first], *repeats, *lines[last + 1 :])
            self.model = replace(self.model, table=replace(self.model.table, lines=lines))
        self.before, self.repeats, self.after = lines[:first], repeats, lines[last + 1 :]
        self.final = repeats[-1].carry[0].final
        made = defined(self.before) | {other for repeat in repeats for other in repeat.makes if other != self.final}
        read = {other for line in self.after for other in line.reads}
        if made & read or self.final not in read:
            raise InputError(
                f"{self.chosen.name} needs a head that reads only the last block, which {name} does not have"
            )
        self.head_weights = [weight for weight in self.model.table.weights if weight in read]
        reach = GradientPlan(frozenset(self.model.table.weights))
        reach.needs(lines, set(self.model.learning))
        self.needed = reach.needed

    def step(self) -> tuple[Table, Mapping[str, str]]:
        table = self.model.table
        lines: list[Statement] = [*self.before]
        values = dict(table.values)
        for number, repeat in enumerate(self.repeats):
            lines += self.blocks(repeat, number)
        if self.has_own_heads:
            head = replace(table, lines=self.after, inputs=(*table.inputs, self.final), outputs=("loss",))
            forward, reverse = self.part(head, [w for w in self.head_weights if w in self.model.learning], "head")
            lines += [*forward, *reverse]
        handed = [name for name in self.parts if name in defined(self.before)]
        if handed:
            outputs = tuple(handed)
            before = replace(table, lines=self.before, outputs=outputs)
            wanted = [w for w in self.model.learning if any(w in line.reads for line in self.before)]
            for name in handed:
                lines += self.total(name, "backward")
            forward, reverse = self.part(before, wanted, "before")
            lines = [*forward, *lines[len(self.before) :], *reverse]
        gradients = {}
        for weight in (*self.model.learning, *self.inputs):
            if weight in self.parts:
                lines += self.total(weight, "weight_update")
                gradients[weight] = f"d{weight}"
        lines = [line.renamed(self.whole) for line in lines]
        values |= {name: value for name, value in self.values.items() if name not in self.whole}
        values |= self.inputs | {"dloss": Value((), "gradient", "loss")}
        result = replace(
            table,
            lines=tuple(lines),
            values=values,
            inputs=(*table.inputs, "dloss", *self.inputs),
            outputs=(*table.outputs, *gradients.values()),
        )
        result = needed(result, result.outputs)
        return replace(result, weights=table.weights, inputs=(*table.inputs, "dloss", *self.inputs)), gradients

    def total(self, name: str, phase: str) -> list[Line]:
        """Return the line that sums a gradient's parts; a single part is renamed instead."""
        axes = self.axes(name)
        self.values[f"d{name}"] = Value(axes, "gradient", name)
        if len(self.parts[name]) == 1:
            self.whole |= dict.fromkeys(self.parts[name], f"d{name}")
            return []
        right = tuple(Term(part, axes) for part in self.parts[name])
        meta = Meta(phase=phase, local="merge")
        return [Sum((Term(f"d{name}", axes),), right, (), meta, (1,) * len(right))]

    def axes(self, name: str) -> tuple[str, ...]:
        return self.inputs[name].axes if name in self.inputs else self.model.table.axes[name]

    def part(
        self, table: Table, wanted: Iterable[str], mark: str
    ) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """Return the forward lines of a part of the model with their saved tensors, and its backward and update
        lines."""
        derived = derive(table, wanted=tuple(wanted))
        renamed = {gradient: f"{gradient}:{mark}" for gradient in derived.gradients.values()}
        for name in derived.gradients:
            self.parts.setdefault(name, []).append(renamed[f"d{name}"])
        self.values |= {renamed.get(name, name): value for name, value in derived.reverse.values.items()}
        return derived.forward.lines, tuple(line.renamed(renamed) for line in derived.reverse.lines)

    def blocks(self, repeat: Loop, number: int) -> list[Statement]:
        """Return the loop whose iterations compute a loss, its gradients and updates, after the lines of its initial
        values."""
        table, (carry,) = self.model.table, repeat.carry
        lines, loss, head_weights = self.head(repeat, number)
        learning = {*self.model.learning, *head_weights}
        slices = dict(repeat.each) | {name: name for name in head_weights}
        shared = [*dict.fromkeys((*repeat.shared, *(name for line in lines for name in line.reads)))]
        shared = [
            name for name in shared if name in self.needed and name not in repeat.inside and name not in head_weights
        ]
        weights = [name for name, outer in slices.items() if outer in {*table.weights, *head_weights}]
        weights += [name for name in shared if name in table.weights]
        inner = {**table.values, **repeat.values, **self.head_values(lines), **head_weights}
        inputs = [name for name in dict.fromkeys((carry.start, *table.inputs, *shared)) if name not in weights]
        inputs += [name for name in slices if name not in weights]
        body = replace(
            table,
            lines=(*repeat.lines, *lines),
            values=inner,
            inputs=tuple(inputs),
            weights=tuple(weights),
            outputs=(loss,),
        )
        first = number == 0 and carry.initial in self.needed
        wanted = [name for name, outer in slices.items() if outer in learning]
        wanted += [name for name in shared if name in self.needed and (name in learning or name not in table.weights)]
        derived = derive(body, wanted=(*wanted, *((carry.start,) if first else ())))
        iteration: list[Statement] = [*derived.forward.lines]
        iteration += (line.renamed({f"d{loss}": "dloss"}) for line in derived.reverse.lines)
        inner = {**derived.reverse.values}
        before: list[Statement] = []
        carries, keep, each = [*repeat.carry], [*repeat.keep], [*repeat.each, *((name, name) for name in head_weights)]
        for name, gradient in derived.gradients.items():
            if name in slices:
                outer = slices[name]
                stack = f"d{outer}:blocks"
                keep.append((gradient, stack))
                self.values[stack] = Value(self.axes(outer), "part", outer)
                self.parts.setdefault(outer, []).append(stack)
            elif name != carry.start:
                carries.append(self.summed(name, gradient, number, iteration, before, inner))
        if first and carry.start in derived.gradients:
            carries += self.of_first(repeat, derived.gradients[carry.start], iteration, before, inner)
        if not self.has_own_heads:
            last = repeat is self.repeats[-1]
            zero = Term(f"loss:zero{number}", ())
            before.append(applied("zeros", zero, (), Meta("loss")))
            self.values[zero.name] = Value(())
            inner["loss:before"] = Value(())
            final = "loss" if last else f"loss:blocks{number}"
            self.values.setdefault(final, Value(()))
            carries.append(Carry("loss:before", loss, zero.name, final))
        made = replace(repeat, lines=tuple(iteration), carry=tuple(carries), each=tuple(each), keep=tuple(keep))
        return [*before, replace(made, values={name: inner[name] for name in inner if name in made.inside})]

    def summed(
        self,
        name: str,
        gradient: str,
        number: int,
        iteration: list[Statement],
        before: list[Statement],
        inner: dict[str, Value],
    ) -> Carry:
        """Return the loop-carried total that sums the gradient of a value over all iterations, which read it."""
        axes = self.axes(name)
        phase = "weight_update" if name in self.model.table.weights else "backward"
        meta = Meta(phase=phase, local="merge")
        zero, start, end, final = (f"d{name}:{part}{number}" for part in ("zero", "sum", "sum.", "total"))
        before.append(applied("zeros", Term(zero, axes), (), meta))
        iteration.append(Sum((Term(end, axes),), (Term(start, axes), Term(gradient, axes)), (), meta, (1, 1)))
        inner |= {start: Value(axes, "part", name), end: Value(axes, "part", name)}
        self.values |= {zero: Value(axes, "part", name), final: Value(axes, "part", name)}
        self.parts.setdefault(name, []).append(final)
        return Carry(start, end, zero, final)

    def of_first(
        self,
        repeat: Loop,
        gradient: str,
        iteration: list[Statement],
        before: list[Statement],
        inner: dict[str, Value],
    ) -> list[Carry]:
        """Return the loop-carried total with the gradient of the first iteration's input, to which other iterations add
        zero."""
        (carry,) = repeat.carry
        axes, meta = inner[carry.start].axes, Meta(phase="backward", local="first")
        zero, start, end, part, final = (
            f"d{carry.initial}:{what}" for what in ("zero", "sum", "sum.", "first", "blocks")
        )
        first_iteration, not_first = Term("first:one", ()), Term("first.2", ())
        before.append(applied("ones", first_iteration, (), meta))
        before.append(applied("zeros", Term(zero, axes), (), meta))
        masked = Term(part, axes)
        iteration.append(Product((masked,), (Term(gradient, axes), Term("first", ())), (), meta))
        iteration.append(Sum((Term(end, axes),), (Term(start, axes), masked), (), meta, (1, 1)))
        iteration.append(applied("zeros", not_first, (), meta))
        inner |= {name: Value(axes, "part", carry.initial) for name in (start, end, part)}
        inner |= {"first": Value(()), not_first.name: Value(())}
        self.values |= {name: Value(axes, "part", carry.initial) for name in (zero, final)}
        self.values |= {first_iteration.name: Value(()), "first:last": Value(())}
        self.parts.setdefault(carry.initial, []).append(final)
        return [Carry(start, end, zero, final), Carry("first", not_first.name, first_iteration.name, "first:last")]

    def head(self, repeat: Loop, number: int) -> tuple[list[Statement], str, dict[str, Value]]:
        """Return the head's lines applied to an iteration's output, the name of their loss, and the weights of the
        blocks' heads."""
        (carry,) = repeat.carry
        names = {name: f"local.{name}" for line in self.after for name in line.makes} | {self.final: carry.end}
        of_head: dict[str, Value] = {}
        if self.has_own_heads:
            mark = str(number) if len(self.repeats) > 1 else ""
            for weight in self.head_weights:
                value, name = self.model.table.values[weight], f"own{mark}.{weight}"
                names[weight] = name
                of_head[name] = Value(value.axes)
                self.inputs[name] = Value((repeat.count, *value.axes), "projection", weight)
        return [line.renamed(names) for line in self.after], names["loss"], of_head

    def head_values(self, lines: Iterable[Statement]) -> dict[str, Value]:
        """Return the Values of a copied head."""
        values = self.model.table.values
        return {name: values[name.removeprefix("local.")] for line in lines for name in line.makes}


def _hands_on(first: Statement, second: Statement) -> bool:
    """Return whether the initial value of the second loop is the result of the first."""
    if not isinstance(first, Loop) or not isinstance(second, Loop) or len(first.carry) != 1:
        return False
    return second.carry[0].initial == first.carry[0].final
