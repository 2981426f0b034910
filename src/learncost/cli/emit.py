"""`learncost emit LAYER|MODEL`: the step as source in Python for NumPy, PyTorch or JAX, in Triton, or in C99."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from textwrap import fill
from typing import TYPE_CHECKING

from learncost import __version__
from learncost.autodiff.derive import derive
from learncost.backends import program
from learncost.backends.precision import check_runs
from learncost.ir.dataclass import dataclass, fields, replace
from learncost.ir.errors import InputError, nearest, shown
from learncost.ir.precision import either, precision_of
from learncost.ir.table import Table
from learncost.layers.layer import Layer, shipped
from learncost.models.argument import layer_or_model, names_own_sizes
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, build, run_sizes
from learncost.models.sizes import check_size
from learncost.passes.plan import check_optimizer, check_plan, planned
from learncost.procedures.optimizer import DEFAULT, check_renews, check_unrounded, with_optimizer, without_gradients
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.step import step
from learncost.reports.question import flags_typed
from learncost.reports.request import ADAPTING, Request, takes_request
from learncost.reports.run import lengths_of

if TYPE_CHECKING:
    from learncost.cli.emit_mesh import MeshRequest

PHASES_OF_A_STEP = ("step", "forward", "backward")
LIBRARIES = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX"}
IN_PLACE = ("c", "triton")
"""The dialects that write into one arena: products of PyTorch's, kernels in C or Triton, for arrays of one size."""


DISTRIBUTED_LIBRARIES = ("numpy", "torch", "jax")
"""The libraries by which devices exchange arrays."""

FREESTANDING = "c99"
"""The dialect that needs no library and no operating system, for models: a file in C and its header."""


@dataclass(frozen=True)
class Freestanding:
    """The options of C99 programs alone.

    Parameters
    ----------
    entry
        With `backend` c99: the entry points: step, predict, or both (the default).
    prefix
        With `backend` c99: the prefix of function and array names. The default is the name of the output file, or
        model.
    weights
        With `backend` c99: a safetensors file of initial weights: a module's own state_dict, or with this package's or
        transformers' names. By default a module starts from its own initialization; trainable weights of a table or
        preset are drawn on the device, and frozen ones at emission.
    state_dict
        With `backend` c99: a safetensors file to write: the program's initial weights as the module's state_dict. If
        `weights` came from a device, these are converted.
    learning_rate
        With `backend` c99: the initial learning rate. The default is 0.01.
    weight_decay
        With `backend` c99: the weight decay. The default is 0.
    projected
        With `backend` c99 and pepita or mempepita: the inputs to which the projected output error is added,
        comma-separated, for inputs other than tokens.
    """

    entry: str = "both"
    prefix: str | None = None
    weights: str | None = None
    state_dict: str | None = None
    learning_rate: float | str | None = None
    weight_decay: float | str | None = None
    projected: str | None = None


WITHOUT_STAGES = "--schedule and --microbatches require pipeline stages, for example --mesh pp=2 --placement pp"

OF_REQUEST = ("accumulate", "clip", "target_len", "mode", "dropout", *ADAPTING, "on")
"""The fields of a request that only programs in C99 have."""


