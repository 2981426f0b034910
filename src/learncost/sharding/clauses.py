"""Parse sharding clauses such as `h f v over tp`, and derive the shard spec of every value.

A clause is `AXES over MESH [of NAMES]`. Of its axes, the first that a value has, with more than one position, is
sharded. `*` is the largest axis that the mesh axis divides; a weight without such an axis, its gradient and states are
sharded along their largest axis and padded. NAMES are roles or names of the table, or prefixes of names; a gradient
follows its value. For each mesh axis the first matching clause wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import copy
from functools import lru_cache
from math import lcm

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import repeats, walk
from learncost.ir.polynomial import base, size_of
from learncost.ir.table import Table, features
from learncost.ir.term import Term
from learncost.ir.value import DRAWN, IdentityKey, Value
from learncost.sharding.mesh import Mesh

LARGEST = "*"
"""The sign for the largest divisible axis in a clause."""

HEADS = "h"
"""The name of attention heads in clauses, which includes the channels of a recurrence."""

PADDED_ROLES = ("weights", "gradients", "states")
"""Roles of values that are padded if they are not divisible: the padding is 0 and remains 0."""

ROLES: Mapping[str, str] = {
    "weights": "weights, and their new values",
    "gradients": "gradients of weights",
    "states": "optimizer states",
    "values": "results of lines, their gradients, and dropout masks",
    "inputs": "inputs of a batch",
    "scores": "values of pairs of positions, and their gradients",
    "experts": "weights of experts, their gradients and states",
}
"""The roles that are allowed as NAMES of a clause, in addition to names of the table."""

_CLAUSE = re.compile(r"(?P<axes>\S+(?:\s+\S+)*?)\s+over\s+(?P<mesh>\S+)(?:\s+of\s+(?P<names>\S+(?:\s+\S+)*))?")


AXIS_NAMES: Mapping[str, str] = {
    "B": "sequences", "M": "positions", "N": "encoder's positions", "h": "heads", "g": "heads that share keys",
    "f": "feed-forward width", "d": "hidden size", "v": "vocabulary", "e": "experts",
}  # fmt: skip
"""The meaning of usual axes, for messages."""


def in_words(axis: str) -> str:
    """Return an axis with what it is: `h (heads)`."""
    return f"{axis} ({AXIS_NAMES[axis]})" if axis in AXIS_NAMES else axis


@dataclass(frozen=True)
class Clause:
    """A sharding clause: the first of its axes that a value has is sharded over a mesh axis, for some values or for
    all."""

    axes: tuple[str, ...]
    mesh: str
    names: tuple[str, ...] = ()
    written: tuple[str, ...] = field(default=(), compare=False)  # its axes, with those that `as_called` added

    @property
    def largest(self) -> bool:
        return self.axes == (LARGEST,)

    def check(self, mesh: Mesh) -> None:
        """Raise `InputError` if the mesh has no such axis."""
        if self.mesh not in mesh.names:
            there = ", ".join(mesh.names)
            raise InputError(f"{str(self)!r} names the axis {self.mesh}, which is not in the mesh: it has {there}")

    def __str__(self) -> str:
        of = f" of {' '.join(self.names)}" if self.names else ""
        return f"{' '.join(self.written or self.axes)} over {self.mesh}{of}"


EXPERTS, TENSORS, TOKENS = "e", frozenset((HEADS, "g", "f")), frozenset("BMN")
"""The names in clauses of experts, of heads and matrix widths, and of token axes."""


def check_timed(several: Iterable[Clause], sizes: Mapping[str, int]) -> None:
    """Refuse a mesh whose collectives cannot be timed as frameworks send them. Raises `InputError`.

    With experts sharded over tensor parallel devices too, a device dispatches only its shard of the tokens; the lines
    here gather the tokens over these devices first. Qwen3-235B over pp=8,ep=8,tp=4 on 256 H100 would take 3.4 times the
    29.0 s of Megatron-MoE-ModelZoo, best_practice/qwen3. This holds for every mesh axis with the same tokens on all
    devices; on the axis of the experts each device would multiply the rows of all others.

    sizes: the number of devices along each mesh axis.
    """
    cut = [clause for clause in several if sizes.get(clause.mesh, 1) > 1]
    experts = next((clause.mesh for clause in cut if EXPERTS in clause.axes), None)
    if experts is None:
        return
    tokens = {clause.mesh for clause in cut if TOKENS & {*clause.axes}}
    if experts not in tokens:
        raise InputError(
            f"the time of experts over {experts} is not modelled if all devices of {experts} have the same tokens: "
            f"each would multiply the rows of all; shard the batch, too: B over {experts}"
        )
    for clause in cut:
        is_tensor = bool(TENSORS & {*clause.axes}) and clause.names != ("scores",)
        if clause.mesh != experts and (is_tensor or clause.mesh not in tokens):
            subject = "heads and widths" if is_tensor else " ".join(clause.written or clause.axes)
            raise InputError(
                f"the time of experts over {experts} with {subject} over {clause.mesh} is not modelled: tokens would "
                f"be sent once for each device of {clause.mesh}; use one of the two, and dp or pp in place "
                "of the other"
            )


def clauses(text: str) -> tuple[Clause, ...]:
    """Parse comma-separated clauses. Raises `InputError`."""
    result = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        match = _CLAUSE.fullmatch(item)
        if match is None:
            raise InputError(f"{item!r} is not a sharding clause: write `h f v over tp` or `M over tp of values`")
        clause = Clause(tuple(match["axes"].split()), match["mesh"], tuple((match["names"] or "").split()))
        if LARGEST in clause.axes and not clause.largest:
            raise InputError(f"* cannot be combined with other axes: {item!r}")
        result.append(clause)
    return tuple(result)


def as_called(table: Table, chosen: Iterable[Clause]) -> Iterator[Clause]:
    """Yield the clauses with all axes that they mean, including the names that layers use for them.

    An axis f of feed-forward networks may be m in the experts of a model and u in its decoder: `f over tp` means all
    three. A name that layers also use for another axis means only itself. `h over tp` includes the channels of a
    recurrence: each has a separate state, like the scores of a head.
    """
    letters: dict[str, set[str]] = {}
    for line, _ in walk(table.lines):
        for letter, axis in line.meta.binding:
            letters.setdefault(axis, set()).add(letter)
    wide = features(table)
    others = {axis: names for axis, names in letters.items() if axis in wide and axis not in names}
    for clause in chosen:
        axes = [(axis, *sorted(other for other, names in others.items() if axis in names)) for axis in clause.axes]
        if HEADS in clause.axes:
            axes.append(tuple(_channels(table, wide)))
        every = tuple(dict.fromkeys(axis for several in axes for axis in several))
        yield replace(clause, axes=every, written=clause.written or clause.axes)


def _channels(table: Table, wide: Collection[str]) -> Iterator[str]:
    """Yield the features of recurrent states that are never summed over (Dao and Gu 2024, 8.1)."""
    positions = {axis for name in table.indices.intersection(table.inputs) for axis in table.axes[name]}
    for repeat in repeats(table.lines):
        results = [name for name, stack in repeat.keep if table.known[stack].role == "value"]
        kept = {axis for name in results for axis in repeat.axes[name]}
        for carry in repeat.carry if repeat.count in positions else ():
            if repeat.values[carry.start].role == "value":
                yield from (axis for axis in repeat.axes[carry.start] if axis in kept and axis in wide)


Split = tuple[tuple[str, ...], ...]
"""For each axis of a value, the mesh axes that shard it, outermost first."""


class ShardSpecs:
    """The shard specs of a table's values, which follow from the clauses.

    part_of  the table that this one is a part of, if the clauses apply to the larger table
    like     specs over a mesh of other sizes, whose choices of largest axes are used
    """

    def __init__(
        self,
        table: Table,
        mesh: Mesh,
        chosen: Iterable[Clause],
        sizes: Mapping[str, int],
        part_of: Table | None = None,
        like: ShardSpecs | None = None,
    ) -> None:
        self.table, self.mesh, self.like = table, mesh, like
        self.clauses = tuple(as_called(table if part_of is None else part_of, chosen))
        self.sizes = {**sizes, **mesh.sizes}
        self.known = table.known
        self._counts, self._experts = _counts_and_experts(IdentityKey(table))
        self._by_name = any(name not in ROLES for clause in self.clauses for name in clause.names)
        self._applied_clauses: dict[object, dict[str, tuple[int, str]]] = {}
        self._ranks: dict[tuple[str, str], int] = {}
        self._specs: dict[tuple[str, Value, frozenset[str]], Split] = {}
        self.filled: dict[str, int] = {}
        self._check(self.known if part_of is None else part_of.known)

    def over(self, mesh: Mesh, sizes: Mapping[str, int]) -> ShardSpecs:
        """Return the specs of the same clauses over a mesh with other sizes."""
        result = copy(self)
        result.mesh, result.sizes, result.filled = mesh, {**sizes, **mesh.sizes}, {}
        result._applied_clauses, result._specs, result.like = {}, {}, None
        return result

    def divides(self, applied_clauses: Mapping[str, tuple[int, str]]) -> bool:
        """Return whether the mesh divides every axis that it shards."""
        numbers: dict[str, int] = {}
        for mesh_axis, (_, axis) in applied_clauses.items():
            numbers[base(axis)] = numbers.get(base(axis), 1) * self.mesh.sizes[mesh_axis]
        return all(self.size(axis) % number == 0 for axis, number in numbers.items())

    def _check(self, known: Mapping[str, Value]) -> None:
        axes = {base(axis) for value in known.values() for axis in value.axes}
        for clause in self.clauses:
            clause.check(self.mesh)
            for name in clause.names:
                if name not in ROLES and not any(_begins(value, name) for value in known):
                    raise InputError(
                        f"{str(clause)!r} names {name}, which is not in the table; roles are {', '.join(ROLES)}"
                    )
            if not clause.largest and not any(axis in axes for axis in clause.axes):
                text = f"{str(clause)!r} shards {' or '.join(map(in_words, clause.axes))}, which the model has not"
                raise InputError(f"{text}: give --placement or --place for {clause.mesh} without it")
        for name in self.mesh.names:
            if name in axes or name in self.sizes.keys() - self.mesh.sizes.keys():
                raise InputError(f"{name} is a size of the model: use another name for the mesh axis")
            if self.mesh.sizes[name] > 1 and all(clause.mesh != name for clause in self.clauses):
                raise InputError(
                    f"nothing is sharded over {name}: extend --placement or --place, or remove {name} from --mesh"
                )

    def size(self, axis: str) -> int:
        """Return the global size of an axis."""
        return int(size_of(axis, self.sizes))

    def rank(self, mesh_axis: str, axis: str) -> int:
        """Return the rank of a mesh axis among those that shard an axis: clauses in order, `*` innermost."""
        key = mesh_axis, base(axis)
        if key not in self._ranks:
            places = [
                place + (len(self.clauses) if clause.largest else 0)
                for place, clause in enumerate(self.clauses)
                if clause.mesh == mesh_axis and (base(axis) in clause.axes or clause.largest)
            ]
            self._ranks[key] = min(places, default=2 * len(self.clauses))
        return self._ranks[key]

    def kind(self, name: str, value: Value) -> tuple[str, str]:
        """Return the role of a value in clauses, and the value that it belongs to."""
        return kind_of(self.table, name, value)

    def applied_clauses(self, name: str, value: Value) -> dict[str, tuple[int, str]]:
        """Map every mesh axis that shards a value to the index of the clause and the sharded axis."""
        role, owner = self.kind(name, value)
        of_weight = self.known[owner].axes if owner in self.known else ()
        key = role, owner in self._experts, value.axes, of_weight, (name, owner) if self._by_name else ()
        if key not in self._applied_clauses:
            self._applied_clauses[key] = self._apply_clauses(role, owner, name, value)
        return self._applied_clauses[key]

    def _apply_clauses(self, role: str, owner: str, name: str, value: Value) -> dict[str, tuple[int, str]]:
        largest_first: dict[str, tuple[int, str]] = {}
        cut: dict[str, list[str]] = {}
        order = sorted(range(len(self.clauses)), key=lambda place: (self.clauses[place].largest, place))
        first = {axis: place for place, axis in self._fitting(role, owner, name, value)}
        for place in order:
            clause = self.clauses[place]
            if first.get(clause.mesh) != place:
                continue
            axis = self._axis(clause, value, cut, name)
            if axis is not None:
                cut.setdefault(axis, []).append(clause.mesh)
                largest_first[clause.mesh] = place + (len(self.clauses) if clause.largest else 0), axis
        return largest_first

    def _fitting(self, role: str, owner: str, name: str, value: Value) -> Iterator[tuple[int, str]]:
        """Yield the first matching clause for every mesh axis."""
        taken: set[str] = set()
        for place, clause in enumerate(self.clauses):
            if clause.mesh in taken or self.mesh.sizes[clause.mesh] == 1:
                continue
            has_axis = clause.largest or any(map(self._long(value), clause.axes))
            if has_axis and self._named(clause, role, owner, name, value):
                taken.add(clause.mesh)
                yield place, clause.mesh

    def _named(self, clause: Clause, role: str, owner: str, name: str, value: Value) -> bool:
        if not clause.names:
            return True
        roles = {role}
        if role == "values" and _of_pairs(value.axes):
            roles.add("scores")
        if owner in self._experts:
            roles.add("experts")
        return any(listed in roles or _begins(owner, listed) or _begins(name, listed) for listed in clause.names)

    def _long(self, value: Value) -> Callable[[str], bool]:
        """Return a predicate for the axes of a value that have more than one position."""
        return lambda axis: axis in value.axes and self.sizes[base(axis)] > 1

    def _axis(self, clause: Clause, value: Value, cut: Mapping[str, list[str]], name: str) -> str | None:
        number = self.mesh.sizes[clause.mesh]

        def left(axis: str) -> int:
            return self._part(axis, cut.get(axis, ()))

        if not clause.largest:
            axis = next(filter(self._long(value), clause.axes))
            if left(axis) % number:
                raise InputError(_not_dividing(axis, size_of(axis, self.sizes), cut.get(axis, []), clause, self.mesh))
            return axis
        if self.like is not None:
            return self.like._axis(clause, value, cut, name)
        axes = [axis for axis in value.axes if base(axis) not in self._counts and not base(axis)[0].isdigit()]
        if not (dividing := [axis for axis in axes if left(axis) % number == 0]):
            role, owner = self.kind(name, value)
            of_weight = self.known[owner].axes if role in PADDED_ROLES else ()
            dividing = [axis for axis in axes if axis in of_weight and left(axis) > 1]
        return max(dividing, key=left) if dividing else None

    def spec(self, name: str, value: Value, busy: frozenset[str] = frozenset()) -> Split:
        """Return the shard spec of a value: the mesh axes that shard each of its axes, without busy ones."""
        key = name, value, busy
        if key not in self._specs:  # cached, as every line needs the specs of its operands
            split: dict[str, list[str]] = {}
            for mesh_axis, (_, axis) in self.applied_clauses(name, value).items():
                if mesh_axis not in busy:
                    split.setdefault(axis, []).append(mesh_axis)
            self._specs[key] = tuple(self.nested(axis, split.get(axis, ())) for axis in value.axes)
            for axis, names in zip(value.axes, self._specs[key], strict=True):
                if names:
                    self._part(axis, names)
        return self._specs[key]

    def _part(self, axis: str, names: Iterable[str]) -> int:
        """Return the size of a shard of an axis; one that is not divisible is recorded as padded."""
        text, size, divides = base(axis), self.size(base(axis)), True
        for name in names:
            number, text = self.mesh.sizes[name], f"{text}/{name}"
            divides, size = divides and size % number == 0, -(-size // number)
            if not divides:
                self.filled[text] = size
        return size

    def undivided(self) -> dict[str, tuple[str, ...]]:
        """Return, by mesh axis, the weights without axes that the mesh axis should shard along their largest axis."""
        whole: dict[str, dict[str, None]] = {}
        for name in (*self.table.weights, *self.table.inputs):
            value = self.known[name]
            role, owner = self.kind(name, value)
            if owner in self.table.weights:
                cut = self.applied_clauses(name, value).keys()
                for place, mesh_axis in self._fitting(role, owner, name, value):
                    if self.clauses[place].largest and mesh_axis not in cut:
                        whole.setdefault(mesh_axis, {})[owner] = None
        return {mesh_axis: tuple(names) for mesh_axis, names in whole.items()}

    def nested(self, axis: str, mesh_axes: Iterable[str]) -> tuple[str, ...]:
        """Return the mesh axes in the order in which they shard an axis, outermost first."""
        several = tuple(mesh_axes)
        if len(several) < 2:
            return several
        return tuple(sorted(several, key=lambda mesh_axis: self.rank(mesh_axis, axis)))


def parts_of(table: Table, mesh: Mesh, chosen: Iterable[Clause], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the number of shards of each axis that the clauses name and along which they shard a value of a table."""
    chosen = tuple(chosen)
    large = {name: size * mesh.devices if size > 1 else 1 for name, size in sizes.items()}
    specs, numbers = ShardSpecs(table, mesh, chosen, large), dict[str, int]()
    for name, value in table.known.items():
        parts: dict[str, int] = {}
        for mesh_axis, (clause, axis) in specs.applied_clauses(name, value).items():
            if clause < len(chosen):
                parts[base(axis)] = parts.get(base(axis), 1) * mesh.sizes[mesh_axis]
        numbers |= {axis: lcm(number, numbers.get(axis, 1)) for axis, number in parts.items()}
    return numbers


