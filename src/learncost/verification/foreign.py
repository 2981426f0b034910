"""Translation of tables into another library, PyTorch or JAX, over the few operations that it requires.

It reads the table as written and never a derived line or a normal form. Operators are the library's functions; the
body is used only for an operator that the library does not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Term
from learncost.layers.products import direct
from learncost.ops import entry
from learncost.passes.lower import lower

Tensor = Any


@dataclass(frozen=True)
class Library:
    """The functions that the translation requires of a library; arrays are float64 and support arithmetic and indexing.

    full       an array of a shape filled with a number
    arange     the positions of an axis
    floats     booleans as ones and zeros
    integers   numbers as integers of 64 bits, without a gradient
    permute    axes in another order
    expand     axes of size one repeated to a shape
    scattered  from a shape, indices and an array: zeros with the array's entries added at the indices
    module     of its functions; a primitive is the function of its name
    reduced    max or min along axes
    order      the stable argsort along the last axis
    last       operators along the last axis, of an array and epsilon
    ops        operators on operands of one shape that the module lacks or names otherwise
    """

    full: Callable[[Sequence[int], float], Tensor]
    arange: Callable[[int], Tensor]
    floats: Callable[[Tensor], Tensor]
    integers: Callable[[Tensor], Tensor]
    permute: Callable[[Tensor, Sequence[int]], Tensor]
    expand: Callable[[Tensor, Sequence[int]], Tensor]
    einsum: Callable[..., Tensor]
    where: Callable[[Tensor, Tensor, Tensor | float], Tensor]
    stack: Callable[[Sequence[Tensor]], Tensor]
    scattered: Callable[[Sequence[int], tuple[Tensor | int, ...], Tensor], Tensor]
    module: Any
    reduced: Callable[[str, Tensor, tuple[int, ...]], Tensor]
    order: Callable[[Tensor], Tensor]
    last: Mapping[str, Callable[[Tensor, float], Tensor]]
    ops: Mapping[str, Callable[..., Tensor]]


def evaluate(
    library: Library, table: Table, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Return every value of a forward table."""
    values = dict(tensors)
    _Translation(library, sizes).statements(table.lines, values)
    return values


def weighted(table: Table, values: Mapping[str, Tensor], seeds: Mapping[str, Tensor]) -> Tensor:
    """Return the scalar to differentiate: the sum of all outputs, each entry multiplied by its seed."""
    return sum((values[name] * seeds[f"d{name}"]).sum() for name in table.outputs)


class _Factor(NamedTuple):
    """An array of a product: the axes it loops over, those that are not an index's, and its entries."""

    loops: tuple[str, ...]
    axes: tuple[str, ...]
    tensor: Tensor


