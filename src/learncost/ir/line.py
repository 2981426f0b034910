"""The three kinds of line - product, sum and word - with their conditions, and what is known of where they are from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from learncost.ir.matmul_dims import MatmulDims, sides
from learncost.ir.polynomial import Polynomial, base
from learncost.ir.term import Literal, Operand, Term


@dataclass(frozen=True, slots=True)
class Condition:
    """`where N <= M`: only the points with index(lower) <= index(upper) are inside; or with <, = or !=.

    Either side may be a number, `where M != 0`, as digits. `where N <= M < N + w` has a window: of these, only the
    points with index(upper) < index(lower) + w, a size or a number from 1.
    """

    lower: str
    upper: str
    relation: str = "<="
    window: str | None = None

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(side for side in (self.lower, self.upper) if not side.isdigit())

    @property
    def strict(self) -> bool:
        return self.relation == "<"

    @property
    def ordered(self) -> bool:
        """Whether it says of two axes which comes first, as a query sees earlier keys."""
        return self.relation in ("<", "<=") and len(self.axes) == 2

    def renamed(self, axes: Mapping[str, str]) -> Condition:
        window = None if self.window is None else base(axes.get(self.window, self.window))
        return Condition(axes.get(self.lower, self.lower), axes.get(self.upper, self.upper), self.relation, window)

    def __str__(self) -> str:
        text = f"{self.lower} {self.relation} {self.upper}"
        return text if self.window is None else f"{text} < {self.lower} + {self.window}"


RELATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}
"""What a condition may ask of two positions."""


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """Consecutive lines that run as one, turn by turn: what only they read never lies in memory as a whole.

    axes    what it takes turns over; every other axis of its lines lies inside of a turn
    blocks  an axis of which a turn takes blocks of at most so many places, one after another; None: all at once
    zigzag  whether a part of that axis is a stretch early and one late (`ir/zigzag.py`)
    Axes are called as the kernel's own values declare them.
    """

    name: str
    axes: tuple[str, ...]
    blocks: tuple[str, int] | None = None
    zigzag: bool = False


@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """The running statistics of a normalization, which a training step updates and nothing learns.

    mean, variance, count   their names; count, of the batches so far, is "" where nothing counts
    places                  which axes of the normalized value they have
    momentum                the share of the new statistics in each update; None: their cumulative average
    """

    mean: str
    variance: str
    count: str
    places: tuple[int, ...]
    momentum: float | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what a step updates."""
        return tuple(name for name in (self.mean, self.variance, self.count) if name)


@dataclass(frozen=True, slots=True)
class Meta:
    """Where a line comes from and what it is for; no reading needs it for its meaning."""

    layer: str = ""
    block: str | None = None
    phase: str = "forward"
    equation: str = ""
    local: str = ""  # the left name inside the layer where the line was written
    locals: tuple[str, ...] = ()  # the same for the operands on the right
    gradients: tuple[str, ...] = ()  # numbers of the paper's equations for the gradients of the operands
    origin: int = -1  # of a lowered line: the place of the line that it belongs to, among all lines in their order
    jacobian: str = ""  # and for the explicit Jacobian of the line
    binding: tuple[tuple[str, str], ...] = ()  # the sizes of the layer's own axes, and what a call made of them
    cached: int | None = None  # of a value that decoding keeps: the place of the keys' positions among its axes
    kernel: FusedKernel | None = None  # which lines it runs with
    types: tuple[str, ...] = ()  # of a line that makes a weight: those of its codes, of its scales, of what it makes
    module: str = ""  # the path of the module whose line it is, with * for the number of a block; "." is the whole
    operator: str = ""  # what computes it there, such as linear
    why: str = ""  # of a collective: why it is there
    again: str = (
        ""  # the checkpoints around it, the outermost first: 1!/2-, where ! runs all again, and - keeps its result
    )
    running: RunningStatistics | None = None  # of a normalization: the statistics that a training step keeps of it


