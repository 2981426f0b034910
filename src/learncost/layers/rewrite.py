"""Rewrite layers by pure functions from layer to layer, which keep the names of inputs and outputs.

`REWRITINGS` has the rewrites that a family's file may name, with the types of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from learncost.ir.dataclass import replace
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import map_lines
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.layers.layer import Layer
from learncost.ops import entry, is_normalization

DROPOUT = "dropout"  # the layer of the lines that dropout adds


def rewritten(layer: Layer, change: Callable[[Line], Iterable[Line]], **table: object) -> Layer:
    """Replace every line of a layer by the lines that `change` returns."""
    lines = map_lines(layer.table.lines, change)
    return replace(layer, table=replace(layer.table, lines=lines, **table))  # type: ignore[arg-type]  # Table's fields


def with_op(layer: Layer, old: str, new: str) -> Layer:
    """Replace one operator by another, such as gelu_tanh by relu."""
    new_op = entry(new)

    def change(line: Line) -> tuple[Line]:
        if isinstance(line, Op) and line.op == old:
            return (replace(line, op=new_op.name, given=new_op.inputs, gives=new_op.outputs),)
        return (line,)

    return rewritten(layer, change)


def with_epsilon(layer: Layer, epsilon: float, names: Iterable[str] = ()) -> Layer:
    """Set the epsilon of the normalizations of the named values, of every one if none is named."""

    def change(line: Line) -> tuple[Line]:
        if is_normalization(line) and (not names or line.name in names):
            return (replace(line, right=(line.right[0], Literal(epsilon))),)
        return (line,)

    return rewritten(layer, change)


def with_biases(layer: Layer, biases: Mapping[str, str]) -> Layer:
    """Add a bias after every product with the named weights: {"WQ": "bQ"} makes Q = XQ WQ + bQ."""
    values = dict(layer.table.values)
    weights = list(layer.table.weights)

    def change(line: Line) -> tuple[Line, ...]:
        chosen = [t for t in line.right if isinstance(line, Product) and t.name in biases]
        if not chosen:
            return (line,)
        left, weight = line.left[0], chosen[0]
        bias = Term(biases[weight.name], tuple(a for a in left.axes if a in weight.axes))
        linear = Term(f"{left.name}.linear", left.axes)
        values[bias.name], values[linear.name] = Value(bias.declared), Value(left.declared)
        if bias.name not in weights:  # several products may read the weight
            weights.insert(weights.index(weight.name) + 1, bias.name)
        meta = Meta(line.meta.layer, equation=line.meta.equation, local=left.name, locals=(linear.name, bias.name))
        meta = replace(meta, binding=line.meta.binding, module=line.meta.module)
        product = replace(line, left=(linear,), meta=replace(line.meta, local=linear.name))
        return product, Sum((left,), (linear, bias), line.where, meta, (1, 1))

    changed = rewritten(layer, change)
    return replace(changed, table=replace(changed.table, values=values, weights=tuple(weights)))


def with_transposed(layer: Layer, weight: str) -> Layer:
    """Transpose the stored axes of a weight, so that a head can be tied to the embedding."""

    def change(line: Line) -> tuple[Line]:
        right = tuple(Term(t.name, t.axes[::-1]) if isinstance(t, Term) and t.name == weight else t for t in line.right)
        return (replace(line, right=right),)

    values = {**layer.table.values, weight: Value(layer.table.axes[weight][::-1])}
    return rewritten(layer, change, values=values)


def with_masks(layer: Layer, names: Iterable[str]) -> Layer:
    """Add dropout to the named values: a product with a random mask, 0 or 1/keep."""
    values = dict(layer.table.values)
    masks: list[str] = []
    chosen = set(names)

    def change(line: Line) -> tuple[Line, ...]:
        left = line.left[0]
        if left.name not in chosen:
            return (line,)
        undropped, mask = Term(f"{left.name}.whole", left.axes), Term(f"{left.name}.mask", left.axes)
        values[undropped.name], values[mask.name] = Value(left.declared), Value(left.declared, "mask", left.name)
        masks.append(mask.name)
        meta = Meta(DROPOUT, local=left.name, locals=(undropped.name, mask.name), binding=line.meta.binding)
        return (
            replace(line, left=(undropped, *line.left[1:]), meta=replace(line.meta, local=undropped.name)),
            Product((left,), (undropped, mask), line.where, meta),
        )

    changed = rewritten(layer, change)
    return replace(changed, table=replace(changed.table, values=values, inputs=(*changed.table.inputs, *masks)))


def with_padding(layer: Layer) -> Layer:
    """Mask padded keys in attention: minus infinity where `keep.mask` is false."""
    ops = (line for line in layer.table.lines if isinstance(line, Op))
    scores, (keys,) = next((w.right[0].name, w.axes) for w in ops if entry(w.op).outside == float("-inf"))
    batch = layer.table.axes[scores][0]
    values = {
        **layer.table.values,
        "keep.mask": Value((batch, keys), "padding", scores),
        f"{scores}.padded": layer.table.values[scores],
    }

    def change(line: Line) -> tuple[Line, ...]:
        padded = f"{scores}.padded"
        if isinstance(line, Op) and line.right[0].name == scores:
            term = line.right[0]
            keep = Term("keep.mask", (batch, keys))
            left = Term(padded, term.axes)
            meta = Meta("padding", local=padded, locals=("keep.mask", scores, ""), binding=line.meta.binding)
            select = Op(
                (left,),
                (keep, term, Literal(float("-inf"))),
                line.where,
                meta,
                op="select",
                given=("C", "X", "Z"),
                gives=("Y",),
            )
            return select, replace(line, right=(left, *line.right[1:]))  # derived lines keep their names and numbers
        return (line,)

    changed = rewritten(layer, change)
    return replace(changed, table=replace(changed.table, values=values, inputs=(*changed.table.inputs, "keep.mask")))


def _refinement() -> Any:
    """Return the module of refinements, which is imported only for families that need it."""
    from learncost.layers import refinement

    return refinement


def _operators(layer: Layer, ops: Mapping[str, str]) -> Layer:
    for old, new in ops.items():
        layer = with_op(layer, old, new)
    return layer


def _transposed(layer: Layer, weights: str | list[str]) -> Layer:
    for weight in [weights] if isinstance(weights, str) else weights:
        layer = with_transposed(layer, weight)
    return layer


def _refined(layer: Layer, name: str, value: str = "S", *numbers_and_names: Any, along: Iterable[str] = ()) -> Layer:
    """Return the layer with a value, the scores as a rule, rewritten by the refinement of a name."""
    refined: Layer = _refinement().refined(layer, name, value, *numbers_and_names, along=tuple(along))
    return refined


def _unit_rms(layer: Layer, settings: Mapping[str, Any]) -> Layer:
    for name in settings["of"]:
        layer = _refined(layer, "unit_rms", name, {"epsilon": settings["epsilon"]}, along="k")
    return layer


def _clipped(layer: Layer, settings: Mapping[str, Any]) -> Layer:
    for name in settings["of"]:
        layer = _refined(layer, "clip", name, {"bound": settings["at"], "floor": -settings["at"]})
    return layer


def _disentangled(kind: str) -> Callable[[Layer, Any], Layer]:
    """Return the rewrite by scores of contents against relative positions, or of these against contents."""
    return lambda layer, settings: _refined(
        layer, kind, "S", {"scale": settings["scale"]}, {"W": settings["weight"], "unread": settings.get("unread", "")}
    )


REWRITINGS: Mapping[str, Callable[[Layer, Any], Layer]] = {
    "operator": _operators,  # {old = new}: names of operators
    # a number, or {at = number, of = [values]}
    "epsilon": lambda layer, its: with_epsilon(
        layer, *((its["at"], its["of"]) if isinstance(its, Mapping) else (its,))
    ),
    "biases": with_biases,  # {weight = bias}
    "transposed": _transposed,  # the name of a weight to transpose, or several
    # {gains = {value = gain}, along = [axes], epsilon = number, shifts = {value = shift}, from_one}
    "norms": lambda layer, settings: _refinement().with_norms(layer, **settings),
    # [queries, keys], or one of them
    "rotary": lambda layer, names: _refinement().with_rotary(layer, *names, *[None] * (len(names) == 1)),
    # {of = value, cap = number}
    "softcap": lambda layer, its: _refined(layer, "softcap", its["of"], {"cap": its["cap"], "inverse": 1 / its["cap"]}),
    "clip": _clipped,  # {of = [values], at = number}
    "gate": lambda layer, weight: _refined(layer, "gate", "A", {}, {"W": weight}),  # the weight
    # another factor: a number for the scores, or {of = value, by = number}
    "scale": lambda layer, factor: _refinement().with_scale(
        layer, *((factor["by"], factor["of"]) if isinstance(factor, Mapping) else (factor,))
    ),
    "factor": lambda layer, its: _refined(layer, "factor", its["of"], {"by": its["by"]}),  # {of = value, by = number}
    "groups": lambda layer, its: _refined(layer, its["by"], its["of"]),  # {of = value, by = refinement}
    "without": lambda layer, op: _refinement().without_op(layer, op),  # an operator
    "sinks": lambda layer, weight: _refinement().with_sinks(layer, weight),  # the weight
    "without_line": lambda layer, name: _refinement().without_line(layer, name),  # the name that it defines
    "alibi": lambda layer, _: _refined(layer, "alibi"),
    "bias": lambda layer, _: _refined(layer, "bias"),
    "visible": lambda layer, scores: _refined(layer, "visible", scores),  # the scores
    "unit_rms": _unit_rms,  # {of = [values], epsilon = number}
    # {of, along = [axes], deviations}
    "gaussian_topk": lambda layer, its: _refined(
        layer, "gaussian_topk", its["of"], {"deviations": its["deviations"]}, along=its["along"]
    ),
    "temperature": lambda layer, queries: _refined(layer, "temperature", queries),  # the queries
    "content_to_position": _disentangled("content_to_position"),  # {weight, scale, unread}
    "position_to_content": _disentangled("position_to_content"),
}
"""The rewrites by name: functions of a layer and an argument that return a layer."""
