"""What is written inside of the loops: blocks of C, and the numbers of a kernel as C expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from learncost.equation.count import base
from learncost.equation.errors import InputError
from learncost.equation.table import Condition, Literal, Operand, Product, Read, Sum, Term, Word
from learncost.readings.emit.c.schedule import Node, Schedule, Value, groups
from learncost.readings.emit.identifiers import Identifiers

Group: TypeAlias = tuple[str, ...]
STORED = {"fp32": "float", "fp64": "double", "bf16": "bf16", "int64": "int64_t", "bool": "unsigned char"}


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


_SIGNS = {"divide": "/", "less": "<", "equal": "=="}
_RESERVED = (
    *("auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern"),
    *("float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed"),
    *("sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while"),
    *("place", "bf16", "memory", "thread", "threads", "turn", "sums", "sum", "one", "number", "i", "j"),
    *("bind", "own", "own_memory", "own_size", "exp", "log", "pow", "free", "abort"),
)


class Writer:
    """Writes expressions into the innermost block that they need; blocks are open one inside the other."""

    def __init__(
        self,
        schedule: Schedule,
        axes: Mapping[str, tuple[str, ...]],
        dtypes: Mapping[str, str],
        constants: Mapping[str, int],
        real: str,
    ) -> None:
        self.schedule = schedule
        self.axes = axes
        self.dtypes = dtypes
        self.constants = constants
        self.real = real
        self.suffix = real
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
            return Storage(f"{own}_sums", value.axes, self.real)
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

    @property
    def block_size(self) -> str:
        assert self.schedule.block is not None
        axis, places = self.schedule.block
        return str(places) if places else self.size(axis)

    def indices(self, axes: Sequence[str | Read], env: Positions) -> list[Index]:
        """An index for every group of axes and for every read one, one after another."""
        result: list[Index] = []
        i = 0
        while i < len(axes):
            axis = axes[i]
            if isinstance(axis, Read):
                at = self.number(axis.at, env)
                result.append(Index(at.text if at.type == "index" else f"(place){at.text}", at.depth))
                i += 1
                continue
            group = self.group(axis)
            result.append(env[group])
            i += len(group)
        return result

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

    # Numbers.

    def local(self, wish: str, key: tuple[object, ...], text: str, depth: int, kind: str) -> Expression:
        """A number with a name, in the outermost block that has all it needs."""
        block = self.blocks[depth]
        name = self.fresh(wish)
        block.names.add(name)
        declared = {"real": self.real, "index": "place", "bool": "int"}[kind]
        block.lines.append(f"const {declared} {name} = {text};")
        block.memo[key] = Expression(name, depth, kind)
        return block.memo[key]

    def known(self, key: tuple[object, ...]) -> Expression | None:
        return next((block.memo[key] for block in reversed(self.blocks) if key in block.memo), None)

    def number(self, operand: Operand, env: Positions) -> Expression:
        """An operand at a position."""
        if isinstance(operand, Literal):
            return self.literal(operand)
        value = self.schedule.values.get(operand.name)
        if value is None:
            return self.load_given(operand, env)
        return self.made(value, self.inside(value, operand, env))

    def inside(self, value: Value, term: Term, env: Positions) -> Positions:
        """Where the axes of a value stand when a term reads it."""
        result: dict[Group, Index] = {}
        at = self.indices(term.axes, env)
        i = 0
        for index, length in zip(at, self.lengths(term.axes), strict=True):
            result[tuple(value.axes[i : i + length])] = index
            i += length
        return result

    def literal(self, literal: Literal) -> Expression:
        mark = "f" if self.real == "float" else ""
        if not literal.sizes:
            if literal.value == float("-inf"):
                return Expression("LOWEST", 0)
            text = repr(float(literal.value))
            return Expression(f"{text}{mark}" if literal.value >= 0 else f"({text}{mark})", 0)
        key = ("literal", literal)
        found = self.known(key)
        if found:
            return found
        points = " * ".join(f"(double){self.size(size)}" for size in literal.sizes)
        power = f"{literal.value!r} * pow({points}, {literal.power!r})"
        return self.local("number", key, f"({self.real})({power})", 0, "real")

    def load_given(self, term: Term, env: Positions) -> Expression:
        """An element of an array that the kernel reads."""
        self.given.setdefault(term.name)
        at = self.indices(term.axes, env)
        texts = tuple(index.text for index in at)
        key = ("given", term.name, texts)
        self.reads.setdefault(term.name, []).append((self.node, texts))
        found = self.known(key)
        if found:
            return found
        dtype = self.dtypes[term.name]
        shape = self.axes[term.name]
        own = self.names.of(term.name)
        text = f"{own}[{self.element(shape, self.lengths(term.axes), at)}]"
        kind = {"int64": "index", "bool": "bool"}.get(dtype, "real")
        depth = max((index.depth for index in at), default=0)
        return self.local(f"{own}_i", key, self.widened(text, STORED[dtype]), depth, kind)

    def widened(self, text: str, stored: str) -> str:
        if stored == "bf16":
            return f"from_bf16({text})"
        return f"(double){text}" if stored == "float" and self.real == "double" else text

    def narrowed(self, text: str, stored: str) -> str:
        if stored == "bf16":
            return f"to_bf16({text})"
        return f"(float){text}" if stored == "float" and self.real == "double" else text

    def made(self, value: Value, env: Positions) -> Expression:
        """A value of the kernel at a position: from memory, or computed here."""
        groups_ = self.grouped(value.axes)
        at = [env[group] for group in groups_]
        key = ("made", value.name, tuple(index.text for index in at))
        found = self.known(key)
        if found:
            return found
        name = self.names.of(value.name)
        plain = value.kind != "pointwise"
        loaded = plain or (value.stored and value.reread and self.node and self.schedule.moment(self.node, value))
        if not loaded:
            text, depth = self.computed(value, env)
            return self.local(f"{name}_i" if value.stored else name, key, text, depth, value.type)
        text = self.address(value, env)
        depth = max([self.base, *(index.depth for index in at)])
        return self.local(f"{name}_i", key, self.widened(text, self.storage(value).type), depth, value.type)

    def address(self, value: Value, env: Positions) -> str:
        """The element of the memory where a value lies."""
        store = self.storage(value)
        whole = len(store.axes) == len(value.axes)
        used = [group for group in self.grouped(value.axes) if whole or group[0] in store.axes]
        element = self.element(store.axes, [len(group) for group in used], [env[group] for group in used], store.block)
        return f"{store.name}[{element}]"

    def computed(self, value: Value, env: Positions) -> tuple[str, int]:
        """The right side of a pointwise line at a position, and the depth that it needs."""
        line, left = value.line, value.line.left[0]
        if left.indexed:  # one number in a row of zeros
            number = self.number(line.right[0], env)
            tests, depth = [], number.depth
            for axis in left.axes:
                if isinstance(axis, Read):
                    at, here = self.number(axis.at, env), env[self.group(axis.axis)]
                    tests.append(f"{here.text} == {at.text}")
                    depth = max(depth, at.depth, here.depth)
            return f"{' && '.join(tests)} ? {number.text} : 0", depth
        numbers = [self.number(operand, env) for operand in line.right]
        depth = max((number.depth for number in numbers), default=0)
        texts = [number.text for number in numbers]
        if isinstance(line, Product):
            return " * ".join(texts), depth
        if isinstance(line, Sum):
            signed = "".join(
                f" {'-' if sign < 0 else '+'} {text}" for sign, text in zip(line.signs, texts, strict=True)
            )
            return signed.removeprefix(" + ").removeprefix(" ") if line.signs[0] > 0 else signed[1:], depth
        assert isinstance(line, Word)
        conditions = [self.condition(c, env) for c in line.where]
        if line.word == "zeros":
            return "0", 0
        if line.word in ("inside", "select") and len(texts) in (0, 2):
            depth = max([depth, *(c.depth for c in conditions)])
            holds = " && ".join(c.text for c in conditions)
            return holds if not texts else f"({holds}) ? {texts[0]} : {texts[1]}", depth
        if line.word == "eye":
            half = len(left.axes) // 2
            pairs = [
                (env[self.group(str(a))], env[self.group(str(b))])
                for a, b in zip(left.axes[:half], left.axes[half:], strict=True)
            ]
            return " && ".join(f"{a.text} == {b.text}" for a, b in pairs), max(i.depth for p in pairs for i in p)
        return self.primitive(line.word, texts), depth

    def primitive(self, word: str, texts: list[str]) -> str:
        if word == "select":
            return f"{texts[0]} ? {texts[1]} : {texts[2]}"
        if word == "maximum":
            return f"{texts[0]} > {texts[1]} ? {texts[0]} : {texts[1]}"
        if word in _SIGNS:
            return f" {_SIGNS[word]} ".join(texts)
        if word in ("exp", "log", "tanh", "erf", "sqrt"):
            return f"{word}_{self.real}({texts[0]})"
        raise InputError(f"a kernel in C cannot compute {word}")

    def condition(self, condition: Condition, env: Positions) -> Expression:
        """Whether a position is inside."""
        low, up = env[self.group(condition.lower)], env[self.group(condition.upper)]
        text = f"{low.text} {'<' if condition.strict else '<='} {up.text}"
        if condition.window is not None:
            text += f" && {up.text} < {low.text} + {self.size(condition.window)}"
        return Expression(text, max(low.depth, up.depth), "bool")
