"""The step whose memory is predicted: its table, bytes outside it, its peak, and the largest size that fits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from math import inf, prod
from typing import TYPE_CHECKING, Any, TypeAlias

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, counted, named_one, real_number, shown
from learncost.ir.line import Line
from learncost.ir.loop import map_lines, repeats
from learncost.ir.polynomial import Polynomial, base, shape_of, total
from learncost.ir.precision import BYTES, Precision
from learncost.ir.table import Table
from learncost.layers.names import scores
from learncost.liveness import BUFFERS, Live, Liveness, levels, live, moments, symbolic_liveness
from learncost.models.model import Model, Structure, run_sizes
from learncost.models.module import default_module
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.plan import CHOSEN, check_optimizer, planned, recomputes_blocks
from learncost.passes.quantized import QuantizedArray, bytes_of_array
from learncost.procedures.optimizer import PAGED, StoredStates, check_projected, paged, state_of, without_gradients
from learncost.procedures.procedure import PAPER
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.step import step, trained_by
from learncost.program.arena import Region
from learncost.program.autograd.module import module_named
from learncost.program.calls import IN_KERNELS
from learncost.program.lifetimes import FEW, WalkedIterations, every_iteration
from learncost.program.program import ACTIVATIONS, GRADIENTS, STATES, WEIGHTS, Program
from learncost.reports.memory.planner import chosen
from learncost.reports.memory.types import INDEX, bytes_of, communication_buffers_of, without_reserve
from learncost.reports.request import COMPILED, CPU, GPU, OPERATORS, Request
from learncost.reports.run import PreparedRun, check_probability, checkpoint_interval, teacher_of

if TYPE_CHECKING:
    from learncost.devices.device import Device
    from learncost.passes.stages import Stage
    from learncost.procedures.accumulation import Accumulated
    from learncost.reports.memory.engine import Engine
    from learncost.reports.memory.over_mesh import MeshMemory
    from learncost.reports.mesh_cost import OverMesh

IMPLEMENTATIONS = ("fused", "foreach", "for-loop")
"""Implementations of PyTorch's optimizers: one kernel for all, operators over lists of tensors, or weight by weight."""


@dataclass(frozen=True)
class EagerOptions:
    """The options of engine eager, and the communication buffers of every engine.

    module          the module whose autograd step is simulated; empty: the default of the model
    device          as PyTorch calls it
    implementation  of the optimizer (`IMPLEMENTATIONS`); empty: the default, fused
    clip            whether gradients are clipped to a norm
    loss            the loss that is computed together with the head; empty: the module's own
    drops_paths     whether operands of low-rank paths have dropout
    every           of so many blocks the first runs under a checkpoint
    selects         whether checkpoints keep the results of some operators (`OPERATORS`)
    offload         names of `OFFLOADED`
    task            what is trained for; empty: the next token
    teacher         the other model of a distillation
    adapts          whether weights have low-rank paths, without which they are those of the reference model
    no_sync         whether gradients are reduced behind the last microbatch alone
    communication_buffers  bytes on each device
    compiled        whether the module runs under torch.compile
    gpu             the name of the GPU, whose capability decides kernels; empty: not named
    """

    module: str = ""
    device: str = CPU
    implementation: str = ""
    clip: bool = False
    loss: str = ""
    drops_paths: bool = False
    every: int = 1
    selects: bool = False
    offload: tuple[str, ...] = ()
    task: str = ""
    teacher: Model | None = None
    adapts: bool = False
    no_sync: bool = False
    communication_buffers: int = 0
    compiled: bool = False
    gpu: str = ""

    @property
    def hosted(self) -> frozenset[str]:
        """The roles of what is in the memory of the host."""
        return frozenset(role for name in self.offload for role in OFFLOADED[name].roles)


MASTERS = "master weights"


@dataclass(frozen=True)
class Offload:
    """Tensors that are not in the memory of the GPU: what they are, and the `roles` of those on the host."""

    title: str
    roles: tuple[str, ...] = ()


