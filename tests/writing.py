"""Layers written at random in the notation, and the same computation in PyTorch, told from one private description.

Nothing here knows the package: the text goes to its parser, the description to `torch`. An axis is a letter, which is
also its size's name, or the letter with a prime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import torch

SIZES = {"a": 2, "b": 3, "c": 1, "s": 4, "v": 5, "n": 3, "w": 2}
WINDOWS = {"w": 2, "1": 1, "3": 3, "9": 9}  # of nothing more, some and all of what is before

POINTWISE = {
    "gelu": torch.nn.functional.gelu,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "swish": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "erf": torch.erf,
}
POSITIVE = {"log": torch.log, "sqrt": torch.sqrt}  # of a positive operand
PAIRS = {"maximum": torch.maximum, "divide": torch.divide}
ALONG = ("softmax", "log_softmax", "normalize", "max")


@dataclass(frozen=True)
class Read:
    axis: str
    index: str
    at: tuple[str, ...]

    def __str__(self):
        return f"{self.axis}={self.index}[{' '.join(self.at)}]"


@dataclass(frozen=True)
class Factor:
    """A value as a line reads it, or a number: then `name` is empty."""

    name: str
    axes: tuple = ()
    number: float = 1.0
    size: str = ""

    @property
    def loops(self):
        loops = [a for axis in self.axes for a in ((axis,) if isinstance(axis, str) else axis.at)]
        return tuple(dict.fromkeys(loops))

    def text(self, names):
        if self.size:
            return f"#{self.size}^{self.number:g}[]"
        if not self.name:
            return f"{self.number:g}[]"
        axes_text = [names.get(x, x) if isinstance(x, str) else _renamed(x, names) for x in self.axes]
        return f"{self.name}[{' '.join(map(str, axes_text))}]"


def _renamed(read, names):
    return Read(read.axis, read.index, tuple(names.get(a, a) for a in read.at))


@dataclass(frozen=True)
class Statement:
    kind: str  # product, sum, or the name of a word
    left: Factor
    right: tuple[Factor, ...]
    signs: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    where: tuple[str, str, bool, str | None] | None = None  # lower, upper, strict, window
    names: dict = field(default_factory=dict)  # what this line calls its axes

    def text(self):
        terms = [t.text(self.names) for t in self.right]
        if self.kind == "product":
            right = " ".join(terms)
        elif self.kind == "sum":
            right = "".join(f" {'-' if s < 0 else '+'} {t}" for s, t in zip(self.signs, terms, strict=True))
            right = right.removeprefix(" + ").strip()
        else:
            acts = f"[{' '.join(self.names.get(a, a) for a in self.axes)}]" if self.axes else ""
            right = f"{self.kind}{acts}({', '.join(terms)})"
        text = f"{self.left.text(self.names)} = {right}"
        if self.where:
            lower, upper, strict, window = self.where
            lower = self.names.get(lower, lower)
            text += f" where {lower} {'<' if strict else '<='} {self.names.get(upper, upper)}"
            text += f" < {lower} + {window}" if window else ""
        return text


@dataclass
class Loop:
    count: str
    carry: str
    shared: tuple[str, ...]
    body: list
    own: tuple[str, ...] = ()

    def text(self):
        shared = f" shared {' '.join(self.shared)}" if self.shared else ""
        return f"repeat {self.count} carry {self.carry}{shared}:\n" + "\n".join(f"    {s.text()}" for s in self.body)


def plain(axes):
    """A lone N' is N."""
    return tuple(a.rstrip("'") if a.rstrip("'") not in axes else a for a in axes)


