"""Verification of placements: devices run as threads and are compared with the step of one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op
from learncost.ir.loop import repeats, walk
from learncost.ir.polynomial import base, shape_of, size_of
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.models.families import FAMILIES
from learncost.models.model import Model, build
from learncost.models.small import small
from learncost.ops import is_normalization
from learncost.ops.collectives import sends
from learncost.passes.normal_forms import joined
from learncost.passes.plan import plan_of, planned
from learncost.passes.stages import iterations_of
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.staged import staged
from learncost.procedures.step import step
from learncost.sharding.clauses import Clause, parts_of
from learncost.sharding.collective import collectives
from learncost.sharding.devices import run_placed, together
from learncost.sharding.mesh import Mesh, mesh
from learncost.sharding.padding import filled_up, paddable
from learncost.sharding.place import Placed, place
from learncost.sharding.presets import chosen
from learncost.sharding.stages import Pipeline, pipeline_of, place_stages
from learncost.sharding.zigzag import causal_axes, ordered
from learncost.verification.check import Values, failures_as_checks, finite_arrays, values_of
from learncost.verification.report import Check
from learncost.verification.sample import small_sizes

TOLERANCE = 1e-12
"""The largest error against one device, relative to the largest gradient or to the value's largest number."""

ROUNDINGS = 8.0
"""The largest difference of two summation orders, in multiples of the effect of rounding the inputs once."""

DRAWS = 8
"""The number of draws of such a rounding."""

EVERY = "all"
"""In the place of a placement or a plan: each of those below."""

CASES: tuple[tuple[str, str], ...] = (
    ("ddp", "dp=2"),
    ("zero-1", "dp=2"),
    ("zero-2", "dp=4"),
    ("zero-3", "dp=2"),
    ("hsdp", "dp=2,shard=2"),
    ("megatron", "tp=2"),
    ("megatron-sp", "tp=4"),
    ("cp", "cp=2"),
    ("ulysses", "cp=2"),
    ("ep", "ep=2"),
    ("ddp,megatron", "dp=2,tp=2"),
    ("megatron-sp,zero-1", "dp=2,tp=2"),
    ("fsdp,megatron-sp", "dp=2,tp=2"),
    ("cp,megatron", "cp=2,tp=2"),
    ("ep,megatron-sp", "ep=2,tp=2"),
    ("ep,fsdp", "ep=2,dp=2"),
    ("megatron-sp,cp,fsdp", "dp=2,cp=2,tp=2"),
    ("ulysses,zero-2,megatron-sp", "dp=2,cp=2,tp=2"),
    ("pp", "pp=2"),
    ("pp,zero-1,megatron-sp", "pp=2,dp=2,tp=2"),
)
"""Placements with meshes of 2, 4 and 8 devices, alone and together."""

PLANS = (
    "",
    "recompute=gelu+norm",
    "recompute=block",
    "head",
    "fused-update",
    "flash,zigzag",
    "flash,ring,zigzag",
    "flash,chunked-loss,recompute=block,fused-update,fused",
    "keep=all_gather+dispatch+all_to_all",
)
"""Plans under which they are held."""

OPTIMIZERS = ("sgd", "adamw")
"""Optimizers with which they are held, where none is asked for."""


