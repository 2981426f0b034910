"""Draw random directions of signs from a number of the step, so that they can be drawn again and are never stored.

Every entry of a direction is 1 or -1, a hash of the step's number, the tensor's number and the entry's positions (the
ops `hashed` and `coin`). It costs one operation per entry, and one more for every position before the last axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from learncost.ir.dataclass import dataclass, field
from learncost.ir.line import Line, Meta
from learncost.ir.loop import Loop
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Axes, Value
from learncost.layers.gradient_plan import Scope
from learncost.ops import applied
from learncost.procedures.places import LinePlace, places

NUMBER = "draw"
"""The name of the step's number, from which all directions are drawn."""

_META = Meta("directions", local="draw")


@dataclass
class Directions:
    """The shared lines of a step's directions: positions along axes, and a seed for each value with a direction.

    drawn_by  the name of the step's number
    of        the meaning of that number: `draw` is new in every step, `draw/200` the same for 200 steps
    lines     the lines, which belong to the table's outermost scope
    values    the Value of each result
    slices    by the scope of a loop, the slices of stacks of seeds that its iterations read
    """

    drawn_by: str = NUMBER
    of: str = NUMBER
    lines: list[Line] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    slices: dict[Scope, dict[str, Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.last = Term(self.drawn_by, ())
        self.values[self.drawn_by] = Value((), "number", self.of)

    def seed(self, of: str, counts: Axes = (), scope: Scope = ()) -> str:
        """Return the name of a direction's seed, which is a stack with one entry per iteration if the value is in
        loops."""
        name = f"{of}.seed"
        if name not in self.values:
            whose = Term(f"{name}:whole" if counts else name, ())
            # Hash the number with itself, not with a position: both are small, so that signs would repeat.
            self.add(applied("hashed", whose, (self.last, self.last), _META))
            self.last = whose
            self.lines += self._chain(whose, counts, name, "hashed")
            for depth in range(1, len(scope) + 1):
                self.slices.setdefault(scope[:depth], {})[name] = self.values[name].along(counts[depth:])
        return name

    def drawn(
        self, seed: Term, axes: Axes, name: str, meta: Meta = _META, op: str = "coin"
    ) -> tuple[list[Line], dict[str, Value]]:
        """Return the lines that draw along axes from a seed, and the Values of their results: signs, or with the op
        `hashed` whole numbers below 2^24."""
        values = dict(self.values)
        lines = self._chain(seed, axes, name, op, meta)
        made = {line.name: self.values[line.name] for line in lines}
        self.values = {key: value for key, value in self.values.items() if key in values or key.startswith("places.")}
        return lines, made

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self.values[line.name] = Value(line.left[0].declared)

    def _chain(self, seed: Term, axes: Axes, name: str, last: str, meta: Meta = _META) -> list[Line]:
        if not axes:
            only = applied(last, Term(name, seed.axes), (seed, seed), meta)
            self.values[name] = Value(seed.loops)
            return [only] if last == "coin" else []
        lines: list[Line] = []
        for number, axis in enumerate(axes):
            at_last = number == len(axes) - 1
            made = Term(name if at_last else f"{name}:{number}", (*seed.loops, axis))
            places_along = Term(self.places(base(axis)), (axis,))
            lines.append(applied(last if at_last else "hashed", made, (seed, places_along), meta))
            self.values[made.name] = Value(made.loops)
            seed = made
        return lines

    def places(self, axis: str) -> str:
        """Return the name of the positions along an axis, counted from 1, whose lines are added at first use."""
        name = f"places.{axis}"
        if name not in self.values:
            ones = Term(f"{name}:ones", (axis,))
            self.add(applied("ones", ones, (), _META))
            self.add(applied("cumsum", Term(name, (axis,)), (ones,), _META, (axis,)))
        return name


@dataclass(frozen=True)
class Site:
    """A scope whose lines read a weight, and the weight's name in it."""

    place: LinePlace
    name: str

    @property
    def counts(self) -> Axes:
        """Return the trip counts of the loops around it whose iterations have separate weights."""
        return self.place.iterations(())


def sites(table: Table, weight: str) -> Iterator[Site]:
    """Yield the scopes that read a weight or slices of it."""
    by_scope = {place.scope: place for place in places(table)}

    def within(place: LinePlace, name: str) -> Iterator[Site]:
        read = {other for line in place.lines_of_scope for other in line.reads}
        for line in place.lines:
            if not isinstance(line, Loop):
                continue
            read |= set(line.shared)
            for inside, outer in line.each:
                if outer == name:
                    yield from within(by_scope[(*place.scope, line.makes)], inside)
        if name in read:
            yield Site(place, name)

    yield from within(by_scope[()], weight)


def layer_metas(table: Table, weights: Iterable[str]) -> dict[str, Meta]:
    """Map every weight to the metadata of its update, which belongs to the first layer that reads the weight."""
    metas: dict[str, Meta] = {}
    for weight in weights:
        for site in sites(table, weight):
            reader = next((line for line in site.place.lines_of_scope if site.name in line.reads), None)
            if reader is not None:
                metas.setdefault(weight, Meta(reader.meta.layer, reader.meta.block, module=reader.meta.module))
    return {weight: metas.get(weight, Meta()) for weight in weights}
