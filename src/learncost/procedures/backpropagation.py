"""Backpropagation, and backpropagation with every block's forward run again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from learncost.equation.table import Line, Repeat, Statement, Table
from learncost.layers.derive import Derived, derive
from learncost.models.model import Model


def backpropagation(model: Model, jacobian: bool = False) -> Derived:
    """Forward, backward and weight update of the weights that learn: nothing is derived that none of them needs."""
    return derive(model.table, wanted=model.learning, jacobian=jacobian)


def repeats(derived: Derived) -> list[tuple[Repeat, Repeat]]:
    """Every repeat of the forward table with its backward one; one that needs no backward pass is left out."""
    reverse = {
        carry.initial.removesuffix(".total"): line
        for line in derived.reverse.lines
        if isinstance(line, Repeat)
        for carry in line.carry
    }
    found = []
    for line in derived.forward.lines:
        if isinstance(line, Repeat):
            # What comes out of the last turn is whose gradient goes into the first turn backwards.
            back = [reverse[f"d{carry.final}"] for carry in line.carry if f"d{carry.final}" in reverse]
            found += [(line, back[0])] if back else []
    return found


def recomputed(derived: Derived) -> Table:
    """The step in which every block keeps only its input, and the backward pass runs every line of the block again."""
    changed: dict[int, Repeat] = {}
    axes = dict(derived.step.axes)
    for forward, reverse in repeats(derived):
        starts = tuple((carry.start, f"{carry.start}*") for carry in forward.carry)
        axes |= {outer: (forward.count, *forward.axes[start]) for start, outer in starts}
        kept = {inside for inside, _ in forward.keep}
        own = tuple(pair for pair in forward.keep if not pair[1].endswith("*"))  # stacks that later lines read
        each = dict.fromkeys((*forward.each, *(pair for pair in reverse.each if pair[0] not in kept), *starts))
        lines = (*in_macro(forward.lines, "recomputation"), *reverse.lines)
        changed[id(forward)] = replace(forward, keep=(*own, *starts))
        changed[id(reverse)] = replace(reverse, lines=lines, axes={**forward.axes, **reverse.axes}, each=tuple(each))
    return replace(derived.step, lines=tuple(changed.get(id(line), line) for line in derived.step.lines), axes=axes)


def in_macro(lines: Iterable[Statement], macro: str) -> tuple[Line, ...]:
    """Plain lines, labelled as another macro-operation."""
    return tuple(replace(line, tag=replace(line.tag, macro=macro)) for line in lines if isinstance(line, Line))
