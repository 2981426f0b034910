"""The memory of inference: weights, activations and KV cache of prefill and decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Product
from learncost.ir.loop import map_lines, map_loops
from learncost.ir.polynomial import Polynomial, size_of, whole
from learncost.ir.precision import Precision
from learncost.ir.table import Table
from learncost.ir.term import Read, Term
from learncost.ir.value import Value
from learncost.layers.active import parameters
from learncost.liveness import Live, LiveArray, LiveInterval, levels, live
from learncost.models.model import Model, Structure, run_sizes
from learncost.models.tables import has_batch, letters_of
from learncost.passes.plan import default_plan, planned
from learncost.passes.quantized import bytes_of_array
from learncost.procedures.decoding import CACHED, TOKENS, CachedValue, axis_of
from learncost.procedures.inference import Inference, inference, to_logits
from learncost.procedures.needed import needed
from learncost.program.calls import IN_KERNELS
from learncost.reports.inference import PricedPass, over_devices, served
from learncost.reports.memory.engines import GRAPH
from learncost.reports.memory.largest import LONGEST, largest_batch, longest_within
from learncost.reports.memory.memory import Memory
from learncost.reports.memory.step import NAMES
from learncost.reports.memory.types import INDEX
from learncost.reports.mesh_cost import OverMesh
from learncost.reports.microbatches import whole_batch
from learncost.reports.request import Request

NAME = "inference"
"""The name of inference among the learning procedures of `fit`."""

STATE = "recurrent state"
"""The part of the peak that recurrences have in place of a KV cache, which also the last rows of convolutions are."""


@dataclass(frozen=True)
class InferencePass:
    """A pass of inference with the sizes of its axes; `grown` are the bytes per sequence added to the cache.

    table   what is alive: a given cache grows in place, and is not a result
    whole   the same pass as an engine runs it, which hands out the cache
    batch   the axis of the batch
    over    the devices of a mesh; the tables are then those of one device
    states  the cached values that are as large after any number of tokens
    """

    table: Table
    whole: Table
    sizes: Mapping[str, int]
    cache_growth: int = 0
    batch: str = "B"
    over: OverMesh | None = None
    states: frozenset[str] = frozenset()

    @property
    def local_sizes(self) -> dict[str, int]:
        """The sizes of all axes and of their shards."""
        return {**self.sizes, **(self.over.placed.sizes if self.over else {})}

    def part(self, array: LiveArray | LiveInterval) -> str:
        """Return the part of the peak that an array belongs to."""
        if array.role == "weight":
            return "weights"
        value = self.table.known.get(array.name)
        if value is None or value.role != "cache":
            return "activations"
        return STATE if array.name in self.states else "KV cache"


@dataclass(frozen=True)
class InferenceSetting:
    """Inference with a number of tokens: all as a prompt, or the last ones with the others in the cache.

    A model that cannot decode has its forward pass alone.
    seq_len, target_len  tokens, as `cost` takes them; 0 of a table without sequences
    in_flash             all weights lie in flash, not in RAM
    plan_asked           rewritings of both passes; None: fused attention where it applies
    procedure            the only pass; empty: both
    new                  tokens of a sequence that a step of decode adds
    batch                sequences
    page_size            tokens in a page of the KV cache: each sequence has full pages
    sharded              a request with a mesh: all bytes are then those of one of its devices
    """

    model: Model
    kind: Precision
    seq_len: int
    target_len: int | None = None
    in_flash: bool = False
    plan_asked: str | None = None
    procedure: str = ""
    new: int = 1
    batch: int = 1
    sharded: Request | None = None
    page_size: int = 1

    @cached_property
    def weights(self) -> int:
        """The bytes of all weights, also of those that a pass does not read."""
        table, sizes = self.model.table, self.sizes
        if self.sharded is not None:
            over = over_devices(self.sharded, self.model, lambda model: model.table, self.sizes)
            table, sizes = over.placed.table, {**over.sizes, **over.placed.sizes}
        stored = (array for weight in self.model.quantized for array in (weight.codes, *weight.scales))
        arrays = (replace(array, axes=table.axes.get(array.name, array.axes)) for array in stored)
        return self._bytes_of(table, sizes) + sum(bytes_of_array(array, sizes) for array in arrays)

    def _tables_of(self, model: Model) -> _Tables:
        return _tables(Structure(model), self.plan_asked, self.new > 1)

    @property
    def unplanned(self) -> Table:
        """Return the pass of the prompt without a plan."""
        return _tables(Structure(self.model), "", self.new > 1).prompt

    @property
    def plan(self) -> str:
        """Return the plan of both passes."""
        return self._tables_of(self.model).plan

    @property
    def flash(self) -> int:
        return self.weights if self.in_flash else 0

    def _bytes_of(self, table: Table, sizes: Mapping[str, int]) -> int:
        """Return the bytes of the weights that are not quantized."""
        codes = {weight.codes.name for weight in self.model.quantized}
        plain = replace(table, weights=tuple(name for name in table.weights if name not in codes))
        return int(parameters(plain).at(sizes)) * self.kind.weight

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of all axes with all tokens."""
        return run_sizes(self.model, self.batch, self.seq_len or None, self.target_len)

    @property
    def _next_sizes(self) -> dict[str, int]:
        """Return the sizes with one more token, if there is a position, for which the cache is allocated."""
        lengths = (self.seq_len + 1, None) if self.target_len is None else (self.seq_len, self.target_len + 1)
        try:
            return run_sizes(self.model, self.batch, *lengths)
        except InputError:
            return self.sizes

    @cached_property
    def passes(self) -> tuple[InferencePass, ...]:
        """The passes: prefill and decode, or one of them."""
        sizes, new = self.sizes, self.new
        tables = self._tables_of(self.model)
        states = frozenset(array.name for array in self.cache if array.is_state)
        several: list[InferencePass] = []
        if self.procedure != "decode":
            held = {} if tables.passes is None else tables.passes.lengths(self._next_sizes, sizes["M"], new=1)
            (prompt,), local, over = self._on_each(lambda each: (each.prompt,), {**held, **sizes})
            arrays = _growing(tables.passes) if tables.passes is not None else []
            added = self._added(prompt, arrays, local, over, 0)
            several.append(InferencePass(prompt, prompt, local, *added, over, states))
        if tables.passes is not None and sizes["M"] > new and self.procedure in ("", "decode"):
            step_lengths = {**sizes, **tables.passes.lengths(sizes, sizes["M"] - new, new)}
            (logits, decode), local, over = self._on_each(lambda each: each.token, step_lengths)
            added = self._added(logits, _growing(tables.passes), local, over, new)
            several.append(InferencePass(logits, decode, local, *added, over, states))
        return tuple(several)

    def _added(
        self, table: Table, arrays: Sequence[CachedValue], local: Mapping[str, int], over: OverMesh | None, new: int
    ) -> tuple[int, str]:
        """Return the bytes of a sequence that the cache of a pass does not count, and the axis of the batch.

        These are the new tokens, and the rest of the last page of each cached value.
        """
        known, axes = table.known, local if over is None else {**local, **over.placed.sizes}
        size = 0
        for array in arrays:
            rest = -(axes[array.positions] + new) % self.page_size
            size += int(array.sharded_as(known[array.name].axes).elements.at(axes)) * (new + rest)
        batch = next(axis for axis in known[arrays[0].name].axes if whole(axis) == "B") if arrays else "B"
        return size * self.kind.value, batch

    def _on_each(
        self, tables_of: Callable[[_Tables], tuple[Table, ...]], sizes: Mapping[str, int]
    ) -> tuple[tuple[Table, ...], Mapping[str, int], OverMesh | None]:
        """Return the tables of a pass, over a mesh those of each device, with the sizes of all axes."""

        def of(model: Model) -> tuple[Table, ...]:
            return tables_of(self._tables_of(model))

        if self.sharded is None:
            return of(self.model), sizes, None

        def placed(place: int) -> OverMesh:
            return over_devices(request, self.model, lambda model: of(model)[place], sizes)

        request, number = self.sharded, len(of(self.model))
        several = [placed(place) for place in range(number)]
        return tuple(over.placed.table for over in several), several[0].sizes, several[0]

    @property
    def _widths(self) -> dict[str, int]:
        return {"weight": self.kind.weight, "index": INDEX} | self.model.quantized_widths

    def _resident(self, inference_pass: InferencePass) -> int:
        """Return the bytes of weights in RAM that the table of a pass does not count; negative for weights in flash."""
        return self.weights - self._bytes_of(inference_pass.table, inference_pass.local_sizes) - self.flash

    @cached_property
    def levels(self) -> tuple[Polynomial, ...]:
        """The bytes in RAM at every line of every pass, as linear polynomials in the batch."""
        polynomials: dict[frozenset[tuple[tuple[str, ...], Any]], Polynomial] = {}
        for inference_pass in self.passes:
            sizes = inference_pass.local_sizes
            others = sizes if self.sharded else {name: size for name, size in sizes.items() if name != "B"}
            uncounted = Polynomial.of((inference_pass.batch,), inference_pass.cache_growth).with_sizes(others)
            uncounted += Polynomial.of((), self._resident(inference_pass))
            sums = (
                level + uncounted
                for level in levels(inference_pass.table, others, NAMES[self.kind.value], self._widths)
            )
            polynomials |= {frozenset(level.terms.items()): level for level in sums}
        return tuple(polynomials.values())

    def peak(self, batch: int | None = None) -> int:
        """Return the peak bytes in RAM."""
        if self.sharded is not None and batch not in (None, self.batch):
            return replace(self, batch=batch or 1).peak()
        return max(int(level.at({"B": batch or self.batch})) for level in self.levels)

    def largest(self, budget: int) -> int:
        """Return the largest batch that fits a budget, or 0. Raises `InputError` without a batch axis."""
        if not has_batch(self.model.table):
            raise InputError(
                "its memory does not grow with a batch B, so fit cannot find one; use learncost memory for the peak"
            )
        return self.unit * largest_batch(lambda several: self.peak(several * self.unit), budget)

    @cached_property
    def cache(self) -> tuple[CachedValue, ...]:
        """The values of the KV cache; none of a model that cannot decode."""
        passes = self._tables_of(self.model).passes
        return () if passes is None else passes.cache

    @property
    def notes(self) -> Iterator[str]:
        """Yield what is counted, and what pages and sliding windows make of the cache, in sentences."""
        cache = self.cache
        states = [array for array in cache if array.is_state]
        kept = ["the recurrent state"] if states else []
        if len(cache) > len(states):
            kept.insert(0, "the KV cache with the new tokens")
        yield CONVENTION.format(" and ".join(kept)) if kept else WITHOUT_CACHE
        if cache and self.page_size > 1:
            yield f"The cache of a sequence is rounded up to whole pages of {self.page_size:,} tokens."
        windows = {int(size_of(array.window, self.sizes)) for array in cache if array.window}
        for window in sorted(window for window in windows if window <= self.sizes["M"]):
            yield f"Layers with a window of {window:,} tokens cache the last {window - 1:,}, as transformers does."
        if self.model.configuration.not_read:
            yield f"The configuration has {self.model.configuration.not_read}."

    @property
    def unit(self) -> int:
        """The smallest batch: one sequence for each device that has its own."""
        return whole_batch(self.sharded) if self.sharded else 1

    @cached_property
    def at_peak(self) -> tuple[InferencePass, Live, dict[str, int]]:
        """The pass with the highest peak, its arrays, and the peak's parts: weights, KV cache, activations."""
        several: list[tuple[InferencePass, Live, dict[str, int]]] = []
        for each in self.passes:
            sizes = each.local_sizes
            cache_growth = each.cache_growth * int(size_of(each.batch, sizes))
            split = {"weights": self._resident(each), "KV cache": cache_growth, "activations": 0}
            split |= dict.fromkeys([STATE] if each.states else (), 0)
            arrays = live(each.table, sizes, NAMES[self.kind.value], self._widths, IN_KERNELS)
            for live_array in arrays.live_at_peak:
                split[each.part(live_array)] += live_array.bytes
            several.append((each, arrays, split))
        return max(several, key=lambda each: sum(each[2].values()))

    def split(self) -> dict[str, int]:
        """Return the parts of the peak: weights, KV cache, activations."""
        return self.at_peak[2]

    @property
    def uncounted(self) -> int:
        """Bytes at the peak that no line of the pass counts: other weights, and the new tokens of the cache."""
        _, arrays, split = self.at_peak
        return sum(split.values()) - int(arrays.peak)

    def longest(self, budget: int, most: int | None = None) -> int | None:
        """Return the longest sequence, at most this one, that fits; 0 if none; None if there is one length, or two.

        The new tokens of a step of decode are part of a sequence.
        """
        if self.target_len is not None or (self.procedure == "decode" and not any(a.tokens for a in self.cache)):
            return None
        if self.weights - self.flash > budget:
            return 0

        before = self.new if self.procedure == "decode" else 0

        def peak(length: int) -> int:
            return replace(self, seq_len=before + length).peak()

        try:
            return 0 if peak(1) > budget else before + longest_within(peak, budget, most or self.seq_len)
        except InputError:  # an image has all its patches
            return None