def verify_placements(
    model: Model | None,
    mesh_text: str | None,
    place_text: str | None,
    placement: str | None,
    plan: str = "",
    procedure: str = "bp",
    optimizer: str | None = None,
) -> Iterator[Check]:
    """Verify a model under a placement, or every family by default; `all` means all of `CASES` and `PLANS`."""
    models = [model] if model is not None else [small_model(name) for name in FAMILIES]
    cases: Iterable[tuple[str | None, str | None]] = CASES if placement == EVERY else [(placement, mesh_text)]
    if placement == EVERY and mesh_text is not None:
        raise InputError("--placement all cannot be combined with --mesh: it has its own meshes")
    for built in models:
        for names, grid in cases:
            if grid is None:
                raise InputError("--placement and --place require --mesh, for example --mesh dp=2,tp=4")
            clauses = chosen(place_text, names, mesh(grid).names)
            for text in PLANS if plan == EVERY else (plan,):
                for op in (optimizer,) if optimizer else OPTIMIZERS:
                    sentence = ", ".join(filter(None, (names, f"plan {text}" if text else "", op)))
                    subject = f"{built.configuration.name} over {mesh(grid)}: {sentence}"
                    yield from failures_as_checks(
                        subject, _case(subject, built, mesh(grid), clauses, text, procedure, op)
                    )


@lru_cache(maxsize=8)
def small_model(name: str) -> Model:
    """Return a small model of a family whose key and value heads can be sharded."""
    return build(small(name, num_key_value_heads=4))


def _case(
    subject: str, model: Model, grid: Mesh, clauses: tuple[Clause, ...], plan: str, procedure: str, optimizer: str
) -> Iterator[Check]:
    try:
        table = _step(IdentityKey(model), procedure, optimizer, plan)
        pipeline = pipeline_of(model.table, grid, clauses)
        within = (pipeline.mesh, pipeline.clauses) if pipeline else (grid, clauses)
        sizes = dividing(table, *within, plan=plan)
        if pipeline:
            if procedure != "bp":
                raise InputError(f"pipeline stages require --procedure bp, not {procedure}")
            sizes = _with_whole_stages(sizes, model, pipeline)
        uneven = _uneven(model, table, *within, sizes, plan)
        cases = []
        for small in (sizes,) if uneven == sizes else (sizes, uneven):
            filled, large, padded = filled_up(model, table, *within, small)
            whole = _step_of(filled, procedure, optimizer, plan) if padded else table
            placed: Placed | tuple[Placed, ...]
            if pipeline:
                placed = _placed_in_stages(filled, whole, grid, pipeline, large, plan, optimizer)
            else:
                placed = place(whole, grid, clauses, large, plan=plan)
            wider = [f"{each.axis} padded from {each.size} to {each.filled}" for each in padded]
            several = placed if isinstance(placed, tuple) else (placed,)
            if parts := sorted({axis for stage in several for axis in stage.filled}):
                wider.append(f"shards {' '.join(parts)} padded")
            cases.append((", ".join((subject, *wider)), placed, small, large))
    except InputError as refusal:
        yield Check(subject, "a step", str(refusal), None)
        return
    for title, placed, own, large in cases:
        yield from failures_as_checks(title, _comparisons(title, table, placed, own, large))


def _step_of(model: Model, procedure: str, optimizer: str, plan: str) -> Table:
    return planned(without_gradients(step(model, procedure, optimizer)), plan)


@lru_cache(maxsize=8)
def _step(same: IdentityKey[Model], procedure: str, optimizer: str, plan: str) -> Table:
    """Return a model's step under a plan, with which placements are compared."""
    return _step_of(same.content, procedure, optimizer, plan)


def _placed_in_stages(
    model: Model, table: Table, grid: Mesh, pipeline: Pipeline, sizes: Mapping[str, int], plan: str, optimizer: str
) -> tuple[Placed, ...]:
    """Return the tables of a step whose blocks are on pipeline stages."""
    layers = pipeline.layers(iterations_of(model.table, sizes))
    steps = [replace(each, table=planned(each.table, plan)) for each in staged(model, sizes, layers, optimizer)]
    return place_stages(steps, pipeline, grid, sizes, table, plan)


