"""What a ledger says of lines that are not derived: whose cost is stated, or known to nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from learncost.cost_models import PricedLine
from learncost.ir.line import Op, Opaque


@dataclass(frozen=True)
class NotDerived:
    """An operation that has a cost and no meaning, or neither.

    operator  what it is called
    module    the path of the module that runs it, `*` for the number of a block
    line      its line in the table
    times     how often it runs in a step
    flops     by macro-operation, of all times together; None: nobody knows
    source    who states them
    """

    operator: str
    module: str
    line: str
    times: Any
    flops: Mapping[str, Any]
    source: str

    @property
    def unknown(self) -> bool:
        """Whether nobody knows a part of its cost."""
        return None in self.flops.values()

    def to_dict(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "module": self.module,
            "line": self.line,
            "times": self.times,
            "flops": dict(self.flops),
            "source": self.source,
        }

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        times = f", {self.times:,} times" if self.times != 1 else ""
        parts = (f"{_count(flops)} in {phase.replace('_', ' ')}" for phase, flops in self.flops.items())
        by = f" ({self.source})" if self.source else ""
        return f"{self.operator}{where}{times}: {', '.join(parts)}{by}"


def _count(flops: Any) -> str:
    return "FLOPs that nobody knows" if flops is None else f"{flops:,} FLOPs"


def not_derived_of(rows: Iterable[PricedLine], sizes: Mapping[str, Any]) -> tuple[NotDerived, ...]:
    """The operations among priced rows that are not derived, each with its gradient."""
    operations: dict[tuple[str, str, Opaque], list[PricedLine]] = {}
    for row in rows:
        if row.opaque is not None and isinstance(row.source, Op):
            meta = row.source.meta
            operations.setdefault((meta.operator or row.source.op, meta.module, row.opaque), []).append(row)
    return tuple(_operation(*key, lines, sizes) for key, lines in operations.items())


def _operation(
    operator: str, module: str, opaque: Opaque, rows: list[PricedLine], sizes: Mapping[str, Any]
) -> NotDerived:
    flops: dict[str, Any] = {}
    for row in rows:
        before, value = flops.get(row.macro_operation, 0), None if row.unknown else row.flops.at(sizes)
        flops[row.macro_operation] = None if before is None or value is None else before + value
    first = rows[0]
    times = sum(row.repeat.at(sizes) for row in rows if row.macro_operation == first.macro_operation)
    return NotDerived(operator, module, first.text, times, flops, opaque.source)


def notes(operations: Iterable[NotDerived]) -> Iterator[str]:
    """What stands below a table in which there are such operations."""
    operations = tuple(operations)
    if not operations:
        return
    yield f"Not derived (†): {'; '.join(map(str, operations))}. Such lines are counted in FLOPs, not in MACCs."
    if any(operation.unknown for operation in operations):
        yield "A number behind >= has something in it whose cost nobody knows: it is at least that much."
