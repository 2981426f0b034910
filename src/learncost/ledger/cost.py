"""The cost ledger of one training step: what goes in is a configuration, what comes out are counts by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from learncost.books.book import book as find_book
from learncost.equation.errors import InputError
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, build, run_sizes
from learncost.models.sizes import RUN_SIZES, check_size, resolve
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.procedure import MACRO_OPERATIONS, Procedure, step
from learncost.procedures.procedure import procedure as find_procedure
from learncost.readings.price import BYTES, Book, Price, Row, parameters, price

SCHEMA = 1
BY = {"layer": (), "macro-operation": (), "equation": (), "kind": ()}

_SHOWN = {
    "sinusoidal_positions": "positions",
    "token_types": "positions",
    "plain_norm": "norm",
    "feed_forward_without_biases": "feed_forward",
    "masked_lm_transform": "head",
}


@dataclass(frozen=True)
class LedgerRow:
    """Counts of a layer in a macro-operation (or of one of its lines, or of a kind), passes and repeats included."""

    layer: str | None
    block: str | None
    repeat: int
    macro_operation: str
    maccs: Any
    flops: Any
    bytes: Any
    line: str = ""
    equation: str = ""
    kind: str = ""
    outside_paper: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The row as the JSON has it."""
        row: dict[str, Any] = {
            "layer": self.layer,
            "block": self.block,
            "repeat": self.repeat,
            "macro_operation": self.macro_operation,
        }
        if self.line:
            row |= {"line": self.line, "equation": self.equation}
        if self.kind:
            row |= {"kind": self.kind}
        row |= {"maccs": self.maccs, "flops": self.flops, "bytes": self.bytes}
        return row | ({"outside_paper": True} if self.outside_paper else {})


@dataclass(frozen=True)
class Amount:
    """MACCs and FLOPs."""

    maccs: Any
    flops: Any

    def to_dict(self) -> dict[str, Any]:
        return {"maccs": self.maccs, "flops": self.flops}


@dataclass(frozen=True)
class Cost:
    """The ledger. One MACC is two FLOPs; the price book says what is counted; all counts are exact integers."""

    model: str
    procedure: str
    price_book: str
    batch_size: int
    seq_len: int
    target_len: int | None
    parameters: int
    total: Amount
    macro_operations: Mapping[str, tuple[int, Amount]]
    rows: tuple[LedgerRow, ...]
    by: str = "layer"
    dtype: str = "fp32"
    optimizer: str = "sgd"
    tokens: int | None = None
    tokens_per_step: int = 0
    counted: str = ""
    source: str = ""

    @property
    def steps(self) -> int | None:
        """Steps of a training run of `tokens` tokens; the last one may be partly filled."""
        return None if self.tokens is None else -(-self.tokens // self.tokens_per_step)

    @property
    def training(self) -> dict[str, int] | None:
        """A whole training run: tokens, steps, MACCs and FLOPs."""
        if self.steps is None:
            return None
        counts = {"maccs": self.total.maccs * self.steps, "flops": self.total.flops * self.steps}
        return {"tokens": int(self.tokens or 0), "steps": self.steps, **counts}

    def to_dict(self) -> dict[str, Any]:
        """The ledger as the JSON has it (schema 1)."""
        result: dict[str, Any] = {
            "schema": SCHEMA,
            "model": self.model,
            "procedure": self.procedure,
            "price_book": self.price_book,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "target_len": self.target_len,
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "counted": self.counted,
            "parameters": self.parameters,
            "total": self.total.to_dict(),
            "macro_operations": {
                name: {"passes": passes, **amount.to_dict()} for name, (passes, amount) in self.macro_operations.items()
            },
            "rows": [row.to_dict() for row in self.rows],
        }
        if self.training is not None:
            result["training"] = self.training
        return result

    def __rich__(self) -> Any:
        from learncost.ledger.show import cost_table

        return cost_table(self)

    def __str__(self) -> str:
        from learncost.ledger.show import as_text

        return str(as_text(self))

    def _repr_html_(self) -> str:
        from learncost.ledger.show import as_html

        return str(as_html(self))


@dataclass(frozen=True, eq=False)
class _Structure:
    """A model by its table, which is one object for equal structures: what priced rows are remembered by."""

    model: Model

    def __hash__(self) -> int:
        return id(self.model.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Structure) and self.model.table is other.model.table


@lru_cache(maxsize=64)
def _priced(structure: _Structure, name: str, book: str, optimizer: str, mode: str) -> tuple[Row, ...]:
    found = find_book(book)
    table = step(structure.model, name, optimizer, found.jacobian, mode)
    return price(table, {}, found).rows


def rows_of(model: Model, name: str, book: str, optimizer: str = "sgd", mode: str = "paper") -> tuple[Row, ...]:
    """The priced lines of one step of a procedure, as polynomials in the axes' sizes."""
    if name in ("pepita", "mempepita") and not model.learns:
        step(model, name)  # refuses with its own message
    return _priced(_Structure(model), name, find_book(book).name, optimizer, mode)


def cost(
    model: str | Configuration,
    procedure: str = "bp",
    price_book: str | Book = "run",
    batch_size: int = 1,
    seq_len: int | None = None,
    target_len: int | None = None,
    tokens: int | None = None,
    optimizer: str = "sgd",
    dropout: float = 0.0,
    dtype: str = "fp32",
    by: str = "layer",
    **sizes: Any,
) -> Cost:
    """The exact cost of one training step.

    model       a preset, a path to a config.json or its folder, `-`, or encoder, decoder, encoder-decoder with sizes
    procedure   bp, recompute, pepita, mempepita
    price_book  run, matmul, paper, paper-corrected
    seq_len     tokens in a sequence; an encoder's length N where there is a decoder too (`target_len`, M)
    tokens      of a whole training run
    optimizer   sgd, momentum, adamw
    dropout     a probability; above 0 the masks' products are charged
    by          what a row is: layer, macro-operation, equation, kind
    sizes       any size of the model, in Hugging Face's spelling, nanoGPT's or the paper's
    Raises `InputError`.
    """
    given: dict[str, Any] = {"batch_size": batch_size, "seq_len": seq_len, "target_len": target_len}
    run_names = {size.name for size in RUN_SIZES}
    for spelling in [s for s in sizes if _is_run_size(s, run_names)]:
        given[resolve(spelling)] = sizes.pop(spelling)
    lengths = {name: check_size(name, value) for name, value in given.items() if value is not None}
    if tokens is not None:
        tokens = check_size_of_run("tokens", tokens)
    _check_choice("by", by, BY)
    _check_choice("dtype", dtype, BYTES)
    probability = check_probability("dropout", dropout)
    chosen, book = find_procedure(procedure), find_book(price_book)
    find_optimizer(optimizer)
    configuration = model if isinstance(model, Configuration) else configure(model, sizes)
    built = build(configuration, dropout=probability > 0)
    axes = run_sizes(built, lengths["batch_size"], lengths.get("seq_len"), lengths.get("target_len"))
    rows = rows_of(built, chosen.name, book.name, optimizer)
    return ledger(built, chosen, rows, axes, by, dtype, tokens, optimizer, book.name)


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
) -> Cost:
    """Priced rows, put together as asked and evaluated."""
    shown = tuple(replace(row, layer=_SHOWN.get(row.layer, row.layer)) for row in rows)
    whole = Price(book, shown, axes, dtype)
    passes = chosen.passes_over(model)
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
        parameters=parameters(model.table).at(axes),
        total=Amount(whole.maccs, whole.flops),
        macro_operations=macros,
        rows=_rows(whole, by, passes),
        by=by,
        dtype=dtype,
        optimizer=optimizer,
        tokens=tokens,
        tokens_per_step=axes["B"] * axes["M"],
        counted=model.configuration.counted,
        source=model.configuration.source,
    )


