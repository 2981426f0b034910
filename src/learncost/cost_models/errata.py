"""Read the errata of the publications that learncost's formulas come from, with their corrections."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from learncost.ir.dataclass import dataclass, field
from learncost.ir.displayed import Displayed


@dataclass(frozen=True, slots=True)
class Erratum(Displayed):
    """An erratum of a publication.

    `maccs` and `flops` are the correct count minus the printed one, as polynomials in M, N, d_model, d_ff, h and voc;
    they are "0" if no total changes. `books` states for each price book whether it reproduces the error ("printed") or
    corrects it ("corrected").
    """

    id: str
    document: str
    where: str
    printed: str
    right: str
    effect: str
    layer: str | None = None
    macro_operation: str | None = None
    maccs: str = "0"
    flops: str = "0"
    books: Mapping[str, str] = field(
        default_factory=lambda: {"paper": "printed", "paper-corrected": "printed"}, hash=False
    )


@cache
def errata() -> tuple[Erratum, ...]:
    """Return all errata: wrong or contradictory passages of publications.

    Returns
    -------
    tuple of Erratum
        Each has `id`, `document`, `where`, the `printed` text, the `right` one, the `effect` on a total, and the right
        count minus the printed one as polynomials (`maccs`, `flops`).

    Examples
    --------
    >>> [erratum.id for erratum in lc.errata()][:3]
    ['E1', 'E2', 'E3']
    """
    text = Path(__file__).with_name("errata.toml").read_text(encoding="utf-8")
    return tuple(Erratum(**row) for row in tomllib.loads(text)["erratum"])
