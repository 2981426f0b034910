"""The common base of trainings: the table of the step, weights, optimizer state and scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt
from typing import Any, Protocol

import numpy as np

from learncost.backends.precision import typed
from learncost.engines.rounding import eight_bits, results, rounded, stored, whole, widened
from learncost.engines.weights import DEVIATION, generator, in_rows, kinds, shape
from learncost.interpreter import execute
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import check_derived, map_lines
from learncost.ir.polynomial import base
from learncost.ir.precision import BLOCKS, precision_of
from learncost.ir.table import Table
from learncost.ir.value import RANDOM, IdentityKey
from learncost.models.model import Model
from learncost.passes.lower import lower
from learncost.procedures.accumulation import Accumulated, accumulated
from learncost.procedures.optimizer import DEFAULT, check_renews, with_clipping, with_weight_decay
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.procedure import MODES
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.statistics import BEGIN
from learncost.procedures.step import step

Values = dict[str, Any]


@dataclass(frozen=True)
class OptimizerSettings:
    """The settings of a training. Only the learning rate may change between steps, through `Core.learning_rate`."""

    procedure: str = "bp"
    optimizer: str = DEFAULT
    learning_rate: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    mode: str = "paper"
    sign: float | None = None  # None: the mode's default
    scale: float | None = None
    seed: int = 0
    dtype: Any = np.float64
    accumulate: int = 1
    clip: float = 0.0  # the largest global gradient norm; 0: no clipping


@dataclass(frozen=True)
class PreparedStep:
    """A step ready to run: its table, the arrays that it reads, the sizes of its axes."""

    table: Table
    values: Mapping[str, Any]
    sizes: Mapping[str, int]


class TableRunner(Protocol):
    """An executor of a training's tables.

    updates_in_place  whether weights and state stay in the same memory and types
    """

    updates_in_place: bool

    def change_block(self) -> None:
        """Prepare for training another block, with another table and state."""

    def __call__(self, prepared: PreparedStep) -> Values:
        """Return the table's results by name."""


