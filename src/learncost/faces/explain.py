"""`learncost explain LAYER`: forward, backward and weight update line by line, and what must be kept between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import get_args

from learncost.equation.count import Count, base
from learncost.equation.errors import InputError
from learncost.equation.table import Repeat, Statement, Table, Word, walk
from learncost.faces.explanation import Explanation, Format, Kept, Part, Step
from learncost.faces.subject import Subject, subject
from learncost.readings import write
from learncost.readings.live import live
from learncost.readings.price import price


def explain(
    layer: str,
    /,
    *,
    price_book: str = "run",
    jacobian: bool | None = None,
    optimizer: str | None = None,
    format: Format = "text",
) -> Explanation:
    """A layer's forward, backward and weight update line by line, with costs and what must be kept between them.

    Parameters
    ----------
    layer
        The name of a layer (learncost list layers), or a file in the notation, whose name ends in .table.
    price_book
        What one operation costs: run, paper, paper-corrected or matmul.
    jacobian
        Backward through explicit Jacobians, or in closed form. The default is as the price book does it.
    optimizer
        For the layer optimizer, what updates the weights: adamw, sgd or momentum. The default is adamw, and sgd
        under the paper's price books.
    format
        How the result is written: text, markdown, latex or json.

    Examples
    --------
    learncost explain attention
        Attention line by line.
    """
    if format not in get_args(Format):
        raise InputError(f"no format is called {format!r} (there are {', '.join(get_args(Format))})")
    found = subject(layer, price_book, jacobian, optimizer)
    parts = tuple(Part(macro, tuple(_steps(table, found))) for macro, table in found.tables.items())
    source = found.layer.source
    return Explanation(found.name, source, found.book, found.jacobian, parts, _kept(found), found.axes, format)


def _steps(table: Table, found: Subject) -> Iterator[Step]:
    """The lines with their prices; the heading of a repeat is a line without a price."""
    rows = iter(price(table, {}, found.book).rows)

    def statements(lines: Iterable[Statement], depth: int) -> Iterator[Step]:
        for line in lines:
            if isinstance(line, Repeat):
                yield Step("", str(line).split("\n", 1)[0], "", "", Count(), Count(), depth)
                yield from statements(line.lines, depth + 1)
                continue
            row = next(rows)
            bare = replace(line, tag=replace(line.tag, equation=""))
            yield Step(
                write.equation(line),
                str(bare),
                write.latex(bare, found.known),
                write.mathml(bare, found.known, display=False),
                row.maccs,
                row.flops,
                depth,
                row.outside_paper,
            )
            if withdrawn := found.book.withdrawn.get((line.tag.layer, line.tag.local)):
                back = next(rows)
                text = f"the publication's total leaves {write.equation(line)} out"
                yield Step(withdrawn, text, "", "", back.maccs, back.flops, depth)

    yield from statements(table.lines, 0)
    assert next(rows, None) is None


def _kept(found: Subject) -> tuple[Kept, ...]:
    """What `live` finds kept, with the lines that read it. Sizes do not matter, only names and axes are used."""
    if found.derived is None:
        return ()
    step = found.derived.step
    sizes = {base(axis) for axes in step.axes.values() for axis in axes}
    sizes |= {count for _, turns in walk(step.lines) for count in turns}
    held = live(found.derived, dict.fromkeys(sorted(sizes), 2)).kept
    readers: dict[str, list[str]] = {}
    for line, _ in walk(found.derived.reverse.lines):
        for name in line.reads:
            readers.setdefault(name, []).append(line.name)
    given = frozenset(found.layer.table.inputs)
    inner = _inner(step)
    kept = []
    for item in held:
        name = item.name.removesuffix("*")  # a stack of all turns is read inside the repeat under the plain name
        reading = tuple(dict.fromkeys(readers.get(name, ())))
        kept.append(Kept(item.name, item.axes, item.name in given, reading, *inner.get(name, ())))
    return tuple(kept)


def _inner(table: Table) -> dict[str, tuple[str, str]]:
    """The values that come from inside a word's body, with the word and their names there."""
    return {
        term.name: (line.word, name)
        for line, _ in walk(table.lines)
        if isinstance(line, Word)
        for term, name in zip(line.left, line.gives, strict=True)
        if ":" in term.name and line.part == "body"
    }
