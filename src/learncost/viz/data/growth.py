"""Growth of a step's cost with length, batch, depth and width, by procedure, and the crossovers.

The width grows with the feed-forward networks and the number of heads, and the width of a head stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from learncost.cost_models.books import book as find_book
from learncost.ir.dataclass import Serializable, dataclass, replace
from learncost.ir.errors import InputError, named_one
from learncost.ir.polynomial import total
from learncost.models.configuration import Configuration, family_of
from learncost.models.model import build
from learncost.reports.compare import Cheaper, Comparison, length_axes, total_in
from learncost.reports.crossing import coefficients, value_at
from learncost.reports.run import PreparedRun
from learncost.reports.sheet import significant

ALONG: Mapping[str, str] = {"length": "tokens", "batch": "sequences", "depth": "blocks", "width": "width"}
"""The sizes along which a step grows, and their units."""

LONGEST = 131_072
"""Tokens that the curve over the length goes to, where nothing asks for more."""

_WIDE = (
    "hidden_size",
    "intermediate_size",
    "heads",
    "ffn_dim",
    "embedding_size",
    "embed_proj_dim",
    "pooler_output_size",
)
"""Sizes whose names end so grow with the width."""


@dataclass(frozen=True)
class GrowthSeries:
    """The totals of a procedure at every place, and over those of backpropagation: of the first where that is not
    compared."""

    procedure: str
    totals: tuple[int, ...]
    ratios: tuple[float | None, ...]


@dataclass(frozen=True)
class GrowthCrossing:
    """From `at` on, `cheaper` costs less than `dearer`, which was the cheaper one before; beyond the positions that
    the model learns or not."""

    at: int
    cheaper: str
    dearer: str
    beyond_positions: bool


@dataclass(frozen=True)
class Growth(Serializable):
    """Totals of a step over one of its sizes.

    model, price_book  what step it is, and by what its FLOPs are counted
    along  length, batch, depth or width; `unit`, what the places count
    here  the place of the step that was asked for
    limit  positions that the model learns; None where there is no limit, or where the length is not what grows
    places  the sizes
    series  one for each procedure
    crossings  where one procedure becomes cheaper than another: of the length, exactly as `lc.compare` finds them
    """

    model: str
    price_book: str
    along: str
    unit: str
    here: int
    limit: int | None
    places: tuple[int, ...]
    series: tuple[GrowthSeries, ...]
    crossings: tuple[GrowthCrossing, ...]

    @property
    def finding(self) -> str:
        """The finding of the picture in one sentence."""
        for crossing in self.crossings:
            if crossing.dearer == "bp":
                beyond = f", beyond the {self.limit:,} that the model learns," if crossing.beyond_positions else ""
                return f"From {crossing.at:,} {self.unit} on{beyond} {crossing.cheaper} is cheaper than backpropagation"
        others = [series for series in self.series if series.procedure != "bp" and len(set(series.ratios)) > 1]
        if self.along == "length" and others:
            return "No procedure is cheaper than backpropagation at any length"
        return f"What a step of {self.model} costs over its {self.along}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each place and procedure."""
        for series in self.series:
            for place, amount, ratio in zip(self.places, series.totals, series.ratios, strict=True):
                row = {self.along: place, "procedure": series.procedure, "price_book": self.price_book}
                yield row | {"flops": amount, "ratio": ratio}


def growth(answer: Comparison, along: str = "length") -> Growth:
    """Return the growth of the steps in a result of `lc.compare`, with places around the step that was asked for.

    Raises `InputError` for names that are not known, and for a model whose depth or width cannot be changed.
    """
    named_one("along", along, ALONG)
    run, book = answer._run, answer.price_book
    if run is None:
        raise InputError("this figure requires a result of lc.compare")
    family, crossings = family_of(run.model.configuration), tuple[GrowthCrossing, ...]()
    if along == "length" and not answer.varied:
        if family.fixed:
            raise InputError(f"{answer.first.model} reads {answer.first.seq_len:,} positions: {family.fixed}")
        raise InputError(f"{answer.first.model} has no sequence length to vary")
    if along in ("length", "batch"):
        axes = length_axes(run, answer.varied) if along == "length" else ("B",)
        here = run.axes[axes[0]]
        polynomials = {
            name: coefficients(total_in(run, name, find_book(book), "flops", axes), "L") for name in answer.procedures
        }
        if not any(any(polynomial[1:]) for polynomial in polynomials.values()):
            raise InputError(f"{answer.first.model} has no {along} to vary")
        if along == "length":
            crossings = tuple(_crossings(answer))
        places = _powers(here, *_reach(crossings, here) if along == "length" else (1, 64 * here))
        totals = {
            name: tuple(int(value_at(polynomial, place)) for place in places)
            for name, polynomial in polynomials.items()
        }
    else:
        here, several = _sized(run, along)
        places, totals = tuple(several), {}
        for name in answer.procedures:
            count = total(row.flops for row in run.rows(name, find_book(book)))
            totals[name] = tuple(int(count.at(sizes)) for sizes in several.values())
    base = totals.get("bp") or next(iter(totals.values()))
    return Growth(
        model=answer.first.model,
        price_book=book,
        along=along,
        unit=ALONG[along],
        here=here,
        limit=answer.positions if along == "length" else None,
        places=places,
        series=tuple(
            GrowthSeries(
                name,
                amounts,
                tuple(amount / other if other else None for amount, other in zip(amounts, base, strict=True)),
            )
            for name, amounts in totals.items()
        ),
        crossings=crossings,
    )


