"""The ledger as a record: rows, macro-operations, totals, the whole training; exact integers all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from learncost.reports.sheet import Drawn

if TYPE_CHECKING:
    from learncost.cost_models import Price
    from learncost.models.model import Model
    from learncost.reports.memory.on_device import DeviceMemory
    from learncost.reports.mesh_cost import OverMesh
    from learncost.reports.mesh_time import OverTime
    from learncost.reports.request import Request
    from learncost.reports.rows import NotDerived
    from learncost.reports.timing import RowTime, Timing

SCHEMA = 1


@dataclass(frozen=True)
class LedgerRow:
    """Counts of a layer in a macro-operation (or of one of its lines, or of a kind), passes and repeats included."""

    layer: str | None
    block: str | None
    repeat: int
    macro_operation: str
    maccs: Any
    flops: Any
    bytes: Any  # None where it is not known what the arrays are stored in
    line: str = ""
    equation: str = ""
    kind: str = ""
    outside_paper: bool = False
    time: RowTime | None = None  # on a device, where one is given
    not_derived: bool = False  # whether a line of it has a cost and no meaning
    module: str = ""
    unknown: bool = False  # whether nobody knows what one of its lines costs: it costs that much at least
    sent: int | None = None  # bytes of payload that a device of a mesh sends, where there is one

    @property
    def seconds(self) -> float | None:
        """On the device; None where none is given, and where the row runs inside of other rows' kernels."""
        return None if self.time is None else self.time.seconds

    @property
    def bound(self) -> str:
        """The bound of most of its time: compute, memory or launch."""
        return "" if self.time is None else self.time.bound

    def to_dict(self) -> dict[str, Any]:
        """The row as the JSON has it."""
        row: dict[str, Any] = {
            "layer": self.layer,
            "block": self.block,
            "repeat": self.repeat,
            "macro_operation": self.macro_operation,
        }
        if self.line:
            row |= {"line": self.line, "equation": self.equation}
        if self.kind:
            row |= {"kind": self.kind}
        if self.module:
            row |= {"module": self.module}
        row |= {"maccs": self.maccs, "flops": self.flops, "bytes": self.bytes}
        row |= {} if self.sent is None else {"sent": self.sent}
        if self.time is not None:
            row |= self.time.to_dict()
        row |= {"not_derived": True} if self.not_derived else {}
        row |= {"at_least": True} if self.unknown else {}
        return row | ({"outside_paper": True} if self.outside_paper else {})


@dataclass(frozen=True)
class Amount:
    """MACCs and FLOPs."""

    maccs: Any
    flops: Any

    def to_dict(self) -> dict[str, Any]:
        return {"maccs": self.maccs, "flops": self.flops}


@dataclass(frozen=True)
class Cache:
    """The keys and values (or what these are made of) that decoding keeps, of all layers.

    elements  of one token of a sequence
    source    elements of one token of the encoder, which cross-attention keeps
    windows   of `elements`, those in layers whose window is shorter than the context, which keep its last tokens:
              (window, elements)
    remade    whether every step makes keys and values of all its tokens anew
    """

    elements: int
    source: int
    windows: tuple[tuple[int, int], ...]
    count: int  # elements of the whole context of all sequences
    width: int | None  # bytes of an element; None where it is not known what they are stored in
    remade: bool = False

    @property
    def bytes(self) -> int | None:
        """Of the whole context of all sequences."""
        return self._bytes(self.count)

    def _bytes(self, elements: int) -> int | None:
        return None if self.width is None else elements * self.width

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "elements_per_token": self.elements,
            "bytes_per_token": self._bytes(self.elements),
        }
        if self.source:
            result |= {"elements_per_source_token": self.source, "bytes_per_source_token": self._bytes(self.source)}
        if self.windows:
            result["windows"] = [{"window": window, "elements_per_token": part} for window, part in self.windows]
        return result | {"bytes": self.bytes} | ({"remade": True} if self.remade else {})


