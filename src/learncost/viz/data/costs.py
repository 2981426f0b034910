"""The cost of a step line by line: the rows of `cost --by equation`, with formulas and the table that they are from.

The parts of its time by axes are here, too, from which a page without Python computes the seconds for other sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import lcm
from typing import Any, TypeAlias

from learncost.cost_models import Price, PricedLine
from learncost.cost_models.errata import errata
from learncost.ir.dataclass import attributes, dataclass, field, made_of, replace
from learncost.ir.line import Line
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, total
from learncost.ir.precision import BYTES
from learncost.layers.active import shown_layer, words_of
from learncost.layers.layer import names_of_layers, shipped, shipped_layer
from learncost.models.compose import plan
from learncost.models.model import Model
from learncost.reports import notation as write
from learncost.reports.notation import terms as in_print
from learncost.reports.record import Cost
from learncost.reports.rows import lines_by
from learncost.timing.rates import MMAP_THRESHOLD, MatmulGrid, Rates
from learncost.timing.work import Extent, WorkAxes, queried, works_axes

Exported: TypeAlias = list[Any]
"""A polynomial as it is printed: the number that all is divided by at the end, then pairs of a monomial's place and its
coefficient.

Coefficients are whole numbers, as halves are divided by at the end: the value at whole sizes is exact, to the unit.
"""


@dataclass
class Monomials:
    """The monomials of many polynomials, by their places: products of axes, each multiplied out once by who reads."""

    places: dict[tuple[str, ...], int] = field(default_factory=dict)

    def exported(self, count: Polynomial) -> Exported:
        """Return a polynomial in terms of these monomials."""
        over = lcm(*(coefficient.denominator for coefficient in count.terms.values()))
        terms = [
            [self.places.setdefault(monomial, len(self.places)), int(coefficient * over)]
            for monomial, coefficient in in_print(count)
        ]
        return [over, *terms]

    def to_list(self) -> list[list[str]]:
        """Return the axes of each monomial, in the order of the places."""
        return [list(monomial) for monomial in self.places]


QUANTITIES = ("maccs", "flops", "bytes", "parameters")


@dataclass(frozen=True)
class CostLine:
    """A line of a step, all its iterations and those of equal layers together.

    phase, block, layer, line, equation  as the ledger has them; repeat, how many equal layers there are
    text, mathml   the line in the notation, and as a formula
    module         the path of the module that it is of, where a program was read that says so
    table          the name of the shipped layer that it is from or was derived from
    counts         exact values of `QUANTITIES`; `formulas`, the same as polynomials, `written` as MathML
    seconds        on the device, where one is given; None where it runs inside of the kernel of the line `inside`
    rows           the places of its priced lines among all
    """

    phase: str
    block: str | None
    layer: str
    line: str
    equation: str
    repeat: int
    text: str
    mathml: str
    table: str
    counts: Mapping[str, int]
    formulas: Mapping[str, Polynomial]
    errata: tuple[str, ...] = ()
    outside_paper: bool = False
    seconds: float | None = None
    bound: str = ""
    inside: str = ""
    joules: float | None = None
    rows: tuple[int, ...] = ()
    module: str = ""

    def to_dict(self, monomials: Monomials, symbols: Mapping[str, str]) -> dict[str, Any]:
        """As the document has it; what is empty is left out. `symbols` of axes, as `symbols_of` a model."""
        fields: dict[str, Any] = {
            **_ROW(self),
            "errata": list(self.errata),
            "outside_paper": self.outside_paper,
            **self.counts,
            **_TIME(self),
            "formulas": {
                name: {
                    "count": monomials.exported(count),
                    "mathml": _written((*count.terms.items(),), (*symbols.items(),)),
                }
                for name, count in self.formulas.items()
                if count
            },
        }
        always = ("phase", "layer", "line", "repeat", "formulas")
        return {name: value for name, value in fields.items() if name in always or value not in (None, "", [], False)}


_ROW = attributes("phase block layer module line equation repeat text mathml table")
_TIME = attributes("seconds joules bound inside")


def cost_lines(step: Cost) -> tuple[CostLine, ...]:
    """Return the lines of a step that was asked for `by` equation, in the order of its rows."""
    assert step.by == "equation"
    assert step._priced is not None
    assert step._built is not None
    price, model = step._priced, step._built
    axis_names = frozenset(model.table.axes)
    weights = _weights(model)
    called = () if model.configuration.layer else plan(model.configuration).layers
    bases = {layer.name: layer.base for layer in called}
    watts = step.timing.rates.watts if step.timing else None
    result = []
    groups = lines_by(price, "equation", step.timing)
    for (_, rows), row in zip(groups, step.rows, strict=True):
        first = rows[0]
        formulas = dict(_formulas(price, rows))
        place = first.layer, first.block, row.line
        if row.macro_operation == "forward" and place in weights:
            formulas["parameters"] = weights.pop(place)
        text, mathml = _text_and_formula(first, axis_names)
        counts = {name: getattr(row, name) for name in ("maccs", "flops", "bytes") if getattr(row, name) is not None}
        if "parameters" in formulas:
            counts["parameters"] = _at(formulas["parameters"], price)
        result.append(
            made_of(
                CostLine,
                row,
                phase=row.macro_operation,
                layer=row.layer or "",
                equation=row.equation if row.equation != row.line else "",
                text=text,
                mathml=mathml,
                table=_table(first.layer, bases),
                counts=counts,
                formulas=formulas,
                errata=_errata_of(_table(first.layer, bases), row.macro_operation, row.equation),
                seconds=row.time,
                inside=", ".join(row.timing.inside) if row.timing and row.time is None else "",
                joules=row.time * watts[1] if watts and row.time is not None else None,
                rows=tuple(row.place for row in rows),
                module=first.module.strip("."),
            )
        )
    return (*result, *_stored(model, weights, price))


def _formulas(price: Price, rows: list[PricedLine]) -> Iterator[tuple[str, Polynomial]]:
    """Yield the total costs of rows as polynomials in the axes."""
    part = Price(price.book, tuple(rows), {}, price.dtype)
    for name in ("maccs", "flops", *(["bytes"] if price.dtype in BYTES else [])):
        count = getattr(part, name)
        yield name, count if isinstance(count, Polynomial) else Polynomial.of((), count)


def _at(count: Polynomial, price: Price) -> int:
    return int(count.at(price.sizes)) if count else 0


_Place = tuple[str, str | None, str]


def _weights(model: Model) -> dict[_Place, Polynomial]:
    """Return the elements of every weight, at the first line that reads it."""
    left, counts = dict.fromkeys(model.table.weights), dict[_Place, Polynomial]()
    for line, nest in walk(model.table.lines):
        for name in (nest.stacks.get(name, name) for name in line.reads):
            if name in left:
                del left[name]
                place = line.meta.layer, line.meta.block, line.meta.local or line.name
                counts[place] = counts.get(place, Polynomial()) + Polynomial.of(model.table.axes[name])
    unread = total(Polynomial.of(model.table.axes[name]) for name in left) + Polynomial.of(
        (), model.configuration.unread
    )
    return counts | ({("", None, ""): unread} if unread else {})


def _stored(model: Model, left: Mapping[_Place, Polynomial], price: Price) -> Iterator[CostLine]:
    """Weights that no priced line of the forward pass reads."""
    for (layer, block, line), count in left.items():
        formulas = {"parameters": count}
        counts = dict.fromkeys(QUANTITIES, 0) | {"parameters": _at(count, price)}
        name = line or "stored, read by no line"
        yield CostLine("forward", block, shown_layer(layer), name, "", 1, "", "", "", counts, formulas)


def _text_and_formula(row: PricedLine, axis_names: frozenset[str]) -> tuple[str, str]:
    """Return a line in the notation, and as a formula; rows of a whole model have no line."""
    line = row.source
    if not isinstance(line, Line):
        return str(line), ""
    bare = replace(line, meta=replace(line.meta, equation=""))
    return str(bare), write.mathml(bare, axis_names)


@lru_cache(maxsize=4096)
def _written(terms: tuple[tuple[tuple[str, ...], Any], ...], symbols: tuple[tuple[str, str], ...]) -> str:
    return write.breakable(Polynomial(dict(terms)), dict(symbols))


def symbols_of(model: Model) -> Mapping[str, str]:
    """Return the symbols of axes in formulas: those of the paper; for a user's table, its letters."""
    layer = model.configuration.layer
    return write.SYMBOLS if layer is None or layer.name in shipped() else {}


