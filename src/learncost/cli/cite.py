"""`learncost cite`: BibTeX of learncost and of the works behind price books and learning procedures."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from learncost import __version__
from learncost.cost_models.books import every
from learncost.ir.errors import InputError, nearest, shown
from learncost.procedures.procedure import INFERENCE, LEARNING
from learncost.reports.question import question


@question()
def cite(*names: str) -> str:
    """Write the BibTeX entries of learncost, of the paper that it starts from, and of price books and procedures.

    Parameters
    ----------
    names
        The price books and learning procedures that were used. By default all.

    Commands
    --------
    learncost cite
        Every entry.
    learncost cite palm mempepita
        learncost, Pau and Aymone 2024, and the works of these two.
    """
    known = [*every(), *LEARNING, *INFERENCE]
    for name in names:
        if name not in known:
            more = nearest(name, known) or "; see `learncost list price-books` and `learncost list procedures`"
            raise InputError(f"no price book or learning procedure is called {shown(name)}{more}")
    works = tomllib.loads(Path(__file__).with_name("references.toml").read_text(encoding="utf-8"))
    return "\n\n".join(_entries(works, names))


def _entries(works: Mapping[str, dict[str, Any]], names: tuple[str, ...]) -> Iterator[str]:
    """Return the entries that are cited for names, learncost's own first."""
    own = {"author": "{learncost contributors}", "title": "{learncost}", "year": 2026, "version": __version__}
    yield _entry("learncost", "software", own)
    for key, work in works.items():
        base, of = work.pop("base", False), work.pop("of").split()
        if base or not names or {*of} & {*names}:
            kind = "article" if "journal" in work else "misc"
            yield _entry(key, kind, work | ({"archiveprefix": "arXiv"} if "eprint" in work else {}))


def _entry(key: str, kind: str, fields: Mapping[str, Any]) -> str:
    """Return one entry in BibTeX."""
    lines = (f"  {name:<13} = {{{value}}}" for name, value in fields.items())
    return f"@{kind}{{{key},\n" + ",\n".join(lines) + "\n}"