@dataclass(frozen=True)
class _Tables:
    """The passes of a model under a plan for any length; `passes` is None for a model that cannot decode."""

    prompt: Table
    passes: Inference | None
    plan: str

    @cached_property
    def token(self) -> tuple[Table, Table]:
        """The tables of the next token: up to its logits, and complete."""
        assert self.passes is not None
        decode = self.passes.decode
        filled = {f"{array.name}.2" for array in self.passes.cache}  # in place, as transformers' caches are
        logits = needed(decode, tuple(name for name in decode.outputs if name not in filled))
        return planned(logits, self.plan), planned(decode, self.plan)


@lru_cache(maxsize=8)
def _tables(structure: Structure, plan_asked: str | None, several: bool = False) -> _Tables:
    model, passes = structure.model, None
    try:
        passes = inference(model.table, model.configuration.name, several=several)
    except InputError:  # an encoder
        prompt = to_logits(model.table)
    else:
        prompt = _with_windows(passes.prefill, passes.cache)
    plan = default_plan(prompt) if plan_asked is None else plan_asked
    return _Tables(planned(prompt, plan), passes, plan)


def _with_windows(table: Table, cache: Iterable[CachedValue]) -> Table:
    """Return the pass of a prompt whose sliding windows cache the last positions only, read at an index `recent`.

    transformers, DynamicSlidingWindowLayer.update: keys[:, :, -sliding_window + 1 :] of the layer are kept.
    """
    windows = {array.name: array.window for array in cache if array.window}
    recent = {
        f"recent.{window}": Value((axis_of(CACHED, window),), "index") for window in dict.fromkeys(windows.values())
    }

    def values_of(values: Mapping[str, Value]) -> dict[str, Value]:
        return {name: value.along(held(name, value.axes)) for name, value in values.items()}

    def held(name: str, axes: Iterable[str]) -> Iterator[str]:
        return (axis_of(CACHED, windows[name]) if name in windows and axis == TOKENS else axis for axis in axes)

    def last_only(line: Line) -> tuple[Line]:
        if line.name not in windows:
            return (line,)
        window, (left,), (right,) = windows[line.name], line.left, line.right
        assert isinstance(right, Term)
        index = Term(f"recent.{window}", (axis_of(CACHED, window),))
        read = (Read(axis, index) if axis == TOKENS else axis for axis in right.axes)
        kept = replace(left, axes=tuple(held(line.name, left.declared)))
        return (Product((kept,), (replace(right, axes=tuple(read)),), line.where, line.meta),)

    if not windows:
        return table
    lines = map_loops(map_lines(table.lines, last_only), lambda loop: replace(loop, values=values_of(loop.values)))
    return replace(table, lines=lines, values={**values_of(table.values), **recent}, inputs=(*table.inputs, *recent))


