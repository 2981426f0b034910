"""A step over many devices: the table of each, what it sends, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from learncost.equation.errors import InputError
from learncost.equation.precision import Precision, either
from learncost.equation.table import Repeat, Statement, Table, Word
from learncost.layers.layer import Layer
from learncost.ledger.question import question
from learncost.ledger.run import Run, adaptation_of, prepare
from learncost.ledger.sheet import Shown
from learncost.models.configuration import Configuration
from learncost.models.model import Structure
from learncost.placement.collective import Collective, collectives
from learncost.placement.mesh import mesh as parse_mesh
from learncost.placement.place import Placed
from learncost.placement.place import place as place_table
from learncost.placement.presets import chosen
from learncost.plans.plan import planned
from learncost.procedures.optimizer import DEFAULT, default_optimizer, without_gradients
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.procedure import step


def on_devices(
    run: Run, procedure: str, mesh: str | None, place: str | None = None, placement: str | None = None
) -> Placed | None:
    """The step of a run over a mesh: what each of its devices runs; None where no mesh is given.

    Raises `InputError` where one thing is given without the other, and where an axis does not divide.
    """
    if mesh is None:
        if place or placement:
            raise InputError("a placement is over a mesh of devices: give --mesh with it, such as --mesh dp=2,tp=4")
        return None
    clauses = chosen(place, placement)
    optimizer = run.optimizer or default_optimizer(run.book)
    table = step(Structure(run.model).model, procedure, optimizer, run.book.jacobian)
    table = planned(without_gradients(table), run.plan, run.axes)
    return place_table(table, parse_mesh(mesh), clauses, run.axes)


def widths_of(kind: Precision) -> dict[str, int]:
    """Bytes of a number by the role that it has in what is sent."""
    return {
        "weights": kind.weight,
        "gradients": kind.gradient,
        "values": kind.value,
        "inputs": kind.value,
        "states": kind.master or kind.weight,
    }


@dataclass(frozen=True)
class Sent:
    """What a device sends in a step along an axis of the mesh by one word.

    runs     how often
    payload  bytes of all runs: of the larger of what goes in and what comes out, on one device
    ring     bytes of these that a device sends in a ring
    """

    mesh_axis: str
    word: str
    runs: int
    payload: int
    ring: int


def sent(placed: Placed, found: tuple[Collective, ...]) -> tuple[Sent, ...]:
    """Collectives put together by the axis of the mesh and by word."""
    groups: dict[tuple[str, str], list[Collective]] = {}
    for collective in found:
        groups.setdefault((collective.mesh_axis, collective.word), []).append(collective)
    sizes = placed.mesh.sizes
    result = []
    for (axis, word), several in groups.items():
        payload = sum(one.payload_bytes * one.times for one in several)
        result.append(
            Sent(axis, word, sum(one.times for one in several), payload, in_a_ring(word, payload, sizes[axis]))
        )
    order = {name: place for place, name in enumerate(placed.mesh.names)}
    return tuple(sorted(result, key=lambda row: (order[row.mesh_axis], -row.payload)))


def in_a_ring(word: str, payload: int, devices: int) -> int:
    """Bytes that each of so many devices sends in a ring: 2(p-1)/p of what is reduced, (p-1)/p of all others.

    Patarasuk & Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations.
    """
    return payload * (2 if word.startswith("all_reduce") else 1) * (devices - 1) // devices


@dataclass(frozen=True, repr=False)
class PlacedStep(Shown):
    """A step over a mesh of devices: the table of each, and what it sends.

    Attributes
    ----------
    model, procedure, optimizer, plan, precision
        What the step is.
    mesh, clauses
        The devices, and what is cut over them.
    batch_size, seq_len
        Of all devices together.
    collectives
        What a device sends, a record for each line: the word, the axis of the mesh, bytes, how often, and why.
    placed
        The table that each device runs, and that of one device that it stands for.

    Examples
    --------
    >>> found = lc.place("gpt2", "tp=2", placement="megatron", vocab_size=50304)
    >>> [(one.word, one.times) for one in found.collectives][1:3]
    [('all_reduce', 12), ('all_reduce', 12)]
    """

    model: str
    procedure: str
    optimizer: str
    plan: str
    precision: str
    batch_size: int
    seq_len: int
    placed: Placed
    sizes: Mapping[str, int]
    collectives: tuple[Collective, ...]
    every: bool = True

    room: ClassVar[str] = "learncost.ledger.show_placed"

    @property
    def mesh(self) -> str:
        return str(self.placed.mesh)

    @property
    def clauses(self) -> tuple[str, ...]:
        return tuple(map(str, self.placed.clauses))

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.placed.mesh.devices

    @property
    def table(self) -> Table:
        """What each device runs."""
        return self.placed.table

    @cached_property
    def sent(self) -> tuple[Sent, ...]:
        """What a device sends, by the axis of the mesh and by word."""
        return sent(self.placed, self.collectives)

    def statements(self) -> Iterator[tuple[int, Statement, Collective | None]]:
        """Its lines with how deep they stand, and what those that send, send; of a repeat its heading alone."""
        records = {collective.place: collective for collective in self.collectives}
        number = -1

        def visit(lines: tuple[Statement, ...], depth: int) -> Iterator[tuple[int, Statement, Collective | None]]:
            nonlocal number
            for line in lines:
                if isinstance(line, Repeat):
                    yield depth, line, None
                    yield from visit(line.lines, depth + 1)
                else:
                    number += 1
                    yield depth, line, records.get(number)

        yield from visit(self.table.lines, 0)

    def to_dict(self) -> dict[str, Any]:
        lines = []
        for depth, line, collective in self.statements():
            text = str(line).partition("\n")[0]
            why = line.tag.why if isinstance(line, Word) else ""
            lines.append({"line": text, "depth": depth, "why": why, "sends": collective is not None})
        return {
            "model": self.model,
            "procedure": self.procedure,
            "optimizer": self.optimizer,
            "plan": self.plan,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "mesh": self.placed.mesh.sizes,
            "devices": self.devices,
            "clauses": [*self.clauses],
            "sent_per_device": [vars_of(row) for row in self.sent],
            "collectives": [vars_of(row) for row in self.collectives],
            "lines": lines,
        }


def vars_of(record: Any) -> dict[str, Any]:
    """The fields of a record with slots or without."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


