"""Apply the plan fused-update: the optimizer step is fused into the backward pass, so that gradients are freed one by
one.

A weight of a block is updated in the block's backward iteration, any other weight right after the last line that
computes its gradient or reads the weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op
from learncost.ir.loop import Loop, Statement, defined
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value


def fused_update(table: Table) -> Table:
    """Return the step with the optimizer's lines right after the gradients, which are no longer outputs.

    Raises `InputError` if a line of the optimizer reads several gradients, as clipping by their norm does.
    """
    chains, common = _chains(table)
    moved = defined((*common, *(line for chain in chains.values() for line in chain)))
    lines: list[Statement] = [*common, *(line for line in table.lines if moved.isdisjoint(line.makes))]
    for gradient, chain in chains.items():
        arrays = {name for line in chain for name in line.reads if table.axes[name]}
        place = next(i for i, line in enumerate(lines) if gradient in line.makes)
        readers = [i for i, line in enumerate(lines) if i > place and not arrays.isdisjoint(line.reads)]
        maker = lines[place]
        if isinstance(maker, Loop) and not readers and gradient in {outer for _, outer in maker.keep}:
            lines[place] = _in_iterations(maker, gradient, chain, table)
        else:
            place = max((place, *readers)) + 1
            lines[place:place] = chain
    outputs = tuple(name for name in table.outputs if name not in chains)
    return replace(table, lines=tuple(lines), outputs=outputs)


def _chains(table: Table) -> tuple[dict[str, list[Line]], list[Line]]:
    """Map each gradient to the lines that update its weight: the optimizer's, and those of weight decay before them.

    The second result has the lines that read no gradient and belong to several updates, which run first.
    """
    made = [name for line in table.lines if not _updates(line) for name in line.makes]
    waits = {name: place for place, name in enumerate(made)}
    # A scalar, such as a power of two, does not prevent fusion if it is defined before.
    gradients = {n for n in made if table.axes[n] or n in table.outputs or table.values[n].role == "gradient"}
    chains: dict[str, list[Line]] = {}
    gradient_of: dict[str, str] = {}
    before: dict[str, Line] = {}  # lines that read only a weight, such as its decay
    for line in table.lines:
        if not isinstance(line, Line) or not _updates(line):
            continue
        read = {gradient_of.get(name, name) for name in line.reads if name in gradients or name in gradient_of}
        waits |= dict.fromkeys(line.makes, max((waits.get(name, -1) for name in line.reads), default=-1))
        if len(read) > 1 or any(waits[line.name] > waits[name] for name in read):
            raise InputError(
                "the plan fused-update updates a weight as soon as its gradient exists, but this update reads several: "
                f"{line.name} reads {max(2, len(read))} (to clip gradients by their norm, leave out fused-update)"
            )
        if not read:
            before |= dict.fromkeys(line.makes, line)
        for gradient in read:
            chains.setdefault(gradient, []).append(line)
            gradient_of |= dict.fromkeys(line.makes, gradient)
    needed = {gradient: _needed(chain, before) for gradient, chain in chains.items()}
    stacks = {outer for line in table.repeats for _, outer in line.keep}
    readers = Counter(name for lines in needed.values() for line in lines for name in line.makes)
    common: set[str] = set()
    for gradient, lines in needed.items():
        count = next(iter(table.axes[gradient]), "")
        for line in lines:
            identical = gradient not in stacks or (line.left[0].axes[:1] == (count,) and not _along(line, count))
            common |= set() if identical and readers[line.name] == 1 else set(line.makes)
    for line in reversed(before.values()):
        common |= set(line.reads) & before.keys() if not common.isdisjoint(line.makes) else set()
    for gradient, lines in needed.items():
        chains[gradient][:0] = [line for line in lines if common.isdisjoint(line.makes)]
    return chains, [line for line in dict.fromkeys(before.values()) if not common.isdisjoint(line.makes)]


def _needed(chain: Iterable[Line], before: Mapping[str, Line]) -> list[Line]:
    """Return the earlier lines that a chain needs, directly or indirectly, in order."""
    names = {name for line in chain for name in line.reads}
    result: list[Line] = []
    for line in reversed(dict.fromkeys(before.values())):
        if not names.isdisjoint(line.makes):
            names |= set(line.reads)
            result.insert(0, line)
    return result


def _along(line: Line, axis: str) -> bool:
    """Return whether an op acts along an axis, so that a slice of its result needs more than a slice of its operand."""
    return isinstance(line, Op) and axis in line.axes


def _updates(line: Statement) -> bool:
    return isinstance(line, Line) and line.meta.phase == "optimizer_step"


def _in_iterations(
    repeat: Loop, gradient: str, chain: Sequence[Line], table: Table, around: Mapping[str, Value] | None = None
) -> Loop:
    """Return the loop with the update of each iteration's weight instead of a stack of gradients.

    around   the values of the enclosing scope, for a loop inside another loop
    """
    values = table.values if around is None else around
    names = {outer: inside for inside, outer in (*repeat.keep, *repeat.each)}
    count = values[gradient].axes[:1]
    stacks = [n for line in chain for n in line.reads if values[n].axes[:1] == count and n != gradient]
    makes = [name for line in chain for name in line.makes]
    values_inside = dict(repeat.values)
    each = dict(repeat.each)
    for name in stacks:
        if name not in makes and name not in each.values():
            each[name] = name
    together = repeat.part(names[gradient], values[gradient].axes)
    first = (str(together),) if together else ()
    values_inside |= {
        names.get(name, name): values[name].along((*first, *values[name].axes[1:])) for name in (*stacks, *makes)
    }
    lines = list(repeat.lines)
    if together:  # several iterations' gradients are computed by an inner loop
        place, maker = next((i, line) for i, line in enumerate(lines) if names[gradient] in line.makes)
        assert isinstance(maker, Loop)
        lines[place] = _in_iterations(
            maker, names[gradient], [line.renamed(names) for line in chain], table, {**values, **values_inside}
        )
    else:
        _add(lines, gradient, chain, names, [*stacks, *makes])
    read = {name for line in chain for name in line.reads}
    new = tuple((name, name) for name in makes if name not in read or name in table.outputs)
    keep = tuple(pair for pair in repeat.keep if pair[1] != gradient)
    return replace(repeat, lines=tuple(lines), values=values_inside, each=tuple(each.items()), keep=(*keep, *new))


def _add(
    lines: list[Statement], gradient: str, chain: Sequence[Line], names: Mapping[str, str], stacks: Sequence[str]
) -> None:
    """Insert the update of an iteration's weight into the lines of the iteration."""

    def sliced(term: Term) -> Term:
        axes = term.axes[1:] if term.name in (gradient, *stacks) else term.axes
        return Term(names.get(term.name, term.name), axes)

    iteration = [
        replace(
            line,
            left=tuple(map(sliced, line.left)),
            right=tuple(sliced(term) if isinstance(term, Term) else term for term in line.right),
        )
        for line in chain
    ]
    arrays = {names.get(name, name) for name in (gradient, *stacks)}
    reading = (i for i in reversed(range(len(lines))) if not arrays.isdisjoint(lines[i].reads))
    making = (i for i in reversed(range(len(lines))) if names[gradient] in lines[i].makes)
    place = max(next(reading, -1), next(making))
    lines[place + 1 : place + 1] = iteration
