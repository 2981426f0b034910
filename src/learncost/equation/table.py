"""The data of the notation: terms, three kinds of line, the repeat, the table. Programs are values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any, Self, TypeAlias

from learncost.equation.affine import Affine
from learncost.equation.count import Count, base, size_of, summands
from learncost.equation.displayed import Displayed
from learncost.equation.errors import InputError
from learncost.equation.sides import Sides, sides
from learncost.equation.value import FIXED, INDICES, Value, axes_of


@dataclass(frozen=True, slots=True)
class Read:
    """An axis read at an index, `v=T[B M]`, or at a place, `y=i + 1`: there it is read, not along all of it."""

    axis: str
    at: Term | Affine

    def __str__(self) -> str:
        return f"{self.axis}={self.at}"


Axis: TypeAlias = str | Read


@dataclass(frozen=True, slots=True)
class Term:
    """A named value with its axes as this line reads them, `Q[B M h k]`."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def loops(self) -> tuple[str, ...]:
        """The axes that are looped over: plain axes, and the axes of the indices, each once, in order."""
        return _loops(self.axes)

    @property
    def declared(self) -> tuple[str, ...]:
        """The axes of the value itself, indices aside: wte[v=tokens[B M] d] has (v, d)."""
        return _declared(self.axes)

    @property
    def indexed(self) -> bool:
        return _indexed(self.axes)

    @property
    def apart(self) -> bool:
        """Whether what is written here never meets: it is not at an index, or positions say where, `Y[B M=0[] d]` or
        `Y[M=i + 1 d]`, each place at most once. At an index of data several may meet.
        """
        return _apart(self.axes)

    @property
    def beyond(self) -> tuple[tuple[int, Affine], ...]:
        """Which of the axes may be read beyond their ends, and at which places: those that positions give."""
        reads = ((number, axis.at) for number, axis in enumerate(self.axes) if isinstance(axis, Read))
        return tuple((number, at) for number, at in reads if isinstance(at, Affine) and not at.fixed)

    @property
    def names(self) -> tuple[str, ...]:
        """The name and those of its indices."""
        inner = (name for axis in self.axes if isinstance(axis, Read) for name in axis.at.names)
        return (self.name, *inner)

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}) -> Term:
        """The same under other names; itself where none of them changes."""
        name, new_axes = names.get(self.name, self.name), self.axes
        if axes or self.indexed:
            new_axes = tuple(
                axes.get(a, a) if isinstance(a, str) else Read(axes.get(a.axis, a.axis), a.at.renamed(names, axes))
                for a in self.axes
            )
        return self if name == self.name and new_axes == self.axes else Term(name, new_axes)

    def __str__(self) -> str:
        return f"{self.name}[{' '.join(_spelt(self.axes))}]"


def _spelt(axes: tuple[Axis, ...]) -> Iterator[str]:
    """The axes as they are written; a place in parentheses where the axis behind it would be read as a part of it."""
    for axis, behind in zip_longest(axes, axes[1:]):
        at = axis.at if isinstance(axis, Read) else None
        in_brackets = isinstance(at, Affine) and at.ends_open and isinstance(behind, str)
        yield f"{axis.axis}=({at})" if in_brackets and isinstance(axis, Read) else str(axis)


@lru_cache(maxsize=4096)
def _loops(axes: tuple[Axis, ...]) -> tuple[str, ...]:
    loops: list[str] = []
    for axis in axes:
        loops.extend((axis,) if isinstance(axis, str) else axis.at.loops)
    return tuple(dict.fromkeys(loops))


@lru_cache(maxsize=4096)
def _declared(axes: tuple[Axis, ...]) -> tuple[str, ...]:
    return tuple(axis if isinstance(axis, str) else axis.axis for axis in axes)


@lru_cache(maxsize=4096)
def _indexed(axes: tuple[Axis, ...]) -> bool:
    return any(isinstance(axis, Read) for axis in axes)


