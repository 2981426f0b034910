"""Add the optimizer step to a table: one op per weight, after clipping and weight decay.

An optimizer's op reads the weight, its gradient, its state and numbers such as the learning rate, which become
additional inputs of the table under unused names. The bytes of its states follow from the shapes that it sees: a matrix
or a vector for each weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, named_one
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Statement, defined, walk
from learncost.ir.precision import BLOCKS, bytes_of_type
from learncost.ir.table import Table
from learncost.ir.term import Literal, Read, Term
from learncost.ir.value import Axes, Value
from learncost.models.model import Model
from learncost.ops import applied, entry
from learncost.ops.optimizers import LARGEST_SIDE, OF_MATRICES, OPTIMIZERS, Optimizer

if TYPE_CHECKING:
    from learncost.cost_models import Book


def names_of_numbers(table: Table, numbers: Iterable[str], owner: str) -> dict[str, str]:
    """Map each number to its name in a table, which is prefixed with its owner's name if a value already has the
    name."""
    names = {number: f"{owner}.{number}" if number in table.known else number for number in numbers}
    if clashes := [name for name in names.values() if name in table.known]:
        raise InputError(f"{clashes[0]} is a value of the table and a number of {owner}: rename the value")
    return names


def values_of_numbers(names: dict[str, str]) -> dict[str, Value]:
    """Return the Values of the numbers as inputs of a table, by their names in it."""
    return {name: Value((), "number", number) for number, name in names.items()}


DEFAULT = "adamw"
"""The default optimizer of a model."""


def default_optimizer(book: Book | None = None) -> str:
    """Return the name of the default optimizer: that of the price book, if it names one."""
    return (book.optimizer if book else "") or DEFAULT


def optimizer(name: str) -> Optimizer:
    """Return an optimizer by its name. Raises `InputError` for an unknown name, with the known ones."""
    steps = {**OPTIMIZERS, **OF_MATRICES}
    if name not in steps:
        name, others = state_of(name).name, ", ".join(steps)
        raise InputError(f"{name} has no step, only a state for memory and fit; optimizers with a step are {others}")
    return steps[name]


def check_placed(name: str | None) -> None:
    """Raise `InputError` for an optimizer whose step of a matrix is not placed over a mesh."""
    if name in OF_MATRICES:
        raise InputError(
            f"the step of {name} over a mesh is not counted: it multiplies whole matrices, which every trainer divides "
            "otherwise; give one device, or learncost memory --mesh"
        )


def check_projected(procedure: str, name: str) -> None:
    """Raise `InputError` for an optimizer whose step of a matrix is not one of its projected gradient."""
    if name in OF_MATRICES:
        raise InputError(f"{procedure} projects to directions that {name} has no step of: give adamw or sgd")


def check_renews(name: str | None, what: str) -> None:
    """Raise `InputError` for an optimizer with states that no line of its step renews."""
    if name == "soap":
        raise InputError(f"{what} does not support soap, of which only the step between two decompositions has lines")


def check_unrounded(name: str | None, what: str) -> None:
    """Raise `InputError` for an optimizer whose states are rounded between steps, which `what` does not support."""
    if name in OPTIMIZERS and OPTIMIZERS[name].states:
        raise InputError(
            f"{what} does not support {name}, which rounds optimizer states between steps: use learncost train"
        )


def state_of(name: str) -> OptimizerState:
    """Return the state of an optimizer by its name. Raises `InputError` for an unknown name, with the known ones."""
    return named_one("optimizer", name, STATES)


def with_optimizer(
    table: Table, gradients: Mapping[str, str], chosen: Optimizer, sizes: Mapping[str, int] = {}
) -> Table:
    """Return the step with the optimizer's lines, which compute `W.new` and the new state from `W`, its gradient and
    state.

    sizes  those that are known, on which the step of a matrix depends: its shorter side
    """
    owner = chosen.op or chosen.name
    numbers = names_of_numbers(table, chosen.scalars, owner)
    values: dict[str, Value] = {}
    lines = list[Statement]()
    modules = {name: line.meta.module for line, _ in reversed([*walk(table.lines)]) for name in line.reads}
    matrices = matrices_of(table) if chosen.tables else {}
    if chosen.tables:
        from learncost.procedures.matrix_steps import has_step, matrix_step  # imported when used, for a fast start
    for weight, gradient in gradients.items():
        term, seen = (Term(name, table.axes[weight]) for name in (weight, gradient))
        module, matrix = modules.get(weight, ""), matrices.get(weight)
        if chosen.tables and has_step(chosen, matrix, sizes):
            matrix = matrix or Matrix(term.declared, (), (), False)
            more, made = matrix_step(chosen.tables, term, seen, matrix, numbers, sizes, module)
            lines += more
        else:
            line, made = _element_by_element(chosen, term, seen, numbers, module)
            lines.append(line)
        values |= made
    states = [name for name, value in values.items() if value.role == "state"]
    if clashes := [name for name in states if name in table.known]:
        raise InputError(f"{clashes[0]} is a value of the table and one of {owner}: rename the value")
    read = {name for line in lines for name in line.reads}
    numbers = {number: name for number, name in numbers.items() if name in read}
    return replace(
        table,
        lines=(*table.lines, *lines),
        values={**table.values, **values_of_numbers(numbers), **values},
        inputs=(*table.inputs, *states, *numbers.values()),
        outputs=(*table.outputs, *(name for name, value in values.items() if value.role == "new")),
    )


def _element_by_element(
    chosen: Optimizer, weight: Term, gradient: Term, numbers: Mapping[str, str], module: str
) -> tuple[Op, dict[str, Value]]:
    """Return the line of an optimizer's op for one weight, and the Values of states and results."""
    op, shape = entry(chosen.op), weight.declared
    operands = {"W": weight, "G": gradient}
    operands |= {name: Term(f"{weight.name}.{name}", shape) for name in chosen.state}
    operands |= {number: Term(name, ()) for number, name in numbers.items()}
    own_states = [operands[name].name for name in chosen.state]
    left = [Term(f"{name}.new", shape) for name in (weight.name, *own_states)]
    values = {name: Value(shape, "state", weight.name) for name in own_states}
    values |= {new.name: Value(shape, "new", old) for new, old in zip(left, (weight.name, *own_states), strict=True)}
    right = tuple(operands[name] for name in op.inputs)
    meta = Meta("optimizer", phase="optimizer_step", local=chosen.op, locals=op.inputs, module=module)
    meta = replace(meta, operator=chosen.name if chosen.states else "")
    return Op(tuple(left), right, (), meta, chosen.op, (), "body", op.inputs, op.outputs), values


