"""Name resolution of the axes of a line: renaming to the declared axes, and shape checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from learncost.ir.errors import NotationError
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.polynomial import base
from learncost.ir.term import Literal, Operand, Read, Term, terms_of


def settle(line: Line, declared: Mapping[str, tuple[str, ...]]) -> Line:
    """Rename the axes of a line to those that its values declare; a single N' becomes N.

    Axes keep their primes where possible: among the axes of one size, the one with the fewest primes becomes unprimed.
    """
    sizes: dict[str, str] = {}
    order = list(line.loops)
    for term in terms_in(line):
        axes = declared.get(term.name)
        if axes is None:
            continue
        for axis, name in zip(term.axes, axes, strict=True):
            if not isinstance(axis, str):
                continue
            if sizes.setdefault(axis, base(name)) != base(name):
                raise NotationError(
                    f"axis {axis} has the size of {sizes[axis]} and of {base(name)}; "
                    f"a second axis of the same size is {axis}', as in a square matrix W[{axis} {axis}']",
                    str(line),
                )
    groups: dict[str, list[str]] = {}
    for axis in order:
        groups.setdefault(sizes.get(axis, base(axis)), []).append(axis)
    renaming = {}
    for size, members in groups.items():
        members.sort(key=lambda axis: (base(axis) != size, axis.count("'"), order.index(axis)))
        for primes, axis in enumerate(members):
            renaming[axis] = size + "'" * primes
    where = tuple(c for c in line.where if c.axes <= set(order))
    line = line.with_changed(where=where).renamed({}, {a: b for a, b in renaming.items() if a != b})
    return line.with_changed(right=tuple(_labelled(term, declared) for term in line.right))


def _labelled(term: Operand, declared: Mapping[str, tuple[str, ...]]) -> Operand:
    """Rename the axes that a term reads at an index to those that its value declares."""
    if isinstance(term, Literal) or not term.indexed or term.name not in declared:
        return term
    pairs = zip(term.axes, declared[term.name], strict=True)
    return Term(term.name, tuple(Read(name, axis.at) if isinstance(axis, Read) else axis for axis, name in pairs))


def show_declared(line: Line, declared: Mapping[str, tuple[str, ...]]) -> Line:
    """Rename a derived line so that its left side shows the declared axes of the result."""
    term = line.left[0]
    want = declared[term.name]
    pairs = zip(term.axes, want, strict=True)
    swap = {axis: name for axis, name in pairs if isinstance(axis, str) and axis != name}
    free = [axis for axis in swap if axis not in swap.values()]
    for name in tuple(swap.values()):
        if name in line.loops and name not in swap:
            swap[name] = free.pop(0)
    if not swap and term.declared == want:
        return line
    line = line.renamed({}, swap)
    # An axis written at an index keeps its declared name, even where a loop axis has that name, too.
    pairs = zip(line.left[0].axes, want, strict=True)
    axes = tuple(Read(name, axis.at) if isinstance(axis, Read) else axis for axis, name in pairs)
    return replace(line, left=(Term(term.name, axes), *line.left[1:]))


def terms_in(line: Line) -> list[Term]:
    """Return every term that the line reads, including those inside indices; indices on the left come last."""
    written = (axis.at for left in line.left for axis in left.axes if isinstance(axis, Read))
    return [term for operand in (*line.right, *written) for term in terms_of(operand)]


def check_shape(line: Line) -> None:
    """Raise `NotationError` for a line of a layer whose axes do not match."""
    left = set(line.left[0].loops)
    right = {axis for term in line.right for axis in term.loops}
    if (missing := sorted(left - right)) and line.right and not isinstance(line, Op):
        parted = "; axes are separated by spaces, as in Y[B M d]" if len(missing[0]) > 1 else ""
        raise NotationError(f"axis {missing[0]} on the left is not on the right{parted}", str(line))
    if isinstance(line, Product):
        numbers = [term for term in line.right if isinstance(term, Literal)]
        reduces = numbers and len(line.right) == len(numbers) + 1  # a number next to a single value means a sum
        for axis in sorted(right - left) if not reduces else ():
            if sum(axis in term.loops for term in line.right) == 1:
                raise NotationError(
                    f"axis {axis} is summed but occurs in one factor only{_reduced(line, axis)}", str(line)
                )
    elif isinstance(line, Sum):
        for term in line.right:
            if extra := sorted(set(term.loops) - left):
                raise NotationError(f"axis {extra[0]} of {term} is not on the left", str(line))
    elif isinstance(line, Op):
        for axis in line.axes:
            if axis not in right:
                raise NotationError(f"{line.op} acts on axis {axis}, which no operand has", str(line))
            if line.axes.count(axis) > 1:
                raise NotationError(f"axis {axis} occurs twice in {line.op}[{' '.join(line.axes)}]", str(line))
    if line.left[0].indexed and not isinstance(line, Product):
        raise NotationError("only a product may have an index on the left", str(line))
    for condition in line.where:
        _check_condition(condition, line)


def _reduced(line: Product, axis: str) -> str:
    """Return the correction for a sum or a mean of a single value, or of one factor before the product."""
    (term, *more) = line.right
    if line.left[0].indexed:
        return ""
    if more:
        term = next(factor for factor in line.right if axis in factor.loops)
        if term.indexed:
            return ""
        first = f"S[{' '.join(axis_left for axis_left in term.loops if axis_left != axis)}]"
        return f"; sum it first: {first} = sum[{axis}]({term}), then {first} in its place"
    over = " ".join(axis_summed for axis_summed in term.loops if axis_summed not in line.left[0].loops)
    return f"; write {line.left[0]} = sum[{over}]({term}), or mean[{over}]({term})"


def _check_condition(condition: Condition, line: Line) -> None:
    if condition.lower == condition.upper:
        raise NotationError(f"where {condition}: two different axes are needed, or an axis and a number", str(line))
