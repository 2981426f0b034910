"""`learncost search`: the fastest parallel configurations of a training on a cluster, and why others are slower."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from learncost.autoshard.candidates import CONTEXTS, MICROBATCHES, NO_CONTEXT_PARALLELISM, PLANS, ZERO_AXES, Candidate
from learncost.autoshard.stage_memory import split_of
from learncost.autoshard.step import ASSUMED, ParallelConfig, StepUsage, step_of
from learncost.devices.cluster import Cluster
from learncost.devices.cluster import cluster as find_cluster
from learncost.devices.figure import Figure
from learncost.devices.sustained import sustained
from learncost.ir.dataclass import HIDDEN, Key, Serializable, attributes, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.precision import stored, without_autocast
from learncost.models.sizes import check_size
from learncost.reports.memory.engines import GRAPH
from learncost.reports.memory.types import RESERVED, bytes_of, excess, without_reserve
from learncost.reports.request import ADAPTING, Request, takes_request
from learncost.reports.run import check_tokens, prepare
from learncost.reports.search.space import SearchSpace
from learncost.reports.sheet import (
    WIDTH,
    AtLength,
    Sheet,
    TableColumn,
    batch_text,
    number,
    seconds_of,
    significant,
    size_of,
    sizes_of,
    table,
)

if TYPE_CHECKING:
    from learncost.reports.run_cost.record import RunCost
    from learncost.reports.search.export import Export

SHOWN = 8
"""The configurations that are shown by default."""

TOKENS = 2**22
"""Tokens of a step by default: about as many as GPT-3 175B had, 3.2 million (Brown et al. 2020, table 2.1)."""

DAY = 86400.0


_USAGE = attributes(
    **{name: f"parallel.{name}" for name in ("chunks", "microbatch", "microbatches")},
    memory="peak",
    **{name: name for name in ("seconds", "computing", "waiting", "bubble", "once")},
    tokens_per_second_per_device="tokens_per_second",
)


MOST = 10**7
"""Devices, sequences of a step, and configurations that are shown."""


@dataclass(frozen=True)
class FoundConfig(Serializable):
    """A configuration that fits: the time and memory of a step, and why it is slower than the best."""

    zero: str
    plan: str
    precision: str
    step: StepUsage = field(metadata=Key(form=_USAGE, inline=True).field)
    days: float | None
    worse: str
    context: str = field(default=NO_CONTEXT_PARALLELISM, metadata=Key(after="plan").field)
    command: str = ""  # the command line that asks about this step alone
    # the peak of the fullest device by what it holds
    split: Mapping[str, int] = field(default_factory=dict, metadata=Key(after="step").field)

    @property
    @Key(after="schema")
    def mesh(self) -> Mapping[str, int]:
        """Return the devices along each axis of the mesh."""
        return self.step.parallel.mesh

    @property
    def time(self) -> float:
        """The seconds of a step."""
        return self.step.seconds

    @property
    def peak(self) -> int:
        """The bytes on the fullest device."""
        return self.step.peak

    @property
    @Key(after="precision")
    def schedule(self) -> str:
        """Return the schedule of the pipeline; empty without one."""
        return self.step.parallel.schedule if self.step.parallel.stages > 1 else ""


@dataclass(frozen=True, repr=False)
class Search(AtLength):
    """The parallel configurations of a training on a cluster, the fastest first.

    Attributes
    ----------
    model
        The model, by name.
    cluster
        The cluster.
    devices
        The number of devices.
    batch_size
        Sequences of a step, of all devices.
    seq_len
        Tokens of a sequence.
    tokens
        Tokens of the whole training; None where they were not given.
    memory
        Bytes that a device has.
    found
        The configurations that fit, each with its `time` and `peak`, `step`, `days` and why it is worse than the best.
    fit
        The number of configurations that fit.
    too_large
        The number of configurations that do not fit.
    nearest
        If none fits, the smallest bytes that one needs, and its configuration.
    refused
        The reasons why the model is not sharded over some axes.
    source
        The source of the rates of matrix products.
    price_per_hour
        The price of one device per hour; None where it was not given.
    precision
        The precision of the step.
    exported
        The fastest configuration as the text of a trainer's file, if one was asked for.

    Examples
    --------
    >>> found = lc.search("gpt2", on="DGX-H100", devices=8)
    >>> found.fit > 0
    True
    """

    _schema = 1

    model: str
    cluster: Cluster
    devices: int
    batch_size: int
    seq_len: int
    tokens: int | None
    memory: float
    found: tuple[FoundConfig, ...] = field(metadata=Key(after="refused").field)
    fit: int
    too_large: int
    source: str = field(metadata=Key("assumed", form=lambda source: [*ASSUMED.values(), source], after="found").field)
    nearest: tuple[int, str] | None = field(
        default=None, metadata=Key(form=lambda found: found and {"memory": found[0], "configuration": found[1]}).field
    )
    refused: tuple[str, ...] = ()
    _fastest: Request | None = field(default=None, metadata=HIDDEN)  # the question of the fastest configuration alone
    price_per_hour: float | str | None = field(default=None, metadata=HIDDEN)
    precision: str = field(default="", metadata=HIDDEN)
    exported: Export | None = field(default=None, metadata=HIDDEN)

    @cached_property
    def run(self) -> RunCost:
        """The cost of the training with the fastest configuration, as `run_cost`; without tokens, of one step.

        Raises `InputError` if none fits.
        """
        if self._fastest is None:
            raise InputError(self._none())
        from learncost.reports.run_cost.run_cost import CONVENTION, RunAssumptions, run_over  # is built on this module
        from learncost.reports.search.spread import SpreadStep

        best, memory, placed = self.best, float(self.cluster.device.ram), str(self._fastest.place)
        many = SpreadStep(best.step, placed, memory, best.step.peak, best.split, best.plan)
        request = replace(self._fastest, devices=self.devices, price_book=CONVENTION)
        return run_over(request, RunAssumptions(price_per_hour=self.price_per_hour), many)

    @property
    @Key("run_cost", optional=True, after="schema")
    def figures(self) -> Mapping[str, Figure]:
        """The figures of that cost, by name; empty if none fits."""
        return self.run.figures if self._fastest else {}

    @property
    def best(self) -> FoundConfig:
        """The fastest configuration. Raises `InputError` if none fits."""
        if not self.found:
            raise InputError(self._none())
        return self.found[0]

    def _rate(self, found: FoundConfig) -> float:
        """Return the tokens per second of the training, whose last step may be partly filled; else of a step."""
        if self.tokens is None or found.days is None:
            return found.step.tokens / found.step.seconds
        return self.tokens / (found.days * DAY)

    def _none(self) -> str:
        assert self.nearest is not None
        size, parallel = self.nearest
        several = "1 device" if self.devices == 1 else f"{self.devices:,} devices"
        needed, present = sizes_of(size, int(self.memory))
        return (
            f"{self.model} does not fit on {several} of {present}: {parallel} needs the "
            f"least, {needed} per device; use more devices, a smaller batch, or shorter sequences"
        )

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the table: a row for each configuration, and below it why it is slower than the best."""
        title = (
            f"{self.model} in {self.precision} on {self.devices:,} x {self.cluster.device.name} ({self.cluster.name}), "
            f"{batch_text(self.batch_size, self.seq_len, length_note=self._length_note)} a step"
        )
        if not self.found:
            assert self.nearest is not None
            title += excess(self.nearest[0], self.memory)
            return (Sheet(title, (), (), (self._none(), *self.refused)),)
        best, several = self.found[0], len({each.precision for each in self.found}) > 1
        columns = (
            TableColumn("", lambda each: str(self.found.index(each) + 1), words=True),
            TableColumn("mesh", lambda each: _named(each, several), words=True),
            TableColumn("schedule, plan", _schedule, words=True),
            TableColumn(
                "microbatches", lambda each: f"{each.step.parallel.microbatch} x {each.step.parallel.microbatches}"
            ),
            TableColumn("memory", lambda each: size_of(each.step.peak)),
            TableColumn("a step", lambda each: seconds_of(each.step.seconds)),
            TableColumn("tokens/s", lambda each: number(round(self._rate(each)))),
            TableColumn("training", lambda each: _days(each.days), shown=self.tokens is not None),
        )
        answer = (
            f"{with_zero(best.step.parallel, best.zero, ' with ')} is the fastest of {self.fit:,} configurations that "
            f"fit; {number(self.too_large) if self.too_large else 'none'} need{'s' * (self.too_large < 2)} more than "
            f"{size_of(int(self.memory))} per device."
        )
        answer += f" It reaches {self.run.answer(total=self.tokens is not None)}"
        notes = self._notes()
        return (table(title, columns, self.found, notes, answer, lambda each: "bold" if each is best else ""),)

    @property
    def _reserve(self) -> str:
        """Return the remark on the memory that is kept free; empty under a budget."""
        ram, (least, most) = self.cluster.device.ram, RESERVED[GRAPH]
        if int(self.memory) != without_reserve(ram, GRAPH):
            return ""
        return (
            f", for which {' of '.join(sizes_of(int(self.memory), int(ram)))} are available: with the allocator's "
            f"reserve, NCCL and contexts, published training runs took {least} to {most} times as much"
        )

    def _notes(self) -> tuple[str, ...]:
        low, high = self.found[0].step.low, self.found[0].step.high
        why = [f"{place + 1} is {each.worse}." for place, each in enumerate(self.found) if each.worse]
        return (
            f"Time of 1: {_why(self.found[0].step)}.",
            f"1 in detail: {self.found[0].command}",
            *why,
            *dict.fromkeys(f"{padded}." for each in self.found for padded in each.step.padded),
            *self.refused,
            f"Memory is that of the sharded step's arrays{self._reserve}. Estimated times are accurate to about "
            f"{low:.2g}x-{high:.2g}x: {self.source}.",
            f"Assumed: {'; '.join(ASSUMED.values())}.",
            "Collectives use a ring, or in-switch reduction where available (learncost list clusters); the last mesh "
            "axis is the innermost.",
            "zero-1 shards optimizer states over dp, ep and cp, zero-3 also weights and gradients; tp includes "
            "sequence parallelism, cp uses zigzag order. learncost place shows the sharded step of a mesh.",
        )


