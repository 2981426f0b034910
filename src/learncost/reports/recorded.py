"""The time of a step's kernels on a GPU, by kind and by module: of a recorded step, or of the step in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from learncost.devices.figure import Figure
from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, Serializable, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.models.module import why_not_runnable
from learncost.program.autograd.module import UserModule
from learncost.program.program import starred, with_microbatches
from learncost.reports.request import COMPILED, OF_KERNELS
from learncost.reports.request import GPU as CUDA
from learncost.reports.sheet import Sheet, SheetRow, joules_of, seconds_of

if TYPE_CHECKING:
    from learncost.devices.cluster import Cluster
    from learncost.devices.device import Device
    from learncost.models.model import Model
    from learncost.program.program import Program, ProgramOp
    from learncost.reports.record import Cost
    from learncost.reports.request import Request
    from learncost.timing.clocks import ProgramTime
    from learncost.timing.kernels import Kernel, SecondsOfCollective
    from learncost.timing.rates import GPU

SHOWN = 8
"""The number of rows of kinds, phases or modules in the table; --json has all."""

BETWEEN = "outside modules"

RECORDED, IN_TRITON, IN_INDUCTOR = "recorded", "in Triton", "compiled"
MADE = (
    "The module's own step was recorded on tensors without values, operator by operator as PyTorch runs it; "
    "over a mesh, without FSDP2, the time is that of its equations."
)
MADE_OF_PRESET = (
    "The step of the module that the installed transformers builds for this preset, with use_cache=False, was recorded "
    "on tensors without values, operator by operator as PyTorch runs it."
)
MADE_LOWERED = (
    "Not recorded, but lowered from the table: the operators of PyTorch's autograd in {}, with their views by rules. "
    "Held against recorded steps of 16 presets without a KV cache, three blocks each: the step within 5 % (median "
    "1.1 %, mostly shorter), GPU busy within 1 % (0.1 %). --module itself records it."
)
MADE_IN_TRITON = (
    "The step of learncost emit --backend triton as one CUDA graph, under the plan {}: products by cuBLAS, all else by "
    "kernels in Triton. It has never been measured on a GPU."
)

MADE_OVER_MESH = (
    "The module's own step under FSDP2 was recorded on tensors without values and under a process group that sends "
    "nothing: collectives take the time of the cluster's links on their own streams, and the step waits for their "
    "events."
)
MADE_COMPILED = (
    "The module's step under torch.compile, recorded on tensors without values: inductor's own program, in which its "
    "kernels in Triton take the time of the elements that they read and write, and no product is padded. With "
    "mode=reduce-overhead, both passes as CUDA graphs, it takes {} a step."
)


@dataclass(frozen=True)
class KernelTime(Serializable):
    """The seconds of kernels and their number."""

    seconds: float
    kernels: int


@dataclass(frozen=True)
class RecordedTime(Serializable):
    """The predicted time of a step whose kernels are known, with its interval.

    program  the step: recorded, in Triton, or compiled; `made` says how it was made, and `engine` runs it
    exposed  seconds of collectives that nothing overlaps
    graphs   of a compiled step, its seconds if both passes are CUDA graphs
    busy     seconds in which the GPU runs kernels
    waiting  seconds in which it waits for the CPU
    issue    seconds in which the CPU issues operators
    joules   of a step, modelled: lowest, expected, highest; None where no watts are known, which `power` says
    """

    device: str
    source: str
    assumed: str
    seconds: float
    low: float
    high: float
    busy: float
    waiting: float
    issue: float
    kernels: int
    by_kind: Mapping[str, KernelTime]
    by_phase: Mapping[str, KernelTime]
    by_module: Mapping[str, KernelTime]
    joules: tuple[float, float, float] | None = field(default=None, metadata=OPTIONAL)
    power: str = field(default="", metadata=OPTIONAL)
    took: ProgramTime | None = field(default=None, compare=False, metadata=HIDDEN)
    program: str = field(default=RECORDED, metadata=HIDDEN)
    made: str = field(default=MADE, metadata=HIDDEN)
    engine: str = field(default="eager", metadata=HIDDEN)
    exposed: float = field(default=0.0, metadata=OPTIONAL)
    graphs: float | None = field(default=None, metadata=Key("seconds_as_cuda_graphs", optional=True).field)

    @property
    def watts(self) -> Figure | None:
        """The mean watts of a step, with the device's share of the host; None where they are not known."""
        if self.joules is None:
            return None
        low, usual, high = self.joules
        source = f"the mean of a recorded step: {self.power}"
        return Figure(usual / self.seconds, "W", "modelled", source, low / self.low, high / self.high)

    @property
    def note(self) -> str:
        """Return how the step was made, and its seconds, for a title."""
        return f"; {self.program}, {seconds_of(self.seconds)} a step"

    @property
    def sentence(self) -> str:
        """Return the time with its interval, and what takes it."""
        parts = f"GPU busy {seconds_of(self.busy)}"
        parts += f", exposed communication {seconds_of(self.exposed)}" if self.exposed else ""
        parts += f", waiting for the CPU {seconds_of(self.waiting)}" if self.issue else ""
        between = f"from {seconds_of(self.low)} to {seconds_of(self.high)}"
        return f"Time on {self.device}, {self.program}: {seconds_of(self.seconds)} a step, {between}; {parts}"

    def notes(self) -> tuple[str, ...]:
        """Return the notes on the time and its constants."""
        issues = f" The CPU issues operators for {seconds_of(self.issue)}." if self.issue else ""
        notes = [f"{self.sentence}.{issues}", self.made, f"{self.assumed} {self.source}."]
        if self.joules:
            low, usual, high = map(joules_of, self.joules)
            notes.append(f"Energy, modelled as time x power: {usual} a step, from {low} to {high}; {self.power}.")
        return tuple(notes)

    def sheet(self) -> Sheet:
        """Return the table of the time by kind of kernel, by phase and by module."""
        rows = [
            SheetRow(("GPU busy", seconds_of(self.busy), f"{self.kernels:,}", _share(self.busy, self.seconds)), "bold")
        ]
        parts = "by kernel" if self.program == IN_INDUCTOR else "by module"
        for title, times in (("by kind", self.by_kind), ("by phase", self.by_phase), (parts, self.by_module)):
            rows.append(SheetRow((title, "", "", ""), "bold"))
            longest = [*times.items()]
            shown = longest[:SHOWN] if len(longest) > SHOWN + 1 else longest
            for name, time in shown:
                cells = name, seconds_of(time.seconds), f"{time.kernels:,}", _share(time.seconds, self.seconds)
                rows.append(SheetRow(cells, depth=1))
            if rest := longest[len(shown) :]:
                seconds, kernels = sum(time.seconds for _, time in rest), sum(time.kernels for _, time in rest)
                cells = f"{len(rest)} more", seconds_of(seconds), f"{kernels:,}", _share(seconds, self.seconds)
                rows.append(SheetRow(cells, depth=1))
        waiting = "waiting for the CPU", seconds_of(self.waiting), "", _share(self.waiting, self.seconds)
        rows += [SheetRow(waiting, "bold")] if self.issue else []
        return Sheet(f"Time of the step, {self.program}", ("", "time", "kernels", "of the step"), tuple(rows), ())


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def with_kernels(answer: Cost, request: Request, cluster: Cluster | None = None) -> Cost:
    """Return an answer with the time of its kernels, where these are known, or why it has none."""
    if answer._built is None:
        return answer
    found = recorded_time(request, answer._built, answer.optimizer, cluster)
    if isinstance(found, str):
        return replace(answer, _instead=found)
    return replace(answer, recorded=found, rows=tuple(replace(row, timing=None) for row in answer.rows))


