"""The engine eager: PyTorch's autograd, with the model's forward pass as PyTorch's operators on a tape."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from math import prod
from operator import le
from typing import TYPE_CHECKING

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.loop import walk
from learncost.ir.polynomial import base, shape_of, size_of
from learncost.ir.precision import BYTES, without_autocast
from learncost.liveness import LiveInterval, ProgramPoint
from learncost.models.model import Model, run_sizes
from learncost.models.module import module_of, trains_other_weights, why_not_runnable
from learncost.ops import is_log_softmax
from learncost.passes.plan import CHOSEN, NONE, by_eager, default_plan, plan_of
from learncost.passes.quantized import bytes_of_array
from learncost.procedures.optimizer import PAGED
from learncost.procedures.procedure import procedure
from learncost.program.autograd.calls import reads_experts
from learncost.program.autograd.mixers import RECURRENCES, has_recurrences
from learncost.program.autograd.module import Module, UserModule, module_named
from learncost.program.autograd.state import OtherModel, StepOptions
from learncost.program.autograd.step import Chunk, StepPass, run_step
from learncost.program.autograd.tape import Tape
from learncost.program.autograd.wrapped import BUCKETS, GATHERED, MESSAGES, Wrapping
from learncost.program.caching_allocator import reserved
from learncost.program.optimizer_step import CLASSES, OptimizerStep, default_implementation
from learncost.program.program import (
    ACTIVATIONS,
    GRADIENTS,
    HOST,
    MOVED,
    STATES,
    WEIGHTS,
    WORKSPACE,
    Program,
    StepRequest,
    library_workspace,
    most_on_host,
    peak,
)
from learncost.reports.memory.engine import Engine, MemoryUse, at_line, bytes_of, curve_of, grouped
from learncost.reports.memory.step import MASTERS, OFFLOADED, MemoryStep
from learncost.reports.request import COMPILED, CPU, GPU
from learncost.reports.run import unlike

if TYPE_CHECKING:
    from learncost.program.autograd.losses import LossRow, TrainedTask


TRAINED = ("fp32", "fp64", "bf16", "fp16")
"""The types of values that PyTorch trains in."""

WITHOUT_BUFFERS = "Temporary buffers inside kernels are not included."

_CONVENTION = (
    "Peak allocated memory of {} in eager PyTorch on {}, as torch's allocator would report it. {}. Each operator saves "
    f"the tensors that its derivative reads. {WITHOUT_BUFFERS} {{}}"
)


_COMPILED = (
    "Peak allocated memory of {} under torch.compile on {}, as torch's allocator would report it. {}. AOTAutograd's "
    f"min-cut partition chooses the saved tensors, and inductor the kernels. {WITHOUT_BUFFERS} {{}}"
)

HOOKED, CHUNKED = "fused-update", "chunked-loss"
"""The plans that autograd has: the optimizer steps in a hook of each gradient, and Liger's loss in chunks of tokens."""

RULES = {
    "new weights and states": "over the old ones",
    "gradients": "to the end",
    "saved for backward": "what operators save",
    "temporaries": "results",
}
IN_GRAPHS = RULES | {"saved for backward": "what min-cut keeps", "temporaries": "results of kernels"}
WRITTEN = {"foreach": "over, by copies", "for-loop": "over, one by one"}
"""The rule of new weights and states by the optimizer's implementation, where it is not fused."""

FLOAT = 4
"""Bytes of an element of temporaries of optimizers whose states are quantized."""

DEEPEST = 1024
"""The most blocks: the deepest published transformer has 1,000 (Wang et al. 2022, DeepNet)."""

PLACES = {"cpu": "a CPU", GPU: "a GPU"}
"""The devices as PyTorch calls them."""

LIVE, HOOKED_LIVE = "Gradients live until optimizer.step()", "Each gradient lives until its weight is updated"
HOSTED_LIVE = "Each gradient is copied to the host as soon as it is complete, and freed"
SUMMED_LIVE = "Each gradient is added to a sum in fp32 in its hook, and freed"
NOT_ON_GPU = "Neither are cuBLAS workspaces (66 MiB on an H100) and the allocator's rounding. "

WRAPPED: Mapping[tuple[str, ...], str] = {
    (): "ddp",
    ("states",): "zero-1",
    ("gradients", "states"): "zero-2",
    ("gradients", "states", "weights"): "fsdp",
}
"""The placements that modules of PyTorch have, by what is sharded along an axis that also shards the batch. Under
zero-2 the weights of a block stay gathered behind its forward pass: FSDP's SHARD_GRAD_OP."""