@takes_request(
    "subject backend * procedure optimizer phase plan batch_size seq_len dtype precision mesh place placement schedule "
    "microbatches entry prefix weights state_dict accumulate clip learning_rate weight_decay target_len mode projected "
    "dropout train train_layers lora lora_rank lora_alpha dora on",
    Freestanding,
    procedure=None,
    schedule=None,
)
def emit(
    request: Request,
    flags: Freestanding,
    backend: str = "numpy",
    phase: str = "step",
    microbatches: int | str | None = None,
) -> str:
    """Write the step as source code without dependency on learncost: NumPy, PyTorch or JAX, or C99 for a device.

    torch.compile and jax.jit compile the Python as one graph. A comment on every line has the axes of its result and
    the numbers of its equations. C99 is one file without libraries, and its header: a training step, a prediction or
    both, with exact static RAM.

    Parameters
    ----------
    subject
        A layer (`learncost list layers`), a file in the notation, or a model as in learncost cost.
    backend
        The target of the program: numpy, torch or jax; for a model with a fixed batch and length also c (PyTorch's
        matrix products and C kernels on one arena), triton (the same on a GPU, with kernels in Triton) or c99
        (freestanding, such as for a microcontroller).
    procedure
        For a model: the learning procedure: {choices}. The default is bp.
    optimizer
        The optimizer: adamw, sgd, momentum, or none, which returns the gradients. The default is adamw for a model and
        none for a layer.
    plan
        For a model: the plan of the step, as chunked-loss,recompute=gelu+norm (`learncost list plans`).
    phase
        The part to write: step; for a layer also forward or backward only.
    batch_size
        With `backend` c, triton and c99: sequences in the step. The default is 1. With `mesh`: the global batch size.
    seq_len
        With `backend` c, triton and c99: tokens in a sequence. The default is the model's context, at most 4,096.
    precision
        bf16-masters, with weights in fp32, or bf16-true; with `backend` c and triton also fp32 (the default) and fp64,
        with c99 these two. Other programs take the type of their arrays.
    schedule
        With pipeline stages (`placement` pp): the schedule: 1f1b (the default), gpipe, or interleaved with two stages
        on a device.
    microbatches
        With pipeline stages: the number of microbatches per device. The default is one per sequence.
    accumulate
        With `backend` c99: the number of microbatches for gradient accumulation.
    clip
        With `backend` c99: the largest global gradient norm. The default is 0 (no clipping).
    dropout
        With `backend` c99: the dropout probability; each step draws its masks from the seed. The default is 0.
    target_len
        With `backend` c99: tokens in a decoder sequence of an encoder-decoder. The default is `seq_len`.
    on
        With `backend` c99: a microcontroller (`learncost list devices`) or a file that describes one: arrays are
        assigned to its RAM regions, programs that do not fit are refused, and a linker script is written if the
        addresses are known.
    sizes
        Any size or setting of a model, such as `hidden_size` 1024. Programs other than C read sizes from their arrays.

    Returns
    -------
    str
        The program.

    Raises
    ------
    InputError
        If a name is unknown, or options cannot be combined.

    Commands
    --------
    learncost emit attention
        Attention with its backward pass and weight gradients as a NumPy program.
    learncost emit gpt2 --backend torch --optimizer adamw -o step.py
        A training step of GPT-2 for PyTorch, into a file.
    learncost emit llama-3-8b --backend jax --mesh dp=2,tp=4 --placement fsdp,megatron-sp --batch-size 8 -o step.py
        The program of each of 8 devices, with a shard_map wrapper.
    learncost emit gpt2 --backend torch --mesh pp=4 --placement pp --schedule 1f1b --batch-size 8 -o step.py
        The pipeline stages, with the schedule of 8 microbatches.
    learncost emit net.table --backend c99 --batch-size 4 --optimizer sgd -o net.c
        A training step and a prediction for a microcontroller: net.c and net.h.

    Examples
    --------
    >>> program = lc.emit("residual", phase="forward")
    >>> scope = {}
    >>> exec(program, scope)
    >>> "forward" in scope
    True
    """
    if phase not in PHASES_OF_A_STEP:
        raise InputError(
            f"phase must be one of {', '.join(PHASES_OF_A_STEP)}, not {shown(phase)}{nearest(phase, PHASES_OF_A_STEP)}"
        )
    if request.precision is not None:
        request = replace(request, dtype=either(request.dtype, request.precision, counts_alone=True).name)
    check_unrounded(request.optimizer, "emit")
    check_renews(request.optimizer, "emit")
    of_stages = {"schedule": request.schedule, "microbatches": microbatches}
    if request.mesh is None and any(of_stages.values()):
        raise InputError(WITHOUT_STAGES)
    if request.is_sharded and backend not in DISTRIBUTED_LIBRARIES:
        raise InputError(
            f"--mesh requires --backend {', '.join(DISTRIBUTED_LIBRARIES[:-1])} or {DISTRIBUTED_LIBRARIES[-1]}"
        )
    if backend == FREESTANDING:
        if phase != "step":
            raise InputError(
                "--phase applies to layers in Python: use --entry step, predict or both with --backend c99"
            )
        from learncost.cli.emit_c99 import freestanding  # learncost.training and its engines

        return freestanding(request, flags)
    subject: object = request.model
    of_c99 = [each.name for each in fields(flags) if getattr(flags, each.name) != each.default]
    of_c99 += [name for name in OF_REQUEST if request.given.get(name) is not None]
    if request.seq_len is None and (
        names_own_sizes(subject) if isinstance(subject, str) else isinstance(subject, Layer)
    ):  # what a table calls M is its length
        request = replace(request, seq_len=request.target_len, target_len=None)
        of_c99 = [name for name in of_c99 if name != "target_len"]
    if of_c99:
        raise InputError(f"--{of_c99[0].replace('_', '-')} requires --backend c99")
    of_mesh = {"mesh": request.mesh, "place": request.place, "placement": request.placement}
    procedure, optimizer, plan, dtype = request.procedure, request.optimizer, request.plan, request.dtype
    sizes = dict(request.sizes)
    step_flags = {"procedure": procedure, "optimizer": optimizer, "plan": plan, **of_mesh, **of_stages}
    model_flags = {**step_flags, "phase": None if phase == "step" else phase}
    shape = {"batch_size": request.batch_size, "seq_len": request.seq_len, "dtype": dtype}
    kind = None if dtype is None else precision_of(dtype)
    if kind and kind.quantized:
        what = "weights that are not quantized" if kind.learned else "all weights"
        held = (
            "trainable quantized weights (use --backend c99)"
            if kind.learned
            else "frozen quantized weights (use learncost train)"
        )
        raise InputError(f"emit supports steps that train {what}; {kind.name} has {held}")
    if kind:
        check_runs(kind)
    rounds = kind is not None and kind.values == "bf16"
    read_off = [name for name, value in shape.items() if value is not None and not (name == "dtype" and rounds)]
    if backend not in IN_PLACE and not request.is_sharded and read_off:
        flag = read_off[0].replace("_", "-")
        raise InputError(
            f"--{flag} requires --backend c or triton: other programs take shapes and types from their arrays"
        )
    given = {**model_flags, **shape, **sizes}
    if isinstance(subject, str):
        flags_given = {name: value for name, value in given.items() if value is not None}
        written = shlex.join(["learncost", "emit", subject, "--backend", backend, *flags_typed(flags_given)])
        named_subject = layer_or_model(subject)
        subject = configure(named_subject, sizes) if isinstance(named_subject, str) else named_subject
    else:
        written = f"learncost.emit({type(subject).__name__}, {backend!r})"
    of_model = backend in IN_PLACE or request.is_sharded or procedure is not None or plan is not None or bool(sizes)
    if isinstance(subject, Layer) and of_model and subject.name not in shipped():
        lengths, sizes = lengths_of(request)
        length = lengths.get("seq_len", lengths.get("target_len"))
        request = replace(request, batch_size=lengths.get("batch_size"), seq_len=length)
        subject = configure(subject, sizes)
    constants: Mapping[str, int] = {}
    if isinstance(subject, Configuration):
        subject = build(subject)
    elif sizes and not isinstance(subject, Model):
        raise InputError(f"{min(sizes)} applies to models: a layer's program takes its sizes from its arrays")
    if isinstance(subject, Model):
        if phase != "step":
            raise InputError(f"--phase {phase} applies to layers; a model's program is its step")
        flags_of_step = procedure or "bp", optimizer or DEFAULT, plan or ""
        if plan:
            check_optimizer(plan, flags_of_step[1])
            check_plan(_model(subject, *flags_of_step[:2], "")[0], plan, subject.configuration.name, request.is_sharded)
        table, about = _model(subject, *flags_of_step)
        constants = subject.sizes
        if request.mesh is not None:
            from learncost.cli.emit_mesh import MeshRequest, pipelined  # learncost.sharding

            asked = MeshRequest(request, microbatches)
            if (pipeline := asked.pipeline(subject)) is not None:
                if backend != "torch":
                    raise InputError("pipeline stages require --backend torch")
                program_of_stages, description = pipelined(subject, pipeline, flags_of_step, table, asked, dtype)
                return program_of_stages(_title(f"{about}\n{description}", LIBRARIES[backend], written))
            table, constants = _over(subject, lambda model: _model(model, *flags_of_step)[0], asked, flags_of_step[-1])
            of_all = f"a global batch of {constants['B']} by {constants['M']:,}"
            about += f"\nThe program of each device of {request.mesh}, for {of_all}."
    elif request.is_sharded:
        raise InputError("--mesh applies to models: a layer's program runs on one device")
    elif procedure is not None or plan is not None:
        raise InputError(f"--{'plan' if procedure is None else 'procedure'} applies to models only")
    elif isinstance(subject, Layer):
        table, about = _layer(subject, optimizer or "none", phase)
    elif isinstance(subject, Table):
        table, about = subject, subject.title
    else:
        raise InputError(f"emit takes a layer, a table or a model, not {shown(subject)}")
    if backend in IN_PLACE:
        if not isinstance(subject, Model):
            raise InputError(f"--backend {backend} applies to models: use numpy, torch or jax for a layer")
        batch = None if request.batch_size is None else check_size("batch-size", request.batch_size)
        length = None if request.seq_len is None else check_size("seq-len", request.seq_len)
        sizes = run_sizes(subject, batch, length, None)
        return _in_place(table, sizes, about, written, plan, dtype or "fp32", backend)
    title = _title(about, LIBRARIES.get(backend, backend), written)
    return program(table, backend, phase, title, constants, dtype).text


