"""Comparison of learning procedures, and the sequence lengths at which one becomes cheaper than another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, overload

from learncost.cost_models import Book
from learncost.cost_models.books import book as find_book
from learncost.ir.dataclass import HIDDEN, Key, Serializable, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import check_known
from learncost.ir.polynomial import Polynomial, total
from learncost.models.configuration import family_of
from learncost.models.families import instead
from learncost.models.model import axes_of
from learncost.procedures.procedure import several
from learncost.reports.crossing import coefficients, sign_intervals
from learncost.reports.record import Cost
from learncost.reports.request import ON_DEVICE, Request, takes_request
from learncost.reports.run import PreparedRun, left_out_text, possible, prepare
from learncost.reports.sheet import FigureAnswer

if TYPE_CHECKING:
    from learncost.reports.several_models import ModelComparison

SCHEMA = 1
COMPARED_BOOKS = ("run", "paper")
"""The cost models of every comparison: what runs, and what the paper charges."""

QUANTITIES = ("maccs", "flops")


@dataclass(frozen=True)
class Cheaper(Serializable):
    """The cheaper procedure from this length to the next entry's; None: both cost the same."""

    seq_len: int
    procedure: str | None = field(metadata=Key("cheaper").field)
    beyond_positions: bool = False


@dataclass(frozen=True)
class Crossover(Serializable):
    """The cheaper of two procedures at every length from 1 to 10^12; the first entry starts at 1."""

    procedures: tuple[str, str]
    price_book: str
    quantity: str
    cheaper: tuple[Cheaper, ...] = field(metadata=Key("at_1", form=lambda cheaper: cheaper[0].procedure).field)

    @property
    @Key()
    def crossings(self) -> tuple[Cheaper, ...]:
        """The lengths at which the cheaper procedure changes; empty if it never does."""
        return self.cheaper[1:]


@dataclass(frozen=True, repr=False)
class Comparison(FigureAnswer):
    """Ledgers of one step under several procedures and price books, and their crossovers.

    Attributes
    ----------
    price_book
        The book that was asked for.
    costs
        The ledgers: `costs[price_book][procedure]` is a `Cost`.
    overtaking
        For each pair of procedures, book and quantity, which is cheaper from which length on (`cheaper`, `crossings`).
    varied
        The lengths that vary together in `overtaking`, which is empty where a model has none that can.
    positions
        Positions that the model learns; longer sequences are marked in `crossings`. None where there is no limit.
    left_out
        Procedures that the model cannot be trained by, with the reason.

    Examples
    --------
    >>> found = lc.compare("gpt2", "bp,recompute")
    >>> found.procedures
    ('bp', 'recompute')
    >>> found.first.procedure
    'bp'
    >>> sorted(found.costs)
    ['paper', 'run']
    """

    _sheets_module = "learncost.reports.show_comparison"
    _figures = ("procedures", "crossover", "scaling")
    _notebook_figure = "crossover"
    _schema = SCHEMA

    price_book: str
    costs: Mapping[str, Mapping[str, Cost]] = field(metadata=HIDDEN)
    overtaking: tuple[Crossover, ...] = field(metadata=Key(after="positions").field)
    varied: tuple[str, ...]
    positions: int | None
    left_out: str = ""
    _run: PreparedRun | None = field(default=None, metadata=HIDDEN)
    _request: Request | None = field(default=None, metadata=HIDDEN)

    @property
    @Key(inline=True, after="schema")
    def _common(self) -> dict[str, Any]:
        """Return what all ledgers have in common, as data."""
        names = ["model", "batch_size", "seq_len", "target_len", "dtype", "optimizer", "counted", "parameters"]
        names += ["trained_parameters", "trained", *(["plan"] if self.first.plan else [])]
        return {name: value for name, value in self.first.to_dict().items() if name in names}

    @property
    @Key("price_books", after="price_book")
    def _price_books(self) -> dict[str, dict[str, Any]]:
        """Return the ledgers as data, by price book and procedure."""
        by_book = self.costs.items()
        return {book: {name: self._one(cost, book) for name, cost in costs.items()} for book, costs in by_book}

    @property
    def procedures(self) -> tuple[str, ...]:
        """The compared procedures."""
        return tuple(self.costs[self.price_book])

    @property
    def first(self) -> Cost:
        """The ledger of the first procedure, which has what all have in common."""
        return next(iter(self.costs[self.price_book].values()))

    def ratio(self, procedure: str, price_book: str = "", quantity: str = "flops") -> float | None:
        """Return the cost of a step divided by its cost under bp; None if bp is not compared or costs nothing."""
        costs = self.costs[price_book or self.price_book]
        against = getattr(costs["bp"].total, quantity) if "bp" in costs else 0
        return getattr(costs[procedure].total, quantity) / against if against else None

    def _one(self, cost: Cost, book: str) -> dict[str, Any]:
        fields = cost.to_dict()
        ratios = {quantity: self.ratio(cost.procedure, book, quantity) for quantity in QUANTITIES}
        names = ("optimizer", "total", "macro_operations", "time", "memory", "training")
        return {key: fields[key] for key in names if key in fields} | {"ratio_to_bp": ratios}


