"""A step over many devices: memory of each, time by cause, the pipeline's schedule, the placed table."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from learncost.autoshard.candidates import structures
from learncost.autoshard.step import ASSUMED, PIPELINE, StepUsage
from learncost.devices.cluster import Cluster, cluster_with
from learncost.devices.cluster import cluster as find_cluster
from learncost.devices.device import device as find_device
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.loop import Loop
from learncost.ir.precision import precision_of
from learncost.models.sizes import check_size
from learncost.ops.collectives import is_collective
from learncost.program.pipeline import run
from learncost.program.pipeline import schedule as schedule_of
from learncost.reports.memory.types import excess
from learncost.reports.placed import place as placed_table
from learncost.reports.request import Request, takes_request
from learncost.reports.search.search import FoundConfig, Search, recomputation, search
from learncost.reports.search.spread import SpreadStep, described, spread
from learncost.reports.sheet import number, seconds_of, size_of
from learncost.sharding.collective import reason_of
from learncost.viz.views.picture import MADE, BarRow, Bars, Chart, Lanes, Picture, TableRows, TextLines

DEVICES = 8
"""Devices that are looked at first."""

INITIAL_CLUSTER = "DGX H100"
"""The initial cluster, where the device has none."""

PASSES = {"F": "forward", "B": "backward", "W": "weight update"}


@takes_request(
    "model mesh place placement cluster devices schedule chunks microbatch batch_size seq_len precision on procedure "
    "target_len optimizer dropout plan train train_layers lora",
    dropout=None,
)
def over_devices(request: Request, cluster: str | None = None) -> Picture:
    """Return a training step over a mesh, or over the fastest meshes found.

    Parameters
    ----------
    mesh
        The devices, as axes with how many there are along each, such as pp=2,dp=2,tp=2. Without it the fastest ways
        are shown to spread the step over `devices`.
    cluster
        The cluster whose devices and links these are. The default is one of the device of the page.
    devices
        How many devices there are, where no mesh is given. The default is 8.
    schedule
        The schedule of the pipeline, pp of the mesh: gpipe, 1f1b, interleaved, with two stages on a device, or
        zb-h1.
    batch_size
        Sequences of a step, of all devices together. The default is about 4 million tokens.
    on
        The device of the page.

    Raises
    ------
    InputError
        As for `lc.search` and `lc.place`.
    """
    others = ("target_len", "optimizer", "dropout", "plan", "train", "train_layers", "lora")
    if named := [name for name in others if getattr(request, name) is not None]:
        raise InputError(f"{named[0]} is not supported over a mesh: remove it")
    group = _cluster(cluster, str(request.on) if request.on else None)
    several = check_size("devices", request.devices or DEVICES)
    kind = replace(request, on=group).kind().name
    request = replace(request.in_precision(kind), dropout=0.0, devices=None)
    if request.mesh is None and not request.place and not request.placement:
        try:
            answer = search(replace(request, on=group, schedule="1f1b"), several)
        except InputError:
            request = replace(request, mesh=f"dp={several}")  # the simplest, where nothing is searched
        else:
            return _searched(request, answer)
    many = spread(replace(request, devices=1), group)
    step = many.step
    notes = (
        f"Over {described(step)} on {group.name}; cut by: {many.placed}.",
        f"Estimated times are accurate to {step.low:.2g}x-{step.high:.2g}x. {'; '.join(ASSUMED.values())}.",
    )
    command = replace(request, on=group.name).command("run-cost", tokens="1e12")
    title = (
        f"Over {step.parallel.devices:,} devices a step of {step.tokens:,} tokens takes {seconds_of(step.seconds)}, "
        f"and a device holds {size_of(step.peak)}{excess(step.peak, many.memory)}"
    )
    lead = "Every device runs the same table on its part: what is cut over the mesh says what it does, holds and sends."
    return Picture(title, lead, (*_taken(many), *_placed(request, many)), notes, command)


def _cluster(name: str | None, on: str | None) -> Cluster:
    if name:
        return find_cluster(name)
    try:
        return cluster_with(find_device(on)) if on else find_cluster(INITIAL_CLUSTER)
    except InputError:  # its links are not known
        return find_cluster(INITIAL_CLUSTER)


def _causes(step: StepUsage) -> dict[str, float]:
    """Return seconds by cause, without rounding residues."""
    return {name: seconds for name, seconds in step.causes.items() if seconds > 1e-9 * step.seconds}


def _searched(request: Request, answer: Search) -> Picture:
    """Return the configurations that fit, the fastest first."""
    command = replace(request, on=answer.cluster.name).command("search", devices=answer.devices)
    sequences = f"{answer.batch_size:,} sequence{'s' if answer.batch_size > 1 else ''}"
    what = f"{sequences} of {answer.seq_len:,} tokens a step on {answer.cluster.name}"
    if not answer.found:
        raise InputError(str(answer.sheets()[0].notes[0]))
    best = answer.found[0]
    parallel = f"{best.step.parallel} with {best.zero}"
    title = f"Over {answer.devices:,} devices {parallel} is fastest: {seconds_of(best.step.seconds)} a step"
    lead = f"The fastest of {answer.fit:,} configurations that fit, for {what}. Choose one, or set the mesh yourself."
    picks = [_pick(request.model, each) for each in answer.found]
    time, held = (
        tuple(
            BarRow(_name(each), parts(each.step), choose=pick) for each, pick in zip(answer.found, picks, strict=True)
        )
        for parts in (_causes, _held)
    )
    present = answer.memory, f"A device has {size_of(int(answer.memory))}"
    charts = (
        Bars("Time of a step by cause", "seconds", time),
        Bars("Memory of the fullest device", "bytes", held, present, MADE),
    )
    notes = (
        *(f"{_name(each)} is {each.worse}." for each in answer.found if each.worse),
        *answer.refused,
        "zero-1 cuts the optimizer's states over dp, zero-3 weights and gradients, too.",
    )
    return Picture(title, lead, charts, notes, command)


def _name(answer: FoundConfig) -> str:
    """Return the name of a configuration."""
    parallel = answer.step.parallel
    schedule = (
        "" if parallel.stages == 1 else parallel.schedule + (f" x {parallel.chunks}" if parallel.chunks > 1 else "")
    )
    return ", ".join(filter(None, (f"{parallel} {answer.zero}", schedule, recomputation(answer.plan))))


def _pick(model: Any, answer: FoundConfig) -> dict[str, str]:
    """Return the flags that select a configuration; none if its plan is not available with --mesh."""
    parallel = answer.step.parallel
    axes = [axis for axis in parallel.mesh if axis != PIPELINE]
    every = structures(model, [precision_of(answer.precision)], [answer.plan], axes, [answer.context])
    structure = next(each for each in every if each.zero == answer.zero)
    if recomputation(structure.plan) or structure.plan != answer.plan:  # balanced or ring attention is a plan, too
        return {}
    flags = {"mesh": str(parallel), "place": structure.text, "microbatch": str(parallel.microbatch)}
    pipeline = {"schedule": parallel.schedule} | ({"chunks": str(parallel.chunks)} if parallel.chunks > 1 else {})
    return flags | (pipeline if parallel.stages > 1 else {})


def _held(step: StepUsage, device: int | None = None) -> dict[str, float]:
    """Return the bytes of a device by part, by default of the fullest."""
    stage = max(step.stages, key=lambda stage: stage.peak) if device is None else step.stages[device]
    static = stage.static
    parts = {
        "weights": static.weights,
        "master weights": static.masters,
        "optimizer state": static.states,
        "gradients": static.gradients,
        "activations": stage.activations,
        "workspace": stage.workspace,
    }
    return {name: int(size) for name, size in parts.items() if size}


def _taken(many: SpreadStep) -> list[Chart]:
    """Return the step's time by cause, the memory of each device, the pipeline, and the traffic."""
    step = many.step
    held = [_held(step, device) for device in range(len(step.stages))]
    word = "stage" if step.parallel.chunks == 1 else "device"
    rows = list[BarRow]()
    for parts, group in groupby(range(len(held)), held.__getitem__):
        places = list(group)
        name = f"{word} {places[0] + 1}" + (f" to {places[-1] + 1}" if len(places) > 1 else "")
        rows.append(BarRow(name if len(held) > 1 else "every device", parts))
    charts: list[Chart] = [
        Bars("Time of a step by cause", "seconds", (BarRow("a step", _causes(step)),)),
        Bars(
            "Memory of a device", "bytes", tuple(rows), (many.memory, f"A device has {size_of(int(many.memory))}"), MADE
        ),
    ]
    if step.parallel.stages > 1:
        charts.append(_pipeline(step))
    if step.sent:
        sent = tuple(
            (row.mesh_axis, row.op, row.role, row.calls, row.sent, row.link, row.seconds)
            for row in sorted(step.sent, key=lambda row: -row.sent)
        )
        columns = (
            ("mesh axis", ""),
            ("collective", ""),
            ("of", ""),
            ("calls", "times"),
            ("sent", "bytes"),
            ("over", ""),
            ("time", "seconds"),
        )
        charts.append(TableRows("What a device sends in a step", columns, sent))
    return charts


