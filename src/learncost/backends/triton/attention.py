"""Attention by PyTorch's library: the lines of a fused kernel between queries, keys and values, and their gradients.

In bf16 forward hands its result and one number a row to backward, the logarithm of the sum of the row's exponentials
(Dao et al. 2022, FlashAttention, algorithms 2 and 4). In fp32, which flash attention lacks, both are made again. Where
the library would store scores, as in fp64, attention is kernels in Triton, whose memory is the arena's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Any

from learncost.backends.c import KernelFunction, KernelLines, Launch, SizeNeededError
from learncost.backends.expression import Identifiers, call
from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base, size_of
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.ir.term import Literal, Read, Term
from learncost.ir.value import Value
from learncost.ops import applied, is_softmax
from learncost.passes.lower import lower_line

FORWARD, BACKWARD = "library_attention", "library_attention_backward"
"""The helpers of an emitted file (`preamble`)."""
WIDEST = 256
"""The widest head of flash attention, whose width is a multiple of 8."""


@dataclass(frozen=True)
class AttentionLines:
    """Lines that are attention, by the terms of queries, keys, values and result, or of gradients in their place.

    terms   with sums of rows after the result; of gradients: queries, keys, values, the result's gradient, the result
            and sums of rows where forward hands them on, then what is made
    scores  the axes of the scores, the last two of queries and of keys
    """

    terms: tuple[Term, ...]
    scores: tuple[str, ...]
    causal: bool
    scale: float


def with_sums(
    table: Table, dtypes: Mapping[str, str], sizes: Mapping[str, int]
) -> tuple[Table, Mapping[str, str], Mapping[str, AttentionLines]]:
    """Return a typed table whose attention hands on sums of rows, its types, and that attention by names of kernels."""
    values, types, known = dict(table.values), dict(dtypes), dict[str, AttentionLines]()
    loops = {at: line for at, line in enumerate(table.lines) if isinstance(line, Loop) and "bf16" in types.values()}
    for first, last in combinations(loops, 2):
        for before, one in _kernels(loops[first], sizes).items():
            for after, other in _kernels(loops[last], sizes).items():
                if not _hands(loops[first], loops[last], one, other, types, sizes):
                    continue
                result, stack = one.terms[3], dict(loops[first].keep)[one.terms[3].name]
                sums, kept = Term(f"{result.name}:sums", one.scores[:-1]), f"{stack}:sums"
                values[kept] = replace(values[stack], axes=(values[stack].axes[0], *sums.declared), of=sums.name)
                known[before] = replace(one, terms=(*one.terms, sums))
                known[after] = replace(other, terms=(*other.terms[:4], result, sums, *other.terms[4:]))
                types[kept] = "fp32"
                for at, kernel, more in ((first, before, "keep"), (last, after, "each")):
                    changed = tuple(new for line in loops[at].lines for new in _summed(line, kernel, known[kernel]))
                    terms = [term for line in changed if isinstance(line, Line) for term in line.left]
                    new = {term.name: term.declared for term in terms if term.name not in loops[at].values}
                    inner = {name: Value(axes, "inner", result.name) for name, axes in new.items()}
                    inner[sums.name] = Value(sums.declared, "inner", result.name)
                    types |= dict.fromkeys(inner, "fp32")
                    pairs: dict[str, Any] = {more: (*getattr(loops[at], more), (sums.name, kept))}
                    loops[at] = replace(loops[at], lines=changed, values={**loops[at].values, **inner}, **pairs)
    lines = tuple(loops.get(at, line) for at, line in enumerate(table.lines))
    return replace(table, lines=lines, values=values), types, known


def _kernels(loop: Loop, sizes: Mapping[str, int]) -> dict[str, AttentionLines]:
    """Return the attention of a loop's own kernels, by their names."""
    own = [line for line in loop.lines if isinstance(line, Line)]
    found: dict[str, AttentionLines] = {}
    for name in dict.fromkeys(line.meta.kernel.name for line in own if line.meta.kernel):
        inside = [line for line in own if line.meta.kernel and line.meta.kernel.name == name]
        others = {read for line in loop.lines if line not in inside for read in line.reads}.union(loop.ends)
        outputs = frozenset(made for line in inside for made in line.makes if made in others)
        if each := attention(inside, outputs, sizes):
            found[name] = each
    return found


