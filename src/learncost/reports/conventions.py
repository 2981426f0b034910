"""Counts of one step under every convention: price books, the reasons for their differences, FLOPs counters.

Counters have the rules of the versions named, for linear layers written as nn.Linear (or addmm) and norms as
nn.LayerNorm, and were measured on a block of GPT-2 with its head; attention is written with matmul, or with the fused
scaled_dot_product_attention, which most of them do not see on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, overload

from learncost.cost_models import Book, PricedLine, counts_of
from learncost.cost_models.books import BOOKS, every
from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, Serializable, attributes, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Op, Product, Sum
from learncost.ir.loop import check_known, walk
from learncost.ir.polynomial import Polynomial, total
from learncost.ir.term import Term
from learncost.layers.products import matrix_maccs
from learncost.models.tables import letters_of
from learncost.reports.identify import Identified
from learncost.reports.identify import identify as identified_number
from learncost.reports.reasons import because
from learncost.reports.record import Amount
from learncost.reports.request import Request, takes_request
from learncost.reports.run import PreparedRun, prepare
from learncost.reports.sheet import AtLength, FigureAnswer

if TYPE_CHECKING:
    from learncost.reports.memory.published import Peaks, PublishedMemory


@dataclass(frozen=True)
class FlopsCounter(Serializable):
    """The count of a FLOPs counter in its unit, with attention by matmul and by the fused kernel."""

    name: str = field(metadata=Key("counter").field)
    version: str
    unit: str
    by_matmul: int = field(metadata=Key("attention_by_matmul").field)
    fused: int = field(metadata=Key("attention_fused").field)
    rule: str


_TORCH = (
    "two FLOPs a MAC of mm, addmm, bmm, baddbmm and convolutions, backward as autograd runs it; the fused kernel is 0 "
    "on the CPU without dropout, bmm on meta, and on CUDA 2 products forward and 5 backward, masks ignored"
)
_FVCORE = "MACs of products, and 5 an element of layer norms; forward only"
_PTFLOPS = "MACs of mm, addmm and bmm, and 1 an element that a bias is added to; forward only"
_CALFLOPS = "MACs of linear layers and torch.matmul; `@`, einsum, bmm and the fused kernel are 0; forward only"
_THOP = "MACs of nn.Linear, and 4 an element of layer norms; attention's products are 0 however written; forward only"


def counters(run: PreparedRun, plain: tuple[PricedLine, ...]) -> tuple[FlopsCounter, ...]:
    """Return the counters with exactly known rules; `plain` are the rows of a step's matrix products."""
    forward = [row for row in plain if row.macro_operation == "forward"]
    linear = total(row.maccs for row in forward if row.kind == "linear").at(run.axes)
    attention = total(row.maccs for row in forward if row.kind == "attention").at(run.axes)
    both = total(row.flops for row in plain).at(run.axes)
    unseen = total(row.flops for row in plain if row.kind == "linear").at(run.axes)
    fused = total(row.flops for row in run.rows("bp", BOOKS["torch-flop-counter"])).at(run.axes)
    products = linear + attention
    norms, biases = 5 * total(_norms(run)).at(run.axes), total(_biases(run)).at(run.axes)

    def torch(where: str, by_matmul: int, kernel: int) -> FlopsCounter:
        return FlopsCounter(f"FlopCounterMode, {where}", "torch 2.13.0", "FLOPs", by_matmul, kernel, _TORCH)

    counted = [
        torch("CPU, forward", 2 * products, 2 * linear),
        torch("CPU, in all", both, unseen),
        torch("CUDA, in all", both, fused),
    ]
    if _experts(run):  # they choose by values, which meta has none of, and their weights are in no nn.Linear
        return tuple(counted)
    return (
        *counted,
        torch("meta, in all", both, both),
        FlopsCounter("fvcore", "3378afe", "MACs", products + norms, linear + norms, _FVCORE),
        FlopsCounter("ptflops, aten", "0.7.5", "MACs", products + biases, linear + biases, _PTFLOPS),
        FlopsCounter("calflops", "0.3.2", "MACs", products, linear, _CALFLOPS),
        FlopsCounter("thop", "43c064a", "MACs", linear + norms // 5 * 4, linear + norms // 5 * 4, _THOP),
    )


def _norms(run: PreparedRun) -> Iterable[Polynomial]:
    """Return the number of elements that layer norms read."""
    for line, nest in walk(run.model.table.lines):
        if isinstance(line, Op) and line.op == "normalize":
            yield Polynomial.of((*line.left[0].loops, *nest.counts))


def _biases(run: PreparedRun) -> Iterable[Polynomial]:
    """Return the number of elements of products with a weight to which a bias is added."""
    table, products = run.model.table, set()
    for line, nest in walk(table.lines):
        if isinstance(line, Product) and matrix_maccs(line):
            products.add(line.name)
        elif isinstance(line, Sum):
            names = [term.name for term in line.right]
            if products.intersection(names) and any(name in table.weights for name in names):
                yield Polynomial.of((*line.left[0].loops, *nest.counts))


def _experts(run: PreparedRun) -> bool:
    """Return whether matrix products read weights at an index."""
    table = run.model.table
    return any(
        isinstance(line, Product)
        and matrix_maccs(line)
        and any(isinstance(term, Term) and term.indexed and term.name in table.weights for term in line.right)
        for line, _ in walk(table.lines)
    )


SCHEMA = 1
REFERENCE_CONVENTION = "matmul"
"""The book that the others are held against."""

PASSES = ("forward", "recomputation", "backward", "weight_update")
"""The passes that are counted; the optimizer's step is excluded, because most conventions have none."""


@dataclass(frozen=True)
class Counts(Serializable):
    """MACCs and FLOPs of the forward pass, and of forward, backward and weight update together."""

    forward: Amount
    whole: Amount = field(metadata=Key("forward_and_backward").field)

    def __sub__(self, other: Counts) -> Counts:
        pairs = ((self.forward, other.forward), (self.whole, other.whole))
        return Counts(*(Amount(before.maccs - after.maccs, before.flops - after.flops) for before, after in pairs))

    def __bool__(self) -> bool:
        return any((self.forward.maccs, self.forward.flops, self.whole.maccs, self.whole.flops))


@dataclass(frozen=True)
class BookReason:
    """A term by which a book differs from matrix products alone, with its signed amount."""

    what: str
    amount: Counts = field(metadata=Key(inline=True).field)


def _is_known(convention: Convention) -> bool:
    return convention.difference is not None


@dataclass(frozen=True)
class Convention(Serializable):
    """The counts of one price book, or why it has none (`refused`). The reasons sum to the difference."""

    book: Book = field(
        metadata=Key(form=attributes(price_book="name", title="title", source="source"), inline=True).field
    )
    counts: Counts | None = field(metadata=Key(inline=True).field)
    difference: Counts | None = field(metadata=Key(when=_is_known).field)
    reasons: tuple[BookReason, ...] = field(default=(), metadata=Key(when=_is_known).field)
    refused: str = field(default="", metadata=OPTIONAL)


@dataclass(frozen=True, repr=False)
class Conventions(AtLength, FigureAnswer):
    """The counts of all price books and counters for one step of backpropagation of one model.

    `found["matmul"]` is the entry of one book: its `counts`, their `difference` from the book `matmul`, and the
    `reasons`, which add up to the difference. A book that does not know the model has `refused` instead.

    Attributes
    ----------
    model
        The counted model, by name.
    batch_size
        Sequences in the step.
    seq_len
        Tokens in a sequence.
    target_len
        Tokens of the decoder's sequence, where there is an encoder too; else None.
    parameters
        Parameters of the model.
    counted
        The counted class of model, as a phrase.
    conventions
        One entry for each price book.
    counters
        One entry for each common counter of operations, with what it reports and what it misses.
    identified
        The conventions that give the caller's number; None where none was given.
    letters
        Of a run of a table, its sizes as the table calls them, `B = 2, M = 16`; else "".

    Examples
    --------
    >>> found = lc.conventions("bert-base", seq_len=128)
    >>> found.ratio("matmul")
    1.0
    >>> found["nanogpt"].refused.partition(":")[0]
    'price book nanogpt is a formula of language models with their head'
    """

    _sheets_module = "learncost.reports.show_conventions"
    _figures = ("conventions",)
    _schema = SCHEMA

    model: str
    batch_size: int
    seq_len: int
    target_len: int | None
    parameters: int
    counted: str
    conventions: tuple[Convention, ...] = field(metadata=HIDDEN)
    counters: tuple[FlopsCounter, ...]
    identified: Identified | None = field(default=None, metadata=OPTIONAL)
    letters: str = field(default="", metadata=HIDDEN)

    @property
    @Key("price_books", after="conventions")
    def _price_books(self) -> list[dict[str, Any]]:
        """Return the entries as data, each with its ratio to matrix products alone."""
        return [each.to_dict() | {"ratio": self.ratio(each.book.name)} for each in self.conventions]

    def __getitem__(self, name: str) -> Convention:
        return next(convention for convention in self.conventions if convention.book.name == name)

    def ratio(self, name: str) -> float | None:
        """Return the ratio of forward and backward FLOPs to those of matrix products alone."""
        counts, reference = self[name].counts, self[REFERENCE_CONVENTION].counts
        if counts is None or reference is None or not reference.whole.flops:
            return None
        return float(Fraction(counts.whole.flops, reference.whole.flops))


@overload
def conventions(model: object, *, memory: Literal[False] = False, **more: Any) -> Conventions: ...


@overload
def conventions(model: object, *, memory: Literal[True], **more: Any) -> PublishedMemory | Peaks: ...


@takes_request("model batch_size seq_len target_len", price_book=REFERENCE_CONVENTION)
def conventions(
    request: Request, identify: int | float | str | None = None, memory: bool = False
) -> Conventions | PublishedMemory | Peaks:
    """Compare the counts of all price books and common counters for one training step, and explain their differences.

    The optimizer step is excluded, because most conventions do not count it. One MACC is two FLOPs in all of them.

    Parameters
    ----------
    identify
        Your own number, such as 291.6G or 8.75e11: shows which conventions give it, or the nearest one and the
        difference.
    memory
        Show published memory figures instead: activations of one sequence as counted by Pau & Aymone, compared with the
        exact ones; or peaks measured on one GPU, compared with predictions (`learncost list peaks`).

    Returns
    -------
    Conventions
        The counts of every price book and counter; for memory, the published elements or bytes.

    Raises
    ------
    InputError
        As for `lc.cost`.

    Commands
    --------
    learncost conventions gpt2
        The counts of one step of GPT-2 under all conventions, with their differences.
    learncost conventions gpt2 --identify 291.6G
        The conventions that give this number.

    Examples
    --------
    >>> found = lc.conventions("gpt2")
    >>> found["matmul"].counts.forward.flops
    291648307200
    >>> round(found.ratio("palm"), 3)
    1.006
    >>> [(reason.what, reason.amount.whole.flops) for reason in found["causal-half"].reasons]
    [('causal attention in half', -57982058496)]
    >>> lc.conventions("gpt2", identify="291.6G").identified.matches[0].text
    'counter FlopCounterMode, CPU, forward, attention by matmul: FLOPs of forward, for a step'
    """
    if memory:
        return _of_memory(request, identify)
    run = prepare(request)
    check_known(run.model.table.lines, "a comparison of conventions")
    plain = run.rows("bp", run.book)
    others = tuple(_convention(run, book, plain) for book in (run.book, *every().values()) if book is not run.book)
    batch_size, seq_len, target_len = run.model.lengths(run.axes)
    reference = Convention(run.book, _counts(run, plain), Counts(Amount(0, 0), Amount(0, 0)))
    result = Conventions(
        model=run.model.configuration.name,
        batch_size=batch_size,
        seq_len=seq_len,
        target_len=target_len,
        parameters=run.model.parameters.at(run.axes),
        counted=run.model.configuration.counted,
        conventions=(reference, *others),
        counters=counters(run, plain),
        letters=letters_of(run.model.configuration.layer, run.axes),
        _length_note=run.length_note,
    )
    return result if identify is None else replace(result, identified=identified_number(run, identify, result))


def _of_memory(request: Request, identify: Any) -> PublishedMemory | Peaks:
    """Return the published peaks of an unchanged model, else the activations of one sequence."""
    from learncost.reports.memory.published import Peaks, measured_of, published_memory  # are about memory alone

    if identify is not None:
        raise InputError("--identify cannot be combined with --memory: it is a number of operations")
    if str(request.batch_size or 1) != "1":
        raise InputError("--memory applies to one sequence: remove --batch-size")
    runs = () if request.given.keys() - {"batch_size", "price_book"} else measured_of(request.model_name)
    return Peaks(request.model_name, runs) if runs else published_memory(request)


def _convention(run: PreparedRun, book: Book, plain: tuple[PricedLine, ...]) -> Convention:
    try:
        rows = run.rows("bp", book)
    except InputError as error:
        return Convention(book, None, None, refused=str(error))
    counts = _counts(run, rows)
    reasons = []
    for text, more, less in because(run.model, book, rows, plain):
        if amount := _counts(run, more) - _counts(run, less):
            reasons.append(BookReason(text, amount))
    return Convention(book, counts, counts - _counts(run, plain), tuple(reasons))


def _counts(run: PreparedRun, rows: Iterable[PricedLine]) -> Counts:
    passes = [row for row in rows if row.macro_operation in PASSES]
    forward = [row for row in passes if row.macro_operation == "forward"]
    return Counts(*(Amount(*(count.at(run.axes) for count in counts_of(part))) for part in (forward, passes)))
