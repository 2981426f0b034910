"""The memory of a training step or a pass of inference: the peak, its parts and arrays, and what fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, attributes, dataclass, field, made_of, replace
from learncost.ir.errors import InputError, named_one
from learncost.ir.loop import walk
from learncost.liveness import LiveArray, LiveInterval, ProgramPoint
from learncost.models.tables import letters_of
from learncost.passes.plan import FUSED_ATTENTION, default_plan, plan_of
from learncost.passes.rewrite_lora import is_of_experts
from learncost.procedures.optimizer import DEFAULT
from learncost.procedures.procedure import INFERENCE, MODES, PAPER
from learncost.procedures.procedure import procedure as find_procedure
from learncost.program.arena import Region
from learncost.reports.memory.engines import DEFAULT_ENGINE, GRAPH, memory_engines
from learncost.reports.memory.runs import ChosenEngine, engine_of, largest, longest
from learncost.reports.memory.step import EagerOptions, MemoryStep, available, device_asked
from learncost.reports.request import OF_MEMORY, Request, takes_request
from learncost.reports.run import possible, prepare
from learncost.reports.sheet import AtLength, FigureAnswer, sizes_of

if TYPE_CHECKING:
    from learncost.passes.fused_update import EpilogueUpdates
    from learncost.program.arena import Arena
    from learncost.reports.memory.on_device import MemoryChange
    from learncost.reports.memory.show import MemoryComparison
    from learncost.reports.mesh_cost import OverMesh


_LINE = "line layer macro_operation"


@dataclass(frozen=True, repr=False, kw_only=True)
class Memory(AtLength, FigureAnswer):
    """The bytes of one training step: predicted from the step's table, or as a named engine executes it.

    Attributes
    ----------
    model
        The model, by name.
    procedure
        The learning procedure.
    plan
        The plan that rewrote the step.
    optimizer
        The optimizer.
    dtype
        The data type.
    batch_size
        Sequences in the step.
    seq_len
        Tokens in a sequence.
    target_len
        Tokens of the decoder's sequence, where there is an encoder too; else None.
    context
        Of decode, the tokens of each sequence in the KV cache before the step; else None.
    accumulate
        Microbatches that the batch is cut into.
    trained
        The trained parameters, as a phrase.
    mode
        The update rule of pepita and mempepita, paper or stable; "" for every other procedure.
    task
        The training objective, such as dpo; "" for next-token prediction.
    peak
        The peak in bytes.
    peak_at
        The point of the peak: the `line`, the `layer` and the `macro_operation` that run then.
    split
        The peak by what it holds: weights, gradients, optimizer state, activations, workspace; of an engine also its
        arena.
    live_at_peak
        The arrays that are alive then, the largest first, with `name`, `shape`, `bytes` and the layer that made them.
    curve
        The bytes at every line, in the order of the lines, and the loops around it (`loops`); empty where
        the engine has no account of lines.
    arrays
        Every array with the lines of the curve at which it is alive, `first` to `last`, counted from 0; at every line
        their bytes sum to the curve.
    flash
        Bytes of frozen weights outside of RAM.
    budget
        The bytes that the step may take, where they were given.
    fits
        With a budget, the largest batch and the longest sequence that fit, by name: 0 where nothing fits, None where it
        is not known.
    changes
        With a budget, the changes that save most memory, each with its `flags` and the `peak` that is left, and all of
        them together.
    engine
        The engine that executes the step; graph reads the step's table line by line.
    convention
        The convention: what is counted, and what is not.
    rules
        The engine's rules by subject: where new weights are stored, how long gradients are alive, what is saved
        for the backward pass, and the workspace of a line.
    module
        The module whose autograd step is simulated: transformers, plain, or the imported module itself;
        else "".
    experts
        The type of the weights of experts, where the precision quantizes other weights; else "".
    letters
        Of a run of a table, its sizes as the table calls them, `B = 2, M = 16`; else "".
    updates
        Under the plan epilogue-update: which weights are updated `inside` of the product of their gradient, and what
        the gradient of each one `outside` is; else None.
    arena
        The address of every array over the calls of the step, under an engine with a static arena (c99);
        else None.
    over
        With a mesh: its devices, what is cut over them, and what each sends. All bytes are then those of one device.
    buffers
        Bytes that libraries of products take from the allocator on top of the peak, at most: 0 to these are measured.
        None where that is not known.
    host
        Bytes in the memory of the host of what is offloaded, at most.
    unfit
        The reason why it does not fit the RAM regions of the named device; else "".

    Examples
    --------
    >>> found = lc.memory("gpt2", seq_len=64, plan="fused-update")
    >>> found.peak == sum(found.split.values())
    True
    >>> found.live_at_peak[0].name, found.live_at_peak[0].shape
    ('optimizer state', (1, 995518464))
    """

    _sheets_module = "learncost.reports.memory.show"
    _figures = ("memory",)
    _notebook_figure = "memory"

    model: str
    procedure: str
    plan: str
    optimizer: str
    dtype: str
    batch_size: int
    seq_len: int
    target_len: int | None
    accumulate: int
    trained: str
    engine: str = ""
    module: str = field(default="", metadata=OPTIONAL)
    over: OverMesh | None = field(default=None, metadata=OPTIONAL)
    updates: EpilogueUpdates | None = field(default=None, metadata=OPTIONAL)
    convention: str = ""
    rules: Mapping[str, str] = field(default_factory=dict)
    peak: int
    peak_at: ProgramPoint = field(metadata=Key(form=attributes(_LINE)).field)
    split: Mapping[str, int]
    buffers: int | None = field(
        default=None, metadata=Key("kernel_buffers", form=lambda most: {"least": 0, "most": most}, optional=True).field
    )
    context: int | None = field(default=None, metadata=OPTIONAL)  # tokens in the cache before a step of decode
    mode: str = field(default="", metadata=OPTIONAL)
    task: str = field(default="", metadata=OPTIONAL)
    experts: str = field(default="", metadata=OPTIONAL)
    flash: int = field(default=0, metadata=OPTIONAL)  # frozen weights that do not lie in RAM
    budget: int | None = field(default=None, metadata=OPTIONAL)
    fits: Mapping[str, int | None] | None = field(default=None, metadata=OPTIONAL)
    changes: tuple[MemoryChange, ...] = field(default=(), metadata=OPTIONAL)
    host: int = field(default=0, metadata=OPTIONAL)
    unfit: str = field(default="", metadata=OPTIONAL)
    live_at_peak: tuple[LiveArray, ...] = field(metadata=Key(form=attributes("name axes shape bytes layer")).field)
    curve: tuple[ProgramPoint, ...] = field(metadata=Key(form=attributes(f"{_LINE} bytes iterations")).field)
    arrays: tuple[LiveInterval, ...] = ()
    arena: Arena | None = field(default=None, metadata=OPTIONAL)
    letters: str = field(default="", metadata=HIDDEN)  # of a run of a table: its sizes as the table calls them
    _sample: str = field(default="sequence", metadata=HIDDEN)
    _where: str = field(default="", metadata=HIDDEN)  # the remark that the device is one of several
    _reserves: bool = field(default=False, metadata=HIDDEN)  # whether the budget is a device's memory without a reserve
    _positions: int | None = field(default=None, metadata=HIDDEN)  # the length that the model was made for
    _segments: Callable[[bool], int] | None = field(default=None, compare=False, metadata=HIDDEN)

    def reserved(self, expandable: bool = False) -> int | None:
        """Return the bytes of the segments that PyTorch's CUDA allocator reserves for the step.

        Parameters
        ----------
        expandable
            Whether `expandable_segments` is True, as torchtitan and axolotl set it.

        Returns
        -------
        int or None
            The bytes; None where the allocator is not simulated: of other engines than eager, and of a CPU.
        """
        return self._segments(expandable) if self._segments else None

    @property
    def nothing_fits(self) -> bool:
        """Return whether neither a batch nor a length fits the budget."""
        return self.budget is not None and not any((self.fits or {}).values())

    @property
    def _lacking(self) -> str:
        """Return why nothing fits the budget: what does not grow with the batch, or what one sequence takes."""
        inferring = self.procedure in INFERENCE
        each = " of each device" if self.over and inferring else ""
        text = f"{self.budget:,} bytes{each} are too few for one sequence"
        static = ("weights", "master weights", "gradients", "optimizer state")
        parts = [part for part in static if self.split.get(part)]
        fixed = sum(self.split[part] for part in parts)
        if fixed > (self.budget or 0):
            text += f" of one token: the {' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))} "
            text += f"at the peak alone need {fixed:,}"
        elif self.batch_size == 1:
            text += f" of {self.seq_len:,} tokens, which needs {self.peak:,}"
        return f"{text}; learncost fit shows what fits"


@dataclass(frozen=True)
class MemoryQuestion:
    """A request about memory, checked: the engine, the budget and the regions that its device sets.

    request  with the batch and the microbatches of a mesh
    budget   bytes of memory; None: not known
    """

    request: Request
    engine: str
    eager: EagerOptions
    budget: int | None
    regions: tuple[Region, ...]

    def step(self, procedure: str, engine: str = "") -> MemoryStep:
        """Return the step of a learning procedure, over the mesh of the request. Raises `InputError`."""
        request = self.request
        request.check_without_cache(procedure)
        kind = request.kind(trains=True)
        counted_alone = replace(
            request, price_book="run", optimizer=None, tokens=None, task="", teacher=None
        ).in_precision(kind.name)
        chosen_engine = named_one("engine", engine or DEFAULT_ENGINE, memory_engines())
        run = prepare(replace(counted_alone, procedure=procedure))
        chosen, accumulate, planner = request.optimizer or DEFAULT, request.microbatches, chosen_engine.planner
        if request.is_sharded:
            from learncost.reports.microbatches import whole_batch  # only where there is a mesh

            planner = of_part(planner, whole_batch(request))
        given = run, procedure, kind, chosen, accumulate, False, self.budget, planner, request.mode, self.eager
        step = MemoryStep(*given)
        step.regions = self.regions
        if request.mesh is None:
            return step
        return step.under(chosen_engine).over_mesh(request, chosen_engine)

    def least(self, procedure: str, engine: str) -> int:
        """Return the bytes of weights and states, for an engine that lays a program out, which takes long; else 0."""
        lays_out = bool(engine) and named_one("engine", engine, memory_engines()).arrays is not None
        return self.step(procedure, GRAPH).least if lays_out else 0


def memory_question(request: Request) -> MemoryQuestion:
    """Return the request as a question about memory. Raises `InputError` for what its engine or device cannot do."""
    device, engine, eager = device_asked(request)
    named_one("mode", request.mode, MODES)
    procedures = _names("procedures", request.procedure)
    if request.mode != PAPER and not any(find_procedure(name, INFERENCE).modes for name in procedures):
        raise InputError(f"--mode applies to pepita and mempepita, not to {request.procedure}")
    if request.is_sharded:
        engine = engine_over(engine, request)
        from learncost.reports.microbatches import in_microbatches  # only where there is a mesh

        request = in_microbatches(request)
    trains = request.is_sharded and not INFERENCE.keys() & {*procedures}
    budget, regions = available(request.budget, device, engine if trains else "")
    return MemoryQuestion(request, engine, eager, budget, regions)


@takes_request(
    "model procedure batch_size seq_len target_len optimizer dropout dtype * context page_size precision plan "
    "accumulate clip budget on engine module optimizer_implementation loss task teacher checkpoint_every offload "
    "no_sync mode communication_buffers train train_layers lora lora_rank lora_alpha dora lora_dropout mesh place "
    "placement schedule microbatch chunks"
)
def memory(request: Request) -> Memory | MemoryComparison:
    """The exact memory of one training step or pass of inference: its peak, the live arrays there, what fits a budget.

    Parameters
    ----------
    procedure
        The learning procedure: {choices} (`learncost list procedures`); or prefill, decode or inference, as in
        learncost cost. Comma-separated list; results are compared.
    optimizer
        adamw (the default), adamw8bit, lion, muon and others (`learncost list optimizers`).
    dropout
        The dropout probability. With dropout > 0, masks are allocated.
    plan
        Memory optimizations, comma-separated: flash (FlashAttention), recompute=... (activation checkpointing),
        chunked-loss (chunked cross-entropy), fused-update (optimizer fused into backward) and others (`learncost list
        plans`); auto: the planner's choice, which is the default of `engine` torch.
    budget
        Available memory, as 8GB or 256MiB. Shows the largest batch and sequence length that fit.
    on
        A published device (`learncost list devices`) or a file that describes one; its memory is the default of
        `budget`. On a GPU `engine` eager uses the GPU's kernels; cuda is any GPU, without a budget. For a
        microcontroller, `engine` c99 is used and the result shows which arrays are in which RAM region, unless
        `budget` is given.
    engine
        The engine that executes the step: eager (PyTorch's autograd, on a CPU or on the GPU of `on`; under the plan
        fused-update with an optimizer step in gradient hooks, under chunked-loss with Liger's loss), graph (the step's
        table, line by line), numpy or torch (programs that learncost emits, torch in place where possible), cuda (the
        step of emit in Triton on a GPU, which was never measured on one), compiled (a module of a file under
        torch.compile), or c99. The default is eager; it is graph over a mesh, unless a flag needs eager, and where
        PyTorch's autograd has no step of the procedure, type or model, unless `module` is given. Flags that the default
        does not support are refused. Comma-separated list; results are compared.
    mode
        The update rule of pepita and mempepita: paper (the default) or stable (used by learncost train).

    Returns
    -------
    Memory
        The peak, its parts and the live arrays at the peak; a `MemoryComparison` for several procedures or engines.

    Raises
    ------
    InputError
        As for `lc.cost`, and if the engine does not support the step.

    Commands
    --------
    learncost memory gpt2 --on RTX-4090
        Whether a step fits the device, what uses the memory, and the changes that save most.
    learncost memory gpt2 --batch-size 4
        The peak of a training step of four sequences, and the arrays behind it.
    learncost memory gpt2 --engine graph,eager,numpy
        The memory of the step under three engines, and the rules that explain the difference.
    learncost memory llama-3-8b --mesh dp=8 --placement fsdp --precision bf16-masters
        The memory of each of eight devices.
    learncost memory llama-3-8b --procedure decode --context 8000 --batch-size 16 --on H100-SXM
        Weights, KV cache and activations of a step of decode.
    learncost memory gpt2 --budget 8GB
        The largest batch and the longest sequence that fit in 8 GB.
    learncost memory net.table --on stm32f407 --B 4
        Which arrays are in which region of a microcontroller's RAM.

    Examples
    --------
    >>> asked = {"plan": "chunked-loss,fused-update", "engine": "graph", "budget": "8GB"}
    >>> found = lc.memory("gpt2", batch_size=4, seq_len=256, **asked)
    >>> found.peak, found.peak_at.line
    (2720187404, 'dwte+1:sum.2')
    >>> found.split["weights"], found.split["optimizer state"]
    (497759232, 995518464)
    >>> found.fits
    {'batch_size': 31, 'seq_len': 1024}
    """
    question = memory_question(request)
    limit = question.budget
    names, engines = _names("procedures", request.procedure), _names("engines", question.engine)

    def with_changes(answer: Memory) -> Memory:
        if limit is None or len(names) > 1 or len(engines) > 1:
            return answer
        from learncost.reports.memory.on_device import changes_of  # only where it is asked for: start-up

        return replace(answer, changes=changes_of(question, answer))

    def of_one(procedure: str, engine: str) -> Memory:
        if procedure in INFERENCE:
            from learncost.reports.memory.inference import memory_of_inference  # only where it is asked for: start-up

            asked = replace(request, batch_size=question.request.batch_size, procedure=procedure, engine=engine)
            return with_changes(memory_of_inference(asked, limit))
        if question.regions and (least := question.least(procedure, engine)) > (limit or 0):
            needed, present = sizes_of(least, limit or 0)
            raise InputError(
                f"no batch fits: weights and optimizer state take {needed} of {present}; learncost fit shows what fits"
            )
        answer = replace(
            answered(question.step(procedure, engine), engine, limit),
            _where=question.request.one_of_several,
            _reserves=request.is_sharded and request.budget is None,
        )
        if answer.unfit and answer.nothing_fits:
            raise InputError(
                f"no batch fits: a batch of {answer.batch_size} needs {answer.unfit}; learncost fit shows what fits"
            )
        return with_changes(answer)

    if len(names) > 1 and len(engines) > 1:
        raise InputError(
            "several procedures and several engines cannot be compared at once: give one procedure or one engine"
        )
    if len(names) == 1 and len(engines) == 1:
        return of_one(*names, *engines)
    from learncost.reports.memory.show import MemoryComparison  # is built on this module

    if len(engines) > 1:
        return MemoryComparison(tuple(of_one(names[0], engine_name) for engine_name in engines), "engine")
    for name in names:
        find_procedure(name, INFERENCE)
    answers, refused = possible(lambda name: of_one(name, engines[0]), names)
    return MemoryComparison(tuple(answers.values()), left_out=refused)


OF_ENGINES = "accumulate", "clip", "communication_buffers"
"""The settings of memory that other engines than eager have, too."""

OF_AUTOGRAD = ("task", "teacher", *(name for name in OF_MEMORY if name not in OF_ENGINES))
"""The settings that engine eager alone has."""


def engine_over(engine: str, request: Request) -> str:
    """Return the engine over a mesh: graph by default, eager for what it alone has. Raises `InputError`."""
    for name in filter(None, engine.split(",")):
        if why := named_one("engine", name.strip(), memory_engines()).alone:
            others = " or ".join(each.name for each in memory_engines().values() if not each.alone)
            raise InputError(f"--engine {name.strip()} does not support --mesh, since {why}: use {others}")
    return engine or (DEFAULT_ENGINE if any(name in request.given for name in OF_AUTOGRAD) else GRAPH)


def of_part(
    planner: Callable[[MemoryStep, Mapping[str, int]], str], number: int
) -> Callable[[MemoryStep, Mapping[str, int]], str]:
    """Return the planner for one of a number of microbatches."""
    return lambda step, sizes: planner(step, {**sizes, "B": max(sizes["B"] // number, 1)})


def _names(kind: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) < len(names):
        raise InputError(f"{kind} must be a comma-separated list of different names, not {text!r}")
    return names


def answered(step: MemoryStep, engine: str = "", budget: int | None = None) -> Memory:
    """Return the memory of a step under its engine; with a budget also the largest batch and length that fit, or 0.

    Raises `InputError` as `engine_of`.
    """
    chosen = engine_of(step, engine)
    answer, step, chosen_engine = memory_on(chosen), chosen.step, chosen.chosen_engine
    if budget is None:
        return answer
    fits = {"batch_size": largest(step, chosen_engine, budget), "seq_len": longest(step, chosen_engine, budget)}
    return replace(answer, budget=budget, fits=fits)


def memory_on(chosen: ChosenEngine) -> Memory:
    """Return the memory of a step as an engine executes it."""
    chosen_engine, step = chosen.chosen_engine, chosen.step
    needs = chosen_engine.takes(step, step.sizes())
    curve, intervals = needs.lines()
    why = f" Engine eager does not support this step (it {chosen.why}); using graph." if chosen.why else ""
    if step.eager.clip and not chosen_engine.module:
        why += " Clipping adds one norm for each gradient, which is not counted."
    if step.run.plan and not chosen_engine.module and default_plan(step.unplanned) not in step.plan:
        why += f" Attention scores are stored: --plan {FUSED_ATTENTION},{step.run.plan} stores none."
    why += f" It has {note}." if (note := step.model.without_dropout) else ""
    if step.model.configuration.not_read:
        why += f" The configuration has {step.model.configuration.not_read}."
    axes = step.run.axes
    batch_size, seq_len, target_len = step.model.lengths(axes)
    return made_of(
        Memory,
        needs,
        model=step.model.configuration.name,
        procedure=step.procedure,
        optimizer=step.optimizer.name,
        dtype=step.kind.name,
        batch_size=batch_size,
        seq_len=seq_len,
        target_len=target_len,
        accumulate=step.accumulate,
        trained=step.run.trained,
        mode=step.mode,
        task=step.eager.task,
        experts=_experts(step, chosen_engine.module),
        updates=_updates(step),
        letters=letters_of(step.model.configuration.layer, axes),
        over=step.over,
        _sample=step.model.sample,
        _positions=step.model.positions,
        _segments=needs.reserved,
        _length_note=step.run.length_note,
        plan=chosen.plan,
        peak=needs.bytes,
        curve=curve,
        arrays=tuple(intervals),
        flash=step.flash if needs.flash is None else needs.flash,
        engine=chosen_engine.name,
        convention=(needs.convention or chosen_engine.convention) + why,
        rules=needs.rules or chosen_engine.rules,
        module=step.module if chosen_engine.module else "",
    )


def _experts(step: MemoryStep, with_module: bool) -> str:
    """Return the type of the weights of experts where others are quantized; "" where there are none.

    bitsandbytes quantizes linear modules, as which transformers before version 5 has experts.
    """
    lines = (line for line, _ in walk(step.declared.lines))
    if step.kind.quantized is None or not any(is_of_experts(line, name) for line in lines for name in line.reads):
        return ""
    from learncost.program.autograd.module import module_named  # imported when used, for a fast start

    linear = with_module and module_named(step.module).linear_experts
    return f"{step.kind.quantized.bits} bits" if linear else step.kind.weights


def _updates(step: MemoryStep) -> EpilogueUpdates | None:
    """Return the weights that are updated inside of a product; None if the plan has no epilogue updates."""
    if not any(plan.name == "epilogue-update" for plan, _ in plan_of(step.plan)):
        return None
    from learncost.passes.fused_update import updates  # imported when used, for a fast start

    return updates(step.table)
