"""Rewritings of attention: norms of queries and keys, rotary positions, biases of scores, caps, scales, windows.

Each keeps the name of the value that it refines, so that they may follow one another in the order in which a model
applies them. What comes from outside (cosines, slopes, buckets) is an input without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from learncost.equation.errors import InputError
from learncost.equation.table import Line, Literal, Operand, Product, Read, Sum, Tag, Term, Word
from learncost.equation.value import Value
from learncost.layers.layer import Layer
from learncost.layers.rewrite import rewritten
from learncost.vocabulary import entry

Refine = Callable[["Step", Term, Term], Iterable[Line]]


class Step:
    """Writes the lines that a rewriting adds after one line, under its `where` and in its layer."""

    def __init__(self, line: Line) -> None:
        self.line = line

    def _tag(self, left: Term, right: tuple[Operand, ...]) -> Tag:
        tag = self.line.tag
        return Tag(tag.layer, local=left.name, locals=tuple(term.name for term in right), binding=tag.binding)

    def _where(self, *terms: Operand) -> dict[str, object]:
        loops = {axis for term in terms for axis in term.loops}
        return {"where": tuple(c for c in self.line.where if c.axes <= loops)}

    def product(self, left: Term, *right: Operand) -> Line:
        return Product((left,), right, tag=self._tag(left, right), **self._where(left, *right))  # type: ignore[arg-type]

    def sum(self, left: Term, *right: Operand) -> Line:
        signs = (1,) * len(right)
        return Sum((left,), right, tag=self._tag(left, right), signs=signs, **self._where(left, *right))  # type: ignore[arg-type]

    def word(self, left: Term, word: str, *right: Operand, axes: tuple[str, ...] = ()) -> Line:
        found = entry(word)
        line = Word((left,), right, tag=self._tag(left, right), word=found.name, axes=axes, given=found.inputs)
        return replace(line, gives=found.outputs, **self._where(left, *right))  # type: ignore[arg-type]


def refined(layer: Layer, name: str, before: str, refine: Refine) -> Layer:
    """The value is called `name.before` where it is made; `refine` gives the lines that make `name` of it."""
    values = dict(layer.table.values)
    found = False

    def change(line: Line) -> Iterable[Line]:
        nonlocal found
        if len(line.left) != 1 or line.name != name:
            return (line,)
        found = True
        left = line.left[0]
        raw = Term(f"{name}.{before}", left.axes)
        values[raw.name] = Value(left.declared)
        made = tuple(refine(Step(line), left, raw))
        for new in made:
            values.update({term.name: Value(term.declared) for term in new.left if term.name not in values})
        return (replace(line, left=(raw,), tag=replace(line.tag, local=raw.name)), *made)

    changed = rewritten(layer, change)
    if not found:
        raise InputError(f"{layer.name} has no line that makes {name}")
    return replace(changed, table=replace(changed.table, values=values))


def given(
    layer: Layer,
    constants: Mapping[str, tuple[str, ...]] = {},
    indices: Mapping[str, tuple[str, ...]] = {},
    weights: Mapping[str, tuple[str, ...]] = {},
) -> Layer:
    """The layer with more inputs, which stand last, and more weights: names with their axes."""
    table = layer.table
    own = {n: Value(axes, "constant") for n, axes in constants.items()}
    own |= {n: Value(axes, "index") for n, axes in indices.items()}
    more = [n for n in own if n not in table.inputs]
    return replace(
        layer,
        table=replace(
            table,
            values={**table.values, **own, **{name: Value(axes) for name, axes in weights.items()}},
            inputs=(*table.inputs, *more),
            weights=(*table.weights, *weights),
        ),
    )


def with_norms(
    layer: Layer,
    gains: Mapping[str, str],
    along: tuple[str, ...] = ("k",),
    epsilon: float = 1e-6,
    shifts: Mapping[str, str] = {},
    from_one: bool = False,
) -> Layer:
    """Root mean square norms of queries and keys: {"Q": "gQ", "K": "gK"}. Qwen3 norms each head, OLMo 2 all of them.

    A value is normed along those of the axes that it has; its gain has the same. With `shifts`, {"Q": "sQ", "K": "sK"},
    it is layer normalization, as in Phi; with `from_one` a gain is learned as its difference from one, as in Gemma 3.
    """
    for name, gain in gains.items():
        own = tuple(axis for axis in layer.table.axes[name] if axis in along)

        def refine(step: Step, left: Term, raw: Term, own: tuple[str, ...] = own, gain: str = gain) -> Iterable[Line]:
            normal, factor = Term(f"{left.name}.normal", left.axes), Term(gain, own)
            shift = shifts.get(left.name)
            yield step.word(normal, "normalize" if shift else "rms_normalize", raw, Literal(epsilon), axes=own)
            if from_one:
                factor = Term(f"{gain}.whole", own)
                yield step.sum(factor, Term(gain, own), Literal(1))
            grown = Term(f"{left.name}.grown", left.axes) if shift else left
            yield step.product(grown, normal, factor)
            if shift:
                yield step.sum(left, grown, Term(shift, own))

        more = {gain: own} | ({shifts[name]: own} if name in shifts else {})
        layer = given(refined(layer, name, "projected", refine), weights=more)
    return layer


def with_rotary(layer: Layer, queries: str = "Q", keys: str = "K") -> Layer:
    """Rotary positions, Su et al. 2021, equation (34): x cos + turned(x) sin, where turned(x) reads x at flip.

    Queries and keys have a batch axis, then the positions, and last the width that is turned. Inputs `cosine`, `sine`
    are for the queries' positions, `key_cosine`, `key_sine` for the keys'; the sign of the turned part is in the sine.
    flip[k] = k +- half is Llama's layout, k +- 1 that of GPT-J; where only a part is turned, the rest has cosine 1 and
    sine 0.
    """
    for name, own in ((queries, ""), (keys, "key_")):
        axes = layer.table.axes[name]
        table = (axes[1], axes[-1])

        def refine(step: Step, left: Term, raw: Term, own: str = own, table: tuple[str, str] = table) -> Iterable[Line]:
            fixed, turned = Term(f"{left.name}.fixed", left.axes), Term(f"{left.name}.turned", left.axes)
            flipped = Term(raw.name, (*left.axes[:-1], Read(table[1], Term("flip", table[1:]))))
            yield step.product(fixed, raw, Term(f"{own}cosine", table))
            yield step.product(turned, flipped, Term(f"{own}sine", table))
            yield step.sum(left, fixed, turned)

        layer = refined(layer, name, "unturned", refine)
        layer = given(layer, {f"{own}cosine": table, f"{own}sine": table})
    return given(layer, indices={"flip": table[1:]})


def with_softcap(layer: Layer, cap: float, name: str = "S") -> Layer:
    """Scores or logits that cannot pass a cap, c tanh(x / c): Gemma Team 2024 (Gemma 2), section 2."""

    def refine(step: Step, left: Term, raw: Term) -> Iterable[Line]:
        small, bent = Term(f"{name}.small", left.axes), Term(f"{name}.bent", left.axes)
        yield step.product(small, raw, Literal(1 / cap))
        yield step.word(bent, "tanh", small)
        yield step.product(left, bent, Literal(cap))

    return refined(layer, name, "uncapped", refine)


def with_scale(layer: Layer, scale: float, name: str = "S") -> Layer:
    """Another factor of the scores, such as Gemma's query_pre_attn_scalar^-0.5."""

    if not any(isinstance(line, Product) and line.name == name for line in layer.table.lines):
        raise InputError(f"{layer.name} has no product that makes {name}")

    def change(line: Line) -> tuple[Line]:
        if line.name != name or not isinstance(line, Product):
            return (line,)
        return (replace(line, right=tuple(Literal(scale) if isinstance(t, Literal) else t for t in line.right)),)

    return rewritten(layer, change)