def stepped(table: Table) -> Mapping[str, Axes]:
    """Map each weight to the axes of the gradient that the optimizer reads, which a projection changes."""
    lines = (line for line, _ in walk(table.lines) if isinstance(line, Op) and line.op in OPTIMIZERS)
    seen = (term for line in lines for name, term in zip(line.given, line.right, strict=True) if name == "G")
    return {table.values[term.name].of: table.values[term.name].axes for term in seen if isinstance(term, Term)}


def without_gradients(table: Table) -> Table:
    """Return the step without the outputs that only the optimizer reads: the gradients of updated weights."""
    values = table.values
    outputs = (
        name for name in table.outputs if values[name].role != "gradient" or values[name].of not in table.renewed
    )
    return replace(table, outputs=tuple(outputs))


EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_: clip_coef = max_norm / (total_norm + 1e-6), at most 1


def with_clipping(table: Table) -> Table:
    """Return the step with gradients clipped to a global norm, as `clipped` describes."""
    return clipped(table)[0]


def clipped(table: Table, shared: Mapping[str, int] = {}) -> tuple[Table, str]:
    """Return the step whose optimizer reads `factor dW` instead of `dW`, as torch.nn.utils.clip_grad_norm_ computes it.

    factor = min(1, clip / (norm + 1e-6)), with the norm over all weights' gradients and the bound `clip`, a scalar
    input. It is computed as 1 / max(1, (norm + 1e-6) / clip), and costs one MACC and one FLOP per parameter. The
    gradients themselves are unchanged, as is a table without an optimizer.
    shared  for one of several tables: the number of tables with the same gradient, each of which adds its share
    The second result is the name of the sum of squares, which several tables must add up; "" without an optimizer.
    """
    updates = [line for line in table.lines if isinstance(line, Line) and line.meta.phase == "optimizer_step"]
    gradients = defined(line for line in table.lines if line not in updates)
    read = {t.name: t for line in updates for t in line.right if isinstance(t, Term) and t.name in gradients}
    if not read:
        return table, ""
    names = {name: f"{name}.clipped" for name in read}
    first = table.lines.index(updates[0])
    numbers = names_of_numbers(table, ("clip",), "optimizer")
    scaling, squares = _scaling(tuple(read.values()), numbers["clip"], shared)
    lines: list[Statement] = [*table.lines[:first], *scaling]
    lines += [line.renamed(names) if line in updates else line for line in table.lines[first:]]
    result = replace(
        table,
        lines=tuple(lines),
        values={
            **table.values,
            **values_of_numbers(numbers),
            **{line.name: Value(line.left[0].declared) for line in scaling},
            **{new: table.values[gradient] for gradient, new in names.items()},
        },
        inputs=(*table.inputs, *numbers.values()),
    )
    return result, squares