@overload
def compare(model: list[Any], *given: Any, **more: Any) -> ModelComparison: ...


@overload
def compare(model: object, *given: Any, **more: Any) -> Comparison: ...


@takes_request(
    "model procedures price_book batch_size seq_len target_len tokens optimizer dropout dtype train train_layers lora "
    f"lora_rank lora_alpha dora plan precision on engine checkpoint_every | accumulate offload {ON_DEVICE}"
)
def compare(request: Request, procedures: Iterable[str] | str | None = None) -> Comparison | ModelComparison:
    """Compare learning procedures, and find the sequence lengths at which one becomes cheaper than another.

    Macro-operations and totals under one price book; ratios to bp under run and paper; and for each pair of procedures
    the cheaper one at every sequence length from 1 to 10^12, exactly, if the model's sequence length can vary.

    Parameters
    ----------
    procedures
        The learning procedures to compare, comma-separated: {choices} (`learncost list procedures`). The default is the
        first four, if the model supports them.
    price_book
        The price book of the macro-operations: run, matmul, paper or another (`learncost list price-books`).
    target_len
        Tokens in a decoder sequence of an encoder-decoder. The default is `seq_len`; both vary together.
    precision
        Data types for memory traffic, and with `on` for time and memory. The compared counts do not depend on it.
    on
        The device, as in learncost cost: adds the time of a step and its peak memory under every procedure.

    Returns
    -------
    Comparison
        The counts of each procedure and the crossover lengths; for a list of models a `ModelComparison`, one table.

    Raises
    ------
    InputError
        As for `lc.cost`, and if none of the procedures can train the model; unsupported ones are left out.

    Commands
    --------
    learncost compare gpt2 --procedure bp,recompute,pepita
        Three procedures, and the lengths at which one becomes cheaper than another.
    learncost compare gpt2 --on A100-SXM-40GB --batch-size 8
        The time and the peak memory of each procedure on a device, too.
    learncost compare gpt2 llama-2-7b --procedure bp,recompute --format latex
        Several models and procedures in one table for a paper.
    learncost compare distilbert-base --price-book paper-corrected --architecture DistilBertForMaskedLM
        The paper's table of PEPITA for DistilBERT.

    Examples
    --------
    >>> found = lc.compare("gpt2", "bp,pepita", optimizer="sgd")
    >>> round(found.ratio("pepita", "run"), 3), round(found.ratio("pepita", "paper"), 3)
    (1.137, 0.752)
    >>> [(one.price_book, one.quantity, one.crossings[0].seq_len) for one in found.overtaking if one.crossings]
    [('run', 'maccs', 4156), ('run', 'flops', 4229), ('paper', 'maccs', 598)]
    """
    if isinstance(request.model, list):
        from learncost.reports.several_models import compare_models  # is built on this module

        return compare_models(request, request.model, procedures)
    names = _names(procedures)
    kind = request.kind(counts_alone=request.on is None)
    rates = request.rates(kind)
    run = prepare(request if rates is None else request.in_precision(kind.name), names or ("bp",))
    check_known(run.model.table.lines, "a comparison")
    if names:
        priced, refused = possible(lambda name: run.rows(name, run.book), names)
        names, left_out = tuple(priced), left_out_text(refused)
    else:
        names, left_out = _possible(run, request.adaptation() is not None)
    books = {book.name: book for book in (run.book, *map(find_book, COMPARED_BOOKS))}
    costs = {name: {procedure: run.cost(procedure, book) for procedure in names} for name, book in books.items()}
    if rates is not None:
        from learncost.reports.recorded import with_kernels  # imported where it is needed: start-up counts

        for name, asked in ((name, replace(request, procedure=name)) for name in names):
            answer = replace(run.cost(name, run.book, on=rates), dtype=kind.name, _request=asked)
            costs[run.book.name][name] = with_kernels(answer, asked.in_precision(kind.name))
    configuration = run.model.configuration
    one_target = request.target_len is not None or any(name in request.sizes for name in ("M", "target_length"))
    varied = _varied(run, bool(family_of(configuration).fixed), one_target)
    learned = configuration.sizes.get("max_position_embeddings") if configuration.positions == "learned" else None
    if configuration.layer is not None and (limit := family_of(configuration).limit):
        learned = int(limit)
    overtakings = tuple(_overtaking(run, books, names, varied, learned)) if varied else ()
    return Comparison(run.book.name, costs, overtakings, varied, learned, left_out, run, request)


