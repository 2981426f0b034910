"""A kernel as one C function: its parameters, the turns over threads, the phases of a turn, the sums of all threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from learncost.equation.errors import InputError
from learncost.equation.table import Condition, Line
from learncost.readings.emit.c.arrays import STORED, Index
from learncost.readings.emit.c.library import Library
from learncost.readings.emit.c.schedule import AFTER, BEFORE, MAIN, Node, Value


class Turns(Library):
    """Writes the whole function."""

    def body(self, lines: Sequence[Line]) -> list[str]:
        """The text of the function; `lines` are the kernel's lines in one scope of axes, before they were lowered."""
        schedule = self.schedule
        self.open("")  # the parallel region, 1
        turns = self.grouped(schedule.turns)
        self.open(self._turn_head(turns))
        self._turn_positions(turns)
        self.turn = self.base = len(self.blocks) - 1
        for value in schedule.values.values():
            if value.added and not value.shared:
                self.zero(value, [axis for axis in value.axes if axis not in schedule.turns])
        self._phase(BEFORE)
        self._main(lines)
        self._phase(AFTER)
        self.close()
        self._add_up()
        region = self.blocks.pop()
        return self._around(region.lines, lines)

    def _turn_head(self, turns: Sequence[tuple[str, ...]]) -> str:
        if not turns:
            return ""
        counter = self.counter(turns[0]) if len(turns) == 1 else "turn"
        return f"for (place {counter} = 0; {counter} < {self.count(self.schedule.turns)}; {counter}++)"

    def _turn_positions(self, turns: Sequence[tuple[str, ...]]) -> None:
        depth = len(self.blocks) - 1
        rest = "turn"
        for i, group in enumerate(turns):
            counter = self.counter(group)
            self.positions[group] = Index(counter, depth)
            if len(turns) > 1:
                after = " / ".join(f"({self.count(later)})" for later in turns[i + 1 :])
                text = f"{rest} / {after}" if after else rest
                self.write(f"const place {counter} = {text}{f' % ({self.count(group)})' if i else ''};")

    # The phases of a turn.

    def _phase(self, phase: int) -> None:
        """The segments of a phase: loops, then products."""
        values = [value for value in self.schedule.values.values() if value.at.phase == phase]
        nodes = [node for node in self.schedule.nodes if node.place.phase == phase]
        segments = sorted({value.at.segment for value in values} | {node.place.segment for node in nodes})
        for segment in segments:
            self._rows([node for node in nodes if node.place.segment == segment], phase)
            for value in values:
                if value.kind == "product" and value.at.segment == segment:
                    self.node = Node(value.at._replace(stage=1000), ())
                    self.product(value)
                    self.node = None

    def _rows(self, nodes: Sequence[Node], phase: int) -> None:
        """Loops, in the main phase for one row of the block after another."""
        block = self.schedule.block
        if not nodes:
            return
        row = self.group(block[0]) if block and phase == MAIN else None
        if row:
            counter = self.counter(row)
            self.open(f"for (place {counter} = from_{counter}; {counter} < to_{counter}; {counter}++)")
            self.positions[row] = Index(counter, len(self.blocks) - 1)
            self.base = len(self.blocks) - 1
        for node in nodes:
            self.write_node(node)
        if row:
            self.close()
            self.base = len(self.blocks) - 1

    def _main(self, lines: Sequence[Line]) -> None:
        schedule = self.schedule
        if not any(v.at.phase == MAIN for v in schedule.values.values()):
            return
        outer = self.base
        for axis in schedule.sequence:
            self.loop(self.group(axis))
        if schedule.block:
            self._open_block(schedule.block[0], lines)
        self.base = len(self.blocks) - 1
        self._phase(MAIN)
        while len(self.blocks) - 1 > outer:
            self.close()
        self.base = outer
        self.bounds = None

    def _open_block(self, axis: str, lines: Sequence[Line]) -> None:
        """The loop over blocks, and between which bounds the axis lies that a condition ties to it."""
        counter, size, places = self.counter((axis,)), self.size(axis), self.block_size
        self.open(f"for (place from_{counter} = 0; from_{counter} < {size}; from_{counter} += {places})")
        self.write(
            f"const place to_{counter} = from_{counter} + {places} < {size} ? from_{counter} + {places} : {size};"
        )
        found = self._bounding(axis, lines)
        if found:
            other, conditions = found
            key = self.counter((other,))
            lower, upper = "0", self.size(other)
            for condition in conditions:
                low, high = self._limits(condition, axis, counter)
                lower = f"({low}) > {lower} ? {low} : {lower}" if low else lower
                upper = f"({high}) < {upper} ? {high} : {upper}" if high else upper
            if self.real == "float" and lower != "0":  # where strips begin; what a condition excludes, is zero there
                lower = f"({lower}) / LANES * LANES"
            self.write(f"const place from_{key} = {lower}, to_{key} = {upper};")
            self.bounds = (other, f"from_{key}", f"to_{key}")

    def _limits(self, condition: Condition, axis: str, counter: str) -> tuple[str, str]:
        """From where and up to where a condition lets the other axis be, for a block of this one."""
        strict = " + 1" if condition.strict else ""
        window = condition.window and self.size(condition.window)
        if condition.upper == axis:
            return (f"from_{counter} - {window} + 1" if window else "", f"to_{counter}{' - 1' if strict else ''}")
        return f"from_{counter}{strict}", f"to_{counter} - 1 + {window}" if window else ""

    def _bounding(self, axis: str, lines: Sequence[Line]) -> tuple[str, tuple[Condition, ...]] | None:
        """The axis that every line that has both it and the block's ties to it, where no output has both."""
        tied = {c for line in lines for c in line.where if axis in c.axes}
        for other in sorted({a for c in tied for a in c.axes if a != axis}):
            both = [line for line in lines if {axis, other} <= set(line.loops)]
            common = frozenset.intersection(*(frozenset(line.where) for line in both))
            common = frozenset(c for c in common if c.axes == {axis, other})
            whole = any(v.output and {axis, other} <= set(v.axes) for v in self.schedule.values.values())
            if common and not whole:
                return other, tuple(sorted(common, key=str))
        return None

    # Around the turns.

    def _shared(self) -> list[Value]:
        return [value for value in self.schedule.values.values() if value.shared]

    def _add_up(self) -> None:
        """The sums of all threads, one after another."""
        for i, value in enumerate(self._shared()):
            own, count = self.names.of(value.name), self.count(value.axes)
            stored = STORED[self.dtypes[value.name]]
            self.write("#pragma omp for" if value.axes else "#pragma omp single")
            loop = f"for (place i = 0; i < {count}; i++)"
            self.write(f"{loop} {{" if value.axes else "{")
            element = "i" if value.axes else "0"
            kind = self.total(value)
            part = f"((const {kind} *)(sums[one] + first_{i}))[{element}]"
            self.write(
                f"    {kind} sum = 0;",
                f"    for (int one = 0; one < threads; one++) sum += {part};",
                f"    {own}[{element}] = {self.narrowed('sum', stored)};",
                "}",
            )

    def _around(self, region: list[str], lines: Sequence[Line]) -> list[str]:
        """The parallel region and what stands before it."""
        shared = self._shared()
        memory = [f"ROUND(({count}) * sizeof({kind}))" for kind, count in self.scratch.values()]
        sums = [f"ROUND(({self.count(value.axes)}) * sizeof({self.total(value)}))" for value in shared]
        schedule = self.schedule
        widest = max(schedule.values.values(), key=lambda v: len(v.space))
        work = self.count([*dict.fromkeys((*schedule.turns, *widest.space))])
        start = []
        if shared:
            start.append("const int thread = omp_get_thread_num(), threads = omp_get_num_threads();")
        if memory or sums:
            start.append(f"char *memory = own({' + '.join(sums + memory)});")
        for i, value in enumerate(shared):
            own = f"{self.names.of(value.name)}_sums"
            before = " + ".join(sums[:i]) or "0"
            kind = self.total(value)
            start.append(f"{kind} *{own} = ({kind} *)(memory + {before});")
        if shared:
            start.append(f"memset(memory, 0, {' + '.join(sums)});")
            start.append("sums[thread] = memory;")
            start.append(f"memory += {' + '.join(sums)};")
        for (name, (kind, _)), size in zip(self.scratch.items(), memory, strict=True):
            start += [f"{kind} *{name} = ({kind} *)memory;", f"memory += {size};"]
        simple = (
            not shared and all(not node.space for node in schedule.nodes) and len(self.grouped(schedule.turns)) == 1
        )
        simple = simple and not any(v.kind in ("product", "scatter") for v in schedule.values.values())
        pragma = f"#pragma omp for {'simd ' if simple else ''}schedule({self._share_out()})"
        text = [*self.blocks[0].lines]
        if shared:
            text.append("static char *sums[THREADS];")
            firsts = (" + ".join(sums[:i]) or "0" for i in range(len(shared)))
            text += [f"const size_t first_{i} = {first};" for i, first in enumerate(firsts)]
        turns = [pragma, *region] if schedule.turns else region
        if schedule.turns:
            text.append(f"#pragma omp parallel if ((double){work} > 50000.0)")
        inside = [*start, *turns]
        if not schedule.turns:
            inside = ["const int thread = 0, threads = 1;" if "const int thread" in line else line for line in inside]
            inside = [line for line in inside if not line.startswith("#pragma omp")]
        text += ["{", *(line if line.startswith("#") else f"    {line}" for line in inside), "}"]
        return text

    def _share_out(self) -> str:
        products = any(value.kind == "product" for value in self.schedule.values.values())
        return "dynamic" if products and not self._shared() else "static"

    def shares(self) -> tuple[tuple[str, str], ...]:
        """Pairs of an array that is read and one that is written that may be one and the same memory."""
        return tuple(
            (name, value.name)
            for name in self.given
            for value in self.schedule.values.values()
            if value.output and self._same(name, value) and self._in_time(name, value)
        )

    def _same(self, name: str, value: Value) -> bool:
        one, two = ([self.size(axis) for axis in self.axes[n]] for n in (name, value.name))
        return one == two and bool(one) and self.dtypes[name] == self.dtypes[value.name]

    def _in_time(self, name: str, value: Value) -> bool:
        """Whether every element is read for the last time before it is written, or in the same place of a loop."""
        if value.shared or value.added or value.kind != "pointwise" or value.home is None:
            return False
        order = self.grouped(value.axes)
        own = [self.counter(group) for group in order]
        for node, at in self.reads.get(name, []):
            if node is None or at is None or len(at) != len(own):
                return False
            inside = [here for here, group in zip(at, order, strict=True) if group[0] in self.schedule.fixed]
            if inside != [here for here, group in zip(own, order, strict=True) if group[0] in self.schedule.fixed]:
                return False
            if not (node < value.home or (node == value.home and list(at) == own)):
                return False
        return name in self.reads


def check(
    lines: Sequence[Line], axes: Mapping[str, tuple[str, ...]], outputs: frozenset[str], dtypes: Mapping[str, str]
) -> None:
    """Refuse what has no axes or no type, before anything is written."""
    made = {term.name for line in lines for term in line.left}
    for line in lines:
        for name in (*line.reads, *(term.name for term in line.left)):
            if name not in axes:
                raise InputError(f"the axes of {name} are not known, in line: {line}")
            if (name not in made or name in outputs) and dtypes.get(name) not in STORED:
                raise InputError(f"{name} is {dtypes.get(name)}, not one of {', '.join(STORED)}, in line: {line}")
