"""Which axes of a forward table run over the keys that a token sees, and how many of these it sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from learncost.ir.affine import Affine
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import repeats, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Operand, Read

TOKENS = "M"  # the axis of the tokens that a model reads and predicts: those of a decoder's side


def refusal(name: str, why: str) -> InputError:
    """What is said of a model that cannot decode."""
    return InputError(f"{name} has no decoder to sample from: {why}")


class Keys:
    """An axis runs over keys where a `where` bounds it by the tokens, and in all values that share it.

    windows   by name of a value and place of its axis, the window of the keys there: a size or a number, "" for all
    places    of the values that are cached, the place of the keys' positions
    grows     those of them that have the tokens' own positions
    Raises `InputError` where tokens that are not cached would be read.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.name = name
        line_of = {line.name: line for line, _ in walk(table.lines) if line.meta.cached is not None}
        self.places = {n: line.meta.cached for n, line in line_of.items() if line.meta.cached is not None}
        self.grows = {n for n, place in self.places.items() if base(str(line_of[n].left[0].axes[place])) == TOKENS}
        self.windows: dict[tuple[str, int], str] = {}
        self._find(table)

    def _find(self, table: Table) -> None:
        lines = [line for line, _ in walk(table.lines)]
        every_repeat = list(repeats(table.lines))
        before = -1
        while before != len(self.windows):
            before = len(self.windows)
            for line in lines:
                self._share(line, self.of(line))
            for repeat in every_repeat:
                for inside, outside in (*repeat.each, *repeat.keep):
                    self._link(inside, outside, 1 if inside != outside else 0)
                for carry in repeat.carry:
                    for carried in (carry.end, carry.initial, carry.final):
                        self._link(carry.start, carried, 0)
                    if any(name == carry.start for name, _ in self.windows):
                        raise refusal(
                            self.name,
                            f"earlier values of {carry.start} are read again, and no layer says that it keeps them",
                        )
        if any(name in table.outputs for name, _ in self.windows):
            raise refusal(self.name, "earlier positions are read again, and no layer says that it keeps them")

    def _slots(self, line: Line) -> Iterator[tuple[str, int, str]]:
        """The axes of a line that have the same window wherever a value of theirs has one."""
        yield from _slots(line.right)
        for term in line.left:
            for slot in _slots((term,)):
                # What is made for the cache has the new positions, what reads it all of them.
                if slot[:2] != (line.name, self.places.get(line.name)):
                    yield slot

    def of(self, line: Line) -> dict[str, str]:
        """The axes of a line that run over keys, with their windows."""
        windows: dict[str, str] = {}
        for condition in line.where:
            if not condition.ordered and TOKENS in map(base, condition.axes):
                raise refusal(self.name, f"it tells positions by number, in line: {line}")
            if base(condition.lower) == base(condition.upper) == TOKENS:
                windows[condition.lower] = condition.window or windows.get(condition.lower, "")
        for name, place, axis in self._slots(line):
            if (name, place) in self.windows:
                window = self.windows[name, place]
                if windows.setdefault(axis, window) != window:
                    raise refusal(self.name, f"keys are seen through two windows, in line: {line}")
        return windows

    def _share(self, line: Line, keys: Mapping[str, str]) -> None:
        self.windows |= {(name, place): keys[axis] for name, place, axis in self._slots(line) if axis in keys}

    def _link(self, first: str, second: str, more: int) -> None:
        for (name, place), window in list(self.windows.items()):
            if name == first:
                self.windows[second, place + more] = window
            elif name == second and place >= more:
                self.windows[first, place - more] = window


def _slots(terms: Iterable[Operand | Affine]) -> Iterator[tuple[str, int, str]]:
    """Every axis of the terms and of their indices: the value's name, the place, and what the line calls it."""
    for term in terms:
        for place, axis in enumerate(term.axes):
            yield term.name, place, axis if isinstance(axis, str) else axis.axis
            if isinstance(axis, Read):
                yield from _slots((axis.at,))