def _scaling(gradients: tuple[Term, ...], bound: str, shared: Mapping[str, int]) -> tuple[list[Line], str]:
    """Return the lines that clip gradients to a global norm, and the name of the sum of squares."""

    def scalar(name: str) -> Term:
        return Term(f"{bound}.{name}", ())

    def quotient(name: str, above: Term | Literal, below: Term) -> Op:
        return applied("divide", scalar(name), (above, below), meta)

    meta = Meta("optimizer", phase="optimizer_step", local="clip")
    squares, lines = list[Term](), list[Line]()
    for gradient in gradients:
        squares.append(Term(f"{gradient.name}.square", ()))
        lines.append(Product((squares[-1],), (gradient, gradient), (), meta))
        if number := shared.get(gradient.name):
            whole, share = squares.pop(), Term(f"{gradient.name}.share", ())
            squares.append(share)
            lines.append(Product((share,), (whole, Literal(1 / number)), (), meta))
    lines += [
        Sum((scalar("squares"),), tuple(squares), (), meta, (1,) * len(squares)),
        applied("sqrt", scalar("norm"), (scalar("squares"),), meta),
        Sum((scalar("above"),), (scalar("norm"), Literal(EPSILON)), (), meta, (1, 1)),
        quotient("excess", scalar("above"), Term(bound, ())),
        applied("maximum", scalar("divisor"), (scalar("excess"), Literal(1.0)), meta),
        quotient("factor", Literal(1.0), scalar("divisor")),
    ]
    lines += [
        Product((Term(f"{gradient.name}.clipped", gradient.axes),), (gradient, scalar("factor")), (), meta)
        for gradient in gradients
    ]
    return lines, scalar("squares").name


def with_weight_decay(table: Table) -> Table:
    """Return the step with `dW + weight_decay W` instead of `dW`, as torch.optim.SGD does; two FLOPs per parameter.

    AdamW is unchanged: its decay is part of its op.
    """
    numbers = names_of_numbers(table, ("weight_decay",), "optimizer")
    values = dict(table.values) | values_of_numbers(numbers)
    lines: list[Statement] = []
    for line in table.lines:
        given = line.given if isinstance(line, Op) and line.meta.phase == "optimizer_step" else ()
        if isinstance(line, Op) and "G" in given and "decay" not in given:
            lines += _decayed(line, values, numbers["weight_decay"])
        else:
            lines.append(line)
    if len(lines) == len(table.lines):
        return table
    return replace(table, lines=tuple(lines), values=values, inputs=(*table.inputs, *numbers.values()))


def _decayed(line: Line, values: dict[str, Value], share: str) -> list[Line]:
    weight, gradient = line.right[0], line.right[1]
    if (
        weight.axes != gradient.axes
        or values[gradient.name].axes != values.get(values[gradient.name].of, Value(())).axes
    ):
        raise InputError("weight decay is added to gradients, which are projected here: remove it, or use AdamW")
    assert isinstance(gradient, Term)
    pull, decayed = (Term(f"{gradient.name}.{part}", gradient.axes) for part in ("decay", "decayed"))
    values |= {pull.name: Value(pull.loops), decayed.name: values[gradient.name]}
    meta = replace(line.meta, local="weight_decay", locals=())
    return [
        Product((pull,), (weight, Term(share, ())), (), meta),
        Sum((decayed,), (gradient, pull), (), meta, (1, 1)),
        replace(line, right=(weight, decayed, *line.right[2:])),
    ]


@dataclass(frozen=True)
class OptimizerState:
    """The state of an optimizer: `bytes` returns its size for a weight's shape and the data type of states.

    hidden  whether the matrices of blocks alone are matrices to it
    """

    name: str
    bytes: Callable[[Sequence[int], str], int]
    source: str
    hidden: bool = False


PAGED, PAGED_FROM = "paged-states", 100_000
"""States in managed memory, as bitsandbytes' paged optimizers have those of weights of so many elements
(bitsandbytes 95f9af30, optim/optimizer.py:383)."""
MANAGED = {"adamw": 8, "adamw8bit": 2, "lion": 4}  # bytes of an element: PagedAdamW, PagedAdamW8bit, PagedLion