@question()
def place(
    model: str | Configuration | Layer,
    mesh: str,
    place: str | None = None,
    placement: str | None = None,
    procedure: str = "bp",
    batch_size: int | str | None = None,
    seq_len: int | str | None = None,
    target_len: int | str | None = None,
    optimizer: str | None = None,
    dropout: float | str = 0.0,
    precision: str | None = None,
    train: object = None,
    train_layers: object = None,
    lora: object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    plan: str | None = None,
    **sizes: Any,
) -> PlacedStep:
    """The table that every device of a mesh runs in a training step, and why each collective is in it.

    No collective is written by hand: one pass over forward, backward, update and optimizer derives them from what is
    cut over the mesh.

    Parameters
    ----------
    batch_size
        How many sequences all devices together have in one step. The default is as many as there are devices on the
        axes of the mesh that cut it.

    Returns
    -------
    PlacedStep
        The table of a device, with a record for each collective.

    Raises
    ------
    InputError
        Where an axis does not divide over the mesh: the next size that does is named.

    Commands
    --------
    learncost place gpt2 --mesh tp=2 --placement megatron --vocab-size 50304
        Megatron's tensor parallelism, as it follows from what is cut.
    learncost place llama-3-8b --mesh dp=2,tp=4 --placement fsdp,megatron-sp
        Two placements at once, on eight devices.
    learncost place gpt2 --mesh dp=2,tp=2 --place "h f over tp, B over dp"
        The same with clauses of one's own.

    Examples
    --------
    >>> found = lc.place("gpt2", "dp=2", placement="ddp", seq_len=64, n_layer=2)
    >>> found.devices, found.sent[0].word, found.batch_size
    (2, 'all_reduce', 2)
    """
    find_procedure(procedure)
    kind = either(None, precision)
    adapted = adaptation_of(train, train_layers, lora, lora_rank, lora_alpha, kind=kind)
    if batch_size is None and not any(name in sizes for name in ("B", "batch")):
        batch_size = whole_batch(mesh, place, placement)
    run = prepare(
        model,
        "run",
        batch_size,
        seq_len,
        target_len,
        None,
        optimizer,
        dropout,
        kind.name,
        sizes,
        (procedure,),
        adapted,
        plan,
    )
    placed = on_devices(run, procedure, mesh, place, placement)
    assert placed is not None
    return PlacedStep(
        run.model.configuration.name,
        procedure,
        optimizer or DEFAULT,
        run.plan,
        kind.name,
        run.axes["B"],
        run.axes["N" if run.model.two_sided else "M"],
        placed,
        run.axes,
        collectives(placed, run.axes, widths_of(kind)),
    )


def whole_batch(mesh: str, place: str | None, placement: str | None) -> int:
    """A sequence for each device on the axes of the mesh that cut the batch."""
    sizes, number = parse_mesh(mesh).sizes, 1
    for axis in {clause.mesh for clause in chosen(place, placement) if "B" in clause.axes}:
        number *= sizes.get(axis, 1)
    return number
