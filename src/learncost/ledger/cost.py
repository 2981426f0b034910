"""The cost ledger of one training step: what goes in is a configuration, what comes out are counts by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from learncost.books.book import BOOKS
from learncost.books.book import book as find_book
from learncost.equation.errors import InputError
from learncost.equation.precision import Precision, either, precision_of
from learncost.equation.table import Table
from learncost.ledger.record import Amount, Cost, LedgerRow
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, Structure, build, run_sizes
from learncost.models.numbers import counted
from learncost.models.sizes import CANONICAL, check_size, resolve, spelled
from learncost.models.wording import shown
from learncost.procedures.optimizer import default_optimizer
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.procedure import (
    CONTROLS,
    INFERENCE,
    MACRO_OPERATIONS,
    PROCEDURES,
    Procedure,
    step,
    trained_by,
)
from learncost.procedures.procedure import procedure as find_procedure
from learncost.readings.active import active_parameters
from learncost.readings.price import Book, Price, Row, parameters, price

if TYPE_CHECKING:
    from learncost.devices.device import Device
    from learncost.ledger.timing import Timing
    from learncost.models.adaptation import Adaptation
    from learncost.readings.time import Rates

LARGEST_TRAINING = 10**18  # tokens
BY = {"layer": (), "macro-operation": (), "equation": (), "kind": ()}

# What the layers are called in the ledger.
_SHOWN = {
    "sinusoidal_positions": "positions",
    "token_types": "positions",
    "plain_norm": "norm",
    "feed_forward_without_biases": "feed_forward",
    "masked_lm_transform": "head",
    "clamped_mixture_of_experts": "mixture_of_experts",
    "sigmoid_mixture_of_experts": "mixture_of_experts",
    "softmax_mixture_of_experts": "mixture_of_experts",
    "gated_shared_expert": "shared_experts",
    "latent_key_attention": "latent_attention",
}


@lru_cache(maxsize=64)
def _priced(structure: Structure, name: str, book: str, optimizer: str, mode: str, plan: str) -> tuple[Row, ...]:
    found = find_book(book)
    table = _under(plan, step(structure.model, name, optimizer, found.jacobian, mode))
    return price(table, {}, found).rows


def _under(plan: str, table: Table) -> Table:
    if not plan:
        return table
    from learncost.plans.plan import planned  # imported where it is needed: start-up counts

    return planned(table, plan)


def rows_of(
    model: Model, name: str, book: str | Book, optimizer: str | None = None, mode: str = "paper", plan: str = ""
) -> tuple[Row, ...]:
    """The priced lines of one step of a procedure under a plan, as polynomials in the axes' sizes.

    optimizer  where it is None, the book's (`default_optimizer`)
    """
    found = find_book(book)
    optimizer = optimizer or default_optimizer(found)
    if name in ("pepita", "mempepita") and not model.learns:
        step(model, name, optimizer)  # refuses with its own message
    if found.rule == "formula":
        if plan:
            raise InputError(f"price book {found.name} is a formula of whole models; a plan rewrites their lines")
        from learncost.books.formula import priced as by_formula  # imported where it is needed: start-up counts

        return by_formula(model, found, name)
    if BOOKS.get(found.name) is found:
        return _priced(Structure(model), name, found.name, optimizer, mode, plan)
    table = _under(plan, step(model, name, optimizer, found.jacobian, mode))
    return price(table, {}, found).rows  # a book of the caller's own


def possible(priced: Callable[[str], object]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The learning procedures that `priced` answers for, and why it refuses the others.

    Raises `InputError` where it refuses all of them.
    """
    refused: dict[str, str] = {}
    for name in PROCEDURES:
        try:
            priced(name)
        except InputError as error:
            refused[name] = str(error)
    names = tuple(name for name in PROCEDURES if name not in refused)
    if not names:
        raise InputError(next(iter(refused.values())))
    return names, refused


