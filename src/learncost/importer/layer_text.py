"""Print a layer in the notation: its header, its lines with loops, its sizes and the roles of its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from learncost.importer.axes import AxisClass
from learncost.importer.equations import Equation, Fold, Item, NamedView
from learncost.importer.export import Exported
from learncost.importer.fold import every_item, read_after_update
from learncost.importer.text import TextWriter, identifier, tail
from learncost.importer.views import StoredValue, View
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.polynomial import Polynomial
from learncost.ir.stated import Limit, StateDictEntry

_WORD = re.compile(r"[^\W\d]\w*")


@dataclass
class LayerText:
    """A printer for the items of a layer; `weights` are parameters by their paths.

    limits  allowed ranges of open letters
    given   inputs and weights in the order of the header; a stack holds those of all iterations
    stacks  the per-iteration inputs of a loop: all of them, by the first
    """

    items: Sequence[Item]
    results: Sequence[StoredValue]
    exported: Exported
    weights: Mapping[StoredValue, str]
    writer: TextWriter
    limits: Mapping[str, Limit] = field(default_factory=dict)
    given: list[StoredValue] = field(default_factory=list)
    stacks: dict[StoredValue, list[StoredValue]] = field(default_factory=dict)
    outer: dict[StoredValue, str] = field(default_factory=dict)  # the header name of a stack of inputs
    aliases: dict[Fold, list[tuple[StoredValue, StoredValue]]] = field(default_factory=dict)

    def prepare(self, labels: Sequence[str]) -> None:
        """Assign names to all values of the layer."""
        every = [*every_item(self.items)]
        loops = [item for item in every if isinstance(item, Fold)]
        self.stacks = {one: several for loop in loops for one, several in loop.each.items()}
        later = {stored for several in self.stacks.values() for stored in several[1:]}
        made = {stored for item in every for stored in item.made}
        made |= {stored for loop in loops for stored in loop.stacks}
        used = dict.fromkeys(s for item in every for s in item.reads if s not in made)
        order = {name: place for place, name in enumerate(self.exported.inputs.values())}
        given = [stored for stored in used if stored not in later]
        inputs = sorted((s for s in given if s not in self.weights), key=lambda s: order.get(s.target, len(order)))
        self.given = [*inputs, *(s for s in self.weights if s in given)]
        for stored in self.given:
            name = "targets" if stored.kind == "targets" else stored.name
            if stored in self.stacks:
                name = self._stack_name(stored)
                if self.inputs_of([stored]):  # a loop's slice of an input has a separate name
                    name = name.replace(".", "_")
                    self.outer[stored] = self.writer.values.unique(f"{identifier(name)}_all")
            self.writer.names[stored] = self.writer.values.unique(identifier(name))
        for stored, label in zip(self.results, labels, strict=True):
            self.writer.names[stored] = self.writer.values.unique(identifier(label))
        self._name(self.items, [])
        values = (*made, *used, *self.results)
        self.writer.of_values = {leaf for stored in values for axis in stored.axes for leaf in axis.leaves}

    def _stack_name(self, stored: StoredValue) -> str:
        """Return the path of a stack of weights, with `each` in place of the number that differs."""
        paths = [(self._path(each) or each.name).split(".") for each in self.stacks[stored]]
        return ".".join(parts[0] if len({*parts}) == 1 else "each" for parts in zip(*paths, strict=False))

    def _name(self, items: Sequence[Item], around: Sequence[Item]) -> None:
        names = self.writer.names
        for place, item in enumerate(items):
            if isinstance(item, Equation):
                for stored in item.made:
                    if stored not in names:
                        names[stored] = self.writer.values.unique(_value_name(item, stored))
                continue
            later = {s for other in (*items[place + 1 :], *around) for s in other.reads} | set(self.results)
            aliases = []
            again = {before for before, _ in read_after_update(item)}
            for before, made, last in item.carry:
                start = before
                if (
                    before in later
                    or before in self.given
                    or (before in names and names[before] in self.outer.values())
                ):
                    start = StoredValue(made.name, before.axes)
                    aliases.append((start, before))
                name = names.get(last) or names.get(start, ".")
                if "." in name:  # a loop-carried value is called X, as in papers
                    name = self.writer.values.unique("X")
                if last in names and start is before:
                    start = StoredValue(made.name, before.axes)
                    aliases.append((start, before))
                names[start] = names[last] = name
                item.start[before] = start
                if before in again:
                    names.setdefault(made, self.writer.values.unique(identifier(made.name)))
                else:
                    names[made] = name
            self.aliases[item] = aliases
            for stored in (*item.stacks, *(stack for _, stack in item.keep)):
                names.setdefault(stored, self.writer.values.unique(identifier(stored.name)))
            self._name(item.body, [])

    def lines(self, items: Sequence[Item], depth: int = 1) -> Iterator[str]:
        """Yield the lines, indented inside loops."""
        indent = "  " * depth
        names = self.writer.names
        for item in items:
            if isinstance(item, Equation):
                yield f"{indent}{self.writer.line(item)}"
                continue
            for start, before in self.aliases[item]:
                yield f"{indent}{self._moved(start, before)}"
            outside = {before: names.get(before) for before, *_ in item.carry}
            for before, *_ in item.carry:
                names[before] = names[item.start[before]]
            carried = dict.fromkeys(names[before] for before, *_ in item.carry)
            yield f"{indent}repeat {self.counts[item]} carry {' '.join(carried)}{self._each(item)}{self._shared(item)}:"
            yield from self.lines(item.body, depth + 1)
            again = [made for before, made in read_after_update(item)]
            for before, made, last in item.carry:
                if made in again:
                    renamed = StoredValue("", made.axes)
                    names[last] = names[renamed] = names[item.start[before]]
                    yield f"{indent}  {self._moved(renamed, made)}"
            for before, name in outside.items():
                if name is not None:
                    names[before] = name

    counts: dict[Fold, str] = field(default_factory=dict)

    def _moved(self, new: StoredValue, old: StoredValue) -> str:
        """Return the line that passes a value on under another name."""
        left, right = (NamedView(View.of(each), tuple(range(len(old.axes)))) for each in (new, old))
        return self.writer.line(Equation("product", (left,), (right,))).rpartition(" @ ")[0]

    def _each(self, item: Fold) -> str:
        names = self.writer.names
        pairs = [f"{names[s]}={self.outer[s]}" for s in item.each if s in self.outer]
        pairs += [f"{names[one]}={names[stack]}" for one, stack in item.stacks.items()]
        kept = [f"{names[stack]}={names[one]}" for one, stack in item.keep]
        return (f" each {' '.join(pairs)}" if pairs else "") + (f" keep {' '.join(kept)}" if kept else "")

    def _shared(self, item: Fold) -> str:
        """Return the clause for weights that all iterations share and no line outside reads."""
        inside = {s for line in item.body for s in line.reads}
        shared = [self.writer.names[s] for s in self.weights if s in inside and s not in self.stacks]
        return f" shared {' '.join(shared)}" if shared else ""

    @property
    def inputs(self) -> list[StoredValue]:
        """Return the inputs other than weights; running statistics are named where they are updated."""
        return self.inputs_of(self.given)

    def inputs_of(self, given: Iterable[StoredValue]) -> list[StoredValue]:
        """Return the values that are neither weights nor running statistics."""
        return [stored for stored in given if stored not in self.weights and stored.kind != "running"]

    def header_name(self, stored: StoredValue) -> str:
        """Return the name of an input or a weight in the header."""
        return self.outer.get(stored, self.writer.names[stored])

    def text(self, name: str, remarks: Sequence[str]) -> str:
        """Return the text of the layer."""
        writer, exported = self.writer, self.exported
        writer.axes.taken |= writer.values.taken | set(exported.letters.symbols.values())
        for item in every_item(self.items):
            if isinstance(item, Fold) and isinstance(item.count, AxisClass):
                self.counts[item] = writer.letter(item.count)
            elif isinstance(item, Fold):
                self.counts[item] = writer.axes.unique("n_layer", "_")
                writer.sizes[self.counts[item]] = item.count
        body = [*self.lines(self.items)]
        inputs = [self.header_name(s) for s in self.inputs]
        weights = [self.header_name(s) for s in self.given if s in self.weights]
        head = f"{identifier(name).replace('.', '_')}({' '.join(inputs)}"
        head += f"; {' '.join(weights)}" if weights else ""
        head += f") -> {' '.join(map(writer.name, self.results))}"
        lines = [*(f"% {remark}" for remark in remarks), head, *body, *self.roles()]
        written = {name for line in body for name in _WORD.findall(line)}
        sizes = {letter: size for letter, size in writer.sizes.items() if letter in written}
        if fixed := [f"{letter}={size}" for letter, size in sizes.items() if isinstance(size, int)]:
            lines.append(f"sizes: {' '.join(fixed)}")
        if follows := writer.follows():
            lines.append(f"follows: {' '.join(follows)}")
        used = set(writer.letters.values())
        texts = [each.text(letter) for letter, each in self.limits.items() if letter in used]
        if limits := " ".join(filter(None, texts)):
            lines.append(f"limits: {limits}")
        if undecided := writer.undecided():
            lines.append(f"undecided: {' '.join(undecided)}")
        learns, counts, same = exported.weights.learns, exported.weights.counts, exported.weights.same
        if frozen := [writer.name(s) for s in self.given if s in self.weights and not learns[self.weights[s]]]:
            lines.append(f"frozen: {' '.join(frozen)}")
        read = {self.weights[each] for s in self.given if s in self.weights for each in self.stacks.get(s, [s])}
        others = (count for path, count in counts.items() if path not in read and path not in same)
        if unread := sum(others):
            lines.append(f"unread: {unread}")
        lines += self._stored()
        if exported.unused.places and exported.unused.flops is not None:
            lines.append(f"unused: {Polynomial.parse(exported.unused.flops).rename(exported.letters.symbols)}")
        return "\n".join(lines) + "\n"

    def _stored(self) -> Iterator[str]:
        """Yield the entries whose name or axes differ in the state_dict."""
        exported, others = self.exported, dict[str, list[str]]()
        for path, first in exported.weights.same.items():
            others.setdefault(first, []).append(path)
        for stored in self.given:
            several = self.stacks.get(stored, [stored])
            paths = [self._path(each) for each in several]
            if None in paths:
                continue
            name = self.header_name(stored)
            entry = StateDictEntry(tuple((str(path), *others.get(str(path), ())) for path in paths))
            sizes = tuple(leaf.size for axis in stored.axes for leaf in axis.leaves)
            shape = exported.weights.shapes[str(paths[0])]
            if sizes != shape:
                entry = replace(entry, shape=shape)
            is_named = entry.paths == StateDictEntry.usual(name, len(several) if stored in self.stacks else None).paths
            if is_named and stored in self.inputs:
                yield entry.text(name)
            elif entry.shape is not None or not is_named:
                yield (replace(entry, paths=()) if is_named else entry).text(name)

    def _path(self, stored: StoredValue) -> str | None:
        """Return the path of a parameter or a buffer; None for other inputs."""
        if stored in self.weights:
            return self.weights[stored]
        if stored.kind == "running":
            return stored.name
        buffers: Mapping[str, str] = self.exported.program.graph_signature.inputs_to_buffers
        return buffers.get(stored.target)

    def roles(self) -> list[str]:
        """Return the clauses for the roles of the inputs."""
        lines = []
        constants = []
        inputs = self.inputs
        targets = next((s for s in inputs if s.kind == "targets"), None)
        for stored in inputs:
            name = self.header_name(stored)
            if stored.kind.startswith("share mean") and targets is not None:
                lines.append(f"{name}: share of {self.header_name(targets)}")
            elif (
                stored.kind in ("constant", "real part", "imaginary part")
                or stored.kind.startswith(("share", "unlike"))
                or (stored.kind == "input" and not self.exported.wants_gradient.get(stored.target))
            ):
                constants.append(name)
            elif stored.kind == "targets" and stored.reads is not None:
                lines.append(f"{name}: index of {self.writer.letter(stored.reads)}")
        return [*lines, f"constants: {' '.join(constants)}"] if constants else lines


def _value_name(equation: Equation, stored: StoredValue) -> str:
    part = tail(equation.module)
    return identifier(f"{part}.{stored.name}" if part and part != stored.name else stored.name)