def _growing(passes: Inference) -> list[CachedValue]:
    return [array for array in passes.cache if array.tokens]


CONVENTION = "Counted: all weights, {}, updated in place, and the activations of the pass, freed after their last use."
"""The text that says what the memory of inference includes, the cache or state among it."""
WITHOUT_CACHE = (
    "Counted: all weights and the activations of the forward pass, freed after their last use. There is no KV cache."
)
"""The same for a model that cannot decode."""


def has_sequences(model: Model) -> bool:
    """Return whether a model has an axis of tokens."""
    return not {"M", "N"}.isdisjoint(axis for axes in model.table.axes.values() for axis in axes)


def serving_of(request: Request) -> tuple[PricedPass, InferenceSetting]:
    """Return the pass of a request, as it is priced and as its memory is predicted. Raises `InputError`."""
    name, kind = request.procedure, request.kind()
    if request.engine not in ("", GRAPH):
        by_fit = ": learncost fit has it, with weights in flash" if request.engine == "c99" else ""
        raise InputError(f"--procedure {name} requires --engine {GRAPH}{by_fit}")
    given = served(request.in_precision(kind.name))
    run, axes = given.run, given.run.axes
    new, decodes = axes.get("M", 1), name == "decode"
    tokens = given.context + new if decodes else new
    seq_len, target_len = (axes["N"], tokens) if run.model.two_sided else (tokens, None)
    return given, InferenceSetting(
        run.model,
        kind,
        seq_len if has_sequences(run.model) else 0,
        target_len,
        plan_asked=run.plan_asked,
        procedure=name,
        new=new if decodes else 1,
        batch=axes["B"],
        sharded=request.in_precision(kind.name) if request.is_sharded else None,
        page_size=request.tokens_in_page,
    )