def _uneven(
    model: Model, table: Table, grid: Mesh, clauses: tuple[Clause, ...], sizes: Mapping[str, int], plan: str
) -> dict[str, int]:
    """Return sizes with non-divisible ones where padding is allowed; the same if the clauses shard none of these."""
    parts = parts_of(table, grid, clauses, sizes)
    counts = {axis: sizes[axis] for axis in _counted(table) & sizes.keys()}
    sizes = {**dividing(table, grid, clauses, False, plan), **counts}
    cut = {axis for axis, number in parts.items() if number > 1} & paddable(model.table)
    # As small as fills up to the same: a device may have nothing but what is added.
    return {**sizes, **{axis: sizes[axis] - parts[axis] + 1 for axis in cut}}


def _counted(table: Table) -> set[str]:
    """Return the sizes that are numbers of iterations."""
    return {base(count).partition("/")[0] for _, nest in walk(table.lines) for count in nest.counts}


def _with_whole_stages(sizes: dict[str, int], model: Model, pipeline: Pipeline) -> dict[str, int]:
    """Return sizes with as many blocks as the stages list, or a multiple of the stages."""
    (*_, last) = model.table.repeats
    count, _, parts = base(last.count).partition("/")
    listed = sum(pipeline.blocks)
    if listed:
        sizes[count] = int(parts or 1)
    while iterations_of(model.table, sizes) < listed or (
        not listed and iterations_of(model.table, sizes) % pipeline.stages
    ):
        sizes[count] += int(parts or 1)
    return sizes


def dividing(
    table: Table, grid: Mesh, clauses: Iterable[Clause], largest: bool = True, plan: str = ""
) -> dict[str, int]:
    """Return small sizes that divide along sharded axes; `largest`: also the axis of each weight that `*` shards."""
    clauses = tuple(clauses)
    numbers = parts_of(table, grid, clauses, small_sizes(table))
    if any(each.name == "zigzag" for each, _ in plan_of(plan)):  # two stretches for each device
        causal = causal_axes(table)
        numbers |= {axis: 2 * number for axis, number in numbers.items() if axis in causal and number > 1}
    # Of two numbers a norm leaves the signs, and of gradients nothing but rounding.
    ops = [line for line, _ in walk(table.lines) if is_normalization(line)]
    sizes = small_sizes(table, multiples=numbers, least={base(axis): 3 for line in ops for axis in line.axes})
    counts = {loop.count for loop in repeats(table.lines)}
    for clause in clauses:
        number = grid.sizes.get(clause.mesh, 1)
        for weight in table.weights if clause.largest and largest else ():
            axes = [axis for axis in map(base, table.axes[weight]) if axis in sizes and axis not in counts]
            if axes and all(sizes[axis] % number for axis in axes):
                sizes[max(axes, key=lambda axis: sizes[axis])] *= number
    for joined_axis, parts in joined(table):
        sizes[joined_axis] = sum(size_of(part, sizes) for part in parts)
    for line, nest in walk(table.lines):
        for count in nest.counts:
            if "/" in count:
                sizes[count.partition("/")[0]] = int(count.partition("/")[2]) * 2
        for axis in line.loops:
            sizes.setdefault(base(axis), 2) if not base(axis)[0].isdigit() and "/" not in axis else None
    return sizes


