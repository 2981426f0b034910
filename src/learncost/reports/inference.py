"""The cost ledger of inference: prefill, which fills the KV cache, and decode, which reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from learncost.cost_models import Price, PricedLine, price
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.polynomial import Polynomial, size_of, total
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.models.configuration import Configuration, adds_paths, configure
from learncost.models.model import Model, Structure, build, context_beyond, run_sizes
from learncost.models.sizes import check_size
from learncost.models.tables import RUN
from learncost.passes.plan import NONE, check_plan, planned
from learncost.procedures.decoding import CACHED, CachedValue, axis_of
from learncost.procedures.inference import Inference, inference, to_logits
from learncost.procedures.procedure import FORWARD, INFERENCE, Procedure
from learncost.reports.mesh_cost import OverMesh, padded_step
from learncost.reports.microbatches import in_microbatches
from learncost.reports.record import Cache, Cost
from learncost.reports.request import OF_MEMORY, Request
from learncost.reports.rows import ledger
from learncost.reports.run import PreparedRun, check_probability, executed_plan, lengths_of, prepare
from learncost.reports.timing import Timing, timing
from learncost.sharding.collective import collectives, widths_of
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.place import place
from learncost.sharding.presets import chosen
from learncost.sharding.stages import pipeline_of
from learncost.timing.rates import Rates

if TYPE_CHECKING:
    from learncost.autoshard.step import StepUsage
    from learncost.devices.cluster import Cluster


@dataclass(frozen=True)
class PricedPass:
    """A pass of inference: its table, the sizes of its axes and its priced lines, with their time on a device.

    tables   both passes and the cache between them; None of a model that has no KV cache
    table    of the pass under its plan; over a mesh that of each device
    axes     its sizes, over a mesh with those of the shards
    context  tokens in the cache before the step, of decode; of a prompt, all its tokens
    held     the sizes with those of the cache when the pass is over
    over     the devices of a mesh
    takes    the time over a mesh, on a cluster
    page_size  tokens in a page of the cache
    """

    run: PreparedRun
    tables: Inference | None
    table: Table
    axes: Mapping[str, int]
    held: Mapping[str, int]
    context: int
    rows: tuple[PricedLine, ...]
    timed: Timing | None
    over: OverMesh | None = None
    takes: StepUsage | None = None
    page_size: int = 1

    def length_note(self, decodes: bool) -> str:
        """Return the note on how to request the whole context if the default length is shorter, else ""."""
        note = self.run.length_note
        return note.replace("--seq-len", "--context") if decodes else note

    @property
    def cache(self) -> tuple[CachedValue, ...]:
        """Return the values of the cache, with the shards of their axes on each device."""
        if self.tables is None:
            return ()
        known = self.table.known
        return tuple(array.sharded_as(known[array.name].axes) for array in self.tables.cache)


def cost_of_inference(priced: PricedPass, procedure: Procedure, by: str) -> Cost:
    """Return the exact cost of a forward pass, prefill or step of decode; over a mesh that of each device."""
    run, book, dtype = priced.run, priced.run.book.name, priced.run.dtype
    counts = Price(book, priced.rows, priced.axes, dtype)
    answer = ledger(run.model, procedure, counts, by, priced.timed, priced.over)
    context = priced.context if procedure.name == "decode" else None
    last_only = "last" in priced.table.inputs
    return replace(
        answer,
        context=context,
        cache=_cache(priced, dtype),
        last_only=last_only,
        plan=run.plan,
        over_time=priced.takes,
        _length_note=priced.length_note(procedure.name == "decode"),
    )


def served(request: Request, on: Rates | None = None, cluster: Cluster | None = None) -> PricedPass:
    """Return the priced forward pass, prefill or step of decode of a model, with its time on a device.

    seq_len (of an encoder-decoder: target_len) is the prompt, or the new tokens of a sequence in a step, by default 1.
    cluster  of the mesh whose devices have these rates
    Raises `InputError`.
    """
    procedure = INFERENCE[request.procedure]
    if request.adaptation() is not None:
        raise InputError(f"--train and --lora do not apply to inference ({procedure.name})")
    training: dict[str, object] = {"tokens": request.tokens, "optimizer": request.optimizer}
    training |= {"dropout": request.dropout if check_probability("dropout", request.dropout) else None}
    training |= {name: request.given.get(name) for name in (*OF_MEMORY, "microbatch", "chunks", "mode")}
    for name, value in training.items():
        if value is not None:
            raise InputError(f"--{name.replace('_', '-')} applies to training only, not to {procedure.name}")
    if request.is_sharded:
        request = in_microbatches(request)
    run_lengths, model_sizes = lengths_of(request)
    decodes = procedure.name == "decode"
    if request.context is not None and not decodes:
        raise InputError(f"--context requires --procedure decode: {procedure.name} starts with an empty KV cache")
    model = request.model
    if isinstance(model, Configuration):
        # What is frozen changes no forward pass; low-rank paths do, and `build` refuses them.
        configuration, left = replace(model, learned=model.learned if adds_paths(model) else None), model_sizes
    else:
        configuration, left = configure(model, model_sizes), {}
    built = build(configuration)
    tokens = "target_len" if built.two_sided else "seq_len"
    if built.configuration.layer and not built.two_sided and "target_len" in run_lengths:  # the letter M of a table
        run_lengths = {"seq_len": run_lengths.pop("target_len")} | run_lengths
    if decodes:
        inference(built.table, configuration.name)  # what cannot decode says so before its lengths are asked about
        run_lengths = {tokens: 1} | run_lengths
    given_lengths: dict[str, Any] = {name: run_lengths.get(name) for name in RUN}
    given = replace(request, **given_lengths)
    run = prepare(replace(given, model=configuration, dropout=0.0, sizes=left), ())
    new = run.axes.get("M", 1)
    tables = tables_of(run.model, procedure.name, several=decodes and new > 1)

    def sizes_of(tokens: int | None) -> dict[str, int]:
        """Return the sizes of all axes with a number of tokens, or with the default length."""
        lengths = (run_lengths.get("seq_len"), tokens) if run.model.two_sided else (tokens, None)
        return run_sizes(run.model, run.axes["B"], *lengths)

    context, axes, held = new, dict(run.axes), dict(run.axes)
    if decodes and tables is not None:
        context = _context(configuration.name, sizes_of, request.context, new)
        if request.context is None:
            run = replace(run, context=context_beyond(run.model.configuration))
        # What depends on the length, such as a window that is longer than the text, depends on all tokens.
        all_lengths = sizes_of(context + new)
        axes = held = {**all_lengths, **tables.lengths(all_lengths, context, new)}
    elif tables is not None:
        try:
            all_lengths = sizes_of(new + 1)  # the cache is allocated for one more token, if there is a position
        except InputError:
            all_lengths = sizes_of(new)
        held = {**all_lengths, **tables.lengths(all_lengths, context, 1)}
        axes = {**held, **axes}  # with those of the rows that convolutions keep

    def pass_of(model: Model, plan: str = "") -> Table:
        table = pass_table(model, procedure.name, several=decodes and new > 1)
        return planned(table, plan or run.plan)

    if tables is None or (request.page_size and not any(array.tokens for array in tables.cache)):
        request.check_without_cache(f"{procedure.name} of {configuration.name}")
    if request.plan:
        name = f"{request.procedure} of {configuration.name}"
        check_plan(pass_of(run.model, NONE), request.plan, name, request.is_sharded)
    table, over, takes = pass_of(run.model), None, None
    plan = executed_plan(pass_of(run.model, NONE), run.plan_asked, run.engine, on) if on else run.plan
    plan = "" if plan == run.plan else plan
    if request.is_sharded:
        over = over_devices(request, run.model, pass_of, axes)
        table, axes = over.placed.table, {**over.sizes, **over.placed.sizes}
        held = {**held, **over.placed.sizes}
    rows, timed = price(table, {}, run.book).rows, None
    if cluster is not None and over is not None and on is not None:
        from learncost.reports.mesh_time import over_time  # imported when used, for a fast start

        timed, takes = over_time(run, procedure.name, rows, over, (cluster, on), plan, pass_of(run.model, plan))
    elif on is not None:
        as_run = price(pass_of(run.model, plan), {}, run.book).rows if plan else rows
        timed = timing(as_run, axes, on, run.dtype, run.book, counted=(rows, plan) if plan else None)
    return PricedPass(run, tables, table, axes, held, context, rows, timed, over, takes, request.tokens_in_page)


def tables_of(model: Model, procedure: str, several: bool = False) -> Inference | None:
    """Return the prefill, decode and cache of a model; None without a cache, where inference is a forward pass.

    Raises `InputError` for `inference` of a model with two passes, and for a pass that a model does not have.
    """
    name = model.configuration.name
    if procedure != FORWARD:
        return inference(model.table, name, several=several)
    try:
        inference(model.table, name)
    except InputError:
        return None
    raise InputError(f"inference of {name} has two passes: give --procedure prefill or --procedure decode")


def pass_table(model: Model, procedure: str, several: bool = False) -> Table:
    """Return the table of a pass of inference."""
    tables = tables_of(model, procedure, several)
    if tables is None:
        return to_logits(model.table)
    return tables.decode if procedure == "decode" else tables.prefill


def over_devices(
    request: Request, model: Model, pass_of: Callable[[Model], Table], sizes: Mapping[str, int]
) -> OverMesh:
    """Return a pass over the mesh of a request. Raises `InputError`, also for pipeline stages."""
    grid = parse_mesh(request.mesh or "")
    clauses = chosen(request.place, request.placement, grid.names)
    if pipeline := pipeline_of(model.table, grid, clauses):
        raise InputError(f"{pipeline.clause} makes pipeline stages, which inference does not support: use dp, tp or ep")
    _, table, sizes, padded = padded_step(Structure(model).model, pass_of, grid, clauses, sizes)
    placed = place(table, grid, clauses, sizes, plan=request.plan or "")
    return OverMesh(placed, collectives(placed, sizes, widths_of(request.kind())), sizes, padded)


def _context(name: str, sizes_of: Callable[[int | None], Mapping[str, int]], value: Any, new: int) -> int:
    """Return the tokens in the cache, by default as many as leave positions for the new ones, else refuse them."""
    if value is None:
        try:
            context = sizes_of(None)["M"] - new
        except InputError:
            raise InputError(f"{name} has no default length: give --context") from None
        if context < 1:
            raise InputError(f"{new:,} new tokens leave no positions for a context in {name}")
        return context
    context = check_size("context", value)
    try:
        sizes_of(context + new)
    except InputError as error:
        raise InputError(f"context {context:,} and {new:,} new token{'s' if new > 1 else ''}: {error}") from None
    return context


def _cache(priced: PricedPass, dtype: str) -> Cache | None:
    """Return the bytes of the cache after a pass; over a mesh those of each device."""
    if priced.tables is None:
        return None
    sizes, arrays, page = {**priced.held}, priced.cache, priced.page_size
    tokens = [array for array in arrays if array.tokens]
    windows: dict[int, int] = {}
    for array in tokens:
        if array.window and sizes[axis_of(CACHED, array.window)] < priced.context:
            window = size_of(array.window, sizes)
            windows[window] = windows.get(window, 0) + array.elements.at(sizes)
    sizes |= {array.positions: -(-sizes[array.positions] // page) * page for array in tokens}
    return Cache(
        elements=sum(array.elements.at(sizes) for array in tokens),
        source=sum(array.elements.at(sizes) for array in arrays if not array.tokens and not array.is_state),
        state=sum(int(array.elements.at(sizes)) for array in arrays if array.is_state),
        windows=tuple(sorted(windows.items())),
        count=total(Polynomial.of(array.axes) for array in arrays).at(sizes),
        width=BYTES.get(dtype),
        remade=priced.tables.remade,
        page_size=page,
    )
