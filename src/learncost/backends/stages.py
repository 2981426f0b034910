"""The printer of pipeline stages as one program: the functions of each, and the schedule.

A stage has a function of one microbatch, a generator that stops behind its forward pass and goes on where its backward
pass is due: what the backward pass reads waits in it. Where weight updates are separate passes, it stops behind the
backward pass, too. Another function updates the weights, once in a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from learncost.backends.backend import backend
from learncost.backends.between import ALONG
from learncost.backends.expression import shape
from learncost.backends.program import FunctionWriter, Stops, closed, in_types
from learncost.backends.records import RecordNode, Tree, leaves
from learncost.ir.dataclass import dataclass
from learncost.ir.polynomial import base, whole
from learncost.ir.table import Table
from learncost.ops.collectives import is_collective
from learncost.passes.stages import split_backward
from learncost.program.pipeline import Schedule

BATCH = "B"
"""The axis along which a batch is split into microbatches."""

_NAMES: tuple[str, ...] = ("PROCESS_GROUPS", "ORDERS", "STAGES", "BATCH", "GROUPS", "MICROBATCHES", "along", "send")
_NAMES += ("receive", "added", "called", "step")

_STEP = '''\
def added(X, Y):
    """The sums of two arrays, or of those of two records."""
    if X is None or torch.is_tensor(X):
        return X if X is None else X + Y
    return tuple.__new__(type(X), map(added, X, Y))


def called(function, given):
    """A function with what it takes of what is given, by the names of its parameters."""
    return function(*(given[name] for name in function.__code__.co_varnames[: function.__code__.co_argcount]))


def step(given, mesh: DeviceMesh):
    """One step of this process, in the order of its place.

    given  of each of its stages, by their numbers, what their functions take by the names of their parameters: arrays
           of all microbatches
    Returns of each of them what is new, by the same names, with its gradients, and the loss where the stage has it.
    """
    place = mesh.get_local_rank("{axis}")
    sent, running, made = [], {{}}, {{}}
    for group in PROCESS_GROUPS:  # before anybody waits
        along(mesh, "{axis}", *group)
    for task in ORDERS[place].split():
        number, _, chunk = task[1:].partition(".")
        stage = place + len(ORDERS) * int(chunk or 0)
        if task[0] == "F":
            parts = {{
                name: X.chunk(MICROBATCHES, BATCH[name])[int(number)] if name in BATCH else X
                for name, X in given[stage].items()
            }}
            running[stage, number] = called(STAGES[stage][0], {{**parts, "mesh": mesh, "sent": sent}})
        arrays = next(running[stage, number])
        if arrays is not None:  # behind its last pass
            del running[stage, number]
            made[stage] = added(made[stage], arrays) if stage in made else arrays
    for each in sent:
        each.wait()
    results = {{}}
    for stage, arrays in made.items():
        _, gives, update, renews = STAGES[stage]
        results[stage] = dict(zip(gives, arrays, strict=True))
        new = called(update, {{**given[stage], **results[stage], "mesh": mesh}})
        results[stage] |= dict(zip(renews, new, strict=True))
    return results
'''


@dataclass(frozen=True)
class StageTables:
    """The tables of a stage: the passes of a microbatch, and the update from accumulated gradients."""

    gather: Table
    update: Table


@dataclass(frozen=True)
class StageFunctions:
    """The functions of a stage in a program.

    takes   what they take, by the names of their parameters
    gives   what the step returns of the stage, by the same names
    """

    takes: Mapping[str, Tree]
    gives: Mapping[str, Tree]


@dataclass(frozen=True)
class StagesProgram:
    """A program's text, and its stages, in their order."""

    text: str
    stages: tuple[StageFunctions, ...]