def _named(found: FoundConfig, with_precision: bool) -> str:
    """Return the mesh of a configuration with its ZeRO stage."""
    mesh = with_zero(found.step.parallel, found.zero).replace(",", " ")
    return f"{mesh} {found.precision}" if with_precision else mesh


def with_zero(parallel: ParallelConfig, zero: str, between: str = " ") -> str:
    """Return a mesh with its ZeRO stage, if there are several devices to shard over."""
    return f"{parallel}{between}{zero}" if any(parallel.mesh.get(axis, 1) > 1 for axis in ZERO_AXES) else str(parallel)


def _days(days: float | None) -> str:
    if days is None:
        return ""
    return f"{significant(days)} days" if days >= 1 else seconds_of(days * DAY)


def _schedule(each: FoundConfig) -> str:
    parallel = each.step.parallel
    schedule = (
        "" if parallel.stages == 1 else parallel.schedule + (f" x {parallel.chunks}" if parallel.chunks > 1 else "")
    )
    return ", ".join(filter(None, (schedule, CONTEXTS[each.context].title, recomputation(each.plan)))) or "no pipeline"


def recomputation(plan: str) -> str:
    """Return the description of a plan's recomputation."""
    return next(title for text, title in reversed(PLANS.items()) if f"{plan},".startswith(f"{text},"))