@lru_cache(maxsize=4096)
def _apart(axes: tuple[Axis, ...]) -> bool:
    known = {axis for axis in axes if isinstance(axis, str)}
    places = [axis.at for axis in axes if isinstance(axis, Read)]
    while told := [at for at in places if isinstance(at, Affine) and at.tells(known)]:  # the place tells the position
        known.update(*(at.loops for at in told))
        places = [at for at in places if at not in told]
    return not places


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, `0.5[]`, or a size to a power, `#k^-0.5[]`: value times the product of the sizes to the power."""

    value: float = 1.0
    sizes: tuple[str, ...] = ()
    power: float = 1.0

    name = ""
    axes: tuple[Axis, ...] = ()
    loops: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    indexed = False
    names: tuple[str, ...] = ()

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}) -> Literal:
        def renamed(size: str) -> str:
            parts = summands(size)
            text = "".join(f"{'-' if sign < 0 else '+'}{axes.get(summand, summand)}" for sign, summand in parts)
            return text if parts[0][0] < 0 else text[1:]

        sizes = tuple(map(renamed, self.sizes))
        return self if sizes == self.sizes else replace(self, sizes=sizes)

    def number(self, sizes: Mapping[str, int]) -> float:
        """The number, given the sizes."""
        points = 1
        for size in self.sizes:
            points *= size_of(size, sizes)
        if points <= 0 and self.power < 0:
            raise InputError(f"{self} is one over {points}")
        return float(self.value * float(points) ** self.power)

    def __str__(self) -> str:
        if not self.sizes:
            return f"{self.value:g}[]"
        text = "".join(f"#({size})" if len(summands(size)) > 1 else f"#{size}" for size in self.sizes)
        text += f"^{self.power:g}" if self.power != 1 else ""
        return text + "[]"


Operand: TypeAlias = Term | Literal
_ONE = Literal()


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
class Kernel:
    """Consecutive lines that run as one, turn by turn: what only they read never lies in memory as a whole.

    axes    what it takes turns over; every other axis of its lines lies inside of a turn
    blocks  an axis of which a turn takes blocks of at most so many places, one after another; None: all at once
    zigzag  whether a part of that axis is a stretch early and one late (`equation/zigzag.py`)
    Axes are called as the kernel's own values declare them.
    """

    name: str
    axes: tuple[str, ...]
    blocks: tuple[str, int] | None = None
    zigzag: bool = False


@dataclass(frozen=True, slots=True)
class Tag:
    """Where a line comes from and what it is for; no reading needs it for its meaning."""

    layer: str = ""
    block: str | None = None
    macro: str = "forward"
    equation: str = ""
    local: str = ""  # the left name inside the layer where the line was written
    locals: tuple[str, ...] = ()  # the same for the operands on the right
    gradients: tuple[str, ...] = ()  # numbers of the paper's equations for the gradients of the operands
    origin: int = -1  # of a lowered line: the place of the line that it belongs to, among all lines in their order
    jacobian: str = ""  # and for the explicit Jacobian of the line
    binding: tuple[tuple[str, str], ...] = ()  # the sizes of the layer's own axes, and what a call made of them
    cached: int | None = None  # of a value that decoding keeps: the place of the keys' positions among its axes
    kernel: Kernel | None = None  # which lines it runs with
    types: tuple[str, ...] = ()  # of a line that makes a weight: those of its codes, of its scales, of what it makes
    module: str = ""  # the path of the module whose line it is, with * for the number of a block; "." is the whole
    operator: str = ""  # what computes it there, such as linear
    why: str = ""  # of a collective: why it is there


@dataclass(frozen=True, slots=True)
class Opaque:
    """What is said of the cost of a line that is not derived: FLOPs as polynomials in sizes, and by whom.

    forward, backward   of one turn, as `Count.parse` reads them; None: nobody knows
    """

    forward: str | None = None
    backward: str | None = None
    source: str = ""

    def flops(self, part: str) -> Count | None:
        """The FLOPs of a word's part; None where they are not known."""
        text = self.forward if part == "body" else self.backward
        return None if text is None else Count.parse(text)

    def renamed(self, axes: Mapping[str, str]) -> Opaque:
        names = {base(old): base(new) for old, new in axes.items()}
        forward, backward = (
            None if text is None else str(Count.parse(text).rename(names)) for text in (self.forward, self.backward)
        )
        return Opaque(forward, backward, self.source)

    def __str__(self) -> str:
        known = {"forward": self.forward, "backward": self.backward}
        text = "".join(f" {name} {flops}" for name, flops in known.items() if flops is not None)
        return f'{text} source "{self.source}"' if self.source else text


