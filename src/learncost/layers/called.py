"""Expand a call of a layer into the layer's lines and loops, under the caller's names and axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import NotationError
from learncost.ir.line import Condition, Line, Meta
from learncost.ir.loop import Carry, Loop, Statement, walk, windows
from learncost.ir.parsed import LayerCall, Parsed, ParsedLoop
from learncost.ir.polynomial import base
from learncost.ir.scope import Axes, AxesOf, Expanded
from learncost.ir.table import Table
from learncost.ir.value import DRAWN, FIXED, IdentityKey
from learncost.layers.spelling import primed


def expanded(table: Table, call: LayerCall, axes_of: AxesOf) -> Expanded:
    """Return the lines of the called layer under the caller's names and axes, and the weights and masks that they add.

    The roles of the called layer's inputs, such as constants, become roles of the caller's inputs.
    """
    weights, _ = _weight_names(call, table.weights)
    known = ((name, axes_of(name)) for name in (*call.arguments, *weights.values()))
    return _expanded(IdentityKey(table), call, tuple((name, axes) for name, axes in known if axes is not None))


@lru_cache(maxsize=256)  # models of one family call the same layers under the same names
def _expanded(same: IdentityKey[Table], call: LayerCall, known: tuple[tuple[str, tuple[str, ...]], ...]) -> Expanded:
    table = same.content
    drawn = tuple(name for name in table.inputs if table.values[name].role in DRAWN)
    inputs = tuple(name for name in table.inputs if name not in drawn)
    if len(call.arguments) != len(inputs):
        raise NotationError(f"{table.title} takes {len(inputs)} inputs, not {len(call.arguments)}", call.text)
    if len(call.left) != len(table.outputs):
        raise NotationError(f"{table.title} gives {len(table.outputs)} outputs, not {len(call.left)}", call.text)
    weights, prefix = _weight_names(call, table.weights)
    moved = _InlinedCall(call, prefix, table.title)
    masks = {name: moved.inner_name(name) for name in drawn}
    arguments = dict(zip(inputs, call.arguments, strict=True))
    names = arguments | weights | masks
    names |= {inner: term.name for inner, term in zip(table.outputs, call.left, strict=True)}
    moved.axes = _axis_names(call, table, dict(known), arguments | weights)
    before = set(names)
    lines = moved.statements(table.lines, names)
    for condition in call.where:
        if condition not in moved.restricted:
            raise NotationError(f"where {condition}: no line of {table.title} has both axes", call.text)
    roles_inside = {
        name: table.values[name] for name in (*drawn, *inputs) if table.values[name].role in (*FIXED, "kind", "end")
    }
    renaming = {**names, **moved.axes}
    roles = {names[name]: replace(value, of=renaming.get(value.of, value.of)) for name, value in roles_inside.items()}
    added = frozenset(new for name, new in names.items() if name not in before)
    return Expanded(lines, tuple(weights.values()), tuple(masks.values()), roles, added)


def within(path: str, inner: str) -> str:
    """Return the path of an inner module of a module; "" means no module, "." the outer module itself."""
    return path if inner in ("", ".") else inner if path in ("", ".") else f"{path}.{inner}"


def own_equations(equations: Mapping[str, str], table: Table, call: LayerCall) -> dict[str, str]:
    """Return the equation numbers of a called layer's derived lines, by the caller's names."""
    names = dict(zip(table.inputs, call.arguments, strict=False))  # masks follow the inputs
    names |= {inner: term.name for inner, term in zip(table.outputs, call.left, strict=True)}
    return {f"{name[0]}{names.get(name[1:], name[1:])}": number for name, number in equations.items()}


@dataclass
class _InlinedCall:
    """The renaming of a called layer's lines; `restricted` has the conditions of the call that apply to some line."""

    call: LayerCall
    prefix: str
    title: str
    axes: Mapping[str, str] = field(default_factory=dict)
    restricted: set[Condition] = field(default_factory=set)

    def statements(self, lines: Iterable[Statement], names: dict[str, str]) -> tuple[Parsed, ...]:
        """Return lines under the caller's names; `names` receives the names of their results."""
        result: list[Parsed] = []
        for line in lines:
            names |= {name: self.inner_name(name) for name in line.makes if name not in names}
            result.append(self.block(line, names) if isinstance(line, Loop) else self.line(line, names))
        return tuple(result)

    def inner_name(self, name: str) -> str:
        return f"{self.prefix}.{name}" if self.prefix else name

    def line(self, line: Line, names: Mapping[str, str]) -> Line:
        meta, module, block = line.meta, within(self.call.module, line.meta.module), self.call.block or line.meta.block
        if self.call.is_own and meta.layer == self.title:  # as if the caller contained the line
            meta = Meta(block=block, equation=meta.equation, operator=meta.operator, module=module, again=meta.again)
        else:
            binding = tuple((letter, base(self.axes.get(now, now))) for letter, now in meta.binding)
            meta = replace(meta, block=block, binding=binding, module=module)
        moved = line.renamed(names, self.axes, meta=meta)
        where = tuple(c for c in self.call.where if c.axes <= set(moved.loops))
        self.restricted.update(where)
        return moved.with_changed(where=(*moved.where, *where)) if where else moved

    def block(self, repeat: Loop, names: Mapping[str, str]) -> ParsedLoop:
        """Return a loop with inner names that differ from those of the call's arguments."""
        sliced = tuple(names[outer] for inside, outer in repeat.each if inside == outer)
        slices = [(inside, outer) for inside, outer in repeat.each if inside != outer]
        inner = {**names} | {name: self.inner_name(name) for name in repeat.inside if (name, name) not in repeat.each}
        return ParsedLoop(
            base(self.axes.get(repeat.count, repeat.count)),
            tuple(Carry(inner[c.start], inner[c.end], names[c.initial], names[c.final]) for c in repeat.carry),
            tuple((inner[inside], names[outer]) for inside, outer in slices),
            tuple((names[outer], inner[inside]) for inside, outer in repeat.keep),
            (),
            self.statements(repeat.lines, inner),
            self.call.text,
            repeat.reverse,
            sliced,
        )