def cost(
    model: str | Configuration,
    procedure: str = "bp",
    price_book: str | Book = "run",
    batch_size: int | str = 1,
    seq_len: int | str | None = None,
    target_len: int | str | None = None,
    tokens: int | str | None = None,
    optimizer: str | None = None,
    dropout: float | str = 0.0,
    dtype: str | None = None,
    by: str = "layer",
    context: int | str | None = None,
    train: object = None,
    train_layers: object = None,
    lora: object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    plan: str | None = None,
    on: str | Device | Rates | None = None,
    precision: str | None = None,
    **sizes: Any,
) -> Cost:
    """The exact cost of one training step, or of one step of inference.

    Every count is a whole number and follows the price book; one MACC is two FLOPs. Numbers may be given as text, as on
    the command line.

    Parameters
    ----------
    model
        A preset (`learncost list models`), the path of a `config.json` or of its folder, or `encoder`, `decoder` or
        `encoder-decoder` with all sizes as arguments.
    procedure
        How the model learns: bp, recompute, pepita, mempepita, or head-only. For inference prefill or decode.
    price_book
        What is counted and how: run, matmul, paper, causal-half, palm and others (`learncost list price-books`).
    batch_size
        Sequences in a step.
    seq_len
        Tokens in a sequence. With an encoder and a decoder, the encoder's length N. By default what the model allows.
    target_len
        The decoder's length M, where there is an encoder too.
    tokens
        Tokens of a whole training run; the result then has the whole run beside one step.
    optimizer
        adamw, sgd or momentum. The default is adamw; under the paper's books it is sgd, as the paper has it.
    dropout
        The probability of a zero. Above 0 the products with the masks are counted.
    dtype
        The same as `precision`.
    by
        What a row of the result stands for: layer, macro-operation, equation or kind.
    context
        For decode: how many tokens of the sequence are in the cache already. `seq_len` is then the number of new
        tokens.
    train
        What learns: all, none, head, embeddings, biases, or names of weights and modules with commas between.
    train_layers
        Which blocks learn, or have low-rank paths: 10-11, 0,2,5-7, first 2, last 2.
    lora
        The projections that get a low-rank path: names of modules or weights, attention, feed_forward, all-linear.
    lora_rank
        The rank of these paths, 8 by default.
    lora_alpha
        Their result is multiplied by alpha over rank; 16 by default.
    plan
        Rewritings of the step, such as head,at-once,recompute=gelu+norm (`learncost list plans`).
    on
        The device whose time is wanted: a name such as "A100-SXM-80GB", "here" after `learncost calibrate`, or what
        `lc.rates` gave.
    precision
        Which type each role has: fp32, bf16 and others (`learncost list precisions`). Bytes depend on it, operations do
        not. By default fp32; with a device, what one trains in on it.
    sizes
        Any size of the model, in the spelling of Hugging Face, of nanoGPT or of the paper.

    Returns
    -------
    Cost
        The ledger of the step.

    Raises
    ------
    InputError
        A name, a size or a file that is not known or does not fit, in one line.

    Examples
    --------
    >>> step = lc.cost("gpt2", seq_len=1024, optimizer="adamw")
    >>> step.total.maccs, step.total.flops
    (437682439168, 880690382336)
    >>> step.parameters
    124439808
    >>> lc.cost("gpt2", "decode", context=1000, n_layer=6).total.flops
    181299556
    """
    find_procedure(procedure, INFERENCE)
    kind = None if dtype is None and precision is None else either(dtype, precision)
    wanted = adaptation_of(train, train_layers, lora, lora_rank, lora_alpha, kind=kind)
    rates = None
    if on is not None:
        from learncost.devices.rates import rates as attained  # imported where it is needed: start-up counts

        rates = attained(on, kind.values if kind else None, "kernels" if plan else "operators")
    named = kind.name if kind else (rates.dtype if rates else "") or "fp32"
    if procedure in INFERENCE:
        from learncost.ledger.inference import cost_of_inference  # is built on this module

        _check_choice("by", by, BY)
        if wanted is not None:
            raise InputError(f"train and lora say what a training step changes; {procedure} changes nothing")
        if plan:
            raise InputError(f"a plan rewrites a training step; {procedure} is none")
        training = {"tokens": tokens, "optimizer": optimizer, "dropout": dropout}
        lengths = {"batch_size": batch_size, "seq_len": seq_len, "target_len": target_len, "context": context}
        served = cost_of_inference(model, INFERENCE[procedure], price_book, lengths, training, named, by, sizes, rates)
        return replace(served, dtype=named)
    run = prepare(
        model,
        price_book,
        batch_size,
        seq_len,
        target_len,
        tokens,
        optimizer,
        dropout,
        named,
        sizes,
        (procedure,),
        wanted,
        plan,
    )
    _check_choice("by", by, BY)
    if context is not None:
        raise InputError(f"context goes with the procedure decode: {procedure} has no cache")
    found = run.cost(procedure, run.book, by, rates)
    return replace(found, dtype=named)


@dataclass(frozen=True)
class Run:
    """What is checked and built before anything is priced: a model, the sizes of all axes, and how it is trained."""

    model: Model
    axes: Mapping[str, int]
    book: Book
    optimizer: str | None
    dtype: str
    tokens: int | None
    trained: str = "all"
    plan: str = ""

    def rows(self, procedure: str, book: Book) -> tuple[Row, ...]:
        """The priced lines of one step of a procedure, as polynomials in the axes' sizes."""
        return rows_of(self.model, procedure, book, self.optimizer, plan=self.plan)

    def cost(self, procedure: str, book: Book, by: str = "layer", on: Rates | None = None) -> Cost:
        """The ledger of one step of a procedure, with its time on a device."""
        rows, chosen = self.rows(procedure, book), find_procedure(procedure)
        model, trained = trained_by(self.model, procedure), self.trained
        if model is not self.model:
            from learncost.procedures.head_only import head_said  # imported where it is needed: start-up counts

            trained = head_said(model)
        timed = None
        if on is not None:
            from learncost.ledger.timing import timing  # imported where it is needed: start-up counts

            timed = timing(rows, self.axes, on, self.dtype, book)
        optimizer = self.optimizer or default_optimizer(book)
        found = ledger(model, chosen, rows, self.axes, by, self.dtype, self.tokens, optimizer, book.name, timed)
        return replace(found, trained=trained, plan=self.plan)


