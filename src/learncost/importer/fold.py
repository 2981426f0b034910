"""Roll equal blocks of a numbered container into a loop: their lines once, with stacks of each block's own weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from learncost.importer.axes import AxisClass, equal, leaves
from learncost.importer.equations import Equation, Fold, Item
from learncost.importer.text import TextWriter
from learncost.importer.views import StoredValue
from learncost.ir.dataclass import dataclass, field

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def checkpoints_of(item: Equation) -> list[str]:
    """Return the numbers of the checkpoints around a line."""
    return re.findall(r"\d+", item.again)


@dataclass(frozen=True)
class LineFacts:
    """Facts about all lines: which values learn, and how many lines are in each checkpoint, by its number."""

    learns: Callable[[StoredValue], object]
    lines: Mapping[str, int]

    @staticmethod
    def at(items: Iterable[Item], learns: Callable[[StoredValue], object]) -> LineFacts:
        """Return the facts about lines; those of loops count separately."""
        plain = (item for item in items if isinstance(item, Equation))
        return LineFacts(learns, Counter(number for item in plain for number in checkpoints_of(item)))


@dataclass
class ModuleBlock:
    """The lines of one numbered module, or of several modules that alternate, and their text.

    first   the number of its first module
    """

    items: list[Equation]
    containers: Sequence[str]
    first: int = 0
    signature: tuple[str, ...] = ()
    externals: list[StoredValue] = field(default_factory=list)
    made: list[StoredValue] = field(default_factory=list)
    axes: list[AxisClass] = field(default_factory=list)

    @cached_property
    def steps(self) -> list[tuple[str, str]]:
        """Return the module path and operation of every line; blocks that differ here are not compared further."""
        return [(_relative(item.module, self.containers, self.first), item.operator) for item in self.items]

    def look(self, looks: LineFacts) -> None:
        """Return its lines as text in which names, axes and checkpoints are numbered in order of appearance."""
        made = {read.view.stored for item in self.items for read in item.left}
        writer = _Numbering({}, made=made, learns=looks.learns)
        again = Counter(number for item in self.items for number in checkpoints_of(item))
        places = {number: f"{place}" for place, number in enumerate(again)}
        places |= {number: f"shared by {id(self)}" for number in again if again[number] < looks.lines[number]}
        self.signature = tuple(
            f"{writer.line(item).rpartition(' @ ')[0]} @ {path} {operator} "
            + re.sub(r"\d+", lambda match: places[match[0]], item.again)
            for item, (path, operator) in zip(self.items, self.steps, strict=True)
        )
        self.externals, self.made, self.axes = writer.externals, writer.numbered, list(writer.letters)


@dataclass
class _Numbering(TextWriter):
    made: set[StoredValue] = field(default_factory=set)
    learns: Callable[[StoredValue], object] = bool
    externals: list[StoredValue] = field(default_factory=list)
    numbered: list[StoredValue] = field(default_factory=list)

    def name(self, stored: StoredValue) -> str:
        if stored not in self.names:
            if stored in self.made:
                self.names[stored] = f"made{len(self.numbered)}"
                self.numbered.append(stored)
            else:
                shape = " ".join(self.letter(leaf) for axis in stored.axes for leaf in axis.leaves)
                kind = stored.kind if stored.kind != "value" else "input"
                kind = "carried" if kind in ("input", "value") else kind
                self.names[stored] = f"given{len(self.externals)}({kind} {shape} {self.learns(stored)})"
                self.externals.append(stored)
        return self.names[stored]

    def letter(self, axis: AxisClass) -> str:
        root = axis.root
        if root not in self.letters:
            self.letters[root] = f"a{len(self.letters)}_{root.size}_"
        return self.letters[root]


def numbered(path: str, containers: Sequence[str]) -> tuple[str, int, str] | None:
    """Return the container that a path is in, the number of its block there, and the rest of the path."""
    for container in containers:
        if container and not path.startswith(f"{container}."):
            continue
        number, _, inner = path[len(container) :].lstrip(".").partition(".")
        if number.isdigit():
            return container, int(number), inner
    return None


def _relative(path: str, containers: Sequence[str], first: int) -> str:
    """Return a path with the number of its block relative to the first of the pattern."""
    if (place := numbered(path, containers)) is None:
        return path
    container, number, inner = place
    return f"{container}.{number - first}.{inner}"


def containers_of(items: Sequence[Equation]) -> list[str]:
    """Return the paths of containers of numbered modules, outer ones first."""
    repeated_paths: dict[str, None] = {}
    for item in items:
        for match in _NUMBER.finditer(item.module):
            repeated_paths.setdefault(item.module[: match.start()])
    return sorted(repeated_paths, key=lambda path: (path.count(".") + bool(path), path))


def starred(path: str, containers: Sequence[str], first: int, several: bool) -> str:
    """Return a path with * for the number of the block; in a pattern of several blocks, with its position in the
    pattern.
    """
    if (place := numbered(path, containers)) is None:
        return path
    container, number, inner = place
    return ".".join(part for part in (container, f"*{number - first}" if several else "*", inner) if part)


LONGEST_PATTERN = 8
"""The longest pattern of alternating blocks, such as local and global attention, that is looked for."""


def every_item(items: Iterable[Item]) -> Iterator[Item]:
    """Yield all lines and loops, the lines of a loop behind it."""
    for item in items:
        yield item
        if isinstance(item, Fold):
            yield from every_item(item.body)


def with_scans(equations: Iterable[Equation]) -> list[Item]:
    """Return the lines with those between the ends of a scan as its loop."""
    around: list[list[Item]] = [[]]
    for equation in equations:
        loop = equation.scan
        if loop is None:
            around[-1].append(equation)
        elif not loop.made:
            around.append([])
        else:
            loop.body = around.pop()
            around[-1].append(loop)
    return around[0]


def folded(items: list[Item], outputs: Sequence[StoredValue], learns: Callable[[StoredValue], object]) -> list[Item]:
    """Return the lines with equal blocks of numbered containers rolled into loops."""
    every = containers_of([item for item in items if isinstance(item, Equation)])
    looks = LineFacts.at(items, learns)
    for container in every:
        items = _Blocks([container], outputs, looks, loop=False).folded(items)
    for parent in dict.fromkeys(container.rpartition(".")[0] for container in every if container):
        several = [container for container in every if container and container.rpartition(".")[0] == parent]
        items = _Blocks(several, outputs, looks, loop=True).folded(items)
    return items


def _number(item: Item, containers: Sequence[str]) -> int | None:
    """Return the number of the block that a line is in."""
    place = None if isinstance(item, Fold) else numbered(item.module, containers)
    return place and place[1]


@dataclass(frozen=True)
class _Blocks:
    """Equal blocks of one or several containers.

    outputs  values that are read after all lines
    loop     include the code of the loop, such as `for layer, norm in zip(layers, norms): x = x + layer(norm(x))`;
             every loop-carried value must then be read after the loop, as a gradient of zeros would be added to
             otherwise
    """

    containers: Sequence[str]
    outputs: Sequence[StoredValue]
    looks: LineFacts
    loop: bool

    def folded(self, items: list[Item]) -> list[Item]:
        """Roll each run of equal blocks among consecutive lines of numbered modules."""
        blocks: list[tuple[int | None, list[Item]]] = []
        for item in items:
            number = _number(item, self.containers)
            if blocks and (number == blocks[-1][0] or (self.loop and number is None)) and not isinstance(item, Fold):
                blocks[-1][1].append(item)
            else:
                blocks.append((number, [item]))
        result: list[Item] = []
        place = 0
        while place < len(blocks):
            stop = place + 1
            while stop < len(blocks) and self._follows(blocks[stop - 1][0], blocks[stop][0]):
                stop += 1
            lines = [item for _, inside in blocks[place:stop] for item in inside]
            numbers = [number for number, _ in blocks[place:stop]]
            if stop - place > 1 and len({*numbers}) == len(numbers):  # it returns to no block
                others = [*result, *(item for _, inside in blocks[stop:] for item in inside)]
                iterations = [
                    (number, [item for item in inside if isinstance(item, Equation)])
                    for number, inside in blocks[place:stop]
                    if number is not None
                ]
                lines = self._in_order(iterations, {stored for item in others for stored in item.reads})
            result += lines
            place = stop
        return result

    def _follows(self, number: int | None, later: int | None) -> bool:
        return number is not None and later is not None and (later > number or not self.loop)

    def _in_order(self, blocks: list[tuple[int, list[Equation]]], elsewhere: set[StoredValue]) -> list[Item]:
        """Roll each run of equal blocks, given in the order of their numbers."""
        result: list[Item] = []
        place = 0
        while place < len(blocks):
            for period in range(1, LONGEST_PATTERN + 1):
                fold, length, rest = self._from(blocks, place, period, {*elsewhere, *self.outputs})
                if fold is not None:
                    result += [fold, *rest]
                    place += length
                    break
            else:
                result += blocks[place][1]
                place += 1
        return result

    def _from(
        self, every: Sequence[tuple[int, list[Equation]]], start: int, period: int, read_elsewhere: set[StoredValue]
    ) -> tuple[Fold | None, int, list[Equation]]:
        """Return the loop that begins with block `start`, the number of blocks in it, and the lines after the last
        block of a `loop`; none if fewer than two iterations are equal.
        """
        blocks, iterations = every[start:], list[ModuleBlock]()
        rest: list[Equation] = []
        for place in range(0, len(blocks) - period + 1, period):
            group = blocks[place : place + period]
            if [number for number, _ in group] != list(range(group[0][0], group[0][0] + period)):
                break
            block = ModuleBlock([item for _, lines in group for item in lines], self.containers, group[0][0])
            if not iterations:
                iterations.append(block)
                continue
            length = len(iterations[0].items)
            if (block.steps[:length] if self.loop else block.steps) != iterations[0].steps:
                break
            if len(iterations) == 1:
                iterations[0].look(self.looks)
            block.look(self.looks)
            if block.signature != iterations[0].signature:
                if not self.loop or block.signature[:length] != iterations[0].signature:
                    break
                rest = block.items[length:]
                block = ModuleBlock(block.items[:length], self.containers, block.first)
                block.look(self.looks)
                if block.signature != iterations[0].signature:  # a checkpoint of the block extends beyond it
                    rest = []
                    break
                iterations.append(block)
                break
            iterations.append(block)
        while len(iterations) > 1:
            folded_places = range(start, start + len(iterations) * period)
            outside = (lines for place, (_, lines) in enumerate(every) if place not in folded_places)
            later = {stored for lines in (*outside, rest) for item in lines for stored in item.reads}
            if (fold := self._repeat(iterations, read_elsewhere | later)) is not None:
                return fold, len(iterations) * period, rest
            iterations.pop()
            rest = []
        return None, 0, []

    def _repeat(self, iterations: Sequence[ModuleBlock], read_later: set[StoredValue]) -> Fold | None:
        """Return equal blocks as a loop; None if an iteration reads a value that is neither loop-carried nor shared."""
        first, last = iterations[0], iterations[-1]
        carry: list[tuple[StoredValue, StoredValue, StoredValue]] = []
        each: dict[StoredValue, list[StoredValue]] = {}
        for stored, *others in zip(*(iteration.externals for iteration in iterations), strict=True):
            if {*others} == {stored}:
                if stored.kind == "running":
                    return None  # one statistic, which all iterations update
            elif others[0] in first.made:
                number = first.made.index(others[0])
                if others != [iteration.made[number] for iteration in iterations[:-1]]:
                    return None
                if not has_same_sizes(stored, first.made[number]):
                    return None
                carry.append((stored, first.made[number], last.made[number]))
            elif any(other.kind in ("value", "input", "chosen") for other in (stored, *others)) or len(
                {stored, *others}
            ) < len(iterations):
                return None
            else:
                each[stored] = [stored, *others]
        if any(stored in read_later for several in each.values() for stored in several):
            return None  # a line outside reads a single iteration's input
        handed = {made for *_, made in carry}
        if any(made in read_later and made not in handed for iteration in iterations for made in iteration.made):
            return None
        if not carry or len({made for _, made, _ in carry}) < len(carry) or (self.loop and not handed <= read_later):
            return None
        join_blocks(iterations)
        for before, updated, _ in carry:
            for leaf, leaf_after in zip(leaves(before.axes), leaves(updated.axes), strict=True):
                leaf.join(leaf_after)
        numbers = [block for item in first.items if (block := _number(item, self.containers)) is not None]
        for item in first.items:
            item.module = starred(item.module, self.containers, numbers[0], max(numbers) > min(numbers))
        return Fold(len(iterations), list(first.items), carry, each)


def join_blocks(iterations: Sequence[ModuleBlock]) -> None:
    """Unify the axes of equal blocks."""
    for iteration in iterations[1:]:
        for mine, theirs in zip(iterations[0].axes, iteration.axes, strict=True):
            mine.join(theirs)


def has_same_sizes(first: StoredValue, second: StoredValue) -> bool:
    """Return whether two values have axes of the same sizes in the same order."""
    ours, theirs = [*leaves(first.axes)], [*leaves(second.axes)]
    return len(ours) == len(theirs) and all(equal(a.size, b.size) for a, b in zip(ours, theirs, strict=True))


def read_after_update(fold: Fold) -> Iterator[tuple[StoredValue, StoredValue]]:
    """Yield the loop-carried values whose old value is read after the new one was made."""
    for before, made, _ in fold.carry:
        is_after = False
        for item in fold.body:
            if is_after and before in item.reads:
                yield before, made
                break
            is_after |= made in item.made
