"""Sweeps: the cost of many configurations at once, by evaluating the ledger's polynomials on arrays.

Counts are float64, exact below 2^53, and every row says whether its own are. Nothing here loops over configurations:
the distinct monomials of all polynomials are multiplied up once, block by block, and summed. No library of matrix
products is used, whose threads would only get in the way of each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from learncost.cost_models import counts_of
from learncost.cost_models.books import BOOKS
from learncost.cost_models.books import book as find_book
from learncost.ir.dataclass import HIDDEN, Key, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import check_known
from learncost.ir.polynomial import Polynomial
from learncost.layers.active import parameters
from learncost.models import expression
from learncost.models.compose import SYMBOLS
from learncost.models.configuration import family_of, size_meant
from learncost.models.model import Model, build
from learncost.models.tables import RUN
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.procedure import MACRO_OPERATIONS, PROCEDURES
from learncost.procedures.procedure import procedure as find_procedure
from learncost.reports.grid import SweepGrid, grid_of
from learncost.reports.request import Request, takes_request
from learncost.reports.run import check_probability, left_out_text, possible, rows_of
from learncost.reports.sheet import WIDTH, FigureAnswer, Sheet
from learncost.reports.sheet import SheetRow as Cells

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

EXACT = 2.0**53  # every integer below it is a float64
BLOCK = 2**13  # configurations at a time: their monomials stay in the processor's cache
BY = ("total", "macro-operation")
ALL = "all"
UNUSED_PARAMETERS = "unread"  # stands for the parameters that nothing reads, among the axes


TIMED = 1_000
"""Rows of a sweep on a device: each is predicted separately, in about a tenth of a second."""

SHOWN = 20
"""Rows that a sweep shows of itself."""


@dataclass(frozen=True)
class SweepOnDevice:
    """The time and the peak memory of every configuration on a device; unknown memory is NaN."""

    seconds: NDArray[np.float64]
    memory: NDArray[np.float64]
    fits: NDArray[np.bool_]


@dataclass(frozen=True)
class SweepSeries:
    """The counts of all configurations under one procedure and one price book; float64, like all columns of counts."""

    procedure: str
    price_book: str
    macro_operation: str | None
    maccs: NDArray[np.float64]
    flops: NDArray[np.float64]
    exact: NDArray[np.bool_]
    on_device: SweepOnDevice | None = None


def _lists(columns: Mapping[str, NDArray[Any]]) -> dict[str, list[Any]]:
    whole_numbers = {"parameters", "maccs", "flops"}
    return {
        name: [int(value) for value in column.tolist()] if name in whole_numbers else column.tolist()
        for name, column in columns.items()
    }


@dataclass(frozen=True, repr=False)
class Sweep(FigureAnswer):
    """Configurations with their counts, as arrays. Counts are float64; `exact` marks rows below 2^53.

    Attributes
    ----------
    model
        The model, by name.
    sizes
        Arrays of the sizes that were given, of those that follow from them, of the batch size and of the lengths.
    fixed
        Every other size of the model, the same in all configurations.
    parameters
        Parameters of every configuration.
    series
        The counts under each procedure and price book: `maccs`, `flops` and `exact`, with an entry for each
        configuration.
    dropped
        The number of combinations that were left out as invalid.
    left_out
        With procedure "all", the procedures that the model cannot be trained by, with the reason.

    Examples
    --------
    >>> found = lc.sweep("gpt2", seq_len=[128, 256])
    >>> list(found.columns)
    ['batch_size', 'seq_len', 'procedure', 'price_book', 'parameters', 'maccs', 'flops', 'exact']
    >>> found.inexact
    0
    """

    _figures = ("sweep",)
    _schema = 1

    model: str
    sizes: Mapping[str, NDArray[np.int64]] = field(metadata=HIDDEN)
    fixed: Mapping[str, int]
    parameters: NDArray[np.float64] = field(metadata=HIDDEN)
    series: tuple[SweepSeries, ...] = field(metadata=HIDDEN)
    dropped: int = 0
    left_out: str = field(default="", metadata=HIDDEN)

    @property
    def configurations(self) -> int:
        """The number of configurations; every series has a row for each."""
        return len(self.parameters)

    def __len__(self) -> int:
        return self.configurations * len(self.series)

    @property
    def unfit(self) -> int:
        """The number of rows whose peak memory exceeds the device's or is unknown; 0 without a device."""
        return sum(int(np.count_nonzero(~series.on_device.fits)) for series in self.series if series.on_device)

    @property
    def inexact(self) -> int:
        """The number of rows with a count of at least 2^53."""
        return sum(int(np.count_nonzero(~series.exact)) for series in self.series)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of each series; a text that is equal in all rows is a single value."""
        for series in self.series:
            columns: dict[str, Any] = {**self.sizes, "procedure": series.procedure, "price_book": series.price_book}
            if series.macro_operation is not None:
                columns["macro_operation"] = series.macro_operation
            columns |= {"parameters": self.parameters, "maccs": series.maccs, "flops": series.flops}
            columns["exact"] = series.exact
            yield columns | (vars(series.on_device) if series.on_device else {})

    @property
    @Key(form=_lists, inline=True)
    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all rows, series after series, as an array for each column."""
        count = self.configurations
        parts = [
            {name: np.full(count, value) if isinstance(value, str) else value for name, value in part.items()}
            for part in self.parts()
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the first rows; `frame` and `write` have all."""
        columns = {name: values[:SHOWN] for name, values in self.columns.items()}
        cells = zip(*(values.tolist() for values in columns.values()), strict=True)
        rows = tuple(Cells(tuple(map(_cell, row))) for row in cells)
        notes = (f"{len(self) - SHOWN:,} more rows.",) if len(self) > SHOWN else ()
        left = frozenset(place for place, name in enumerate(columns) if name in ("procedure", "price_book"))
        too_large = f"; {self.unfit:,} of them: does not fit the device" if self.unfit else ""
        return (Sheet(f"{self.model}: {len(self):,} rows{too_large}", tuple(columns), rows, notes, left),)

    def frame(self) -> Any:
        """Return the rows as a polars DataFrame (extra `sweep`): counts are Float64, sizes Int64, texts Categorical."""
        from learncost.reports.columns import frame

        return frame(self)

    def to_polars(self) -> Any:
        """Return the rows as `frame` does."""
        return self.frame()

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises `InputError` if pandas is not installed."""
        from learncost.ir.displayed import pandas_of_columns

        return pandas_of_columns(self.columns)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the rows to a file ending in .csv or .parquet, under a temporary name until they are complete."""
        from learncost.reports.columns import write

        write(self, path)

    def write_csv(self, stream: IO[str]) -> None:
        """Write the rows as comma-separated values."""
        from learncost.reports.columns import write_csv

        write_csv(self, stream)


@takes_request(
    "model procedure price_book batch_size seq_len target_len * grid by skip_invalid optimizer dropout on progress "
    "| precision"
)
def sweep(
    request: Request,
    grid: bool = True,
    by: str = "total",
    skip_invalid: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """The cost of one training step for very many configurations at once; any row equals `lc.cost` of its sizes.

    Every size may be one number, several (a list, an array, a range), or a text as on the command line.

    Parameters
    ----------
    procedure
        The learning procedures: {choices}, one or more as a comma-separated list, or all: the first four that the model
        supports.
    price_book
        The price books: run, matmul, paper or others (`learncost list price-books`) as a comma-separated list, or all
        that count line by line.
    batch_size
        One or more numbers of sequences; 1 by default.
    seq_len
        One or more lengths.
    target_len
        One or more of the decoder's lengths.
    grid
        True takes all combinations of the values, the last size varying fastest. False takes the arrays together, like
        the columns of a table; they then have one length.
    by
        Rows: total, or macro-operation for a row for each macro-operation.
    skip_invalid
        Leave out combinations that are not valid models, such as a width that the heads do not divide. Without it they
        are refused.
    on
        The device, as in learncost cost: adds the columns seconds, memory and fits, for at most 1,000 rows, under price
        books run and matmul.
    progress
        A function that is called with the number of configurations that are done, and of all.

    Returns
    -------
    Sweep
        The rows, as arrays.

    Raises
    ------
    InputError
        As for `lc.cost`.

    Examples
    --------
    >>> found = lc.sweep("gpt2", "bp,pepita", seq_len=[256, 512], n_layer=[6, 12])
    >>> len(found), found.configurations
    (8, 4)
    >>> found.columns["maccs"][:2].astype(int).tolist()
    [64082018560, 131797352960]
    """
    names: Sequence[str] = _chosen(request.procedure, PROCEDURES, lambda name: find_procedure(name).name)
    books = _chosen(request.price_book, BOOKS, lambda name: find_book(name).name)
    if request.optimizer is not None:
        find_optimizer(request.optimizer)
    if by not in BY:
        raise InputError(f"by must be one of {', '.join(BY)}, not {by!r}")
    probability = check_probability("dropout", request.dropout)
    combinations = grid_of(request.model, {**request.sizes, **request.lengths}, grid, skip_invalid)
    built = build(combinations.configuration, dropout=probability > 0)
    check_known(built.table.lines, "a sweep")
    if request.on is not None and by != "total":
        raise InputError(f"--on requires --by total, not {by}")
    if request.on is not None and (rows := combinations.configurations * len(names) * len(books)) > TIMED:
        raise InputError(f"--on predicts time and memory for at most {TIMED:,} rows; the sizes make {rows:,}")
    priced, refused = possible(lambda name: rows_of(built, name, books[0], request.optimizer), names)
    names, left_out = tuple(priced), left_out_text(refused)
    series_asked = _wanted(built, names, books, request.optimizer, by)
    unread = Polynomial.of((UNUSED_PARAMETERS,)) if built.configuration.unread else Polynomial()
    counts = [parameters(built.table) + unread, *(count for _, _, _, pair in series_asked for count in pair)]
    values, bounds = evaluate(counts, combinations, built, progress)
    series = tuple(
        SweepSeries(name, book, phase, values[i], values[i + 1], (bounds[i] < EXACT) & (bounds[i + 1] < EXACT))
        for i, (name, book, phase, _) in zip(itertools.count(1, 2), series_asked, strict=False)
    )
    is_exact = bounds[0] < EXACT
    if not is_exact.all():
        series = tuple(replace(series, exact=series.exact & is_exact) for series in series)
    if request.on is not None:
        series = tuple(replace(each, on_device=_on_device(request, each, combinations)) for each in series)
    return Sweep(
        built.configuration.name,
        combinations.columns,
        combinations.fixed,
        values[0],
        series,
        combinations.dropped,
        left_out,
    )


def _on_device(request: Request, series: SweepSeries, combinations: SweepGrid) -> SweepOnDevice:
    """Return the time and the peak memory of every configuration, each as `cost --on` predicts them."""
    from learncost.reports.cost import cost  # only on a device: start-up counts

    answers, family = [], family_of(combinations.configuration)
    swept = {**combinations.fixed, **combinations.columns}
    settings = {name: value for name, value in request.sizes.items() if size_meant(family, name) not in swept}
    for place in range(combinations.configurations):
        values = {name: int(column[place]) for name, column in combinations.columns.items()}
        lengths: dict[str, Any] = {name: values.pop(name) for name in RUN if name in values}
        asked = replace(request, procedure=series.procedure, price_book=series.price_book, **lengths)
        answers.append(cost(replace(asked, sizes={**settings, **combinations.fixed, **values})))
    peaks = [answer.memory for answer in answers]
    known = [peak.peak if peak and not peak.unavailable else np.nan for peak in peaks]
    fits = [bool(peak and not peak.unavailable and peak.fits) for peak in peaks]
    return SweepOnDevice(np.array([answer.time for answer in answers]), np.array(known, float), np.array(fits))


_SeriesKey = tuple[str, str, str | None, tuple[Polynomial, Polynomial]]


def _wanted(
    model: Model, names: Sequence[str], books: Sequence[str], optimizer: str | None, by: str
) -> list[_SeriesKey]:
    """Return the polynomials of MACCs and FLOPs of every series."""
    result: list[_SeriesKey] = []
    for name, book in itertools.product(names, books):
        rows = rows_of(model, name, book, optimizer)
        if by == "total":
            result.append((name, book, None, counts_of(rows)))
        else:
            by_phase = {phase: [row for row in rows if row.macro_operation == phase] for phase in MACRO_OPERATIONS}
            result += [(name, book, phase, counts_of(part)) for phase, part in by_phase.items()]
    return result


def evaluate(
    counts: Sequence[Polynomial],
    combinations: SweepGrid,
    model: Model,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values of polynomials for every configuration, and bounds: values with bounds below 2^53 are exact.

    All partial sums are whole numbers of at most the bound, the sum with absolute coefficients. Below 2^53 none is
    ever rounded, in whatever order a library sums, and once a sum has reached 2^53 rounding cannot take it back.
    """
    columns, constants = _axes(combinations, model)
    partly = [count if count.sizes <= columns.keys() else count.at(constants) for count in counts]
    polynomials = [value if isinstance(value, Polynomial) else Polynomial.of((), value) for value in partly]
    monomials = sorted({monomial for count in polynomials for monomial in count.terms})
    # Every monomial is an earlier one times a size; prefixes that no polynomial has are made on the way.
    prefixes = sorted({m[:i] for m in monomials for i in range(1, len(m) + 1)})
    size = combinations.configurations
    values = np.zeros((len(polynomials), size))
    signed = any(coefficient < 0 for count in polynomials for coefficient in count.terms.values())
    bounds = np.zeros_like(values) if signed else values
    term = np.empty(min(BLOCK, size))
    products = {monomial: np.empty_like(term) for monomial in prefixes} | {(): np.ones_like(term)}
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        chunk = slice(0, stop - start)
        for monomial in prefixes:
            column = columns[monomial[-1]][start:stop]
            np.multiply(products[monomial[:-1]][chunk], column, out=products[monomial][chunk])
        for i, count in enumerate(polynomials):
            for monomial, coefficient in count.terms.items():
                np.multiply(products[monomial][chunk], float(coefficient), out=term[chunk])
                values[i, start:stop] += term[chunk]
                if signed:
                    bounds[i, start:stop] += np.abs(term[chunk])
        if progress is not None:
            progress(stop, size)
    return values, bounds


def _axes(combinations: SweepGrid, model: Model) -> tuple[dict[str, NDArray[np.float64]], dict[str, int]]:
    """Return the sizes of the tables' axes: arrays if they differ between configurations, else numbers."""
    sizes = {
        **model.configuration.values,
        **combinations.fixed,
        **combinations.columns,
        "B": combinations.columns["batch_size"],
    }
    sizes["M"] = sizes["target_len" if model.two_sided else "seq_len"]
    sizes["N"] = sizes["seq_len"]
    values: dict[str, Any] = {axis: expression.evaluate(rule, sizes) for axis, rule in model.rules.items()}
    values |= {axis: sizes[axis] for axis in ("B", "M", "N")}
    for count in model.sizes.keys() - model.rules.keys():
        name = next((size for size, symbol in SYMBOLS.items() if symbol == count), None)
        values[count] = model.sizes[count] if name is None else sizes[name]
        if name is None and combinations.columns.keys() & {"num_hidden_layers", "n_enc", "n_dec"}:
            raise InputError(f"sweep does not support {model.configuration.name}: its blocks are of several kinds")
    if model.configuration.unread:
        values[UNUSED_PARAMETERS] = expression.evaluate(family_of(model.configuration).unread, sizes)
    columns, constants = {}, {}
    for axis, column in values.items():
        if not isinstance(column, np.ndarray):
            constants[axis] = int(column)
        elif column[0] == column[-1] and (column == column[0]).all():
            constants[axis] = int(column[0])
        else:
            columns[axis] = column.astype(np.float64)
    return columns, constants


def _chosen(names_asked: Any, choices: Mapping[str, Any], check: Callable[[str], str]) -> list[str]:
    """Return distinct names from one name, a comma-separated text, several, or "all"; refuse unknown ones."""
    names = names_asked.split(",") if isinstance(names_asked, str) else list(names_asked)
    if names == [ALL]:
        return list(choices)
    if not names:
        raise InputError(f"choose at least one of {', '.join(choices)}")
    return list(dict.fromkeys(check(name.strip() if isinstance(name, str) else name) for name in names))


def _cell(value: object) -> str:
    """Return a value of a row as text, numbers with separators."""
    return str(value) if isinstance(value, bool | str) else f"{value:,.0f}"
