"""Union-find over the axes of values: which axes are the same, and how an axis is split into others.

Every stored dimension has a class, a node with a size. A rule that reads two dimensions along one letter unifies their
classes; a view that divides a dimension splits its class, and with it every value that has it. Equal sizes alone make
nothing the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import sympy
from torch.utils._sympy.functions import CeilToInt, FloorDiv, FloorToInt, IntTrueDiv, Max, Min, ToFloat, TruncToInt

from learncost.ir.dataclass import dataclass, field

Size: TypeAlias = Any
"""An int, or a sympy expression in the symbols of the inputs."""


class AxisSplitError(Exception):
    """Two sequences of axes cannot be split into common factors, or an indexed axis would have to be split.

    side   which of the two has that axis, 0 or 1; None where they have no common parts
    """

    side: int | None = None


@dataclass(eq=False)
class AxisClass:
    """A class of axes. `parts` are the axes that it is split into, outer ones first; `whole` marks an indexed axis,
    which cannot be split.

    letter   the name that a rule suggests
    """

    size: Size
    letter: str = ""
    whole: bool = False
    same: AxisClass | None = None
    parts: tuple[AxisClass, ...] = ()
    number: int = field(default_factory=iter(range(1 << 62)).__next__)

    @property
    def root(self) -> AxisClass:
        """Return the representative of the class."""
        axis = self
        while axis.same is not None:
            if axis.same.same is not None:
                axis.same = axis.same.same  # path compression
            axis = axis.same
        return axis

    @property
    def leaves(self) -> tuple[AxisClass, ...]:
        """Return the classes that it is split into, or itself if it is not split."""
        root = self.root
        if not root.parts:
            return (root,)
        return tuple(leaf for part in root.parts for leaf in part.leaves)

    def keep_whole(self) -> None:
        """Mark the axis as indexed, so that it cannot be split. Raises `AxisSplitError` if it is split already."""
        root = self.root
        if root.parts:
            raise AxisSplitError
        root.whole = True

    def split(self, outer: Size) -> None:
        """Split an unsplit class into an outer axis of this size and the rest. Raises `AxisSplitError`."""
        root = self.root
        inner = quotient(root.size, outer)
        if root.parts or root.whole or inner is None:
            raise AxisSplitError
        root.parts = AxisClass(outer), AxisClass(inner)

    def join(self, other: AxisClass) -> None:
        """Unify two unsplit classes of equal size."""
        ours, theirs = self.root, other.root
        if ours is theirs:
            return
        theirs.same = ours
        if len(str(theirs.size)) < len(str(ours.size)):
            ours.size = theirs.size  # the same number in a simpler expression
        ours.whole |= theirs.whole
        ours.letter = ours.letter or theirs.letter


def simple(size: Size) -> Size:
    """Return a size as an int if it is a number."""
    if isinstance(size, int):
        return size
    if not size.is_Integer:
        size = _counted(_rounded_up(_cut_down(_largest(size))))
    return int(size) if size.is_Integer else size


def _largest(size: Any) -> Any:
    """Simplify a maximum that is constant for all sizes from 1, such as `max(0, 1 - M)`, to its value."""
    for part in sorted(size.atoms(Max, Min), key=str):
        above = {
            each: sympy.Dummy(integer=True, nonnegative=True) + 1 for each in part.free_symbols if each.is_positive
        }
        sign = 1 if isinstance(part, Max) else -1
        apart = {each: _less_wholes(each) for each in part.args}
        ends = [
            one
            for one in part.args
            if all((sign * (apart[one] - apart[each])).xreplace(above).is_nonnegative for each in part.args)
        ]
        if ends:
            size = size.xreplace({part: ends[0]})
    return size


def _cut_down(size: Any) -> Any:
    """Rewrite `int(1.5 * M)`, as upsampling by a scale factor makes it, as 3 M // 2."""
    for part in sorted(size.atoms(TruncToInt, FloorToInt), key=lambda each: len(str(each))):
        factor, whole = part.args[0].as_coeff_Mul()
        above, below = float(factor).as_integer_ratio()
        if isinstance(whole, ToFloat) and below <= _EXACT:
            size = size.xreplace({part: FloorDiv(above * whole.args[0], below)})
    return size


