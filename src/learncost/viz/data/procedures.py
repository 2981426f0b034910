"""Learning procedures side by side: their passes, totals, ratios to backpropagation, and the memory of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from learncost.ir.dataclass import Serializable, asdict, dataclass, field, made_of, replace
from learncost.ir.errors import InputError
from learncost.reports.compare import Comparison
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.request import Request
from learncost.reports.sheet import plan_text
from learncost.viz.data.shares import PassShare, passes_of


@dataclass(frozen=True)
class ProcedureShare:
    """The cost of a step under one procedure; `ratio` is to backpropagation, None where that is not compared.

    peak  bytes, of the engine that is named; None where no memory was asked for
    """

    name: str
    passes: tuple[PassShare, ...]
    maccs: int
    flops: int
    ratio: Mapping[str, float | None]
    peak: int | None = None
    engine: str = ""


@dataclass(frozen=True)
class Procedures(Serializable):
    """Procedures side by side under one price book.

    model, price_book, batch_size, seq_len, target_len, optimizer  what step it is, and what is counted
    procedures  one for each procedure
    left_out  those that the model cannot be trained by, with the reason
    """

    model: str
    price_book: str
    batch_size: int
    seq_len: int
    target_len: int | None
    optimizer: str
    procedures: tuple[ProcedureShare, ...]
    left_out: str = ""
    conventions: Mapping[str, str] = field(default_factory=dict)
    memory: str = ""  # the engine of the memory, with its type and its plan
    letters: str = ""  # of a run of a table: its sizes as the table calls them

    @property
    def finding(self) -> str:
        """The finding of the picture in one sentence."""
        ratios = {
            procedure.name: ratio for procedure in self.procedures if (ratio := procedure.ratio["flops"]) is not None
        }
        others = {name: ratio for name, ratio in ratios.items() if name != "bp"}
        if not others:
            return f"One step of {self.model} by {', '.join(procedure.name for procedure in self.procedures)}"
        least, most = min(others, key=lambda name: others[name]), max(others, key=lambda name: others[name])
        sentence = f"{least} takes {others[least]:.2f} times the FLOPs of backpropagation"
        return sentence if least == most else f"{sentence}, {most} {others[most]:.2f} times"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each pass of each procedure, and one for its total."""
        for procedure in self.procedures:
            for step_pass in procedure.passes:
                yield {"procedure": procedure.name, **asdict(step_pass), "peak_bytes": None}
            total = {"macro_operation": "total", "passes": None, "maccs": procedure.maccs, "flops": procedure.flops}
            yield {"procedure": procedure.name, **total, "peak_bytes": procedure.peak}


def procedures(answer: Comparison, memories: Mapping[str, Memory] | None = None) -> Procedures:
    """Return the procedures of an answer of `lc.compare`, with the memory of each if it is given by name."""
    book, memories = answer.price_book, memories or {}
    first = answer.first
    several = []
    for name, cost in answer.costs[book].items():
        ratio = {quantity: answer.ratio(name, book, quantity) for quantity in ("maccs", "flops")}
        of_table = memories.get(name)
        memory_of = (of_table.peak, of_table.engine) if of_table else (None, "")
        several.append(ProcedureShare(name, passes_of(cost), cost.total.maccs, cost.total.flops, ratio, *memory_of))
    return made_of(
        Procedures,
        first,
        procedures=tuple(several),
        left_out=answer.left_out,
        conventions={of_table.engine: of_table.convention for of_table in memories.values()},
        memory=next((f"engine {each.engine} in {each.dtype}{plan_text(each.plan)}" for each in memories.values()), ""),
    )


def table_memories(names: Iterable[str], request: Request) -> dict[str, Memory]:
    """Return the memory of each procedure as in the table, if that account has the plan and the type."""
    memories = {}
    for name in names:
        with suppress(InputError):
            answer = memory(replace(request, procedure=name, engine="graph"))
            assert isinstance(answer, Memory)
            memories[name] = answer
    return memories
