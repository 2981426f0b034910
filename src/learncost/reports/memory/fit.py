"""The learning procedures and plans that fit a device's memory, their largest batches, and suggested changes."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, dataclass, field, made_of, replace
from learncost.ir.errors import InputError
from learncost.models.sizes import CANONICAL, check_size, spelled
from learncost.procedures.optimizer import DEFAULT, state_of
from learncost.procedures.procedure import INFERENCE, PROCEDURES, several
from learncost.procedures.procedure import procedure as find_procedure
from learncost.program.arena import Region
from learncost.program.autograd.module import UserModule
from learncost.reports.memory.engines import GRAPH
from learncost.reports.memory.fit_question import ONE_PASS, FitQuestion, FitResult, advice_for, refusal
from learncost.reports.memory.inference import NAME, has_sequences
from learncost.reports.memory.memory import engine_over
from learncost.reports.memory.step import available, device_asked
from learncost.reports.memory.types import bytes_of, bytes_text
from learncost.reports.microbatches import DEFAULT_OVER_STAGES, stages_of
from learncost.reports.request import Request, takes_request
from learncost.reports.sheet import (
    WIDTH,
    AtLength,
    FigureAnswer,
    Sheet,
    TableColumn,
    batch_text,
    microbatches_text,
    number,
    plan_text,
    size_of,
    table,
    words_of,
)

if TYPE_CHECKING:
    from learncost.reports.memory.lengths import Lengths
    from learncost.reports.mesh_cost import OverMesh

RECORDED = "Its step is recorded at a few sizes; at others every number follows as a polynomial in them."
"""The note on a step that PyTorch itself has run."""

MICROBATCHES = 10**6
"""The largest number of microbatches."""

SHARDED = Key(form=attrgetter("without_communication"), optional=True).field
"""The metadata of a mesh of which the traffic is not written."""
_REGIONS = Key(form=lambda regions: {region.name: region.bytes for region in regions}, optional=True).field


@dataclass(frozen=True, repr=False)
class Fit(AtLength, FigureAnswer):
    """The procedures and plans that fit a device's memory, and changes that make the others fit.

    Attributes
    ----------
    model
        The model, by name.
    dtype
        The data type.
    optimizer
        The optimizer.
    seq_len
        Tokens in a sequence; 0 where the model is a table that has none.
    budget
        Available bytes of memory.
    flash_size
        Available bytes of flash memory, or None.
    engine
        The engine of the step, as in `lc.memory`.
    rows
        For each procedure and plan: `ram` and `flash` bytes of one sample, the `largest` batch that fits (0: none), and
        what takes `most`.
    advice
        For every procedure that does not fit what to change, and which procedures the model cannot learn by.
    module
        The module whose autograd step is simulated; "" under other engines.
    on
        The device that was named, or "".
    over
        Of many devices: what is cut over them; `budget` is then what each of them has, `largest` of all together.
    regions
        Of a microcontroller that was named, the regions of its RAM with the bytes that are left of each for arrays.
    page_size
        Of inference, tokens in a page of the KV cache.
    context
        Of decode, the tokens of each sequence in the KV cache before the step; else None.
    accumulate
        Microbatches that a batch is cut into.
    without_dropout
        The note that the model's configuration has dropout and the steps none; else "".

    Examples
    --------
    >>> found = lc.fit("gpt2", "64MB", procedures="bp", seq_len=128, optimizer="sgd")
    >>> any(row.fits for row in found.rows), len(found.advice) > 0
    (False, True)
    """

    _figures = ("fit",)

    model: str
    dtype: str
    optimizer: str
    seq_len: int
    budget: int
    flash_size: int | None
    engine: str
    rows: tuple[FitResult, ...]
    advice: tuple[str, ...]
    module: str = field(default="", metadata=Key(after="engine").field)
    on: str = field(default="", metadata=Key(after="engine").field)
    over: OverMesh | None = field(default=None, metadata=SHARDED)
    regions: tuple[Region, ...] = field(default=(), metadata=_REGIONS)
    _sample: str = field(default="sequence", metadata=HIDDEN)
    _smallest: int = field(default=1, metadata=HIDDEN)
    _caches: bool = field(default=True, metadata=HIDDEN)
    page_size: int = field(default=1, metadata=HIDDEN)
    context: int | None = field(default=None, metadata=Key(optional=True, after="seq_len").field)
    accumulate: int = field(default=1, metadata=Key(when=lambda found: found.accumulate > 1, after="seq_len").field)
    without_dropout: str = field(default="", metadata=OPTIONAL)

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return a table with a row for each procedure and plan."""
        batch = self._smallest
        columns = (
            *words_of("procedure plan"),
            TableColumn("engine", attrgetter("engine"), words=True, shown=len({row.engine for row in self.rows}) > 1),
            TableColumn(f"{self._kind}, batch {batch}", lambda row: number(row.ram)),
            TableColumn("flash", lambda row: size_of(row.flash), shown=self.flash_size is not None),
            TableColumn("batch", lambda row: f"{row.largest:,}" if row.fits else "no"),
            TableColumn("largest part", attrgetter("most"), words=True),
        )
        flash = "" if self.flash_size is None else f" and {bytes_text(self.flash_size)} of flash"
        where = f"{self.model} {f'on {self.on},' if self.on else 'in'} {bytes_text(self.budget)}"
        optimizer = "" if self._alone else f"{self.optimizer}, "
        title = f"{where} of {self._kind}{flash}{each_of(self.over)}: {self.dtype}, {optimizer}"
        title += batch_text(None, self.seq_len, context=self.context, sample=self._noun, length_note=self._length_note)
        title += microbatches_text(self.accumulate)
        return (table(title, columns, self.rows, (*self.advice, self._rule), self.answer),)

    @property
    def _kind(self) -> str:
        """Return the word for the memory: RAM of a device with flash memory, else memory."""
        return "RAM" if self.regions or self.flash_size is not None else "memory"

    @property
    def _alone(self) -> str:
        """Return the pass of inference that was asked about alone; "" for others."""
        return next((row.procedure for row in self.rows if row.procedure in ONE_PASS), "")

    @property
    def _noun(self) -> str:
        """Return the noun of what a batch has."""
        return self._sample if self.seq_len else "sample"

    @property
    def answer(self) -> str:
        """Return the largest batch of every procedure that fits, with its plan."""
        best: dict[str, FitResult] = {}
        for row in self.rows:
            if row.fits and (row.procedure not in best or row.largest > best[row.procedure].largest):
                best[row.procedure] = row
        if not best:
            return "Nothing fits; suggested changes are below."
        fitting = []
        for name, row in best.items():
            batch = batch_text(row.largest, 0, sample=self._noun)
            fitting.append(f"{name} {batch}{plan_text(row.plan)}")
        return f"Largest batches: {'; '.join(fitting)}."

    @property
    def _rule(self) -> str:
        """Return the note on which memory holds what, and which engine executes the step."""
        if self.over:
            rule = f"{self.over.sharding} Memory is per device; the batch is global."
            rule += f" {self.over.stage} {DEFAULT_OVER_STAGES}" if self.over.stage else ""
        else:
            rule = f"All weights, gradients and activations are in {self._kind}."
            if self.flash_size is not None:
                rule = "Frozen weights are in flash; trainable weights, gradients and activations are in RAM."
        if self._alone:
            rule = (
                f"{rule if self.over else ''} The peak is that of learncost memory --procedure {self._alone}.".strip()
            )
        if any(row.procedure == NAME for row in self.rows):
            cached = "prefill of a prompt of this length, or decoding of its last token"
            cached += f" in pages of {self.page_size:,} tokens" if self.page_size > 1 else ""
            rule += f" Inference is {cached if self._caches else 'a forward pass'}; all weights are frozen."
        if any(find_procedure(row.procedure, INFERENCE).modes for row in self.rows):
            rule += " pepita and mempepita use --mode paper, as in learncost memory."
        engines = dict.fromkeys(row.engine for row in self.rows)
        if GRAPH in engines:
            rule += " Engine graph executes the step's table, line by line."
            rule += self._not_by_autograd
        if others := [name for name in engines if name != GRAPH]:
            rule += f" Engine {', '.join(others)}: as in learncost memory --engine {others[0]}"
            rule += f", for the module {self.module}." if self.module else "."
            if self.module == UserModule.name:
                rule += f" {RECORDED}"
            if "c99" in others:
                rule += " Stack and code are not included."
        if self.without_dropout:
            rule += f" Steps have {self.without_dropout}."
        if self.regions:
            regions = " and ".join(f"{region.bytes:,} in {region.name}" for region in self.regions)
            left = self.budget - sum(region.bytes for region in self.regions)
            one = "; each array is in one region" if len(self.regions) > 1 else ""
            rule += f" Available after {left:,} bytes for the stack: {regions}{one}."
        return rule

    @property
    def _not_by_autograd(self) -> str:
        """Return the note on what the default engine does not support."""
        by_eager, first = {row.procedure for row in self.rows if row.engine != GRAPH}, dict[str, str]()
        for row in self.rows:
            if row.why and row.procedure not in by_eager:
                first.setdefault(row.procedure, row.why)
        whys = {why: [name for name in first if first[name] == why] for why in first.values()}
        texts = [f" Rows of {' and '.join(names)} use graph, since engine eager {why}." for why, names in whys.items()]
        if any(row.why and row.plan and row.why not in whys for row in self.rows):
            texts.append(" Rows of plans other than fused-update use graph, since engine eager does not support them.")
        return "".join(texts)