def _hands(
    forward: Loop,
    backward: Loop,
    one: AttentionLines,
    other: AttentionLines,
    dtypes: Mapping[str, str],
    sizes: Mapping[str, int],
) -> bool:
    """Return whether backward reads what forward keeps, in a type and a width that flash attention has."""
    if len(one.terms) != 4 or len(other.terms) != 7 or one.terms[:3] != other.terms[:3]:
        return False
    kept = {pair for pair in forward.keep if pair[0] == one.terms[3].name} & {*backward.each}
    views = [_view(term, one.scores, sizes) for term in (*one.terms, *other.terms)]
    width = 0 if views[0] is None else views[0][0][3]
    fits = dtypes[one.terms[2].name] == "bf16" and width % 8 == 0 and width <= WIDEST
    return bool(kept and fits and None not in views)


def _summed(line: Statement, kernel: str, found: AttentionLines) -> Iterator[Statement]:
    """Yield the lines of a kernel's softmax that hand on sums of rows, or read them; every other line as it is."""
    if not (isinstance(line, Op) and is_softmax(line) and line.meta.kernel and line.meta.kernel.name == kernel):
        yield line
        return
    *_, result, sums = found.terms[:6] if len(found.terms) > 5 else found.terms
    lowered = lower_line(line)
    if len(found.terms) == 5:
        largest = next(each.left[0] for each in lowered if isinstance(each, Op) and each.op == "max")
        logarithm = Term(f"{sums.name}~1", sums.axes)
        yield from (*lowered, applied("log", logarithm, lowered[-1].right[1:], line.meta))
        yield Sum((sums,), (logarithm, largest), (), line.meta, (1, 1))
    elif line.part == "body":
        shifted = Term(f"{line.name}~1", line.left[0].axes)
        yield Sum((shifted,), (line.right[0], sums), line.where, line.meta, (1, -1))
        yield applied("exp", line.left[0], (shifted,), line.meta, (), line.where)
    else:
        *_, product, difference, last = lowered
        yield from (Product(product.left, (found.terms[3], result), (), line.meta), difference, last)


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
    within = all(len(line.where) <= 1 and {*line.where} <= allowed for line in lines)
    if not within or softmax.where not in ((), (Condition(keys, queries),)):
        return None

    def unscaled(name: str) -> tuple[Line | None, float, Literal | None]:
        line = makers.get(name)
        if not isinstance(line, Product) or len(line.right) != 2 or not isinstance(literal := line.right[1], Literal):
            return line, 1.0, None
        number = literal.number({size: _number(size, sizes) for size in map(base, literal.sizes)})
        return makers.get(line.right[0].name), number, literal

    raw, scale, literal = unscaled(softmax.right[0].name)

    def of_rows(term: Term) -> tuple[set[str], int]:
        """Return the axes of an array's rows, and their width."""
        *rows, width = (axis for axis in term.loops if axis != "1")
        return {*rows}, _number(width, sizes)

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
        fits = len(read) == 2 and read[0] == shares and of_rows(result) == of_rows(query) and outputs == {result.name}
        fits = fits and keys in read[1].axes and queries not in read[1].axes
        return AttentionLines((query, key, read[1], result), scores, causal, scale) if fits else None

    def swapped(term: Term) -> Term:
        return term.renamed({}, {queries: keys, keys: queries})

    def of(*wanted: Term) -> Line | None:
        return next((line for line in rest if _terms(line) == wanted), None)

    softened = next((line for line in rest if is_softmax(line)), None)
    first = next((line for line in rest if line.left[0].axes == scores and len(_terms(line)) == 2), None)
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
    if None in made or {line.name for line in rest} != known or queries in value.axes:
        return None
    results = tuple(line.left[0] for line in made if line is not None)
    like = [of_rows(term) for term in (query, query, swapped(key), swapped(value))]
    if outputs != {term.name for term in results} or [of_rows(term) for term in (gradient, *results)] != like:
        return None
    return AttentionLines((query, key, value, gradient, *results), scores, causal, scale)


def _terms(line: Line | None) -> tuple[Term, ...]:
    """Return the factors of a product of terms, read whole or at one place of an axis; none for other lines."""
    if not isinstance(line, Product):
        return ()
    terms = tuple(term for term in line.right if isinstance(term, Term))
    reads = [axis.at for term in terms for axis in term.indexed_axes]
    return terms if len(terms) == len(line.right) and all(isinstance(at, Affine) and at.fixed for at in reads) else ()


def _number(axis: str, sizes: Mapping[str, int]) -> int:
    if base(axis) not in sizes and not base(axis).isdigit():
        raise SizeNeededError(base(axis))
    return int(size_of(base(axis), sizes))


