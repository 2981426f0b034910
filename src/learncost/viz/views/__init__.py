"""Views in addition to the document: questions whose answers are pictures that any page draws.

A new view is a module here and a row of `VIEWS`; the page draws it, and has a control for each of its flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.reports.cost import cost
from learncost.reports.question import flags_of
from learncost.reports.record import Cost, LedgerRow
from learncost.reports.request import Request, takes_request
from learncost.viz.views.devices import over_devices
from learncost.viz.views.engines import arena, by_engine, small_arena
from learncost.viz.views.picture import Picture, TreeRows

WHOLE = "."
"""The path of a line that is of no module but the whole."""


@dataclass
class _ModuleNode:
    values: list[float]
    parts: dict[str, _ModuleNode] = field(default_factory=dict)


@takes_request(
    "model * procedure price_book batch_size seq_len target_len optimizer dropout dtype context precision plan on "
    "train train_layers lora lora_rank lora_alpha dora"
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
    return step._priced is not None and any(row.module for row in step._priced.rows)


def _values(row: LedgerRow, timed: bool) -> list[float]:
    return [row.flops, row.maccs, row.bytes, *([row.time or 0.0] if timed else [])]


def _walk(node: _ModuleNode, name: str, depth: int, rows: list[tuple[int, str, tuple[float, ...]]]) -> None:
    rows.append((depth, name, tuple(node.values)))
    for part, inner in sorted(node.parts.items(), key=lambda pair: -pair[1].values[0]):
        _walk(inner, part, depth + 1, rows)


@dataclass(frozen=True)
class ReportView:
    """A view.

    word      in the head of the page; title, before it has one
    after     the section of the page, or the view, after which it is shown
    there     whether a step has it
    question  whose answer it is; what it takes that the document does not take, has controls
    report    who answers for a report; None: it is not in one
    """

    word: str
    title: str
    after: str
    question: Callable[..., Picture]
    there: Callable[[Cost], bool] = lambda step: step.cache is None
    report: Callable[..., Picture] | None = None

    def taken(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the page's arguments that the view accepts, and all sizes of the model."""
        names = {flag.name for flag in flags_of(self.question)}
        return {name: value for name, value in arguments.items() if name in names or name not in NOT_SIZES}


VIEWS: Mapping[str, ReportView] = {
    "engines": ReportView("engines", "Memory by engine", "memory", by_engine),
    "arena": ReportView("C99", "RAM of a program in C99", "engines", arena, report=small_arena),
    "modules": ReportView("modules", "The step by modules", "growth", modules, of_modules, modules),
    "devices": ReportView("devices", "Over many devices", "growth", over_devices),
}
"""The views by name, in their order on the page."""


NOT_SIZES = frozenset(flag.name for view in VIEWS.values() for flag in flags_of(view.question)) | {
    flag.name for flag in flags_of(cost)
}
"""The parameters of a page that are no size of a model."""


def pictures(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pictures of a report by name, without those that do not apply to the step."""
    result: dict[str, Any] = {}
    for name, view in VIEWS.items():
        if view.report is None:
            continue
        try:
            result[name] = view.report(**view.taken(arguments)).to_dict()
        except InputError:
            continue
    return result