def _weight_names(call: LayerCall, weights: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Return the caller's names of the called layer's weights, and the prefix of its other names.

    A call gives one name for each weight or one prefix. The default prefix is the name on the call's left side; a call
    with `*` keeps all names.
    """
    if call.is_own:
        return {name: name for name in weights}, ""
    prefix = call.weights[0] if len(call.weights) == 1 < len(weights) else call.left[0].name
    if len(call.weights) == len(weights):
        return dict(zip(weights, call.weights, strict=True)), prefix
    if len(call.weights) == 1:
        return {name: f"{prefix}.{name}" for name in weights}, prefix
    raise NotationError(f"{call.layer} has {len(weights)} weights: give one prefix or as many names", call.text)


def _axis_names(call: LayerCall, table: Table, known: Axes, names: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's names of the layer's axes, from the call, its arguments and its left side."""
    axes = dict(call.axes)
    loops, sizes, counts = _axes_inside(IdentityKey(table))
    if fixed := [axis for axis, new in call.axes if new.isdecimal() and axis not in counts]:
        raise NotationError(f"{fixed[0]} is an axis of {call.layer}: give it a name, not a number", call.text)
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for inner, outer in names.items():
        if inner in table.axes and outer in known:
            pairs.append((table.axes[inner], known[outer]))
    pairs += [(table.axes[inner], term.declared) for inner, term in zip(table.outputs, call.left, strict=True)]
    for inner_axes, outer_axes in pairs:
        if len(inner_axes) != len(outer_axes):
            raise NotationError(
                f"{call.layer} expects the axes {' '.join(inner_axes)}, not {' '.join(outer_axes)}", call.text
            )
        for inner_axis, outer_axis in zip(inner_axes, outer_axes, strict=True):
            if base(axes.setdefault(inner_axis, outer_axis)) != base(outer_axis):
                raise NotationError(
                    f"axis {inner_axis} of {call.layer} would be {axes[inner_axis]} and {outer_axis}", call.text
                )
    if unknown := [axis for axis, _ in call.axes if base(axis) not in sizes]:
        raise NotationError(f"{call.layer} has no axis {unknown[0]}; it has {', '.join(sizes)}", call.text)
    for axis in loops:
        if axis not in axes and axis != base(axis) and base(axis) in axes:  # a second axis of a known size
            axes[axis] = primed(base(axes[base(axis)]), axes.values())
    axis_of_name: dict[str, str] = {}
    for axis in loops:
        name = axes.get(axis, axis)
        if (first := axis_of_name.setdefault(name, axis)) != axis:
            raise NotationError(
                f"axes {first} and {axis} of {call.layer} would both be {name}: rename one of them, "
                f"as in `; ..., {axis} = {name}'`",
                call.text,
            )
    return axes


@lru_cache(maxsize=256)
def _axes_inside(same: IdentityKey[Table]) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Return the axes of a layer's lines, its sizes, and those that are trip counts of loops."""
    table = same.content
    counts = {iteration for _, nest in walk(table.lines) for iteration in nest.counts}
    loops = dict.fromkeys(axis for line, _ in walk(table.lines) for axis in line.loops)
    sizes = [base(axis) for value in table.known.values() for axis in value.axes]
    every = dict.fromkeys((*sizes, *windows(table.lines), *sorted(counts)))
    return tuple(loops), tuple(every), frozenset(counts)
