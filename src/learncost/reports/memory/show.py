"""Tables of a step's memory: its parts, the live arrays at the peak, the peak by phase, and what fits a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from learncost.ir.dataclass import HIDDEN, Key, dataclass, field, replace
from learncost.ir.precision import precision_of
from learncost.ops.optimizers import OF_MATRICES
from learncost.passes.plan import FUSED_ATTENTION
from learncost.procedures.optimizer import state_of
from learncost.procedures.procedure import INFERENCE
from learncost.program.autograd.module import UserModule
from learncost.reports.memory.engines import GRAPH
from learncost.reports.memory.memory import Memory
from learncost.reports.memory.types import RESERVED, bytes_text, excess
from learncost.reports.run import left_out_text
from learncost.reports.sheet import WIDTH, FigureAnswer, Sheet, SheetRow, microbatches_text, number, size_of, sizes_of
from learncost.reports.show import batch_of

SHOWN = 8
"""The number of live arrays in the table; --json has all."""


def rows(answer: Memory | MemoryComparison) -> Iterator[dict[str, Any]]:
    """Yield the arrays over the lines of the step, or the live arrays at the peak if lines are unknown."""
    for memory in (answer,) if isinstance(answer, Memory) else answer.memories:
        step = {"procedure": memory.procedure, "engine": memory.engine}
        if memory.arrays:
            yield from (step | array.to_dict() for array in memory.arrays)
        else:
            yield from (
                step | {"name": array.name, "shape": array.shape, "bytes": array.bytes, "layer": array.layer}
                for array in memory.live_at_peak
            )


def sheets(answer: Memory | MemoryComparison, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Return the table of one step with the changes that save most, or the comparison of several."""
    if not isinstance(answer, Memory):
        return (_compared(answer),)
    alone = _alone(answer)
    return (replace(alone, notes=()), replace(_changes(answer), notes=alone.notes)) if answer.changes else (alone,)


def _changes(memory: Memory) -> Sheet:
    """Return the changes that save most, each with the peak that is left and whether it fits."""
    rows = [
        SheetRow((each.name, each.flags, size_of(each.peak), "yes" if each.peak <= (memory.budget or 0) else "no"))
        for each in memory.changes
    ]
    title = "Changes that save most memory, each with the peak that it leaves"
    return Sheet(title, ("", "with", "at the peak", "fits"), tuple(rows), (), frozenset({0, 1}))


def _alone(memory: Memory) -> Sheet:
    """Return the parts, the largest live arrays at the peak, and the peak of every phase."""
    rows = [SheetRow(("at the peak", "", number(memory.peak), size_of(memory.peak)), "bold")]
    for name, size in memory.split.items():
        if size:
            rows.append(SheetRow((name, "", number(size), size_of(size)), depth=1))
    if memory.buffers:
        rows.append(SheetRow(("plus kernel buffers", "", f"0 to {number(memory.buffers)}", size_of(memory.buffers))))
    if memory.host:
        rows.append(SheetRow(("on the host", "", number(memory.host), size_of(memory.host))))
    rows.append(
        SheetRow(("live arrays at the peak", "number x bytes" if _executed(memory) else "shape", "", ""), "bold")
    )
    live_at_peak = [live_array for live_array in memory.live_at_peak if live_array.bytes]
    for live_array in live_at_peak[:SHOWN]:
        shape = " x ".join(map(str, live_array.shape))
        rows.append(
            SheetRow((live_array.name.rstrip("*"), shape, number(live_array.bytes), size_of(live_array.bytes)), depth=1)
        )
    if rest := sum(live_array.bytes for live_array in live_at_peak[SHOWN:]):
        rows.append(SheetRow((f"{len(live_at_peak) - SHOWN} more", "", number(rest), size_of(rest)), depth=1))
    phases = dict.fromkeys(() if _executed(memory) else (moment.macro_operation for moment in memory.curve))
    if phases:
        rows.append(SheetRow(("peak by phase", "line", "", ""), "bold"))
    for phase in phases:
        top = max(
            (moment for moment in memory.curve if moment.macro_operation == phase), key=lambda moment: moment.bytes
        )
        rows.append(SheetRow((phase.replace("_", " "), top.line, number(top.bytes), size_of(top.bytes)), depth=1))
    return Sheet(title(memory), ("", "", "bytes", ""), tuple(rows), _notes(memory), frozenset({0, 1}), _fits(memory))