@dataclass(frozen=True, repr=False)
class Cost(Drawn):
    """The ledger of one step, as `lc.cost` returns it. Printed, it is the table; a notebook shows it as one.

    All counts are exact integers under the price book; one MACC is two FLOPs. Bytes count every operand read once and
    every result written once, line by line, in `dtype`.

    Attributes
    ----------
    model
        The counted model, by name.
    procedure
        The learning procedure, or prefill or decode.
    price_book
        The name of the price book.
    batch_size
        Sequences in the step.
    seq_len
        Tokens in a sequence.
    target_len
        Tokens of the decoder's sequence, where there is an encoder too; else None.
    parameters
        Parameters of the model, shared ones counted once.
    total
        `total.maccs` and `total.flops` of the step.
    macro_operations
        For each macro-operation (forward, backward, ...) how often it runs, and its MACCs and FLOPs.
    rows
        The rows of the table: `layer`, `block`, `repeat` (blocks that the row stands for), `macro_operation`, `maccs`,
        `flops`, `bytes`, and by equation also `line` and `equation`.
    by
        The grouping of the rows: layer, macro-operation, equation, kind or module.
    dtype
        The data type in which bytes are counted.
    optimizer
        The optimizer whose step is counted.
    tokens
        Tokens of the whole training run, where they were given.
    tokens_per_step
        Tokens that one step trains on.
    counted
        The counted class of model, as a phrase.
    source
        The source of the preset's sizes.
    context
        For decode, the tokens in the cache before the step.
    cache
        For inference, what the cache of keys and values holds: elements a token, and bytes.
    last_only
        True if the head runs only on the last position of each sequence, as in prefill.
    active_parameters
        Parameters that one token meets: fewer than `parameters` where experts are chosen among.
    trained_parameters
        Parameters that learn.
    trained
        The trained parameters, as a phrase.
    plan
        The plan that rewrote the step.
    timing
        With `on`: the seconds of a step, their interval and what bounds them.
    letters
        Of a run of a table, its sizes as the table calls them, `B = 2, M = 16`; else "".
    length_note
        The note on a default length that is shorter than the model's context: its flag, and the context; else "".
    over_time
        Of a step over many devices, where a cluster is given: seconds of lines, of collectives that wait, and of those
        beside what is computed.
    over
        With a mesh: its devices, what is cut over them, and what each sends. All counts are those of one device.
    priced
        The lines that the rows are put together from, as `lc.price` returns them: polynomials, and the sizes.
    built
        The model whose step it is: its table, what learns, and the rules of its sizes.
    request
        The request that was answered.

    Examples
    --------
    >>> step = lc.cost("gpt2", by="macro-operation", tokens=300_000_000_000, optimizer="adamw")
    >>> [(row.macro_operation, row.maccs) for row in step.rows]
    [('forward', 145843815424), ('backward', 165322162176), ('weight_update', 126516461568), ('optimizer_step', 0)]
    >>> step.steps, step.training["flops"]
    (292968750, 258014760450000000000)
    >>> step.to_dict()["model"]
    'gpt2'
    """

    sheets_module = "learncost.reports.show"
    figures = ("macro-operations", "roofline")

    model: str
    procedure: str
    price_book: str
    batch_size: int
    seq_len: int
    target_len: int | None
    parameters: int
    total: Amount
    macro_operations: Mapping[str, tuple[int, Amount]]
    rows: tuple[LedgerRow, ...]
    by: str = "layer"
    dtype: str = "fp32"
    optimizer: str = ""
    tokens: int | None = None
    tokens_per_step: int = 0
    counted: str = ""
    source: str = ""
    context: int | None = None  # tokens in the cache before a step of decode
    cache: Cache | None = None
    last_only: bool = False  # whether the head runs on the last position of a sequence alone
    active_parameters: int = 0
    trained_parameters: int = 0
    trained: str = "all"
    plan: str = ""
    timing: Timing | None = None  # on a device, where one is given
    letters: str = ""  # of a run of a table: its sizes as the table calls them
    length_note: str = field(default="", compare=False)  # the flag and the context, where the default is shorter
    over_time: OverTime | None = None  # of a step over them, on a cluster
    over: OverMesh | None = None  # many devices, where there are some: all counts are then those of one
    priced: Price | None = field(default=None, compare=False)
    built: Model | None = field(default=None, compare=False)
    request: Request | None = field(default=None, compare=False)

    @cached_property
    def memory(self) -> DeviceMemory | None:
        """Return the peak memory on the device, as in `lc.memory`, and the memory that it has; None without `on`."""
        if self.request is None or self.request.on is None:
            return None
        from learncost.reports.memory.on_device import memory_on_device  # only on a device: start-up counts

        return memory_on_device(self.request)

    @property
    def not_derived(self) -> tuple[NotDerived, ...]:
        """The operations that are not derived: their cost is stated, or nobody knows it."""
        from learncost.reports.rows import not_derived_of

        return not_derived_of(self.priced.rows, self.priced.sizes) if self.priced else ()

    @property
    def at_least(self) -> bool:
        """Return whether the cost of a part is unknown: the totals are then lower bounds."""
        return any(row.unknown for row in self.rows)

    @property
    def _figure(self) -> str:
        return self.figures[1 if self.timing is not None and self.by == "equation" else 0]

    @property
    def is_training(self) -> bool:
        """Return whether the step trains."""
        return bool(self.optimizer)

    @property
    def seconds(self) -> float | None:
        """The seconds of a step on the device or the cluster, where one is given."""
        timed = self.over_time or self.timing
        return None if timed is None else timed.seconds

    @property
    def served(self) -> dict[str, float] | None:
        """The latency and throughput of inference on a device, if one is given; the batch is that of all devices."""
        if self.is_training or self.seconds is None:
            return None
        tokens = self.seq_len if self.target_len is None else self.target_len
        per_second = self.batch_size / self.seconds
        if self.cache is None:
            return {"latency": self.seconds, "samples_per_second": per_second}
        name = "time_to_first_token" if self.context is None else "time_per_output_token"
        waited = self.seconds if self.context is None else self.seconds / tokens
        return {name: waited, "tokens_per_second": tokens * per_second}

    @property
    def steps(self) -> int | None:
        """Steps of a training run of `tokens` tokens; the last one may be partly filled."""
        return None if self.tokens is None else -(-self.tokens // self.tokens_per_step)

    @property
    def training(self) -> dict[str, int] | None:
        """A whole training run: tokens, steps, MACCs and FLOPs."""
        if self.steps is None:
            return None
        counts = {"maccs": self.total.maccs * self.steps, "flops": self.total.flops * self.steps}
        return {"tokens": int(self.tokens or 0), "steps": self.steps, **counts}

    def to_dict(self) -> dict[str, Any]:
        """The ledger as data: what `learncost cost --json` prints."""
        result: dict[str, Any] = {
            "schema": SCHEMA,
            "model": self.model,
            "procedure": self.procedure,
            "price_book": self.price_book,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "target_len": self.target_len,
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "counted": self.counted,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "trained_parameters": self.trained_parameters,
            "trained": self.trained,
            "total": self.total.to_dict(),
            "macro_operations": {
                name: {"passes": passes, **amount.to_dict()} for name, (passes, amount) in self.macro_operations.items()
            },
            "rows": [row.to_dict() for row in self.rows],
        }
        if operations := self.not_derived:
            result["at_least"] = self.at_least
            result["not_derived"] = [operation.to_dict() for operation in operations]
        if self.plan:
            result["plan"] = self.plan
        if self.over is not None:
            counts = {"maccs": self.total.maccs * self.over.devices, "flops": self.total.flops * self.over.devices}
            result |= {"over": self.over.to_dict(), "total_of_all_devices": counts}
        if self.timing is not None:
            result["time"] = self.timing.to_dict()
        if self.memory is not None:
            result["memory"] = self.memory.to_dict()
        if self.over_time is not None:
            result["step"] = self.over_time.to_dict()
        if self.cache is not None:
            result |= {"context": self.context, "cache": self.cache.to_dict(), "last_position_only": self.last_only}
        if not self.is_training:
            for key in ("optimizer", "trained_parameters", "trained"):
                del result[key]
        if self.served is not None:
            result["serving"] = self.served
        if self.training is not None:
            result["training"] = self.training
        return result