@dataclass(frozen=True)
class Line:
    """What the three kinds of line share. `left` has several terms only before a word."""

    left: tuple[Term, ...]
    right: tuple[Operand, ...]
    where: tuple[Condition, ...] = ()
    tag: Tag = Tag()

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
        return text + (f"  ({self.tag.equation})" if self.tag.equation else "")


@dataclass(frozen=True)
class Product(Line):
    """`Y[M f] = X[M d] W[d f]`: axes that are absent on the left are summed."""

    @cached_property
    def sides(self) -> Sides:
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
class Word(Line):
    """`P[B h M N] = softmax[N](S[B h M N])`: a word of the vocabulary, with the axes it acts on.

    `part` says which of the word's tables this line is: its body, its gradient, or its explicit Jacobian; `given` and
    `gives` are the names in that table of the operands and of the results. `opaque` is there where the line is not
    derived, but the word `opaque`: what is said of its cost.
    """

    word: str = ""
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

    def renamed(self, names: Mapping[str, str], axes: Mapping[str, str] = {}) -> Word:
        line = super().renamed(names, axes)
        assert isinstance(line, Word)
        opaque = self.opaque.renamed(axes) if self.opaque and axes else self.opaque
        return line.with_changed(axes=tuple(axes.get(a, a) for a in self.axes), opaque=opaque)

    def __str__(self) -> str:
        word = {"gradient": f"{self.word}'", "jacobian": f"jacobian {self.word}"}.get(self.part, self.word)
        acts = f"[{' '.join(self.axes)}]" if self.axes else ""
        right = f"{word}{acts}({', '.join(map(str, self.right))}){self.opaque or ''}"
        return f"{' '.join(map(str, self.left))} = {right}{self._suffix()}"


@dataclass(frozen=True, slots=True)
class Carry:
    """A value handed from turn to turn: `start` and `end` are its names inside, `initial` and `final` outside."""

    start: str
    end: str
    initial: str
    final: str


