"""Roll equal blocks of a numbered container into a loop: their lines once, with stacks of each block's own weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from learncost.importer.axes import AxisClass, equal
from learncost.importer.equations import Equation
from learncost.importer.text import TextWriter
from learncost.importer.views import StoredValue
from learncost.ir.dataclass import dataclass, field

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def checkpoints_of(item: Equation) -> list[str]:
    """Return the numbers of the checkpoints around a line."""
    return re.findall(r"\d+", item.again)


@dataclass(frozen=True)
class Looks:
    """Facts about all lines: which values learn, and how many lines are in each checkpoint, by its number."""

    learns: Callable[[StoredValue], object]
    lines: Mapping[str, int]


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

    def look(self, looks: Looks) -> None:
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


@dataclass(eq=False)
class Fold:
    """Lines that run `count` times.

    count   a number, or an axis whose positions it runs over
    carry   the loop-carried values: the initial value, the first iteration's result, the last iteration's result
    each    the per-iteration inputs: that of the first iteration, with those of all
    stacks  the value of one position, with that of all
    keep    a value that an iteration makes, with that of all
    """

    count: int | AxisClass
    body: list[Item]
    carry: list[tuple[StoredValue, StoredValue, StoredValue]]
    each: dict[StoredValue, list[StoredValue]]
    start: dict[StoredValue, StoredValue] = field(default_factory=dict)  # the initial values of the loop-carried names
    stacks: dict[StoredValue, StoredValue] = field(default_factory=dict)
    keep: list[tuple[StoredValue, StoredValue]] = field(default_factory=list)

    @property
    def made(self) -> list[StoredValue]:
        """Return its results: the loop-carried values after the last iteration, and what it stacks."""
        return [*(last for *_, last in self.carry), *(stack for _, stack in self.keep)]

    @property
    def reads(self) -> list[StoredValue]:
        inside = {stored for item in self.body for stored in item.made} | self.stacks.keys()
        first = {before for before, *_ in self.carry}
        of_blocks = [stored for several in self.each.values() for stored in several]
        others = [s for item in self.body for s in item.reads if s not in inside and s not in self.each]
        return list(dict.fromkeys((*first, *of_blocks, *self.stacks.values(), *others)))


Item: TypeAlias = Equation | Fold


def lines_of(items: Iterable[Item]) -> Iterator[Equation]:
    """Yield all lines, those of loops once."""
    for item in items:
        if isinstance(item, Fold):
            yield from lines_of(item.body)
        else:
            yield item


def with_scans(equations: Iterable[Equation]) -> list[Item]:
    """Return the lines with those between the ends of a scan as its loop."""
    around: list[list[Item]] = [[]]
    for equation in equations:
        scan = equation.scan
        if scan is None:
            around[-1].append(equation)
        elif not scan.keep and not scan.carry:
            around.append([])
        else:
            body = around.pop()
            around[-1].append(Fold(scan.axis, body, scan.carry, {}, stacks=scan.each, keep=scan.keep))
    return around[0]


def folded(items: list[Item], outputs: Sequence[StoredValue], learns: Callable[[StoredValue], object]) -> list[Item]:
    """Return the lines with equal blocks of numbered containers rolled into loops."""
    plain = [item for item in items if isinstance(item, Equation)]
    every = containers_of(plain)
    looks = Looks(learns, Counter(number for item in plain for number in checkpoints_of(item)))
    for container in every:
        items = _fold_runs(items, [container], outputs, looks, loop=False)
    for parent in dict.fromkeys(container.rpartition(".")[0] for container in every if container):
        loop = [container for container in every if container and container.rpartition(".")[0] == parent]
        items = _fold_runs(items, loop, outputs, looks, loop=True)
    return items


def _fold_runs(
    items: list[Item], containers: Sequence[str], outputs: Sequence[StoredValue], looks: Looks, *, loop: bool
) -> list[Item]:
    """Roll each run of equal blocks among consecutive lines of numbered modules; with `loop`, of one or several
    containers, together with the code of the loop, such as `for layer, norm in zip(layers, norms): x = x +
    layer(norm(x))`.
    """
    blocks: list[tuple[int | None, list[Item]]] = []
    for item in items:
        number = _number(item, containers)
        if blocks and (number == blocks[-1][0] or (loop and number is None)) and not isinstance(item, Fold):
            blocks[-1][1].append(item)
        else:
            blocks.append((number, [item]))
    result: list[Item] = []
    place = 0
    while place < len(blocks):
        stop = place + 1
        while stop < len(blocks) and _follows(blocks[stop - 1][0], blocks[stop][0], loop):
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
            lines = _fold_blocks(iterations, containers, others, outputs, looks, loop=loop)
        result += lines
        place = stop
    return result


def _follows(number: int | None, later: int | None, loop: bool) -> bool:
    return number is not None and later is not None and (later > number or not loop)


def _number(item: Item, containers: Sequence[str]) -> int | None:
    """Return the number of the block that a line is in."""
    place = None if isinstance(item, Fold) else numbered(item.module, containers)
    return place and place[1]


def _fold_blocks(
    blocks: list[tuple[int, list[Equation]]],
    containers: Sequence[str],
    others: Sequence[Item],
    outputs: Sequence[StoredValue],
    looks: Looks,
    *,
    loop: bool = False,
) -> list[Item]:
    """Roll each run of equal blocks, given in the order of their numbers; with `loop`, together with the code of the
    loop.
    """
    elsewhere = {stored for item in others for stored in item.reads} | set(outputs)
    result: list[Item] = []
    place = 0
    while place < len(blocks):
        for period in range(1, LONGEST_PATTERN + 1):
            fold, length, rest = _fold_at(blocks, place, period, containers, elsewhere, looks, loop)
            if fold is not None:
                result += [fold, *rest]
                place += length
                break
        else:
            result += blocks[place][1]
            place += 1
    return result


def _fold_at(
    every: Sequence[tuple[int, list[Equation]]],
    start: int,
    period: int,
    containers: Sequence[str],
    read_elsewhere: set[StoredValue],
    looks: Looks,
    loop: bool,
) -> tuple[Fold | None, int, list[Equation]]:
    """Return the loop that begins with block `start`, the number of blocks in it, and the lines after the last block
    of a `loop`; none if fewer than two iterations are equal.
    """
    blocks, iterations = every[start:], list[ModuleBlock]()
    rest: list[Equation] = []
    for place in range(0, len(blocks) - period + 1, period):
        group = blocks[place : place + period]
        if [number for number, _ in group] != list(range(group[0][0], group[0][0] + period)):
            break
        block = ModuleBlock([item for _, lines in group for item in lines], containers, group[0][0])
        if not iterations:
            iterations.append(block)
            continue
        length = len(iterations[0].items)
        if (block.steps[:length] if loop else block.steps) != iterations[0].steps:
            break
        if len(iterations) == 1:
            iterations[0].look(looks)
        block.look(looks)
        if block.signature != iterations[0].signature:
            if not loop or block.signature[:length] != iterations[0].signature:
                break
            block, rest = ModuleBlock(block.items[:length], containers, block.first), block.items[length:]
            block.look(looks)
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
        fold = _repeat(iterations, containers, read_elsewhere | later, loop=loop)
        if fold is not None:
            return fold, len(iterations) * period, rest
        iterations.pop()
        rest = []
    return None, 0, []


def _repeat(
    iterations: Sequence[ModuleBlock],
    containers: Sequence[str],
    read_later: set[StoredValue],
    *,
    loop: bool,
) -> Fold | None:
    """Return equal blocks as a loop; None if an iteration reads a value that is neither loop-carried nor shared.

    loop   include the code of the loop: every loop-carried value must then be read after the loop, as a gradient of
           zeros would be added to otherwise
    """
    first, last = iterations[0], iterations[-1]
    carry: list[tuple[StoredValue, StoredValue, StoredValue]] = []
    each: dict[StoredValue, list[StoredValue]] = {}
    for place, stored in enumerate(first.externals):
        several = [iteration.externals[place] for iteration in iterations]
        if all(other is stored for other in several):
            if stored.kind == "running":
                return None  # one statistic, which all iterations update
            continue
        made = first.made
        if several[1] in made:
            number = made.index(several[1])
            if any(several[i] is not iterations[i - 1].made[number] for i in range(1, len(iterations))):
                return None
            if not has_same_sizes(stored, made[number]):
                return None
            carry.append((stored, made[number], last.made[number]))
        elif all(other.kind not in ("value", "input", "chosen") for other in several) and len(set(several)) == len(
            several
        ):
            each[stored] = several
        else:
            return None
    if any(stored in read_later for several in each.values() for stored in several):
        return None  # a line outside reads a single iteration's input
    handed = {made for *_, made in carry}
    if any(made in read_later and made not in handed for iteration in iterations for made in iteration.made):
        return None
    if not carry or len({made for _, made, _ in carry}) < len(carry):
        return None
    if loop and not handed <= read_later:
        return None
    join_blocks(iterations)
    for before, updated, _ in carry:
        leaves_before = [leaf for axis in before.axes for leaf in axis.leaves]
        leaves_after = [leaf for axis in updated.axes for leaf in axis.leaves]
        for leaf, leaf_after in zip(leaves_before, leaves_after, strict=True):
            leaf.join(leaf_after)
    numbers = [block for each in first.items if (block := _number(each, containers)) is not None]
    for item in first.items:
        item.module = starred(item.module, containers, numbers[0], max(numbers) > min(numbers))
    return Fold(len(iterations), list(first.items), carry, each)


def join_blocks(iterations: Sequence[ModuleBlock]) -> None:
    """Unify the axes of equal blocks."""
    for iteration in iterations[1:]:
        for mine, theirs in zip(iterations[0].axes, iteration.axes, strict=True):
            mine.join(theirs)


def has_same_sizes(first: StoredValue, second: StoredValue) -> bool:
    """Return whether two values have axes of the same sizes in the same order."""
    ours = [leaf for axis in first.axes for leaf in axis.leaves]
    theirs = [leaf for axis in second.axes for leaf in axis.leaves]
    return len(ours) == len(theirs) and all(equal(a.size, b.size) for a, b in zip(ours, theirs, strict=True))


def carried_again(fold: Fold) -> Iterator[tuple[StoredValue, StoredValue]]:
    """Yield the loop-carried values whose old value is read after the new one was made."""
    for before, made, _ in fold.carry:
        behind = False
        for item in fold.body:
            if behind and before in item.reads:
                yield before, made
                break
            behind |= made in item.made
