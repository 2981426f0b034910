"""The three kinds of line - product, sum and op - with their conditions and metadata."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeGuard

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.polynomial import Polynomial, base
from learncost.ir.term import Literal, Operand, Read, Term, terms_of


@dataclass(frozen=True, slots=True)
class MatmulDims:
    """The axes of a product of two factors by their function, in the order of the result.

    rows     axes of the first factor and the result
    columns  axes of the second factor and the result
    summed   axes of both factors and not of the result, in the first factor's order
    batch    axes of both factors and the result
    lone     axes of one factor only: they are summed before the multiplication
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    batch: tuple[str, ...]
    lone: tuple[str, ...]

    @property
    def are_of_matrices(self) -> bool:
        """Return whether it is a matrix product, with rows, columns and a summed axis."""
        return bool(self.rows and self.columns and self.summed)

    @property
    def sums(self) -> bool:
        """Return whether an axis is summed; without one the product is elementwise."""
        return bool(self.summed or self.lone)


def sides(left: Sequence[str], right: Sequence[str], result: Collection[str]) -> MatmulDims:
    """Return the dimensions of a product, from the axes of its factors and of its result."""
    return MatmulDims(
        rows=tuple(axis for axis in result if axis in left and axis not in right),
        columns=tuple(axis for axis in result if axis in right and axis not in left),
        summed=tuple(axis for axis in left if axis in right and axis not in result),
        batch=tuple(axis for axis in result if axis in left and axis in right),
        lone=tuple(
            axis for axis in dict.fromkeys((*left, *right)) if axis not in result and (axis in left) != (axis in right)
        ),
    )


@dataclass(frozen=True, slots=True)
class Condition:
    """A mask over index pairs: `where N <= M` keeps the points with index(lower) <= index(upper); also <, = and !=.

    Either side may be a number, `where M != 0`, as digits. `where N <= M < N + w` has a window: it keeps only the
    points with index(upper) < index(lower) + w, a size or a number from 1. `zigzag` has the mesh axes over which
    the positions of the lower and of the upper axis are in zigzag order (`sharding/zigzag.py`).
    """

    lower: str
    upper: str
    relation: str = "<="
    window: str | None = None
    zigzag: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(side for side in (self.lower, self.upper) if not side.isdigit())

    @property
    def strict(self) -> bool:
        return self.relation == "<"

    @property
    def ordered(self) -> bool:
        """Return whether it orders two axes, as in causal attention."""
        return self.relation in ("<", "<=") and len(self.axes) == 2

    def renamed(self, axes: Mapping[str, str]) -> Condition:
        window = None if self.window is None else base(axes.get(self.window, self.window))
        lower, upper = axes.get(self.lower, self.lower), axes.get(self.upper, self.upper)
        return replace(self, lower=lower, upper=upper, window=window)

    def __str__(self) -> str:
        text = f"{self.lower} {self.relation} {self.upper}"
        return text if self.window is None else f"{text} < {self.lower} + {self.window}"


RELATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}
"""The comparison of two indices that each relation of a condition makes."""


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """Consecutive lines that run as one kernel, tile by tile; values that only they read are never stored in full.

    axes    the axes that are tiled; every other axis of its lines is within a tile
    blocks  an axis that each tile reads in blocks of at most this many positions, one after another; None: all at once
    The axes have the names that the kernel's own values declare.
    """

    name: str
    axes: tuple[str, ...]
    blocks: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """The running statistics of a normalization, which a training step updates without an optimizer.

    mean, variance, count   their names; count, the number of batches so far, is "" where no line counts them
    places                  the axes of the normalized value that they have, by number
    momentum                the weight of the new statistics in each update; None: a cumulative average
    """

    mean: str
    variance: str
    count: str
    places: tuple[int, ...]
    momentum: float | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the statistics that a step updates."""
        return tuple(name for name in (self.mean, self.variance, self.count) if name)


@dataclass(frozen=True, slots=True)
class Meta:
    """Metadata of a line: its origin and purpose. It does not change what the line computes."""

    layer: str = ""
    block: str | None = None
    phase: str = "forward"
    equation: str = ""
    local: str = ""  # the left name inside the layer that contains the line
    locals: tuple[str, ...] = ()  # the same for the operands on the right
    gradients: tuple[str, ...] = ()  # numbers of the paper's equations for the gradients of the operands
    origin: int = -1  # for a lowered line: the number of the line it comes from, among all lines in order
    jacobian: str = ""  # the paper's equation number of the explicit Jacobian
    binding: tuple[tuple[str, str], ...] = ()  # the axes of the layer, and the caller's axes for them
    kernel: FusedKernel | None = None  # the fused kernel that the line belongs to
    module: str = ""  # the path of the line's module, with * for a block's number; "." is the root module
    operator: str = ""  # the operator that computes it there, such as linear
    note: Hashable = None  # what the package that wrote the line says about it, in its own terms
    # The checkpoints around it, outermost first: 1!/2-, where ! recomputes all, !! does and has no gradient unless one
    # of its inputs has, and - saves the result.
    again: str = ""
    running: RunningStatistics | None = None  # for a normalization: the statistics that a training step updates

    def of_step(self, name: str, note: Hashable = None, kernel: FusedKernel | None = None) -> Meta:
        """Return the metadata of an additional line that defines a name."""
        return Meta(self.layer, self.block, self.phase, local=name, kernel=kernel, module=self.module, note=note)


@dataclass(frozen=True, slots=True)
class Opaque:
    """The declared cost of a line without a derivation: FLOPs as polynomials in sizes, and their source.

    forward, backward   FLOPs of one iteration, as `Polynomial.parse` reads them; None: unknown
    visible             the share of them, a fraction, that a causal mask leaves; "" where there is no mask
    call                the name of its first result, by which its operator is found where that can run
    """

    forward: str | None = None
    backward: str | None = None
    source: str = ""
    visible: str = ""
    call: str = field(default="", compare=False)

    def flops(self, part: str) -> Polynomial | None:
        """Return the FLOPs of the body (forward) or the gradient (backward) of an op; None where they are unknown."""
        text = self.forward if part == "body" else self.backward
        return None if text is None else Polynomial.parse(text)

    def renamed(self, axes: Mapping[str, str]) -> Opaque:
        names = {base(old): base(new) for old, new in axes.items()}
        forward, backward = (
            None if text is None else str(Polynomial.parse(text).rename(names))
            for text in (self.forward, self.backward)
        )
        return replace(self, forward=forward, backward=backward)

    def __str__(self) -> str:
        known = {"forward": self.forward, "backward": self.backward}
        text = "".join(f" {name} {flops}" for name, flops in known.items() if flops is not None)
        text += f" visible {self.visible}" if self.visible else ""
        return f'{text} source "{self.source}"' if self.source else text


@dataclass(frozen=True)
class Line:
    """The base class of the three kinds of line. Only an op may have several terms in `left`."""

    left: tuple[Term, ...]
    right: tuple[Operand, ...]
    where: tuple[Condition, ...] = ()
    meta: Meta = Meta()

    @property
    def name(self) -> str:
        return self.left[0].name

    @cached_property
    def makes(self) -> tuple[str, ...]:
        """The names of its results."""
        return tuple(term.name for term in self.left)

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """Every axis of the line, each once."""
        return tuple(dict.fromkeys(a for term in (*self.left, *self.right) for a in term.loops))

    @cached_property
    def indexed_axes(self) -> tuple[Read, ...]:
        """The axes that the line reads or writes at an index, in other indices, too."""
        return tuple(axis for term in (*self.left, *self.terms) for axis in term.indexed_axes)

    @cached_property
    def windows(self) -> tuple[str, ...]:
        """The sizes of its windows; a window of a number is left out."""
        return tuple(each.window for each in self.where if each.window and not each.window.isdigit())

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Every term that the line reads, including those inside indices; indices on the left come last."""
        written = (axis.at for left in self.left for axis in left.indexed_axes)
        return tuple(term for operand in (*self.right, *written) for term in terms_of(operand))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The names that the line reads, including indices, each once."""
        inner = [n for term in self.right for n in term.names]
        inner += [n for term in self.left for n in term.names[1:]]
        return tuple(dict.fromkeys(inner))

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}, /, **fields: Any) -> Self:
        """Return the line with values and axes renamed, and with these fields; the same object where nothing
        changes."""
        return self.with_changed(
            left=tuple(t.renamed(names, axes) for t in self.left),
            right=tuple(t.renamed(names, axes) for t in self.right),
            where=tuple(c.renamed(axes) for c in self.where),
            **fields,
        )

    def with_changed(self, **fields: Any) -> Self:
        """Return the line with these fields; the same object, with its cached properties, where it has them."""
        changed = {name: value for name, value in fields.items() if value != getattr(self, name)}
        return replace(self, **changed) if changed else self

    def _suffix(self) -> str:
        text = "".join(f" where {condition}" for condition in self.where)
        return text + (f"  ({self.meta.equation})" if self.meta.equation else "")


_ONE = Literal()


@dataclass(frozen=True)
class Product(Line):
    """A product, `Y[M f] = X[M d] W[d f]`: axes that are absent on the left are summed."""

    @cached_property
    def sides(self) -> MatmulDims:
        """The dimensions of the matrix product. It has two factors at most; one factor has only rows and lone axes."""
        first, second = (term.loops for term in (*self.right, _ONE)[: max(2, len(self.right))])
        return sides(first, second, self.left[0].loops)

    def __str__(self) -> str:
        return f"{self.left[0]} = {' '.join(map(str, self.right))}{self._suffix()}"


@dataclass(frozen=True)
class Sum(Line):
    """A sum, `Y[M d] = X[M d] + b[d]`: terms with signs; a term with fewer axes is broadcast."""

    signs: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = " ".join(f"{'-' if s < 0 else '+'} {t}" for s, t in zip(self.signs, self.right, strict=True))
        return f"{self.left[0]} = {text.removeprefix('+ ')}{self._suffix()}"


@dataclass(frozen=True)
class Op(Line):
    """An op, `P[B h M N] = softmax[N](S[B h M N])`, with the axes it acts on.

    `part` selects the table of the op that this line stands for: its body, its gradient, or its explicit Jacobian;
    `given` and `gives` are the names in that table of the operands and of the results. `opaque` is the declared cost of
    a line without a derivation, which the op `opaque` marks.
    """

    op: str = ""
    axes: tuple[str, ...] = ()
    part: str = "body"
    given: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    opaque: Opaque | None = None

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The axes that it does not act on, those of the results first."""
        return tuple(axis for axis in self.loops if axis not in self.axes)

    @cached_property
    def chosen(self) -> tuple[str, ...]:
        """The axes of the result that no operand has, along which the op places what it selects."""
        operand_axes = {axis for term in self.right for axis in term.loops}
        return tuple(axis for axis in self.left[0].loops if self.right and axis not in operand_axes)

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}, /, **fields: Any) -> Self:
        opaque = self.opaque.renamed(axes) if self.opaque and axes else self.opaque
        return super().renamed(names, axes, axes=tuple(axes.get(a, a) for a in self.axes), opaque=opaque, **fields)

    def __str__(self) -> str:
        op = {"gradient": f"{self.op}'", "jacobian": f"jacobian {self.op}"}.get(self.part, self.op)
        acts = f"[{' '.join(self.axes)}]" if self.axes else ""
        right = f"{op}{acts}({', '.join(map(str, self.right))}){self.opaque or ''}"
        return f"{' '.join(map(str, self.left))} = {right}{self._suffix()}"


def is_sum_of_products(line: object) -> TypeGuard[Product]:
    """Return whether a line is a product of two factors that sums over an axis."""
    return isinstance(line, Product) and len(line.right) == 2 and line.sides.sums


def alias(line: Line) -> bool:
    """Return whether a line only renames an array: a sum of one term with the sign +, or an append into its buffer."""
    if isinstance(line, Op):
        return line.op == "append"
    return isinstance(line, Sum) and len(line.right) == 1 and line.signs == (1,)