def _rows(whole: Price, by: str, passes: Mapping[str, int]) -> tuple[LedgerRow, ...]:
    fields = {
        "layer": ("layer", "block", "macro_operation"),
        "macro-operation": ("macro_operation",),
        "equation": ("layer", "block", "macro_operation", "line", "equation"),
        "kind": ("kind", "macro_operation"),
    }[by]
    result = []
    for key, part in whole.by(*fields).items():
        named = dict(zip(fields, key, strict=True))
        row = LedgerRow(
            layer=named.get("layer"),
            block=named.get("block"),
            repeat=_repeat(part, passes[named["macro_operation"]]),
            macro_operation=named["macro_operation"],
            maccs=part.maccs,
            flops=part.flops,
            bytes=part.bytes,
            line=named.get("line", ""),
            equation=named.get("equation", ""),
            kind=named.get("kind", ""),
            outside_paper=any(row.outside_paper for row in part.rows),
        )
        result.append(row)
    order = {name: i for i, name in enumerate(MACRO_OPERATIONS)}
    return tuple(sorted(result, key=lambda row: order[row.macro_operation]))


def _repeat(part: Price, passes: int) -> int:
    """How many equal layers a row merges: how often its most frequent line runs in one pass."""
    times: dict[str, int] = {}
    for row in part.rows:
        if row.line not in ("merge", "") and row.layer != "optimizer":
            times[row.line] = times.get(row.line, 0) + row.repeat.at(part.sizes)
    return max(1, max(times.values(), default=1) // max(1, passes))


def _is_run_size(spelling: str, names: Iterable[str]) -> bool:
    try:
        return resolve(spelling) in names
    except InputError:
        return False


def check_size_of_run(name: str, value: object) -> int:
    """A number of tokens: a whole number from 1 to 10^18, as text also in the form 3e11."""
    if isinstance(value, str) and value.replace(".", "", 1).replace("e", "", 1).replace("+", "", 1).isdigit():
        value = int(float(value)) if "e" in value else value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**18:
        raise InputError(f"{name} must be a whole number from 1 to 10^18, not {value!r}")
    return value


def check_probability(name: str, value: object) -> float:
    """A probability from 0 to below 1."""
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever does not convert is refused
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0.0 <= number < 1.0:
        raise InputError(f"{name} must be a number from 0 to below 1, not {value!r}")
    return number


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
