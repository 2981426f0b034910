"""The rows of a ledger: grouped priced lines.

A line that is not derived has a stated cost, or one that nobody knows: a note of the ledger says which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from learncost.cost_models import Price, PricedLine
from learncost.ir.dataclass import Serializable, dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Opaque
from learncost.ir.polynomial import base
from learncost.ir.precision import BYTES
from learncost.layers.active import active_parameters, parameters, shown_layer
from learncost.models.model import Model
from learncost.models.sizes import check_size
from learncost.models.tables import letters_of
from learncost.procedures.procedure import INFERENCE, MACRO_OPERATIONS, Procedure
from learncost.reports.record import Amount, Cost, LedgerRow

if TYPE_CHECKING:
    from learncost.reports.mesh_cost import OverMesh
    from learncost.reports.timing import Timing


def ledger(
    model: Model,
    chosen: Procedure,
    price: Price,
    by: str,
    timed: Timing | None = None,
    over: OverMesh | None = None,
    again: Mapping[int, int] | None = None,
) -> Cost:
    """Return grouped and evaluated priced lines; over a mesh those of one device.

    again  the number of the pass by the places of its lines, of forward passes without gradients
    """
    axes, again = price.sizes, again or {}
    passes = chosen.passes_over(model)
    if any(row.macro_operation == "recomputation" for row in price.rows):
        passes["recomputation"] = 1  # a plan's, where the procedure has none
    phases = {name: (passes[name], Amount(0, 0)) for name in MACRO_OPERATIONS}
    for (name,), part in price.by("macro_operation").items():
        more = len({*again.values()}) if name == "forward" else 0
        phases[name] = passes[name] + more, Amount(part.maccs, part.flops)
    batch_size, seq_len, target_len = model.lengths(axes)
    infers = chosen.name in INFERENCE
    sizes = over.of_model if over else axes
    return Cost(
        model=model.configuration.name,
        procedure=chosen.name,
        price_book=price.book,
        batch_size=batch_size,
        seq_len=seq_len,
        target_len=target_len,
        parameters=model.parameters.at(sizes),
        active_parameters=active_parameters(model.table, sizes).at(sizes) + model.configuration.unread,
        trained_parameters=parameters(replace(model.table, weights=model.learning)).at(sizes),
        total=Amount(price.maccs, price.flops),
        macro_operations=phases,
        rows=_rows(
            price, by, passes, timed, None, model.table.title if model.configuration.layer else None, over, again
        ),
        by=by,
        dtype=price.dtype,
        optimizer="",
        tokens=None,
        tokens_per_step=model.tokens(axes),
        counted="; ".join(filter(None, (model.configuration.counted, "" if infers else model.without_dropout))),
        source=model.configuration.source,
        timing=timed,
        over=over,
        letters=letters_of(model.configuration.layer, axes),
        _priced=price,
        _built=model,
    )


BY: Mapping[str, tuple[str, ...]] = {
    "layer": ("layer", "block", "macro_operation"),
    "macro-operation": ("macro_operation",),
    "equation": ("layer", "block", "macro_operation", "line", "equation"),
    "kind": ("kind", "macro_operation"),
    "module": ("module", "macro_operation"),
}
"""The groupings of a ledger's rows, and the fields by which its lines are merged for each."""


def by_module(cost: Cost, depth: Any) -> Cost:
    """Return the ledger with a row for each module, up to a depth of its path; None: for each complete path."""
    assert cost._priced is not None
    if not any(row.module for row in cost._priced.rows):
        raise InputError(f"--by module requires an imported module; {cost.model} has no module paths")
    parts = None if depth is None else check_size("depth", depth)
    passes = {name: times for name, (times, _) in cost.macro_operations.items()}
    return replace(cost, rows=_rows(cost._priced, "module", passes, cost.timing, parts, over=cost.over))


def lines_by(
    price: Price, by: str, timed: Timing | None = None, depth: int | None = None
) -> list[tuple[dict[str, Any], list[PricedLine]]]:
    """Return the priced lines of each row of a ledger by the row's name, in the ledger's order.

    Lines of one name are one row by equation; those that say different modules are several.
    depth   how many parts of a module's path its rows have; None: all
    """
    named: Mapping[str, Callable[[PricedLine], Any]] = {
        "layer": lambda row: shown_layer(row.layer),
        "module": lambda row: ".".join(row.module.split(".")[:depth]) if row.module.strip(".") else ".",
    }
    has_modules = by == "equation" and any(row.module for row in price.rows)
    names = (*BY[by], *(["module"] if has_modules else []))
    groups: dict[tuple[tuple[Any, ...], str], list[PricedLine]] = {}
    for priced in price.rows:
        group = tuple(named[name](priced) if name in named else getattr(priced, name) for name in names)
        kernel = timed.inside(priced) if timed and by == "equation" else ""  # has no separate time: another row
        # Parts of a gradient are added in the iterations and once more after them: those are separate lines.
        iterations = str(priced.repeat) if by == "equation" and priced.line == "merge" else ""
        groups.setdefault((group, kernel + iterations), []).append(priced)
    order = {name: i for i, name in enumerate(MACRO_OPERATIONS)}
    fields_and_rows = [(dict(zip(names, key, strict=True)), rows) for (key, _), rows in groups.items()]
    return sorted(fields_and_rows, key=lambda pair: order[pair[0]["macro_operation"]])