def _table(layer: str, bases: Mapping[str, str]) -> str:
    """Return the shipped layer of a line's layer."""
    name = bases.get(layer, layer)
    return name if name in shipped() else ""


def tables(lines: tuple[CostLine, ...]) -> dict[str, dict[str, Any]]:
    """Return the shipped layers that lines are from: their files, sources and text, and the words for their letters."""
    names = dict.fromkeys(line.table for line in lines if line.table)
    return {
        name: {
            "file": f"layers/tables/{name}.table",
            "source": shipped_layer(name).source,
            "text": shipped_layer(name).text,
            "names": words_of(name),
        }
        for name in names
    }


_NUMBERS = re.compile(r"\((\d+)\)")


def _errata_of(table: str, phase: str, equation: str) -> tuple[str, ...]:
    """Return the errata that name the equation of a line, or its layer's totals."""
    numbers = set(_NUMBERS.findall(equation)) | set(re.findall(r"\d+", equation))
    identifiers = []
    for erratum in errata():
        layer = names_of_layers().get((erratum.layer or "").replace("_", ""), erratum.layer)
        if layer == table and erratum.macro_operation == phase and numbers & set(_NUMBERS.findall(erratum.where)):
            identifiers.append(erratum.id)
    return tuple(identifiers)


def times(step: Cost, lines: Iterable[CostLine]) -> dict[str, Any]:
    """Return the rates of the device, and the kernels of the step with their lines.

    recorded  the time of the kernels of a recorded step, or of one in Triton, at the sizes of the document
    A work has its lines by their places among the document's; its bytes, points and products by places among the
    monomials here.
    """
    assert step.timing is not None
    assert step._priced is not None
    rates, rows = step.timing.rates, step.timing.rows
    shown = {row: place for place, line in enumerate(lines) for row in line.rows}
    places = {place: shown[row] for place, row in step.timing.places.items()}
    monomials = Monomials()
    several = works_axes(rows, step._priced.dtype, rates.operators, rates.ops, step.timing.updated)
    works = [_work(work, rows, places, monomials) for work in several]
    return {
        **attributes(device="name", low="low", high="high", watts="watts")(rates),
        "rates": _rates(rates),
        "works": works,
        "monomials": monomials.to_list(),
        **({"recorded": attributes("seconds low high busy waiting program")(step.recorded)} if step.recorded else {}),
    }