def memory_of_inference(request: Request, budget: int | None = None) -> Memory:
    """Return the memory of a forward pass, of a prompt, or of one step of decode; with a budget what fits it.

    Raises `InputError`.
    """
    given, serving = serving_of(request)
    name, kind, run, axes = request.procedure, serving.kind, given.run, given.run.axes
    two_sided, batch, new, decodes = run.model.two_sided, axes["B"], axes.get("M", 1), name == "decode"
    worst, arrays, split = serving.at_peak
    uncounted, peak, last = serving.uncounted, sum(split.values()), len(arrays.curve) - 1
    curve = tuple(replace(moment, bytes=moment.bytes + uncounted) for moment in arrays.curve)
    cache_growth = split["KV cache"] and worst.cache_growth * int(size_of(worst.batch, worst.local_sizes))
    added = "new tokens and rest of the last page" if serving.page_size > 1 else "new tokens of the KV cache"
    throughout = {("other weights", "weights"): uncounted - cache_growth, (added, "KV cache"): cache_growth}
    more = tuple(
        LiveInterval(each, (), (size,), 1, size, 0, last, "given", part=part)
        for (each, part), size in throughout.items()
        if size
    )
    intervals = tuple(replace(each, part=worst.part(each)) for each in arrays.intervals)
    others = (LiveArray(each.name, (), (), each.bytes) for each in more if each.bytes > 0)
    live_at_peak = tuple(sorted((*arrays.live_at_peak, *others), key=lambda array: -array.bytes))
    fits: dict[str, int | None] | None = None
    if budget is not None:
        longest = serving.longest(budget, LONGEST)
        if decodes and longest:
            longest -= new
        batched = has_batch(run.model.table)
        most = serving.largest(budget) if batched else int(serving.peak() <= budget)
        fits = {"batch_size": most, "context" if decodes else "seq_len": longest}
    return Memory(
        model=run.model.configuration.name,
        procedure=name,
        plan=serving.plan,
        optimizer="",
        dtype=kind.name,
        batch_size=batch,
        seq_len=axes["N"] if two_sided else new,
        target_len=new if two_sided else None,
        context=given.context if decodes else None,
        _length_note=given.length_note(decodes),
        _sample=run.model.sample,
        _positions=run.model.positions,
        accumulate=1,
        trained="none",
        peak=peak,
        peak_at=next(moment for moment in curve if moment.bytes == peak),
        split=split,
        live_at_peak=live_at_peak,
        curve=curve,
        arrays=(*intervals, *more),
        budget=budget,
        fits=fits,
        engine=GRAPH,
        convention=" ".join(serving.notes),
        letters=letters_of(run.model.configuration.layer, axes),
        over=worst.over,
    )