def _rows(
    price: Price,
    by: str,
    passes: Mapping[str, int],
    timed: Timing | None = None,
    depth: int | None = None,
    whole: str | None = None,
    over: OverMesh | None = None,
    again: Collection[int] = (),
) -> tuple[LedgerRow, ...]:
    """Return the rows; `whole` is the name of a layer that is the model, `again` are places as of `ledger`."""
    result = []
    payloads, rounds = (over.payloads, over.rounds) if over else ({}, again)
    for fields_of_row, rows in lines_by(price, by, timed, depth):
        part = Price(price.book, tuple(rows), price.sizes, price.dtype)
        row = LedgerRow(
            layer=fields_of_row.get("layer"),
            block=fields_of_row.get("block"),
            repeat=_repeat(part, passes[fields_of_row["macro_operation"]], rounds)
            if fields_of_row.get("layer") not in (None, whole)
            else 1,
            macro_operation=fields_of_row["macro_operation"],
            maccs=part.maccs,
            flops=part.flops,
            bytes=part.bytes if price.dtype in BYTES else None,
            line=fields_of_row.get("line", ""),
            equation=fields_of_row.get("equation", ""),
            kind=fields_of_row.get("kind", ""),
            module=fields_of_row.get("module", ""),
            outside_paper=any(row.outside_paper for row in part.rows),
            not_derived=any(row.opaque for row in rows),
            unknown=any(row.unknown for row in rows),
            timing=(timed.of_lines if by == "equation" else timed.of)(rows) if timed else None,
            payload_bytes=sum(payloads.get(row.place, 0) for row in rows) if over else None,
        )
        result.append(row)
    return tuple(result)


def _repeat(part: Price, passes: int, rounds: Collection[int] = ()) -> int:
    """Return how many equal layers a row merges: how often a layer's most frequent line runs in one pass.

    rounds  the places of lines in iterations round a mesh, which the layer has outside of them for its own part as
            well, or of lines that run again
    Steps of a line that a mesh writes out, such as P!m of a softmax, are left out, and lines of a recurrence, which
    run for every token. Of a gradient in several parts, dX
    and dX+2, or in two steps, dY:X and dX, one is counted. Where a row has parts and
    merges alone, a layer is identified by the value that it reads: its parts, in one repeat, are those of one layer.
    """
    lines: dict[tuple[str, ...], int] = {}
    parts: dict[tuple[str, ...], int] = {}
    merges: dict[tuple[str, ...], int] = {}
    for row in part.rows:
        makes = row.source.makes if isinstance(row.source, Line) else ()
        if row.layer == "optimizer" or row.place in rounds or any("!" in name or "~" in name for name in makes):
            continue
        if {"M", "N"} & {*map(base, row.repeat.sizes)}:
            continue
        times = row.repeat.at(part.sizes)
        if row.line in ("merge", ""):
            merges[()] = max(merges.get((), 0), times)
        elif row.part_of:
            parts[row.layer, row.line, row.part_of, str(row.repeat)] = times
        else:
            lines[row.layer, row.line] = lines.get((row.layer, row.line), 0) + times
    if lines or not parts:
        return max(1, max((lines or merges).values(), default=1) // max(1, passes))
    together: dict[tuple[str, ...], int] = {}
    for (layer, line, *_), times in parts.items():
        together[layer, line] = together.get((layer, line), 0) + times
    return max(1, max(together.values()) // max(1, passes))


@dataclass(frozen=True)
class NotDerived(Serializable):
    """An operation without a definition, whose cost is stated or unknown.

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
        """Return whether a part of its cost is unknown."""
        return None in self.flops.values()

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        times = f", {self.times:,} times" if self.times != 1 else ""
        parts = (f"{_count(flops)} in {phase.replace('_', ' ')}" for phase, flops in self.flops.items())
        by = f" ({self.source})" if self.source else ""
        return f"{self.operator}{where}{times}: {', '.join(parts)}{by}"


def _count(flops: Any) -> str:
    return "an unknown number of FLOPs" if flops is None else f"{flops:,} FLOPs"


def not_derived_of(rows: Iterable[PricedLine], sizes: Mapping[str, Any]) -> tuple[NotDerived, ...]:
    """Return the operations of priced rows that are not derived, each with its gradient."""
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
    """Return the note on operations that are not derived."""
    operations = tuple(operations)
    if not operations:
        return
    yield f"Not derived (†): {'; '.join(map(str, operations))}. These lines are counted in FLOPs, not in MACCs."
    if any(operation.unknown for operation in operations):
        yield "Totals with >= include operations of unknown cost: they are lower bounds."
