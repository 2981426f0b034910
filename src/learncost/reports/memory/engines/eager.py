"""The engine eager: PyTorch's autograd, as a model's forward pass in PyTorch's operators on a tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from learncost.ir.errors import InputError
from learncost.ir.polynomial import size_of
from learncost.ir.precision import BYTES
from learncost.models.model import Model
from learncost.models.module import learns_otherwise, module_of, runs_otherwise
from learncost.procedures.procedure import procedure
from learncost.program.allocation_log import Allocation
from learncost.program.autograd import (
    BUCKETS,
    GATHERED,
    MESSAGES,
    Itself,
    Module,
    RunUsage,
    StepOptions,
    Tape,
    Wrapping,
    run_step,
    step_weights,
)
from learncost.reports.memory.engine import Engine, MemoryUse, at_line, bytes_of, grouped, refusal
from learncost.reports.memory.engines.logged import Logs
from learncost.reports.memory.step import MemoryStep
from learncost.sharding.presets import chosen

TRAINED = ("fp32", "fp64", "bf16", "fp16")
"""The types of values that PyTorch trains in."""

WITHOUT_BUFFERS = "Temporary buffers inside kernels are not included."

_CONVENTION = (
    "Peak allocated memory of {} in eager PyTorch on {}, as torch's allocator would report it. {}. Each operator saves "
    f"the tensors that its derivative reads. {WITHOUT_BUFFERS} {{}}"
)


@dataclass(frozen=True)
class OptimizerStepping:
    """A way in which PyTorch's optimizers step.

    name       of the runner
    how        the optimizer's implementation: fused, foreach, for-loop
    new        the rule of new weights and states; `gradients`, that of gradients
    gone       how long gradients are there, as the convention has it, and `hooked`, where the optimizer steps
    said       what else is not in it
    tape       on which the step runs
    place      what that stands for; `device`, as PyTorch calls it
    alone      why it has nothing to say of one device among many
    """

    name: str
    how: str
    new: str
    said: str = ""
    hooked: str = ""
    gradients: str = "to the end"
    gone: str = "Gradients live until optimizer.step()"
    tape: Callable[[int, int | None], Tape] = Tape
    alone: str = ""
    place: str = "a CPU"
    device: str = "cpu"


WRAPPED = {"ddp": "", "fsdp": "dp", "hsdp": "shard"}
"""The placements that modules of PyTorch have: along which axis of the mesh weights are cut."""


def _wrapping(step: MemoryStep) -> Wrapping | None:
    """How PyTorch wraps the module, of a device among many; None where no wrapper does what is asked for."""
    if not step.over:
        return None
    clauses, sizes, kind = {*step.over.placed.clauses}, step.over.placed.mesh.sizes, step.kind
    name = next((name for name in WRAPPED if {*chosen(None, name)} == clauses), None)
    if name is None:
        return None
    axis = WRAPPED[name]
    if not axis:
        return Wrapping(1, kind.weight, kind.weight)
    return Wrapping(sizes[axis], 0 if kind.master else kind.weight, kind.master or kind.weight)


def _here(step: MemoryStep, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes of a device: its own sequences."""
    return {**sizes, "B": sizes["B"] // step.shares.get("B", 1)} if step.over else sizes


def _run(
    way: OptimizerStepping, step: MemoryStep, sizes: Mapping[str, int], stop_at: int | None = None
) -> tuple[Tape, Module]:
    model, kind = _plain(step.model), step.kind
    recompute = "forward again" in procedure(step.procedure).moves
    module = module_of(model, step.module, recompute, kind.weight)
    settings = StepOptions(
        module,
        step.state + step.master,
        kind.weight,
        frozenset(model.learning),
        frozenset(name for name in model.masks if model.table.values[name].role == "mask"),
        module.checkpoint if recompute else "",
        0 if model.two_sided else model.configuration.sizes.get("num_hidden_layers", 0),
        _stepping(way, step),
        {weight.weight: weight.bytes(step.run.axes) for weight in model.quantized},
        _wrapping(step),
    )
    tape = way.tape(kind.value, stop_at)
    run_step(tape, model.table, _here(step, sizes), settings)
    return tape, module


def _ran(way: OptimizerStepping, step: MemoryStep, sizes: Mapping[str, int]) -> RunUsage | None:
    """The step as the module that was read runs it; None where the module is another one, or cannot."""
    if step.module != Itself.name:
        return None
    key = way.name, *sorted(sizes.items())
    if step.ran and step.ran[0] == key:
        return step.ran[1]
    try:
        running = _ran_on(way.device, way, step, sizes)
    except InputError as error:
        if way.device != RunUsage().device:  # there is no such device here, or not for all that it does
            step.instead = str(error)
            return _ran(replace(way, device=RunUsage().device), step, sizes)
        if step.module_asked:
            raise
        step.module, step.instead = Module.name, str(error)
        return None
    step.ran = key, running
    return running


def _ran_on(device: str, way: OptimizerStepping, step: MemoryStep, sizes: Mapping[str, int]) -> RunUsage:
    """The step as the module runs it on a device. Raises `InputError` where it cannot."""
    model, layer = step.model, step.model.configuration.layer
    assert layer is not None
    assert layer.steps is not None
    running = RunUsage(device, (layer.table.weights, model.learning) if learns_otherwise(model) else None)
    running.label = "optimizer state"
    state = [Allocation(running.account, step.state + step.master)]
    if step.over:
        running.label = BUCKETS
        running.given[BUCKETS] = BUCKETS
        learned = bytes_of(model.table, model.learning, sizes, lambda _: step.kind.weight)
        state.append(Allocation(running.account, learned))
    running.hooked, width = bool(way.hooked), BYTES[step.kind.states]
    running.steps = lambda weights: step_weights(
        *_stepping(way, step), weights, lambda elements: Allocation(running.account, elements * width)
    )
    layer.steps(_here(step, sizes), step.kind.values, running)
    del state
    return running


def _stepping(way: OptimizerStepping, step: MemoryStep) -> tuple[str, str]:
    """The optimizer, and how it steps; where PyTorch has none fused, as it steps where nobody says how."""
    usual = "foreach" if way.device == "cuda" else "for-loop"
    return step.optimizer.name, usual if way.how == "fused" and step.optimizer.name in UNFUSED else way.how


def _steps(way: OptimizerStepping, step: MemoryStep) -> str:
    """The optimizer's step in words: AdamW with fused=True."""
    optimizer, how = _stepping(way, step)
    ops = {"fused": "with fused=True", "foreach": "with foreach=True", "for-loop": "with foreach=False"}
    unfused = ", since PyTorch has no fused implementation" if how != way.how else ""
    return f"{way.said}{CLASSES[optimizer]} {ops[how]}{way.hooked}{unfused}."


CLASSES = {"sgd": "SGD", "momentum": "SGD with momentum", "adamw": "AdamW", "rmsprop": "RMSprop"}
"""The optimizers of `torch.optim`, as it calls them."""

UNFUSED = ("rmsprop",)
"""Those of which PyTorch has no fused step."""


def _plain(model: Model) -> Model:
    """The model with the weights that codes stand for, as its modules have them."""
    return replace(model, table=model.plain) if model.plain else model


def _worst(way: OptimizerStepping, step: MemoryStep, sizes: Mapping[str, int]) -> tuple[int, str]:
    """The peak and its line, remembered by the step."""
    key = way.name, step.module, *sorted(sizes.items())
    if key not in step.taped:
        running = _ran(way, step, sizes)
        account = running.account if running else _run(way, step, sizes)[0].account
        step.taped[key] = account.peak, str(account.line)
    return step.taped[key]


def _peak(way: OptimizerStepping, step: MemoryStep, sizes: Mapping[str, int]) -> int:
    return _worst(way, step, sizes)[0]


def _takes(way: OptimizerStepping, step: MemoryStep, sizes: Mapping[str, int]) -> MemoryUse:
    if running := _ran(way, step, sizes):
        return _taken(way, step, running)
    peak, line = _worst(way, step, sizes)
    tape, module = _run(way, step, sizes, peak)
    allocations = tuple((size, str(label)) for size, label in tape.account.allocations)
    backward_allocations = sum(
        size for size, label in allocations if label.endswith("backward") or label == "optimizer step"
    )
    table = _plain(step.model).table
    weights = sum(size for size, label in allocations if label in table.weights)
    parts = {"weights": weights, "gradients": tape.gradients, "optimizer state": step.state}
    if step.master:
        parts["master weights"] = step.master
    beside = {part: part for part in (BUCKETS, GATHERED, MESSAGES) if step.over}
    parts |= {part: size for part in beside if (size := sum(size for size, label in allocations if label == part))}
    parts["workspace"] = backward_allocations - tape.gradients
    parts["activations"] = peak - sum(parts.values())
    convention = _CONVENTION.format(module.said, way.place, way.gone, _steps(way, step))
    if wrapping := _wrapping(step):
        convention += f" Wrapped by {wrapping.said}; memory of the communication library is not included."
    if step.instead:
        convention += f" The module itself was not run: {step.instead}."
    inputs = dict.fromkeys(table.inputs, "activations")
    labels = inputs | dict.fromkeys(table.weights, "weights") | beside
    state = {name: size for name, size in (("optimizer state", step.state), ("master weights", step.master)) if size}
    repeats = [line.count for line in table.repeats]
    counts = {int(size_of(count, sizes)): count for count in repeats}
    curve, stays = Logs(tape.account.log, table, labels, state, counts).account()
    return MemoryUse(peak, at_line(line, peak), parts, grouped(allocations), curve, stays, convention)


def _taken(way: OptimizerStepping, step: MemoryStep, running: RunUsage) -> MemoryUse:
    """What a module that ran itself takes."""
    account, there = running.account, running.at_peak()
    parts = dict.fromkeys(("weights", "gradients", "optimizer state", *running.given.values()), 0)
    parts |= {"master weights": step.master} if step.master else {}
    parts |= {"workspace": 0, "activations": 0}
    for array in there:
        passes = array.label.endswith("backward") or array.label == "optimizer step"
        part = running.given.get(array.label) or array.kind or ("workspace" if passes else "activations")
        parts["optimizer state" if array.label == "optimizer state" else part] += array.bytes
    parts["optimizer state"] -= step.master
    state = {name: size for name, size in (("optimizer state", step.state), ("master weights", step.master)) if size}
    table = _plain(step.model).table
    curve, stays = Logs(account.log, table, running.given, state, {}).account()
    allocations = ((array.bytes, array.label) for array in there)
    place = way.place if running.device == way.device else OptimizerStepping.place
    said = _CONVENTION.format(Itself.said, place, way.gone, _steps(way, step))
    if running.most > account.peak:
        said = said.replace(WITHOUT_BUFFERS, "Kernel buffers are listed separately.")
    if step.instead:
        said += f" Not run on {way.place}: {step.instead}."
    moment = at_line(str(account.line), account.peak)
    buffers = max(0, running.most - account.peak) if running.device == "cpu" else None
    return MemoryUse(account.peak, moment, parts, grouped(allocations), curve, stays, said, buffers=buffers)


def _unwrapped(step: MemoryStep) -> str:
    """Why PyTorch has no wrapper for what is asked for of several devices."""
    if (wrapping := _wrapping(step)) is None:
        return (
            f"supports only DDP and FSDP2 over a mesh (--placement {', '.join(WRAPPED)}); use --engine graph or torch "
            "for other placements"
        )
    if wrapping.parts > 1 and step.model.configuration.layer is not None:
        return "cannot find the blocks of an imported module for fully_shard: use --placement ddp, or --engine graph"
    if wrapping.parts > 1 and step.module.endswith("reentrant"):
        return f"does not support fully_shard with --module {step.module}: use --module transformers"
    return (
        "does not support fully_shard of quantized frozen weights"
        if wrapping.parts > 1 and step.model.quantized
        else ""
    )


def _refuses(way: OptimizerStepping, step: MemoryStep) -> str:
    if step.over and (why := _unwrapped(step)):
        return why
    if step.module == Itself.name and (why := _otherwise(step)):
        return why
    if way.hooked and step.optimizer.name in UNFUSED:
        return f"requires a fused optimizer in hooks, and PyTorch has no fused {step.optimizer.name}"
    if step.kind.values not in TRAINED:
        return f"supports activations in {', '.join(TRAINED)} only"
    if why := refusal(step, ()):
        return why
    if step.kind.kept or step.kind.products or step.kind.learned:
        return "does not support quantized weights or activations"
    if step.plan:
        return "does not support plans; --procedure recompute is torch.utils.checkpoint"
    if not procedure(step.procedure).differentiates:
        return "supports bp and recompute (torch.utils.checkpoint of every block) only"
    return ""


def _otherwise(step: MemoryStep) -> str:
    """Why a module that was read cannot run the step itself."""
    if "forward again" in procedure(step.procedure).moves:
        return "runs an imported module by bp only: use --module plain for checkpoints of its blocks"
    why = runs_otherwise(step.model)
    return f"with --module itself {why}" if why else ""


def chosen_engine(way: OptimizerStepping) -> Engine:
    """The runner that steps in a way."""
    rules = {
        "new weights and states": way.new,
        "gradients": way.gradients,
        "kept for backward": "what operators save",
        "temporaries": "results",
    }
    return Engine(
        way.name,
        partial(_peak, way),
        partial(_takes, way),
        rules,
        _CONVENTION,
        partial(_refuses, way),
        plans=("",),
        lengths=True,
        module=True,
        alone=way.alone,
    )


RUNNERS = (
    chosen_engine(OptimizerStepping("eager", "fused", "over the old ones")),
    chosen_engine(OptimizerStepping("eager-foreach", "foreach", "over, by copies")),
    chosen_engine(OptimizerStepping("eager-for-loop", "for-loop", "over, one by one")),
)