def _compared(several: MemoryComparison) -> Sheet:
    """Return the peaks of several procedures or engines with their parts, and the batch that fits a budget."""
    memories, by_engine = several.memories, several.by == "engine"
    first = memories[0]
    parts = dict.fromkeys(part for memory in memories for part, size in memory.split.items() if size)
    headings = [memory.engine for memory in memories] if by_engine else [procedure_title(memory) for memory in memories]
    rows = [SheetRow(("plan", *(memory.plan or "no plan" for memory in memories)))] if by_engine else []
    rows += [] if by_engine else [SheetRow(("engine", *map(run_by, memories)))]
    rows.append(SheetRow(("at the peak", *(size_of(memory.peak) for memory in memories)), "bold"))
    cells = [[size_of(memory.split[part]) if part in memory.split else "" for memory in memories] for part in parts]
    rows += [SheetRow((part, *sizes), depth=1) for part, sizes in zip(parts, cells, strict=True)]
    if first.budget is not None:
        batches = (f"{(memory.fits or {}).get('batch_size') or 0:,}" for memory in memories)
        rows.append(SheetRow((f"sequences in {bytes_text(first.budget)}", *batches), "bold"))
    if by_engine:
        rows.append(SheetRow(("rules", *("" for _ in memories)), "bold"))
        rows += [SheetRow((rule, *(memory.rules[rule] for memory in memories)), depth=1) for rule in first.rules]
        notes = [_why(memory, first) for memory in memories[1:]] + [
            f"{memory.engine}: {memory.convention}" for memory in memories
        ]
    else:
        notes = [memory.convention for memory in memories]
        notes += [f"{text}." for text in (left_out_text(several.left_out),) if text]
    return Sheet(
        title(first, with_procedure=by_engine, with_engine=not by_engine),
        ("", *headings),
        tuple(rows),
        tuple(dict.fromkeys(notes)),
    )


def _why(memory: Memory, other: Memory) -> str:
    """Explain the difference between two engines by their rules."""
    parts = sorted(differences(memory, other), key=lambda difference: -abs(difference.bytes))
    if not parts:
        return f"{memory.engine} uses the same memory as {other.engine}."
    texts = []
    for part in parts:
        rules = [f"{name}: {mine}, not {theirs}" for name, (mine, theirs) in part.rules.items()]
        sign = "+" if part.bytes > 0 else "-"
        texts.append(f"{part.part} {sign} {size_of(abs(part.bytes))}" + (f" ({'; '.join(rules)})" if rules else ""))
    more = memory.peak - other.peak
    much = f"{size_of(abs(more))} {'more' if more > 0 else 'less'} than" if more else "as much as"
    return f"{memory.engine} uses {much} {other.engine}: {', '.join(texts)}."


def title(memory: Memory, with_engine: bool = True, with_procedure: bool = True) -> str:
    """Return the title: the step, or what several procedures or engines have in common."""
    name = "standard input" if memory.model == "-" else memory.model
    usual = FUSED_ATTENTION if memory.module else ""
    named = memory.plan != usual and with_engine == with_procedure
    plan = f" under {memory.plan}" if memory.plan and named else ""
    plan += f" by {run_by(memory)}" if _executed(memory) and with_engine and with_procedure else ""
    each = f" of {memory.batch_size // memory.accumulate:,}" if memory.batch_size else ""
    parts = f"{microbatches_text(memory.accumulate)}{each}" if memory.accumulate > 1 else ""
    step = f"one step of {procedure_title(memory)}" if with_procedure else "one step"
    if with_procedure and memory.procedure in INFERENCE and memory.context is None:
        step = memory.procedure
    step += f" in {memory.dtype}{f' (experts in {memory.experts})' if memory.experts else ''}"
    what = f"{name}, memory of {step}{plan}: {batch_of(memory)}{parts}"
    what += f", on {memory.over.devices:,} devices together; memory of one device" if memory.over else ""
    if with_engine and with_procedure and memory.budget is not None:
        what += excess(memory.peak, memory.budget, memory.unfit, where=memory._where)
    return what


def run_by(memory: Memory) -> str:
    """Return the engine with its module: eager (transformers), and whether the module was recorded."""
    recorded = ", recorded" if memory.module == UserModule.name else ""
    return f"{memory.engine} ({memory.module}{recorded})" if memory.module else memory.engine


def procedure_title(memory: Memory) -> str:
    """Return the procedure with its mode or its task: pepita (paper), bp for dpo."""
    mode, task = f" ({memory.mode})" if memory.mode else "", f" for {memory.task}" if memory.task else ""
    return f"{memory.procedure}{mode}{task}"