@dataclass(frozen=True, slots=True)
class Opaque:
    """What is said of the cost of a line that is not derived: FLOPs as polynomials in sizes, and by whom.

    forward, backward   of one turn, as `Polynomial.parse` reads them; None: nobody knows
    visible             the share of them, a fraction, that a causal mask leaves; "" where there is no mask
    """

    forward: str | None = None
    backward: str | None = None
    source: str = ""
    visible: str = ""

    def flops(self, part: str) -> Polynomial | None:
        """The FLOPs of a word's part; None where they are not known."""
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
    """What the three kinds of line share. `left` has several terms only before a word."""

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
    def reads(self) -> tuple[str, ...]:
        """The names that the line needs, indices included, each once."""
        inner = [n for term in self.right for n in term.names]
        inner += [n for term in self.left for n in term.names[1:]]
        return tuple(dict.fromkeys(inner))

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}) -> Line:
        """The same under other names; itself where none of them changes."""
        return self.with_changed(
            left=tuple(t.renamed(names, axes) for t in self.left),
            right=tuple(t.renamed(names, axes) for t in self.right),
            where=tuple(c.renamed(axes) for c in self.where),
        )

    def with_changed(self, **fields: Any) -> Self:
        """The line with these fields; itself where it has them already, so that what it remembers stays."""
        changed = {name: value for name, value in fields.items() if value != getattr(self, name)}
        return replace(self, **changed) if changed else self

    def _suffix(self) -> str:
        text = "".join(f" where {condition}" for condition in self.where)
        return text + (f"  ({self.meta.equation})" if self.meta.equation else "")


_ONE = Literal()


@dataclass(frozen=True)
class Product(Line):
    """`Y[M f] = X[M d] W[d f]`: axes that are absent on the left are summed."""

    @cached_property
    def sides(self) -> MatmulDims:
        """What its axes do; of a product of one factor there are rows and lone axes alone. It has two at most."""
        first, second = (term.loops for term in (*self.right, _ONE)[: max(2, len(self.right))])
        return sides(first, second, self.left[0].loops)

    def __str__(self) -> str:
        return f"{self.left[0]} = {' '.join(map(str, self.right))}{self._suffix()}"


@dataclass(frozen=True)
class Sum(Line):
    """`Y[M d] = X[M d] + b[d]`: terms with signs; a term with fewer axes is spread."""

    signs: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = " ".join(f"{'-' if s < 0 else '+'} {t}" for s, t in zip(self.signs, self.right, strict=True))
        return f"{self.left[0]} = {text.removeprefix('+ ')}{self._suffix()}"


@dataclass(frozen=True)
class Op(Line):
    """`P[B h M N] = softmax[N](S[B h M N])`: a word of the vocabulary, with the axes it acts on.

    `part` says which of the word's tables this line is: its body, its gradient, or its explicit Jacobian; `given` and
    `gives` are the names in that table of the operands and of the results. `opaque` is there where the line is not
    derived, but the word `opaque`: what is said of its cost.
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
        """The axes that it gives what it chooses among its operands: those of its result that no operand has."""
        operand_axes = {axis for term in self.right for axis in term.loops}
        return tuple(axis for axis in self.left[0].loops if self.right and axis not in operand_axes)

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}) -> Op:
        line = super().renamed(names, axes)
        assert isinstance(line, Op)
        opaque = self.opaque.renamed(axes) if self.opaque and axes else self.opaque
        return line.with_changed(axes=tuple(axes.get(a, a) for a in self.axes), opaque=opaque)

    def __str__(self) -> str:
        op = {"gradient": f"{self.op}'", "jacobian": f"jacobian {self.op}"}.get(self.part, self.op)
        acts = f"[{' '.join(self.axes)}]" if self.axes else ""
        right = f"{op}{acts}({', '.join(map(str, self.right))}){self.opaque or ''}"
        return f"{' '.join(map(str, self.left))} = {right}{self._suffix()}"


def alias(line: Line) -> bool:
    """Another name for the same array: a sum of one term with the sign +, or what was written into its room."""
    if isinstance(line, Op):
        return line.op == "append"
    return isinstance(line, Sum) and len(line.right) == 1 and line.signs == (1,)
