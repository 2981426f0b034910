"""A step over a mesh: the table of each device, its traffic, and the reasons of collectives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, dataclass, field
from learncost.ir.loop import Loop, Statement, visit
from learncost.ir.table import Table
from learncost.procedures.optimizer import DEFAULT
from learncost.procedures.procedure import procedure as find_procedure
from learncost.reports.mesh_cost import OverMesh, over_stages
from learncost.reports.request import REQUIRED, Request, takes_request
from learncost.reports.sheet import AtLength
from learncost.sharding.collective import Collective, formulas, reason_of

if TYPE_CHECKING:
    from learncost.autoshard.step import StepTraffic
    from learncost.devices.cluster import Cluster
    from learncost.reports.memory.on_device import DeviceMemory


_CLUSTER = Key(form=attrgetter("name"), optional=True, after="_written_stages").field


@dataclass(frozen=True, repr=False)
class PlacedStep(AtLength):
    """A step over a mesh of devices: the table of each, and its traffic.

    Attributes
    ----------
    model
        The model, by name.
    procedure
        The learning procedure.
    optimizer
        The optimizer of the weights.
    plan
        The plan: fusion and recomputation.
    precision
        The types of what the step holds.
    batch_size
        Sequences of all devices together.
    seq_len
        Tokens of a sequence, of all devices together.
    target_len
        Tokens of a decoder's sequence, of all devices together; None without a separate decoder length.
    over
        The devices, what is cut over them, and `collectives`, a record for each line that sends; of the first stage
        where there are several.
    stages
        The same of every stage of a pipeline, each with a separate table, for one microbatch; empty where there is
        none.
    cluster
        The cluster of `on`, whose links the collectives use; None without it.
    memory
        The peak memory of a device, and the memory that it has; None without `on`.

    Examples
    --------
    >>> found = lc.place("gpt2", "tp=2", placement="megatron", vocab_size=50304)
    >>> [(one.op, one.times) for one in found.collectives][1:3]
    [('all_reduce', 12), ('all_reduce', 12)]
    """

    model: str
    procedure: str
    optimizer: str
    plan: str
    precision: str
    batch_size: int
    seq_len: int
    target_len: int | None = field(metadata=OPTIONAL)
    over: OverMesh = field(metadata=Key(inline=True).field)
    stages: tuple[OverMesh, ...] = field(default=(), metadata=HIDDEN)
    cluster: Cluster | None = field(default=None, metadata=_CLUSTER)
    memory: DeviceMemory | None = field(default=None, metadata=Key(optional=True, after="_written_stages").field)

    _sheets_module: ClassVar[str] = "learncost.reports.show_placed"

    def times(self, over: OverMesh | None = None) -> tuple[StepTraffic, ...]:
        """Return the time of the collectives over the links of the cluster, each without overlap, by default of all."""
        if self.cluster is None:
            return ()
        from learncost.reports.mesh_time import collective_times  # only where a cluster is given: start-up counts

        return collective_times(over or self.over, self.cluster)

    @property
    @Key("times", when=attrgetter("cluster"), after="cluster")
    def _times_of_all(self) -> list[dict[str, Any]]:
        """Return the time of all collectives as data."""
        from learncost.reports.mesh_time import traffic_of  # only where a cluster is given: start-up counts

        traffic: list[dict[str, Any]] = traffic_of(self.times())
        return traffic

    @property
    def table(self) -> Table:
        """The table of each device."""
        return self.over.placed.table

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of each device, in the order of the lines."""
        return self.over.collectives

    @property
    @Key()
    def formulas(self) -> list[dict[str, str]]:
        """The payload of a step by mesh axis and collective, as polynomials; empty for a pipeline."""
        counts = {} if self.stages else formulas(self.over.placed, self.over.sizes)
        rows = [(row.mesh_axis, row.op) for row in self.over.sent if (row.mesh_axis, row.op) in counts]
        return [{"mesh_axis": axis, "op": op, "numbers": str(counts[axis, op])} for axis, op in rows]

    @property
    @Key()
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines that each device runs as data."""
        return self._lines_of(self.over)

    @property
    @Key("stages")
    def _written_stages(self) -> list[dict[str, Any]]:
        """Return the stages of a pipeline as data."""
        return [
            {"iterations": stage.placed.iterations, **stage.to_dict(), "lines": self._lines_of(stage)}
            for stage in self.stages
        ]

    def _lines_of(self, over: OverMesh) -> list[dict[str, Any]]:
        lines = []
        for depth, line, collective in self._statements(over):
            text = str(line).partition("\n")[0]
            why = reason_of(line)
            lines.append({"line": text, "depth": depth, "why": why, "sends": collective is not None})
        return lines

    def _statements(self, over: OverMesh | None = None) -> Iterator[tuple[int, Statement, Collective | None]]:
        """Yield lines with their depth and collectives; for a loop its heading.

        over  the stage whose lines are meant; else what each device runs
        """
        over = over or self.over
        records = {collective.place: collective for collective in over.collectives}
        numbers = count()
        for line, nest in visit(over.placed.table.lines):
            yield len(nest.loops), line, None if isinstance(line, Loop) else records.get(next(numbers))


@takes_request(
    "model mesh place placement procedure batch_size seq_len target_len optimizer dropout precision train train_layers "
    "lora lora_rank lora_alpha dora plan on engine accumulate microbatch",
    mesh=REQUIRED,
)
def place(request: Request) -> PlacedStep:
    """The sharded training step that each device of a mesh executes, with a reason for each collective.

    Collectives are not hard-coded: sharding rules are propagated through forward, backward, weight update and
    optimizer step, and the collectives follow.

    Parameters
    ----------
    batch_size
        The global batch size in sequences. The default is one sequence for each device along the mesh axes that shard
        the batch, and for each pipeline stage.
    on
        The cluster (`learncost list clusters`), a file that describes one, or its device: adds the time of the
        collectives over its links, and whether the step fits the memory of each device. It sets the precision if none
        is given.

    Returns
    -------
    PlacedStep
        The step of one device, with a record for each collective.

    Raises
    ------
    InputError
        If an axis is not divisible by the mesh axis; the next larger size that is divisible is given.

    Commands
    --------
    learncost place gpt2 --mesh tp=2 --placement megatron --vocab-size 50304
        Megatron's tensor parallelism, derived from its sharding rules.
    learncost place llama-3-8b --mesh dp=2,tp=4 --placement fsdp,megatron-sp
        FSDP and Megatron tensor parallelism combined, on eight devices.
    learncost place llama-3-8b --mesh dp=2,tp=4 --placement fsdp,megatron-sp --on DGX-H100
        The same with the time of the collectives over the links of a cluster.
    learncost place gpt2 --mesh dp=2,tp=2 --place "h f over tp, B over dp"
        Custom sharding rules.
    learncost place gpt2 --mesh pp=4,dp=2 --placement pp,zero-1
        The step of every pipeline stage, with the tensors sent between stages.

    Examples
    --------
    >>> found = lc.place("gpt2", "dp=2", placement="ddp", seq_len=64, n_layer=2)
    >>> found.over.devices, found.over.sent[0].op, found.batch_size
    (2, 'all_reduce', 2)
    """
    find_procedure(request.procedure)
    cluster, memory = None, None
    if request.on is not None:
        from learncost.devices.cluster import cluster as find_cluster  # imported when used, for a fast start
        from learncost.reports.memory.on_device import memory_on_device

        cluster, memory = find_cluster(request.on), memory_on_device(request)
    run, several = over_stages(request)
    return PlacedStep(
        run.model.configuration.name,
        request.procedure,
        request.optimizer or DEFAULT,
        run.plan,
        request.kind().name,
        *run.model.lengths(run.axes),
        several[0],
        several if several[0].placed.iterations else (),
        cluster,
        memory,
        _length_note=run.length_note,
    )
