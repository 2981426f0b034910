"""One training step on a cluster: bytes on every device, seconds of the pipeline, traffic over every link.

Time is modelled: lines at a device's attained rates, collectives by latency and bandwidth of a link, pipelines by
simulating their schedules. Overlap is a named assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from learncost.autoshard.account import PASSES, MeshAccount, SegmentPass, SymbolicCollective
from learncost.autoshard.passes import ONCE, SPLIT, SUMMED, StaticBytes
from learncost.autoshard.placed_step import StagePart, parts_of, together
from learncost.devices.cluster import Cluster
from learncost.devices.collective import MeshGroup, Transfer, groups, transfer
from learncost.ir.dataclass import dataclass, field
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Loop
from learncost.ir.polynomial import Polynomial, larger, smaller
from learncost.passes.stages import iterations_of
from learncost.program.pipeline import KINDS, Schedule, StageTimes, schedule, seconds, worst
from learncost.sharding.clauses import check_timed
from learncost.sharding.padding import Padded
from learncost.timing.rates import Rates

ONE_DEVICE = MeshGroup(1, 1)
"""The devices of a mesh axis that is not there."""

OVERLAPPED_ROLES = ("weights", "gradients")
"""The roles whose collectives overlap with compute."""

PIPELINE = "pp"
"""The mesh axis of a pipeline."""

ASSUMED = {
    "waits": "TP/CP/EP collectives are not overlapped with compute",
    "overlaps": "collectives of weights and gradients overlap with the passes that need them, which they slow down; "
    "the rest is exposed",
    "rings": "ring steps overlap with the compute of their iteration; the rest is exposed",
    "sends": "sends between stages overlap with compute; a stage waits for its inputs",
}
"""The assumptions about overlap."""


@dataclass(frozen=True)
class ParallelConfig:
    """The parallel configuration of a step on many devices.

    mesh          devices by axis, the last axis innermost; `pp` is the pipeline
    microbatch    sequences of a microbatch on each batch shard
    microbatches  the microbatches of a step
    schedule      the pipeline schedule; chunks, the stages per device
    layers        the blocks of each stage; none: equally many
    overlap       whether collectives of weights and gradients overlap with compute
    overlapped_axes  axes whose other collectives overlap, too, with products split for it (async TP)
    workspace     whether a fused weight update has a buffer of a block's gradients in the type of its weights
    sorted_rows   how often rows are permuted for each dispatch to the experts and each combine
    once_a_node   whether a row is sent once per node and forwarded inside, as in DeepEP, not once per expert
    communication_buffers  bytes on each device
    """

    mesh: Mapping[str, int]
    microbatch: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    layers: tuple[int, ...] = ()
    overlap: bool = True
    overlapped_axes: tuple[str, ...] = ()
    workspace: bool = False
    sorted_rows: int = 0
    once_a_node: bool = False
    communication_buffers: int = 0

    @property
    def stages(self) -> int:
        return self.mesh.get(PIPELINE, 1)

    @property
    def devices(self) -> int:
        return prod(self.mesh.values())

    @property
    def gradients(self) -> str:
        """Return the lifetime of gradients: the sums of several microbatches and those of pipelines live throughout."""
        if self.microbatches == 1 and self.stages == 1:
            return ONCE
        return SPLIT if KINDS[self.schedule].splits_backward else SUMMED

    @property
    def order(self) -> str:
        """The schedule with its microbatches, as a phrase."""
        several = "1 microbatch" if self.microbatches == 1 else f"{self.microbatches:,} microbatches"
        return f"{self.schedule}{f' of {self.chunks} chunks' if self.chunks > 1 else ''}, {several}"

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.mesh.items())


@dataclass
class PassTime:
    """The seconds of a pass: compute, compute in ring iterations, exposed collectives and overlapped ones.

    shared  the share of the device that overlapping collectives take from compute
    """

    compute: Any = 0.0
    rounds: Any = 0.0
    waits: Any = 0.0
    overlapping: Any = 0.0
    ring_seconds: Any = 0.0
    shared: float = 0.0

    def send(self, sending: SymbolicCollective, seconds: Any, parallel: ParallelConfig) -> None:
        """Add a collective's seconds."""
        self.add(
            seconds,
            sending.rounds,
            parallel.overlap and (sending.role in OVERLAPPED_ROLES or sending.mesh_axis in parallel.overlapped_axes),
        )

    def add(self, seconds: Any, rounds: bool, overlaps: bool) -> None:
        """Add the seconds of a ring step, or of a collective that overlaps with compute or does not."""
        if rounds:
            self.ring_seconds = self.ring_seconds + seconds
        elif overlaps:
            self.overlapping = self.overlapping + seconds
        else:
            self.waits = self.waits + seconds

    @property
    def exposed(self) -> Any:
        """Return the exposed seconds of what overlaps; links with ring steps carry nothing else."""
        hidden = smaller(self.rounds, self.ring_seconds)
        available = self.compute - hidden
        slower = self.shared * smaller(self.overlapping, available / (1 - self.shared))
        return self.ring_seconds - hidden + larger(slower, self.overlapping - available)