class Writer:
    """Writes lines one after the other; every choice is drawn from `random`."""

    def __init__(self, random: Random):
        self.random = random
        self.values: dict[str, tuple[str, ...]] = {}  # what may be read, with its axes
        self.inputs: dict[str, tuple[str, ...]] = {}
        self.weights: dict[str, tuple[str, ...]] = {}
        self.indices: dict[str, tuple[tuple[str, ...], str]] = {}
        self.program: list = []
        self.unread: list[str] = []
        self.fresh = 0
        self.inside: list[str] | None = None  # weights of the repeat that is being written
        self.into = self.program

    # Names.

    def new(self, kind):
        self.fresh += 1
        return f"{kind}{self.fresh}"

    def draw_axes(self, low=0, high=3):
        return tuple(self.random.sample(["a", "b", "c", "s"], self.random.randint(low, high)))

    def given(self, axes):
        """A new input or weight."""
        if self.inside is not None:
            name = self.new("W")
            self.weights[name] = axes
            self.inside.append(name)
            return name
        kind = self.random.choice(("X", "W"))
        name = self.new(kind)
        (self.inputs if kind == "X" else self.weights)[name] = axes
        self.values[name] = axes
        return name

    def value(self):
        """Something to read; what nothing has read so far comes first."""
        if self.unread and self.random.random() < 0.7:
            return self.random.choice(self.unread)
        if self.values and self.random.random() < 0.7:
            return self.random.choice(sorted(self.values))
        return self.given(self.draw_axes())

    def read(self, name, taken=()):
        """The value with its axes, at times a prime on one of them, an index for one of them."""
        axes = list(self.values[name] if name in self.values else self.weights[name])
        for i, axis in enumerate(axes):
            other = axis.rstrip("'") if axis.endswith("'") else axis + "'"
            if axis[0] == "s" and other not in axes and self.random.random() < 0.35:
                axes[i] = other
        if {"s", "s'"} <= set(axes) and self.random.random() < 0.3:
            axes = [{"s": "s'", "s'": "s"}.get(a, a) for a in axes]
        if name in self.unread:
            self.unread.remove(name)
        return Factor(name, tuple(axes))

    def gathered(self, factor):
        """One axis of a factor read at an index."""
        if not factor.axes or any(isinstance(a, Read) for a in factor.axes):
            return factor
        place = self.random.randrange(len(factor.axes))
        axis = factor.axes[place]
        index = self.new("T")
        at = self.draw_axes(0, 2)
        self.indices[index] = (at, axis.rstrip("'"))
        axes = list(factor.axes)
        axes[place] = Read(axis.rstrip("'"), index, at)
        return Factor(factor.name, tuple(axes))

    # Lines.

    def put(self, kind, left_axes, right, **more):
        name = self.new("Y")
        declared = tuple(a if isinstance(a, str) else a.axis for a in left_axes)
        loops = tuple(a for t in right for a in t.loops)
        settled = plain(declared) if "s" not in loops else declared
        statement = Statement(kind, Factor(name, tuple(left_axes)), tuple(right), **more)
        axes_kept = {
            a for t in right if t.name in self.values and t.name[0] == "Y" for a in t.axes if isinstance(a, str)
        }
        if self.random.random() < 0.25 and not any(a.rstrip("'") in loops and a.endswith("'") for a in loops):
            free = [x for x in ("i", "j", "q", "z") if x not in loops]
            renamed = {a: free.pop() for a in sorted(axes_kept) if a in loops and free}
            axes_left = set(statement_axes(statement)) - set(renamed)
            if not {a.rstrip("'") for a in renamed} & {a.rstrip("'") for a in axes_left}:
                statement.names.update(renamed)
        self.into.append(statement)
        self.values[name] = settled
        self.unread.append(name)
        return name

    def condition(self, loops, chance=0.3):
        if len(loops) < 2 or self.random.random() > chance:
            return None
        lower, upper = self.random.sample(sorted(loops), 2)
        return lower, upper, self.random.random() < 0.4, self.window()

    def window(self, least=1):
        """The name or number of a window of at least so many, or none."""
        return self.random.choice((None, *(name for name, size in WINDOWS.items() if size >= least)))

    def product(self):
        factors = [self.read(self.value()) for _ in range(self.random.randint(1, 3))]
        factors = [self.gathered(f) if self.random.random() < 0.15 else f for f in factors]
        count = {}
        for factor in factors:
            for axis in factor.loops:
                count[axis] = count.get(axis, 0) + 1
        axes_kept = [a for a in count if count[a] == 1 or self.random.random() < 0.4]
        self.random.shuffle(axes_kept)
        for _ in range(self.random.choice((0, 0, 1, 2))):
            size = self.random.choice(sorted({a.rstrip("'") for a in count} | {""}))
            literal = Factor("", number=0.5, size=size) if size else Factor("", number=2.0)
            factors.insert(self.random.randint(0, len(factors)), literal)
        if self.random.random() < 0.2:
            factors.insert(0, Factor("", number=-0.5))  # later in a line a minus is the sign of a sum's next term
        if all(not f.name for f in factors[:1]) and len(factors) == 1:
            return
        left = list(axes_kept)
        plain_axes = [a for a in left if a in ("a", "b")]
        if plain_axes and "v" not in left and self.random.random() < 0.15:
            axis = self.random.choice(plain_axes)
            index = self.new("T")
            self.indices[index] = ((axis,), "v")
            left[left.index(axis)] = Read("v", index, (axis,))
        where = self.condition(count)
        self.put("product", tuple(left), factors, where=where)

    def sum(self):
        terms = [self.read(self.value()) for _ in range(self.random.randint(1, 4))]
        terms = [self.gathered(f) if self.random.random() < 0.15 else f for f in terms]
        if self.random.random() < 0.25:
            terms.append(Factor("", number=1.5))
        signs = tuple(self.random.choice((1, -1)) for _ in terms)
        if len(terms) == 1:
            signs = (-1,)
        axes = list(dict.fromkeys(a for t in terms for a in t.loops))
        self.random.shuffle(axes)
        self.put("sum", tuple(axes), terms, signs=signs, where=self.condition(axes, 0.2))

    def word(self):
        kind = self.random.choice((*POINTWISE, *POSITIVE, *PAIRS, "select", *ALONG, *ALONG))
        entries = self.read(self.value())
        if self.random.random() < 0.1:
            entries = self.gathered(entries)
        axes = list(entries.loops)
        if kind in ALONG:
            self.along(kind, entries)
            return
        self.random.shuffle(axes)
        if kind == "exp":  # keeps numbers small
            entries = self.small(entries)
            axes = list(entries.loops)
        if kind in POSITIVE or kind == "divide":
            bottom = self.positive(entries if kind in POSITIVE else self.read(self.value()))
            operands = [bottom] if kind in POSITIVE else [entries, bottom]
            axes = list(dict.fromkeys(a for t in operands for a in t.loops))
            self.put(kind, tuple(axes), operands)
        elif kind in ("maximum", "select"):
            two = self.read(self.value())
            axes = list(dict.fromkeys((*entries.loops, *two.loops)))
            if kind == "maximum":
                self.put(kind, tuple(axes), [entries, two])
            else:
                test = self.put("less", tuple(axes), [entries, two])
                self.unread.remove(test)
                self.put(kind, tuple(axes), [Factor(test, tuple(axes)), two, entries])
                del self.values[test]
        else:
            self.put(kind, tuple(axes), [entries])

    def small(self, one):
        name = self.put("tanh", one.loops, [one])
        return self.read(name)

    def positive(self, one):
        """x^2 + 1.5 of a value."""
        square = self.put("product", one.loops, [one, one])
        factor = self.read(square)
        name = self.put("sum", factor.loops, [factor, Factor("", number=1.5)], signs=(1, 1))
        return self.read(name)

    def along(self, kind, one):
        if not one.loops:
            return
        axes = list(one.loops)
        acts = tuple(self.random.sample(axes, self.random.randint(1, min(2, len(axes)))))
        where = None
        if kind == "softmax" and len(axes) > 1 and len(acts) == 1 and self.random.random() < 0.5:
            upper = self.random.choice([a for a in axes if a not in acts])
            # Something must be inside everywhere: the last place along `upper` sees the last one along `acts`.
            least = SIZES[upper.rstrip("'")] - SIZES[acts[0].rstrip("'")] + 1
            where = (acts[0], upper, False, self.window(least))
        left = [a for a in axes if a not in acts] if kind == "max" else axes
        self.random.shuffle(left)
        self.put(kind, tuple(left), [one], axes=acts, where=where)

    def repeat(self):
        start = self.random.choice(sorted(n for n in self.values if n[0] == "Y") or [self.given(("a", "b"))])
        if start[0] != "Y":
            start = self.put("product", self.values[start], [Factor(start, self.values[start]), Factor("", number=0.5)])
        axes = self.values[start]
        if start in self.unread:
            self.unread.remove(start)
        outer, unread = dict(self.values), list(self.unread)
        loop = Loop(self.random.choice(("n", "3", "1")), start, (), [])
        self.inside, self.into, self.unread = [], loop.body, [start]
        for _ in range(self.random.randint(1, 3)):
            self.random.choice((self.product, self.product, self.sum, self.word))()
        last = self.unread[-1] if self.unread else self.read(start).name
        end = self.read(last)
        # The carried value leaves with the axes with which it entered: a product or a sum brings it there.
        extra = tuple(a for a in end.loops if a not in axes)
        mask = self.given(tuple(dict.fromkeys((*axes, *extra))))
        factors = (end, Factor(mask, self.weights[mask]), Factor("", number=0.3))
        drawn = Statement("product", Factor("D", axes), factors)
        loop.body.append(drawn)
        loop.body.append(Statement("sum", Factor(start, axes), (Factor(start, axes), Factor("D", axes)), (1, 1)))
        # A weight that comes again from outside is shared by all turns; some of the new ones are declared so.
        shared = [w for w in self.inside if self.random.random() < 0.3]
        loop.shared = tuple(shared)
        read = {t.name for s in loop.body for t in s.right}
        self.values, self.unread = outer, [*(u for u in unread if u not in read), start]
        self.inside, self.into = None, self.program
        self.program.append(loop)

    # The whole.

    def write(self):
        steps = [self.product, self.product, self.sum, self.word, self.word]
        for _ in range(self.random.randint(1, 6)):
            self.random.choice(steps)()
        if self.random.random() < 0.5:
            self.repeat()
            self.random.choice(steps)()
        values_made = [n for n in self.values if n[0] == "Y"]
        if not values_made:
            self.product()
            return self.write()
        outputs = list(dict.fromkeys(self.unread)) or [values_made[-1]]
        if self.random.random() < 0.3:
            outputs.append(self.random.choice([m for m in values_made if m not in outputs] or [outputs[0]]))
        outputs = list(dict.fromkeys(outputs))
        if self.random.random() < 0.3:  # a scalar loss
            entries = self.read(outputs.pop())
            share = self.given(entries.loops)
            outputs.append(self.put("product", (), [entries, Factor(share, entries.loops)]))
        outside = {n for s in self.program if isinstance(s, Statement) for t in s.right for n in names_in(t)}
        for loop in self.program:
            if isinstance(
                loop, Loop
            ):  # a weight that is read here alone, and not said to be shared, is each turn's own
                inside = dict.fromkeys(t.name for s in loop.body for t in s.right if t.name in self.weights)
                loop.own = tuple(w for w in inside if w not in outside and w not in loop.shared)
        read = {n for s in self.statements() for t in s.right for n in names_in(t)}
        read |= {n for s in self.statements() for n in names_in(s.left)[1:]}
        inputs = [n for n in (*self.inputs, *self.indices) if n in read]
        self.weights = {n: a for n, a in self.weights.items() if n in read}
        self.inputs = {n: a for n, a in self.inputs.items() if n in read}
        self.indices = {n: a for n, a in self.indices.items() if n in read}
        self.outputs = outputs
        header = f"drawn({' '.join(inputs)}; {' '.join(self.weights)}) -> {' '.join(outputs)}"
        return "\n".join([header, *(f"  {s.text()}" for s in self.program)])

    def statements(self):
        for item in self.program:
            yield from item.body if isinstance(item, Loop) else (item,)

    @property
    def own(self):
        return {w: item.count for item in self.program if isinstance(item, Loop) for w in item.own}

    def arrays(self, generator):
        """Random inputs, weights (stacks for a repeat's own) and indices."""
        stacked = self.own
        arrays = {}
        for name, axes in (*self.inputs.items(), *self.weights.items()):
            shape = [SIZES[a.rstrip("'")] for a in axes]
            if name in stacked:
                shape.insert(0, int(stacked[name]) if stacked[name].isdigit() else SIZES[stacked[name]])
            arrays[name] = generator.standard_normal(shape)
        for name, (at, axis) in self.indices.items():
            arrays[name] = generator.integers(0, SIZES[axis], [SIZES[a.rstrip("'")] for a in at])
        return arrays