def _why(step: StepUsage) -> str:
    """Return the parts of the best step's time."""
    parts = step.causes
    return "; ".join(f"{name} {seconds_of(size)}" for name, size in parts.items() if size > 0.005 * step.seconds)


def _worse(step: StepUsage, best: StepUsage) -> str:
    """Return why a step is slower than the best one: the parts that grew, the largest first."""
    ours, theirs = step.causes, best.causes
    more = sorted(((ours[name] - theirs[name], name) for name in ours), reverse=True)
    causes = [f"{seconds_of(size)} more {name}" for size, name in more if size > 0.002 * best.seconds][:2]
    extra = step.seconds / best.seconds - 1
    if extra < 0.0005:
        return "as fast as 1"
    return f"{100 * extra:.1f} % slower: {', '.join(causes)}" if causes else f"{100 * extra:.1f} % slower"


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause the cyclic garbage collector: tables of a search live to its end, and collections took a fifth of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()  # moves all objects to the oldest generation, without looking at them
            gc.unfreeze()
            gc.enable()


@takes_request("model on devices * tokens batch_size seq_len precision budget")
def search(
    request: Request,
    devices: int | str | None = None,
    top: int | str = SHOWN,
    price_per_hour: float | str | None = None,
    export: str | None = None,
) -> Search:
    """Find the fastest parallel configurations of a training step on a cluster: meshes, schedules and plans that fit.

    Parameters
    ----------
    on
        A cluster (`learncost list clusters`), or a file in TOML or JSON that describes one.
    devices
        The number of devices, over all nodes.
    tokens
        Tokens in the whole training run, such as 15e12: adds the days that each configuration takes.
    batch_size
        The global batch size in sequences. The default is about 4 million tokens.
    precision
        Precisions to try, comma-separated. The default is bf16-masters on a device with bf16.
    budget
        Available memory of a device, as 80GB or 75GiB. The default is the device's memory, less the smallest reserve
        for the allocator, NCCL and CUDA contexts in a published training run.
    top
        The number of configurations to show.
    export
        The trainer for which the fastest configuration that it supports is written as a file: torchtitan, megatron,
        deepspeed or accelerate.

    Returns
    -------
    Search
        The configurations that fit, with their memory and time, and the reason why each is slower than the best.

    Raises
    ------
    InputError
        If the cluster is unknown, the batch cannot be split over the devices, or the trainer supports none
        of those shown.

    Commands
    --------
    learncost search llama-3-8b --on "DGX H100" --devices 64 --tokens 15e12
        The meshes and schedules of 64 devices, the fastest first.
    learncost search llama-3-8b --on "DGX H100" --devices 64 --export torchtitan -o train.toml
        The fastest of these that torchtitan supports, as its configuration file.

    Examples
    --------
    >>> found = lc.search("llama-3-8b", "DGX H100", 8, batch_size=8, seq_len=4096, top=1)
    >>> found.best.step.parallel.devices
    8
    """
    on, tokens, budget = request.on, request.tokens, request.budget
    if on is None:
        raise InputError("search requires a cluster: --on NAME (see `learncost list clusters`)")
    if devices is None:
        raise InputError("search requires the number of devices, for example --devices 64")
    if request.procedure != "bp":
        raise InputError(f"search supports bp only, not {request.procedure}: it recomputes where memory requires it")
    cluster = find_cluster(on)
    if export is not None:
        from learncost.reports.search.export import first_exported, target_of  # is built on this module

        target = target_of(export)
    number_of = check_size("devices", devices, MOST)
    few = check_size("top", top, MOST)
    total = None if tokens is None else check_tokens("tokens", tokens)
    kinds = [stored(name.strip()) for name in (request.precision or request.usual_precision(trains=True)).split(",")]
    if cast := next((kind for kind in kinds if kind.autocast), None):
        raise InputError(
            f"search does not support autocast: give --precision {without_autocast(cast)} in place of {cast.name}"
        )
    run = prepare(of_one(request.in_precision(kinds[0].name))).with_separate_trip_counts()
    name = run.model.configuration.name
    if not run.model.learns:
        raise InputError(
            f"search requires a model with a loss, and {name} has none: give --architecture, or another model"
        )
    if run.model.two_sided:
        raise InputError(
            f"search supports one stack of blocks, not the encoder and decoder of {name}: give run-cost a mesh"
        )
    length = run.model.tokens(run.axes) // run.axes["B"]
    batch = batch_of(request.batch_size, length, number_of)
    memory = float(bytes_of("budget", budget) if budget is not None else without_reserve(cluster.device.ram, GRAPH))
    rates = {kind.values: sustained(cluster.device, kind.values) for kind in kinds}
    steps = []
    space = SearchSpace(run.model, run.axes, cluster, kinds)
    with _without_collections():
        looked = space.look(number_of, batch, memory)
        for each, _ in space.fastest(looked.fit, rates, few):
            account = space.account(each)
            step = step_of(account, each.parallel, run.axes, cluster, rates[each.structure.kind.values], length)
            steps.append((each, account, step))
    refused, nearest = space.refused, looked.nearest
    if {"ep", "tp"} <= {*space.axes}:
        refused += ("Meshes with both ep and tp are not modelled.",)
    shown_ways = sorted(steps, key=lambda found: found[-1].seconds)[:few]
    per_day = None if total is None else -(-total // (batch * length)) / DAY  # whole steps, as in `run_cost`
    best = shown_ways[0][-1] if shown_ways else None
    seq_len = request.seq_len if run.model.configuration.layer else length  # the sizes of a table are given by letter
    asked = replace(request, batch_size=batch, seq_len=seq_len, tokens=total or batch * length, budget=None)
    requests = [_alone(asked, each, cluster) for each, *_ in shown_ways]
    return Search(
        run.model.configuration.name,
        cluster,
        number_of,
        batch,
        length,
        total,
        memory,
        tuple(
            FoundConfig(
                each.structure.zero,
                each.structure.plan,
                each.structure.kind.name,
                step,
                None if per_day is None else step.seconds * per_day,
                "" if step is best or best is None else _worse(step, best),
                each.structure.context,
                alone.command("run-cost", price_per_hour=price_per_hour),
                split_of(account, step, run.axes),
            )
            for (each, account, step), alone in zip(shown_ways, requests, strict=True)
        ),
        len(looked.fit),
        looked.too_large,
        rates[kinds[0].values].source,
        None if nearest is None else (nearest.memory, with_zero(nearest.parallel, nearest.structure.zero, " with ")),
        refused,
        requests[0] if requests else None,
        price_per_hour,
        " or ".join(kind.name for kind in kinds),
        None if export is None else first_exported(requests, cluster, target),
        _length_note=run.length_note,
    )


def of_one(request: Request) -> Request:
    """Return the request with one sequence and no mesh, for the model, what is trained of it, and its length."""
    kept = {name: getattr(request, name) for name in ("seq_len", "target_len", "dropout", *ADAPTING)}
    return Request(request.model, batch_size=1, **kept, precision=request.kind().name, sizes=request.sizes)


def _alone(request: Request, found: Candidate, cluster: Cluster) -> Request:
    """Return the request of a found configuration, which `run-cost` answers."""
    parallel, structure = found.parallel, found.structure
    mesh = ",".join(f"{axis}={size}" for axis, size in parallel.mesh.items())
    pipeline: dict[str, Any] = {
        "schedule": parallel.schedule,
        "chunks": parallel.chunks if parallel.chunks > 1 else None,
    }
    return replace(
        request.in_precision(structure.kind.name),
        on=cluster.name,
        mesh=mesh,
        place=structure.text,
        plan=structure.plan,
        microbatch=parallel.microbatch,
        **(pipeline if parallel.stages > 1 else {}),
    )


def batch_of(batch_size: object, length: int, devices: int) -> int:
    """Return the sequences of a step: as requested, or about 4 million tokens, equally many for each device."""
    if batch_size is not None:
        return check_size("batch_size", batch_size, MOST)
    each, largest = -(-max(1, TOKENS // length) // devices), max(MICROBATCHES)
    return devices * (each if each < largest else each + -each % largest)