class Core(Displayed):
    """Weights by name, optimizer state by `weight.name`, and the number of steps."""

    model: Model

    def __init__(self, settings: OptimizerSettings) -> None:
        self._chosen = find_procedure(settings.procedure)
        if settings.mode not in MODES:
            raise InputError(f"no mode is called {settings.mode!r} (there are {', '.join(MODES)})")
        self.settings = settings
        self.learning_rate = settings.learning_rate
        self.dtype = np.dtype(settings.dtype)
        self.weights: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        self.fixed: dict[str, Any] = {}
        self.steps = 0
        self._blocks = 1  # the number of blocks that are trained in turn
        self.precision = precision_of("fp32")  # the precision of a step's values, if it differs from `dtype`
        self.low: frozenset[str] = frozenset()  # weights and state stored in bf16
        self.runner: TableRunner = Interpreter(self)
        self.draw: Callable[[int], int] = self._drawn
        self.mask: Callable[..., Any] = self._mask
        self._split: dict[IdentityKey[Table], Accumulated] = {}

    def _drawn(self, steps: int) -> int:
        """Return the integer from which all random directions of a step are drawn."""
        return int(generator(self.settings.seed, steps, "draw").integers(1, 2**24))

    @property
    def iteration(self) -> int:
        """Return the number of the block that the next step trains, if blocks alternate; for a procedure that computes
        projection directions, 1 if the next step computes them anew, else 0."""
        if self._chosen.finds:
            return int(self.steps % self._chosen.held == 0)
        return self.steps // self._chosen.held % self._blocks

    def _begin(self, weights: Mapping[str, Any], table: Table) -> None:
        """Start from these weights, with state only for trainable weights."""
        self.weights = (
            {name: np.array(array) for name, array in weights.items()} if self._chosen.by_iterations else dict(weights)
        )
        self._begin_state(table)

    def _begin_state(self, table: Table) -> None:
        weights, sizes = self.weights_read, dict(self.model.sizes)  # also of blocks without separate weights
        states = {name: table.values[name].of for name in table.inputs if table.values[name].role == "state"}
        for name, array in weights.items():
            if name in table.axes:
                sizes |= dict(zip(map(base, table.axes[name]), np.shape(array), strict=True))
        self.state = {
            # The shape of the weight, or of its projected gradient.
            name: np.zeros(shape(table, name, sizes), weights[of].dtype)
            for name, of in states.items()
            if of in weights
        }
        for name in table.inputs:
            if (value := table.values[name]).role == "running":
                self.state[name] = np.full(shape(table, name, sizes), BEGIN[value.of], self.dtype)
        self._begin_projections(table, sizes)

    def _begin_projections(self, table: Table, sizes: Mapping[str, int]) -> None:
        """Initialize extra matrices of a procedure that learn like weights, with their optimizer state."""
        if not table.projections:
            return
        forward = map_lines(table.lines, lambda line: (line,) if line.meta.phase == "forward" else ())
        kind_of = kinds(replace(table, lines=forward))
        for name in table.projections:
            size, value = shape(table, name, sizes), table.values[name]
            drawn = DEVIATION * generator(self.settings.seed, name).standard_normal(size)
            kind = kind_of.get(value.of, "matrix") if name.startswith("own") else "matrix"
            first = drawn if kind == "matrix" else np.full(size, 1.0 if kind == "gain" else 0.0)
            self.state[name] = first.astype(self.dtype)
            for state, held in table.values.items():
                if (held.role, held.of) == ("state", name):
                    self.state[state] = np.zeros(shape(table, state, sizes), self.dtype)

    @property
    def weights_read(self) -> Values:
        """Return the weights; if blocks alternate, their stacks as views of a step's parts."""
        if not self._chosen.by_iterations:
            return self.weights
        table, weights, begin = self._of_iteration(), dict(self.weights), dict[str, int]()
        for name in table.weights:
            if name not in weights:
                stack = table.values[name].group
                first = begin.get(stack, 0)
                begin[stack] = first + int(table.axes[name][0])
                weights[name] = self.weights[stack][first : begin[stack]]
        return {name: array for name, array in weights.items() if name not in begin}

    def _step_table(self, model: Model, iteration: int | None = None) -> Table:
        """Return the table of one step, as `cost` prices it; clipping and coupled weight decay add lines."""
        check_derived(model.table.lines, "nothing trains it")
        iteration = self.iteration if iteration is None else iteration
        check_renews(self.settings.optimizer, "training")
        table = step(
            model, self.settings.procedure, self.settings.optimizer, mode=self.settings.mode, iteration=iteration
        )
        table = with_clipping(table) if self.settings.clip else table
        return with_weight_decay(table) if self.settings.weight_decay else table

    def _scalars(self, table: Table, count: int) -> Values:
        """Return the scalars that the step reads: of the procedure, of the optimizer at this step."""
        settings, mode = self.settings, MODES[self.settings.mode]
        sign = mode.sign if settings.sign is None else settings.sign
        scale = mode.scale if settings.scale is None else settings.scale
        begun = self.steps % self._chosen.held if self._blocks > 1 else self.steps  # steps of this state
        (first, second), time = settings.betas, begun + 1
        numbers = {
            "dloss": 1.0,
            "count": count,
            "inverse_count": 1 / max(count, 1),
            "strength": sign * scale,
            "lr": self.learning_rate,
            "mu": settings.momentum,
            "b1": first,
            "c1": 1 - float(self.dtype.type(first)),  # with b1, as rounded, exactly 1: a mean keeps its scale
            "b2": second,
            "c2": 1 - second,
            "k1": 1 / (1 - first**time),
            "k2": 1 / (1 - second**time),
            "eps": settings.epsilon,
            "rho": min(self.learning_rate, time**-0.5),
            "fresh": time**-0.8,
            "decay": 1 - self.learning_rate * settings.weight_decay,
            "weight_decay": settings.weight_decay,
            "clip": settings.clip,
            "draw": self.draw(self.steps),
        }
        values = {name: table.values[name] for name in table.inputs if not table.axes[name]}
        names = {name: value.of for name, value in values.items() if value.role == "number"}
        names |= {name: name for name in values if name == "dloss"}
        for number in {*names.values()} - numbers.keys():  # draw/200 stays the same for 200 steps
            numbers[number] = self.draw(self.steps - self.steps % int(number.partition("/")[2]))
        return {name: np.asarray(whole(table, name, numbers[number]), self.dtype) for name, number in names.items()}

    def _halves(self, table: Table) -> Accumulated:
        """Return the step's table in two halves, cached for all steps."""
        if IdentityKey(table) not in self._split:
            self._split[IdentityKey(table)] = accumulated(table)
        return self._split[IdentityKey(table)]

    def _projections(self, table: Table, sizes: Mapping[str, int]) -> Values:
        """Draw the fixed random matrices once.

        PEPITA's are uniform, 0.05 sqrt(6 / width of their target); replacements of weights are drawn as weights are;
        matrices that project an error are normal, divided by the root of the number of classes.
        """
        for name in table.inputs:
            value = table.values[name]
            if value.role in RANDOM and name not in self.fixed and name not in self.state:
                size, drawing = shape(table, name, sizes), generator(self.settings.seed, name)
                if value.role == "feedback":
                    classes = [n for axis, n in zip(value.axes, size, strict=True) if axis in table.axes[value.of]]
                    drawn = drawing.standard_normal(size) / sqrt(np.prod(classes))
                elif value.of in table.weights:
                    drawn = DEVIATION * drawing.standard_normal(size)
                else:
                    bound = 0.05 * sqrt(6 / np.prod(size[1:]))
                    drawn = drawing.uniform(-bound, bound, size)
                self.fixed[name] = drawn.astype(self.dtype)
        return self.fixed

    def _mask(self, table: Table, name: str, sizes: Mapping[str, int], dropout: float, part: int = 0) -> Any:
        """Draw a dropout mask, 0 or 1/keep, from seed, step and name, so it is equal in every pass of a step.

        part   the number of the microbatch; each has different masks
        """
        more = (part,) if part else ()
        drawn = generator(self.settings.seed, self.steps, name, *more).random(shape(table, name, sizes))
        return ((drawn >= dropout) / (1 - dropout)).astype(self.dtype)

    def _run(self, prepared: PreparedStep) -> Values:
        """Execute the step's table and return all names."""
        values = self.runner(prepared)
        return results(prepared.table, values) if self.precision.is_whole else values

    def _take(self, table: Table, values: Values) -> None:
        """Store the new weights and state."""
        # One of several processes may have only some of them.
        new = {name: values[result] for name, result in table.renewed.items() if result in values}
        for name, part in self.weights_read.items():
            if name in new and name not in self.weights:  # a view of a stack is written in place
                part[...] = new[name]
        self.weights = self._keep({name: new.get(name, array) for name, array in self.weights.items()})
        self.state = self._keep({name: new.get(name, array) for name, array in self.state.items()})
        if (kind := BLOCKS.get(find_optimizer(self.settings.optimizer).states)) is not None:
            stacks = {outer for line in table.repeats for _, outer in line.each}
            for name, array in self.state.items():  # in place: a tensor may share the memory
                array[...] = eight_bits(array, kind, len(array) if table.values[name].of in stacks else 1)
        self.steps += 1
        if self._blocks > 1 and not self.steps % self._chosen.held:
            self._change_block()

    def _change_block(self) -> None:
        """Switch to the trainable block of this step, with a new state."""
        self.runner.change_block()
        self._begin_state(self._of_iteration())

    def _of_iteration(self) -> Table:
        """Return the table of the current step."""
        raise NotImplementedError

    def _keep(self, arrays: Values) -> Values:
        """Return weights or state as stored between steps."""
        low = frozenset() if self.runner.updates_in_place else self.low
        return {name: in_rows(stored(array) if name in low else array) for name, array in arrays.items()}

    def _updates(self, values: Values) -> Values:
        return {name: values[f"d{name}"] for name in self.weights_read if f"d{name}" in values}