class PeakPass(NamedTuple):
    """The pass at the peak of a device, and the stage that it is of; forward and backward by their letters."""

    letter: str
    part: StagePart


@dataclass(frozen=True)
class StageUsage(Displayed):
    """The memory of a device with one or several stages, by role, and the seconds of a microbatch.

    activations  of all microbatches in flight, with the workspace of passes, and the gradients of a single microbatch
    """

    layers: int
    static: StaticBytes
    activations: int
    workspace: int
    at_peak: PeakPass
    forward: float
    backward: float
    update: float
    sent: float

    @property
    def peak(self) -> int:
        """Return the peak bytes."""
        return int(self.static.total) + self.activations + self.workspace


@dataclass(frozen=True)
class StepTraffic(Displayed):
    """A device's traffic over a mesh axis in a step, by collective and purpose: calls, bytes and seconds."""

    op: str
    mesh_axis: str
    role: str
    calls: int
    payload: float
    sent: float
    link: str
    algorithm: str
    seconds: float

    @property
    def overlaps(self) -> bool:
        """Return whether it overlaps with compute; the gradients of tied weights are complete at the end alone."""
        return (self.role in OVERLAPPED_ROLES and self.mesh_axis != PIPELINE) or self.op == "pass_on"


@dataclass(frozen=True)
class StepUsage(Displayed):
    """One step on many devices.

    stages     the stages of the pipeline's devices
    sent       the traffic of the device that sends the most
    seconds    of the step: the pipeline's passes, then the work done once per step (`once`)
    bubble     the idle share that the pipeline adds to its busiest device
    computing  the busiest device's compute seconds; `waiting`, its seconds of exposed collectives
    exposed    its exposed seconds of collectives that overlap, with those done once per step
    passes     seconds of a microbatch by the letter of a pass, on each stage by its number
    padded     padded sizes that are not divisible by the mesh
    updating   the seconds in which the optimizer of its busiest device computes
    busiest    the number of this device, whose stages take longest
    """

    parallel: ParallelConfig
    cluster: Cluster
    stages: tuple[StageUsage, ...]
    sent: tuple[StepTraffic, ...]
    seconds: float
    once: float
    bubble: float
    computing: float
    waiting: float
    tokens: int
    flops: float = 0.0
    low: float = 1.0
    high: float = 1.0
    exposed: float = 0.0
    groups: Mapping[str, MeshGroup] = field(default_factory=dict)
    passes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    padded: tuple[Padded, ...] = ()
    updating: float = 0.0
    busiest: int = 0

    @property
    def peak(self) -> int:
        """Return the bytes on the fullest device."""
        return max(stage.peak for stage in self.stages)

    @property
    def moved(self) -> tuple[StepTraffic, ...]:
        """Return the traffic, what takes longest first."""
        return tuple(sorted(self.sent, key=lambda row: -row.seconds))

    @property
    def waits(self) -> float:
        """Return the seconds of collectives that do not overlap with compute, without a pipeline."""
        return sum(row.seconds for row in self.moved if not row.overlaps)

    @property
    def overlapping(self) -> float:
        """Return the seconds of those that do, each alone; `exposed` is the part that is not hidden."""
        return sum(row.seconds for row in self.moved if row.overlaps)

    @property
    def lines(self) -> float:
        """Return the seconds of all that the busiest device computes."""
        if self.parallel.stages > 1:
            return self.computing + self.updating
        return self.seconds - self.waits - self.exposed

    @property
    def tokens_per_second(self) -> float:
        """The tokens per second of a device."""
        return self.tokens / self.seconds / self.parallel.devices

    @property
    def causes(self) -> dict[str, float]:
        """Return the seconds of the step by cause."""
        return {
            "computing": self.computing,
            "waiting for collectives": self.waiting,
            "pipeline bubble": (self.computing + self.waiting) * self.bubble,
            "optimizer and gradients": self.once,
        }