def prepare(
    model: str | Configuration,
    price_book: str | Book,
    batch_size: Any,
    seq_len: Any,
    target_len: Any,
    tokens: Any,
    optimizer: str | None,
    dropout: Any,
    dtype: str,
    sizes: Mapping[str, Any],
    procedures: Iterable[str],
    wanted: Adaptation | None = None,
    plan: str | None = None,
) -> Run:
    """Check all that `cost` is given, and build the model. Raises `InputError`.

    dtype       the name of a precision
    procedures  how the model learns; none: it does not
    """
    lengths, sizes = lengths_of({"batch_size": batch_size, "seq_len": seq_len, "target_len": target_len}, sizes)
    if tokens is not None:
        tokens = check_tokens("tokens", tokens)
    kind = precision_of(dtype)
    probability = check_probability("dropout", dropout)
    book = find_book(price_book)
    if optimizer is not None:
        find_optimizer(optimizer)
    names = tuple(procedures)
    for name in names:
        find_procedure(name)
    if isinstance(model, Configuration):
        if sizes:
            raise InputError(f"{', '.join(sizes)}: a Configuration already has its sizes")
        configuration = model
    else:
        configuration = configure(model, sizes)
    built = build(replace(configuration, learned=None), dropout=probability > 0)
    learning, chosen = "all", wanted or configuration.learned
    if wanted is not None and configuration.learned is not None:
        raise InputError("the live module says itself what learns: leave train and lora out, or unfreeze it")
    if chosen is not None:
        if control := next((name for name in names if name in CONTROLS), None):
            raise InputError(f"{control} says itself what learns: leave train and lora out")
        from learncost.models.adaptation import adapted, said

        built = adapted(built, chosen)
        learning = said(built, chosen)
    if kind.quantized is not None:
        from learncost.models.quantization import quantized

        built = quantized(built, kind, learns=bool(names))
    axes = run_sizes(built, lengths["batch_size"], lengths.get("seq_len"), lengths.get("target_len"))
    return Run(built, axes, book, optimizer, kind.values, tokens, learning, (plan or "").strip())


def adaptation_of(*given: object, kind: Precision | None = None) -> Adaptation | None:
    """What learns, where anything is said about it.

    given  train, train_layers, lora, lora_rank, lora_alpha
    kind   the precision
    """
    if all(value is None for value in given):
        return None
    from learncost.models.adaptation import adaptation  # imported where it is needed: start-up counts

    train, layers, lora, rank, alpha = given
    return adaptation(train, layers, lora, rank, alpha, kind is not None and kind.quantized is not None)


def lengths_of(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Any]]:
    """The checked sizes of a run that are given, in any spelling among the sizes too, and the sizes of the model."""
    found, sizes = {**given, "batch_size": 1 if given["batch_size"] is None else given["batch_size"]}, dict(sizes)
    defaults = {"batch_size": 1}
    for spelling in [s for s in sizes if CANONICAL.get(spelled(s)) in found]:
        name, value = resolve(spelling), sizes.pop(spelling)
        if found[name] not in (defaults.get(name), str(defaults.get(name)), None, value):
            raise InputError(f"{spelling} = {shown(value)} contradicts {name} = {shown(found[name])}")
        defaults[name], found[name] = value, value
    return {name: check_size(name, value) for name, value in found.items() if value is not None}, sizes


