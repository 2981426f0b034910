"""The sizes of a step as controls: which may be changed, what follows from them, and the axes that counts are in."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from learncost.ir.dataclass import Serializable, dataclass
from learncost.ir.errors import InputError
from learncost.models.compose import SYMBOLS
from learncost.models.configuration import family_of, in_order
from learncost.models.expression import Tree, evaluate, tree
from learncost.models.model import Model
from learncost.models.sizes import MODEL_SIZES, RUN_SIZES
from learncost.models.tables import letters
from learncost.procedures.decoding import ALL, CACHED, KEPT, RECENT, axis_of
from learncost.reports.record import Cost

_MEANINGS = {size.name: size.meaning for size in (*RUN_SIZES, *MODEL_SIZES)} | {
    "context": "tokens in the cache before the step"
}
LETTERS: Mapping[str, frozenset[str]] = {"batch_size": frozenset("B"), "seq_len": frozenset("MN")}
"""The axes of a table whose size a size of the run says."""

_SIZES = {symbol: size for size, symbol in SYMBOLS.items()}


@dataclass(frozen=True)
class NamedSize(Serializable):
    """A size, its value, what it counts, and what it is called in formulas.

    rule     what it follows from where nobody gives it; None: it is given
    changes  whether counts stay the same polynomials when it changes
    most     the largest that there may be, where something limits it
    """

    name: str
    value: int
    meaning: str
    symbol: str
    rule: Tree | None = None
    changes: bool = False
    most: Tree | None = None


@dataclass(frozen=True)
class Sizes(Serializable):
    """The sizes in an order in which each follows from earlier ones, and the axes as expressions in them."""

    sizes: tuple[NamedSize, ...]
    axes: Mapping[str, Tree]


def sizes_of(step: Cost, names_given: Container[str], built_with: Callable[[Mapping[str, int]], Model]) -> Sizes:
    """Return the sizes of a step.

    names_given  the sizes of the run that were asked for: they follow from nothing
    built_with   the same model with other sizes; raises `InputError` where there is none
    """
    assert step._built is not None
    assert step._priced is not None
    model, axes = step._built, step._priced.sizes
    configuration, family = model.configuration, family_of(model.configuration)
    fixed = family.fixed and evaluate(family.fixed, configuration.values)
    free = {name for name in configuration.sizes if _changes(model, name, built_with)}
    values = dict(configuration.values)
    run = {"batch_size": axes["B"], "seq_len": step.seq_len}
    if family.layer is not None:  # a table may be of one sample, or of no sequences
        there = letters(family.layer)
        run = {name: size for name, size in run.items() if there.keys() & LETTERS[name]}
    run |= {"target_len": step.target_len} if step.target_len is not None else {}
    run |= {"context": step.context} if step.context is not None else {}
    limit = tree(family.limit, values, free) if family.limit else None
    derived = {name: configuration.derived[name] for name in in_order(family) if name in configuration.derived}
    rules: dict[str, Tree] = {}
    for name, rule in derived.items():
        try:
            rules[name] = tree(rule, values, free | set(rules))
        except InputError:
            continue
    sizes = []
    order = [*(name for name in configuration.sizes if name not in rules), *(n for n in derived if n in rules)]
    for name in order:
        symbol = SYMBOLS.get(name, "")
        sizes.append(
            NamedSize(name, configuration.sizes[name], _MEANINGS.get(name, ""), symbol, rules.get(name), name in free)
        )
    names = free | set(rules) | run.keys()
    for name, value in run.items():
        changes = not (fixed and name == "seq_len") and (name in ("batch_size", "context") or step.context is None)
        most = limit if name != "batch_size" and changes else None
        usual = None if name in names_given else _usual(name, step, values, names)
        sizes.append(NamedSize(name, value, _MEANINGS[name], "", usual, changes, most))
    return Sizes(tuple(sizes), dict(_axes(step, model, values, free | set(rules), run)))


def _usual(name: str, step: Cost, values: Mapping[str, Any], free: Container[str]) -> Tree | None:
    """Return the rule of a size's default: lengths follow the model's context, at most 4,096."""
    assert step._built is not None
    family = family_of(step._built.configuration)
    rule = {"seq_len": family.fixed or family.usual_length, "target_len": family.usual_target_length or "seq_len"}.get(
        name
    )
    if step.context is not None:
        new = "target_len" if step._built.two_sided else "seq_len"
        rule = f"{family.usual_target_length or family.usual_length} - {new}" if name == "context" else None
    try:
        usual = tree(rule, {**values, "seq_len": step.seq_len, "target_len": step.target_len}, free) if rule else 0
    except InputError:
        return None
    return usual or None  # 0 where a run has to say it


def _axes(
    step: Cost, model: Model, values: Mapping[str, Any], free: set[str], chosen: Container[str]
) -> Iterator[tuple[str, Tree]]:
    """Return each axis as an expression in the sizes. With a cache, lengths are those of all tokens.

    chosen  the sizes of the run that can be chosen
    """
    assert step._priced is not None
    axes = step._priced.sizes
    new_tokens = "target_len" if model.two_sided else "seq_len"
    meant = {"B": "batch_size", "M": new_tokens, "N": "seq_len"}
    run: dict[str, Tree] = {axis: name if name in chosen else 1 for axis, name in meant.items()}
    with_cache: dict[str, Tree] = run if step.context is None else {**run, "M": ["+", "context", new_tokens]}
    for axis in axes:
        name = _SIZES.get(axis)
        if axis in run:
            yield axis, run[axis]
        elif axis in model.rules:
            try:
                yield axis, _put_in(tree(model.rules[axis], {**values, **axes}, free | set(run)), with_cache)
            except InputError:
                yield axis, axes[axis]
        elif name in free:
            yield axis, name
        elif step.context is not None and axis.partition(".")[0] in (CACHED, ALL):
            window = axis.partition(".")[2]
            cached: Tree = (
                ["min", "context", int(window) - 1 if window.isdigit() else axes[window] - 1] if window else "context"
            )
            yield axis, cached if axis.startswith(CACHED) else ["+", cached, new_tokens]
        elif axis.partition(".")[0] in (KEPT, RECENT):
            size = axis.partition(".")[2]
            kept = axes[axis_of(KEPT, size)]
            rows: Tree = tree(model.rules[size], {**values, **axes}, free) if size in model.rules else kept
            yield axis, rows if axis.startswith(KEPT) else ["+", rows, new_tokens]
        else:
            yield axis, axes[axis]


def _put_in(expression: Tree, names: Mapping[str, Tree]) -> Tree:
    if isinstance(expression, str):
        return names.get(expression, expression)
    return (
        [expression[0], *(_put_in(part, names) for part in expression[1:])]
        if isinstance(expression, list)
        else expression
    )


def _changes(model: Model, name: str, built_with: Callable[[Mapping[str, int]], Model]) -> bool:
    """Return whether another value of a size leaves the table as it is, so that counts are the same polynomials."""
    value = model.configuration.sizes[name]
    for other in (2 * value, 3 * value, value // 2, value // 3, value + 1):
        if other < 1:
            continue
        try:
            other_model = built_with({name: other})
        except InputError:
            continue
        # others have no expression
        spelled_axes = [axis for axis in model.sizes if axis in model.rules or axis in _SIZES]
        rest = all(
            other_model.sizes.get(axis) == size for axis, size in model.sizes.items() if axis not in spelled_axes
        )
        return rest and other_model.table == model.table and other_model.trained == model.trained
    return False
