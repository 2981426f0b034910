"""Views in addition to the document: questions whose answers are pictures that any page draws.

A new view is a module here and a row of `VIEWS`; the page draws it, and has a control for each of its flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from learncost.ir.errors import InputError
from learncost.reports.cost import cost
from learncost.reports.question import flags_of
from learncost.reports.record import Cost
from learncost.viz.views.devices import over_devices
from learncost.viz.views.engines import arena, by_engine, small_arena
from learncost.viz.views.modules import modules, of_modules
from learncost.viz.views.picture import Picture


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
