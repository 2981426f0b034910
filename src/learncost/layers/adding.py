"""The lines that make one gradient of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from learncost.equation.table import Axis, Line, Product, Statement, Sum, Tag, Term
from learncost.equation.value import Value
from learncost.layers.tiles import behind_another, place_of, tiled, with_one


@dataclass(frozen=True)
class Adding:
    """What adds the parts of a gradient.

    out     the lines so far, to which it adds
    made    of a part that a line gives: which of the lines
    values  the gradients and their parts
    tag     what is said of a line that adds
    """

    out: list[Statement]
    made: MutableMapping[str, int]
    values: MutableMapping[str, Value]
    tag: Tag

    def sum(self, name: str, terms: Iterable[str], axes: Sequence[Axis]) -> None:
        """A gradient as the sum of terms that have all of its axes."""
        right = tuple(Term(term, tuple(axes)) for term in terms)
        self.out.append(Sum((Term(name, tuple(axes)),), right, (), self.tag, (1,) * len(right)))

    def put_once(self, parts: Sequence[str], total: str | None) -> list[str]:
        """The parts, of which those at the same places are added before they are put there.

        total   what the gradient is called where nothing but these parts is in it: where all are at the same places
        """
        groups: dict[tuple[Axis, ...] | str, list[str]] = {}
        for part in parts:
            left = self._left(part)
            groups.setdefault(left.axes if left and left.indexed and left.apart else part, []).append(part)
        return [
            several[0] if isinstance(axes, str) or len(several) == 1 else self._put(several, axes, total, len(groups))
            for axes, several in groups.items()
        ]

    def _put(self, parts: Sequence[str], axes: tuple[Axis, ...], total: str | None, groups: int) -> str:
        left, added = Term(total if total and groups == 1 else f"{parts[0]}:put", axes), f"{parts[0]}:sum"
        whole = self.values[parts[0]]
        for part in parts:
            self._write(part, left.loops, left.loops)
        self.values[added] = self.values[parts[0]]
        self.sum(added, parts, left.loops)
        self.values[left.name] = self.values.get(left.name, whole)
        self.made[left.name] = len(self.out)
        self.out.append(Product((left,), (Term(added, left.loops),), (), replace(self.tag, local="")))
        return left.name

    def tiled(self, name: str, parts: Sequence[str], sizes: Mapping[str, int]) -> bool:
        """Write a gradient as its parts one behind another, where each is of one place of an axis; whether it is so."""
        lefts = [left for part in parts if (left := self._left(part))]
        number = tiled(lefts, sizes) if len(lefts) == len(parts) else None
        if number is None:
            return False
        at: dict[int, str] = {}
        for part, left in zip(parts, lefts, strict=True):
            self._write(part, with_one(left.axes, number), with_one(self.values[part].axes, number))
            at[place_of(left.axes[number]) or 0] = part
        names = [part for _, part in sorted(at.items())]
        self.out.append(behind_another(Term(name, self.values[name].axes), names, number, self.tag))
        return True

    def _left(self, part: str) -> Term | None:
        """What the line writes that makes a part and nothing else."""
        line = self.out[self.made[part]] if part in self.made else None
        return line.left[0] if isinstance(line, Line) and len(line.left) == 1 else None

    def _write(self, part: str, axes: Sequence[Axis], declared: Sequence[Axis]) -> None:
        """The line of a part writes a value of other axes."""
        line = self.out[self.made[part]]
        assert isinstance(line, Line)
        self.out[self.made[part]] = line.with_changed(left=(Term(part, tuple(axes)),))
        self.values[part] = replace(self.values[part], axes=tuple(map(str, declared)))
