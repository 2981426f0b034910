"""Rewrite a step with integer matrix products: both factors have 8 bits, sums 32.

    X.by_B.codes[B d], X.by_B.scales[B]      as `codes` computes them, a scale for each row
    W.by_f.codes[d f], W.by_f.scales[f]      a scale for each column
    Y.sum[B f] = X.by_B.codes[B d] W.by_f.codes[d f]
    Y.scaled[B f] = Y.sum[B f] X.by_B.scales[B]
    Y[B f] = Y.scaled[B f] W.by_f.scales[f]

Dettmers et al. 2022, LLM.int8(), section 2.1: scales do not vary along the summed axis, so that the integer sum is
exact. The products that compute gradients are rewritten in the same way. The weights and their update are unchanged:
scales are recomputed in every step, and codes have no gradients. An operand that has codes already is used as it is.
For a convolution, the image has a scale for each sample, and the kernel one for each result; window axes and summed
axes have none. Products with a condition or with index arrays are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from learncost.ir.affine import Affine
from learncost.ir.line import Line, Product
from learncost.ir.loop import Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.passes.integers import Values, coded


def with_whole(table: Table) -> Table:
    """Return the step in which matrix products multiply codes."""
    values = dict(table.values)
    lines = _scope(table.lines, values)
    return replace(table, lines=lines, values=values)


def is_whole(line: Line) -> bool:
    """Return whether a line is a product of two matrices or a convolution that may multiply codes."""
    if not isinstance(line, Product) or len(line.right) != 2 or line.where:
        return False
    terms = [term for term in (line.left[0], *line.right) if isinstance(term, Term)]
    if len(terms) != 3 or terms[1].name == terms[2].name or not all(map(_is_of_windows, terms)):
        return False
    sums = not {*terms[1].loops, *terms[2].loops} <= {axis for axis in terms[0].axes if isinstance(axis, str)}
    return line.sides.are_of_matrices or (sums and any(term.indexed for term in terms))


def _is_of_windows(term: Term) -> bool:
    """Return whether all indices of a term are affine, as in windows of a convolution."""
    return all(isinstance(axis, str) or isinstance(axis.at, Affine) for axis in term.axes)


def _scope(lines: Iterable[Statement], values: Values) -> tuple[Statement, ...]:
    """Return the lines of one scope, in which a factor is quantized once for all products with the same scales."""
    result: list[Statement] = []
    known: dict[tuple[str, tuple[str, ...]], tuple[Term, Term | None]] = {}
    for line in lines:
        if isinstance(line, Loop):
            inner = dict(line.values)
            slices = {inside: values[outer].along(values[outer].axes[1:]) for inside, outer in line.each}
            seen = {**values, **slices, **inner}
            before = {*seen}
            body = _scope(line.lines, seen)
            inner |= {name: value for name, value in seen.items() if name not in before}
            result.append(replace(line, lines=body, values=inner))
        elif is_whole(line):
            result += _whole(line, values, known)
        else:
            result.append(line)
        for name in line.makes:
            known = {key: pair for key, pair in known.items() if key[0] != name}
    return tuple(result)


def _whole(
    line: Line, values: Values, known: dict[tuple[str, tuple[str, ...]], tuple[Term, Term | None]]
) -> Iterable[Line]:
    left, scales = line.left[0], list[Term]()
    plain = [axis for axis in left.axes if isinstance(axis, str)]
    spread = Term(left.name, left.declared)
    factors: list[Term] = []
    lines: list[Line] = []
    for term in line.right:
        assert isinstance(term, Term)
        key = term.name, tuple(axis for axis in term.axes if isinstance(axis, str) and axis in plain)
        if values[term.name].dtype:
            known[key] = Term(term.name, term.axes), None
        elif key not in known:
            name, axes = f"{term.name}.by_{'_'.join(key[1]) or 'all'}", term.declared
            summed = tuple(axis for axis in axes if axis not in key[1])
            made = list(coded(Term(term.name, axes), name, summed, values, line.meta.phase))
            lines += made
            known[key] = made[-1].left[0], Term(f"{name}.scales", key[1])
        codes, scale = known[key]
        factors.append(Term(codes.name, term.axes))
        scales += [scale] if scale else []
    names = [f"{line.name}.{part}" for part in ("sum", "scaled")[: len(scales)]]
    for name in names:
        values[name] = replace(values[line.name], axes=left.declared, role="step", of=line.name)
    made_terms = [*(replace(spread, name=name) for name in names), spread]
    local = line.meta.local or line.name
    metas = [replace(line.meta, local=f"{local}.{name.rpartition('.')[2]}") for name in names] + [line.meta]
    first = replace(left, name=made_terms[0].name)
    lines.append(replace(line, left=(first,), right=tuple(factors), meta=replace(metas[0], locals=())))
    for before, after, meta, scale in zip(made_terms[:-1], made_terms[1:], metas[1:], scales, strict=True):
        lines.append(
            Product((after,), (before, scale), (), replace(meta, locals=(), equation="", gradients=(), operator=""))
        )
    return lines