def paged(state: OptimizerState) -> OptimizerState:
    """Return what a paged optimizer stores in the memory of the GPU: scales, and whole states of small weights.

    Raises `InputError` for an optimizer that bitsandbytes has not paged.
    """
    if state.name not in MANAGED:
        raise InputError(f"--offload {PAGED} requires --optimizer {' or '.join(MANAGED)}, not {state.name}")

    def resident(shape: Sequence[int], _: str) -> int:
        elements, whole = prod(shape), state.bytes(shape, "fp32")
        return whole if elements < PAGED_FROM else whole - MANAGED[state.name] * elements

    return replace(state, bytes=resident)


def _times(count: int, states: str = "") -> Callable[[Sequence[int], str], int]:
    return lambda shape, kind: count * bytes_of_type(states or kind, prod(shape))


def _four_bits(shape: Sequence[int], kind: str) -> int:
    """Return the bytes of two states of 4 bits: codes, a scale for 128 of them, and a table of 16 levels each.

    States of fewer than 4,096 numbers, and of no whole number of blocks, have the type of states.
    """
    elements, block, scale = prod(shape), 128, 4
    if elements < 4096 or elements % block:
        return 2 * bytes_of_type(kind, elements)
    return 2 * (elements // 2 + elements // block * scale + 16 * scale)


def _factored(shape: Sequence[int], kind: str) -> int:
    """Return the bytes of a state with a matrix's row and column sums, or with every element of a vector."""
    arrays = shape if len(shape) == 2 else (prod(shape),)
    return sum(bytes_of_type(kind, size) for size in arrays)


def _muon(shape: Sequence[int], kind: str) -> int:
    """Return the bytes of momentum for a matrix, or of AdamW's two states for a vector."""
    return (1 if len(shape) == 2 else 2) * bytes_of_type(kind, prod(shape))


def _soap(shape: Sequence[int], kind: str) -> int:
    """Return the bytes of AdamW's states, and of two square matrices for each side of a matrix up to a length."""
    sides = shape if len(shape) == MATRIX else ()
    squares = sum(2 * side**2 for side in sides if side <= LARGEST_SIDE)
    return bytes_of_type(kind, 2 * prod(shape) + squares)


STATES: Mapping[str, OptimizerState] = {
    state.name: state
    for state in (
        *(
            OptimizerState(name, _times(len(optimizer.state), optimizer.states), optimizer.description)
            for name, optimizer in OPTIMIZERS.items()
        ),
        OptimizerState("adam8bit", _times(2, "int8-2048"), BLOCKS["int8-2048"].source),
        OptimizerState(
            "adamw4bit",
            _four_bits,
            "torchao 029bb60a, optim/subclass_4bit.py: blocks of 128; Li et al. 2023, Memory "
            "efficient optimizers with 4-bit states",
        ),
        *(
            OptimizerState(name, of, OF_MATRICES[name].description, OF_MATRICES[name].hidden)
            for name, of in (("adafactor", _factored), ("muon", _muon), ("soap", _soap))
        ),
    )
}


MATRIX = 2
"""The axes of a matrix."""


@dataclass(frozen=True)
class Matrix:
    """A weight as an optimizer sees it.

    axes    all axes, of which `stack` count matrices, such as those of blocks and experts
    rows    the axes over which a product sums; none for a vector
    hidden  whether it is a matrix of a product in a block, neither an embedding nor a head
    """

    axes: Axes
    stack: Axes
    rows: Axes
    hidden: bool

    @property
    def columns(self) -> Axes:
        """The axes of what a product puts out; of a vector all that count no vectors."""
        return tuple(axis for axis in self.axes if axis not in (*self.stack, *self.rows))


def matrices_of(table: Table) -> dict[str, Matrix]:
    """Return the weights that the lines of a forward pass read as matrices or vectors, by name.

    A product sums over the rows of a matrix, and an embedding reads one of them. Products that read one expert of a
    stack have a matrix for each. Weights that are read in other ways are left out, as it is unknown what they are.
    """
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, Matrix] = {}
    for line, nest in walk(table.lines):
        if line.meta.phase != "forward":
            continue
        for term in line.right:
            if not isinstance(term, Term) or (weight := nest.stacks.get(term.name, term.name)) not in table.weights:
                continue
            axes = table.axes[weight]
            stack, own = axes[: len(axes) - len(term.axes)], axes[len(axes) - len(term.axes) :]
            names = dict(zip(own, term.axes, strict=True))
            looked_up = tuple(name for name, axis in names.items() if isinstance(axis, Read))
            summed = tuple(
                name for name, axis in names.items() if axis not in (*line.left[0].loops, *map(names.get, looked_up))
            )
            if looked_up:
                if len(own) == MATRIX:
                    matrices[weight] = Matrix(axes, stack, own[:1], False)
                elif isinstance(line, Product) and summed:
                    matrices.setdefault(weight, Matrix(axes, (*stack, *looked_up), summed, bool(nest.loops)))
            elif isinstance(line, Product) and summed and len(summed) < len(own):
                matrices.setdefault(weight, Matrix(axes, stack, summed, bool(nest.loops) or not table.repeats))
            elif isinstance(line, Product | Sum) or len(own) == 1:
                vectors.setdefault(weight, Matrix(axes, stack, (), False))
    return {**vectors, **matrices}


