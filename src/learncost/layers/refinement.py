"""Refinements: rewrites of one value of a layer before it is read, as templates in the notation.

A refinement is a layer whose output replaces the value and whose first input is the layer's original value. In

    softcap(X.uncapped) -> X
      X.small[_] = X.uncapped[_] inverse[]
      X.bent[_] = tanh(X.small[_])
      X[_] = X.bent[_] cap[]

if X is the layer's value S, S.uncapped is its original value and S the result of these lines. The first input shows the
value's axes: a letter stands for one of them, `_` for all axes without a letter, `n` for those that the rewrite names.
Other inputs and weights of the header are added to the layer. Other names are values of the layer, or numbers if they
have no axes.

Rewrites of attention: norms of queries and keys, rotary positions, biases of scores, caps, scales, windows.

Each keeps the name of the value that it refines, so that several may follow one another in the order of the model.
External values (cosines, slopes, buckets) are inputs without a gradient.

Rewrites of attention into disentangled attention: scores of contents against relative positions, as in DeBERTa.

`rows` has a row for each bucket of distances (axis a), and delta[M N] the row's number for query M and key N, which
both terms read: He et al. 2021, equation (4), and transformers' DisentangledSelfAttention. A weight that already exists
in the layer is shared (share_att_key of DeBERTa v2 and v3). `unread` is a weight that also multiplies the rows, in the
forward pass only, as nothing reads the product.

Rewrites of mixtures of experts: changes of the gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product
from learncost.ir.parse import parse_header, parse_lines
from learncost.ir.parsed import Header
from learncost.ir.stated import role
from learncost.ir.term import Axis, Literal, Operand, Read, Term, terms_of
from learncost.ir.value import Role, Value
from learncost.layers.layer import Layer
from learncost.layers.rewrite import rewritten
from learncost.ops import entry, is_choice


@dataclass(frozen=True)
class Refinement:
    """A parsed refinement; `constants` are inputs without a gradient."""

    header: Header
    lines: tuple[Line, ...]
    constants: tuple[str, ...]


@cache  # by shipped file
def refinement(name: str) -> Refinement:
    """Return the refinement that the file of this name defines."""
    text = (Path(__file__).with_name("refinements") / f"{name}.table").read_text(encoding="utf-8")
    head, *lines = (line for line in text.splitlines() if not line.startswith("%"))
    constants = [name for line in lines for name in role(line)]
    body = parse_lines([line for line in lines if line.startswith(" ")])
    return Refinement(parse_header(head), tuple(line for line in body if isinstance(line, Line)), tuple(constants))


def refined(
    layer: Layer,
    name: str,
    value: str,
    numbers: Mapping[str, float] = {},
    names: Mapping[str, str] = {},
    along: tuple[str, ...] = (),
) -> Layer:
    """Return the layer with a value rewritten by the refinement of a name.

    numbers  the numbers that replace names without axes
    names    other names for inputs and weights; lines that read an input or weight named "" are left out
    along    the axes that `n` stands for
    Raises `InputError` for a value that no line defines.
    """
    replacement = refinement(name)
    hole: _InsertionPoint | None = None

    def change(line: Line) -> Iterable[Line]:
        nonlocal hole
        if len(line.left) != 1 or line.name != value:
            return (line,)
        hole = _InsertionPoint(replacement, line, numbers, names, along)
        raw = hole.outer_name(replacement.header.inputs[0])
        return (replace(line, left=(Term(raw, line.left[0].axes),), meta=replace(line.meta, local=raw)), *hole.lines)

    changed, table = rewritten(layer, change), layer.table
    if hole is None:
        raise InputError(f"{layer.name} has no line that defines {value}")
    inputs = {
        name: value for name, value in hole.values_of(replacement.header.inputs[1:]).items() if name not in table.inputs
    }
    weights = {
        name: value for name, value in hole.values_of(replacement.header.weights).items() if name not in table.weights
    }
    values = {**hole.values, **table.values, **inputs, **weights}
    more = replace(changed.table, values=values, inputs=(*table.inputs, *inputs), weights=(*table.weights, *weights))
    return replace(changed, table=more)


class _InsertionPoint:
    """The lines of a refinement that follow one line of a layer, with that line's `where` and layer."""

    def __init__(
        self,
        replacement: Refinement,
        line: Line,
        numbers: Mapping[str, float],
        names: Mapping[str, str],
        along: tuple[str, ...],
    ) -> None:
        self.replacement, self.line, self.numbers = replacement, line, numbers
        self.names = {replacement.header.outputs[0]: line.name, **names}
        first, axes = replacement.header.inputs[0], line.left[0].declared
        (first_read, *_) = (term for line in replacement.lines for term in line.right if term.name == first)
        fixed_axes = [axis for axis in first_read.declared if axis not in ("_", "n")]
        rest = iter(axis for axis in axes if axis not in along)
        free = len(axes) - len(along) - len(fixed_axes)
        self.axes = {
            axis: along if axis == "n" else tuple(next(rest) for _ in range(free if axis == "_" else 1))
            for axis in first_read.declared
        }
        self.lines = tuple(
            self.placed(line) for line in replacement.lines if all(names.get(name) != "" for name in line.reads)
        )

    @property
    def values(self) -> dict[str, Value]:
        """The values that the lines define, and the original value under its new name."""
        places = {line.name for line in self.lines if is_choice(line)}
        inner_values = {
            term.name: Value(term.declared, "index" if term.name in places else "value")
            for line in self.lines
            for term in line.left
        }
        return {self.outer_name(self.replacement.header.inputs[0]): Value(self.line.left[0].declared), **inner_values}

    def values_of(self, names: Iterable[str]) -> dict[str, Value]:
        """Return inputs or weights of the refinement's header by their names in the layer."""
        terms = [term for line in self.lines for right in line.right for term in terms_of(right)]
        axes, indices = (
            {term.name: term.declared for term in terms},
            {name for term in terms for name in term.names[1:]},
        )
        roles: dict[str, Role] = {self.outer_name(name): "constant" for name in self.replacement.constants}
        roles |= dict.fromkeys(indices, "index")
        return {new: Value(axes[new], roles.get(new, "value")) for new in map(self.outer_name, names)}

    def outer_name(self, name: str) -> str:
        """Return the layer's name of a value, input or weight of the refinement, keeping the suffix after a dot."""
        stem = next((stem for stem in self.names if name == stem or name.startswith(f"{stem}.")), None)
        return name if stem is None else self.names[stem] + name.removeprefix(stem)

    def operand(self, operand: Operand) -> Operand:
        if isinstance(operand, Literal):
            sizes = (outer_axis for size in operand.sizes for outer_axis in self.axes.get(size, (size,)))
            return replace(operand, sizes=tuple(sizes))
        return Literal(self.numbers[operand.name]) if operand.name in self.numbers else self.term(operand)

    def term(self, term: Term) -> Term:
        axes: list[Axis] = []
        for axis in term.axes:
            if isinstance(axis, str):
                axes += self.axes.get(axis, (axis,))
            else:
                at = self.term(axis.at) if isinstance(axis.at, Term) else axis.at
                (read,) = self.axes.get(axis.axis, (axis.axis,))
                axes.append(Read(read, at))
        return Term(self.outer_name(term.name), tuple(axes))

    def placed(self, line: Line) -> Line:
        """Return a line of the refinement with the layer's names and axes."""
        left, right = tuple(map(self.term, line.left)), tuple(map(self.operand, line.right))
        loops = {axis for term in (*left, *right) for axis in term.loops}
        where = tuple(condition for condition in self.line.where if condition.axes <= loops)
        locals_ = tuple(term.name for term in right)
        outer = self.line.meta
        meta = Meta(outer.layer, local=left[0].name, locals=locals_, binding=outer.binding, module=outer.module)
        line = replace(line, left=left, right=right, where=where, meta=meta)
        if not isinstance(line, Op):
            return line
        op, axes = (
            entry(line.op),
            tuple(outer_axis for axis in line.axes for outer_axis in self.axes.get(axis, (axis,))),
        )
        return replace(line, axes=axes, op=op.name, given=op.inputs, gives=op.outputs)


