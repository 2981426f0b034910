"""The lines that add up the parts of a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from learncost.ir.line import Line, Meta, Product, Sum
from learncost.ir.loop import Statement
from learncost.ir.term import Axis, Term
from learncost.ir.value import Value
from learncost.layers.spelling import behind_another, place_of, tiled, with_one


@dataclass(frozen=True)
class Adding:
    """The accumulation of a gradient from its parts.

    out     the lines so far, to which it appends
    made    the number of the line that defines a part
    values  the gradients and their parts
    sizes   the known sizes
    meta    the metadata of the added lines
    """

    out: list[Statement]
    made: MutableMapping[str, int]
    values: MutableMapping[str, Value]
    sizes: Mapping[str, int]
    meta: Meta

    def add(self, name: str, parts: Sequence[str]) -> None:
        """Define a gradient from its parts, by concatenation where they tile an axis, otherwise by addition."""
        if self._tile(name, parts):
            return
        together = self._put_once(name, parts)
        if together != [name]:
            self._sum(name, together, self.values[name].axes)

    def _sum(self, name: str, terms: Iterable[str], axes: Sequence[Axis]) -> None:
        right = tuple(Term(term, tuple(axes)) for term in terms)
        self.out.append(Sum((Term(name, tuple(axes)),), right, (), self.meta, (1,) * len(right)))

    def _tile(self, name: str, parts: Sequence[str]) -> bool:
        """Concatenate the parts if each covers one position of an axis and all are covered; return whether."""
        lefts = [left for part in parts if (left := self._left(part))]
        number = tiled(lefts, self.sizes) if len(lefts) == len(parts) else None
        if number is None:
            return False
        at: dict[int, list[str]] = {}
        for part, left in zip(parts, lefts, strict=True):
            self._write(part, with_one(left.axes, number), with_one(self.values[part].axes, number))
            at.setdefault(place_of(left.axes[number]) or 0, []).append(part)
        names = []
        for place, several in sorted(at.items()):
            names.append(several[0])
            if len(several) > 1:
                names[-1] = f"{name}:{place}"
                self.values[names[-1]] = self.values[several[0]]
                self.add(names[-1], several)
        self.out.append(behind_another(Term(name, self.values[name].axes), names, number, self.meta))
        return True

    def _put_once(self, name: str, parts: Sequence[str]) -> list[str]:
        """Return the parts, adding those with equal indices before the scatter; just the gradient if these are all."""
        groups: dict[tuple[Axis, ...] | str, list[str]] = {}
        for part in parts:
            left = self._left(part)
            groups.setdefault(left.axes if left and left.indexed and left.apart else part, []).append(part)
        together = []
        for axes, several in groups.items():
            if isinstance(axes, str) or len(several) == 1:
                together += several
                continue
            left, added = Term(f"{several[0]}:put" if len(groups) > 1 else name, axes), f"{several[0]}:sum"
            self.values.setdefault(left.name, self.values[several[0]])
            for part in several:
                self._write(part, left.loops, left.loops)
            self.values[added] = self.values[several[0]]
            self._sum(added, several, left.loops)
            self.out.append(Product((left,), (Term(added, left.loops),), (), replace(self.meta, local="")))
            together.append(left.name)
        return together

    def _left(self, part: str) -> Term | None:
        """Return the left side of the line that defines a part and nothing else."""
        line = self.out[self.made[part]] if part in self.made else None
        return line.left[0] if isinstance(line, Line) and len(line.left) == 1 else None

    def _write(self, part: str, axes: Sequence[Axis], declared: Sequence[Axis]) -> None:
        """Change the axes that the line of a part writes."""
        line = self.out[self.made[part]]
        assert isinstance(line, Line)
        self.out[self.made[part]] = line.with_changed(left=(Term(part, tuple(axes)),))
        self.values[part] = replace(self.values[part], axes=tuple(map(str, declared)))