def stages_program(
    stages: Sequence[StageTables],
    schedule: Schedule,
    axis: str,
    title: str,
    sizes: Sequence[Mapping[str, int]],
    dtype: str | None = None,
) -> StagesProgram:
    """Return the program of a pipeline for PyTorch.

    axis   of the mesh, along which the stages lie
    sizes  of a microbatch, of each stage
    dtype  a precision, as `program` takes it; gradients of microbatches are summed in fp32
    """
    helpers = {"along": ALONG}
    records: list[str] = []
    functions: list[str] = []
    rows, described, batch, reserved = [], [], dict[str, int](), list(_NAMES)
    for number, (tables, numbers) in enumerate(zip(stages, sizes, strict=True)):
        stage = _StageWriter(number, tables, numbers, reserved, dtype, schedule.splits_backward)
        described.append(stage.functions)
        rows.append(stage.row)
        batch |= stage.batch
        reserved += stage.defined
        for writer in (stage.gather, stage.update):
            helpers |= writer.helpers.texts
            functions += writer.iterations.functions
        records += map(str, (*stage.gather.weights.records, *stage.gather.iterations.records))
    passes = "forward, backward or weight update" if schedule.splits_backward else "forward or backward"
    orders = "".join(f'    "{" ".join(map(str, order))}",\n' for order in schedule.orders)
    values = (
        f"MICROBATCHES = {schedule.microbatches}",
        f"# {schedule.name}: what each device runs, {passes} with the number of a microbatch"
        + (", and its stage of several" if schedule.chunks > 1 else ""),
        f"ORDERS = (\n{orders})",
        "# groups of processes: what is sent forth and back, what stages with the same weight sum together",
        f"PROCESS_GROUPS = {_process_groups(stages)}",
        "# of each stage: a microbatch, what comes of it, the update, what is new",
        f"STAGES = (\n{''.join(rows)})",
        "# along which axis of an array the microbatches lie",
        f"BATCH = {dict(sorted(batch.items()))}".replace("'", '"'),
    )
    imports = ("import math\n" if any("math." in text for text in functions) else "") + "from typing import NamedTuple"
    libraries = "import torch\nfrom torch.distributed.device_mesh import DeviceMesh"
    if any("functional." in text for text in (*functions, *helpers.values())):
        libraries = libraries.replace("\n", "\nfrom torch.nn import functional\n")
    head = "\n\n".join((f'"""{title}"""', imports, libraries))
    body = (head, *records, *helpers.values(), *functions, "\n".join(values), _STEP.format(axis=axis))
    return StagesProgram("\n\n\n".join(body), tuple(described))


def _process_groups(stages: Iterable[StageTables]) -> str:
    """Return the process groups that the stages require, as arguments of `along`."""
    lines = [line for tables in stages for line in tables.update.lines if is_collective(line)]
    among = dict.fromkeys(shape(('"together"', *line.axes[1:])) for line in lines if len(line.axes) > 1)
    return shape(('("forward",)', '("backward",)', *among))


class _StageWriter:
    """The printer of one stage's functions."""

    def __init__(
        self,
        number: int,
        tables: StageTables,
        sizes: Mapping[str, int],
        reserved: Sequence[str],
        dtype: str | None,
        updates_apart: bool,
    ) -> None:
        library, given = backend("torch"), dict(sizes)
        first, last = f"stage_{number}", f"update_{number}"
        names = (*reserved, first, last)
        passes = split_backward(tables.gather).table if updates_apart else tables.gather
        gather, low = in_types(passes, library, dtype)
        stops = Stops(
            split_backward(gather).updates if updates_apart else None
        )  # a precision has copies among the lines
        self.gather = FunctionWriter(closed(gather), library, first, "", given, low, names, None, True, stops)
        taken, parameters, made, _ = self.gather.written()
        update, low = in_types(tables.update, library, dtype)
        self.update = FunctionWriter(closed(update), library, last, "", given, low, (), self.gather, True)
        updated, more, new, _ = self.update.written()
        of = self.gather.identifiers.of
        self.takes = {
            p.name: tree for p, tree in (*zip(parameters, taken, strict=False), *zip(more, updated, strict=False))
        }
        gives = [self._record(tree) if isinstance(tree, RecordNode) else of(str(tree)) for tree in made]
        renews = [self._renewed(tree) for tree in new]
        shown = {name: tree for name, tree in zip(gives, made, strict=True) if name not in self.takes}
        taken_here = {name: tree for name, tree in self.takes.items() if name not in gives}
        self.functions = StageFunctions(taken_here, {**dict(zip(renews, new, strict=True)), **shown})
        self.row = f"    ({first}, {_names(gives)}, {last}, {_names(renews)}),\n"
        places = {p.name: [base(whole(axis)) for axis in p.axes or ()] for p in parameters}
        self.batch = {name: axes.index(BATCH) for name, axes in places.items() if BATCH in axes}
        texts = (*self.gather.weights.records, *self.gather.iterations.records, *self.gather.iterations.functions)
        self.defined = [str(text).partition("(")[0].split()[1] for text in texts]

    def _record(self, tree: RecordNode) -> str:
        """Return the update's name of a record with some arrays, or their new values, of this one."""
        table, some = self.update.table, next(leaves(tree))
        some = some if some in table.inputs else table.values[some].of
        records = (name for name, members in self.update.states.items() if some in members.values())
        return next(records, self.update.w)

    def _renewed(self, tree: Tree) -> str:
        """Return the parameter that a new array or record replaces."""
        if isinstance(tree, RecordNode):
            return self._record(tree)
        return self.gather.identifiers.of(self.update.table.values[str(tree)].of)


def _names(names: Sequence[str]) -> str:
    return shape(f'"{name}"' for name in names)
