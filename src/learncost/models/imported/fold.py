"""Equal blocks of a numbered container become a repeat: once what is once, with stacks of what each has of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from learncost.models.imported.axes import Axis, equal
from learncost.models.imported.equations import Equation
from learncost.models.imported.text import Writer
from learncost.models.imported.views import Stored

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
LONGEST_PATTERN = 8
"""Blocks that take turns, such as local and global attention, are looked for up to so many in a pattern."""


MADE = ("value", "input", "chosen", "truth")
"""Kinds of values that lines make, or that come in for all turns."""


@dataclass(eq=False)
class Fold:
    """Lines that run `count` times.

    carry   what goes from turn to turn: the value before, what the first turn makes of it, what the last one does
    each    of what every turn has of its own, that of the first with those of all
    """

    count: int
    body: list[Item]
    container: str
    carry: list[tuple[Stored, Stored, Stored]]
    each: dict[Stored, list[Stored]]
    start: dict[Stored, Stored] = field(default_factory=dict)  # of what is carried: what the first turn is handed

    @property
    def made(self) -> list[Stored]:
        """What it hands out: what its last turn makes of what it carries."""
        return [last for *_, last in self.carry]

    @property
    def reads(self) -> list[Stored]:
        inside = {stored for item in self.body for stored in made_of(item)}
        first = {before for before, *_ in self.carry}
        of_blocks = [stored for several in self.each.values() for stored in several]
        others = [s for item in self.body for s in reads_of(item) if s not in inside and s not in self.each]
        return list(dict.fromkeys((*first, *of_blocks, *others)))


Item: TypeAlias = Equation | Fold


def made_of(item: Item) -> list[Stored]:
    """What an item makes."""
    return item.made if isinstance(item, Fold) else [read.view.stored for read in item.left]


def reads_of(item: Item) -> list[Stored]:
    """What an item reads."""
    return item.reads


def lines_of(items: Iterable[Item]) -> Iterator[Equation]:
    """All lines, those of repeats once."""
    for item in items:
        if isinstance(item, Fold):
            yield from lines_of(item.body)
        else:
            yield item


@dataclass
class _Block:
    """The lines of one numbered module, or of several that take turns, and what they look like."""

    items: list[Equation]
    container: str
    signature: tuple[str, ...] = ()
    externals: list[Stored] = field(default_factory=list)
    made: list[Stored] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)

    def look(self, first: int, learns: Callable[[Stored], object]) -> None:
        """Its lines as text in which names and axes are numbered in the order in which they are met."""
        writer = _Numbering({}, made={read.view.stored for item in self.items for read in item.left}, learns=learns)
        lines = []
        for item in self.items:
            path = _relative(item.module, self.container, first)
            lines.append(f"{writer.line(item).rpartition(' @ ')[0]} @ {path} {item.operator}")
        self.signature = tuple(lines)
        self.externals, self.made, self.axes = writer.externals, writer.numbered, list(writer.letters)


@dataclass
class _Numbering(Writer):
    made: set[Stored] = field(default_factory=set)
    learns: Callable[[Stored], object] = bool
    externals: list[Stored] = field(default_factory=list)
    numbered: list[Stored] = field(default_factory=list)

    def name(self, stored: Stored) -> str:
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

    def letter(self, axis: Axis) -> str:
        root = axis.root
        if root not in self.letters:
            self.letters[root] = f"a{len(self.letters)}_{root.size}_"
        return self.letters[root]


def _relative(path: str, container: str, first: int) -> str:
    """A path behind the container and the number of the block, the number counted from the first of the pattern."""
    rest = path[len(container) :].lstrip(".") if container else path
    number, _, inner = rest.partition(".")
    return f"{int(number) - first}.{inner}" if number.isdigit() else rest


def containers(items: Sequence[Equation]) -> list[str]:
    """The paths of containers of numbered modules, outer ones first."""
    repeated_paths: dict[str, None] = {}
    for item in items:
        for match in _NUMBER.finditer(item.module):
            repeated_paths.setdefault(item.module[: match.start()])
    return sorted(repeated_paths, key=lambda path: (path.count(".") + bool(path), path))


def folded(items: list[Item], outputs: Sequence[Stored], learns: Callable[[Stored], object]) -> list[Item]:
    """The lines with equal blocks of numbered containers as repeats."""
    plain = [item for item in items if isinstance(item, Equation)]
    for container in containers(plain):
        items = _fold_container(items, container, outputs, learns)
    return items


def _fold_container(
    items: list[Item], container: str, outputs: Sequence[Stored], learns: Callable[[Stored], object]
) -> list[Item]:
    numbers = [_number(item, container) for item in items]
    result: list[Item] = []
    place = 0
    while place < len(items):
        if numbers[place] is None:
            result.append(items[place])
            place += 1
            continue
        stop = place
        while stop < len(items) and numbers[stop] is not None:
            stop += 1
        result += _fold_run(items[place:stop], container, [*result, *items[stop:]], outputs, learns)
        place = stop
    return result


def _number(item: Item, container: str) -> int | None:
    """The number of the block that a line is in."""
    if isinstance(item, Fold):
        return None
    path = item.module
    if container and not path.startswith(f"{container}."):
        return None
    number = path[len(container) :].lstrip(".").partition(".")[0]
    return int(number) if number.isdigit() else None


def _fold_run(
    items: list[Item],
    container: str,
    others: Sequence[Item],
    outputs: Sequence[Stored],
    learns: Callable[[Stored], object],
) -> list[Item]:
    """Consecutive lines of a container, each run of equal blocks as a repeat."""
    blocks: list[tuple[int, list[Equation]]] = []
    for item in items:
        number = _number(item, container)
        assert isinstance(item, Equation)
        assert number is not None
        if blocks and blocks[-1][0] == number:
            blocks[-1][1].append(item)
        else:
            blocks.append((number, [item]))
    if len({number for number, _ in blocks}) < len(blocks):  # it comes back to a block: no order of turns
        return items
    read_elsewhere = {stored for item in others for stored in reads_of(item)} | set(outputs)
    result: list[Item] = []
    place = 0
    while place < len(blocks):
        for period in range(1, LONGEST_PATTERN + 1):
            fold, length = _fold_at(blocks[place:], period, container, read_elsewhere, blocks, place, learns)
            if fold is not None:
                result.append(fold)
                place += length
                break
        else:
            result += blocks[place][1]
            place += 1
    return result


def _fold_at(
    blocks: Sequence[tuple[int, list[Equation]]],
    period: int,
    container: str,
    read_elsewhere: set[Stored],
    every: Sequence[tuple[int, list[Equation]]],
    start: int,
    learns: Callable[[Stored], object],
) -> tuple[Fold | None, int]:
    """The repeat that begins with these blocks, and how many it takes; none where fewer than two turns are equal."""
    turns: list[_Block] = []
    for place in range(0, len(blocks) - period + 1, period):
        group = blocks[place : place + period]
        if [number for number, _ in group] != list(range(group[0][0], group[0][0] + period)):
            break
        block = _Block([item for _, lines in group for item in lines], container)
        block.look(group[0][0], learns)
        if turns and block.signature != turns[0].signature:
            break
        turns.append(block)
    while len(turns) > 1:
        folded_places = range(start, start + len(turns) * period)
        outside = (lines for place, (_, lines) in enumerate(every) if place not in folded_places)
        later = {stored for lines in outside for item in lines for stored in item.reads}
        fold = _repeat(turns, container, read_elsewhere | later)
        if fold is not None:
            return fold, len(turns) * period
        turns.pop()
    return None, 0


def _repeat(turns: Sequence[_Block], container: str, read_later: set[Stored]) -> Fold | None:
    """Equal blocks as a repeat; None where a turn reads what no turn hands it."""
    first, last = turns[0], turns[-1]
    carry: list[tuple[Stored, Stored, Stored]] = []
    each: dict[Stored, list[Stored]] = {}
    for place, stored in enumerate(first.externals):
        several = [turn.externals[place] for turn in turns]
        if all(other is stored for other in several):
            continue
        made = first.made
        if several[1] in made:
            number = made.index(several[1])
            if any(several[i] is not turns[i - 1].made[number] for i in range(1, len(turns))):
                return None
            if not _alike(stored, made[number]):
                return None
            carry.append((stored, made[number], last.made[number]))
        elif all(other.kind not in ("value", "input", "chosen") for other in several) and len(set(several)) == len(
            several
        ):
            each[stored] = several
        else:
            return None
    if any(stored in read_later for several in each.values() for stored in several):
        return None  # a line outside reads one turn's own
    handed = {made for *_, made in carry}
    if any(made in read_later and made not in handed for turn in turns for made in turn.made):
        return None
    if not carry or len({made for _, made, _ in carry}) < len(carry):
        return None
    for turn in turns[1:]:
        for mine, theirs in zip(first.axes, turn.axes, strict=True):
            mine.join(theirs)
    for before, made_anew, _ in carry:
        leaves_before = [leaf for axis in before.axes for leaf in axis.leaves]
        leaves_after = [leaf for axis in made_anew.axes for leaf in axis.leaves]
        for leaf, leaf_after in zip(leaves_before, leaves_after, strict=True):
            leaf.join(leaf_after)
    numbers = [_number(item, container) or 0 for item in first.items]
    for item, number in zip(first.items, numbers, strict=True):
        item.module = _starred(item.module, container, number - numbers[0], max(numbers) > min(numbers))
    return Fold(len(turns), list(first.items), container, carry, each)


def _starred(path: str, container: str, place: int, several: bool) -> str:
    """A path with * for the number of the block; of a pattern of blocks, with its place in the pattern."""
    rest = path[len(container) :].lstrip(".") if container else path
    inner = rest.partition(".")[2]
    number = f"*{place}" if several else "*"
    return ".".join(part for part in (container, number, inner) if part)


def _alike(first: Stored, second: Stored) -> bool:
    """Whether two values have axes of the same sizes in the same order."""
    ours = [leaf for axis in first.axes for leaf in axis.leaves]
    theirs = [leaf for axis in second.axes for leaf in axis.leaves]
    return len(ours) == len(theirs) and all(equal(a.size, b.size) for a, b in zip(ours, theirs, strict=True))


def carried_again(fold: Fold) -> Iterator[tuple[Stored, Stored]]:
    """Of what it carries, what a line of the body reads after it was made anew."""
    for before, made, _ in fold.carry:
        behind = False
        for item in fold.body:
            if behind and before in reads_of(item):
                yield before, made
                break
            behind |= made in made_of(item)
