"""The numbers of a kernel as C expressions, each written into the outermost block that has all it needs."""

from __future__ import annotations

from collections.abc import Sequence

from learncost.equation.errors import InputError
from learncost.equation.table import Condition, Literal, Operand, Product, Read, Sum, Term, Word
from learncost.readings.emit.c.arrays import STORED, Arrays, Expression, Group, Index, Positions
from learncost.readings.emit.c.schedule import Value

_SIGNS = {"divide": "/", "less": "<", "equal": "=="}


class Numbers(Arrays):
    """Writes operands and the right sides of lines."""

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
        kind = {"int64": "index", "uint8": "index", "bool": "bool"}.get(dtype, "real")
        depth = max((index.depth for index in at), default=0)
        return self.local(f"{own}_i", key, self.widened(text, STORED[dtype]), depth, kind)

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
        """Whether a position is inside; in 32 bits, of which a vector holds as many as of numbers."""
        low, up = env[self.group(condition.lower)], env[self.group(condition.upper)]
        text = f"(int){low.text} {'<' if condition.strict else '<='} (int){up.text}"
        if condition.window is not None:
            text += f" && (int){up.text} < (int){low.text} + (int){self.size(condition.window)}"
        return Expression(text, max(low.depth, up.depth), "bool")
