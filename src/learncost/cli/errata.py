"""`learncost errata`: errors in the publications, and their effect on totals."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from learncost.cost_models.errata import Erratum
from learncost.cost_models.errata import errata as every
from learncost.ir.dataclass import asdict, attributes, dataclass
from learncost.reports.question import question
from learncost.reports.sheet import FACTS, WIDTH, Sheet, TableColumn, TabularAnswer, table, words_of


@question()
def errata(name: str | None = None, /, *, like: str | None = None) -> Errata:
    """List errata of the publications behind learncost: place, printed text, correction, and effect on a total.

    Parameters
    ----------
    name
        The name of an erratum, such as E2. By default all are listed in a table.
    like
        Show only errata that contain this text, such as backward or Hoffmann.

    Commands
    --------
    learncost errata
        All errata.
    learncost errata E2
        One erratum, with the printed text and the correction.
    learncost errata --like backward
        Errata of backward passes.
    """
    return Errata(every(name, like=like), alone=name is not None)


@dataclass(frozen=True, repr=False)
class Errata(TabularAnswer):
    """All errata as a table, or one in full."""

    errata: tuple[Erratum, ...]
    alone: bool = False

    def to_dict(self) -> Any:
        """Return the errata as JSON data."""
        return asdict(self.errata[0]) if self.alone else [asdict(erratum) for erratum in self.errata]

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        return (_whole(self.errata[0]) if self.alone else _table(self.errata, in_full=width > 2 * WIDTH),)


def _table(errata: tuple[Erratum, ...], in_full: bool) -> Sheet:
    names = ("id", "document", "where", "printed", "right", "effect")
    if in_full:
        columns = [
            *(TableColumn(name, attrgetter(name), words=True) for name in names),
            TableColumn(
                "corrected in", lambda found: ", ".join(b for b, how in found.books.items() if how == "corrected"), True
            ),
        ]
    else:
        columns = [
            *words_of("id"),
            TableColumn("total", lambda e: "changes" if (e.maccs, e.flops) != ("0", "0") else "-", words=True),
            TableColumn(
                "place, and effect on a total",
                lambda e: f"{e.document.split(',')[0]}, {e.where}. {e.effect}",
                words=True,
            ),
        ]
    notes = ("learncost errata ID shows the printed text and the correction.",)
    return table(f"{len(errata)} errata of the publications", columns, errata, notes)


def _whole(erratum: Erratum) -> Sheet:
    cells = {
        **attributes("document where printed right effect")(erratum),
        "layer": erratum.layer or "",
        "macro-operation": (erratum.macro_operation or "").replace("_", " "),
        "MACCs": erratum.maccs if erratum.maccs != "0" else "",
        "FLOPs": erratum.flops if erratum.flops != "0" else "",
        "price books": ", ".join(f"{book}: {state}" for book, state in erratum.books.items()),
    }
    notes = ("MACCs and FLOPs are right minus printed.",) if cells["MACCs"] or cells["FLOPs"] else ()
    return table(erratum.id, FACTS, (fact for fact in cells.items() if fact[1]), notes)