@dataclass(frozen=True)
class Repeat:
    """`repeat n_layer carry X:`: the lines, count times. Its body is a scope of its own that sees the outer names.

    `each` pairs a name inside with the stack outside that it is a slice of, turn by turn; `keep` pairs a name inside
    with the stack outside that collects it. A stack has the count as its first axis; where a name inside has as many
    axes as its stack, a turn has several slices that stand together, a part of the stack (`part`). `reverse` runs the
    last turn first. `around` is the axis of a mesh round which a turn's parts come, one device further in every turn.
    """

    count: str
    lines: tuple[Statement, ...]
    values: Mapping[str, Value]
    carry: tuple[Carry, ...] = ()
    each: tuple[tuple[str, str], ...] = ()
    keep: tuple[tuple[str, str], ...] = ()
    reverse: bool = False
    around: str = ""

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The declared axes of the names inside."""
        return axes_of(self.values)

    @cached_property
    def inside(self) -> frozenset[str]:
        """The names that belong to the body's own scope."""
        names = {carry.start for carry in self.carry} | {name for name, _ in self.each}
        return frozenset(names | defined(self.lines))

    @property
    def makes(self) -> tuple[str, ...]:
        """The outer names that it hands out: what it carried, and the stacks of what it keeps."""
        return (*(carry.final for carry in self.carry), *(outer for _, outer in self.keep))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The outer names that the repeat needs."""
        inside = self.inside
        names = [carry.initial for carry in self.carry] + [outer for _, outer in self.each]
        names += [name for line in self.lines for name in line.reads if name not in inside]
        return tuple(dict.fromkeys(names))

    def renamed(self, names: Mapping[str, str]) -> Repeat:
        """The same under other names of the scope around it; its own stay."""
        inside = self.inside
        free = {name: new for name, new in names.items() if name not in inside}

        def new(name: str) -> str:
            return names.get(name, name)

        return replace(
            self,
            lines=tuple(line.renamed(free) for line in self.lines),
            carry=tuple(Carry(c.start, c.end, new(c.initial), new(c.final)) for c in self.carry),
            each=tuple((inside, new(stack)) for inside, stack in self.each),
            keep=tuple((inside, new(stack)) for inside, stack in self.keep),
        )

    def with_own(self, names: Mapping[str, str]) -> Repeat:
        """The same with other names of its own; those around it stay."""

        def new(name: str) -> str:
            return names.get(name, name)

        return replace(
            self,
            lines=tuple(line.renamed(names) for line in self.lines),
            values={new(name): value for name, value in self.values.items()},
            carry=tuple(Carry(new(c.start), new(c.end), c.initial, c.final) for c in self.carry),
            each=tuple((new(inside), stack) for inside, stack in self.each),
            keep=tuple((new(inside), stack) for inside, stack in self.keep),
        )

    def part(self, inside: str, stack: Sequence[str]) -> int:
        """How many slices of a stack of these axes a turn has together under a name; 0: one, without the first axis."""
        axes = self.axes.get(inside, ())
        return int(axes[0]) if axes and len(axes) == len(stack) else 0

    @property
    def shared(self) -> tuple[str, ...]:
        """The outer names that every turn reads as they are."""
        inside = self.inside
        return tuple(dict.fromkeys(n for line in self.lines for n in line.reads if n not in inside))

    def __str__(self) -> str:
        head = f"repeat {self.count}{' backwards' if self.reverse else ''}"
        head += f" around {self.around}" if self.around else ""
        if self.carry:
            head += " carry " + " ".join(f"{c.start}->{c.end}" for c in self.carry)
        # A weight's slice has the name of its stack, and what only a derivation keeps ends in a star.
        for word, pairs in (("each", self.each), ("keep", tuple((outer, inside) for inside, outer in self.keep))):
            pairs_shown = [f"{new}={old}" for new, old in pairs if new != old and "*" not in (new[-1], old[-1])]
            head += f" {word} {' '.join(pairs_shown)}" if pairs_shown else ""
        body = "\n".join("  " + text for line in self.lines for text in str(line).splitlines())
        return f"{head}:\n{body}"


Statement: TypeAlias = Line | Repeat


def alias(line: Line) -> bool:
    """Another name for the same array: a sum of one term with the sign +, or what was written into its room."""
    if isinstance(line, Word):
        return line.word == "append"
    return isinstance(line, Sum) and len(line.right) == 1 and line.signs == (1,)


def not_derived(lines: Iterable[Statement]) -> tuple[Word, ...]:
    """The lines that have a cost and no meaning: they cannot be run."""
    return tuple(line for line, _ in walk(lines) if isinstance(line, Word) and line.opaque is not None)


def check_derived(lines: Iterable[Statement], doing: str) -> None:
    """Refuse to do something with lines of which one is not derived, and say which. Raises `InputError`."""
    for line in not_derived(lines):
        where = f" in {line.tag.module}" if line.tag.module else ""
        raise InputError(f"{line.tag.operator or line.word}{where} is not derived, so {doing}, in line: {line}")


def check_known(lines: Iterable[Statement], what: str) -> None:
    """Refuse to do something with lines of which one has a cost that nobody knows. Raises `InputError`."""
    for line in not_derived(lines):
        if line.opaque and None in (line.opaque.forward, line.opaque.backward):
            where = f" in {line.tag.module}" if line.tag.module else ""
            raise InputError(
                f"{what} needs every cost, and that of {line.tag.operator or line.word}{where} is not known, "
                "forward and backward; learncost cost gives lower bounds"
            )


def defined(lines: Iterable[Statement]) -> frozenset[str]:
    """The names that lines define in their own scope."""
    return frozenset(name for line in lines for name in line.makes)


@dataclass(frozen=True)
class Table(Displayed):
    """Lines and repeats, with what is known of every value in their scope: its axes, and what it is there for.

    `inputs` and `weights` are given from outside, `outputs` is what others may read.
    """

    lines: tuple[Statement, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    title: str = field(default="", compare=False)
    within: Table | None = field(default=None, compare=False)  # the whole whose context these lines run in
    keeps: tuple[str, ...] = ()  # collectives of which a placement keeps what they make forward for the backward pass
    zigzag: Mapping[str, tuple[str, ...]] | None = None  # axes in zigzag, over what; before it is placed: none yet
    ring: bool = False  # whether parts go round where a placement would gather what lines sum over
    sizes: Mapping[str, int] = field(default_factory=dict)  # those that it states

    @cached_property
    def repeats(self) -> tuple[Repeat, ...]:
        """The repeats among its lines, but those within others."""
        return tuple(line for line in self.lines if isinstance(line, Repeat))

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The declared axes of every name."""
        return axes_of(self.values)

    @cached_property
    def known(self) -> Mapping[str, Value]:
        """What is known of every value of every scope; of a name that several have, in the outermost."""
        return {**_inside(self.lines), **self.values}

    def header(self, name: str) -> str:
        """What the header calls an output: Y, of which the last version is Y.2; a cache, of one that has grown."""
        value = self.values[name]
        grown = value.role == "new" and self.values[value.of].role == "cache"
        return value.of if value.of and (grown or value.role == "value") else name

    @cached_property
    def renewed(self) -> Mapping[str, str]:
        """What a step makes anew, weights and states, with the names of what it makes of them."""
        return {self.values[name].of: name for name in self.outputs if self.values[name].role == "new"}

    @property
    def beside(self) -> tuple[str, ...]:
        """Matrices that a procedure has beside the weights, and that a step makes anew as it does these."""
        return tuple(n for n in self.inputs if n in self.renewed and self.values[n].role == "projection")

    @property
    def following(self) -> tuple[str, ...]:
        """Those of them that take the steps of a weight, and have none of the optimizer's own."""
        made = {line.name: line for line in self.lines if isinstance(line, Sum)}
        return tuple(name for name in self.beside if self.renewed[name] in made)

    @cached_property
    def indices(self) -> frozenset[str]:
        """Names that are only read as an index."""
        return frozenset(name for name, value in self.values.items() if value.role in INDICES)

    @cached_property
    def multiplied(self) -> frozenset[str]:
        """Its weights, those of which it has the codes, and what stands for a weight, as its lines read them."""
        fixed = {name for name, value in self.known.items() if value.role == "projection" and value.of in self.weights}
        whole = {value.of for value in self.values.values() if value.dtype}
        return frozenset(self.weights) | {self.values[name].of for name in self.codes} | whole | fixed

    @cached_property
    def codes(self) -> frozenset[str]:
        """Indices that say which levels the numbers of a weight are, or its scales: they are kept in bytes."""
        return frozenset(name for name in self.indices if self.values[name].role == "index" and self.values[name].of)

    @cached_property
    def constants(self) -> frozenset[str]:
        """Inputs that have no gradient: drawn masks, shares of the loss."""
        return frozenset(name for name, value in self.values.items() if value.role in FIXED)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