def recorded_time(request: Request, model: Model, optimizer: str, cluster: Cluster | None = None) -> RecordedTime | str:
    """Return the time of a step's kernels on the device of a request, or why they are not known.

    The answer is empty for a request that is not about training on a published GPU, of an imported module or, where it
    is named, by eager, or of any model by cuda or compiled. Raises `InputError` for what these engines cannot do.
    """
    layer, named, itself = model.configuration.layer, request.timed_by in OF_KERNELS, request.module == UserModule.name
    recorded = layer is not None and layer.steps is not None
    asked_for = itself and request.engine in ("", "eager") and not recorded
    lowers = request.engine == "eager" and layer is None and not itself and not request.is_sharded
    elsewhere = "it is recorded for published GPUs, such as H100-SXM" if asked_for else ""
    if request.on is None or (request.is_sharded and cluster is None) or not request.is_training:
        return ""
    if not (named or asked_for or lowers) and (not recorded or request.timed_by != "eager"):
        return ""
    from learncost.devices.device import device as find_device  # imported where they are needed: start-up counts
    from learncost.devices.rates import calibrated

    if calibrated(request.on):
        if named:
            other = "graph" if request.timed_by == CUDA else "eager"
            raise InputError(
                f"--engine {request.engine} is timed on published GPUs, such as --on H100-SXM: give --engine {other}"
            )
        return elsewhere
    device = cluster.device if cluster else find_device(request.on)
    request = replace(request, budget=None, optimizer=optimizer)
    if named:
        return _recorded(request, device)
    if not device.torch:
        return elsewhere
    try:
        if not lowers and (request.procedure != "bp" or request.plan is not None):
            raise InputError("a recorded step is one of bp without a plan, as the module runs it")
        if not lowers and (why := why_not_runnable(model)):
            raise InputError(f"with eager it {why}")
        return _recorded(replace(request, engine="eager", on=device.name), device, cluster, lowers)
    except InputError as error:
        if asked_for:
            raise
        return str(error)


