"""What `formulas` and `explain` are about: a layer by its name or from a file, derived as a price book prices it."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from learncost.books.book import book
from learncost.equation.errors import InputError
from learncost.equation.table import Table
from learncost.layers.derive import Derived, derive
from learncost.layers.layer import Layer, layer, named, shipped
from learncost.models.wording import shown
from learncost.procedures.optimizer import default_optimizer, optimizer
from learncost.readings.price import Book
from learncost.vocabulary import entry


@dataclass(frozen=True)
class Subject:
    """A layer with the tables of its macro-operations, in the order in which they run."""

    layer: Layer
    book: Book
    jacobian: bool
    tables: dict[str, Table]
    derived: Derived | None

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def axes(self) -> frozenset[str]:
        """Every axis of the layer."""
        return frozenset(axis.rstrip("'") for axes in self.layer.table.axes.values() for axis in axes)

    @property
    def known(self) -> frozenset[str]:
        """The names that a `d` before them makes gradients of."""
        return frozenset(self.derived.step.axes if self.derived else self.layer.table.axes)


def subject(
    name: str, price_book: str = "run", jacobian: bool | None = None, optimizer_name: str | None = None
) -> Subject:
    """The layer of that name (hyphens accepted), or of that file in the notation, with its macro-operations' tables."""
    chosen = book(price_book)
    through = chosen.jacobian if jacobian is None else jacobian
    if name == "optimizer":
        step = _optimizer(optimizer_name or default_optimizer(chosen))
        return Subject(step, chosen, through, {"optimizer_step": step.table}, None)
    found = read_layer(name)
    table = found.table
    if found.name == "error_projection":
        # Nothing learns through the projection: it has one pass and no gradient.
        return Subject(found, chosen, through, {"error_projection": table}, None)
    derived = derive(table, jacobian=through)
    tables = {"forward": derived.forward, "backward": derived.backward, "weight_update": derived.update}
    return Subject(found, chosen, through, tables, derived)


def layers() -> tuple[str, ...]:
    """Every name that `formulas` and `explain` take."""
    return tuple(sorted((*shipped(), "optimizer")))


def read_layer(name: str) -> Layer:
    """The layer that ships under a name, or that a file holds."""
    plain = name.replace("-", "_")
    if plain in shipped():
        return named(plain)
    if name.endswith(".table") or os.path.isfile(name):
        return _read(Path(name))
    near = difflib.get_close_matches(plain, layers(), n=1)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    raise InputError(
        f"no layer is called {name!r}{hint} (there are {', '.join(layers())}; a file in the notation ends in .table)"
    )


def _read(path: Path) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file in UTF-8") from None
    except ValueError:
        raise InputError(f"not a path: {shown(str(path))}") from None  # a null character in it
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    return layer(text)


def _optimizer(name: str) -> Layer:
    """One step of one tensor of parameters, as a table made of the optimizer's word."""
    chosen = optimizer(name)
    word = entry(chosen.word)

    def term(given: str) -> str:
        return f"{given}[]" if given in chosen.scalars else f"{given}[n_parameters]"

    left = " ".join(map(term, word.outputs))
    others = " ".join(given for given in word.inputs if given != "W")
    head = f"optimizer({others}; W) -> {' '.join(word.outputs)}"
    body = f"{left} = {word.name}({', '.join(map(term, word.inputs))})"
    return layer(f"% One step of {name} on all parameters: {word.source}\n{head}\n  {body}")
