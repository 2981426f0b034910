"""Attention by PyTorch's library: the lines of a fused kernel between queries, keys and values, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from learncost.backends.c import KernelFunction, Launch, SizeNeededError
from learncost.backends.expression import Identifiers, call
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Condition, Line, Product
from learncost.ir.polynomial import base, size_of
from learncost.ir.precision import BYTES
from learncost.ir.term import Literal, Term
from learncost.ops import is_softmax

FORWARD, BACKWARD = "library_attention", "library_attention_backward"
"""The helpers of an emitted file (`preamble`)."""


@dataclass(frozen=True)
class AttentionLines:
    """Lines that are attention, by the terms of their queries, keys, values and result, or of its gradients.

    scores  the axes of the scores, the last two of queries and of keys
    """

    terms: tuple[Term, ...]
    scores: tuple[str, ...]
    causal: bool
    scale: float


def attention(lines: Sequence[Line], outputs: frozenset[str], sizes: Mapping[str, int]) -> AttentionLines | None:
    """Return lines as attention or its backward pass; None if they are anything else, such as with a window or a bias.

    Raises `SizeNeededError` where the size of a head must be a constant.
    """
    makers = {line.name: line for line in lines}
    several = [line for line in lines if is_softmax(line) and line.part == "body" and line.op == "softmax"]
    if len(several) != 1 or len(several[0].axes) != 1:
        return None
    softmax = several[0]
    scores, keys = softmax.left[0].declared, softmax.axes[0]
    if len(scores) < 3 or scores[-1] != keys or base(scores[-2]) != base(keys):
        return None
    queries = scores[-2]
    causal = bool(softmax.where)
    allowed = {Condition(keys, queries), Condition(queries, keys)} if causal else set[Condition]()
    if any(len(line.where) > 1 or not {*line.where} <= allowed for line in lines):
        return None
    if causal and softmax.where != (Condition(keys, queries),):
        return None

    def unscaled(name: str) -> tuple[Line | None, float, Literal | None]:
        line = makers.get(name)
        if isinstance(line, Product) and len(line.right) == 2 and isinstance(line.right[1], Literal):
            return makers.get(line.right[0].name), line.right[1].number(_known(line.right[1], sizes)), line.right[1]
        return line, 1.0, None

    raw, scale, literal = unscaled(softmax.right[0].name)
    factors = _terms(raw)
    if len(factors) != 2 or raw is None or raw.left[0].axes != scores:
        return None
    query, key = factors
    if queries not in query.axes or keys not in key.axes or queries in key.axes or keys in query.axes:
        return None
    rest = [line for line in lines if line is not softmax and line is not raw and line.name != softmax.right[0].name]
    shares = softmax.left[0]
    if len(rest) == 1:
        result = rest[0].left[0]
        read = _terms(rest[0])
        fits = len(read) == 2 and read[0] == shares and result.axes == query.axes and outputs == {result.name}
        fits = fits and keys in read[1].axes and queries not in read[1].axes
        return AttentionLines((query, key, read[1], result), scores, causal, scale) if fits else None

    def swapped(term: Term) -> Term:
        return term.renamed({}, {queries: keys, keys: queries})

    def of(*wanted: Term) -> Line | None:
        return next((line for line in rest if _terms(line) == wanted), None)

    softened = next((line for line in rest if is_softmax(line)), None)
    first = next(
        (line for line in rest if line.left[0].axes == scores and len(_terms(line)) == 2 and isinstance(line, Product)),
        None,
    )
    if softened is None or first is None or softened.right != (first.left[0], shares):
        return None
    gradient, value = _terms(first)
    inner: Line | None = softened
    if literal is not None:
        inner = next((line for line in rest if line.right == (softened.left[0], literal)), None)
    if inner is None:
        return None
    made = [of(inner.left[0], key), of(swapped(inner.left[0]), swapped(query)), of(swapped(gradient), swapped(shares))]
    known = {line.name for line in (first, softened, inner, *made) if line is not None}
    if None in made or {line.name for line in rest} != known or gradient.axes != query.axes or queries in value.axes:
        return None
    results = tuple(line.left[0] for line in made if line is not None)
    if outputs != {term.name for term in results} or [term.axes for term in results] != [
        query.axes,
        swapped(key).axes,
        swapped(value).axes,
    ]:
        return None
    return AttentionLines((query, key, value, gradient, *results), scores, causal, scale)


def _terms(line: Line | None) -> tuple[Term, ...]:
    """Return the factors of a product of terms without indices; none for other lines."""
    if not isinstance(line, Product) or any(not isinstance(term, Term) or term.indexed for term in line.right):
        return ()
    return tuple(term for term in line.right if isinstance(term, Term))


def _known(literal: Literal, sizes: Mapping[str, int]) -> Mapping[str, int]:
    for size in literal.sizes:
        if base(size) not in sizes:
            raise SizeNeededError(base(size))
    return sizes


def library(
    lines: Sequence[Line],
    found: AttentionLines,
    axes: Mapping[str, tuple[str, ...]],
    dtypes: Mapping[str, str],
    sizes: Mapping[str, int],
    name: str,
) -> KernelFunction | None:
    """Return the function that calls the library; None where the heads of an array are no axis of a view."""
    *iterations, _, keys = found.scores

    def number(axis: str) -> int:
        if base(axis) not in sizes and not base(axis).isdigit():
            raise SizeNeededError(base(axis))
        return int(size_of(base(axis), sizes))

    def shape(term: Term) -> tuple[int, int, int, int] | None:
        """Return sequences, heads, positions and the width of an array [sequences positions heads width]."""
        batch, length, *heads = axes[term.name]
        *heads, width = heads
        if batch != iterations[0] or base(length) != base(keys) or heads != iterations[1 : 1 + len(heads)]:
            return None
        return number(batch), prod(map(number, heads)), number(length), number(width)

    shapes = [shape(term) for term in found.terms]
    if None in shapes:
        return None
    names = Identifiers(("torch", FORWARD, BACKWARD))
    arrays = [names.of(term.name) for term in found.terms]
    views = [
        f"{array}.view({form[0]}, {form[2]}, {form[1]}, {form[3]}).transpose(1, 2)"
        for array, form in zip(arrays, shapes, strict=True)
        if form is not None
    ]
    backward = len(arrays) > 4
    helper = BACKWARD if backward else FORWARD
    written = call(helper, [*views, str(found.causal), repr(found.scale)])
    text = "\n".join(
        (
            *(f"# {line}" for line in lines),
            f"def {name}({', '.join(arrays)}):",
            *(f"    {line}" for line in written.split("\n")),
        )
    )
    forms = tuple(form for form in shapes if form is not None)
    points = [prod(form) for form in forms]
    kind = dtypes[found.terms[2].name]
    rows, width = prod(forms[0][:3]), BYTES[kind]
    taken = width * points[0] + 4 * rows  # the output, and the logarithms of its sums
    taken += sum(width * size for term, size in zip(found.terms[:2], points, strict=False) if dtypes[term.name] != kind)
    launches = [Launch(FORWARD, 0, (0, 1, 2), () if backward else (3,), shapes=forms[:3], causal=found.causal)]
    if backward:
        taken += width * sum(points[:3]) + 4 * (points[0] + rows)  # gradients, and sums of those of queries in fp32
        launches.append(
            Launch(BACKWARD, 0, (3, 0, 1, 2), (4, 5, 6), shapes=(forms[0], *forms[:3]), causal=found.causal)
        )
    cut = 4 if backward else 3
    terms = [term.name for term in found.terms]
    return KernelFunction(
        name, text + "\n", tuple(terms[:cut]), tuple(terms[cut:]), (), (), launches=tuple(launches), allocates=taken
    )