class _Outcome:
    """The gathered results of devices, of one table or of pipeline stages."""

    def __init__(
        self, table: Table, placed: Placed | tuple[Placed, ...], devices: list[Values], sizes: Mapping[str, int]
    ) -> None:
        self.table, self.devices, self.sizes = table, devices, {**sizes}
        self.stages = (placed,) if isinstance(placed, Placed) else placed
        self.mesh = self.stages[0].mesh
        self.axis = "" if isinstance(placed, Placed) else self.stages[0].clauses[0].mesh

    def names(self, role: str, expected: Values) -> list[str]:
        """Return the names of a role in the order of one device, without partial sums of stages."""
        return [
            name
            for name, value in self.table.values.items()
            if value.role == role and name in expected and not isinstance(expected[name], list)
            if (having := [stage for stage in self.stages if name in stage.layouts])
            if not any(stage.layouts[name].sent for stage in having)
            if not self.axis or role != "gradient" or self._of_one_stage(name, having)
        ]

    def _of_one_stage(self, name: str, having: Sequence[Placed]) -> bool:
        """Return whether a gradient is complete in one stage, or of the stage's iterations: others are partial sums."""
        return self.table.values[name].of in self.table.weights and (len(having) == 1 or self._stacked(name))

    def _stacked(self, name: str) -> bool:
        """Return whether each stage has the slice of its iterations."""
        return any(
            stage.iterations.keys() & stage.whole.axes[name][:1] for stage in self.stages if name in stage.layouts
        )

    def whole(self, name: str) -> Any:
        """Return the array of a name, with the stages' slices joined. Raises `AssertionError` if devices differ."""
        inner = Mesh(tuple(pair for pair in self.mesh.axes if pair[0] != self.axis))
        pieces = []
        for number, stage in enumerate(self.stages):
            if name in stage.layouts:
                places = zip(self.mesh.places(), self.devices, strict=True)
                parts = [device[name] for place, device in places if place.get(self.axis, 0) == number]
                shape = shape_of(stage.whole.axes[name], {**self.sizes, **stage.iterations})
                pieces.append(together(parts, stage.layouts[name], inner, shape))
        if self._stacked(name):
            return np.concatenate(pieces)
        if any(not np.array_equal(each, pieces[0], equal_nan=True) for each in pieces):
            raise AssertionError("stages that have the same array do not agree")
        return ordered(pieces[0], self.table.axes[name], self.stages[0].zigzag, self.sizes | self.mesh.sizes, back=True)


def _comparisons(
    subject: str, table: Table, placed: Placed | tuple[Placed, ...], sizes: Mapping[str, int], filled: Mapping[str, int]
) -> Iterator[Check]:
    """Yield the comparisons with a step of one device; `filled` are the devices' padded sizes."""
    arrays = {name: _given(array, table.values[name].role) for name, array in finite_arrays(table, sizes).items()}
    expected = values_of(table, arrays, sizes)
    sent: list[tuple[str, int]] = []
    given = {name: _filled(array, table.axes[name], filled) for name, array in arrays.items()}
    number_of = (placed if isinstance(placed, Placed) else placed[0]).mesh.sizes
    devices = run_placed(placed, given, filled, watch=lambda line, values: _count(sent, line, values, number_of))
    outcome = _Outcome(table, placed, devices, filled)
    kinds = {"loss": "", "gradients": "gradient", "new weights and states": "new"}
    gradients = outcome.names("gradient", expected)
    largest = max((float(np.abs(expected[name]).max(initial=0)) for name in gradients), default=1.0)
    zero = _zeros(table, expected, gradients, largest)
    for what, role in kinds.items():
        names = [name for name in outcome.names(role, expected) if table.values[name].of not in zero or role != "new"]
        names = names if role else [name for name in table.outputs if table.values[name].role == "value"]
        errors = {}
        for name in names:
            try:
                joined = outcome.whole(name)[tuple(map(slice, expected[name].shape))]
            except AssertionError:
                yield Check(
                    subject, f"{what} against those of one device", f"{name} is not the same on all devices", False
                )
                return
            scale = max(largest, float(np.abs(expected[name]).max(initial=0)))
            errors[name] = float(np.abs(joined - expected[name]).max(initial=0)) / scale
        if not errors:
            continue
        name = max(errors, key=lambda key: errors[key])
        passed, text = errors[name] <= TOLERANCE, f"worst error {errors[name]:.1e} in {name}, {len(errors)} arrays"
        if not passed and (moved := _moved(table, arrays, expected, sizes, name, largest)) * ROUNDINGS >= errors[name]:
            passed, text = moved < 1e-7, f"{text}; rounding the inputs moves it by {moved:.1e}"
        if zero and role == "new":
            text += f"; left out, as their gradients are zero: {', '.join(sorted(zero))}"
        yield Check(subject, f"{what} against those of one device", text, passed)
    yield _bytes(subject, outcome.stages, filled, sent)