def _crossings(answer: Comparison) -> Iterator[GrowthCrossing]:
    for overtaking in answer.overtaking:
        if (overtaking.price_book, overtaking.quantity) == (answer.price_book, "flops"):
            before: Cheaper = overtaking.cheaper[0]
            for crossing in overtaking.crossings:
                if crossing.procedure is not None and crossing.procedure != before.procedure:
                    (other,) = set(overtaking.procedures) - {crossing.procedure}
                    yield GrowthCrossing(crossing.seq_len, crossing.procedure, other, crossing.beyond_positions)
                before = crossing


def _reach(crossings: Iterable[GrowthCrossing], here: int) -> tuple[int, int]:
    """Return the range of lengths, with crossovers with backpropagation well inside, up to a million tokens."""
    last = max(
        (crossing.at for crossing in crossings if "bp" in (crossing.cheaper, crossing.dearer) and crossing.at <= 2**20),
        default=0,
    )
    return 16, max(LONGEST, 4 * here, 4 * last)


def _powers(here: int, first: int, last: int) -> tuple[int, ...]:
    """Powers of two and the numbers half way between them, and the one that is asked for."""
    powers = [size for power in range(42) for size in (2**power, 2**power * 3 // 2)]
    return tuple(sorted({here, *(size for size in powers if min(first, here) <= size <= last)}))


def _sized(run: PreparedRun, along: str) -> tuple[int, dict[int, Mapping[str, int]]]:
    """Return the size of the requested step, and the axes at every size that the model can have."""
    configuration = run.model.configuration
    names = _depths(configuration) if along == "depth" else ("hidden_size",)
    here = sum(configuration.sizes.get(name, 0) for name in names)
    if not here:
        raise InputError(f"{configuration.name} has no {along} to vary")
    table = build(replace(configuration, learned=None), bool(run.model.masks)).table
    axes_at: dict[int, Mapping[str, int]] = {}
    for size in sorted({here * up // down for down in (8, 4, 2, 1) for up in (1, 2, 3, 4, 6, 8)}):
        try:
            changed = _scaled(configuration, along, size, here)
            built = build(replace(changed, learned=None), bool(run.model.masks))
        except InputError:
            continue
        if built.table == table:
            axes_at[size] = {**run.axes, **{axis: value for axis, value in built.sizes.items() if axis in run.axes}}
    if len(axes_at) < 2:
        raise InputError(f"{configuration.name} has no other {along} that keeps its kinds of blocks")
    return here, axes_at


def _depths(configuration: Configuration) -> tuple[str, ...]:
    names: tuple[str, ...] = ("num_hidden_layers", "n_enc", "n_dec")
    if configuration.layer is not None:
        names = tuple(line.count for line in configuration.layer.table.repeats)
    return tuple(name for name in dict.fromkeys(names) if name in configuration.sizes)


def _scaled(configuration: Configuration, along: str, size: int, here: int) -> Configuration:
    """Return the configuration with another depth or width. Raises `InputError` if a size is no integer."""
    wide = [name for name in configuration.sizes if name.endswith(_WIDE)]
    names = _depths(configuration) if along == "depth" else wide
    sizes = {name: configuration.sizes[name] * size for name in names}
    if any(value % here for value in sizes.values()) or not all(sizes.values()):
        raise InputError(f"{configuration.name} has no {along} of {size:,}")
    return replace(
        configuration, sizes={**configuration.sizes, **{name: value // here for name, value in sizes.items()}}
    )


@dataclass(frozen=True)
class Scaling(Serializable):
    """The growth of one or several models along one or several of the sizes."""

    along: tuple[str, ...]
    curves: tuple[Growth, ...]

    @property
    def finding(self) -> str:
        """The finding of the picture in one sentence."""
        first = self.curves[0]
        bp = first.series[0]
        place = first.places.index(first.here)
        if place + 1 == len(first.places):
            return f"What a step of {first.model} costs over its {first.along}"
        times, more = first.places[-1] / first.here, bp.totals[-1] / bp.totals[place] if bp.totals[place] else 0.0
        return f"{times:,.3g} times the {first.along} of {first.model} takes {significant(more)} times the FLOPs"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return a row for each size, model and procedure."""
        for curve in self.curves:
            for row in curve.rows():
                yield {"model": curve.model, "along": curve.along, "size": row[curve.along]} | {
                    name: value for name, value in row.items() if name != curve.along
                }


def scaling(answers: Iterable[Comparison], names: Iterable[str] = ALONG) -> Scaling:
    """Return the growth of the steps of answers of `lc.compare` along several sizes, those that each model has.

    Raises `InputError` where no model has any.
    """
    curves, refused = [], ""
    names, answers = tuple(names), tuple(answers)
    for name in names:
        for answer in answers:
            try:
                curves.append(growth(answer, name))
            except InputError as error:
                if len(names) == 1:
                    raise
                refused = str(error)
    if not curves:
        raise InputError(refused)
    return Scaling(tuple(dict.fromkeys(curve.along for curve in curves)), tuple(curves))
