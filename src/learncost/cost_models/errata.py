"""Read the errata of the publications that learncost's formulas come from, with their corrections."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from learncost.ir.dataclass import asdict, dataclass, field
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError, mentions, nearest, shown


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


def errata(name: str | None = None, /, *, like: str | None = None) -> tuple[Erratum, ...]:
    """Return errata: wrong or contradictory passages of publications.

    Parameters
    ----------
    name
        The name of an erratum, such as E2. By default all are returned.
    like
        Return only errata that contain this text, ignoring case, such as backward.

    Returns
    -------
    tuple of Erratum
        Each has `id`, `document`, `where`, the `printed` text, the `right` one, the `effect` on a total, and the right
        count minus the printed one as polynomials (`maccs`, `flops`).

    Raises
    ------
    InputError
        For a name that no erratum has, for a text that none contains, and for both a name and a text.

    Examples
    --------
    >>> [erratum.id for erratum in lc.errata()][:3]
    ['E1', 'E2', 'E3']
    >>> lc.errata("E2")[0].layer
    'mha'
    """
    every = _read()
    if name is None:
        found = every if like is None else tuple(each for each in every if mentions(asdict(each).values(), like))
        if like is not None and not (found and like.strip()):
            raise InputError(f"no errata contain {shown(like)}")
        return found
    if like is not None:
        raise InputError(f"like cannot be combined with the erratum {shown(name)}: give one of them")
    by_id = {erratum.id.lower(): erratum for erratum in every}
    if str(name).lower() not in by_id:
        ids = [erratum.id for erratum in every]
        raise InputError(f"no erratum is called {shown(name)}{nearest(str(name), ids)} (there are {', '.join(ids)})")
    return (by_id[name.lower()],)


@cache
def _read() -> tuple[Erratum, ...]:
    text = Path(__file__).with_name("errata.toml").read_text(encoding="utf-8")
    return tuple(Erratum(**row) for row in tomllib.loads(text)["erratum"])
