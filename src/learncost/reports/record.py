"""The cost ledger as data: rows, macro-operations, totals and the whole training, as exact integers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, Serializable, dataclass, field
from learncost.reports.sheet import AtLength, FigureAnswer

if TYPE_CHECKING:
    from learncost.autoshard.step import StepUsage
    from learncost.cost_models import Price
    from learncost.models.model import Model
    from learncost.reports.memory.on_device import DeviceMemory
    from learncost.reports.mesh_cost import OverMesh
    from learncost.reports.recorded import RecordedTime
    from learncost.reports.request import Request
    from learncost.reports.rows import NotDerived
    from learncost.reports.timing import RowTime, Timing

SCHEMA = 1

_PHASE = "macro_operation"
_NAMED = Key(optional=True, after=_PHASE).field


@dataclass(frozen=True)
class LedgerRow(Serializable):
    """Counts of a layer in a macro-operation (or of one of its lines, or of a kind), passes and repeats included."""

    layer: str | None
    block: str | None
    repeat: int
    macro_operation: str
    maccs: Any
    flops: Any
    bytes: Any  # None where it is not known what the arrays are stored in
    line: str = field(default="", metadata=_NAMED)
    equation: str = field(default="", metadata=Key(when=lambda row: row.line, after=_PHASE).field)
    kind: str = field(default="", metadata=_NAMED)
    module: str = field(default="", metadata=_NAMED)
    payload_bytes: int | None = field(default=None, metadata=OPTIONAL)  # of the collectives of a device of a mesh
    timing: RowTime | None = field(default=None, metadata=Key(inline=True).field)  # on a device
    not_derived: bool = field(default=False, metadata=OPTIONAL)  # whether a line of it has a cost and no meaning
    unknown: bool = field(default=False, metadata=Key("at_least", optional=True).field)  # whether a cost is unknown
    outside_paper: bool = field(default=False, metadata=OPTIONAL)

    @property
    def time(self) -> float | None:
        """The time in seconds on the device; None without one, and for a row inside other rows' kernels."""
        return None if self.timing is None else self.timing.seconds

    @property
    def bound(self) -> str:
        """The bound of most of its time: compute, memory or launch."""
        return "" if self.timing is None else self.timing.bound


@dataclass(frozen=True)
class Amount(Serializable):
    """MACCs and FLOPs."""

    maccs: Any
    flops: Any


def _windows(windows: tuple[tuple[int, int], ...]) -> list[dict[str, int]]:
    return [{"window": window, "elements_per_token": part} for window, part in windows]


def _step(step: StepUsage | None) -> dict[str, Any] | None:
    from learncost.reports.mesh_time import data_of  # only over a mesh: start-up counts

    return None if step is None else data_of(step)


def _timed_by_lines(cost: Cost) -> bool:
    return cost.timing is not None and cost.recorded is None


def _with_passes(phases: Mapping[str, tuple[int, Amount]]) -> dict[str, Any]:
    return {name: {"passes": passes, **amount.to_dict()} for name, (passes, amount) in phases.items()}


@dataclass(frozen=True)
class Cache(Serializable):
    """The KV cache of all layers: keys and values, or their compression; and what recurrences have in its place.

    elements  of one token of a sequence
    source    elements of one token of the encoder, which cross-attention keeps
    windows   of `elements`, those in layers whose window is shorter than the context, which keep its last tokens:
              (window, elements)
    remade    whether every step makes keys and values of all its tokens anew
    page_size  tokens in a page: each sequence has full pages
    state     elements of the states of a sequence, after any number of tokens: of recurrences, and the last rows that
              convolutions read
    """

    elements: int = field(metadata=Key("elements_per_token").field)
    source: int = field(metadata=Key("elements_per_source_token", when=attrgetter("source")).field)
    windows: tuple[tuple[int, int], ...] = field(metadata=Key(form=_windows, when=attrgetter("windows")).field)
    count: int = field(metadata=HIDDEN)  # elements of the whole context of all sequences
    width: int | None = field(metadata=HIDDEN)  # bytes of an element; None where it is not known
    remade: bool = field(default=False, metadata=Key(optional=True, after="bytes").field)
    page_size: int = field(default=1, metadata=Key(when=lambda cache: cache.page_size > 1, after="bytes").field)
    state: int = field(default=0, metadata=Key("state_elements", when=attrgetter("state"), after="bytes").field)

    @property
    @Key(after="elements")
    def bytes_per_token(self) -> int | None:
        """Return the bytes of one token of a sequence."""
        return self._bytes(self.elements)

    @property
    @Key(when=attrgetter("source"), after="source")
    def bytes_per_source_token(self) -> int | None:
        """Return the bytes of one token of the encoder."""
        return self._bytes(self.source)

    @property
    @Key()
    def bytes(self) -> int | None:
        """The bytes of the whole context of all sequences."""
        return self._bytes(self.count)

    def _bytes(self, elements: int) -> int | None:
        return None if self.width is None else elements * self.width


_TRAINING = Key(when=attrgetter("is_training")).field


