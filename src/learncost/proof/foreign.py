"""Tables in PyTorch, a small translation of its own: values and gradients by autograd, FLOPs by FlopCounterMode.

It reads the table as written, words by torch's own functions, and never a derived line, a body or a normal form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from learncost.equation.count import base
from learncost.equation.table import (
    Condition,
    Line,
    Literal,
    Operand,
    Product,
    Repeat,
    Statement,
    Sum,
    Table,
    Word,
)
from learncost.layers.lower import lower
from learncost.vocabulary import entry

Tensor = Any


def evaluate(table: Table, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Every value of a forward table."""
    values = dict(tensors)
    _Torch(sizes).statements(table.lines, values)
    return values


@dataclass(frozen=True)
class _Torch:
    sizes: Mapping[str, int]

    def statements(self, lines: Iterable[Statement], values: dict[str, Tensor]) -> None:
        for line in lines:
            if isinstance(line, Repeat):
                self.repeat(line, values)
                continue
            results = self.line(line, values)
            values.update(zip((term.name for term in line.left), results, strict=True))

    def repeat(self, line: Repeat, values: dict[str, Tensor]) -> None:
        import torch

        carried = {carry.start: values[carry.initial] for carry in line.carry}
        kept: dict[str, list[Tensor]] = {stack: [] for _, stack in line.keep}
        for turn in range(self.size(line.count)):
            inner = {**values, **carried, **{name: values[stack][turn] for name, stack in line.each}}
            self.statements(line.lines, inner)
            carried = {carry.start: inner[carry.end] for carry in line.carry}
            for name, stack in line.keep:
                kept[stack].append(inner[name])
        values.update({stack: torch.stack(turns) for stack, turns in kept.items()})
        values.update({carry.final: carried[carry.start] for carry in line.carry})

    def size(self, axis: str) -> int:
        return int(axis) if axis.isdigit() else self.sizes[base(axis)]

    # Lines.

    def line(self, line: Line, values: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        left = line.left[0].loops
        if isinstance(line, Product):
            result = self.product(line, values)
            return (self.scattered(line, result, values),)
        loops = tuple(dict.fromkeys(axis for term in line.right for axis in term.loops))
        operands = [self.spread(term, values, loops) for term in line.right]
        mask = self.mask(line.where, loops)
        if isinstance(line, Sum):
            result = sum(sign * operand for sign, operand in zip(line.signs, operands, strict=True))
            return (self.ordered(result if mask is None else result * mask, loops, left),)
        assert isinstance(line, Word)
        known = line.word in _KNOWN or not entry(line.word).body
        if not known:
            return self.spelt_out(line, values)
        results = self.word(line, operands, mask, loops)
        kept = tuple(axis for axis in loops if axis in left)
        mask = mask if mask is not None and len(kept) == len(loops) else None
        return tuple(self.ordered(r if mask is None else self.inside(r, mask), kept, left) for r in results)

    def epsilon(self, line: Word) -> float:
        (number,) = (term.number(self.sizes) for term in line.right if isinstance(term, Literal))
        return number

    def inside(self, result: Tensor, mask: Tensor) -> Tensor:
        import torch

        return torch.where(mask > 0, result, 0.0)

    def product(self, line: Product, values: Mapping[str, Tensor]) -> Tensor:
        """Factors from left to right; a matrix product where both have an axis of their own and one is summed."""
        left = line.left[0].loops
        factors = [(t.loops, self.read(t, values)) for t in line.right if not isinstance(t, Literal)]
        number = math.prod(t.number(self.sizes) for t in line.right if isinstance(t, Literal))
        for condition in (c for c in line.where if not c.axes <= set(left)):
            pair = (condition.lower, condition.upper)
            mask = self.mask((condition,), pair)
            for i, (have, factor) in enumerate(factors):
                if set(pair) <= set(have):
                    factors[i] = have, factor * self.aligned(mask, pair, have)
                    break
            else:
                factors.insert(0, (pair, mask))
        if not factors:
            return self.filled(number, left)
        axes, result = factors[0]
        for i, (have, factor) in enumerate(factors[1:], 2):
            needed = {*left, *(axis for later, _ in factors[i:] for axis in later)}
            axes, result = self.pair(axes, result, have, factor, needed)
        if summed := [i for i, axis in enumerate(axes) if axis not in left]:
            result = result.sum(summed)
        axes = tuple(axis for axis in axes if axis in left)
        result = self.ordered(result * number if number != 1 else result, axes, left)
        mask = self.mask(tuple(c for c in line.where if c.axes <= set(left)), left)
        return result if mask is None else result * mask

    def pair(
        self, one: tuple[str, ...], x: Tensor, two: tuple[str, ...], y: Tensor, needed: set[str]
    ) -> tuple[tuple[str, ...], Tensor]:
        import torch

        union = tuple(dict.fromkeys((*one, *two)))
        kept = tuple(axis for axis in union if axis in needed)
        if set(one) - set(two) and set(two) - set(one) and len(kept) < len(union):
            letters = {axis: chr(97 + i) for i, axis in enumerate(union)}
            spelt = ["".join(letters[axis] for axis in axes) for axes in (one, two, kept)]
            return kept, torch.einsum(f"{spelt[0]},{spelt[1]}->{spelt[2]}", x, y)
        result = self.aligned(x, one, union) * self.aligned(y, two, union)
        summed = [i for i, axis in enumerate(union) if axis not in needed]
        return kept, result.sum(summed) if summed else result

    def scattered(self, line: Product, result: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        import torch

        term = line.left[0]
        if not term.indexed:
            return result
        shape = [self.size(axis) for axis in term.declared]
        places = [
            torch.full((), place) if isinstance(place, int) else place
            for place in self.places(term, values, term.loops)
        ]
        return result.new_zeros(shape).index_put(tuple(places), result, accumulate=True)

    def word(self, line: Word, operands: list[Tensor], mask: Tensor, loops: tuple[str, ...]) -> tuple[Tensor, ...]:
        import torch

        along = tuple(loops.index(axis) for axis in line.axes)
        if mask is not None and line.axes:
            operands = [torch.where(mask > 0, operands[0], -math.inf), *operands[1:]]
        x = operands[0]
        gelu = torch.nn.functional.gelu
        functions: dict[str, Callable[[], Tensor]] = {
            "softmax": lambda: _flat(x, along, lambda flat: torch.softmax(flat, -1)),
            "log_softmax": lambda: _flat(x, along, lambda flat: torch.log_softmax(flat, -1)),
            "normalize": lambda: _flat(x, along, lambda f: torch.layer_norm(f, f.shape[-1:], eps=self.epsilon(line))),
            "rms_normalize": lambda: _flat(x, along, lambda f: torch.rms_norm(f, f.shape[-1:], eps=self.epsilon(line))),
            "proportion": lambda: x / (x.sum(along, keepdim=True) + operands[1]),
            "max": lambda: x.amax(along),
            "gelu": lambda: gelu(x),
            "gelu_tanh": lambda: gelu(x, approximate="tanh"),
            "relu": lambda: torch.relu(x),
            "sigmoid": lambda: torch.sigmoid(x),
            "silu": lambda: torch.nn.functional.silu(x),
            "divide": lambda: torch.divide(*operands),
            "maximum": lambda: torch.maximum(*operands),
            "select": lambda: torch.where(x.bool(), *operands[1:]),
            "less": lambda: torch.lt(*operands).to(operands[1].dtype),
            "equal": lambda: torch.eq(*operands).to(operands[1].dtype),
        }
        if line.word in functions:
            return (functions[line.word](),)
        if line.word in _STEPS:
            return _STEPS[line.word](*operands)
        return (getattr(torch, line.word)(*operands),)

    def spelt_out(self, line: Word, values: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """A word that torch does not know, by its body; its gradient is still torch's own."""
        inner = dict(values)
        self.statements(lower(Table((line,), {})).lines, inner)
        return tuple(inner[term.name] for term in line.left)

    # Moves.

    def read(self, term: Operand, values: Mapping[str, Tensor]) -> Tensor:
        if not term.indexed:
            return values[term.name]
        return values[term.name][self.places(term, values, term.loops)]

    def spread(self, term: Operand, values: Mapping[str, Tensor], loops: tuple[str, ...]) -> Tensor:
        if isinstance(term, Literal):
            return self.filled(term.number(self.sizes), ())
        return self.aligned(self.read(term, values), term.loops, loops)

    def filled(self, number: float, axes: tuple[str, ...]) -> Tensor:
        import torch

        return torch.full([self.size(axis) for axis in axes], number, dtype=torch.float64)

    def aligned(self, tensor: Tensor, have: tuple[str, ...], loops: tuple[str, ...]) -> Tensor:
        order = [axis for axis in loops if axis in have]
        if order != list(have):
            tensor = tensor.permute([have.index(axis) for axis in order])
        return tensor[tuple(slice(None) if axis in have else None for axis in loops)]

    def ordered(self, tensor: Tensor, have: tuple[str, ...], want: tuple[str, ...]) -> Tensor:
        return self.aligned(tensor, have, want).expand([self.size(axis) for axis in want])

    def places(self, term: Operand, values: Mapping[str, Tensor], loops: tuple[str, ...]) -> tuple[Tensor, ...]:
        import torch

        places: list[Tensor] = []
        for axis in term.axes:
            if isinstance(axis, str):
                places.append(self.aligned(torch.arange(self.size(axis)), (axis,), loops))
            elif isinstance(axis.at, Literal):
                places.append(int(axis.at.number(self.sizes)))
            else:
                places.append(self.aligned(self.read(axis.at, values), axis.at.loops, loops))
        return tuple(places)

    def mask(self, where: tuple[Condition, ...], loops: tuple[str, ...]) -> Tensor:
        import torch

        result = None
        for condition in where:
            axes = (condition.lower, condition.upper)
            one, two = (self.aligned(torch.arange(self.size(axis)), (axis,), loops) for axis in axes)
            inside = (one < two if condition.strict else one <= two).to(torch.float64)
            result = inside if result is None else result * inside
        return result


def _sgd(w: Tensor, g: Tensor, lr: Tensor) -> tuple[Tensor, ...]:
    return (_plus(w, g, -lr),)


def _momentum(w: Tensor, g: Tensor, v: Tensor, lr: Tensor, mu: Tensor) -> tuple[Tensor, ...]:
    velocity = _plus(g, v, mu)
    return _plus(w, velocity, -lr), velocity


def _adamw(w: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    b1, c1, b2, c2, k1, k2, eps, decay = rest
    m, v = _plus(b1 * m, g, c1), _plus(b2 * v, g.square(), c2)
    return w * decay - lr * (m * k1) / ((v * k2).sqrt() + eps), m, v


def _plus(one: Tensor, two: Tensor, times: Tensor) -> Tensor:
    """one + times two."""
    return one + times * two


_KNOWN = frozenset(
    ("softmax", "log_softmax", "normalize", "rms_normalize", "proportion", "gelu", "gelu_tanh", "relu", "sigmoid")
) | {"silu", "sgd", "momentum", "adamw"}
"""Words with a body for which torch has, or is given below, a function of its own."""

_STEPS: Mapping[str, Callable[..., tuple[Tensor, ...]]] = {"sgd": _sgd, "momentum": _momentum, "adamw": _adamw}


def _flat(x: Tensor, along: tuple[int, ...], function: Any) -> Tensor:
    """A function of the last axis, along several axes at once."""
    others = [i for i in range(x.ndim) if i not in along]
    order = [*others, *along]
    moved = x.permute(order)
    result = function(moved.reshape((*moved.shape[: len(others)], -1))).reshape(moved.shape)
    return result.permute([order.index(i) for i in range(x.ndim)])


def autograd(
    table: Table, arrays: Mapping[str, Any], seeds: Mapping[str, Any], wanted: Iterable[str], sizes: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and wanted gradients, as NumPy arrays."""
    import torch

    wanted = list(wanted)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    for name in wanted:
        tensors[name].requires_grad_()
    values = evaluate(table, tensors, sizes)
    loss: Tensor = sum((values[name] * torch.tensor(seeds[f"d{name}"])).sum() for name in table.outputs)
    found = torch.autograd.grad(loss, [tensors[name] for name in wanted], allow_unused=True) if wanted else ()
    gradients = {
        name: (torch.zeros_like(tensors[name]) if g is None else g).numpy()
        for name, g in zip(wanted, found, strict=True)
    }
    return {name: values[name].detach().numpy() for name in table.outputs}, gradients


def flops(table: Table, wanted: Iterable[str], sizes: Mapping[str, int], backward: bool) -> int:
    """What FlopCounterMode counts on `meta`, where nothing is computed: forward, or forward and backward."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    wanted = set(wanted)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        tensors = {}
        for name in (*table.inputs, *table.weights):
            shape = [int(axis) if axis.isdigit() else sizes[base(axis)] for axis in table.axes[name]]
            kind = torch.int64 if name in table.indices else torch.float64
            tensors[name] = torch.zeros(shape, dtype=kind, requires_grad=name in wanted)
        values = evaluate(table, tensors, sizes)
        if backward:
            loss: Tensor = sum(values[name].sum() for name in table.outputs)
            if loss.requires_grad:
                loss.backward()
    return int(counter.get_total_flops())