_EXACT = 1 << 10
"""Up to this denominator a factor is the same in floats and in whole numbers."""


def _less_wholes(size: Any) -> Any:
    """Move whole numbers out of quotients, (M - 2) // 2 as M // 2 - 1, so that equal sizes have one text."""

    def given(above: Any, below: Any) -> Any:
        number, rest = above.as_coeff_Add()
        if not number.is_Integer or not below.is_Integer:
            return FloorDiv(above, below)
        return FloorDiv(rest + number % below, below) + number // below

    return size.replace(FloorDiv, given)


def _rounded_up(size: Any) -> Any:
    """Rewrite `math.ceil(M / 2)` as (M + 1) // 2."""
    for part in size.atoms(CeilToInt):
        (ratio,) = part.args
        if isinstance(ratio, IntTrueDiv):
            above, below = ratio.args
            size = size.xreplace({part: FloorDiv(above + below - 1, below)})
    return size


def _counted(size: Any) -> Any:
    """Simplify step counts such as `(M n + n - 1) // n` to M, and quotients without remainder."""
    for part in sorted(size.atoms(FloorDiv), key=str):
        above, below = part.args
        ratio = sympy.cancel(above / below)
        if sympy.fraction(sympy.together(ratio))[1] == 1:
            size = size.xreplace({part: ratio})
            continue
        steps = sympy.cancel((above - below + 1) / below) if below.free_symbols else None
        if steps is not None and steps.is_polynomial(*steps.free_symbols):
            size = size.xreplace({part: steps})
    return size


def product(sizes: Sequence[Size]) -> Size:
    """Return the product of the sizes of several axes."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return simple(total.expand() if hasattr(total, "expand") else total)


def equal(left: Size, right: Size) -> bool:
    """Return whether two sizes are the same number for all values of the symbols."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    difference = left - right
    return bool(difference == 0 or (hasattr(difference, "expand") and difference.expand() == 0))


def quotient(size: Size, divisor: Size) -> Size | None:
    """Return one size divided by another; None if the division leaves a remainder. A fraction of a symbol, such as M/2,
    counts as whole.
    """
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if divisor > 0 and size % divisor == 0 else None
    ratio = sympy.cancel(sympy.sympify(size) / divisor)
    if ratio.is_number and not ratio.is_Integer:
        return None
    return simple(ratio) if sympy.fraction(ratio)[1].is_Integer else None


def leaves(axes: Sequence[AxisClass]) -> Iterator[AxisClass]:
    """Yield the leaves of a sequence of classes, in order."""
    for axis in axes:
        yield from axis.leaves


def unify_axes(left: Sequence[AxisClass], right: Sequence[AxisClass]) -> None:
    """Unify two sequences of classes, splitting the coarser where the finer ends. Raises `AxisSplitError`."""
    for _ in range(MOST_PARTS):
        ours, theirs = list(leaves(left)), list(leaves(right))
        if len(ours) == len(theirs) == 1:  # one letter names both: they have one size, however the graph expresses it
            ours[0].join(theirs[0])
            return
        for mine, yours in zip(ours, theirs, strict=False):
            if mine is yours:
                continue
            if equal(mine.size, yours.size):
                mine.join(yours)
            elif quotient(mine.size, yours.size) is not None:
                _split(mine, yours.size, 0)
            elif quotient(yours.size, mine.size) is not None:
                _split(yours, mine.size, 1)
            else:
                raise AxisSplitError
            break
        else:
            if len(ours) != len(theirs):
                raise AxisSplitError
            return
    raise AxisSplitError


MOST_PARTS = 64
"""The most steps to unify two sequences; more means that symbols divide each other without end."""


def _split(axis: AxisClass, outer: Size, side: int) -> None:
    try:
        axis.split(outer)
    except AxisSplitError as error:
        error.side = side
        raise