def _title(about: str, library: str, written: str) -> str:
    """Return the docstring of a program: its subject, its library, and its command."""
    paragraphs = [line for line in about.replace("\\", "/").splitlines() if line]
    paragraphs.append(f"For {library}. Written by learncost {__version__}:")
    filled = [fill(line, 100, break_long_words=False, break_on_hyphens=False) for line in paragraphs]
    return "\n\n".join((*filled, f"    {written}")) + "\n"


def _in_place(
    table: Table, sizes: Mapping[str, int], about: str, written: str, plan: str | None, dtype: str, backend: str
) -> str:
    """Return the source of a step in place, by default under the planner's plan."""
    if plan is None:
        from learncost.reports.memory.planner import TIMED_ON, fastest, smallest

        plan = (smallest if backend == "c" else fastest)(table, sizes, dtype)
        table, on = planned(table, plan), "" if backend == "c" else f" on {TIMED_ON}"
        about += f"\nUnder the plan {plan or 'none'}, chosen for {sizes['B']} x {sizes['M']:,} tokens in {dtype}{on}."
    if backend == "triton":
        from learncost.backends import triton

        about += "\nIts arena has BYTES bytes; the caller allocates weights and optimizer state."
        try:
            return triton.in_triton(table, sizes, dtype, _title(about, "PyTorch and Triton on a GPU", written)).text
        except InputError as error:
            raise InputError(f"--backend triton has no step of this model, as {error}: give --backend torch") from None
    from learncost.backends.placed import placed, standalone

    program = placed(table, sizes, dtype)
    about += f"\nIts arena has {program.bytes:,} bytes; the caller allocates weights and optimizer state."
    return standalone(program, _title(about, "PyTorch on a CPU, with kernels in C", written))


