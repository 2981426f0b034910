"""What a C text is written with: blocks one inside the other, names, and where the elements of arrays lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from learncost.equation.count import base
from learncost.equation.table import Read
from learncost.readings.emit.c.schedule import Node, Schedule, Value
from learncost.readings.emit.c.sides import groups
from learncost.readings.emit.identifiers import Identifiers

Group: TypeAlias = tuple[str, ...]
STORED = {
    "fp32": "float",
    "fp64": "double",
    "bf16": "bf16",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "bool": "unsigned char",
}


class Expression(NamedTuple):
    """C text, the depth of the innermost block that it needs, and what it is: real, index or bool."""

    text: str
    depth: int
    type: str = "real"


class Index(NamedTuple):
    """A position along an axis or a group of axes."""

    text: str
    depth: int


Positions: TypeAlias = Mapping[Group, Index]


@dataclass
class Block:
    """A block of C that is being written: its statements, what follows it, and the numbers that it knows."""

    head: str = ""
    pragma: str = ""
    lines: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    memo: dict[tuple[object, ...], Expression] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Storage:
    """Where an array lies: its C name, its axes, how it is stored, and the axis of which it holds one block."""

    name: str
    axes: tuple[str, ...]
    type: str
    block: str = ""


_RESERVED = (
    *("auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern"),
    *("float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed"),
    *("sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while"),
    *("place", "bf16", "memory", "thread", "threads", "turn", "sums", "sum", "one", "number", "i", "j"),
    *("pair", "pairs", "lanes", "loose", "LANES", "TALL", "first"),
    *("bind", "own", "own_memory", "own_size", "exp", "log", "pow", "free", "abort"),
)


class Arrays:
    """The open blocks of a function, its names and sizes, and its arrays."""

    def __init__(
        self,
        schedule: Schedule,
        axes: Mapping[str, tuple[str, ...]],
        dtypes: Mapping[str, str],
        real: str,
    ) -> None:
        self.schedule = schedule
        self.axes = axes
        self.dtypes = dtypes
        self.real = real
        self.names = Identifiers(_RESERVED)
        self.blocks: list[Block] = [Block()]
        self.positions: dict[Group, Index] = {}
        self.sizes: dict[str, str] = {}
        self.turn = self.base = 0  # how deep the blocks of a turn lie, and those of a row
        self.node: Node | None = None
        self.given: dict[str, None] = {}
        self.scratch: dict[str, tuple[str, str]] = {}
        self.reads: dict[str, list[tuple[Node | None, tuple[str, ...] | None]]] = {}
        lines = [value.line for value in schedule.values.values()]
        apart = {*schedule.steps}
        for value in schedule.values.values():
            if value.kind == "product":
                apart |= set(schedule.inner(value.space))
        for value in schedule.values.values():  # so that no number inside takes the name of an array
            for name in (value.name, *value.line.reads):
                self.names.of(name)
        self.groups = groups(lines, frozenset(apart), schedule.turns)

    # Blocks.

    def open(self, head: str, pragma: str = "") -> Block:
        self.blocks.append(Block(head, pragma))
        return self.blocks[-1]

    def close(self) -> None:
        block = self.blocks.pop()
        if block.lines:
            outer = self.blocks[-1].lines
            outer += [block.pragma] if block.pragma else []
            outer.append(f"{block.head} {{".strip())
            outer.extend(f"    {line}" if line and not line.startswith("#") else line for line in block.lines)
            outer.append("}")
            outer.extend(block.after)

    def write(self, *lines: str) -> None:
        self.blocks[-1].lines.extend(lines)

    def fresh(self, wish: str) -> str:
        """A name that no open block has, nor an array."""
        taken = {name for block in self.blocks for name in block.names}
        taken |= {self.names.of(name) for name in (*self.given, *self.schedule.outputs)}
        name, number = wish, 2
        while name in taken:
            name, number = f"{wish}_{number}", number + 1
        return name

    # Axes and arrays.

    def size(self, axis: str) -> str:
        """The number of places along an axis, as C."""
        if axis.isdigit():
            return axis
        name = base(axis)
        return self.sizes.setdefault(name, self.names.of(name, "size"))

    def count(self, axes: Sequence[str]) -> str:
        return " * ".join(map(self.size, axes)) or "1"

    def group(self, axis: str) -> Group:
        return self.groups.get(axis, (axis,))

    def grouped(self, axes: Sequence[str]) -> tuple[Group, ...]:
        return tuple(dict.fromkeys(map(self.group, axes)))

    def counter(self, group: Group) -> str:
        return self.names.of("i_" + "_".join(group), "position")

    def storage(self, value: Value) -> Storage:
        """Where the value of a line is put together: the output itself, a thread's sums, or memory of the thread."""
        schedule = self.schedule
        own = self.names.of(value.name)
        if value.shared:
            return Storage(f"{own}_sums", value.axes, self.total(value))
        if value.output:
            return Storage(own, self.axes[value.name], STORED[self.dtypes[value.name]])
        axes = tuple(axis for axis in value.axes if axis not in schedule.turns)
        if not value.added:
            axes = tuple(axis for axis in axes if axis not in schedule.sequence)
            if not schedule.crosses(value):
                axes = tuple(axis for axis in axes if axis not in schedule.fixed)
        block = schedule.block[0] if schedule.block and not value.added else ""
        block = block if block in axes else ""
        kind = {"bool": "unsigned char", "index": "int64_t"}.get(value.type, self.real)
        store = Storage(f"{self.names.of(self.schedule.over.get(value.name, value.name))}_rows", axes, kind, block)
        points = [self.block_size if axis == block else self.size(axis) for axis in axes]
        self.scratch.setdefault(store.name, (store.type, " * ".join(points) or "1"))
        return store

    def total(self, value: Value) -> str:
        """In what all turns are added: a scalar, such as the loss, is one of so many numbers that it takes double."""
        return self.real if value.axes else "double"

    @property
    def block_size(self) -> str:
        assert self.schedule.block is not None
        axis, places = self.schedule.block
        return str(places) if places else self.size(axis)

    def lengths(self, axes: Sequence[str | Read]) -> list[int]:
        """How many axes every index of `indices` is for."""
        result: list[int] = []
        i = 0
        while i < len(axes):
            axis = axes[i]
            result.append(1 if isinstance(axis, Read) else len(self.group(axis)))
            i += result[-1]
        return result

    def element(self, shape: Sequence[str], lengths: Sequence[int], at: Sequence[Index], block: str = "") -> str:
        """The offset of an element in an array of a shape; an index may stand for several axes."""
        text, i = "", 0
        for place, length in zip(at, lengths, strict=True):
            index, extent = place.text, self.count(shape[i : i + length])
            if length == 1 and block and shape[i] == block:
                index, extent = f"({index} - from_{self.counter((block,))})", self.block_size
            if text and index == "0":
                text = f"({text}) * {extent}" if " + " in text else f"{text} * {extent}"
            elif text and text != "0":
                text = f"({text}) * {extent} + {index}" if " + " in text else f"{text} * {extent} + {index}"
            else:
                text = index
            i += length
        return text or "0"

    def address(self, value: Value, env: Positions) -> str:
        """The element of the memory where a value lies."""
        store = self.storage(value)
        whole = len(store.axes) == len(value.axes)
        used = [group for group in self.grouped(value.axes) if whole or group[0] in store.axes]
        element = self.element(store.axes, [len(group) for group in used], [env[group] for group in used], store.block)
        return f"{store.name}[{element}]"

    def widened(self, text: str, stored: str) -> str:
        if stored == "bf16":
            return f"from_bf16({text})"
        return f"(double){text}" if stored == "float" and self.real == "double" else text

    def narrowed(self, text: str, stored: str) -> str:
        if stored == "bf16":
            return f"to_bf16({text})"
        return f"(float){text}" if stored == "float" and self.real == "double" else text