@dataclass(frozen=True)
class _Translation:
    library: Library
    sizes: Mapping[str, int]

    def statements(self, lines: Iterable[Statement], values: dict[str, Tensor]) -> None:
        for line in lines:
            if isinstance(line, Loop):
                self.repeat(line, values)
                continue
            results = self.line(line, values)
            values.update(zip(line.makes, results, strict=True))

    def repeat(self, line: Loop, values: dict[str, Tensor]) -> None:
        carried = {carry.start: values[carry.initial] for carry in line.carry}
        stacks: dict[str, list[Tensor]] = {stack: [] for _, stack in line.keep}
        for iteration in range(self.size(line.count)):
            inner = {**values, **carried, **{name: values[stack][iteration] for name, stack in line.each}}
            self.statements(line.lines, inner)
            carried = {carry.start: inner[carry.end] for carry in line.carry}
            for name, stack in line.keep:
                stacks[stack].append(inner[name])
        values.update({stack: self.library.stack(iterations) for stack, iterations in stacks.items()})
        values.update({carry.final: carried[carry.start] for carry in line.carry})

    def size(self, axis: str) -> int:
        return int(size_of(axis, self.sizes))

    # Lines.

    def line(self, line: Line, values: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        left = line.left[0].loops
        if isinstance(line, Product):
            result = self.product(line, values)
            return (self.scattered(line, result, values),)
        loops = tuple(dict.fromkeys(axis for term in line.right for axis in term.loops))
        outside = entry(line.op).outside if isinstance(line, Op) and line.op != "inside" else 0.0
        operands = [self.spread(term, values, loops, outside or 0.0) for term in line.right]
        mask = self.mask(line.where, loops)
        if isinstance(line, Sum):
            result = sum(sign * operand for sign, operand in zip(line.signs, operands, strict=True))
            return (self.ordered(result if mask is None else result * mask, loops, left),)
        assert isinstance(line, Op)
        if not line.right:
            return (self.constant(line.op, left),)
        if not self.knows(line.op) and entry(line.op).body:
            return self.spelt_out(line, values)
        if entry(line.op).kind == "choice":
            return (self.choice(line, operands[0], mask, loops),)
        results = self.op(line, operands, mask, loops)
        remaining = tuple(axis for axis in loops if axis in left)
        mask = mask if mask is not None and len(remaining) == len(loops) else None
        return tuple(self.ordered(r if mask is None else self.inside(r, mask), remaining, left) for r in results)

    def constant(self, op: str, axes: tuple[str, ...]) -> Tensor:
        if op != "eye":
            return self.filled({"zeros": 0.0, "ones": 1.0}[op], axes)
        pairs = zip(axes[: len(axes) // 2], axes[len(axes) // 2 :], strict=True)
        result = self.filled(1.0, axes)
        for pair in pairs:
            left, right = (self.aligned(self.library.arange(self.size(axis)), (axis,), axes) for axis in pair)
            result = result * self.library.floats(left == right)
        return result

    def knows(self, op: str) -> bool:
        return not entry(op).body or any(op in ops for ops in (self.library.ops, self.library.last, _STEPS, _PLAIN))

    def epsilon(self, line: Op) -> float:
        return next((term.number(self.sizes) for term in line.right if isinstance(term, Literal)), 0.0)

    def inside(self, result: Tensor, mask: Tensor) -> Tensor:
        return self.library.where(mask > 0, result, 0.0)

    def product(self, line: Product, values: Mapping[str, Tensor]) -> Tensor:
        """Multiply factors from left to right, by a matrix product if both have a separate axis and one is summed."""
        left = line.left[0].loops
        terms = [t for t in line.right if not isinstance(t, Literal)]
        factors = [_Factor(t.loops, direct(t), self.read(t, values)) for t in terms]
        number = math.prod(t.number(self.sizes) for t in line.right if isinstance(t, Literal))
        for condition in (c for c in line.where if not c.axes <= set(left)):
            pair = tuple(sorted(condition.axes))
            mask = self.mask((condition,), pair)
            for i, factor in enumerate(factors):
                if set(pair) <= set(factor.loops):
                    masked = factor.tensor * self.aligned(mask, pair, factor.loops)
                    factors[i] = factor._replace(tensor=masked)
                    break
            else:
                factors.insert(0, _Factor(pair, pair, mask))
        if not factors:
            return self.filled(number, left)
        product = factors[0]
        for i, factor in enumerate(factors[1:], 2):
            later = {axis for later_factor in factors[i:] for axis in later_factor.loops}
            product = self.pair(product, factor, later.union(left), later.union(direct(line.left[0])))
        axes, result = product.loops, product.tensor
        if summed := [i for i, axis in enumerate(axes) if axis not in left]:
            result = result.sum(tuple(summed))
        axes = tuple(axis for axis in axes if axis in left)
        result = self.ordered(result * number if number != 1 else result, axes, left)
        mask = self.mask(tuple(c for c in line.where if c.axes <= set(left)), left)
        return result if mask is None else result * mask

    def pair(self, left: _Factor, right: _Factor, needed_loops: set[str], needed: set[str]) -> _Factor:
        union = tuple(dict.fromkeys((*left.loops, *right.loops)))
        loops = tuple(axis for axis in union if axis in needed_loops)
        factor_axes = tuple(axis for axis in loops if axis in left.axes or axis in right.axes)
        rows, columns = {*left.axes} - {*right.axes}, {*right.axes} - {*left.axes}
        if rows & needed and columns & needed and not {*left.axes} & {*right.axes} <= needed:
            letters = {axis: chr(97 + i) for i, axis in enumerate(union)}
            spelt = ["".join(letters[axis] for axis in axes) for axes in (left.loops, right.loops, loops)]
            return _Factor(
                loops, factor_axes, self.library.einsum(f"{spelt[0]},{spelt[1]}->{spelt[2]}", left.tensor, right.tensor)
            )
        result = self.aligned(left.tensor, left.loops, union) * self.aligned(right.tensor, right.loops, union)
        summed = tuple(i for i, axis in enumerate(union) if axis not in needed_loops)
        return _Factor(loops, factor_axes, result.sum(summed) if summed else result)

    def scattered(self, line: Product, result: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        term = line.left[0]
        if not term.indexed:
            return result
        for inside in self.beyond(term, term.loops):
            result = self.library.where(inside, result, 0.0)
        shape = [self.size(axis) for axis in term.declared]
        return self.library.scattered(shape, self.places(term, values, term.loops), result)

    def op(self, line: Op, operands: list[Tensor], mask: Tensor, loops: tuple[str, ...]) -> tuple[Tensor, ...]:
        along = tuple(loops.index(axis) for axis in line.axes)
        if line.op == "select" and mask is not None and len(operands) == 2:  # of a lowered word: its `where` decides
            return (self.library.where(mask > 0, *operands),)
        if mask is not None and line.axes:
            operands = [self.library.where(mask > 0, operands[0], _MASKED.get(line.op, 0.0)), *operands[1:]]
        x = operands[0]
        if line.op in self.library.last:
            function = self.library.last[line.op]
            return (self.flat(x, along, lambda flat: function(flat, self.epsilon(line))),)
        if line.op == "proportion":
            return (x / (x.sum(along, keepdims=True) + operands[1]),)
        if line.op == "vector_norm":
            squares = (x * x).sum(along)
            zero = squares == 0  # whose derivative is not a number
            return (self.library.where(zero, 0.0, self.library.module.sqrt(self.library.where(zero, 1.0, squares))),)
        if line.op in ("cumsum", "reversed_cumsum"):
            positions = self.library.arange(x.shape[along[0]])
            first, second = positions[:, None], positions[None, :]
            triangle = self.library.floats(first <= second if line.op == "cumsum" else first >= second)
            return (self.flat(x, along, lambda flat: (flat[..., None] * triangle).sum(-2)),)
        if entry(line.op).kind == "reduction":
            return (self.library.reduced(line.op, x, along),)
        if line.op in _SHARED:
            return (_SHARED[line.op](self.library, *operands),)
        if line.op in _STEPS:
            return _STEPS[line.op](*operands)
        function = self.library.ops.get(line.op) or getattr(self.library.module, line.op)
        return (function(*operands),)

    def choice(self, line: Op, x: Tensor, mask: Tensor | None, loops: tuple[str, ...]) -> Tensor:
        """Return the indices of a choice; none has a gradient."""
        left, row = line.left[0].loops, entry(line.op)
        x = -x if row.largest else x
        x = x if mask is None else self.library.where(mask > 0, x, math.inf)
        others = tuple(axis for axis in loops if axis not in line.axes)
        order = self.library.order(self.aligned(x, loops, (*others, *line.axes)))
        if row.chooses == "one":
            return self.ordered(order[..., 0], others, left)
        places = next(axis for axis in left if axis not in others)
        return self.ordered(order[..., : self.size(places)], (*others, places), left)

    def flat(self, x: Tensor, along: tuple[int, ...], function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function of the last axis along several axes at once."""
        others = [i for i in range(x.ndim) if i not in along]
        order = [*others, *along]
        moved = self.library.permute(x, order)
        result = function(moved.reshape((*moved.shape[: len(others)], -1))).reshape(moved.shape)
        return self.library.permute(result, [order.index(i) for i in range(x.ndim)])

    def spelt_out(self, line: Op, values: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Evaluate the body of an operator that the library does not have; the gradient is the library's."""
        inner = dict(values)
        self.statements(lower(Table((line,), {})).lines, inner)
        return tuple(inner[term.name] for term in line.left)

    # Moves.

    def read(self, term: Operand, values: Mapping[str, Tensor], outside: float = 0.0) -> Tensor:
        if not term.indexed:
            return values[term.name]
        array = values[term.name][self.places(term, values, term.loops)]
        for inside in self.beyond(term, term.loops):
            array = self.library.where(inside, array, outside)
        return array

    def place(self, at: Affine, loops: tuple[str, ...]) -> Tensor:
        """Return the index that positions give, over the axes of interest."""
        return sum(
            part.times(self.sizes)
            * (self.aligned(self.library.arange(self.size(part.axis)), (part.axis,), loops) if part.axis else 1)
            for part in at.parts
        )

    def beyond(self, term: Operand, loops: tuple[str, ...]) -> Iterator[Tensor]:
        """Yield a mask of the indices that are inside the array for each axis that may be read outside of it."""
        for number, at in term.beyond if isinstance(term, Term) else ():
            place = self.place(at, loops)
            yield (place >= 0) & (place < self.size(term.declared[number]))

    def spread(
        self, term: Operand, values: Mapping[str, Tensor], loops: tuple[str, ...], outside: float = 0.0
    ) -> Tensor:
        if isinstance(term, Literal):
            return self.filled(term.number(self.sizes), ())
        return self.aligned(self.read(term, values, outside), term.loops, loops)

    def filled(self, number: float, axes: tuple[str, ...]) -> Tensor:
        return self.library.full([self.size(axis) for axis in axes], number)

    def aligned(self, tensor: Tensor, have: tuple[str, ...], loops: tuple[str, ...]) -> Tensor:
        order = [axis for axis in loops if axis in have]
        if order != list(have):
            tensor = self.library.permute(tensor, [have.index(axis) for axis in order])
        shape = iter(tensor.shape)
        return tensor.reshape(tuple(next(shape) if axis in have else 1 for axis in loops))

    def ordered(self, tensor: Tensor, have: tuple[str, ...], want: tuple[str, ...]) -> Tensor:
        return self.library.expand(self.aligned(tensor, have, want), [self.size(axis) for axis in want])

    def places(self, term: Operand, values: Mapping[str, Tensor], loops: tuple[str, ...]) -> tuple[Tensor | int, ...]:
        places: list[Tensor | int] = []
        for axis in term.axes:
            if isinstance(axis, str):
                places.append(self.aligned(self.library.arange(self.size(axis)), (axis,), loops))
            elif isinstance(axis.at, Affine):
                place = self.place(axis.at, loops)
                inside = (place >= 0) & (place < self.size(axis.axis)) if axis.at.loops else True
                places.append(place * inside)
            else:
                assert isinstance(axis.at, Term)
                places.append(self.aligned(self.read(axis.at, values), axis.at.loops, loops))
        return tuple(places)

    def mask(self, where: tuple[Condition, ...], loops: tuple[str, ...]) -> Tensor:
        result = None
        for condition in where:
            sides = (condition.lower, condition.upper)
            lower, upper = (
                int(side) if side.isdigit() else self.aligned(self.library.arange(self.size(side)), (side,), loops)
                for side in sides
            )
            visible = {"<": lower < upper, "<=": lower <= upper, "=": lower == upper, "!=": lower != upper}[
                condition.relation
            ]
            inside = self.library.floats(visible)
            if condition.window is not None:
                inside = inside * self.library.floats(upper < lower + self.size(condition.window))
            result = inside if result is None else result * inside
        return result


def _adamw(w: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    b1, c1, b2, c2, k1, k2, eps, decay = rest
    m, v = b1 * m + g * c1, b2 * v + g * g * c2
    return w * decay - lr * (m * k1) / ((v * k2) ** 0.5 + eps), m, v


def _hash(library: Library, x: Tensor, z: Tensor) -> Tensor:
    """Return a hash of two integers in 64-bit arithmetic, truncated to 32 bits."""
    mixed = (library.integers(x) * 0x9E3779B1 + library.integers(z)) & 0xFFFFFFFF
    for _ in range(2):
        mixed = ((mixed ^ mixed >> 16) * 0x45D9F3B) & 0xFFFFFFFF
    return mixed ^ mixed >> 16


def _shift(library: Library, x: Tensor, z: Tensor) -> Tensor:
    clip, floor = library.module.clip, library.module.floor
    return clip(floor(x / 2.0 ** clip(z, -64, 64) + 0.5), -(2**30), 2**30)


_SHARED: Mapping[str, Callable[..., Tensor]] = {
    "select": lambda library, condition, x, z: library.where(condition != 0, x, z),
    "less": lambda library, x, z: library.floats(x < z),
    "equal": lambda library, x, z: library.floats(x == z),
    "hashed": lambda library, x, z: library.floats(_hash(library, x, z) >> 8),
    "coin": lambda library, x, z: 1 - 2 * library.floats(_hash(library, x, z) >> 31),
    "shift": _shift,
    "bits": lambda library, x: library.module.frexp(x)[1] + 0 * x,
}
"""Words that are said in the same functions of all libraries."""

_STEPS: Mapping[str, Callable[..., tuple[Tensor, ...]]] = {
    "sgd": lambda w, g, lr: (w - lr * g,),
    "momentum": lambda w, g, v, lr, mu: (w - lr * (mu * v + g), mu * v + g),
    "adamw": _adamw,
}
"""Words with a body that no library has a function for: the steps of optimizers, in operators alone."""

_MASKED: Mapping[str, float] = {"max": -math.inf, "min": math.inf, "softmax": -1e30, "log_softmax": -1e30}
"""The number that masks an input of a word, finite where all may be masked; 0 for every other word, as it sums."""

_PLAIN = frozenset(("proportion", "vector_norm"))
"""Words that the translation itself says in sums."""
