"""The printer of a loop: a function of one iteration, called in a loop, with its saved tensors in one object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from learncost.backends import function
from learncost.backends.between import MESH
from learncost.backends.expression import POWER, PRODUCT, SUM, Code, binary, call, returned
from learncost.backends.function import FunctionParameter, SizeSource
from learncost.backends.records import Record, WeightGroup, WeightRecords
from learncost.backends.scope import FIRST, FunctionScope, Layout
from learncost.backends.scope import EmittedStatement as Made
from learncost.ir.dataclass import dataclass, field
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.polynomial import base, is_received_shard, sharded_over
from learncost.ir.table import Table
from learncost.ir.value import INDICES
from learncost.program.calls import CallLoop, every_call

Pair = tuple[str, str]  # a name inside a repeat and the name of its stack outside


@dataclass(frozen=True)
class SavedList:
    """A list of saved tensors of a loop's iterations: objects with a field per name, or plain arrays."""

    variable: str
    record: str  # empty: the arrays of one name
    names: tuple[str, ...]  # of the stacks outside
    layouts: tuple[Layout, ...]
    backwards: bool


@dataclass
class LoopsWriter:
    """Prints the loops of a program. `statements` prints the lines of a function, given its outputs."""

    table: Table
    weights: WeightRecords
    record: str  # what the record of the weights is called
    statements: Callable[[FunctionScope, Sequence[Statement], set[str]], None]
    records: list[Record] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    saved_lists: dict[str, SavedList] = field(default_factory=dict)  # by the name of a stack
    numbers: Iterator[int] = field(default_factory=count)  # of the loops

    def write(self, scope: FunctionScope, line: Loop, around: Sequence[Statement], handed: set[str]) -> None:
        """Add the loop to a function, and the function of one iteration to the program.

        around   the statements around the loop
        handed   names that leave these
        """
        _LoopWriter(self, scope, line, around, handed).write()