def _possible(run: PreparedRun, adapted: bool) -> tuple[tuple[str, ...], str]:
    """Return the procedures that can train the model under the book, and why others cannot."""
    priced, refused = possible(lambda name: run.rows(name, run.book))
    names = tuple(priced)
    if not refused:
        return names, ""
    others = " and ".join(refused)
    if adapted:
        return names, f"{others} update every weight: they do not support frozen weights or adapters"
    if not run.model.learns:
        other = instead(run.model.configuration.family)
        return names, f"{others} require a model with an output to learn from, such as gpt2 or `encoder`{other}"
    return names, f"{others} are left out: {next(iter(refused.values()))}"


def _varied(run: PreparedRun, fixed: bool, one_target: bool) -> tuple[str, ...]:
    """Return the lengths that vary together, without those that the model fixes or lacks, or a given decoder length."""
    if run.model.two_sided:
        if fixed:
            return ("target_len",)
        return ("seq_len",) if one_target else ("seq_len", "target_len")
    return () if fixed or not {*length_axes(run, ("seq_len",))} & {*axes_of(run.model.table)} else ("seq_len",)


def _names(procedures: Iterable[str] | str | None) -> tuple[str, ...]:
    if procedures is None:
        return ()
    names = several(procedures)
    if not names or len(set(names)) < len(names):
        raise InputError(f"procedures must be a comma-separated list of different names, not {','.join(names)!r}")
    return names


def _overtaking(
    run: PreparedRun, books: Mapping[str, Book], names: Iterable[str], varied: tuple[str, ...], learned: int | None
) -> Iterator[Crossover]:
    for name, book in books.items():
        for quantity in QUANTITIES:
            axes = length_axes(run, varied)
            counts = {procedure: total_in(run, procedure, book, quantity, axes) for procedure in names}
            for first, second in combinations(counts, 2):
                signs = sign_intervals(coefficients(counts[first] - counts[second], "L"))
                cheaper = tuple(
                    Cheaper(s.first, {-1: first, 0: None, 1: second}[s.sign], bool(learned and s.first > learned))
                    for s in signs
                )
                yield Crossover((first, second), name, quantity, cheaper)


def length_axes(run: PreparedRun, varied: Iterable[str]) -> tuple[str, ...]:
    """Return the axes of the lengths that vary."""
    letters = {"seq_len": "N" if run.model.two_sided else "M", "target_len": "M"}
    return tuple(letters[name] for name in varied)


def total_in(run: PreparedRun, procedure: str, book: Book, quantity: str, axes: Iterable[str]) -> Polynomial:
    """Return a step's total MACCs or FLOPs as a polynomial in L, the common size of these axes."""
    step_count, axes = total(getattr(row, quantity) for row in run.rows(procedure, book)), tuple(axes)
    others = {axis: size for axis, size in run.axes.items() if axis not in axes} | {"": 0}
    in_length = step_count.rename(dict.fromkeys(axes, "L")).at(others)
    return in_length if isinstance(in_length, Polynomial) else Polynomial({(): in_length} if in_length else {})
