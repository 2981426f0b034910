"""`learncost explain`: a layer, a word or a model's layer line by line, and what must be kept between the passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast, get_args

from learncost.equation.count import Count, base
from learncost.equation.errors import InputError
from learncost.equation.table import Repeat, Statement, Table, Word, walk
from learncost.faces.explanation import Explanation, Format, Kept, Part, Step
from learncost.faces.of_model import model_explained
from learncost.faces.of_word import word_explained
from learncost.faces.subject import (
    Subject,
    is_layer,
    is_model,
    name_of,
    not_of_a_model,
    of_a_model,
    of_a_word,
    prepared,
)
from learncost.faces.subject import subject as find_subject
from learncost.layers.layer import Layer
from learncost.readings import write
from learncost.readings.live import live
from learncost.readings.price import price
from learncost.vocabulary import called


def explain(
    subject: str | Layer,
    layer: str | None = None,
    /,
    *,
    price_book: str = "run",
    procedure: str | None = None,
    jacobian: bool | None = None,
    optimizer: str | None = None,
    format: str = "text",
    batch_size: int | str | None = None,
    seq_len: int | str | None = None,
    target_len: int | str | None = None,
    **sizes: Any,
) -> Explanation:
    """A layer, a word, or a layer of a model, line by line: what every line costs, and what is kept between passes.

    Parameters
    ----------
    subject
        A layer, by its name or by what people call it (attention, mha, SwiGLU), a file in the notation, a word of the
        vocabulary (softmax), or a model as `lc.cost` takes it.
    layer
        Of a model: which of its layers; by default all of them.
    price_book
        What one operation costs: run, matmul, paper and others.
    procedure
        Of a model: the learning procedure of the step, bp by default.
    jacobian
        Of a layer: backward through explicit Jacobians, or in closed form; by default as the price book has it.
    optimizer
        Of a model and of the layer `optimizer`: adamw, sgd or momentum.
    format
        How it prints itself: text, markdown, latex or json.
    batch_size
        Of a model: sequences in the step.
    seq_len
        Of a model: tokens in a sequence.
    target_len
        Of a model with an encoder and a decoder: tokens in a sequence of the decoder.
    sizes
        Of a model: any of its sizes.

    Returns
    -------
    Explanation
        The lines by macro-operation, with their counts as polynomials.

    Raises
    ------
    InputError
        Nothing is called so, or what is given does not go with it.

    Examples
    --------
    >>> found = lc.explain("mha")
    >>> found.layer, [part.macro_operation for part in found.parts]
    ('attention', ['forward', 'backward', 'weight_update'])
    >>> lc.explain("softmax").parts[1].steps[0].text
    'c[B] = dY[B n] Y[B n]'
    """
    if format not in get_args(Format):
        raise InputError(f"no format is called {format!r} (there are {', '.join(get_args(Format))})")
    shown_as = cast("Format", format)
    own = {"procedure": procedure, "batch_size": batch_size, "seq_len": seq_len, "target_len": target_len}
    name = name_of(subject)
    if layer is not None or is_model(subject):
        of_a_model(subject, layer, jacobian)
        run = prepared(name, price_book, procedure or "bp", optimizer, own, sizes)
        return model_explained(run, procedure or "bp", layer or "", shown_as)
    not_of_a_model(name, {**own, **sizes})
    if not is_layer(subject) and (word := called(name)):
        return word_explained(word, of_a_word(word.name, price_book, jacobian, optimizer), shown_as)
    found = find_subject(subject, price_book, jacobian, optimizer)
    parts = tuple(Part(macro, tuple(_steps(table, found))) for macro, table in found.tables.items())
    source = found.layer.source
    kept = _kept(found)
    return Explanation(found.name, source, found.book, found.jacobian, parts, kept, found.axes, shown_as)


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
        own = step.known[item.name]
        name = own.of if own.role == "kept" else item.name  # a stack of all turns is read inside by its slices' name
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
        if line.part == "body" and table.known[term.name].role == "inner"
    }