OFFLOADED = {
    PAGED: Offload("paged optimizer states, in managed memory"),
    "states": Offload(
        "optimizer states and master weights, and the update, on the host (CPUOffloadOptimizer of torchao, "
        "optimizer-cpu-offload of Megatron)",
        (STATES, MASTERS),
    ),
    "optimizer": Offload(
        "optimizer states, master weights and gradients, and the update, on the host (offload_optimizer of DeepSpeed)",
        (STATES, MASTERS, GRADIENTS),
    ),
    "weights": Offload(
        "shards of weights and gradients, optimizer states and the update on the host (CPUOffloadPolicy of FSDP)",
        (WEIGHTS, STATES, MASTERS, GRADIENTS),
    ),
    "activations": Offload(
        "tensors saved before the head, on the host between forward and backward pass, of 1,024 bytes or more "
        "(OffloadActivations of torchtune and TRL)",
        (ACTIVATIONS,),
    ),
}
"""The groups of tensors outside of the GPU's memory, by name."""


def offload_named(text: str) -> tuple[str, ...]:
    """Return the names of what is offloaded. Raises `InputError` for unknown ones and those that exclude each other."""
    names = tuple(dict.fromkeys(each.strip() for each in text.split(","))) if text else ()
    if "nvme" in names:
        raise InputError("--offload supports the host's memory only, not NVMe: give --offload optimizer or weights")
    for name in names:
        named_one("offload", name, OFFLOADED)
    if len(placing := [name for name in names if name == PAGED or STATES in OFFLOADED[name].roles]) > 1:
        raise InputError(f"--offload {','.join(placing)}: each says where optimizer states are; give one of them")
    return names


def _known(kind: str, name: str) -> str:
    """Return the name of a loss, a task, or an implementation. Raises `InputError` for an unknown one."""
    if name:
        from learncost.program.autograd.losses import LOSSES, TASKS  # imported when used, for a fast start

        known = {"loss": LOSSES, "task": TASKS, "optimizer implementation": dict.fromkeys(IMPLEMENTATIONS)}
        named_one(kind, name, known[kind])
    return name


def device_asked(request: Request) -> tuple[Device | None, str, EagerOptions]:
    """Return the device of a request, the engine (c99 for a microcontroller), and the options of engine eager.

    The device is None where none is given, and for any GPU. Raises `InputError` for unknown names.
    """
    if request.clip is not None and not 0 < real_number(request.clip) < inf:
        raise InputError(f"clip must be a norm above 0, not {shown(request.clip)}")
    options = EagerOptions(
        request.module and module_named(request.module).name,
        GPU if request.on == GPU else CPU,
        _known("optimizer implementation", request.optimizer_implementation),
        loss=_known("loss", request.loss),
        task=_known("task", request.task),
        teacher=teacher_of(request),
        adapts=request.lora is not None or request.lora_rank is not None,
        drops_paths=check_probability("lora_dropout", request.lora_dropout) > 0,
        every=checkpoint_interval(request),
        selects=request.checkpoint_every == OPERATORS,
        offload=offload_named(request.offload),
        no_sync=request.no_sync,
        clip=request.clip is not None,
        communication_buffers=communication_buffers_of(request),
    )
    if request.engine:
        from learncost.reports.memory.engines import memory_engines  # which are built on this module

        for name in request.engine.split(","):
            named_one("engine", name.strip(), memory_engines())
    if options.drops_paths and request.lora is None and request.lora_rank is None:
        raise InputError("--lora-dropout requires --lora, for example --lora all-linear")
    if request.on is None or request.on == GPU:
        device, engine = None, request.engine
    else:
        from learncost.devices.device import device as find_device  # imported when used, for a fast start

        device = find_device(request.on)
        engine = request.engine or ("c99" if device.core else "")
        options = replace(options, device=device.torch or CPU, gpu=device.name)
    if options.offload and options.device != GPU:
        where = device.name if device else "the CPU"
        named = ",".join(options.offload)
        raise InputError(f"--offload {named} requires a GPU, not {where}: give --on, for example --on {GPU}")
    return device, engine, options


def available(
    budget: int | str | None, device: Device | None, engines: str = ""
) -> tuple[int | None, tuple[Region, ...]]:
    """Return the bytes of memory that arrays may use: the budget, else the device's memory; None without both.

    Of a device of several, whose training is that of `engines`, it is that without a reserve. The regions are those of
    the device, without the stack; none under a budget. Raises `InputError` for a device whose memory is not known.
    """
    if budget is not None:
        return bytes_of("budget", budget), ()
    if device is None:
        return None, ()
    if not device.data:
        raise InputError(f"the memory of {device.name} is not known: give --budget, such as --budget 24GB")
    ram = sum(region.bytes for region in device.free)
    return without_reserve(ram, engines) if engines else ram, device.free