GRADIENTS = (
    "Gradients of a single microbatch live until the optimizer reads them; with --accumulate or pipeline stages their "
    "sums live through the step. `learncost run-cost --mesh` and `learncost search` predict the same memory."
)


BUFFERS = (
    "Kernel buffers are additional memory while a matrix product or convolution runs: from none to one packed copy of "
    "its operands and results, with channels padded to blocks of 16 (oneDNN's layouts). The amount depends on the CPU. "
    "Memory that libraries allocate outside PyTorch's allocator is not included."
)
"""The note on the range of kernel buffers."""


def _reserved(memory: Memory) -> str:
    """Return what a device of several takes with its allocator's reserve, and whether that fits its memory."""
    if memory.budget is None or not memory.over or not memory.optimizer or memory.engine not in RESERVED:
        return ""
    shares = RESERVED[memory.engine]
    device = memory.budget * (shares[0] if memory._reserves else 1)
    least, most = (round(memory.peak * share) for share in shares)
    verb = "does not fit" if least > device else "may not fit" if most > device else "fits, too"
    kept = f" Of the device's {size_of(round(device))} the least of it is kept free." if memory._reserves else ""
    return (
        f"With the allocator's reserve, NCCL and contexts, published training runs took {shares[0]} to {shares[1]} "
        f"times as much: {' to '.join(sizes_of(least, most))} here, which {verb}.{kept}"
    )


def _notes(memory: Memory) -> tuple[str, ...]:
    at = memory.peak_at
    layer = f" of {at.layer.replace('_', ' ')}" if at.layer else ""
    phase = f", {at.macro_operation.replace('_', ' ')}" if at.macro_operation else ""
    where = f"at line {at.line}{layer}{phase}"
    if at.line.endswith(", backward"):
        where = f"in the backward pass of {at.line.removesuffix(', backward')}"
    notes = [f"The peak occurs {where}."] if at.line else []
    notes += [reserved] if (reserved := _reserved(memory)) else []
    if memory.budget is not None and (segments := memory.reserved()) is not None:
        expandable = size_of(memory.reserved(expandable=True) or 0)
        notes.append(
            f"PyTorch's allocator reserves {size_of(segments)} for it, and {expandable} with expandable_segments:True."
        )
    if memory.updates:
        notes.append(str(memory.updates))
    if memory.trained != "all" and memory.optimizer:
        notes.append(f"Trainable: {memory.trained}.")
    if memory.buffers:
        notes.append(BUFFERS)
    if _executed(memory):
        return (*notes, memory.convention)
    source = f"{memory.dtype}: {precision_of(memory.dtype).source}."
    notes.append(f"{source} {memory.optimizer}: {state_of(memory.optimizer).source}." if memory.optimizer else source)
    notes.append(memory.convention)
    if memory.over and memory.optimizer in OF_MATRICES:
        notes.append("Each device has the optimizer states of its shards, by the sides that these have.")
    if memory.over:
        notes += [memory.over.sharding, memory.over.sentence]
        notes += [GRADIENTS] if memory.engine == GRAPH and memory.optimizer else []
    return tuple(notes)


def _fits(memory: Memory) -> str:
    """Return the batch and the length that fit the budget."""
    if memory.budget is None:
        return ""
    needed, present = sizes_of(abs(memory.peak - memory.budget), memory.budget)
    too_much = f"{needed} too much" if memory.peak > memory.budget else ""
    if memory.nothing_fits:
        return f"{too_much}{': ' if too_much else ''}{memory._lacking}."
    decodes = memory.context is not None
    batch, length = ((memory.fits or {}).get(name) for name in ("batch_size", "context" if decodes else "seq_len"))
    most = f"up to {batch:,}" if batch else "no"
    spare = "" if memory.unfit else f" with {needed} to spare"
    text = f"{too_much}; {present} hold " if too_much else f"Fits in {bytes_text(memory.budget)}{spare}: "
    begin = text
    text += f"{most} {_samples(memory, batch or 1)} "
    text += f"after {memory.context:,} tokens" if decodes else f"of {memory.seq_len:,} tokens"
    text += microbatches_text(memory.accumulate) if batch else ""
    if memory.letters:  # a table of a user's: its batch is B, where that is open at all
        text = f"In {bytes_text(memory.budget)} the step {'fits' if batch else 'does not fit'}"
        if "B = " in memory.letters:
            text = begin + (f"up to B = {batch:,}" if batch else "no B")
    elif length is not None:
        of_tokens = "after up to {:,} tokens" if decodes else "of up to {:,} tokens"
        samples = f"{memory.batch_size:,} {_samples(memory, memory.batch_size)}"
        text += f", {'or' if batch else 'but'} {samples} {of_tokens.format(length)}"
        if memory._positions and length > memory._positions:
            text += f", beyond the model's context of {memory._positions:,}"
    if not batch and memory.optimizer:
        text += (
            ". Recomputation and other plans use less memory: run learncost fit with the same "
            "other flags to see which fit"
        )
    return f"{text}."