def _pipeline(step: StepUsage) -> Lanes:
    """Return the passes of the first microbatches on every stage."""
    parallel = step.parallel
    few = min(parallel.microbatches, 2 * parallel.stages + (2 if parallel.chunks == 1 else 0))
    order = schedule_of(parallel.schedule, parallel.stages, few, parallel.chunks)
    forward, backward, update = (step.passes[name] for name in "FBW")
    ran = run(order, forward, backward, update, step.stages[0].sent)
    word = "stage" if parallel.chunks == 1 else "stages"
    lanes = tuple(
        (
            f"{word} {' and '.join(str(chunk * parallel.stages + device + 1) for chunk in range(parallel.chunks))}",
            tuple((PASSES[each.kind], str(each.microbatch + 1), begin, end) for each, begin, end in times),
        )
        for device, times in enumerate(ran.times)
    )
    which = (
        f"the first {few} of {parallel.microbatches:,} microbatches"
        if few < parallel.microbatches
        else "all microbatches"
    )
    return Lanes(f"The pipeline, {parallel.schedule}: {which}, by their numbers", "seconds", lanes)


def _placed(request: Request, many: SpreadStep) -> list[Chart]:
    """Return the table of every device, with the bytes of its collectives."""
    inner = {axis: size for axis, size in many.step.parallel.mesh.items() if axis != PIPELINE and size > 1}
    if not inner:
        return []
    text = ",".join(f"{axis}={size}" for axis, size in inner.items())
    try:
        answer = placed_table(replace(request, mesh=text, batch_size=None))
    except InputError as error:
        return [TextLines(f"The table of every device is not shown: {error}", "bytes", ())]
    rows, phase = list[tuple[int, str, bool, int | None, str]](), ""
    for depth, line, collective in answer._statements():
        if not isinstance(line, Loop) and line.meta.phase != phase:
            phase = line.meta.phase
            rows.append((0, phase.replace("_", " "), False, None, ""))
        moves = is_collective(line)
        why = reason_of(line)
        times = f", {number(collective.times)} times" if collective and collective.times > 1 else ""
        amount = collective.payload_bytes if collective else None
        rows.append((depth + 1, str(line).partition("\n")[0], moves, amount, f"{why}{times}" if moves else ""))
    return [TextLines(f"The table of every device over {text}, with its collectives", "bytes", tuple(rows))]