def names_in(factor):
    return [factor.name, *(a.index for a in factor.axes if isinstance(a, Read))]


def statement_axes(statement):
    return {a for t in (statement.left, *statement.right) for a in t.loops}


# The same in PyTorch.


def evaluate(program, values, own):
    """All values of a program on tensors."""
    for item in program:
        if isinstance(item, Loop):
            count = int(item.count) if item.count.isdigit() else SIZES[item.count]
            for iteration in range(count):
                scope = {**values, **{w: values[w][iteration] for w in item.own}}
                evaluate(item.body, scope, own)
                values[item.carry] = scope[item.carry]
        else:
            values[item.left.name] = _evaluate(item, values)
    return values


def _evaluate(line, values):
    loops = tuple(dict.fromkeys(a for t in (*line.right, line.left) for a in t.loops))
    mask = _mask(line.where, loops) if line.where else None
    operands = [_spread(t, values, loops) for t in line.right]
    left = line.left.loops
    summed = tuple(i for i, a in enumerate(loops) if a not in left)
    if line.kind == "product":
        result = math.prod(operands[1:], start=operands[0])
        result = result if mask is None else result * mask
        result = result.expand([SIZES[a.rstrip("'")] for a in loops])
        result = result.sum(summed) if summed else result
    elif line.kind == "sum":
        result = sum(s * o for s, o in zip(line.signs, operands, strict=True))
        result = result if mask is None else result * mask
    else:
        result = _word(line, operands, mask, loops)
    order = [a for a in loops if a in left]
    result = result.expand([SIZES[a.rstrip("'")] for a in order]).permute([order.index(a) for a in left])
    if any(isinstance(a, Read) for a in line.left.axes):
        shape = [SIZES["v"] if isinstance(a, Read) else SIZES[a.rstrip("'")] for a in line.left.axes]
        target = torch.zeros(shape, dtype=torch.float64)
        return target.index_put(_places(line.left, values, left), result, accumulate=True)
    return result