@dataclass(frozen=True, repr=False, kw_only=True)
class Cost(AtLength, FigureAnswer):
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
        With `on`: the seconds of a step, their interval, what bounds them, and the energy. Over a mesh the seconds are
        those of a device's lines alone, and the energy, of a device too, is of the whole step: see `over_time`.
    recorded
        Of an imported module on a published GPU: the time of its recorded step, by kind of kernel and by module.
    letters
        Of a run of a table, its sizes as the table calls them, `B = 2, M = 16`; else "".
    over_time
        Of a step over many devices, where a cluster is given (`step` in JSON): its seconds, those of lines, of
        collectives that wait, and of those that overlap with compute.
    over
        With a mesh: its devices, what is cut over them, and what each sends. All counts are those of one device.

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

    _sheets_module = "learncost.reports.show"
    _figures = ("macro-operations", "roofline")
    _schema = SCHEMA

    model: str
    procedure: str
    price_book: str
    batch_size: int
    seq_len: int
    target_len: int | None
    dtype: str = "fp32"
    optimizer: str = field(default="", metadata=OPTIONAL)
    counted: str = ""
    parameters: int
    active_parameters: int = 0
    trained_parameters: int = field(default=0, metadata=_TRAINING)
    trained: str = field(default="all", metadata=_TRAINING)
    total: Amount
    macro_operations: Mapping[str, tuple[int, Amount]] = field(metadata=Key(form=_with_passes).field)
    rows: tuple[LedgerRow, ...]
    plan: str = field(default="", metadata=OPTIONAL)
    over: OverMesh | None = field(default=None, metadata=OPTIONAL)  # many devices: all counts are then those of one
    timing: Timing | None = field(default=None, metadata=Key("time", when=_timed_by_lines).field)
    recorded: RecordedTime | None = field(default=None, metadata=Key("recorded_time", optional=True).field)
    over_time: StepUsage | None = field(default=None, metadata=Key("step", optional=True, form=_step).field)
    context: int | None = field(default=None, metadata=Key(when=attrgetter("cache")).field)
    cache: Cache | None = field(default=None, metadata=OPTIONAL)
    last_only: bool = field(default=False, metadata=Key("last_position_only", when=attrgetter("cache")).field)
    by: str = field(default="layer", metadata=HIDDEN)
    tokens: int | None = field(default=None, metadata=HIDDEN)
    tokens_per_step: int = field(default=0, metadata=HIDDEN)
    source: str = field(default="", metadata=HIDDEN)
    letters: str = field(default="", metadata=HIDDEN)
    _instead: str = field(default="", metadata=HIDDEN)  # why the time is the table's: no step was recorded
    _priced: Price | None = field(default=None, compare=False, metadata=HIDDEN)  # the lines of the rows
    _built: Model | None = field(default=None, compare=False, metadata=HIDDEN)  # whose step it is
    _request: Request | None = field(default=None, compare=False, metadata=HIDDEN)

    @cached_property
    @Key(optional=True, after="timing")
    def memory(self) -> DeviceMemory | None:
        """Return the peak memory on the device, as in `lc.memory`, and the memory that it has; None without `on`."""
        if self._request is None or self._request.on is None:
            return None
        from learncost.reports.memory.on_device import memory_on_device  # only on a device: start-up counts

        return memory_on_device(self._request)

    @property
    @Key(when=attrgetter("not_derived"), after="rows")
    def at_least(self) -> bool:
        """Return whether the cost of a part is unknown: the totals are then lower bounds."""
        return any(row.unknown for row in self.rows)

    @property
    @Key(optional=True, after="rows")
    def not_derived(self) -> tuple[NotDerived, ...]:
        """The operations that are not derived: their cost is stated or unknown."""
        from learncost.reports.rows import not_derived_of

        return not_derived_of(self._priced.rows, self._priced.sizes) if self._priced else ()

    @property
    @Key(optional=True, after="over")
    def total_of_all_devices(self) -> dict[str, int] | None:
        """Return the MACCs and FLOPs of all devices of a mesh together; None without one and of a pipeline."""
        many = self.over.devices if self.over and self.over.device is None else 0  # stages differ
        return {"maccs": self.total.maccs * many, "flops": self.total.flops * many} if many else None

    @property
    def _figure(self) -> str:
        return self._figures[1 if _timed_by_lines(self) and self.by == "equation" else 0]

    @property
    def _sample(self) -> str:
        """Return the noun of what a batch has: sequence, or image."""
        return self._built.sample if self._built else "sequence"

    @property
    def is_training(self) -> bool:
        """Return whether the step trains."""
        return bool(self.optimizer)

    @property
    def maccs(self) -> Any:
        """The MACCs of the step, as in `total`."""
        return self.total.maccs

    @property
    def flops(self) -> Any:
        """The FLOPs of the step, as in `total`."""
        return self.total.flops

    @property
    def time(self) -> float | None:
        """The time of a step in seconds on the device or cluster, if one is given."""
        timed = self.recorded or self.over_time or self.timing
        return None if timed is None else timed.seconds

    @property
    @Key("serving", optional=True)
    def served(self) -> dict[str, float] | None:
        """The latency and throughput of inference on a device, if one is given; the batch is that of all devices."""
        if self.is_training or self.time is None:
            return None
        tokens = self.seq_len if self.target_len is None else self.target_len
        per_second = self.batch_size / self.time
        if self.cache is None:
            return {"latency": self.time, "samples_per_second": per_second}
        name = "time_to_first_token" if self.context is None else "time_per_output_token"
        waited = self.time if self.context is None else self.time / tokens
        return {name: waited, "tokens_per_second": tokens * per_second}

    @property
    def steps(self) -> int | None:
        """The steps of a training run of `tokens` tokens; the last one may be partial."""
        return None if self.tokens is None else -(-self.tokens // self.tokens_per_step)

    @property
    @Key(optional=True)
    def training(self) -> dict[str, int] | None:
        """The whole training run: tokens, steps, MACCs and FLOPs."""
        if self.steps is None:
            return None
        counts = {"maccs": self.total.maccs * self.steps, "flops": self.total.flops * self.steps}
        return {"tokens": int(self.tokens or 0), "steps": self.steps, **counts}