def with_norms(
    layer: Layer,
    gains: Mapping[str, str],
    along: tuple[str, ...] = ("k",),
    epsilon: float = 1e-6,
    shifts: Mapping[str, str] = {},
    from_one: bool = False,
) -> Layer:
    """Add root mean square norms of queries and keys: {"Q": "gQ", "K": "gK"}. Qwen3 normalizes each head, OLMo 2 all
    heads together.

    A value is normalized along those of the given axes that it has, which are also the axes of its gain. With `shifts`,
    {"Q": "sQ", "K": "sK"}, it is layer normalization, as in Phi; with `from_one` a gain is learned as its difference
    from one, as in Gemma 3.
    """
    for name, gain in gains.items():
        kind = "norm" if name in shifts else "rms_norm_from_one" if from_one else "rms_norm"
        normed_axes = tuple(axis for axis in layer.table.axes[name] if axis in along)
        layer = refined(layer, kind, name, {"epsilon": epsilon}, {"g": gain, "s": shifts.get(name, "")}, normed_axes)
    return layer


def with_rotary(layer: Layer, queries: str = "Q", keys: str | None = "K") -> Layer:
    """Add rotary positions, Su et al. 2021, equation (34): x cos + rotated(x) sin, where rotated(x) reads x at flip.

    Queries and keys have a batch axis, then positions, and the rotated width as the last axis. The inputs `cosine`,
    `sine` are for the queries' positions, `key_cosine`, `key_sine` for the keys'; the sine includes the sign of the
    rotated part. flip[k] = k +- half is Llama's layout, k +- 1 that of GPT-J; for partial rotary positions, the rest
    has cosine 1 and sine 0. Without `keys`, only the queries are rotated, for layers that read the keys of another
    layer.
    """
    layer = refined(layer, "rotary", queries)
    if keys is None:
        return layer
    layer = refined(layer, "rotary", keys, names={"cosine": "key_cosine", "sine": "key_sine"})
    inputs = (*(name for name in layer.table.inputs if name != "flip"), "flip")  # which both read, comes last
    return replace(layer, table=replace(layer.table, inputs=inputs))


