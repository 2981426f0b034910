"""Records: objects of a model's weights, of an iteration's weights, and of saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from learncost.backends.expression import Identifiers
from learncost.ir.dataclass import dataclass, field
from learncost.ir.table import Table

FEW = 6
"""The most weights of a model with loops that are separate arguments; more are one record."""


@dataclass(frozen=True)
class RecordNode:
    """A record or a part of one: its class and its fields, each a name of the table, a part, or None."""

    record: str
    fields: tuple[Tree, ...]


Tree: TypeAlias = "str | RecordNode | None"


def leaves(tree: Tree) -> Iterator[str]:
    """Yield the names in a tree."""
    if isinstance(tree, RecordNode):
        for part in tree.fields:
            yield from leaves(part)
    elif tree is not None:
        yield tree


def renamed(tree: Tree, names: Mapping[str, str]) -> Tree:
    """Return the tree with other names; fields without one are None."""
    if isinstance(tree, RecordNode):
        return RecordNode(tree.record, tuple(renamed(part, names) for part in tree.fields))
    return names.get(tree) if tree is not None else None


def fill(tree: Tree, values: Mapping[str, Any], namespace: Mapping[str, Any]) -> Any:
    """Return the argument that a tree describes, from arrays by name and the classes of an executed program."""
    if isinstance(tree, RecordNode):
        return namespace[tree.record](*(fill(part, values, namespace) for part in tree.fields))
    return None if tree is None else values[tree]


def unfold(tree: Tree, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a result with their names in the table."""
    if isinstance(tree, RecordNode):
        for part, field_value in zip(tree.fields, value, strict=True):
            yield from unfold(part, field_value)
    elif tree is not None:
        yield tree, value


@dataclass(frozen=True)
class Record:
    """A class of the program: its name, description, and fields with names and axes."""

    name: str
    title: str
    fields: tuple[tuple[str, str, str], ...]  # identifier, type, remark

    def __str__(self) -> str:
        lines = [f"class {self.name}(NamedTuple):", f'    """{self.title}"""', ""]
        wide = max(len(f"{name}: {kind}") for name, kind, _ in self.fields)
        for name, kind, remark in self.fields:
            declared = f"{name}: {kind}"
            lines.append(f"    {declared.ljust(wide)}  # {remark}" if remark else f"    {declared}")
        return "\n".join(lines)


def groups(table: Table) -> list[tuple[str, ...]]:
    """Return the weights in groups sliced by the same loops, in the order of the table's weights."""
    merged: list[set[str]] = []
    for loop in table.repeats:
        sliced = {outer for _, outer in loop.each if outer in table.weights}
        for other in [group for group in merged if group & sliced]:
            merged.remove(other)
            sliced |= other
        merged += [sliced] if sliced else []
    ordered = [tuple(name for name in table.weights if name in group) for group in merged]
    return sorted(ordered, key=lambda group: table.weights.index(group[0]))


@dataclass(frozen=True)
class WeightGroup:
    """Weights with a slice for every iteration of some loops: a record of stacks, which is a field of the model's."""

    field: str
    record: str
    names: tuple[str, ...]

    @property
    def node(self) -> RecordNode:
        return RecordNode(self.record, self.names)


@dataclass(frozen=True)
class WeightRecords:
    """The arguments of a program's weights: one each, or a record with a part for each group."""

    tree: RecordNode | None = None
    records: tuple[Record, ...] = ()
    groups: tuple[WeightGroup, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)  # of a weight, in the record: wte, block.attn_WQ

    @staticmethod
    def of(table: Table, names: Identifiers, array: str, titled: Callable[[Sequence[str]], str]) -> WeightRecords:
        """Return the records of a table's weights; `titled` returns the name of a group's iterations."""
        slices_together = groups(table)
        if len(table.weights) <= FEW or not slices_together:
            return WeightRecords()
        record_name = names.of("Weights", "class")
        used_names = {names.of(name) for name in table.weights}
        grouped = [_group(group, titled(group), names, used_names) for group in slices_together]
        records = [
            Record(
                group.record,
                "One iteration's weights; in Weights each is a stack of all iterations.",
                tuple((names.of(name), array, _axes(table.axes[name][1:])) for name in group.names),
            )
            for group in grouped
        ]
        member = {name: group for group in grouped for name in group.names}
        fields: dict[str, tuple[str, str, str]] = {}
        parts: dict[str, Tree] = {}
        paths = {}
        for name in table.weights:
            field_name, axes = names.of(name), table.axes[name]
            if name not in member:
                fields[field_name], parts[field_name], paths[name] = (field_name, array, _axes(axes)), name, field_name
                continue
            group = member[name]
            fields[group.field] = (group.field, group.record, f"stacks of {axes[0]}")
            parts[group.field], paths[name] = group.node, f"{group.field}.{field_name}"
        about = "All weights, or what belongs to each of them: gradients, an optimizer's state."
        records.append(Record(record_name, about, tuple(fields.values())))
        return WeightRecords(RecordNode(record_name, tuple(parts.values())), tuple(records), tuple(grouped), paths)


def _group(weights: tuple[str, ...], title: str, names: Identifiers, used_names: set[str]) -> WeightGroup:
    record = names.of(title.title().replace("_", ""), f"class {weights[0]}")
    field_name, number = title, 2
    while field_name in used_names:
        field_name, number = f"{title}_{number}", number + 1
    used_names.add(field_name)
    return WeightGroup(field_name, record, weights)


def _axes(axes: Iterable[str]) -> str:
    return f"[{' '.join(axes)}]"