@takes_request(
    "model budget flash_size procedures seq_len optimizer dtype * dropout precision plan engine module "
    "optimizer_implementation loss offload no_sync communication_buffers train train_layers lora lora_rank "
    "lora_alpha dora lora_dropout target_len on mesh place placement schedule chunks accumulate context "
    "page_size"
)
def fit(
    request: Request, flash_size: int | str | None = None, procedures: Iterable[str] | str | None = None
) -> Fit | Lengths:
    """Find the learning procedures that fit a device's memory, their largest batches, and what to change if none fits.

    Parameters
    ----------
    budget
        Available memory, as 24GB or 24GiB. The default is the memory of the device of `on`.
    flash_size
        Available flash memory for frozen weights. By default frozen weights are in RAM.
    procedures
        The learning procedures to try, comma-separated: inference (no learning), {choices}; or prefill or decode alone,
        as in learncost memory. The default is inference and the first four others.
    seq_len
        Tokens in a sequence. Comma-separated list, as 512,1024,2048: shows what fits at each length. The default is the
        model's context, at most 4,096.
    optimizer
        adamw (the default), adamw8bit, lion, muon and others (`learncost list optimizers`).
    plan
        Try only this plan (`learncost list plans`). By default several are tried.
    accumulate
        Number of microbatches for gradient accumulation or of a pipeline; it divides the batch. The default over
        pipeline stages is their number.
    engine
        The engine that executes the step, as in learncost memory. The default is eager, and graph over a mesh, with
        `flash_size`, and where PyTorch's autograd has no step of the procedure or type. Without `plan`, rows of plans
        that eager does not support use graph, and say so.
    on
        A published device (`learncost list devices`) or a file that describes one; the defaults of `budget` and
        `flash_size`. On a GPU `engine` eager uses the GPU's kernels; cuda is any GPU. For a microcontroller the
        default engine is c99.
    mesh
        The mesh of devices, such as dp=2,tp=4: memory is per device, the batch is global.

    Returns
    -------
    Fit
        A row for each procedure and plan; for several lengths `Lengths`, with the largest batch at each.

    Raises
    ------
    InputError
        As for `lc.memory`, and if the model supports none of the procedures.

    Commands
    --------
    learncost fit gpt2 --budget 8GB
        Which procedures fit in 8 GB, and the largest batch of each.
    learncost fit net.table --on stm32h743
        A microcontroller: its RAM and flash, and the step as freestanding C99.
    learncost fit gpt2 --budget 256MB --flash-size 1GB --seq-len 128
        A small device with frozen weights in flash.
    learncost fit qwen2.5-7b --precision qlora --lora all-linear --seq-len 1024,4096,16384 --budget 24GB
        What fits a GPU at which length, with which checkpointing.
    learncost fit llama-3-8b --budget 80GB --precision bf16-masters --mesh dp=2,tp=4 --placement fsdp,megatron-sp
        What fits eight devices of 80 GB.

    Examples
    --------
    >>> found = lc.fit("gpt2", "256MB", "512MB", procedures="inference,bp", seq_len=128, dtype="int8", optimizer="sgd")
    >>> [(row.procedure, row.largest) for row in found.rows if row.fits]
    [('inference', 78), ('inference', 86), ('bp', 3), ('bp', 11)]
    """
    batch = next((size for size in request.sizes if CANONICAL.get(spelled(size)) == "batch_size" or size == "B"), None)
    if batch is not None:
        raise InputError(
            f"remove --{batch.replace('_', '-')}: learncost fit finds the largest batch that fits; learncost memory "
            "predicts the peak of one batch"
        )
    over, (device, engine, eager) = request.is_sharded, device_asked(request)
    if device is not None and flash_size is None:
        flash_size = device.flash
    if over:
        engine = engine_over(engine, request)
        if flash_size is not None:
            raise InputError("--flash-size cannot be combined with --mesh")
    trained = not INFERENCE.keys() & {*several(procedures)}
    capacity, regions = available(request.budget, device, engine if over and trained else "")
    if capacity is None:
        raise InputError("give --budget, such as --budget 24GB, or --on with a device of known memory")
    if device is None or not device.core:
        regions = ()  # shown for microcontrollers alone
    microbatches = check_size("accumulate", request.microbatches, MICROBATCHES)
    microbatches = stages_of(request) if request.accumulate is None and trained else microbatches
    trains = over or microbatches > 1
    names = tuple(dict.fromkeys(several(procedures) or (tuple(PROCEDURES) if trains else (NAME, *PROCEDURES))))
    alone = next((name for name in names if name in ONE_PASS), "")
    if alone and len(names) > 1:
        raise InputError(f"{alone} has other lengths than training: give --procedure {alone} alone")
    if microbatches > 1 and INFERENCE.keys() & {*names}:
        raise InputError(f"--accumulate applies to training: remove {alone or NAME} from --procedure")
    if request.context is not None and alone != "decode":
        raise InputError(f"--context requires --procedure decode, not {names[0]}")
    if not INFERENCE.keys() & {*names}:
        request.check_without_cache(names[0])
    question = FitQuestion(
        request,
        capacity,
        None if flash_size is None else bytes_of("flash_size", flash_size),
        state_of(request.optimizer or DEFAULT).name,
        request.kind(trains=not INFERENCE.keys() >= {*names}).name,
        engine,
        eager,
        regions,
        microbatches,
    )
    for name in names:
        find_procedure(name, INFERENCE)
    from learncost.reports.memory.lengths import at_lengths, lengths_of  # is built on this module

    if (lengths := lengths_of(request.seq_len)) is not None:
        if alone:
            raise InputError(f"{alone} is fitted at one length: give one --seq-len")
        return at_lengths(question, names, lengths)
    rows: list[FitResult] = []
    unfit: dict[str, list[str]] = {}
    refused: dict[tuple[bool, str], list[str]] = {}
    placed: OverMesh | None = None
    for name in names:
        candidates, why = question.candidates(name)
        placed = next((candidate.over for candidate in candidates), placed)
        for text in why:
            names_it = text.startswith(f"{name} ")  # said of the procedure, by its name
            refused.setdefault((names_it, text.removeprefix(f"{name} ")), []).append(name)
        different: dict[FitResult, FitResult] = {}  # in more than the plan's name
        for candidate in candidates:
            different.setdefault(replace(candidate.fitting, plan="", why=""), candidate.fitting)
        rows += different.values()
        if candidates and not any(candidate.fitting.fits for candidate in candidates):
            unfit.setdefault(advice_for(question, name, candidates), []).append(name)
    if not rows:
        # what most of them are refused for
        (of_each, text), refusing = max(refused.items(), key=lambda item: len(item[1]))
        raise InputError(refusal((of_each, text), refusing[:1]) if of_each else text)
    advice = [] if any(row.fits for row in rows) else ["Nothing fits."]
    advice += [
        f"{', '.join(names)} {'does' if len(names) == 1 else 'do'} not fit. {text}" for text, names in unfit.items()
    ]
    advice += [f"{refusal(refusal_key, names)}." for refusal_key, names in refused.items()]
    run = question.run(next(name for name in names if name in {row.procedure for row in rows}))
    length = run.axes["N"] if run.model.two_sided else run.axes["M"]
    if run.model.configuration.layer and not has_sequences(run.model):
        length = 0
    one_pass = question.one_pass(alone, request.plan)[0] if alone else None
    return made_of(
        Fit,
        question,
        model=run.model.configuration.name,
        seq_len=length,
        budget=device.data if device and regions else capacity,
        rows=tuple(rows),
        advice=tuple(advice),
        module=question.module(run, rows),
        on=device.name if device else "",
        over=placed,
        _sample=run.model.sample,
        _smallest=question.least * microbatches,
        _length_note=one_pass.length_note(alone == "decode") if one_pass else run.length_note,
        context=one_pass.context if one_pass and alone == "decode" else None,
        _caches=all(row.procedure != NAME for row in rows) or bool(question.serving(run).cache),
        page_size=request.tokens_in_page,
        without_dropout="" if INFERENCE.keys() >= {*names} else run.model.without_dropout,
    )


def each_of(over: OverMesh | None) -> str:
    """Return the remark that memory is per device."""
    return f" on each of {number(over.devices)} devices" if over else ""