def with_scale(layer: Layer, scale: float, name: str = "S") -> Layer:
    """Set the scale of the scores, such as Gemma's query_pre_attn_scalar^-0.5."""

    if not any(isinstance(line, Product) and line.name == name for line in layer.table.lines):
        raise InputError(f"{layer.name} has no product that defines {name}")

    def change(line: Line) -> tuple[Line]:
        if line.name != name or not isinstance(line, Product):
            return (line,)
        return (replace(line, right=tuple(Literal(scale) if isinstance(t, Literal) else t for t in line.right)),)

    return rewritten(layer, change)


def without_line(layer: Layer, name: str = "S") -> Layer:
    """Delete the line that defines a name, such as the scale of T5's scores, rename its operand to the result, and take
    away a weight that it alone reads."""
    table = layer.table
    (line,) = (one for one in table.lines if isinstance(one, Line) and one.name == name)
    (raw,) = (term.name for term in line.right if isinstance(term, Term) and term.name not in table.weights)
    gone = {raw, *(term.name for term in line.right if term.name in table.weights)}

    def change(line: Line) -> Iterable[Line]:
        if line.name == raw:
            line = replace(line, meta=replace(line.meta, local=name))
        return () if line.name == name else (line.renamed({raw: name}),)

    return rewritten(
        layer,
        change,
        values={n: v for n, v in table.values.items() if n not in gone},
        weights=tuple(weight for weight in table.weights if weight not in gone),
    )


def with_sinks(layer: Layer, sinks: str = "sinks", name: str = "S") -> Layer:
    """Add a learned logit for each head to the softmax of attention, whose probability is dropped, as in gpt-oss."""
    heads = layer.table.axes[name][1:-2]
    new_op = entry("softmax_with_sink")

    def change(line: Line) -> tuple[Line]:
        if not isinstance(line, Op) or line.op != "softmax" or line.right[0].name != name:
            return (line,)
        meta = replace(line.meta, locals=(*line.meta.locals, sinks))
        right = (*line.right, Term(sinks, heads))
        return (replace(line, op=new_op.name, right=right, given=new_op.inputs, gives=new_op.outputs, meta=meta),)

    table = rewritten(layer, change).table
    return replace(
        layer, table=replace(table, values={**table.values, sinks: Value(heads)}, weights=(*table.weights, sinks))
    )


def without_op(layer: Layer, op: str) -> Layer:
    """Replace an operator's result by its operand; without `proportion`, gates are not normalized."""
    is_removed = False

    def change(line: Line) -> tuple[Line]:
        nonlocal is_removed
        if not isinstance(line, Op) or line.op != op:
            return (line,)
        is_removed = True
        return (Product(line.left, line.right[:1], line.where, line.meta),)

    changed = rewritten(layer, change)
    if not is_removed:
        raise InputError(f"{layer.name} has no operator {op}")
    return changed