def _samples(memory: Memory, count: int) -> str:
    return memory._sample if count == 1 else f"{memory._sample}s"


def _executed(memory: Memory) -> bool:
    """Return whether an engine other than graph executes the step."""
    return memory.engine != GRAPH


EVERYWHERE = ("weights", "master weights", "optimizer state", "new weights and states")
"""The parts of a peak that every engine separates; of the others some tell the sum alone."""
ELSE = "all else"

RULE_OF = {
    "new weights and states": "new weights and states",
    "gradients": "gradients",
    "activations": "saved for backward",
    "workspace": "temporaries",
}
"""The engine rule that each part of the peak follows."""


@dataclass(frozen=True)
class Difference:
    """The difference of two engines in a part of the peak, and their rules where they differ.

    rules  of this one and of the other, by what they are about
    """

    part: str
    bytes: int
    rules: Mapping[str, tuple[str, str]]


def _by_procedure(answer: MemoryComparison) -> bool:
    return answer.by == "procedure"


def _by_engine(answer: MemoryComparison) -> bool:
    return answer.by == "engine"


@dataclass(frozen=True, repr=False)
class MemoryComparison(FigureAnswer):
    """The memory of a step under several procedures or several engines; `by` is "procedure" or "engine".

    left_out  procedures that the model cannot learn by, with the reason
    """

    _sheets_module = "learncost.reports.memory.show"
    _figures = ("memory",)

    memories: tuple[Memory, ...] = field(metadata=HIDDEN)
    by: str = field(default="procedure", metadata=HIDDEN)
    left_out: Mapping[str, str] = field(default_factory=dict, metadata=Key(when=_by_procedure).field)

    @property
    @Key(when=_by_procedure, after="schema")
    def procedures(self) -> dict[str, Memory]:
        """Return the answers by procedure."""
        return {memory.procedure: memory for memory in self.memories}

    @property
    @Key(when=_by_engine)
    def engines(self) -> dict[str, Memory]:
        """Return the answers by engine."""
        return {memory.engine: memory for memory in self.memories}

    @property
    @Key("differences", when=_by_engine)
    def from_first(self) -> dict[str, Any]:
        """Return what makes the differences to the first engine."""
        first, *others = self.memories
        return {"from": first.engine, "by_engine": {each.engine: list(differences(each, first)) for each in others}}

    @property
    def _panels(self) -> tuple[Memory, ...]:
        """Return a panel for each answer."""
        return self.memories


def differences(first: Memory, other: Memory) -> Iterator[Difference]:
    """Explain the difference between the peaks of two engines, part by part; their sum is the difference."""
    parts = dict.fromkeys(part for memory in (first, other) for part, size in memory.split.items() if size)
    separate = {"gradients", "activations", "workspace"}
    apart = separate.isdisjoint(first.split) == separate.isdisjoint(other.split)
    if not apart:
        parts = dict.fromkeys((*(part for part in parts if part in EVERYWHERE), ELSE))
    for part in parts:
        size = _part(first, part) - _part(other, part)
        about = [RULE_OF[part]] if part in RULE_OF else [rule for rule in first.rules if part not in EVERYWHERE]
        rules = {
            rule: (first.rules[rule], other.rules[rule]) for rule in about if first.rules[rule] != other.rules[rule]
        }
        if part == ELSE:  # values of the optimizer have a separate part
            rules.pop("new weights and states", None)
        if first.plan != other.plan and part not in EVERYWHERE:
            rules["plan"] = first.plan or "none", other.plan or "none"
        if size:
            yield Difference(part, size, rules)


def _part(memory: Memory, part: str) -> int:
    if part != ELSE:
        return memory.split.get(part, 0)
    return memory.peak - sum(memory.split.get(name, 0) for name in EVERYWHERE)