def _view(term: Term, scores: Sequence[str], sizes: Mapping[str, int]) -> tuple[tuple[int, int, int, int], str] | None:
    """Return sequences, heads, positions and the width of an array, and PyTorch's text of this view of it.

    None where heads are no axis of a view, or the width is not the last. Raises `SizeNeededError` for an unknown size.
    """
    batch, *iterations, _, keys = scores
    shape, places, order = list[int](), list[str](), list[str]()
    heads: list[str] = []
    for axis in term.axes:
        if isinstance(axis, Read):
            assert isinstance(axis.at, Affine)
            shape.append(_number(axis.axis, sizes))
            places.append(str(sum(part.times(sizes) for part in axis.at.parts)))
            continue
        what = "batch" if axis == batch else "heads" if axis in iterations else "width"
        what = "one" if axis == "1" else "positions" if base(axis) == base(keys) else what
        heads += [axis] * (what == "heads")
        if places and places[-1] == ":" and order[-1:] == ["heads"] == [what]:
            shape[-1] *= _number(axis, sizes)
            continue
        shape.append(_number(axis, sizes))
        places.append("0" if what == "one" else ":")
        order += [what] * (what != "one")
    wanted = [what for what in ("batch", "heads", "positions", "width") if what in order]
    several = 3 + bool(heads) <= len(wanted) == len(order)
    if not several or order[-1] != "width" or heads != iterations[: len(heads)]:
        return None
    text = f".view({', '.join(map(str, shape))})" + (f"[{', '.join(places)}]" if {*places} != {":"} else "")
    text += f".permute({', '.join(str(order.index(what)) for what in wanted)})" if order != wanted else ""
    kept = [size for size, at in zip(shape, places, strict=True) if at == ":"]
    long = dict(zip(order, kept, strict=True))
    form = long["batch"], long.get("heads", 1), long["positions"], long["width"]
    return form, text if heads else f"{text}.unsqueeze(1)"


def library(lines: KernelLines, found: AttentionLines) -> KernelFunction | None:
    """Return the function that calls the library; None where an array has no view of heads, or it would store scores.

    On a GPU it stores them but for flash attention in bf16 and memory-efficient attention in bf16 and fp32, which
    shares no heads and has widths that are multiples of 4 (`sdp_utils.cpp` in PyTorch).
    """
    backward, summed = len(found.terms) > 5, len(found.terms) in (5, 9)
    sums = found.terms[5 if backward else 4] if summed else None
    terms, name, dtypes = [term for term in found.terms if term is not sums], lines.name, lines.dtypes
    views = [view for term in terms if (view := _view(term, found.scores, lines.sizes))]
    if len(views) < len(terms):
        return None
    forms, kind = [form for form, _ in views], dtypes[found.terms[2].name]
    (_, heads, _, width), (_, shared, *_), *_ = forms
    if kind == "fp64" or ((kind == "fp32" or width > WIDEST) and (heads != shared or width % 4)):
        return None
    names = Identifiers(("torch", FORWARD, BACKWARD))
    arrays = {term.name: names.of(term.name) for term in found.terms}
    given = [f"{arrays[term.name]}{text}" for term, (_, text) in zip(terms, views, strict=True)]
    handed = [given.pop(4)] if backward and summed else []
    handed += [f"{arrays[sums.name]}.view({', '.join(map(str, forms[0][:3]))})"] if sums else []
    written = call(BACKWARD if backward else FORWARD, [*given, str(found.causal), repr(found.scale), *handed])
    head = (*(f"# {line}" for line in lines.lines), f"def {name}({', '.join(arrays.values())}):")
    text = "\n".join((*head, *(f"    {line}" for line in written.split("\n"))))
    points = [prod(form) for form in forms]
    rows, size_of_one = prod(forms[0][:3]), BYTES[kind]
    taken = sum(size_of_one * size for term, size in zip(terms[:2], points, strict=False) if dtypes[term.name] != kind)
    launches, place = list[Launch](), tuple([*arrays].index(term.name) for term in found.terms)
    if not (backward and summed):
        taken += size_of_one * points[0] + 4 * rows  # the output, and the logarithms of its sums
        writes = () if backward else place[3:]
        launches.append(Launch(FORWARD, 0, place[:3], writes, shapes=tuple(forms[:3]), causal=found.causal))
    if backward:
        taken += size_of_one * sum(points[:3]) + 4 * (points[0] + rows)  # and sums of queries' in fp32
        reads = (place[3], *place[:3])
        shapes: tuple[tuple[int, ...], ...] = (forms[0], *forms[:3])
        if summed:
            reads, shapes = (*reads, *place[4:6]), (*shapes, forms[0], forms[0][:3])
        launches.append(Launch(BACKWARD, 0, reads, place[-3:], shapes=shapes, causal=found.causal))
    arguments, cut = tuple(arrays), place[-3] if backward else place[3]
    return KernelFunction(
        name, text + "\n", arguments[:cut], arguments[cut:], (), (), launches=tuple(launches), allocates=taken
    )
