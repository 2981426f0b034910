"""Display of the comparison of layers: costs, attention's products, crossings and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from learncost.ir.polynomial import Polynomial
from learncost.reports.complexity import VASWANI
from learncost.reports.crossing import text
from learncost.reports.sheet import WIDTH, Sheet, SheetRow, fitting, number, rounded

if TYPE_CHECKING:
    from learncost.reports.complexity import Complexity, LayerKind, LengthCrossing


def records(complexity: Complexity) -> Iterator[dict[str, Any]]:
    """Return a row for each layer: Python expressions, and numbers if all sizes are given."""
    names = ("name", "maccs", "parameters", "order", "sequential_operations", "maximum_path_length")
    for row in complexity.to_dict()["layers"]:
        at = row["at"] or {}
        numbers = {f"{name}_at_sizes": at.get(name, "") for name in ("maccs", "parameters")}
        yield {name: row[name] or "" for name in names} | numbers


def sheets(complexity: Complexity, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Return costs in letters, attention's products, crossings, and numbers if sizes are given."""
    tables = (_costs(complexity), _heads(complexity), _crossings(complexity))
    numbers = (_numbers(complexity, written) for written in (number, rounded))
    return (*tables, fitting(numbers, WIDTH)) if complexity.sizes else tables


def _name(kind: LayerKind) -> tuple[str, int]:
    if kind.part:
        return "products only", 1
    if kind.name.startswith("separable"):
        return "separable", 1
    return kind.name.removesuffix(" attention"), 0


def _costs(complexity: Complexity) -> Sheet:
    rows = []
    for kind in complexity.kinds:
        name, depth = _name(kind)
        counts = (kind.maccs, kind.parameters, kind.order, kind.sequential)
        cells = (*map(text, counts), (kind.path or "-").replace("(n)", " n"))
        rows.append(SheetRow((name, *cells), "", depth))
    notes = (
        "n length, d width, h heads of width d/h, k kernel, r window; a feed-forward network has hidden width 4 d. "
        "One sequence, forward. The columns O, steps and path are orders: steps are sequential operations, path is the "
        "maximum path length between two positions.",
        "A MACC is one term of a product that sums, as the layers' tables run. Products only: without the projections "
        f"of queries, keys, values and output. A recurrent step has two products, of its input and of its state. "
        f"Path lengths: {VASWANI}.",
    )
    columns = ("layer", "MACCs", "parameters", "O", "steps", "path")
    return Sheet("Layers compared", columns, tuple(rows), notes, frozenset(range(len(columns))))


def _heads(complexity: Complexity) -> Sheet:
    rows = []
    kind = complexity.kind("self-attention")
    for step in kind.steps:
        each = f"{text(step.maccs)}/h" if step.heads else "-"
        rows.append(SheetRow((step.text, each, text(step.maccs))))
    shared = [step.maccs for step in kind.steps if step.heads]
    product_sum = sum(shared, Polynomial())
    rows.append(SheetRow(("total", f"({text(product_sum)})/h", text(kind.maccs)), "bold"))
    columns = ("self-attention", "a head", "all heads")
    return Sheet("Multi-head self-attention, product by product", columns, tuple(rows), (), frozenset({0, 1, 2}))


def _crossings(complexity: Complexity) -> Sheet:
    rows = []
    for crossing in complexity.crossings:
        name = "products only" if crossing.cheaper.part else "with projections"
        other = _other(crossing)
        length = "never" if crossing.never else f"n < {crossing.length}"
        rows.append(SheetRow((name, other, length, _at(crossing, complexity))))
    has_numbers = any(row.cells[3] for row in rows)
    columns = ("self-attention", "costs less than", "for lengths", "at these sizes")[: 4 if has_numbers else 3]
    rows = [SheetRow(row.cells[: len(columns)]) for row in rows]
    notes = ("Exact for every n; never, if that is not above 0.",)
    return Sheet("Where self-attention is cheaper", columns, tuple(rows), notes, frozenset(range(4)))


def _other(crossing: LengthCrossing) -> str:
    return "restricted attention" if crossing.dearer.name.startswith("restricted") else crossing.dearer.name


def _at(crossing: LengthCrossing, complexity: Complexity) -> str:
    """Return the last length at which the first costs less, at the given sizes."""
    stretches_at = crossing.at(complexity.sizes)
    if stretches_at is None:
        return ""
    cheaper = [stretch for stretch in stretches_at[1] if stretch.sign < 0]
    return f"n <= {number(cheaper[-1].last)}" if cheaper else "never"


def _numbers(complexity: Complexity, written: Callable[[int], str]) -> Sheet:
    def filled(count: Polynomial) -> str:
        value = complexity.value(count)
        return written(value) if isinstance(value, int) else text(value, written)

    rows = []
    for kind in complexity.kinds:
        name, depth = _name(kind)
        rows.append(SheetRow((name, filled(kind.maccs), filled(kind.parameters)), "", depth))
    sizes = ", ".join(f"{letter} = {size:,}" for letter, size in complexity.sizes.items())
    notes = ("Rounded; --format json has every digit.",) if written is rounded else ()
    return Sheet(f"At {sizes}", ("layer", "MACCs", "parameters"), tuple(rows), notes)