def kind_of(table: Table, name: str, value: Value) -> tuple[str, str]:
    """Return the role of a table's value in clauses, and the value that it belongs to."""
    steps, last = [value.role], name
    values = table.known
    while value.of and value.role in _OF and value.of != last:
        last = value.of
        if value.of not in values:
            break
        value = values[value.of]
        steps.append(value.role)
    if last in table.weights:
        if "state" in steps:
            return "states", last
        return ("gradients" if _GRADIENT & {*steps} else "weights"), last
    is_given = last in table.inputs and value.role not in DRAWN and value.role != "received"
    return ("inputs" if is_given and not {*steps} & (_GRADIENT | {"new"}) else "values"), last


_GRADIENT = {"gradient", "part", "unsummed", "gathered"}
_OF = {"gradient", "part", "unsummed", "gathered", "new", "saved", "copy", "step", "inner", "state", *DRAWN}


def _begins(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith((f"{beginning}.", f"{beginning}@"))


def _of_pairs(axes: Iterable[str]) -> bool:
    """Return whether the axes include pairs of positions, as those of attention scores: M and M', or M and N."""
    axes = [*axes]
    bases = [base(axis) for axis in axes]
    return len({*bases}) < len(bases) or {"M", "N"} <= {*bases}


@lru_cache(maxsize=16)
def _counts_and_experts(same: IdentityKey[Table]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the sizes that are trip counts of a table's loops, without the batch, and the weights of experts."""
    table = same.content
    counts = {base(count).partition("/")[0] for _, nest in walk(table.lines) for count in nest.counts} - {"B"}
    return frozenset(counts), frozenset(_read_at_a_choice(table))


def _read_at_a_choice(table: Table) -> Iterator[str]:
    """Yield the weights that lines read at a computed index, such as those of experts."""
    made = {name for line, _ in walk(table.lines) for name in line.makes}
    for line, nest in walk(table.lines):
        for term in line.right:
            indices = (axis.at for axis in term.indexed_axes) if isinstance(term, Term) else ()
            weight = nest.stacks.get(term.name, term.name)
            if weight in table.weights and any(isinstance(at, Term) and at.name in made for at in indices):
                yield weight


def _not_dividing(axis: str, size: int, cut: Iterable[str], clause: Clause, mesh: Mesh) -> str:
    number = mesh.sizes[clause.mesh]
    for other in cut:
        number *= mesh.sizes[other]
    over = " and ".join((*cut, clause.mesh))
    following = -(-size // number) * number
    return (
        f"{in_words(axis)} is {size:,}, which is not divisible by the {number:,} devices of {over}: the next divisible "
        f"size is {following:,} (sharding rule {str(clause)!r}; --placement and --place choose others)"
    )
