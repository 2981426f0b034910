"""The step of a model over the stages of a pipeline, as one program: its tables, its microbatches, its schedule."""

from __future__ import annotations

from collections.abc import Callable

from learncost.cli.emit_mesh import MeshRequest, refuse_filled, refuse_zigzag
from learncost.engines.in_stages import program_in_stages, step_in_stages
from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.models.model import Model
from learncost.sharding.padding import filled_up


def pipelined(
    model: Model, procedure: str, optimizer: str, plan: str, whole: Table, asked: MeshRequest, dtype: str | None
) -> tuple[Callable[[str], str], str]:
    """What writes the program of a model's stages under a title, and what that has to say.

    whole  the step of all stages together
    dtype  a precision, as `program` takes it
    Raises `InputError` for another procedure than bp, and where something does not divide.
    """
    if procedure != "bp":
        raise InputError(f"a pipeline is of bp: {procedure} cannot be cut into stages")
    if optimizer == "none":
        raise InputError("stages sum the gradients of what they share at the optimizer: give one, such as sgd")
    pipeline = asked.pipeline(model)
    order, batch = asked.schedule(pipeline.stages)
    sizes = asked.sizes(model, batch)
    refuse_filled(model, filled_up(model, whole, pipeline.mesh, pipeline.clauses, sizes)[2])

    def write(title: str) -> str:
        placed = step_in_stages(model, whole, optimizer, plan, pipeline, asked.grid, sizes, order)
        refuse_zigzag(placed[0].table)
        return program_in_stages(placed, whole.outputs, order, pipeline.axis, sizes, title, dtype).text

    number = "1 microbatch" if order.microbatches == 1 else f"{order.microbatches} microbatches"
    said = f"The stages of {asked.grid}, {number} of {sizes['B']} by {sizes['M']:,} of all in the order {order.name}."
    return write, said