class Interpreter:
    """Executes tables line by line with the interpreter; in bf16, results are rounded."""

    updates_in_place = False

    def change_block(self) -> None:
        """Do nothing: all cached tables remain for their next use."""

    def __init__(self, training: Core) -> None:
        self._training = training
        self._lowered: dict[IdentityKey[Table], tuple[Table, frozenset[str]]] = {}

    def __call__(self, prepared: PreparedStep) -> Values:
        key = IdentityKey(prepared.table)
        if key not in self._lowered:
            self._lowered[key] = self._typed(prepared.table)
        table, low = self._lowered[key]
        values = {name: widened(array) for name, array in prepared.values.items()} if low else dict(prepared.values)
        execute(table, values, prepared.sizes, partial(_round, low) if low else None)
        return values

    def _typed(self, table: Table) -> tuple[Table, frozenset[str]]:
        """Return the table in normal form, and the names of values rounded to bf16."""
        precision = self._training.precision
        if precision.values != "bf16":
            return lower(table), frozenset()
        typed_table, types = typed(table, precision.name)
        return lower(typed_table), frozenset(name for name, kind in types.items() if kind == "bf16")


def _round(low: frozenset[str], line: Line, values: Values) -> None:
    """Round the fp32 results of a line whose names are in bf16."""
    for name in line.makes:
        if name in low:
            values[name] = rounded(values[name])