def _over(
    model: Model, step_of: Callable[[Model], Table], asked: MeshRequest, plan: str
) -> tuple[Table, Mapping[str, int]]:
    """Return the table of each device of a mesh, and its sizes."""
    from learncost.cli.emit_mesh import refuse_filled, refuse_zigzag
    from learncost.reports.mesh_cost import padded_step
    from learncost.sharding.place import place as place_step

    _, table, sizes, padded = padded_step(model, step_of, asked.grid, asked.clauses, asked.sizes(model))
    refuse_filled(model, padded)
    placed = place_step(table, asked.grid, asked.clauses, sizes, plan=plan)
    refuse_zigzag(placed)
    return placed.table, {**sizes, **placed.sizes}


def _model(model: Model, procedure: str, optimizer: str, plan: str) -> tuple[Table, str]:
    """Return the step of a model, whose outputs are new weights, or gradients without an optimizer."""
    chosen = find_procedure(procedure)
    if optimizer == "none":
        table, end = step(model, procedure), "gradients"
    else:
        table, end = without_gradients(step(model, procedure, optimizer)), f"optimizer {optimizer}"
    table = planned(table, plan, model.sizes)
    configuration = model.configuration
    under = f" under {plan}" if plan else ""
    about = f"{configuration.name}, one step of {procedure}{under}, {end}."
    if chosen.title != procedure:
        about += f"\n\n{chosen.title[:1].upper()}{chosen.title[1:]}: {chosen.source}."
    return table, f"{about}\nCounted as {configuration.counted}." if configuration.counted else about


def _layer(layer: Layer, optimizer: str, phase: str) -> tuple[Table, str]:
    """Return the tables of a layer: forward, step, or backward."""
    says = {
        "step": "forward, backward and weight update",
        "forward": "forward",
        "backward": "backward and weight update",
    }
    about = f"{layer.name}, {says[phase]}." + (f"\n\n{layer.source}" if layer.source else "")
    if phase == "forward":
        return layer.table, about
    derived = derive(layer)
    table = derived.step if phase == "step" else derived.reverse
    if phase == "backward":
        weights = tuple(name for name in layer.table.weights if name in {n for line in table.lines for n in line.reads})
        table = replace(table, weights=weights, values=derived.step.values)
    if optimizer != "none":
        gradients = {name: derived.gradients[name] for name in layer.table.weights if name in derived.gradients}
        table = with_optimizer(replace(table, weights=layer.table.weights), gradients, find_optimizer(optimizer))
        about = about.replace(".", f", optimizer {optimizer}.", 1)
    return table, about