@dataclass(frozen=True, eq=False)
class StoredStates:
    """The weights of a model as its optimizer sees them.

    step  the step of the model, in which projected gradients have other axes than the weights
    """

    model: Model
    step: Table

    @cached_property
    def stacks(self) -> frozenset[str]:
        """Return the weights that are stacked over iterations."""
        return frozenset(outer for line in self.model.table.repeats for _, outer in line.each)

    @cached_property
    def projections(self) -> tuple[str, ...]:
        """Return the trainable projections, such as the separate heads of local losses."""
        gradients = {value.of for value in self.step.known.values() if value.role == "gradient"}
        return tuple(name for name in self.step.projections if name in gradients)

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Return the axes of every weight and projection with a state, as the optimizer sees it."""
        seen, weights = stepped(self.step), {*self.step.weights}  # a decoder's alone in a pass of it
        of_weights = {
            name: tuple(seen.get(name, self.step.axes[name])) for name in self.model.learning if name in weights
        }
        return of_weights | {name: tuple(self.step.axes[name]) for name in self.projections}

    @cached_property
    def matrices(self) -> Mapping[str, Matrix]:
        """Return what each weight is as a matrix."""
        return matrices_of(self.model.table)

    def bytes(self, optimizer: OptimizerState, name: str, shape: Sequence[int], kind: str) -> int:
        """Return the bytes of the state of a weight, or of its shard, with this shape along `axes`.

        An optimizer sees the weight of each iteration, and of each expert, separately, as a matrix.
        """
        sizes, matrix = dict(zip(self.axes[name], shape, strict=True)), self._matrix(name)
        if matrix is None:
            is_stack = name in self.stacks or name in self.projections
            times, one = (shape[0], shape[1:]) if is_stack else (1, shape)
            seen = [one[0], prod(one[1:])] if len(one) > 1 else [*one]
        else:
            times, rows = (prod(sizes[axis] for axis in axes) for axes in (matrix.stack, matrix.rows))
            points = prod(shape) // (times or 1)
            seen = [rows, points // rows] if matrix.rows else [points]
        if optimizer.hidden and not (matrix and matrix.hidden):
            seen = [prod(seen)]
        return int(times * optimizer.bytes(seen, kind))

    def _matrix(self, name: str) -> Matrix | None:
        """Return a weight as a matrix; None where that is unknown, or where its gradient has other axes."""
        found = self.matrices.get(name) if name in self.model.learning else None
        return found if found and {*found.stack, *found.rows} <= {*self.axes[name]} else None

    def of_a_number(self, optimizer: OptimizerState, name: str, kind: str) -> int | None:
        """Return the bytes of state per element of a weight; None if they depend on the shape."""
        is_stack, matrix = name in self.stacks or name in self.projections, self._matrix(name)
        is_matrix = bool(matrix.rows) if matrix else len(self.axes[name]) - is_stack > 1
        hidden = not optimizer.hidden or (matrix is not None and matrix.hidden)
        return bytes_of_a_number(optimizer.bytes, is_matrix and hidden, kind)


def bytes_of_a_number(of: Callable[[Sequence[int], str], Any], matrix: bool, kind: str) -> int | None:
    """Return the bytes of state per element of a matrix or a vector; None if they depend on the shape."""
    # Only states of large weights are quantized.
    shapes = ((7, 11), (13, 17), (257, 511), (256, 512)) if matrix else ((7,), (11,), (131071,), (131072,))
    per_point = {divmod(of(shape, kind), prod(shape)) for shape in shapes}
    ((each, rest), *others) = per_point
    return None if others or rest else int(each)