def _work(work: WorkAxes, rows: Sequence[PricedLine], places: dict[int, int], monomials: Monomials) -> dict[str, Any]:
    def axes(of: Iterable[str]) -> int:
        return monomials.places.setdefault(tuple(sorted(of)), len(monomials.places))

    def extent(of: Extent) -> list[int]:
        return [axes(of[0]), of[1]]

    result: dict[str, Any] = {
        "lines": [
            {
                "line": places[line.place],
                **(
                    {
                        "product": [
                            *map(axes, (product.batch, product.rows, product.columns, product.summed)),
                            product.orientation,
                            queried(product, work.blocks) if work.blocks else "",
                        ]
                    }
                    if (product := line.product)
                    else {}
                ),
                **({"points": [[name, *extent(of)] for name, of in line.points]} if line.points else {}),
            }
            for line in work.lines
        ],
        "repeat": monomials.exported(work.repeat),
        "flops": monomials.exported(total(rows[line.place].flops for line in work.lines) or Polynomial()),
        "phase": work.phase,
        "bytes": [
            [name, work.bits[name], [[*extent(part[:2]), axes(part[2])] for part in parts]]
            for name, parts in work.bytes.items()
        ],
        "made": [[extent(part)[0], work.width] for part in work.made.values()],
    }
    if work.kernel is not None:
        result["kernel"] = axes(work.kernel)
    if blocks := work.blocks:
        windows = [axes((window,)) for window in blocks.windows]
        result["blocks"] = {"axis": axes((blocks.axis,)), **attributes("most ordered")(blocks), "windows": windows}
    return result


def _rates(rates: Rates) -> dict[str, Any]:
    grids: list[MatmulGrid] = []
    for grid in (*rates.products.values(), rates.inner):
        if grid not in grids:
            grids.append(grid)
    return {
        "products": {name: grids.index(grid) for name, grid in rates.products.items()},
        "inner": grids.index(rates.inner),
        "grids": attributes("sizes rates")(grids),
        "bandwidth": attributes("places values")(rates.bandwidth),
        "ops": dict(rates.ops),
        "fresh_from": MMAP_THRESHOLD,
        **attributes("launch launch_backward optimizer fresh step queues threads")(rates),
    }