def without_scale(layer: Layer, name: str = "S") -> Layer:
    """Scores that are not scaled, as in T5: the line that scales them goes, what it read takes its name."""
    (line,) = (one for one in layer.table.lines if isinstance(one, Product) and one.name == name)
    (raw,) = (term.name for term in line.right if isinstance(term, Term))

    def change(line: Line) -> Iterable[Line]:
        if line.name == name:
            return ()
        return (line.renamed({raw: name}),)

    return rewritten(layer, change, values={n: v for n, v in layer.table.values.items() if n != raw})


def with_alibi(layer: Layer, name: str = "S") -> Layer:
    """Scores with a bias that is linear in the distance, a slope for each head: Press et al. 2022, section 3."""
    _, *heads, query, key = layer.table.axes[name]
    own = {"slope": tuple(heads), "distance": (query, key)}

    def refine(step: Step, left: Term, raw: Term) -> Iterable[Line]:
        bias = Term(f"{name}.bias", (*heads, query, key))
        yield step.product(bias, *(Term(n, axes) for n, axes in own.items()))
        yield step.sum(left, raw, bias)

    return given(refined(layer, name, "unbiased", refine), own)


def with_relative_bias(layer: Layer, name: str = "S") -> Layer:
    """Scores with a learned bias for each head and bucket of distances: Raffel et al. 2020, section 2.1.

    bucket[M N] holds the row of the weight `relative` for query M and key N.
    """
    _, *heads, query, key = layer.table.axes[name]

    def refine(step: Step, left: Term, raw: Term) -> Iterable[Line]:
        yield step.sum(left, raw, Term("relative", (Read("b", Term("bucket", (query, key))), *heads)))

    layer = given(refined(layer, name, "unbiased", refine), indices={"bucket": (query, key)})
    return given(layer, weights={"relative": ("b", *heads)})


def with_bias(layer: Layer, name: str = "S") -> Layer:
    """Scores with a bias that comes in as the last input, made once for many blocks, as in T5: bias[h M N]."""
    _, *axes = layer.table.axes[name]

    def refine(step: Step, left: Term, raw: Term) -> Iterable[Line]:
        yield step.sum(left, raw, Term("bias", tuple(axes)))

    table = refined(layer, name, "unbiased", refine).table
    more = replace(table, values={**table.values, "bias": Value(tuple(axes))}, inputs=(*table.inputs, "bias"))
    return replace(layer, table=more)


def with_visible(layer: Layer, name: str = "S") -> Layer:
    """Attention only where visible[M N] holds: sliding windows, chunks, documents. Dense, so charged in full."""
    query, key = layer.table.axes[name][-2:]

    def refine(step: Step, left: Term, raw: Term) -> Iterable[Line]:
        yield step.word(left, "select", Term("visible", (query, key)), raw, Literal(float("-inf")))

    return given(refined(layer, name, "everywhere", refine), {"visible": (query, key)})


def with_sinks(layer: Layer, sinks: str = "sinks", name: str = "S") -> Layer:
    """Attention whose softmax has one more logit for each head, learned, that takes its share to nothing: gpt-oss."""
    heads = layer.table.axes[name][1:-2]
    found = entry("softmax_with_sink")

    def change(line: Line) -> tuple[Line]:
        if not isinstance(line, Word) or line.word != "softmax" or line.right[0].name != name:
            return (line,)
        tag = replace(line.tag, locals=(*line.tag.locals, sinks))
        right = (*line.right, Term(sinks, heads))
        return (replace(line, word=found.name, right=right, given=found.inputs, gives=found.outputs, tag=tag),)

    return given(rewritten(layer, change), weights={sinks: heads})