def _word(line, operands, mask, loops):
    dims = tuple(loops.index(a) for a in line.axes)
    if line.kind in POINTWISE | POSITIVE | PAIRS:
        return (POINTWISE | POSITIVE | PAIRS)[line.kind](*operands)
    if line.kind == "less":
        return (operands[0] < operands[1]).double()
    if line.kind == "select":
        return torch.where(operands[0] > 0.5, *operands[1:])
    (x,) = operands
    if mask is not None:
        x = torch.where(mask > 0.5, x, -math.inf)
    if line.kind == "softmax":
        e = torch.exp(x - x.amax(dims, keepdim=True))
        return e / e.sum(dims, keepdim=True)
    if line.kind == "log_softmax":
        return x - torch.logsumexp(x, dims, keepdim=True)
    if line.kind == "max":
        return x.amax(dims)
    mean = x.mean(dims, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(dims, keepdim=True) + 1e-5)


def _mask(where, loops):
    lower, upper, strict, window = where
    first, second = (_arange(a, loops) for a in (lower, upper))
    inside = first < second if strict else first <= second
    return (inside & (second - first < WINDOWS[window]) if window else inside).double()


def _arange(axis, loops):
    shape = [1] * len(loops)
    shape[loops.index(axis)] = -1
    return torch.arange(SIZES[axis.rstrip("'")]).reshape(shape)


def _places(factor, values, loops):
    places = []
    for axis in factor.axes:
        if isinstance(axis, Read):
            places.append(_aligned(values[axis.index], axis.at, loops))
        else:
            places.append(_arange(axis, loops))
    return tuple(places)


def _aligned(tensor, have, loops):
    order = [a for a in loops if a in have]
    tensor = tensor.permute([have.index(a) for a in order])
    return tensor[tuple(slice(None) if a in have else None for a in loops)]


def _spread(factor, values, loops):
    if not factor.name:
        number = SIZES[factor.size] ** factor.number if factor.size else factor.number
        return torch.tensor(number, dtype=torch.float64)
    if factor.axes and any(isinstance(a, Read) for a in factor.axes):
        own = factor.loops
        return _aligned(values[factor.name][_places(factor, values, own)], own, loops)
    return _aligned(values[factor.name], factor.axes, loops)