def _wrapping(step: MemoryStep) -> Wrapping | None:
    """Return PyTorch's wrapper of the module on a device of a mesh; None if no wrapper has this placement."""
    if not step.over or not (axes := step.batch_axes):
        return None
    kind, sizes = step.kind, step.over.placed.mesh.sizes
    name = WRAPPED.get(next(filter(None, axes.values()), ()), "")
    if name in ("ddp", "zero-1"):
        return Wrapping(1, kind.weight, 0 if kind.gradient != kind.weight else kind.weight, divides=name == "zero-1")
    parts = prod(sizes[axis] for axis, roles in axes.items() if roles)
    stored, reduced = 0 if kind.master else kind.weight, kind.master or kind.weight
    staged = bool(step.stages)  # as torch.distributed.pipelining and torchtitan do
    reshards, syncs = name != "zero-2" and not staged, not (step.eager.no_sync or staged)
    by_pytorch = step.mesh and "zero-3" not in str(step.mesh[0].placement).split(",")
    keeps = bool(by_pytorch and step.frozen and module_named(step.module).hooked_again)
    return Wrapping(parts, stored, reduced, reshards, syncs, staged=staged, keeps_inputs=keeps)


def _here(step: MemoryStep, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the sizes of one device with its share of the sequences."""
    return {**sizes, "B": sizes["B"] // step.replicas} if step.over else sizes


def _hooked(step: MemoryStep) -> bool:
    """Return whether the optimizer steps in a hook of each gradient."""
    return HOOKED in _plans(step)


def _plans(step: MemoryStep) -> set[str]:
    return {plan.name for plan, _ in plan_of(step.plan)}


def _loss(step: MemoryStep) -> LossRow | None:
    """Return the loss that is computed together with the head; None if the module has its own."""
    if (task := _task(step)) and task.loss:
        return task.loss
    if not (name := step.eager.loss or ("liger" if CHUNKED in _plans(step) else "")):
        return None
    from learncost.program.autograd.losses import LOSSES  # imported when used, for a fast start

    return LOSSES[name]


def _task(step: MemoryStep) -> TrainedTask | None:
    """Return what is trained for; None for the next token."""
    if not step.eager.task:
        return None
    from learncost.program.autograd.losses import TASKS  # imported when used, for a fast start

    return TASKS[step.eager.task]


REFERENCE, TEACHER = "reference weights", "teacher weights"


def _other(step: MemoryStep, sizes: Mapping[str, int], asked: StepOptions) -> OtherModel | None:
    """Return the reference model or the teacher of a step; None without one."""
    if not ((task := _task(step)) and (task.reference or task.teacher)):
        return None
    model, name, asked = _plain(step), REFERENCE, replace(asked, learning=(), checkpoint="")
    here = _here(step, sizes)
    if teacher := step.eager.teacher:
        module = module_of(teacher, step.module, False, asked.width, _unfused(step))
        asked = replace(asked, module=module, drawn=(), blocks=teacher.depth, matrices={}, coded={})
        here = run_sizes(teacher, here["B"], here["N" if model.two_sided else "M"], None)
        model, name = teacher, TEACHER
    stored = step.kind.master or asked.width if asked.wrapping and asked.wrapping.parts > 1 else asked.width
    size = bytes_of(model.table, model.table.weights, here, lambda _: stored)
    part = asked.wrapping.part(size) if asked.wrapping else size
    weights = 0 if task.reference and step.eager.adapts else part
    return OtherModel(name, model.table, here, asked, weights, task.joined, task.before)


def _unfused(step: MemoryStep) -> bool:
    """Return whether attention is not fused, as under attn_implementation="eager" of transformers."""
    return step.run.plan_asked == ""


def _module(step: MemoryStep) -> Module:
    """Return the module that is emulated."""
    return module_of(_plain(step), step.module, step.recomputes, step.kind.weight, _unfused(step))


def _emulated(step: MemoryStep, sizes: Mapping[str, int], whole: bool = False, device: int = 0) -> Tape:
    """Return the tape of the step of a module that is emulated.

    whole   with all iterations of its blocks
    device  that of a pipeline
    """
    model, kind, module = _plain(step), step.kind, _module(step)
    chunks, passes = _stages(step, sizes, device), list[StepPass]()
    hosted, given = step.eager.hosted, step.states_and_masters | _sums(step, chunks)
    if step.on_mesh and step.stages:
        static, passes = step.on_mesh.statics(sizes)[device], step.on_mesh.passes(sizes, device)
        given |= {name: size for name, size in ((STATES, static.states), (MASTERS, static.masters)) if size}
    given |= _hosted_gradients(step, sizes) if GRADIENTS in hosted else {}
    settings = StepOptions(
        module,
        given,
        kind.weight,
        frozenset(model.learning),
        frozenset(name for name in model.masks if model.table.values[name].role == "mask"),
        module.checkpoint if step.recomputes else "",
        step.eager.every,
        model.depth * _blocks(step, chunks[:1]) // _blocks(step) if step.stages else model.depth,
        replace(_stepping(step), optimizer="") if STATES in hosted else _stepping(step),
        step.accumulate,
        _rows(step, sizes),
        _coded(step),
        _wrapping(step),
        _loss(step),
        step.eager.drops_paths,
        hosted,
        selects=step.eager.selects,
        whole=whole,
        norms=BYTES[kind.norms] if kind.norms else 0,
        between=frozenset(name for stage in step.stages for name in stage.between),
    )
    settings = replace(settings, other=_other(step, sizes, settings))
    summed = kind.gradient if GRADIENTS in given and GRADIENTS not in hosted else 0
    width, autocast = (kind.weight, kind.value) if kind.autocast else (kind.value, 0)
    hooked = _hooked(step) or (GRADIENTS in hosted and not step.over)
    tape = Tape(width, step.eager.device == GPU, hooked, summed, autocast)
    run_step(tape, chunks, settings, passes)
    return tape


def lowered_on(step: MemoryStep) -> Program:
    """Return the step with the operators that PyTorch issues. Raises `InputError` if these are not known."""
    from learncost.program.lowered import SUBLAYERS, lowered  # imported when used, for a fast start

    kind, sizes, lines = step.kind, step.sizes(), [line for line, _ in walk(step.forward.lines)]
    stepping, learning = _stepping(step), step.model.learning
    runs, unfused = stepping.is_pytorchs(kind.weight), stepping.how != "fused"
    reasons = {
        "the kernels of recurrences are those of their code": has_recurrences(step.forward),
        "products of experts have the sizes of their routing": any(map(reads_experts, lines)),
        "disentangled attention has operators that allocate nothing": _module(step).attention == "disentangled",
        "quantized weights and what is offloaded have kernels that are not modelled": bool(
            step.model.quantized or step.eager.hosted
        ),
        f"{step.optimizer.name} is not one kernel": unfused and not runs,
        "clipping has kernels by the gradients, and these are summed in another type": bool(
            stepping.clip and kind.gradient != kind.weight
        ),
    }
    if why := next((why for why, holds in reasons.items() if holds), ""):
        raise InputError(why)
    tape = _emulated(step, sizes, whole=True)
    program, shapes = tape.builder.program(), tape.learned
    if any(op.name == "aten::convolution" for op in program.ops):
        raise InputError("convolutions have kernels by layout")
    update = Program((), ())
    if stepping.clip or unfused:
        if find_spec("torch") is None:
            raise InputError("clipping and optimizers that are not fused are recorded with PyTorch: pip install torch")
        from learncost.importer.recorder.optimizer import recorded_update  # imports torch

        update = recorded_update(stepping, shapes, kind.weights, runs)
    if not update.ops or not runs:
        weights = bytes_of(step.forward, learning, sizes, lambda _: kind.weight)
        moved = 2 * sum(step.states_and_masters.values()) + (2 if kind.master else 3) * weights
        arguments = {MOVED: moved, "tensors": len(shapes), "elements": weights // kind.weight}
        fused = program.ops[-1]._replace(arguments=arguments)
        update = replace(update, ops=(*update.ops, fused))
    return lowered(program, update, _before(step), SUBLAYERS if _module(step).holds == "sublayers" else {})


def _before(step: MemoryStep) -> tuple[str, ...]:
    """Return the operators with which transformers' forward pass begins: for every causal mask it asks whether
    sequences are packed, where it passes the positions of tokens and has no KV cache."""
    from learncost.program.lowered import PACKED, ROTARY  # imported when used, for a fast start

    model, module = step.model, _module(step)
    rotary = ROTARY if model.configuration.positions == "rotary" else ()
    if not module.of_family or not (rotary or model.configuration.family in ("gpt2", "gpt_neo")) or model.two_sided:
        return ()
    masks = 0 if module.cache else 1 + any(name.startswith("sliding_") for name in model.table.weights)
    return (*PACKED * masks, *rotary)


def _coded(step: MemoryStep) -> dict[str, tuple[int, int]]:
    """Return the bytes of the codes of quantized weights, which `fully_shard` shards, and of their scales, of which a
    device may have a part. Experts are among them where they are linear modules.
    """
    model, kind, axes = step.model, step.kind.quantized, step.run.axes
    table, result = step.declared, dict[str, tuple[int, int]]()
    every = {weight.weight: (bytes_of_array(weight.codes, axes), weight.bytes(axes)) for weight in model.quantized}
    if kind and module_named(step.module).linear_experts:
        stacks = dict(pair for loop in table.repeats for pair in loop.each)
        experts = {stacks[name] for line, _ in walk(table.lines) if (name := reads_experts(line)) in stacks}
        for name in experts & {*table.weights} - {*model.learning}:
            count = prod(shape_of(table.axes[name], axes))
            every[name] = count * kind.bits // 8, kind.bytes(count)
    for name, (codes, whole) in every.items():
        all_elements, elements = (prod(shape_of(of.axes[name], step.sizes())) for of in (table, step.forward))
        result[name] = codes * elements // all_elements, (whole - codes) * elements // all_elements
    return result


def _stages(step: MemoryStep, sizes: Mapping[str, int], device: int = 0) -> list[Chunk]:
    """Return the forward table, or those of the stages of a device of a pipeline, with their sizes on the device."""
    here = _here(step, sizes)
    if not (step.over and step.over.pipeline):
        return [(step.forward, here)]
    mine = step.stages[device :: step.over.pipeline.stages]
    return [(stage.table, {**here, **stage.iterations}) for stage in mine]


def _fullest(step: MemoryStep, sizes: Mapping[str, int]) -> tuple[Program, int]:
    """Return the program of the device of a pipeline with the highest peak, and its number.

    A device after another one with as many blocks and all of its weights has no more microbatches in flight.
    """
    pipeline = step.over.pipeline if step.over else None
    several = dict[int, tuple[list[int], set[tuple[int, str]]]]()
    for device in range(pipeline.stages if pipeline else 1):
        chunks = _stages(step, sizes, device)
        blocks = [_blocks(step, [each]) for each in chunks]
        weights = {(place, name) for place, (table, _) in enumerate(chunks) for name in table.weights}
        if not any(weights <= more and all(map(le, blocks, most)) for most, more in several.values()):
            several[device] = blocks, weights
    programs = ((_emulated(step, sizes, device=device).builder.program(), device) for device in several)
    return max(programs, key=lambda each: peak(each[0]).bytes)


def _sums(step: MemoryStep, chunks: Iterable[Chunk]) -> dict[str, int]:
    """Return the bytes of the sums of gradients by their name, where they have another type than the weights."""
    kind, learning = step.kind, {*step.model.learning}
    if kind.gradient == kind.weight:
        return {}
    several = ((table, [name for name in table.weights if name in learning], sizes) for table, sizes in chunks)
    return {GRADIENTS: sum(bytes_of(*each, lambda _: kind.gradient) for each in several)}


def _hosted_gradients(step: MemoryStep, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of gradients on the host, in the type of the update, and on one device the buffer of the largest
    gradient on its way there (DeepSpeed, runtime/zero/stage_1_and_2.py: temp_grad_buffer_for_gpu_offload).
    """
    kind, wrapping, table = step.kind, _wrapping(step), _plain(step).table
    learned = bytes_of(table, step.model.learning, sizes, lambda _: kind.master or kind.gradient)
    if wrapping:
        return {GRADIENTS: wrapping.part(learned)}
    largest = max((bytes_of(table, (name,), sizes, lambda _: kind.weight) for name in step.model.learning), default=0)
    return {GRADIENTS: learned, "offload buffer": largest}


def _rows(step: MemoryStep, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the number of rows of each weight that is a matrix to the optimizer, alone in its block."""
    result, here, states = dict[str, int](), _here(step, sizes), step.states
    for weight, matrix in states.matrices.items():
        alone = len(matrix.stack) == (weight in states.stacks)
        if matrix.rows and alone and (matrix.hidden or not step.optimizer.hidden):
            rows = {*map(base, matrix.rows)}
            axes = (axis for axis in step.forward.axes[weight] if base(axis).partition("/")[0] in rows)
            result[weight] = prod(shape_of(axes, here))
    return result


def _recorded(step: MemoryStep, sizes: Mapping[str, int], device: str = "") -> Program | None:
    """Return the step as the imported module runs it; None if it cannot."""
    try:
        return recorded_on(device or step.eager.device, step, sizes, step.eager.compiled)
    except InputError as error:
        if step.eager.compiled:
            raise InputError(f"--engine {COMPILED} cannot record the step, as {error}: give --engine eager") from None
        if (device or step.eager.device) != CPU:  # there is no such device here, or not for all that it does
            step.instead = str(error)
            return _recorded(step, sizes, CPU)
        if step.module_asked or is_sharded(step):
            raise
        step.module, step.instead = Module.name, str(error)
        return None


def is_sharded(step: MemoryStep) -> bool:
    """Return whether FSDP2 shards the weights of a module."""
    wrapping = _wrapping(step)
    return wrapping is not None and wrapping.parts > 1


def recorded_on(device: str, step: MemoryStep, sizes: Mapping[str, int], compiled: bool = False) -> Program:
    """Return the step as the module runs it on a device, or as torch.compile does. Raises `InputError` if it cannot."""
    model, layer = step.model, step.model.configuration.layer
    given, wrapping = step.states_and_masters, _wrapping(step)
    if step.over and not is_sharded(step):
        given[BUCKETS] = bytes_of(model.table, model.learning, sizes, lambda _: step.kind.weight)
    weights = (layer.table.weights, model.learning) if layer and trains_other_weights(model) else None
    kind = step.kind
    values, autocast = (kind.weights, kind.values) if kind.autocast else (kind.values, "")
    settings = given, weights, _stepping(step), step.accumulate, _hooked(step)
    request = StepRequest(values, device, autocast, *settings, compiled=compiled)
    if wrapping and is_sharded(step):
        stored, gathered = ("fp32", kind.values) if kind.master else (values, "")
        states = {role: size for role, size in given.items() if role == STATES}
        placement = "fsdp" if wrapping.reshards else "zero-2"
        request = replace(request, values=stored, given=states, gathered=gathered)
        request = replace(request, devices=wrapping.parts, placement=placement)
    if device == GPU:
        from learncost.devices.gpus import kernels_of  # imported when used, for a fast start

        capability, multiprocessors = kernels_of(step.eager.gpu)
        request = replace(request, capability=capability, multiprocessors=multiprocessors)
    record = layer.steps if layer else None
    if record is None:
        from learncost.importer.files.reading import preset_steps  # imports the importer

        record = preset_steps(model.configuration, int(model.parameters.at(sizes)))
    program: Program = record(_here(step, sizes), request)
    return program


def _stepping(step: MemoryStep) -> OptimizerStep:
    """Return the optimizer's step, by default with the implementation that the optimizer has on the device."""
    name, cuda = step.optimizer.name, step.eager.device == GPU
    how = step.eager.implementation or default_implementation(name, cuda)
    return OptimizerStep(name, how, BYTES.get(step.kind.states, FLOAT), step.eager.clip, cuda)


BITSANDBYTES = " of bitsandbytes"


def _steps(step: MemoryStep) -> str:
    """Return the text of the optimizer's step, such as AdamW with fused=True."""
    stepping = _stepping(step)
    known = CLASSES[stepping.optimizer]
    ops = {"fused": "with fused=True", "foreach": "with foreach=True", "for-loop": "with foreach=False"}
    hooks = ", stepped in the hook of each gradient" if _hooked(step) else ""
    unfused = "" if "fused" in known.implementations else ", since PyTorch has no fused implementation"
    paged = f"Paged{known.name.removesuffix(BITSANDBYTES)}{BITSANDBYTES}" if PAGED in step.eager.offload else ""
    how = f" {ops[stepping.how]}" if len(known.implementations) > 1 and not paged else ""
    clipped = " Gradients are clipped by clip_grad_norm_." if stepping.clip else ""
    if _unfused(step) and default_plan(step.unplanned):
        clipped += " Attention is not fused (attn_implementation=eager)."
    return f"{NOT_ON_GPU if stepping.cuda else ''}{paged or known.name}{how}{hooks}{unfused if how else ''}.{clipped}"


def _convention(module_summary: str, step: MemoryStep, device: str) -> str:
    """Return the text on what the memory of a module on a device includes."""
    lives = {
        HOOKED_LIVE: _hooked(step),
        HOSTED_LIVE: GRADIENTS in step.eager.hosted,
        SUMMED_LIVE: step.kind.gradient != step.kind.weight,
    }
    gone = next((text for text, holds in lives.items() if holds), LIVE)
    text = _COMPILED if step.eager.compiled else _CONVENTION
    return text.format(module_summary, PLACES[device], gone, _steps(step))


def _rules(step: MemoryStep) -> Mapping[str, str]:
    """Return the rules of a step, by their subjects."""
    how = step.eager.implementation
    hooked = {"gradients": "until their update"} if _hooked(step) else {}
    hooked |= {"gradients": "until they are copied to the host"} if GRADIENTS in step.eager.hosted else {}
    return (
        (IN_GRAPHS if step.eager.compiled else RULES)
        | ({"new weights and states": WRITTEN[how]} if how in WRITTEN else {})
        | hooked
    )


def _plain(step: MemoryStep) -> Model:
    """Return the model with dequantized weights, as its modules declare them; on a mesh that of each device."""
    return replace(step.model, table=step.forward)


def program_of(step: MemoryStep, sizes: Mapping[str, int] | None = None) -> Program:
    """Return the program of a step; the last one is cached by the step."""
    sizes = sizes or step.sizes()
    key = _key(step, sizes)
    if step.ran is None or step.ran[0] != key:
        program = _recorded(step, sizes) if step.module == UserModule.name else None
        if program is None:
            program, step.device = _fullest(step, sizes)
        step.ran = _key(step, sizes), program  # which another module has, if its own could not run
    return step.ran[1]


def _key(step: MemoryStep, sizes: Mapping[str, int]) -> Hashable:
    return step.module, *sorted(sizes.items())


def _peak(step: MemoryStep, sizes: Mapping[str, int]) -> int:
    key = _key(step, sizes)
    if key not in step.taped:
        step.taped[key] = peak(program_of(step, sizes)).bytes
    return step.taped[key]


def _takes(step: MemoryStep, sizes: Mapping[str, int]) -> MemoryUse:
    program, table = program_of(step, sizes), _plain(step).table
    most, itself = peak(program), step.module == UserModule.name
    wrapped = (BUCKETS, GATHERED, MESSAGES) if step.over else ()
    split = dict.fromkeys((WEIGHTS, GRADIENTS, STATES, *step.states_and_masters), 0)
    split |= {part: size for part in wrapped if (size := most.by_role.get(part, 0))} | {WORKSPACE: 0, ACTIVATIONS: 0}
    split |= most.by_role
    allocations = [(each.bytes // each.count, each.label) for each in most.live for _ in range(each.count)]
    allocations += [(most.op.scratch, most.op.label)] if most.op.scratch else []
    repeats = () if itself else [line.count for line in table.repeats]
    counts = {int(size_of(count, sizes)): count for count in repeats}

    def lines() -> tuple[tuple[ProgramPoint, ...], Iterable[LiveInterval]]:
        whole = _emulated(step, sizes, True).builder.program() if program.nested and not itself else program
        return curve_of(whole, table, counts)

    buffers = library_workspace(program) if itself and program.device == CPU else None
    moment, text = at_line(most.op.label, most.bytes), _described(step, program, bool(buffers))
    there = grouped(allocations)
    rules, host = _rules(step), most_on_host(program)
    given = most.bytes, moment, split, there, lines, text
    moved = _moved(step, sizes, program) if step.eager.hosted else (0, 0)
    segments = partial(reserved, program) if program.device == GPU else None
    return MemoryUse(*given, rules=rules, buffers=buffers, host=host, moved=moved, reserved=segments)


def _moved(step: MemoryStep, sizes: Mapping[str, int], program: Program) -> tuple[int, int]:
    """Return the bytes that a step copies to the host, and back.

    Saved tensors go there and back, and so do gradients and new weights; shards of weights come for every gathering.
    """
    hosted, kind, wrapping, table = step.eager.hosted, step.kind, _wrapping(step), _plain(step).table
    part = wrapping.part if wrapping else int
    ran = len({op.microbatch for op in program.ops})
    saved = sum(each.bytes for each in program.buffers if each.device == HOST and each.role == ACTIVATIONS)
    there = back = saved // ran * step.accumulate
    learned, weights = (
        part(bytes_of(table, names, sizes, lambda _: 1)) for names in (step.model.learning, table.weights)
    )
    if STATES in hosted:
        there += learned * kind.weight * (step.accumulate if GRADIENTS in hosted else 1)
        gathered = 2 if wrapping and wrapping.reshards else 1
        shards = weights * (kind.master or kind.weight) * gathered * step.accumulate
        back += shards if WEIGHTS in hosted else learned * kind.weight
    return there, back


def _described(step: MemoryStep, program: Program, buffered: bool) -> str:
    """Return the text on what the memory of a step includes."""
    if step.module == UserModule.name:
        of_preset = "transformers' own module, run on fake tensors,"
        text = _convention(UserModule.summary if step.model.configuration.layer else of_preset, step, program.device)
        if buffered:
            text = text.replace(WITHOUT_BUFFERS, "Kernel buffers are listed separately.")
        if is_sharded(step) and (wrapping := _wrapping(step)):
            text += f" Wrapped by {wrapping.summary}; memory of the communication library is not included."
        return text + (f" Not run on {PLACES[GPU]}: {step.instead}." if step.instead else "")
    module = _module(step)
    text = _convention(module.summary, step, step.eager.device)
    if step.recomputes and module.checkpoint == "reentrant":
        text += " Checkpoints are reentrant (use_reentrant=True)."
    if module.mixes and has_recurrences(step.forward):
        text += f" {RECURRENCES}; fewer tensors are saved with these kernels."
    if wrapping := _wrapping(step):
        text += f" Wrapped by {wrapping.summary}; memory of the communication library is not included."
    if step.is_parallel:
        text += " Tensors are parallel as by parallelize_module, whose collectives make new tensors."
    if step.over and (pipeline := step.over.pipeline):
        text += f" Stage {step.device + 1} of {pipeline.stages} has the highest peak; it frees what it has sent."
    for name in step.eager.offload:
        text += f" Not in this memory: {OFFLOADED[name].title}."
    if row := _loss(step):
        text += f" The loss is {row.title} ({row.source})."
    if step.eager.selects:
        text += (
            " Checkpoints keep the results of attention and of every second product without a bias (torchtitan's op)."
        )
    if (task := _task(step)) and task.reference:
        weights = "is the same without adapters" if step.eager.adapts else "has its own weights"
        text += f" The reference model {weights}."
    if teacher := step.eager.teacher:
        text += f" The teacher, {teacher.configuration.name}, has its weights in the type of the model's."
    return text + (f" The module itself was not run: {step.instead}." if step.instead else "")


def _unwrapped(step: MemoryStep) -> str:
    """Return why PyTorch has no wrapper for this placement, as a verb phrase; "" if it has one."""
    if len(several := {roles for roles in step.batch_axes.values() if roles}) > 1:
        return f"shards every weight over the same axes, not over {' and '.join(map(' '.join, sorted(several)))}"
    if (unknown := next(iter(several), ())) not in WRAPPED:
        return f"has no wrapper that shards only {' '.join(unknown)}: use --placement {', '.join(WRAPPED.values())}"
    if (step.is_parallel or step.stages) and step.module == UserModule.name:
        return "runs an imported module only over dp: use --engine graph"
    if step.is_parallel and has_recurrences(step.declared):
        return "does not support recurrences with parallel tensors: use --engine graph"
    classes = [axis for line, _ in walk(step.forward.lines) if is_log_softmax(line) for axis in line.axes]
    if step.is_parallel and (_loss(step) or step.eager.task) and any("/" in axis for axis in classes):
        return "computes --loss and --task of heads that no axis splits by vocabulary: give --place 'h g f over tp'"
    wrapping = _wrapping(step) or Wrapping(1, 0, 0)
    if step.stages and (why := _unstaged(step)):
        return f"does not support {why} in stages of a pipeline: use a mesh without pp"
    if wrapping.parts > 1 and step.model.configuration.layer is not None:
        if step.module != UserModule.name or why_not_runnable(step.model):
            return "shards an imported module that is named as FILE.py:NAME, by bp: use --engine graph"
        if step.replicas != wrapping.parts or not wrapping.syncs:
            return "records a module under fully_shard over one axis, with --no-sync never: use --engine graph"
    if wrapping.parts > 1 and step.kind.autocast:
        uncast = without_autocast(step.kind)
        return f"casts sharded weights by MixedPrecisionPolicy, not by autocast: use --precision {uncast}"
    return ""


def _unstaged(step: MemoryStep) -> str:
    """Return what is asked of a step that stages of a pipeline do not have."""
    from learncost.program.pipeline import KINDS  # imported when used, for a fast start

    asked = {
        "quantized weights": bool(step.model.quantized),
        f"--task {step.eager.task}": bool(step.eager.task),
        f"--offload {','.join(step.eager.offload)}": bool(step.eager.hosted),
        "weight updates separate from the backward pass": step.on_mesh is not None
        and KINDS[step.on_mesh.cut.parallel.schedule].splits_backward,
    }
    return next((what for what, is_asked in asked.items() if is_asked), "")


def _outside(step: MemoryStep) -> str:
    """Return why autograd has no step of a model, procedure, type or device."""
    if step.module == UserModule.name and step.recomputes:
        return "runs an imported module by bp only: use --module plain for checkpoints of its blocks"
    if step.module == UserModule.name and (why := why_not_runnable(step.model)):
        return f"with --module itself {why}"
    if step.module != UserModule.name and (blocks := _blocks(step)) > DEEPEST:
        return f"supports up to {DEEPEST:,} blocks, not {blocks:,}"
    if step.kind.values not in TRAINED:
        return f"supports activations in {', '.join(TRAINED)} only"
    if step.in_flash:
        return "does not support --flash-size"
    if step.kind.saved or step.kind.products or step.kind.learned:
        return "does not support quantized weights or activations"
    apart = step.is_parallel or module_named(step.module).linear_experts or step.eager.drops_paths
    if apart and any(line.meta.layer == "lora" and reads_experts(line) for line, _ in walk(step.forward.lines)):
        return (
            "has low-rank paths of experts, as peft, with --module transformers and without --lora-dropout, tp and ep"
        )
    if not procedure(step.procedure).differentiates:
        return "supports bp and recompute (torch.utils.checkpoint of every block) only"
    return ""


def _uncompiled(step: MemoryStep) -> str:
    """Return why torch.compile has no step of a model."""
    if step.module != UserModule.name or why_not_runnable(step.model):
        return (
            f"compiles a module that runs itself, by bp, without adapters: FILE.py:NAME, or --module {UserModule.name}"
        )
    return _outside(step)


def _blocks(step: MemoryStep, chunks: Sequence[Chunk] = ()) -> int:
    """Return the number of blocks of a model or of stages: the iterations of loops that have weights."""
    several = chunks or [(step.model.table, step.sizes())]
    loops = ((table, loop, sizes) for table, sizes in several for loop in table.repeats)
    weighted = ((loop, sizes) for table, loop, sizes in loops if any(outer in table.weights for _, outer in loop.each))
    return sum(int(size_of(loop.count, sizes)) for loop, sizes in weighted)


def _refuses(step: MemoryStep) -> str:
    """Return why PyTorch does not apply what is asked."""
    if step.over and (why := _unwrapped(step)):
        return why
    if step.eager.no_sync and not is_sharded(step):
        return "supports --no-sync only for fully sharded weights: give --mesh and --placement fsdp"
    if step.run.plan_asked and (unsupported := by_eager(step.unplanned, step.plan)[1]):
        return f"does not support --plan {CHOSEN if step.run.plan == CHOSEN else unsupported}"
    if step.eager.loss and CHUNKED in _plans(step):
        return f"takes --loss {step.eager.loss} or --plan {CHUNKED}, which is --loss liger: not both"
    if step.eager.selects and module_named(step.module).checkpoint == "reentrant":
        return f"does not support --checkpoint-every op with --module {step.module}: use --module transformers"
    if step.eager.task and (why := _untasked(step)):
        return why
    if step.module == UserModule.name and (_loss(step) or step.eager.drops_paths):
        flag = f"--plan {CHUNKED}" if CHUNKED in _plans(step) else "--lora-dropout"
        flag = next((f"--{name} {given}" for name in ("loss", "task") if (given := getattr(step.eager, name))), flag)
        return f"does not support {flag} with --module {UserModule.name}, whose forward pass has its own"
    if _unfused(step) and step.module == UserModule.name and default_plan(step.unplanned):
        return f"runs an imported module as it is, with fused attention, not with --plan {NONE}"
    implementations = CLASSES[step.optimizer.name].implementations
    if step.eager.implementation and step.eager.implementation not in implementations:
        return f"has no {step.eager.implementation} {step.optimizer.name}: there is {' or '.join(implementations)}"
    if step.kind.gradient != step.kind.weight:
        flag = f"--precision {step.kind.name}"
        sharded = is_sharded(step)
        if sharded or step.module == UserModule.name or _hooked(step):
            where = f"with {f'--plan {HOOKED}' if _hooked(step) else '--module itself'}"
            return f"does not support {flag} {'where --placement shards what learns' if sharded else where}"
        if _stepping(step).how != "fused":
            return f"requires a fused optimizer with {flag}, and {step.optimizer.name} is not"
    if _hooked(step) and _stepping(step).how != "fused":
        return f"requires a fused optimizer in hooks, and PyTorch has no fused {step.optimizer.name}"
    if _hooked(step) and (step.accumulate > 1 or step.eager.clip):
        flag = "--clip" if step.eager.clip else "--accumulate"
        return f"does not support {flag} with --plan {HOOKED}, which steps before all gradients are there"
    if _hooked(step) and step.over:
        return f"does not support --plan {HOOKED} over a mesh, since DDP and FSDP2 reduce gradients before a hook steps"
    return _unhosted(step)


def _untasked(step: MemoryStep) -> str:
    """Return why a training on something else than the next token does not run as it is asked."""
    flag, task = f"--task {step.eager.task}", _task(step)
    if step.eager.loss or CHUNKED in _plans(step):
        return f"supports {flag} only with its own loss, without --loss and --plan {CHUNKED}"
    configuration = step.model.configuration
    if task and task.loss and configuration.layer is None and not configuration.head.endswith("language-model"):
        return f"scores tokens with {flag}, which {configuration.name} as {configuration.architecture} does not do"
    if task and task.pairs and _here(step, step.sizes())["B"] % 2:
        return f"requires pairs with {flag}: give an even --batch-size for each microbatch and device"
    if step.eager.teacher and (why := unlike(step.model, step.eager.teacher)):
        return f"with {flag} {why}"
    own = task and (task.teacher or (task.reference and not step.eager.adapts))
    if own and (wrapping := _wrapping(step)) and wrapping.parts > 1 and not wrapping.reshards:
        return f"shards the other model of {flag} only with --placement fsdp: give that, --placement ddp or --lora"
    return ""


def _unhosted(step: MemoryStep) -> str:
    """Return why what is to be on the host cannot be there."""
    hosted, flag = step.eager.hosted, f"--offload {','.join(step.eager.offload)}"
    if not hosted:
        return ""
    if step.module == UserModule.name:
        return f"does not support {flag} with --module {UserModule.name}, which runs as it is: use --module plain"
    if STATES in hosted and _hooked(step):
        return f"does not support {flag} with --plan {HOOKED}, whose update is on the GPU"
    if GRADIENTS in hosted and step.kind.gradient != step.kind.weight:
        return f"does not support {flag} with --precision {step.kind.name}, which sums gradients on the GPU"
    if not is_sharded(step) and (WEIGHTS in hosted or (GRADIENTS in hosted and step.over)):
        return f"supports {flag} only for fully sharded weights: give --mesh and --placement fsdp"
    return ""


ENGINES = (
    Engine(
        "eager",
        _peak,
        _takes,
        RULES,
        _CONVENTION.format("the module", "a CPU, or on the GPU of --on", LIVE, "").rstrip(),
        _refuses,
        _outside,
        plans=(None, HOOKED),
        lengths=True,
        module=True,
    ),
    Engine(
        COMPILED,
        _peak,
        _takes,
        IN_GRAPHS,
        _COMPILED.format("the module", "a CPU, or on the GPU of --on", LIVE, "").rstrip(),
        _refuses,
        _uncompiled,
        plans=(None,),
        module=True,
        alone="its graphs are recorded for one device",
    ),
)