def _given(array: Any, role: str) -> Any:
    """Return a random array: optimizer states are positive and its settings below one, as in real steps.

    Larger ones would amplify the rounding of sums in another order.
    """
    if role == "state":
        return np.abs(array) + 0.5
    return array / (1 + np.abs(array)) if role == "number" else array


def _filled(array: Any, axes: Iterable[str], sizes: Mapping[str, int]) -> Any:
    """Return an array padded with random numbers, on which no result may depend."""
    wider = [(0, size_of(axis, sizes) - length) for axis, length in zip(axes, np.shape(array), strict=True)]
    return np.pad(array, wider, constant_values=3) if any(after for _, after in wider) else array


def _zeros(table: Table, expected: Values, gradients: Iterable[str], largest: float) -> frozenset[str]:
    """Return the weights whose gradient is rounding alone: an optimizer that divides by it makes noise of it."""
    if not any(isinstance(line, Op) and line.op == "adamw" for line, _ in walk(table.lines)):
        return frozenset()
    weights = {table.values[name].of for name in gradients if np.abs(expected[name]).max(initial=0) < 1e-12 * largest}
    return frozenset(weights | {f"{weight}.{state}" for weight in weights for state in "MV"})


def _moved(
    table: Table, arrays: Values, expected: Values, sizes: Mapping[str, int], name: str, largest: float
) -> float:
    """Return the change of a value when every input changes by a unit in its last place, up or down.

    It is the largest of some draws, as roundings may cancel in one of them.
    """
    unit, apart = np.finfo(np.float64).eps, [0.0]
    for seed in range(DRAWS):
        generator = np.random.default_rng(seed)
        moved = {
            key: array * (1 + unit * generator.choice((-1.0, 0.0, 1.0), array.shape))
            for key, array in arrays.items()
            if array.dtype.kind == "f"
        }
        apart.append(float(np.abs(values_of(table, {**arrays, **moved}, sizes)[name] - expected[name]).max(initial=0)))
    return max(apart) / max(largest, float(np.abs(expected[name]).max(initial=0)))


def _count(sent: list[tuple[str, int]], line: Line, values: Mapping[str, Any], number_of: Mapping[str, int]) -> None:
    if sends(line):
        before, after = (np.asarray(values[name]) for name in (line.right[0].name, line.name))
        # Of rows each device has as many as come to it: all together they are those that are priced.
        rows = {"dispatch": after.nbytes, "combine": before.nbytes}
        parts = {"all_gather": before.nbytes, "reduce_scatter": after.nbytes}  # all of them, with what fills them up
        if line.op in parts:
            sent.append((line.axes[0], parts[line.op] * number_of[line.axes[0]]))
        else:
            sent.append((line.axes[0], rows.get(line.op, max(before.nbytes, after.nbytes))))


def _bytes(subject: str, stages: tuple[Placed, ...], sizes: Mapping[str, int], sent: list[tuple[str, int]]) -> Check:
    """Compare the bytes of the sent arrays with the priced ones, over all devices."""
    widths = dict.fromkeys(("weights", "gradients", "states", "values", "inputs"), 8)
    priced: dict[str, int] = {}
    for placed in stages:
        devices = placed.mesh.devices // len(stages)
        for collective in collectives(placed, sizes, widths):
            priced[collective.mesh_axis] = (
                priced.get(collective.mesh_axis, 0) + collective.payload_bytes * collective.times * devices
            )
    counted: dict[str, int] = {}
    for axis, number in sent:
        counted[axis] = counted.get(axis, 0) + number
    text = ", ".join(f"{axis} {counted[axis]:,} sent, {priced.get(axis, 0):,} predicted" for axis in sorted(counted))
    return Check(subject, "bytes sent against the predicted ones", text or "no communication", counted == priced)