def _recorded(request: Request, device: Device, cluster: Cluster | None = None, lowers: bool = False) -> RecordedTime:
    """Return the time of a step as its engine runs it, or as the module that is emulated does. Raises `InputError`."""
    from learncost.devices.gpus import GRAPH, gpu
    from learncost.reports.memory.engines.eager import is_sharded, lowered_on, recorded_on
    from learncost.reports.memory.memory import memory_question
    from learncost.reports.memory.runs import engine_of
    from learncost.timing.clocks import program_time

    step = memory_question(request).step(request.procedure, request.engine)
    step = engine_of(step, request.engine).step if request.engine in OF_KERNELS or cluster or lowers else step
    constants, named = gpu(device), dict[str, Any]()
    if lowers:
        program = lowered_on(step)
        named = {"program": f"lowered as {step.module}", "made": MADE_LOWERED.format(step.module)}
    elif request.engine == CUDA:
        from learncost.backends.triton.program import launched
        from learncost.reports.memory.engines.emitted import laid_out_on_gpu

        program = launched(laid_out_on_gpu(step, step.sizes()))
        constants = replace(constants, host=GRAPH)
        named = {"program": IN_TRITON, "made": MADE_IN_TRITON.format(step.plan or "none"), "engine": CUDA}
    elif cluster and not is_sharded(step):
        raise InputError("over a mesh it is recorded under FSDP2 (--placement fsdp or zero-2)")
    else:
        program = recorded_on(step.eager.device, step, step.sizes(), request.engine == COMPILED)
    program, sent = with_microbatches(program, step.accumulate), None
    if cluster is not None:
        from learncost.devices.collective import MeshGroup, transfer

        group = MeshGroup(step.replicas, min(step.replicas, cluster.devices))

        def seconds(collective: str, payload: float) -> float:
            return transfer(collective, payload, group, cluster).seconds

        sent, named["made"] = seconds, MADE_OVER_MESH
    if step.model.configuration.layer is None and request.engine == "eager" and not lowers:
        named["made"] = MADE_OF_PRESET
    if request.engine == COMPILED:
        host = replace(constants.host, launch=0.0, graph=constants.host.launch)
        graphs = program_time(program, replace(constants, host=host)).seconds
        named = {"program": IN_INDUCTOR, "made": MADE_COMPILED.format(seconds_of(graphs)), "engine": COMPILED}
        named["graphs"] = graphs
    return _timed(program, constants, device, sent, named, by_line=lowers)


def _timed(
    program: Program, constants: GPU, device: Device, sent: SecondsOfCollective | None, named: Mapping[str, Any],
    by_line: bool = False,
) -> RecordedTime:  # fmt: skip
    """Return the time of a program on a device; `by_line` adds it up by the lines of a table, not by modules."""
    from learncost.devices.assumptions import kernel_power
    from learncost.timing.clocks import program_time
    from learncost.timing.energy import joules

    took, drawn = program_time(program, constants, sent), kernel_power(device)

    def place(op: ProgramOp, _: Kernel) -> str:
        is_of_line = by_line or op.name.startswith("triton::")
        return op.label.removesuffix(", backward") if is_of_line else starred(op.path) or BETWEEN

    several = took.by_kind, took.by(lambda op, _: op.phase), took.by(place)
    kinds, phases, places = ({name: KernelTime(*time) for name, time in each.items()} for each in several)
    return RecordedTime(
        device.name,
        constants.source,
        _assumptions(took),
        took.seconds,
        took.low,
        took.high,
        took.busy,
        took.waiting,
        took.issue,
        took.launches,
        kinds,
        phases,
        places,
        None if drawn is None else joules(took, drawn),
        "" if drawn is None else drawn.source,
        took,
        exposed=took.exposed,
        **named,
    )


def _assumptions(took: ProgramTime) -> str:
    """Return which constants are assumed, with their uncertainty."""
    gpu, host = took.gpu, took.gpu.host
    kinds = ", ".join(f"{kind} {apart:.0%}" for kind, apart in gpu.assumed.items())
    if not host.operator:
        return f"Assumed: shares of the rates by kind of kernel; their uncertainty: {kinds}. Rates:"
    return (
        f"Assumed: {1e6 * host.operator:.3g} microseconds of the CPU per operator with a kernel, {1e6 * host.view:.2g} "
        f"per view, and shares of the rates by kind of kernel; their uncertainty: {kinds}. Rates:"
    )