_TripCounts: TypeAlias = "tuple[tuple[str, int], ...]"  # sizes that say how many iterations loops have


class MemoryStep:
    """A step's table with the memory that no line has: states, master weights, frozen weights in flash.

    in_flash   frozen weights lie in flash, not in RAM
    budget     bytes that there are, for the planner, where the plan is left to it
    planner    who chooses the plan for the sizes of a microbatch; by default the rules (`by_lines`)
    mode       of PEPITA and MEMPEPITA: "paper", or "stable"
    iterations  the sizes in trip counts of loops, each with the counts of those loops: n with n and n/2
    eager      the options of engine eager; `instead` says why its module is no other, where nobody asked for one
    """

    def __init__(
        self,
        run: PreparedRun,
        procedure: str,
        kind: Precision,
        optimizer: str,
        accumulate: Any = 1,
        in_flash: bool = False,
        budget: int | None = None,
        planner: Callable[[MemoryStep, Mapping[str, int]], str] | None = None,
        mode: str = PAPER,
        eager: EagerOptions = EagerOptions(),
    ) -> None:
        self.recomputes = "forward again" in find_procedure(procedure).moves or recomputes_blocks(run.plan)
        self.module = module_named(eager.module or default_module(run.model, self.recomputes)).name
        self.eager, self.module_asked, self.instead = eager, bool(eager.module), ""
        self.run, self.procedure, self.kind, self.in_flash = run, procedure, kind, in_flash
        self._given = run, procedure, kind, optimizer, accumulate, in_flash, budget, planner, mode, eager
        self.mode = mode if find_procedure(procedure).modes else ""
        self.model = trained_by(run.model, procedure)
        if find_procedure(procedure).projected_to:
            check_projected(procedure, optimizer)
        self.optimizer = paged(state_of(optimizer)) if PAGED in eager.offload else state_of(optimizer)
        self.accumulate = _parts(accumulate, run.axes["B"])
        learning = set(self.model.learning)
        structure = Structure(self.model)
        table = _step(structure, procedure, mode)
        weights = self.model.table.weights
        shapes = {w: shape_of(table.axes[w], run.axes) for w in weights}
        self.states = StoredStates(self.model, table)
        self.state = sum(
            self.states.bytes(self.optimizer, name, shape_of(axes, run.axes), kind.states)
            for name, axes in self.states.axes.items()
        )
        self.master: int = kind.master * sum(prod(shapes[w]) for w in learning)
        stored = self.model.quantized
        codes = {weight.codes.name for weight in stored}
        frozen = [w for w in weights if w not in learning and w not in codes]
        self.quantized = sum(weight.bytes(run.axes) for weight in stored)
        self.frozen = frozenset(frozen)
        self.plain_flash = kind.weight * sum(prod(shapes[w]) for w in frozen) if in_flash else 0
        self.flash = self.plain_flash + self.quantized if in_flash else 0
        self.widths = _widths(structure, table, kind, self.accumulate > 1)
        self.regions: Sequence[Region] = ()  # of the RAM of a device that was named
        self.over: OverMesh | None = None  # of a device among many
        self.on_mesh: MeshMemory | None = None  # and its account
        self.mesh: tuple[Request, Engine] | None = None  # and how it was asked for
        self.shares: Mapping[str, int] = {}
        self.batch_axes: Mapping[str, tuple[str, ...]] = {}  # of the mesh, with the roles that they shard, too
        self.replicas = 1  # of its forward pass, which has a part of the sequences
        self.declared = self.model.plain or self.model.table  # the forward table as its modules declare it
        self.forward = self.declared  # and on a mesh that of each device
        self.stages: tuple[Stage, ...] = ()  # and those of the stages of a pipeline
        self.device = 0  # of a pipeline, whose peak is the highest
        self.taped: dict[Hashable, int] = {}  # peaks of programs, which take a while to make
        self.ran: tuple[Hashable, Program] | None = None  # the last one of these
        self.budget: int | None = budget
        self.plan: str = run.plan
        if run.plan == CHOSEN:
            self.plan = ""
            self.plan = (planner or by_lines)(self, self.sizes())
            if optimizer not in OPTIMIZERS:
                self.plan = self.plan.replace(",epilogue-update", "")
        check_optimizer(self.plan, optimizer)
        self._levels_of: Callable[[_TripCounts], tuple[Polynomial, ...]]
        self._levels_of = partial(_levels, structure, procedure, mode, self.plan, self.accumulate > 1, kind)
        self._planned = partial(_under_plan, structure, procedure, mode, self.plan, self.accumulate > 1)

    @property
    def is_parallel(self) -> bool:
        """Return whether each device of a mesh computes a part of the tensors of one forward pass."""
        return self.forward.lines != self.declared.lines

    @cached_property
    def table(self) -> Table:
        """The table of a microbatch under the plan, built on first use."""
        return self._planned()

    @cached_property
    def iterations(self) -> Mapping[str, tuple[str, ...]]:
        return iterations_of(self.table)

    def over_mesh(self, request: Request, engine: Engine) -> MemoryStep:
        """Return the step as an engine has it on each device of the request's mesh.

        Raises `InputError` where an axis is not divisible.
        """
        from learncost.reports.memory.over_mesh import placed_step  # imported when used, for a fast start

        return placed_step(self, request, engine)

    def at(self, batch: int, length: int | None = None) -> MemoryStep:
        """Return the step for another batch or length, under the planner's plan for it.

        Raises `InputError` for a length that the model has no positions for.
        """
        run, *_ = self._given
        sizes = {"B": batch} if length is None else run_sizes(run.model, batch, length, None)
        changed = self._with(axes={**run.axes, **sizes})
        return changed.over_mesh(*self.mesh) if self.mesh else changed

    def _with(self, eager: EagerOptions | None = None, kind: Precision | None = None, **changes: Any) -> MemoryStep:
        """Return the step that was asked for, with other options of engine eager and types, and changes of its run."""
        run, *others = self._given
        others[1], others[-1] = kind or self.kind, eager or self.eager
        changed = MemoryStep(replace(run, **changes), *others)
        changed.regions = self.regions
        return changed

    @property
    def unplanned(self) -> Table:
        """The table of the step without a plan."""
        return _step(Structure(self.model), self.procedure, self.mode or PAPER)

    def under(self, engine: Engine) -> MemoryStep:
        """Return the step as an engine runs it: under its default plan if none was given, and compiled or not.

        Lion of bitsandbytes has its state in fp32 (95f9af30, optim/optimizer.py:637, Optimizer1State.init_state).
        """
        plan, compiled = None if self.run.plan_asked is not None else engine.plan, engine.name == COMPILED
        fused_lion = bool(engine.module) and self.optimizer.name == "lion" and self.eager.implementation != "for-loop"
        kind = replace(self.kind, states="fp32") if fused_lion else self.kind
        if plan is None and compiled == self.eager.compiled and kind == self.kind:
            return self
        changes = {} if plan is None else {"plan_asked": plan(self.unplanned)}
        return self._with(replace(self.eager, compiled=compiled), kind, **changes)

    def of(self, model: Model, axes: Mapping[str, int]) -> MemoryStep:
        """Return the step of a rewritten model and its sizes; `at` other sizes it is that of the original model."""
        rewritten = self._with(model=model, axes=dict(axes))
        rewritten._given = self._given
        return rewritten

    def placed(self, table: Table, over: OverMesh, shares: Mapping[str, int], memory: MeshMemory) -> None:
        """Return the step of each device of a mesh.

        shares  into how many parts axes are cut
        """
        self.table, self.over, self.shares, self.on_mesh = table, over, shares, memory
        static = memory.static(self.sizes())
        self.state, self.master = static.states, static.masters
        self.quantized = sum(bytes_of_array(array, self.sizes()) for array in self.packed)

    def executed_table(self, statistics: bool = False, plan: str | None = None) -> Table:
        """Return the step with its optimizer under the plan, as an engine executes it: with new and old weights.

        statistics   with the lines that update running statistics
        plan         another plan than that of the step
        """
        if self.over:
            from learncost.sharding.collective import bucketed  # imported when used, for a fast start

            return bucketed(self.over.placed.table)
        table = step(self.model, self.procedure, self.optimizer.name, mode=self.mode or PAPER)
        if statistics:
            from learncost.procedures.statistics import with_statistics

            table = with_statistics(table, self.model.table)
        return planned(without_gradients(table), self.plan if plan is None else plan)

    @property
    def packed(self) -> tuple[QuantizedArray, ...]:
        """The bytes of codes and scales of quantized weights; on a mesh those of each device."""
        arrays = (array for weight in self.model.quantized for array in (weight.codes, *weight.scales))
        axes = self.table.axes
        return tuple(replace(array, axes=axes.get(array.name, array.axes)) for array in arrays)

    @property
    def uncounted(self) -> int:
        """The bytes in use throughout that no line counts, minus bytes that lines count in excess."""
        return self.state + self.master + self.eager.communication_buffers + self.quantized - self.flash

    @property
    def states_and_masters(self) -> dict[str, int]:
        """Return the bytes of optimizer state, master weights and communication buffers, if there are any, by name."""
        parts = {STATES: self.state, MASTERS: self.master, BUFFERS: self.eager.communication_buffers}
        return {name: size for name, size in parts.items() if size}

    @property
    def least(self) -> int:
        """The bytes in use at every moment under any engine: weights in RAM, and `uncounted`; 0 under offload."""
        if self.eager.hosted:
            return 0
        if self.on_mesh is not None:
            return int(self.on_mesh.static(self.sizes()).total)
        table, codes = self.model.table, self.model.quantized_widths
        elements = total(Polynomial.of(table.axes[name]) for name in table.weights if name not in codes)
        return int(elements.at(self.sizes())) * self.kind.weight + self.uncounted

    @property
    def uncounted_by_axes(self) -> dict[str, Polynomial] | None:
        """The uncounted bytes by role, as polynomials in the axes; None if they are none, as for blockwise states."""
        if self.quantized or self.flash or self.eager.communication_buffers:
            return None
        table, states = self.model.table, Polynomial()
        for name, axes in self.states.axes.items():
            each = self.states.of_a_number(self.optimizer, name, self.kind.states)
            if each is None:
                return None
            states += Polynomial.of(axes, each)
        masters = total(Polynomial.of(table.axes[weight], self.kind.master) for weight in self.model.learning)
        return {"optimizer state": states, "master weights": masters}

    def symbolic_liveness(self, iterations: Sequence[int | None]) -> Liveness:
        """Return the moments of the step and the arrays over them, for symbolic sizes, without `uncounted`.

        iterations  of repeats, in the order of the sizes of `iterations`; None stands for more than `FEW` of them
        """
        known = {
            name: several for name, several in zip(self.iterations, iterations, strict=True) if several is not None
        }
        return symbolic_liveness(self.table, self.widths, IN_KERNELS, known, BYTES[NAMES[self.kind.value]])

    def sizes(self, batch: int | None = None) -> dict[str, int]:
        """Return the sizes of a microbatch."""
        several = self.over.placed.sizes if self.over else {}
        return {**self.run.axes, "B": (batch or self.run.axes["B"]) // self.accumulate, **several}

    def live(self) -> Live:
        return live(self.table, self.sizes(), NAMES[self.kind.value], self.widths, IN_KERNELS)

    def moments(self, iterations: WalkedIterations = every_iteration) -> Iterator[tuple[Line, tuple[int, ...], int]]:
        """Yield every executed line with its iterations and the live bytes of the table."""
        levels_of_lines = moments(self.table, self.sizes(), NAMES[self.kind.value], self.widths, IN_KERNELS, iterations)
        for line, path, level in levels_of_lines:
            yield line, path, level + self.uncounted

    def peak(self, sizes: Mapping[str, int]) -> int:
        """Return the peak bytes of the table."""
        if self.on_mesh is not None:
            return self.on_mesh.peak(sizes)
        iterations = tuple((name, sizes[name]) for name in self.iterations)
        return int(max(int(level.at(sizes)) for level in self._levels_of(iterations)) + self.uncounted)

    def largest(self, budget: int) -> int:
        """Return the largest batch at which every line of the table fits, by solving linear polynomials."""
        sizes = {name: size for name, size in self.sizes().items() if name != "B"}
        iterations = tuple((name, sizes[name]) for name in self.iterations if name != "B")
        levels = (level.with_sizes(sizes) for level in self._levels_of(iterations))
        several = min(_solved(level, budget - self.uncounted) for level in levels)
        if "B" in self.iterations and several <= FEW:  # the iterations of a batch are counted for more than a few alone
            several = next((batch for batch in range(FEW, 0, -1) if self.peak({**sizes, "B": batch}) <= budget), 0)
        return several * self.accumulate


Planner: TypeAlias = Callable[[Table, Mapping[str, int], str, int | None, Mapping[str, int]], str]


def by_lines(step: MemoryStep, sizes: Mapping[str, int], planner: Planner = chosen) -> str:
    """Return the plan that a planner chooses by the lines of a step, which have no states of the optimizer."""
    table = step.unplanned
    part = _accumulated(table).gather if step.accumulate > 1 else table
    capacity = None if step.budget is None else step.budget - step.uncounted
    return planner(part, sizes, step.kind.name, capacity, step.widths)


# Of one structure many steps are asked for, at other lengths, in other types, for other optimizers: what does not
# depend on these is made once.


@lru_cache(maxsize=64)
def _step(structure: Structure, procedure: str, mode: str) -> Table:
    """Return the step without gradients that only an optimizer reads, with a stateless optimizer."""
    return without_gradients(step(structure.model, procedure, "sgd", mode=mode))


@lru_cache(maxsize=64)
def _under_plan(structure: Structure, procedure: str, mode: str, plan: str, gathers: bool) -> Table:
    """Return the step under a plan; if it `gathers`, that of a microbatch."""
    table = planned(_step(structure, procedure, mode), plan)
    return gathering(table) if gathers else table


@lru_cache(maxsize=64)
def _levels(
    structure: Structure, procedure: str, mode: str, plan: str, gathers: bool, kind: Precision, iterations: _TripCounts
) -> tuple[Polynomial, ...]:
    """Return the distinct bytes at lines, as polynomials in all sizes except trip counts."""
    table = _under_plan(structure, procedure, mode, plan, gathers)
    widths = _widths(structure, _step(structure, procedure, mode), kind, gathers)
    polynomials = levels(table, dict(iterations), NAMES[kind.value], widths)
    return tuple({frozenset(level.terms.items()): level for level in polynomials}.values())


def _widths(structure: Structure, table: Table, kind: Precision, gathers: bool = False) -> dict[str, int]:
    """Return the bytes of an element by role, and by name for exceptions."""
    widths = {"weight": kind.weight, "gradient": kind.gradient, "saved": kind.value, "": kind.value, "index": INDEX}
    widths |= {name: BYTES[value.dtype] for name, value in table.known.items() if value.dtype}
    if gathers:  # products add to the sums of the gradients of microbatches in place
        learning = (*table.weights, *table.projections)
        widths |= {name: 0 for weight in learning if (name := f"d{weight}") in table.known}
        widths |= {f"{weight}.gradient": kind.gradient for weight in learning}
    return widths | dict.fromkeys(scores(table), kind.scores) | structure.model.quantized_widths


def _accumulated(table: Table) -> Accumulated:
    from learncost.procedures.accumulation import accumulated  # imported when used, for a fast start

    return accumulated(table)


def gathering(table: Table) -> Table:
    """Return a microbatch whose gradients are accumulated in place."""
    from learncost.procedures.accumulation import check_accumulates  # imported when used, for a fast start

    check_accumulates(table)
    accumulation = _accumulated(table).gather

    def in_place(line: Line) -> tuple[Line, ...]:
        ends = line.name in accumulation.renewed.values()
        return (replace(line, meta=replace(line.meta, phase="optimizer_step")) if ends else line,)

    return replace(accumulation, lines=map_lines(accumulation.lines, in_place))


NAMES = {8: "fp64", 4: "fp32", 2: "fp16", 1: "int8"}
"""The types whose values have these bytes."""


def iterations_of(table: Table) -> dict[str, tuple[str, ...]]:
    """Return the sizes that determine trip counts, each with the loops' counts."""
    counts = sorted({loop.count for loop in repeats(table.lines) if not loop.count.isdigit()})
    sizes = sorted({_counting(count) for count in counts})
    return {size: tuple(count for count in counts if _counting(count) == size) for size in sizes}


def _counting(count: str) -> str:
    """Return the size that determines a trip count: n for n/2."""
    return base(count).partition("/")[0]


def _parts(accumulate: Any, batch: int) -> int:
    number = counted(accumulate) or 0
    if number < 1 or batch % number:
        raise InputError(f"accumulate must be a divisor of the batch size {batch}, not {number or shown(accumulate)}")
    return number


def _solved(level: Polynomial, budget: int) -> int:
    """Return the largest batch at which a polynomial is within the budget, or 0."""
    free, slope = budget - level.terms.get((), 0), level.terms.get(("B",), 0)
    if set(level.terms) - {(), ("B",)}:
        raise InputError("bytes grow faster than with the batch: no batch is solved for")
    if free < 0:
        return 0
    return int(free // slope) if slope else 10**18
