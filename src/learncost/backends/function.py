"""The printer of a function: parameters with axes, sizes and masks, statements, and `del` after last uses."""

from __future__ import annotations

from collections.abc import Sequence, Set

from learncost.backends.scope import EmittedStatement, FunctionScope, Mask
from learncost.ir.dataclass import dataclass
from learncost.ir.polynomial import base, sharded_over, whole

COLUMN = 64
"""The column of comments, unless the code before is longer."""
WIDEST = 118


@dataclass(frozen=True)
class FunctionParameter:
    """A parameter, its type or the axes of its array, and the caller's argument."""

    name: str
    kind: str = ""
    axes: tuple[str, ...] | None = None
    argument: str = ""

    def __str__(self) -> str:
        declared = f"{self.name}: {self.kind}," if self.kind else f"{self.name},"
        return declared if self.axes is None else _remarked(declared, f"[{' '.join(self.axes)}]", 24)


@dataclass(frozen=True)
class SizeSource:
    """An array parameter from which sizes are read."""

    text: str
    axes: tuple[str, ...]


def sizes(scope: FunctionScope, sources: Sequence[SizeSource]) -> tuple[list[EmittedStatement], list[str]]:
    """Return statements that read sizes from arrays, and the sizes that no array has."""
    needed = dict(scope.sizes)
    chosen: dict[int, list[str]] = {}
    missing = []
    for size in needed:
        places = [i for i, source in enumerate(sources) if size in map(base, source.axes)]
        if not places:
            missing.append(size)
            continue
        best = next((i for i in places if i in chosen), places[0])
        chosen.setdefault(best, []).append(size)
    statements = []
    for place, sizes_read in chosen.items():
        source = sources[place]
        if len(sizes_read) == 1:
            at = [base(axis) for axis in source.axes].index(sizes_read[0])
            statements.append(EmittedStatement(f"{needed[sizes_read[0]]} = {source.text}.shape[{at}]"))
            continue
        targets, rest = [], set(sizes_read)
        for axis in map(base, source.axes):
            targets.append(needed[axis] if axis in rest else "_")
            rest.discard(axis)
        statements.append(EmittedStatement(f"{', '.join(targets)} = {source.text}.shape"))
    return statements, missing


def masks(scope: FunctionScope, chosen: Set[Mask] | None = None) -> list[EmittedStatement]:
    """Return the statements that define the masks of a function, by default all."""
    statements = []
    for key, name in scope.masks.items():
        if chosen is not None and key not in chosen:
            continue
        statements.append(EmittedStatement(f"{name} = {_inside(scope, key)}", comment=scope.conditions[key]))
    return statements


def _inside(scope: FunctionScope, key: Mask) -> str:
    """Return the mask's expression: lower <= upper (or <, =, !=), and upper - lower < window."""
    upper, lower, relation, window, zigzag = key
    ahead = "".join(f" {sign} {scope.first(axis)}" for sign, axis in (("+", upper), ("-", lower)) if sharded_over(axis))
    if relation not in ("<", "<=") or upper.isdigit() or lower.isdigit() or any(zigzag):
        lower_index, upper_index = (
            _positions(scope, side, over) for side, over in zip((lower, upper), zigzag, strict=True)
        )
        if not upper.isdigit() and not lower.isdigit():
            upper_index += "[:, None]"
        text = f"{lower_index} {'==' if relation == '=' else relation} {upper_index}"
        return text if window is None else f"({text}) & ({upper_index} < {lower_index} + {scope.size(window)})"
    rows, columns = scope.size(upper), scope.size(lower)
    place = f"{'-1' if relation == '<' else '0'}{ahead}".removeprefix("0 + ")
    text = scope.backend.ones_below(rows, columns, place, scope.like).text
    if window is not None:
        text += f" & ~{scope.backend.ones_below(rows, columns, f'-{scope.size(window)}{ahead}', scope.like).text}"
    return text


def _positions(scope: FunctionScope, side: str, over: tuple[str, ...]) -> str:
    """Return the global positions of an axis, in zigzag order over mesh axes; a number as it is."""
    if side.isdigit():
        return side
    text = scope.backend.arange(scope.size(side), scope.like).text
    text = f"({text} + {scope.first(side)})" if sharded_over(side) else text
    if over:
        scope.helpers.library("zigzag")
        scope.meets = True
        devices = " * ".join(scope.backend.devices_along(mesh_axis) for mesh_axis in over)
        return f"zigzag({text}, {scope.size(base(whole(side)))}, {devices})"
    return text


def freed(scope: FunctionScope, keep: set[str]) -> list[EmittedStatement]:
    """Return the statements with `del` statements after last uses."""
    if not scope.backend.releases:
        return scope.statements
    owner = scope.owners
    last: dict[int, list[str]] = {}
    alive: dict[str, int] = {}
    for place, statement in enumerate(scope.statements):
        for name in statement.reads:
            name = owner.get(name, name)
            if name in alive:
                alive[name] = place
        for name in statement.makes:
            if name in alive and place not in (alive[name],):
                last.setdefault(alive[name], []).append(name)
            alive[name] = place
    for name, place in alive.items():
        if name not in keep and place < len(scope.statements) - 1:
            last.setdefault(place, []).append(name)
    result = []
    for place, statement in enumerate(scope.statements):
        result.append(statement)
        dead = [scope.variables.get(name) or scope.identifiers.of(name) for name in dict.fromkeys(last.get(place, ()))]
        dead = [name for name in dead if name]
        if dead:
            result.append(EmittedStatement(f"del {', '.join(dead)}"))
    return result


def text(
    name: str,
    parameters: Sequence[FunctionParameter],
    about: str,
    first: Sequence[EmittedStatement],
    rest: Sequence[EmittedStatement],
) -> str:
    """Return the text of the function."""
    lines = [f"def {name}(", *(f"    {parameter}" for parameter in parameters), "):", f'    """{about}"""']
    lines += _block(first)
    if first and rest and not rest[0].heading:
        lines.append("")
    lines += _block(rest)
    return "\n".join(lines)


def _block(statements: Sequence[EmittedStatement]) -> list[str]:
    lines: list[str] = []
    for statement in statements:
        if statement.heading:
            lines += ["", f"    # {statement.heading}"]
        body = [f"    {line}" for line in statement.text.splitlines()]
        if statement.comment and len(body) == 1:
            remarked = _remarked(body[0], statement.comment, COLUMN)
            body = [remarked] if len(remarked) <= WIDEST else [f"    # {statement.comment}", *body]
        elif statement.comment:
            body.insert(0, f"    # {statement.comment}")
        lines += body
    return lines


def _remarked(line: str, remark: str, column: int) -> str:
    return f"{line.ljust(column - 2)}  # {remark}"
