"""The tree of a table's modules with the costs of their lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from learncost.reports.cost import cost
from learncost.reports.record import Cost, LedgerRow
from learncost.reports.request import Request, takes_request
from learncost.viz.views.picture import Picture, TreeRows

WHOLE = "."
"""The path of a line that is of no module but the whole."""


@dataclass
class _ModuleNode:
    values: list[float]
    parts: dict[str, _ModuleNode] = field(default_factory=dict)


@takes_request(
    "model * procedure price_book batch_size seq_len target_len optimizer dropout dtype context precision plan on "
    "train train_layers lora lora_rank lora_alpha"
)
def modules(request: Request) -> Picture:
    """Return the cost of a step by the modules of a table's lines, as a tree.

    Raises
    ------
    InputError
        As for `lc.cost`, and for a table whose lines say no modules.
    """
    step = cost(request, by="module")
    timed = step.timing is not None
    columns = [
        ("FLOPs", "FLOPs"),
        ("MACCs", "MACCs"),
        ("bytes moved", "bytes"),
        *([("time", "seconds")] if timed else []),
    ]
    root = _ModuleNode([0] * len(columns))
    for row in step.rows:
        node, values = root, _values(row, timed)
        for name in ("", *filter(None, (row.module or "").split(WHOLE))):
            node = node if not name else node.parts.setdefault(name, _ModuleNode([0] * len(columns)))
            node.values = [before + more for before, more in zip(node.values, values, strict=True)]
    rows = list[tuple[int, str, tuple[float, ...]]]()
    _walk(root, step.model, 0, rows)
    largest = max(root.parts, key=lambda name: root.parts[name].values[0], default="")
    share = root.parts[largest].values[0] / root.values[0] if largest and root.values[0] else 0
    title = f"{100 * share:.0f} % of the FLOPs are in the module {largest}" if largest else "The step by modules"
    depth = f"{max(depth for depth, *_ in rows)} parts deep"
    lead = (
        f"The step by the modules of the program that the table was read from, {depth}. Open one to see what is in it."
    )
    command = request.command("cost", by="module")
    return Picture(title, lead, (TreeRows("", tuple(columns), tuple(rows)),), (), command)


def of_modules(step: Cost) -> bool:
    """Return whether lines of a step have modules."""
    return step.priced is not None and any(row.module for row in step.priced.rows)


def _values(row: LedgerRow, timed: bool) -> list[float]:
    return [row.flops, row.maccs, row.bytes, *([row.seconds or 0.0] if timed else [])]


def _walk(node: _ModuleNode, name: str, depth: int, rows: list[tuple[int, str, tuple[float, ...]]]) -> None:
    rows.append((depth, name, tuple(node.values)))
    for part, inner in sorted(node.parts.items(), key=lambda pair: -pair[1].values[0]):
        _walk(inner, part, depth + 1, rows)