def _inside(lines: Iterable[Statement]) -> dict[str, Value]:
    """The values of the repeats, outer ones before inner ones."""
    values: dict[str, Value] = {}
    for line in lines:
        if isinstance(line, Repeat):
            values = {**values, **_inside(line.lines), **line.values}
    return values


def walk(lines: Iterable[Statement], turns: tuple[str, ...] = ()) -> Iterator[tuple[Line, tuple[str, ...]]]:
    """Every line with the counts of the repeats around it."""
    for line in lines:
        if isinstance(line, Repeat):
            yield from walk(line.lines, (*turns, line.count))
        else:
            yield line, turns


def each_line(lines: Iterable[Statement], change: Callable[[Line], Iterable[Line]]) -> tuple[Statement, ...]:
    """The lines with every one replaced by what `change` makes of it; repeats keep their frame."""
    result: list[Statement] = []
    for line in lines:
        if isinstance(line, Repeat):
            result.append(replace(line, lines=each_line(line.lines, change)))
        else:
            result.extend(change(line))
    return tuple(result)


def terms_of(operand: Operand | Affine) -> Iterator[Term]:
    """A term and those that it is read at; of a number none."""
    if not isinstance(operand, Term):
        return
    yield operand
    for axis in operand.axes:
        if isinstance(axis, Read):
            yield from terms_of(axis.at)


def features(table: Table) -> frozenset[str]:
    """The sizes that its weights have as axes, counts of repeats aside: those of features, not of positions."""
    counts = {count for _, turns in walk(table.lines) for count in turns}
    return frozenset(base(axis) for name in table.weights for axis in table.axes[name] if axis not in counts)


def windows(lines: Iterable[Statement]) -> tuple[str, ...]:
    """The sizes that the windows of the lines have, each once; windows of a number have none."""
    windows_found = (condition.window for line, _ in walk(lines) for condition in line.where)
    return tuple(dict.fromkeys(window for window in windows_found if window and not window.isdigit()))
