"""Matrix products inside of a turn: where the factors lie, which are turned or packed, what they are added to.

Those in float are made of tiles, those in double by a library.
"""

from __future__ import annotations

from dataclasses import dataclass

from learncost.equation.errors import InputError
from learncost.equation.table import Product, Term
from learncost.readings.emit.c.arrays import STORED, Expression, Storage
from learncost.readings.emit.c.loops import Loops
from learncost.readings.emit.c.schedule import Value


@dataclass(frozen=True)
class _Factor:
    """A matrix in memory: its first element, the distance between the places of its two axes, how it is stored."""

    text: str
    strides: tuple[str, str]
    type: str

    @property
    def turned(self) -> _Factor:
        return _Factor(self.text, (self.strides[1], self.strides[0]), self.type)


class Library(Loops):
    """Writes the products."""

    def product(self, value: Value) -> None:
        """One call: C = A B, or C += A B where the turns of the blocks add to it."""
        line = value.line
        assert isinstance(line, Product)
        (a_term, b_term) = line.right
        assert isinstance(a_term, Term)
        assert isinstance(b_term, Term)
        own = set(self.schedule.inner(value.space)) | ({self.schedule.block[0]} if self.schedule.block else set())
        (row,) = (x for x in value.axes if x in own and x in a_term.axes and x not in b_term.axes)
        (column,) = (x for x in value.axes if x in own and x in b_term.axes and x not in a_term.axes)
        (summed,) = (x for x in a_term.axes if x in own and x in b_term.axes and x not in value.axes)
        self.write(f"/* {line} */")
        c = self._matrix(value.axes, self.storage(value), str(row), str(column))
        if c.type != self.real:
            raise InputError(f"a product cannot be stored as {c.type}, in line: {line}")
        if c.strides[1] != "1":
            a_term, b_term, c, row, column = b_term, a_term, c.turned, column, row
        if c.strides[1] != "1":
            raise InputError(f"a product of a library needs an axis with neighbouring places, in line: {line}")
        tiled = self.real == "float"
        if tiled:
            name, turned, left, right = self._tiled(a_term, b_term, str(row), str(summed), str(column))
        else:
            name = f"product_{self.real}"
            a = self._factor(a_term, str(row), str(summed))
            b = self._factor(b_term, str(summed), str(column))
            (a_turned, a_stride), (b_turned, b_stride) = self._turned(a, line), self._turned(b, line)
            turned, left, right = f"{a_turned}, {b_turned}, ", f"{a.text}, {a_stride}", f"{b.text}, {b_stride}"
        extents = ", ".join(map(self._extent, (row, column, summed)))
        self.write(
            f"{name}({turned}{extents},",
            f"              {left},",
            f"              {right},",
            f"              {1 if value.added or value.shared else 0}, {c.text}, {c.strides[0]});",
        )

    def _tiled(self, a_term: Term, b_term: Term, row: str, summed: str, column: str) -> tuple[str, str, str, str]:
        """The function of tiles, whether the left factor is turned, the left factor, the right one in strips.

        A product of arrays in bf16 takes what the kernel made as bf16 too.
        """
        types = [self._lies(term).type for term in (a_term, b_term) if term.name not in self.schedule.values]
        cell = "pair" if types and set(types) == {"bf16"} else "float"
        right = self._packed(b_term, summed, column, cell)
        if cell == "pair":
            return f"tiled_{cell}", "", self._packed(a_term, summed, row, cell, rows=True), right
        a = self._factor(a_term, row, summed)
        turned, stride = self._turned(a, a_term)
        return f"tiled_{cell}", f"{turned}, ", f"{a.text}, {stride}", right

    def _packed(self, term: Term, inner: str, outer: str, cell: str, rows: bool = False) -> str:
        """Where a packed factor begins, in rows or in strips, and its length along the summed axis.

        What all blocks read is packed once a turn, all else once a block.
        """
        axes = tuple(map(str, term.axes))
        whole = not self.schedule.steps & set(axes)
        depth = self.turn if whole else self.base
        bounds, self.bounds = self.bounds, None if whole else self.bounds
        first, second = (outer, inner) if rows else (inner, outer)
        source = self._matrix(axes, self._lies(term), first, second)
        turned, stride = self._turned(source, term)
        length = self._extent(inner)
        extents = f"{self._extent(first)}, {self._extent(second)}"
        self.bounds = bounds
        form = "rows" if rows else "strips"
        name = f"{self.names.of(term.name)}_{form}_of_{self.counter((inner,))}"
        if ("packed", name) not in self.blocks[depth].memo:
            self.blocks[depth].memo["packed", name] = Expression(name, depth)
            block = self.schedule.block[0] if self.schedule.block else ""
            sizes = [self.block_size if axis == block else self.size(axis) for axis in (inner, outer)]
            self.scratch[name] = (cell, f"{form.upper()}({cell}, {', '.join(sizes)})")
            self.blocks[depth].lines.append(
                f"{form}_{cell}_{source.type}({turned}, {name}, {extents}, {source.text}, {stride});"
            )
        firsts = [self._range(axis)[0] if whole else "0" for axis in (inner, outer)]
        offset = f"{form.upper()[:-1]}({cell}, {length}, {', '.join(firsts)})"
        return f"{name if firsts == ['0', '0'] else f'{name} + {offset}'}, {length}"

    def _extent(self, axis: object) -> str:
        """How many places of an axis the product goes over."""
        axis = str(axis)
        first, last = self._range(axis)
        return last if first == "0" else f"{last} - {first}"

    def _range(self, axis: str) -> tuple[str, str]:
        block = self.schedule.block
        if block and axis == block[0]:
            counter = self.counter((axis,))
            return f"from_{counter}", f"to_{counter}"
        if self.bounds and axis == self.bounds[0]:
            return self.bounds[1:]
        return "0", self.size(axis)

    @staticmethod
    def _turned(factor: _Factor, line: Product | Term) -> tuple[int, str]:
        if factor.strides[1] == "1":
            return 0, factor.strides[0]
        if factor.strides[0] == "1":
            return 1, factor.strides[1]
        raise InputError(f"a product of a library needs an axis with neighbouring places, in line: {line}")

    def _lies(self, term: Term) -> Storage:
        """The memory of a factor: an array that the kernel reads, or what it made."""
        value = self.schedule.values.get(term.name)
        if value is not None:
            return self.storage(value)
        self.given.setdefault(term.name)
        self.reads.setdefault(term.name, []).append((self.node, None))
        return Storage(self.names.of(term.name), self.axes[term.name], STORED[self.dtypes[term.name]])

    def _factor(self, term: Term, first: str, second: str) -> _Factor:
        """A factor as it lies in memory, or as a copy where it is not stored as the product takes it."""
        axes, store = tuple(map(str, term.axes)), self._lies(term)
        if store.type == self.real:
            return self._matrix(axes, store, first, second)
        return self._copied(axes, store, first, second)

    def _matrix(self, axes: tuple[str, ...], store: Storage, first: str, second: str) -> _Factor:
        """The part of an array that two axes span, all others standing where they are."""
        kept = [axis for axis in axes if len(store.axes) == len(axes) or axis in store.axes]
        text, i = "", 0
        while i < len(kept):
            axis = kept[i]
            group = self.group(axis)
            length = 1
            if axis in (first, second):
                index = "0" if store.block and axis == store.block else self._range(axis)[0]
            else:
                index, length = self.positions[group].text, len(group)
                if store.block == axis:
                    raise InputError(f"a product cannot read {store.name} row by row")
            extent = self.block_size if store.block == axis else self.count(store.axes[i : i + length])
            if text in ("", "0"):
                text = index
            else:
                text = (
                    (f"({text})" if " + " in text else text) + f" * {extent}" + (f" + {index}" if index != "0" else "")
                )
            i += length
        strides = []
        for axis in (first, second):
            after = range(kept.index(axis) + 1, len(kept))
            sizes = [self.block_size if store.block == kept[j] else self.size(store.axes[j]) for j in after]
            strides.append(" * ".join(sizes) or "1")
        return _Factor(
            f"{store.name} + {text}" if text not in ("", "0") else store.name, (strides[0], strides[1]), store.type
        )

    def _copied(self, axes: tuple[str, ...], store: Storage, first: str, second: str) -> _Factor:
        """A copy in the type of the numbers: of what all blocks read once a turn, else once a block."""
        block = self.schedule.block[0] if self.schedule.block else ""
        one, two = (axis for axis in axes if axis in (first, second))
        whole = not self.schedule.steps & set(axes)
        depth = self.turn if whole else self.base
        copy = Storage(f"{store.name}_copy", (one, two), self.real, block if block in (one, two) else "")
        if ("copy", copy) not in self.blocks[depth].memo:
            self.blocks[depth].memo["copy", copy] = Expression(copy.name, depth)
            sizes = [self.block_size if axis == copy.block else self.size(axis) for axis in (one, two)]
            self.scratch[copy.name] = (self.real, " * ".join(sizes))
            bounds, self.bounds = self.bounds, None if whole else self.bounds
            found = self._matrix(axes, store, one, two)
            extents = self._extent(one), self._extent(two)
            to = self._matrix((one, two), copy, one, two)
            self.bounds = bounds
            number = f"({found.text})[i * ({found.strides[0]}) + j * ({found.strides[1]})]"
            self.blocks[depth].lines += [
                f"for (place i = 0; i < {extents[0]}; i++)",
                f"    for (place j = 0; j < {extents[1]}; j++)",
                f"        ({to.text})[i * ({to.strides[0]}) + j] = {self.widened(number, store.type)};",
            ]
        return self._matrix((one, two), copy, first, second)