def ledger(
    model: Model,
    chosen: Procedure,
    rows: Iterable[Row],
    axes: Mapping[str, int],
    by: str,
    dtype: str,
    tokens: int | None,
    optimizer: str,
    book: str,
    timed: Timing | None = None,
) -> Cost:
    """Priced rows, put together as asked and evaluated."""
    whole = Price(book, tuple(rows), axes, dtype)
    passes = chosen.passes_over(model)
    if any(row.macro_operation == "recomputation" for row in whole.rows):
        passes["recomputation"] = 1  # a plan's, where the procedure has none
    macros = {name: (passes[name], Amount(0, 0)) for name in MACRO_OPERATIONS}
    for (name,), part in whole.by("macro_operation").items():
        macros[name] = (passes[name], Amount(part.maccs, part.flops))
    two_sided = model.two_sided
    return Cost(
        model=model.configuration.name,
        procedure=chosen.name,
        price_book=book,
        batch_size=axes["B"],
        seq_len=axes["N"] if two_sided else axes["M"],
        target_len=axes["M"] if two_sided else None,
        parameters=model.parameters.at(axes),
        active_parameters=active_parameters(model.table).at(axes) + model.configuration.unread,
        trained_parameters=parameters(replace(model.table, weights=model.learning)).at(axes),
        total=Amount(whole.maccs, whole.flops),
        macro_operations=macros,
        rows=_rows(whole, by, passes, timed),
        by=by,
        dtype=dtype,
        optimizer=optimizer,
        tokens=tokens,
        tokens_per_step=axes["B"] * axes["M"],
        counted=model.configuration.counted,
        source=model.configuration.source,
        timing=timed,
    )


def _rows(whole: Price, by: str, passes: Mapping[str, int], timed: Timing | None = None) -> tuple[LedgerRow, ...]:
    fields = {
        "layer": ("layer", "block", "macro_operation"),
        "macro-operation": ("macro_operation",),
        "equation": ("layer", "block", "macro_operation", "line", "equation"),
        "kind": ("kind", "macro_operation"),
    }[by]
    groups: dict[tuple[tuple[Any, ...], str], list[Row]] = {}
    for priced in whole.rows:
        own = tuple(shown_layer(priced.layer) if name == "layer" else getattr(priced, name) for name in fields)
        kernel = timed.inside(priced) if timed and by == "equation" else ""  # has no time of its own: a row apart
        # Parts of a gradient are added in the turns and once more where these end: those are lines of their own.
        turns = str(priced.repeat) if by == "equation" and priced.line == "merge" else ""
        groups.setdefault((own, kernel + turns), []).append(priced)
    result = []
    for (key, _), rows in groups.items():
        named, part = dict(zip(fields, key, strict=True)), Price(whole.book, tuple(rows), whole.sizes, whole.dtype)
        row = LedgerRow(
            layer=named.get("layer"),
            block=named.get("block"),
            repeat=_repeat(part, passes[named["macro_operation"]]) if "layer" in named else 1,
            macro_operation=named["macro_operation"],
            maccs=part.maccs,
            flops=part.flops,
            bytes=part.bytes,
            line=named.get("line", ""),
            equation=named.get("equation", ""),
            kind=named.get("kind", ""),
            outside_paper=any(row.outside_paper for row in part.rows),
            time=(timed.of_lines if by == "equation" else timed.of)(rows) if timed else None,
        )
        result.append(row)
    order = {name: i for i, name in enumerate(MACRO_OPERATIONS)}
    return tuple(sorted(result, key=lambda row: order[row.macro_operation]))


def shown_layer(layer: str) -> str:
    """What a layer of a model's table is called in the ledger."""
    return _SHOWN.get(layer, layer)


def _repeat(part: Price, passes: int) -> int:
    """How many equal layers a row merges: how often a layer's most frequent line runs in one pass.

    Of a gradient in several parts, dX and dX+2, or in two steps, dY:X and dX, one is counted. Where a row has parts and
    merges alone, a layer is told by the value that it reads: its parts, in one repeat, are those of one layer.
    """
    lines: dict[tuple[str, ...], int] = {}
    parts: dict[tuple[str, ...], int] = {}
    merges: dict[tuple[str, ...], int] = {}
    for row in part.rows:
        if row.layer == "optimizer":
            continue
        times = row.repeat.at(part.sizes)
        if row.line in ("merge", ""):
            merges[()] = max(merges.get((), 0), times)
        elif row.part_of:
            parts[row.layer, row.line, row.part_of, str(row.repeat)] = times
        else:
            lines[row.layer, row.line] = lines.get((row.layer, row.line), 0) + times
    if lines or not parts:
        return max(1, max((lines or merges).values(), default=1) // max(1, passes))
    together: dict[tuple[str, ...], int] = {}
    for (layer, line, *_), times in parts.items():
        together[layer, line] = together.get((layer, line), 0) + times
    return max(1, max(together.values()) // max(1, passes))


def check_tokens(name: str, value: object) -> int:
    """A number of tokens: a whole number from 1 to 10^18, as text also in the form 3e11, 1.5e9 or 300B."""
    number = counted(value)
    if number is None or not 1 <= number <= LARGEST_TRAINING:
        raise InputError(f"{name} must be a whole number from 1 to 10^18, not {shown(value)}")
    return number


def check_probability(name: str, value: object) -> float:
    """A probability from 0 to below 1."""
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever does not convert is refused
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0.0 <= number < 1.0:
        raise InputError(f"{name} must be a number from 0 to below 1, not {shown(value)}")
    return number


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, not {shown(value)}")
