"""`learncost explain`: a layer, operator or model's layer line by line, with its saved tensors."""

from __future__ import annotations

from collections.abc import Iterator

from learncost.cost_models import price
from learncost.ir.dataclass import replace
from learncost.ir.line import Op
from learncost.ir.loop import Loop, repeats, visit, walk
from learncost.ir.polynomial import Polynomial, base
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.liveness import live
from learncost.ops import op_called
from learncost.reports import notation as write
from learncost.reports.formulas.explanation import ExplainedLine, ExplainedPhase, Explanation, SavedValue, explained
from learncost.reports.formulas.of_model import model_explained
from learncost.reports.formulas.of_op import op_explained
from learncost.reports.formulas.subject import (
    BP,
    Subject,
    is_layer,
    is_model,
    name_of,
    not_of_a_model,
    of_a_model,
    of_an_op,
    prepared,
    settings_of_a_model,
)
from learncost.reports.formulas.subject import subject as find_subject
from learncost.reports.request import Request, takes_request
from learncost.reports.trainer_step import TrainerStep, paths_of, trainer_step


@takes_request(
    "subject layer / * price_book procedure jacobian optimizer batch_size seq_len target_len", procedure=None
)
def explain(
    request: Request, subject: str | Layer, layer: str | None = None, *, jacobian: bool | None = None
) -> Explanation | TrainerStep:
    """Explain a layer, an operator or a model's layer line by line: forward, backward, weight update, saved tensors.

    Parameters
    ----------
    subject
        A layer by its name or alias (attention, mha, SwiGLU; learncost list layers), a file in the notation, an
        operator (softmax; learncost list operators), a model as in learncost cost, or a trainer's file, key by key.
    layer
        A layer of the model. By default all layers of the model are shown.
    procedure
        The learning procedure: {choices}. The default is bp. For a layer: a procedure that changes the layer's own
        lines, by feedback, or by tangents along its weights.

    Returns
    -------
    Explanation or TrainerStep
        The lines by macro-operation, with their counts as polynomials; or the keys of trainers' files.

    Raises
    ------
    InputError
        If the name is unknown, or options cannot be combined.

    Commands
    --------
    learncost explain attention
        Multi-head attention line by line, with its gradients.
    learncost explain softmax
        An operator with its body and gradient.
    learncost explain attention --procedure forward-gradient
        The same with tangents of all values along a direction of the weights.
    learncost explain gpt2 attention
        The attention of GPT-2, with biases and mask, and its cost there.

    Examples
    --------
    >>> found = lc.explain("mha")
    >>> found.layer, [part.macro_operation for part in found.parts]
    ('attention', ['forward', 'backward', 'weight_update'])
    >>> lc.explain("softmax").parts[1].steps[0].text
    'c[B] = dY[B n] Y[B n]'
    """
    if paths := paths_of(subject):
        return trainer_step(paths)
    procedure, price_book, optimizer = request.procedure, request.price_book, request.optimizer
    of_models = {"procedure": procedure, **settings_of_a_model(request)}
    name = name_of(subject)
    if layer is not None or is_model(subject, of_models):
        of_a_model(subject, layer, jacobian)
        run = prepared(replace(request, model=subject, procedure=procedure or BP))
        return model_explained(run, procedure or BP, layer or "")
    not_of_a_model(name, of_models | ({"procedure": None} if is_layer(subject) else {}))
    if not is_layer(subject) and (op := op_called(name)):
        return op_explained(op, of_an_op(op.name, price_book, jacobian, optimizer))
    topic = find_subject(subject, price_book, jacobian, optimizer, procedure)
    parts = tuple(ExplainedPhase(phase, tuple(_steps(table, topic))) for phase, table in topic.tables.items())
    source = topic.layer.source
    saved_values = _saved(topic)
    return Explanation(topic.name, source, topic.book, topic.jacobian, parts, saved_values, topic.axes)


def _steps(table: Table, topic: Subject) -> Iterator[ExplainedLine]:
    """Return the lines with their prices; the heading of a loop is a line without a price."""
    rows = iter(price(table, {}, topic.book).rows)

    for line, nest in visit(table.lines):
        depth = len(nest.loops)
        if isinstance(line, Loop):
            yield ExplainedLine("", str(line).split("\n", 1)[0], "", "", Polynomial(), Polynomial(), depth)
            continue
        row = next(rows)
        counts = row.maccs, row.flops
        yield explained(line, topic.gradient_names, counts, depth=depth, outside_paper=row.outside_paper)
        if withdrawn := topic.book.withdrawn.get((line.meta.layer, line.meta.local)):
            back = next(rows)
            text = f"the publication's total omits {write.equation(line)}"
            yield ExplainedLine(withdrawn, text, "", "", back.maccs, back.flops, depth)
    assert next(rows, None) is None


def _saved(topic: Subject) -> tuple[SavedValue, ...]:
    """Return the saved tensors that `live` finds, with the lines that read them; it depends on axes, not on sizes."""
    if topic.derived is None:
        return ()
    step = topic.derived.step
    sizes = {base(axis) for axes in step.axes.values() for axis in axes}
    sizes |= {loop.count for loop in repeats(step.lines)}
    saved_arrays = live(topic.derived, dict.fromkeys(sorted(sizes), 2)).saved
    readers: dict[str, list[str]] = {}
    for line, _ in walk(topic.derived.reverse.lines):
        for name in line.reads:
            readers.setdefault(name, []).append(line.name)
    inputs = frozenset(topic.layer.table.inputs)
    inner = _inner(step)
    saved_values = []
    for item in saved_arrays:
        value = step.known[item.name]
        # a stack of all iterations is read inside by its slices' name
        name = value.of if value.role == "saved" else item.name
        reading = tuple(dict.fromkeys(readers.get(name, ())))
        saved_values.append(SavedValue(item.name, item.axes, item.name in inputs, reading, *inner.get(name, ())))
    return tuple(saved_values)


def _inner(table: Table) -> dict[str, tuple[str, str]]:
    """Return the values of an operator's body, with the operator and their names there."""
    return {
        term.name: (line.op, name)
        for line, _ in walk(table.lines)
        if isinstance(line, Op)
        for term, name in zip(line.left, line.gives, strict=True)
        if line.part == "body" and table.known[term.name].role == "inner"
    }