class _LoopWriter:
    """A loop during printing: the parameters and results of an iteration, and the lists that collect them."""

    def __init__(
        self, iterations: LoopsWriter, scope: FunctionScope, line: Loop, around: Sequence[Statement], handed: set[str]
    ) -> None:
        self.around, self.handed = around, handed
        self.iterations, self.scope, self.line, self.names = iterations, scope, line, scope.identifiers
        self.iteration, self.number = self.names.of("iteration", "loop"), next(iterations.numbers)
        self.title = title(line, iterations.table)
        slices = {inside: scope.axes[outer][1:] for inside, outer in line.each if outer in scope.axes}
        axes = {**scope.axes, **slices, **line.axes}
        self.inner = FunctionScope(scope.backend, self.names, scope.helpers, axes, low=scope.low, codes=scope.codes)
        self.inner.filled = scope.filled
        self.inner.narrow = scope.narrow
        self.parameters: list[FunctionParameter] = []
        self.sources: list[SizeSource] = []
        self.returned: list[str] = []
        self.targets: list[str] = []
        self.lists: dict[str, str] = {}  # list variables, each with the name of its array
        self.stacked: dict[str, str] = {}  # what becomes of them after the loop

    def write(self) -> None:
        line, scope, inner = self.line, self.scope, self.inner
        for carry in line.carry:
            self._take(carry.start, line.axes[carry.start], self.names.of(carry.final))
        opened = self._slices()
        for name in line.shared:
            inner.layouts[name] = scope.layout(name)
            self._take(name, scope.axes[name], scope.value(name).text)
        # What comes as a parameter is there to the end; what was unpacked goes when nothing reads it any more.
        unpacked = {self.names.of(name) for statement in opened for name in statement.makes}
        lasting = [source.text for source in self.sources if source.text not in unpacked]
        inner.like = self._like(lasting)
        inner.statements = [*opened]
        read, scope.read = scope.read, []
        self.iterations.statements(inner, line.lines, {*line.ends})
        self._gives()
        self._function(len(opened))
        self._loop(read)

    def _like(self, lasting: Sequence[str]) -> str:
        """Return the array whose type numbers have: one that lives to the end and is no index."""
        line, known = self.line, {**self.iterations.table.known, **self.line.values}
        taken = {carry.start for carry in line.carry} | {name for name, _ in line.each} | {*line.shared}
        name_of = {self.names.of(name): name for name in taken & known.keys()}
        texts = (*lasting, *(source.text for source in self.sources), self.scope.like)
        like = next(text for text in texts if text not in name_of or known[name_of[text]].role not in INDICES)
        if like not in lasting and like in name_of:
            self.inner.releasable.discard(name_of[like])
        return like

    # What an iteration takes.

    def _take(self, name: str, axes: tuple[str, ...], argument: str) -> None:
        """Return a value as a parameter; if its layout is as declared, sizes are read from its shape."""
        self.parameters.append(FunctionParameter(self.names.of(name), axes=axes, argument=argument))
        if self.inner.layout(name) == tuple(range(len(axes))):
            self.sources.append(SizeSource(self.names.of(name), axes))

    def _slices(self) -> list[Made]:
        """Return the slices of stacks (weight records, saved objects, arrays), and statements that open the objects."""
        line, inner, opened = self.line, self.inner, list[Made]()
        rest = dict(line.each)
        for group in self.iterations.weights.groups:
            # In an iteration that has several blocks' weights together the record itself holds stacks.
            for stacks in (f"{self.iterations.record}.{group.field}", self.iterations.record):
                slices = {
                    inside: outer
                    for inside, outer in rest.items()
                    if outer in group.names and self.scope.paths.get(outer) == f"{stacks}.{self.names.of(outer)}"
                }
                if slices:
                    break
            if slices:
                argument = f"{group.record}(*(stack[{self._at(*next(iter(slices.items())))}] for stack in {stacks}))"
                self.parameters.append(FunctionParameter(self.iterations.record, group.record, argument=argument))
                inner.paths |= {
                    inside: f"{self.iterations.record}.{self.names.of(outer)}" for inside, outer in slices.items()
                }
                self.sources += [SizeSource(inner.paths[inside], inner.axes[inside]) for inside in slices]
                rest = {inside: outer for inside, outer in rest.items() if inside not in slices}
        for record in dict.fromkeys(
            self.iterations.saved_lists[outer] for outer in rest.values() if outer in self.iterations.saved_lists
        ):
            slices = {outer: inside for inside, outer in rest.items() if outer in record.names}
            opened += self._open(record, slices)
            rest = {inside: outer for inside, outer in rest.items() if outer not in slices}
        for inside, outer in rest.items():
            self._take(inside, self.inner.axes[inside], f"{self.scope.value(outer).atom}[{self._at(inside, outer)}]")
        return opened

    def _at(self, inside: str, outer: str) -> str:
        """Return the index of an iteration's slice of a stacked array, or of several slices."""
        together = self.line.part(inside, self.scope.axes.get(outer, ()))
        return f"{self.iteration} * {together} : ({self.iteration} + 1) * {together}" if together else self.iteration

    def _joins(self, inside: str, outer: str) -> str:
        """Return the function that stacks the results of iterations: one slice each, or several."""
        backend = self.inner.backend
        return backend.join if self.line.part(inside, self.scope.axes.get(outer, ())) else f"{backend.module}.stack"

    def _open(self, record: SavedList, inside_of: dict[str, str]) -> list[Made]:
        """Return a saved object as a parameter with its fields as variables, each freed after its last use."""
        inner = self.inner
        self.scope.read.append(f"record {record.variable}")
        layouts = dict(zip(record.names, record.layouts, strict=True))
        inner.layouts |= {inside: layouts[outer] for outer, inside in inside_of.items()}
        freed = (record.backwards or self.line.reverse) and self._readers(record.names)[-1] is self.line
        end = "" if self.line.reverse else "0"  # the stack is in the order of the iterations, whichever was made first
        argument = f"{record.variable}.pop({end})" if freed else f"{record.variable}[{self.iteration}]"
        if not record.record:
            (inside,) = inside_of.values()
            self._take(inside, self.inner.axes[inside], argument)
            return []
        self.parameters.append(FunctionParameter(record.variable, record.record, argument=argument))
        self.sources += [
            SizeSource(self.names.of(inside), self.inner.axes[inside])
            for inside in inside_of.values()
            if inner.layout(inside) == tuple(range(len(self.inner.axes[inside])))
        ]
        inner.releasable |= set(inside_of.values())
        fields = [self.names.of(inside_of[outer]) if outer in inside_of else "_" for outer in record.names]
        opened = [Made(call("", fields, indent=16) + f" = {record.variable}", tuple(inside_of.values()))]
        if "\n" not in opened[0].text:
            opened[0].text = f"{', '.join(fields)} = {record.variable}"
        if inner.backend.releases:
            opened.append(Made(f"del {record.variable}"))
        return opened

    # What it gives.

    def _gives(self) -> None:
        """Return the iteration's results: carried values, an object of saved tensors, records of gradients, others."""
        inner, names, values = self.inner, self.names, self.iterations.table.known
        for carry in self.line.carry:
            self.returned.append(inner.settled(carry.end).text)
            self.targets.append(names.of(carry.final))
        read_whole = self._read_whole()
        sliced = {outer for line in self.around if isinstance(line, Loop) for _, outer in line.each}
        objects = [pair for pair in self.line.keep if pair[1] in sliced and pair[1] not in read_whole]
        rest = {outer: inside for inside, outer in self.line.keep if outer in read_whole}
        together: dict[tuple[int, ...], list[Pair]] = {}  # what the same loops read is one object
        for pair in objects:
            together.setdefault(tuple(map(id, self._readers((pair[1],)))), []).append(pair)
        for place, pairs in enumerate(together.values()):
            self._keep(pairs, f"{self.number}.{place}" if place else f"{self.number}")
        for group in self.iterations.weights.groups:
            gradient_of = {values[outer].of: outer for outer in rest if values[outer].role == "gradient"}
            if gradient_of.keys() >= set(group.names):
                outers = [gradient_of[name] for name in group.names]
                self._gradients(group, {outer: rest.pop(outer) for outer in outers})
        for outer, inside in rest.items():
            self.scope.layouts.pop(outer, None)
            variable = names.of(outer)
            self._collect(variable, outer, inner.settled(inside).text)
            self.stacked[variable] = f"{self._joins(inside, outer)}({variable})"

    def _collect(self, variable: str, name: str, value: str) -> None:
        self.returned.append(value)
        self.targets.append(f"{variable}[{self.iteration}]")
        self.lists[variable] = name

    def _keep(self, pairs: Sequence[Pair], key: str) -> None:
        inner, names, line = self.inner, self.names, self.line
        outers = tuple(outer for _, outer in pairs)
        layouts = tuple(inner.layout(name) for name, _ in pairs)
        values = [inner.value(name).text for name, _ in pairs]
        if len(pairs) == 1:
            saved_list = SavedList(names.of(outers[0]), "", outers, layouts, line.reverse)
            text = values[0]
        else:
            wish = "Saved" if self.title == "block" else f"Saved{self.title.title().replace('_', '')}"
            record = names.of(wish, f"class {key}")
            saved_list = SavedList(names.of("saved", f"record {key}"), record, outers, layouts, line.reverse)
            axes = {axes_text: f"[{' '.join(inner.axes[axes_text])}]" for axes_text, _ in pairs}
            fields = tuple((names.of(name), inner.backend.array, axes[name]) for name, _ in pairs)
            self.iterations.records.append(
                Record(record, "The saved tensors of one iteration for its backward pass.", fields)
            )
            text = call(record, values, indent=4 + len(", ".join(["return", *self.returned])))
        self.iterations.saved_lists |= dict.fromkeys(outers, saved_list)
        self._collect(saved_list.variable, f"record {saved_list.variable}", text)

    def _gradients(self, group: WeightGroup, inside_of: Mapping[str, str]) -> None:
        """Return the gradients of a group's weights by stack: a record per iteration, then a record of stacks."""
        inner, names = self.inner, self.names
        outer, inside = next(iter(inside_of.items()))
        variable = names.of(f"d{group.field}", f"record {self.number}")
        values = [inner.settled(name).text for name in inside_of.values()]
        self._collect(variable, f"record {variable}", call(group.record, values))
        self.stacked[variable] = f"{group.record}(*map({self._joins(inside, outer)}, zip(*{variable}, strict=True)))"
        self.scope.open_record(variable, dict(zip(inside_of, map(names.of, group.names), strict=True)))

    def _readers(self, stacks: Sequence[str]) -> list[Loop]:
        """Return the loops that read another loop's saved tensors."""
        repeats = (line for line in self.around if isinstance(line, Loop))
        return [line for line in repeats if not {outer for _, outer in line.each}.isdisjoint(stacks)]

    def _read_whole(self) -> set[str]:
        """Return the names that are read other than slice by slice."""
        names = set(self.handed)
        for line in self.around:
            if isinstance(line, Loop):
                names |= {carry.initial for carry in line.carry} | set(line.shared)
            else:
                names |= set(line.reads)
        return names

    # The texts.

    def _function(self, opened: int) -> None:
        inner, line = self.inner, self.line
        inner.put(returned(self.returned), ())
        own = {key for key in inner.masks if line.around and any(map(is_received_shard, key[:2]))}
        masks = function.masks(inner, own)
        sizes, missing = function.sizes(inner, self.sources)
        self.parameters += [
            FunctionParameter(name, argument=self.scope.own_mask(key, inner))
            for key, name in inner.masks.items()
            if key not in own
        ]
        self.parameters += [FunctionParameter(inner.sizes[size], "int", argument=self._size(size)) for size in missing]
        if inner.meets:
            self.parameters.append(FunctionParameter(MESH, self.scope.backend.mesh.type, argument=MESH))
            self.scope.meets = True
        starts = {carry.start for carry in line.carry} | {name for name, _ in line.each if name not in inner.releasable}
        body = function.freed(inner, starts)
        self.name = self.names.of(self.title, f"function {self.number}")
        about = f"One iteration of {line.count}{', the last one first' if line.reverse else ''}."
        first = [*body[:opened], *sizes, *masks]
        self.iterations.functions.append(function.text(self.name, self.parameters, about, first, body[opened:]))

    def _size(self, size: str) -> str:
        """Return a size as an argument of an iteration; for a shard of a ring, the start of this iteration's shard."""
        if not (size.endswith(FIRST) and is_received_shard(size)):
            return self.scope.size(size)
        axis, backend, place = base(size.removesuffix(FIRST)), self.scope.backend, Code("0")
        self.scope.meets = True
        for mesh_axis in sharded_over(axis):
            here, devices = backend.place_along(mesh_axis), backend.devices_along(mesh_axis)
            if mesh_axis == self.line.around:
                here = Code(f"({here.text} - 1 - {self.iteration}) % {devices}", PRODUCT)
            outer = Code(f"{place.at(PRODUCT)} * {devices}", PRODUCT)
            place = here if place.text == "0" else binary(outer, "+", here, SUM)
        return f"{place.at(POWER)} * {self.scope.size(axis)}"

    def _loop(self, read: list[str]) -> None:
        line, scope, names = self.line, self.scope, self.names
        size, _, parts = line.count.partition("/")
        segments = parts.isdigit()
        count = Code(f"{scope.size(size)} // {parts}", PRODUCT) if segments else Code(scope.size(line.count))
        first = len(scope.statements)
        for carry in line.carry:
            if carry.initial != carry.final:
                code = scope.settled(carry.initial)
                scope.put(f"{names.of(carry.final)} = {code.text}", (carry.final,))
            scope.layouts.pop(carry.final, None)
        for variable, name in self.lists.items():
            scope.put(f"{variable} = [None] * {count.atom}", (name,))
            if name == f"record {variable}":
                scope.variables[name] = variable
        iterations = f"reversed(range({count.text}))" if line.reverse else f"range({count.text})"
        arguments = [parameter.argument for parameter in self.parameters]
        call_text = call(self.name, arguments, f"{', '.join(self.targets)} = ", 8).replace("\n", "\n    ")
        scope.read = [*read, *(carry.final for carry in line.carry), *self.lists.values()]
        scope.put(f"for {self.iteration} in {iterations}:\n    {call_text}", ())
        side, title, rest = self.title.partition(_what(line))
        scope.statements[first].heading = f"the {side.replace('_', ' ')}{title}s{rest.replace('_', ', ')}"
        for variable, text in self.stacked.items():
            scope.read = [self.lists[variable]]
            scope.put(f"{variable} = {text}", (self.lists[variable],))


def title(line: Loop, table: Table) -> str:
    """Return the name of one iteration: block, decoder_block_backward."""
    blocks = {inner.meta.block for inner, _ in walk(line.lines) if inner.meta.block}
    every = {inner.meta.block for inner, _ in walk(table.lines) if inner.meta.block}
    phases = {inner.meta.phase for inner, _ in walk(line.lines)}
    side = f"{blocks.pop()}_" if len(every) > 1 and len(blocks) == 1 else ""
    title = f"{side}{_what(line)}"
    if "backward" in phases:
        return f"{title}_backward"
    if phases == {"recomputation"}:
        return f"{title}_again"
    return f"{title}_update" if "weight_update" in phases else title


def loop_title(loop: CallLoop, table: Table) -> str:
    """Return the name of an iteration of a scheduled loop; for a loop over sequences, by its layers."""
    if loop.repeat.count != "B":
        return title(loop.repeat, table)
    layers = dict.fromkeys(line.meta.layer for each in every_call((loop,)) for line in each.lines)
    return "_".join(layer for layer in layers if layer) or "iteration"


def _what(line: Loop) -> str:
    """Return the description of the loop's iterations: blocks, or several of them."""
    return "segment" if line.count.partition("/")[2].isdigit() else "block"