def stages_of(account: MeshAccount, parallel: ParallelConfig, sizes: Mapping[str, int]) -> tuple[StagePart, ...]:
    """Return the stages of a configuration by number. Raises `InputError` for impossible splits of blocks."""
    number = parallel.stages * parallel.chunks
    total = iterations_of(account.step.model.table, sizes)
    if parallel.layers and len(parallel.layers) != number:
        raise InputError(f"give one number of blocks for each of the {number} stages, not {len(parallel.layers)}")
    if total < number and number > 1:
        chunks = f" x {parallel.chunks} --chunks" if parallel.chunks > 1 else ""
        raise InputError(f"{total} blocks are too few for --mesh pp={parallel.stages}{chunks}: at most {total} stages")
    layers = parallel.layers or tuple(total // number + (place < total % number) for place in range(number))
    return parts_of(account.step.model.table, sizes, layers)


def devices_of(parts: Sequence[StagePart], parallel: ParallelConfig) -> tuple[StagePart, ...]:
    """Return what each device of a pipeline has of the stages: it updates all of its weights together."""
    return tuple(together(parts[device :: parallel.stages]) for device in range(parallel.stages))


def sends_of(parallel: ParallelConfig, device: int) -> int:
    """Return how often a device sends to the stage before or after one of its stages, for each microbatch."""
    return 2 * parallel.chunks - (device == 0) - (device == parallel.stages - 1)


def sizes_of(account: MeshAccount, parallel: ParallelConfig, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the global sizes of one microbatch, for all mesh axes except the pipeline's."""
    batch = parallel.microbatch * prod(parallel.mesh.get(axis, 1) for axis in account.sizes.batch_axes)
    one_of_each = dict.fromkeys(account.step.two.names, 1)
    return {
        **sizes,
        **one_of_each,
        **{axis: size for axis, size in parallel.mesh.items() if axis != PIPELINE},
        "B": batch,
    }


def order_in_flight(parallel: ParallelConfig) -> Schedule:
    """Return the schedule with as many microbatches as have the memory of all: a full pipeline has no more in flight.

    This is not so of gpipe.
    """
    most = parallel.microbatches
    if parallel.schedule != "gpipe":
        most = min(most, 2 * parallel.stages)
        most = max(parallel.stages, most // parallel.stages * parallel.stages) if parallel.chunks > 1 else most
    return schedule(parallel.schedule, parallel.stages, most, parallel.chunks)


def static_of(account: MeshAccount, parallel: ParallelConfig, sizes: Mapping[str, int]) -> tuple[StaticBytes, ...]:
    """Return the static memory of every device of the pipeline."""
    local_sizes, parts = (account.sizes.filled(sizes_of(account, parallel, sizes)), stages_of(account, parallel, sizes))
    of_part = {part: account.weights.static(local_sizes, part, parallel.gradients != ONCE) for part in {*parts}}
    result = []
    for device in range(parallel.stages):
        several = [of_part[part] for part in parts[device :: parallel.stages]]
        names = ("weights", "gradients", "states", "masters")
        total = {name: int(sum(getattr(each, name) for each in several)) for name in names}
        result.append(StaticBytes(**total, communication_buffers=parallel.communication_buffers))
    return tuple(result)


def memory_of(
    account: MeshAccount,
    parallel: ParallelConfig,
    sizes: Mapping[str, int],
    times: Mapping[int, tuple[float, ...]] = {},
) -> tuple[StageUsage, ...]:
    """Return the memory of every device of the pipeline; `times` are the seconds of its passes, if they are known."""
    local_sizes, parts = (account.sizes.filled(sizes_of(account, parallel, sizes)), stages_of(account, parallel, sizes))
    values = {part: account.passes.activations(local_sizes, part, parallel.gradients) for part in {*parts}}
    order = order_in_flight(parallel)
    names = ("saved", "forward", "backward", "waiting", "update")
    of_stages = [[float(getattr(values[part], name)) for part in parts] for name in names]
    result = []
    for device, static in enumerate(static_of(account, parallel, sizes)):
        mine = parts[device :: parallel.stages]
        size, letter, chunk = worst(order, device, *of_stages)
        result.append(
            StageUsage(
                sum(part.layers for part in mine),
                static,
                int(size),
                account.weights.workspace(local_sizes) if parallel.workspace else 0,
                PeakPass(letter, mine[chunk]),
                *times.get(device, (0.0, 0.0, 0.0, 0.0)),
            )
        )
    return tuple(result)


def step_of(
    account: MeshAccount,
    parallel: ParallelConfig,
    sizes: Mapping[str, int],
    cluster: Cluster,
    rates: Rates,
    tokens: int,
    memory: bool = True,
) -> StepUsage:
    """Return a step of a model on a cluster.

    sizes   of the model, with the lengths of a sequence
    tokens  of a sequence
    memory  whether the memory of the stages is asked for, too
    Raises `InputError` for sizes that are not divisible and for a mesh without links in the cluster.
    """
    check_timed(account.step.specs.clauses, parallel.mesh)
    local_sizes = sizes_of(account, parallel, sizes)
    if why := account.sizes.divides(local_sizes):
        raise InputError(why)
    padded, local_sizes = account.sizes.padded(local_sizes), account.sizes.filled(local_sizes)
    parts = stages_of(account, parallel, sizes)
    mesh_groups = groups(parallel.mesh, cluster.devices)
    computed, products = account.computed(local_sizes, rates, account.step.kind.values)

    def moved(sending: SymbolicCollective, sizes: Mapping[str, Any]) -> Transfer:
        return _moved(sending, sizes, mesh_groups, cluster, parallel)

    times_of = DeviceTimes(computed, moved, cluster.shared, rates)
    devices = devices_of(parts, parallel)
    made = {part: stage_seconds(account, part, local_sizes, parallel, times_of) for part in {*parts, *devices}}
    passes, updates = [made[part] for part in parts], [made[part]["O"] for part in devices]
    columns = {name: [sum(entry[name]) for entry in passes] for name in "FBW"}
    send = between_stages(account, local_sizes, mesh_groups, cluster)
    of_stages = StageTimes(columns["F"], columns["B"], columns["W"], send)
    pipeline = seconds(parallel.schedule, parallel.stages, parallel.microbatches, parallel.chunks, of_stages)
    per_device = [
        [sum(columns[name][chunk * parallel.stages + device] for chunk in range(parallel.chunks)) for name in "FBW"]
        for device in range(parallel.stages)
    ]
    tied = tied_sums(account, local_sizes, devices, cluster, mesh_groups.get(PIPELINE, ONE_DEVICE))
    once = once_per_step(map(sum, updates), tied) + rates.step
    busiest = max(range(parallel.stages), key=lambda device: sum(per_device[device]))
    busy = parallel.microbatches * sum(per_device[busiest])
    mine = passes[busiest :: parallel.stages]
    waited = parallel.microbatches * sum(sum(entry[name][1:]) for entry in mine for name in "FBW")
    late = parallel.microbatches * sum(entry[name][2] for entry in mine for name in "FBW")
    times = {device: (*per_device[device], send) for device in range(parallel.stages)}
    sent = _sent(account, local_sizes, devices, parallel, mesh_groups, cluster, tied)
    batch = local_sizes["B"] * parallel.microbatches
    total = pipeline + once
    low = rates.low
    if rates.most and total:
        low = min(1.0, max(low, parallel.microbatches * _most_products(account, products, devices, rates) / total))
    return StepUsage(
        parallel,
        cluster,
        memory_of(account, parallel, sizes, times) if memory else (),
        sent,
        total,
        once,
        max(0.0, pipeline / busy - 1) if busy else 0.0,
        busy - waited,
        waited,
        batch * tokens,
        low=low,
        high=rates.high,
        exposed=late + updates[busiest][2],
        groups=mesh_groups,
        passes={name: tuple(column) for name, column in columns.items()},
        padded=padded,
        updating=rates.step + updates[busiest][0],
        busiest=busiest,
    )


def _most_products(
    account: MeshAccount, flops: Mapping[SegmentPass, Any], devices: Iterable[StagePart], rates: Rates
) -> float:
    """Return the matrix-product seconds of one microbatch on the busiest device, at the highest measured rate."""
    of_devices = (
        sum(
            each * _iterations(account, part, where.segment, where.place)
            for where, each in flops.items()
            if where.letter != "O"
        )
        for part in {*devices}
    )
    return float(max(of_devices)) / rates.most


def once_per_step(updates: Iterable[float], tied: Iterable[tuple[Transfer, frozenset[int]]]) -> float:
    """Return the seconds of what runs once per step: the longest update of a device, and the sums of tied gradients."""
    return max(updates) + sum(moved.seconds for moved, _ in tied)


@dataclass(frozen=True)
class DeviceTimes:
    """The times of kernels and collectives on a device of a cluster.

    computed  the seconds of one iteration of each segment
    moved     the transfer of a collective at sizes
    shared    the share of the device that overlapping collectives take from compute
    """

    computed: Mapping[SegmentPass, Any]
    moved: Callable[[SymbolicCollective, Mapping[str, Any]], Any]
    shared: float
    rates: Rates


def stage_seconds(
    account: MeshAccount, part: StagePart, local_sizes: Mapping[str, Any], parallel: ParallelConfig, times: DeviceTimes
) -> dict[str, tuple[Any, Any, Any]]:
    """Return `exposed` of a stage; arrays if sizes are arrays."""
    rates = times.rates
    spent = {name: PassTime(shared=times.shared) for name in "FBWO"}
    for where, each in times.computed.items():
        seconds_of = each * _iterations(account, part, where.segment, where.place)
        spent[where.letter].compute += seconds_of
        spent[where.letter].rounds += seconds_of if where.rounds else 0.0
    spent["O"].compute = account.weights.optimizer_seconds(local_sizes, part, rates)
    inner, flat = account.sizes.of_stage(local_sizes, part), set[tuple[object, ...]]()
    for sending in account.sendings:
        if not account.step.within((sending.segment,), part):
            continue
        name = PASSES.get(sending.phase, "F")
        calls = calls_of(account, part, sending, inner)
        takes = times.moved(sending, inner if name == "O" else local_sizes)
        # The weights of a block, and its gradients, are one flat array, as in FSDP, or in few buckets, as in DDP.
        array = sending.role, sending.op, sending.mesh_axis, sending.segment, name
        begins = 0.0 if array in flat else takes.latency
        flat |= {array} if sending.role in OVERLAPPED_ROLES else set()
        spent[name].send(sending, calls * (begins + takes.moving), parallel)
        if (
            parallel.sorted_rows and sending.copies and takes.group.devices > 1
        ):  # every copy of a row is read and written
            copied = calls * parallel.sorted_rows * 2 * takes.payload
            spent[name].compute += copied / (rates.permuted * rates.bandwidth(float("inf")))
    return exposed(spent, parallel.overlap)


def exposed(spent: Mapping[str, PassTime], overlap: bool = True) -> dict[str, tuple[Any, Any, Any]]:
    """Return the compute seconds of each pass, its communication without overlap, and the rest of the overlapped one.

    Communication once per step, after the last backward pass, may overlap with what that pass's own leaves of it.
    """
    result = {name: (spent[name].compute, spent[name].waits, spent[name].exposed) for name in "FBW"}
    available = sum(larger(0.0, spent[name].compute - spent[name].overlapping) for name in "BW") if overlap else 0.0
    result["O"] = spent["O"].compute, spent["O"].waits, larger(0.0, spent["O"].overlapping - available)
    return result


def _iterations(account: MeshAccount, part: StagePart, segment: int, place: int = -1) -> Any:
    """Return the iterations of a segment in a stage; those of a line, if fewer of them have it."""
    if segment % 2 == 0:
        return int(segment in part.outside)
    iterations = part.iterations.get(account.step.blocks[segment // 2], 0)
    fewer = account.fewer(part).get(place) if place >= 0 else None
    return iterations * fewer.fewer / fewer.whole if fewer else iterations


def calls_of(account: MeshAccount, part: StagePart, sending: SymbolicCollective, sizes: Mapping[str, Any]) -> Any:
    """Return how often a stage sends for a microbatch; once for a step where the payload grows with the iterations."""
    if PASSES.get(sending.phase) == "O":
        return 1
    fewer = account.fewer(part).get(sending.place) if account.step.config.every > 1 else None
    return (fewer.of(sending.iterations) if fewer else sending.iterations).at(sizes)


def _moved(
    sending: SymbolicCollective,
    local_sizes: Mapping[str, int],
    mesh_groups: Mapping[str, MeshGroup],
    cluster: Cluster,
    parallel: ParallelConfig,
) -> Transfer:
    group = mesh_groups.get(sending.mesh_axis, ONE_DEVICE)
    copies = int(sending.copies.at(local_sizes)) if sending.copies and parallel.once_a_node else 0
    return transfer(sending.op, float(sending.payload.at(local_sizes)), group, cluster, copies=copies)


def carried(account: MeshAccount) -> Polynomial:
    """Return the elements that a device sends to the next stage: the carried values of block loops."""
    for line in account.step.placed.table.lines:
        if isinstance(line, Loop) and line.carry and not isinstance(line, Line):
            axes = line.values[line.carry[0].start].axes
            return Polynomial.of(axes)
    return Polynomial()


def between_stages(
    account: MeshAccount, local_sizes: Mapping[str, int], mesh_groups: Mapping[str, MeshGroup], cluster: Cluster
) -> float:
    """Return the seconds of a send from a stage to the next one; nothing without a pipeline."""
    if mesh_groups.get(PIPELINE, ONE_DEVICE).devices == 1:
        return 0.0
    size = float(carried(account).at(local_sizes)) * account.step.kind.value
    return transfer("send", size, mesh_groups[PIPELINE], cluster).seconds


def tied_gradients(
    account: MeshAccount, local_sizes: Mapping[str, int], devices: Sequence[StagePart]
) -> Iterator[tuple[str, int, frozenset[int]]]:
    """Yield the trained weights that several devices of a pipeline have: name, bytes of the gradient, and devices.

    Their gradients are summed once per step, before the update, as in Megatron-LM
    (megatron/core/distributed/finalize_model_grads.py, _allreduce_word_embedding_grads).
    """
    for held in account.weights.held if len(devices) > 1 else ():
        outside = held.learns and all(segment % 2 == 0 for segment in held.segments)
        having = (number for number, part in enumerate(devices) if account.step.within(held.segments, part))
        if outside and len(those := frozenset(having)) > 1:
            yield held.name, int(held.gradient.at(local_sizes)) * account.step.kind.gradient, those


def tied_sums(
    account: MeshAccount,
    local_sizes: Mapping[str, int],
    devices: Sequence[StagePart],
    cluster: Cluster,
    pipeline: MeshGroup,
) -> list[tuple[Transfer, frozenset[int]]]:
    """Return the all_reduces of `tied_gradients` over the links of a cluster, and the devices that take part."""
    return [
        (transfer("all_reduce", float(size), MeshGroup(len(those), min(len(those), pipeline.inside)), cluster), those)
        for _, size, those in tied_gradients(account, local_sizes, devices)
    ]


def _sent(
    account: MeshAccount,
    local_sizes: Mapping[str, int],
    devices: Sequence[StagePart],
    parallel: ParallelConfig,
    mesh_groups: Mapping[str, MeshGroup],
    cluster: Cluster,
    tied: Sequence[tuple[Transfer, frozenset[int]]],
) -> tuple[StepTraffic, ...]:
    """Return the traffic in a step of the device that sends the most, by collective, axis and purpose."""
    best: tuple[StepTraffic, ...] = ()
    seen: set[tuple[object, ...]] = set()
    for device, part in enumerate(devices):
        ends = sends_of(parallel, device)
        if (ends, part) in seen:
            continue
        seen.add((ends, part))
        table: dict[tuple[str, str, str], StepTraffic] = {}
        for sending in account.sendings:
            if not account.step.within((sending.segment,), part):
                continue
            inner = account.sizes.of_stage(local_sizes, part)
            moved = _moved(sending, inner, mesh_groups, cluster, parallel)
            times = 1 if PASSES.get(sending.phase) == "O" else parallel.microbatches
            calls = int(calls_of(account, part, sending, inner)) * times
            if moved.group.devices > 1:
                add_traffic(table, (sending.op, sending.mesh_axis, sending.role), moved, calls)
        if parallel.stages > 1:
            size = float(carried(account).at(local_sizes)) * account.step.kind.value
            moved = transfer("send", size, mesh_groups[PIPELINE], cluster)
            add_traffic(table, ("send", PIPELINE, "values"), moved, parallel.microbatches * ends)
        for moved, those in tied:
            if device in those:
                add_traffic(table, ("all_reduce", PIPELINE, "gradients"), moved, 1)
        rows = tuple(table.values())
        if sum(row.sent for row in rows) >= sum(row.sent for row in best):
            best = rows
    return best


def add_traffic(
    table: dict[tuple[str, str, str], StepTraffic], key: tuple[str, str, str], moved: Transfer, calls: int
) -> None:
    """Add the calls of a collective to those of its op, mesh axis and role."""
    old = table.get(key, StepTraffic(*key, 0, 0.0, 0.0, moved.link, moved.algorithm, 0.0))
    table[key] = StepTraffic(
        *key,
        old.calls + calls,
        old.payload + calls * moved.payload,
        old.sent + calls * moved.sent,
        moved.link,
        moved.algorithm,
        old.seconds + calls * moved.seconds,
    )
