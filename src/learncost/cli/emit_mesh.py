"""The request for a program of several devices: its mesh, its batch, and the schedule of its stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from learncost.cli.emit import WITHOUT_STAGES
from learncost.engines.in_stages import StageUpdate, program_in_stages, step_in_stages
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.models.configuration import family_of
from learncost.models.model import Model, run_sizes
from learncost.models.sizes import check_size
from learncost.program.pipeline import Schedule, schedule_of_batch
from learncost.reports.microbatches import whole_batch
from learncost.reports.request import Request
from learncost.sharding.clauses import Clause
from learncost.sharding.mesh import Mesh
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.padding import Padded, filled_up
from learncost.sharding.place import Placed
from learncost.sharding.presets import chosen
from learncost.sharding.stages import Pipeline, pipeline_of


@dataclass(frozen=True)
class MeshRequest:
    """A request over a mesh, and the microbatches of a pipeline."""

    request: Request
    microbatches: int | str | None

    @cached_property
    def grid(self) -> Mesh:
        """The devices."""
        return parse_mesh(self.request.mesh or "")

    @cached_property
    def clauses(self) -> tuple[Clause, ...]:
        """The sharding rules of the placement."""
        return chosen(self.request.place, self.request.placement, self.grid.names)

    @property
    def parts(self) -> int:
        """The number of devices over which the batch is sharded."""
        return whole_batch(self.request)

    def pipeline(self, model: Model) -> Pipeline | None:
        """Return the pipeline of the sharding rules; None without one. Raises `InputError` for a schedule without."""
        found = pipeline_of(model.table, self.grid, self.clauses)
        if found is None and (self.request.schedule is not None or self.microbatches is not None):
            raise InputError(WITHOUT_STAGES)
        return found

    def sizes(self, model: Model, batch: int | None = None) -> dict[str, int]:
        """Return the sizes of a global batch, by default the requested one."""
        if batch is None:
            given = self.request.batch_size
            batch = self.parts if given is None else check_size("batch-size", given)
        length = None if self.request.seq_len is None else check_size("seq-len", self.request.seq_len)
        return dict(run_sizes(model, batch, length, None))

    def schedule(self, devices: int) -> tuple[Schedule, int]:
        """Return the schedule of the stages' passes, and the global number of sequences of a microbatch."""
        given = self.request.batch_size
        number = None if self.microbatches is None else check_size("microbatches", self.microbatches)
        batch = self.parts * (number or devices) if given is None else check_size("batch-size", given)
        order = schedule_of_batch(self.request.schedule or "1f1b", devices, batch, self.parts, number)
        return order, batch // order.microbatches


def refuse_filled(model: Model, padded: Sequence[Padded]) -> None:
    """Refuse sizes that would be padded; the `InputError` names the size to use."""
    for each in padded:
        axis = family_of(model.configuration).axes.get(each.axis, each.axis)
        raise InputError(f"{axis} is {each.size:,}, which is not divisible by the mesh: use {each.filled:,}")


def refuse_zigzag(placed: Placed) -> None:
    """Refuse a sharded step with reordered positions."""
    if placed.zigzag:
        raise InputError("the plan zigzag is not supported by emit, since it reorders positions: use learncost train")


def pipelined(
    model: Model,
    pipeline: Pipeline,
    flags_of_step: tuple[str, str, str],
    whole: Table,
    asked: MeshRequest,
    dtype: str | None,
) -> tuple[Callable[[str], str], str]:
    """Return the function that emits the program of a model's stages under a title, and its comment.

    flags_of_step  the procedure, the optimizer and the plan
    whole  the step of all stages
    dtype  a precision, as `program` takes it
    Raises `InputError` for another procedure than bp, and for sizes that do not divide.
    """
    procedure, optimizer, plan = flags_of_step
    if procedure != "bp":
        raise InputError(f"pipeline stages require --procedure bp, not {procedure}")
    if optimizer == "none":
        raise InputError("pipeline stages require an optimizer, such as --optimizer sgd")
    order, batch = asked.schedule(pipeline.stages)
    sizes = asked.sizes(model, batch)
    refuse_filled(model, filled_up(model, whole, pipeline.mesh, pipeline.clauses, sizes)[2])

    def write(title: str) -> str:
        placed = step_in_stages(model, whole, StageUpdate(optimizer, plan), pipeline, asked.grid, sizes, order)
        refuse_zigzag(placed[0])
        return program_in_stages(placed, whole.outputs, order, pipeline.axis, sizes, title, dtype).text

    number = "1 microbatch" if order.microbatches == 1 else f"{order.microbatches} microbatches"
    whole_batch = f"a global batch of {sizes['B']} by {sizes['M']:,}"
    text = f"The stages of {asked.grid}, {number} of {whole_batch}, schedule {order.name}."
    return write, text
