"""Comparison of rules of thumb, which are data with sources, with exact quantities of priced tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property, partialmethod

from learncost.autodiff.derive import derive
from learncost.cost_models import PricedLine, price
from learncost.cost_models.books import book as find_book
from learncost.cost_models.formula import FormulaValues
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Product
from learncost.ir.loop import check_known, walk
from learncost.ir.polynomial import Polynomial, total
from learncost.ir.term import Term
from learncost.layers.layer import shipped_layer
from learncost.layers.products import matrix_maccs
from learncost.models.configuration import Configuration
from learncost.models.purposes import activates, attentions, is_attention_softmax, layers_with
from learncost.ops import is_softmax
from learncost.reports.request import Request, takes_request
from learncost.reports.rules_of_thumb import Case, ErrorPart, Number, Rule, RuleOfThumb, Rules, evaluate, rules_of_thumb
from learncost.reports.run import PreparedRun, prepare

_LineFilter = Callable[[PricedLine], bool]


def _always(row: PricedLine) -> bool:
    return True


@dataclass(frozen=True)
class BlockMeasure:
    """The blocks of one repeat: the size that says how often it runs, what a block is called, its tokens' axis.

    `number` is how many blocks all iterations have, and `kinds` how many one has. A count of a block is the
    mean of them.
    """

    count: str
    title: str
    axis: str
    number: int
    kinds: int


@dataclass(frozen=True)
class Measures:
    """Exact numbers of one model at the sizes of one step."""

    run: PreparedRun

    @cached_property
    def blocks(self) -> tuple[BlockMeasure, ...]:
        """The blocks that the model has, a repeat each: those of an encoder before those of a decoder."""
        result: list[BlockMeasure] = []
        repeats = self.run.model.table.repeats
        for repeat in repeats:
            softmaxes = [(line, nest.counts) for line, nest in walk([repeat]) if is_attention_softmax(line)]
            kinds, number = len(softmaxes), self.at(total(Polynomial.of(iterations) for _, iterations in softmaxes))
            if not kinds:
                continue
            side = softmaxes[0][0].meta.block if self.run.model.two_sided else ""
            first = sum(block.number for block in result if block.title.startswith(side or "block"))
            title = f"{side} block".strip()
            if len(repeats) > (2 if side else 1):
                title += f" {first}" if number == 1 else f"s {first} to {first + number - 1}"
            title += f", the mean of {kinds} kinds" if kinds > 1 else ""
            result.append(BlockMeasure(repeat.count, title, "N" if side == "encoder" else "M", number, kinds))
        return tuple(result)

    def rows(self, procedure: str, book: str) -> tuple[PricedLine, ...]:
        """Return the priced lines of one step."""
        return self.run.rows(procedure, find_book(book))

    def at(self, count: Polynomial) -> int:
        """Return a polynomial at the sizes of the step."""
        return int(count.at(self.run.axes))

    def flops(
        self,
        procedure: str,
        book: str,
        keep: _LineFilter = _always,
        block: BlockMeasure | None = None,
        unit: str = "flops",
    ) -> int | Fraction:
        """Return the FLOPs of one step, of the lines that are kept; with `block`, of one block of those."""
        rows = [row for row in self.rows(procedure, book) if keep(row) and (block is None or inside(row, block))]
        value = self.at(total(getattr(row, unit) for row in rows))
        return value if block is None else _mean(value, block.number)

    maccs = partialmethod(flops, unit="maccs")

    @cached_property
    def parameters(self) -> int:
        """The number of trained parameters, tied weights once."""
        return self.at(self.run.model.parameters)

    def block_parameters(self, block: BlockMeasure) -> tuple[int | Fraction, int | Fraction]:
        """Return the parameters that one block reads, shared ones too: those of its matrices, and all."""
        table = self.run.model.table
        (repeat,) = (line for line in table.repeats if line.count == block.count)
        iterations = {count for _, nest in walk([repeat]) for count in nest.counts}
        lines = [line for line, _ in walk([repeat])]
        read = {name for line in lines for name in line.reads}
        weights = [name for name in table.weights if name in read or block.count in table.axes[name]]
        each = {
            name: self.at(Polynomial.of(axis for axis in table.axes[name] if axis not in iterations))
            for name in weights
        }
        multiplied = {name for line in lines if isinstance(line, Product) and matrix_maccs(line) for name in line.reads}
        matrices = sum(size for name, size in each.items() if name in multiplied)
        return _mean(matrices, block.kinds), _mean(sum(each.values()), block.kinds)

    @cached_property
    def additions(self) -> tuple[int, int]:
        """The matrix products of the forward pass: their multiplications, and their additions, one less a sum."""
        multiplied, results = Polynomial(), Polynomial()
        for line, nest in walk(self.run.model.table.lines):
            if isinstance(line, Product) and (maccs := matrix_maccs(line)):
                left = line.left[0]
                assert isinstance(left, Term)
                multiplied += maccs * Polynomial.of(nest.counts)
                results += Polynomial.of((*left.loops, *nest.counts))
        return self.at(multiplied), self.at(multiplied) - self.at(results)

    def overtaking(self, block: BlockMeasure | None = None) -> Fraction | None:
        """Return the length at which products quadratic in it cost as much as those linear in it.

        With an encoder and a decoder both lengths are this one. None where nothing grows with the square.
        """
        sums = {1: 0, 2: 0}
        for row in self.rows("bp", "matmul"):
            if row.macro_operation != "forward" or (block is not None and not inside(row, block)):
                continue
            for monomial, coefficient in row.flops.rename({"N": "M"}).terms.items():
                power = monomial.count("M")  # 0 where a product is made once a sequence, as in a pooler
                rest = Polynomial({tuple(name for name in monomial if name != "M"): coefficient})
                sums[power] = sums.get(power, 0) + self.at(rest)
        return Fraction(sums[1], sums[2]) if sums[2] else None


def _mean(value: int, number: int) -> int | Fraction:
    mean = Fraction(value, number)
    return int(mean) if mean.denominator == 1 else mean


def inside(row: PricedLine, block: BlockMeasure) -> bool:
    """Return whether a line is in the blocks of a kind."""
    return block.count in row.repeat.sizes


def forward(row: PricedLine) -> bool:
    """Return whether a line is of the forward pass."""
    return row.macro_operation == "forward"


def backward(row: PricedLine) -> bool:
    """Return whether a line is of the backward pass or the weight updates."""
    return row.macro_operation in ("backward", "weight_update")


__all__ = ["Rules", "rules"]

_ALL = "the whole model"
_WITH_THE_WIDTH = re.compile(r"intermediate_size|ffn_dim|(attention|key_value)_heads")
"""The sizes of a configuration that grow with its width: a feed-forward network's own, and how many heads there are."""


@takes_request("model tokens batch_size seq_len target_len", price_book="matmul")
def rules(request: Request) -> Rules:
    """Compare rules of thumb with the exact numbers: the error of each, its causes, and its source.

    Parameters
    ----------
    tokens
        Tokens in a whole training run, such as 3e11. The default is those of one step.

    Returns
    -------
    Rules
        Every rule with its cases.

    Raises
    ------
    InputError
        As for `lc.cost`.

    Commands
    --------
    learncost rules gpt2 --tokens 3e11
        The errors of rules such as 6 N D, with their causes.

    Examples
    --------
    >>> found = lc.rules("gpt2", tokens="3e11")
    >>> rule = found.rules[0]
    >>> rule.thumb.formula, f"{rule.cases[0].error:+.2%}"
    ('6 N D', '-12.62%')
    """
    model = request.model
    if isinstance(model, Configuration) and model.learned is not None:
        raise InputError(f"rules of thumb apply only to fully trainable models: {model.name} has frozen weights")
    prepared = prepare(request, ())
    check_known(prepared.model.table.lines, "a rule of thumb")
    measures = Measures(prepared)
    per_step = prepared.model.tokens(prepared.axes)
    tokens_in_all = per_step if prepared.tokens is None else prepared.tokens
    of_layer = prepared.model.configuration.layer is not None  # whose letters are not those of widths and blocks
    blocks, products = ((), ()) if of_layer else (_blocks(measures), _products(measures))
    cases_of_rules = [*_training(measures, tokens_in_all), *blocks, *_ratios(measures), *products]
    batch_size, seq_len, target_len = prepared.model.lengths(prepared.axes)
    return Rules(
        model=prepared.model.configuration.name,
        batch_size=batch_size,
        seq_len=seq_len,
        target_len=target_len,
        tokens=tokens_in_all,
        parameters=measures.parameters,
        _length_note=prepared.length_note,
        rules=(*(rule for key, cases in cases_of_rules if (rule := _rule(key, cases)).cases), *_gpt3()),
    )


def _rule(key: str, cases: Iterable[Case]) -> Rule:
    """Return a rule compared with exact values; there is no error relative to zero."""
    return Rule(rules_of_thumb()[key], tuple(case for case in cases if case.exact))


_Cases = Iterator[tuple[str, list[Case]]]


def _training(measures: Measures, tokens: int) -> _Cases:
    for key, procedure in (("6nd", "bp"), ("8nd", "recompute")):
        yield key, [_run_of(measures, tokens, rules_of_thumb()[key], procedure)]
    yield "nanogpt_mfu", [*_mfu_of(measures, tokens)]


def _mfu_of(measures: Measures, tokens: int) -> Iterator[Case]:
    """Compare a training run with nanoGPT's estimate, for models that its formula describes."""
    run, book = measures.run, find_book("nanogpt-mfu")
    try:
        run.rows("bp", book)
    except InputError:
        return
    reading, thumb = FormulaValues(run.model), rules_of_thumb()["nanogpt_mfu"]
    count = measures.at(reading.quantity("parameters without positions"))
    blocks, widths = measures.at(reading.blocks), measures.at(reading.heads)
    steps = -(-tokens // run.model.tokens(run.axes))
    exact = measures.flops("bp", "matmul") * steps
    letters: dict[str, Number] = {
        "N": count,
        "L": blocks,
        "H": Fraction(widths, blocks),
        "Q": 1,
        "T": run.axes["M"],
        "D": tokens,
    }
    rule = thumb.at(**letters)
    multiplied = 6 * measures.maccs("bp", "matmul", lambda row: forward(row) and row.kind == "linear") * steps
    linear = measures.flops("bp", "matmul", lambda row: row.kind == "linear") * steps
    parts = [
        ErrorPart("parameters that no product multiplies", 6 * count * tokens - multiplied),
        ErrorPart("gradients of products that are not needed", multiplied - linear),
        ErrorPart("products of attention", rule - 6 * count * tokens - (exact - linear)),
    ]
    yield Case(f"{run.model.configuration.name}, bp", rule, exact, "matmul", _nonzero(parts))


def _run_of(measures: Measures, tokens: int, thumb: RuleOfThumb, procedure: str) -> Case:
    """Compare a training run with c N D."""
    name = measures.run.model.configuration.name
    per_step = measures.run.model.tokens(measures.run.axes)
    steps = -(-tokens // per_step)
    every = thumb.at(N=1, D=1)
    exact = measures.flops(procedure, "matmul") * steps
    linear = measures.flops(procedure, "matmul", lambda row: row.kind == "linear") * steps
    multiplied = measures.maccs("bp", "matmul", lambda row: forward(row) and row.kind == "linear") * steps
    count = measures.parameters
    encoder = ", and the tokens of the encoder" if measures.run.model.two_sided else ""
    parts = [
        ErrorPart(f"parameters that no product multiplies{encoder}", every * (count * steps * per_step - multiplied)),
        ErrorPart("linear layers that are not run again", every * multiplied - linear),
        ErrorPart("products of attention, which have no parameters", linear - exact),
        ErrorPart("the last step is only partly filled", every * count * (tokens - steps * per_step)),
    ]
    return Case(f"{name}, {procedure}", thumb.at(N=count, D=tokens), exact, "matmul", _nonzero(parts))


def _blocks(measures: Measures) -> _Cases:
    axes = measures.run.axes
    for key, procedure, keep in (
        ("block", "bp", forward),
        ("block_training", "bp", _always),
        ("block_recomputed", "recompute", _always),
    ):
        yield key, [_block(measures, rules_of_thumb()[key], block, procedure, keep) for block in measures.blocks]
    yield "block_parameters", [_block_parameters(measures, block) for block in measures.blocks]
    crossing = rules_of_thumb()["overtakes"].at(h=axes["d"])
    crossings = {**{block.title: measures.overtaking(block) for block in measures.blocks}, _ALL: measures.overtaking()}
    yield (
        "overtakes",
        [Case(title, crossing, exact, "matmul") for title, exact in crossings.items() if exact is not None],
    )


def _block(measures: Measures, thumb: RuleOfThumb, block: BlockMeasure, procedure: str, keep: _LineFilter) -> Case:
    """Compare a block with a rule; its error is split by the operands of products."""
    axes = measures.run.axes
    letters = {"b": axes["B"], "s": axes[block.axis], "h": axes["d"]}

    def exact(selects: _LineFilter) -> Number:
        return measures.flops(procedure, "matmul", lambda row: keep(row) and selects(row), block)

    lines = [line for line, _ in walk(measures.run.model.table.lines)]
    attending, crossing = attentions(lines)
    networks = layers_with(lines, activates) - attending - crossing
    operands: dict[str, tuple[str, _LineFilter]] = {
        "projections": (
            "heads that are together not as wide as the model",
            lambda row: row.layer in attending and row.kind != "attention",
        ),
        "feed_forward": ("a feed-forward network that is not four times as wide", lambda row: row.layer in networks),
        "scores": (
            "products of queries, keys and values of another width",
            lambda row: row.layer in attending and row.kind == "attention",
        ),
    }
    parts = [
        ErrorPart(title, evaluate(thumb.parts[name], letters) - exact(selects))
        for name, (title, selects) in operands.items()
    ]
    cross = ErrorPart("cross-attention", -exact(lambda row: row.layer in crossing))
    others = exact(lambda row: row.layer not in attending | crossing | networks)
    reasons = _nonzero([*parts, cross, ErrorPart("products of other layers", -others)])
    return Case(block.title, thumb.at(**letters), exact(_always), "matmul", reasons)


def _block_parameters(measures: Measures, block: BlockMeasure) -> Case:
    rule = rules_of_thumb()["block_parameters"].at(h=measures.run.axes["d"])
    matrices, every = measures.block_parameters(block)
    parts = [
        ErrorPart("matrices of another shape or number", rule - matrices),
        ErrorPart("biases and norms", matrices - every),
    ]
    return Case(block.title, rule, every, "", _nonzero(parts))


def _ratios(measures: Measures) -> _Cases:
    """Return the ratios of backward to forward of products, layers and all."""
    cases = []
    for kind, title in (("linear", "products with weights"), ("attention", "products of attention")):
        once, twice = (
            measures.flops("bp", "matmul", lambda row, part=part, kind=kind: part(row) and row.kind == kind)  # type: ignore[misc]
            for part in (forward, backward)
        )
        cases += _twice(title, once, twice, "matmul")
    if not measures.run.model.configuration.layer:
        cases += _convolution(measures.run.axes)
    for book in ("run", "paper"):
        first: dict[str, int] = {}
        then: dict[str, int] = {}
        for row in measures.run.cost("bp", find_book(book)).rows:
            for name in (str(row.layer).replace("_", " "), _ALL):
                part = first if row.macro_operation == "forward" else then
                if row.macro_operation in ("forward", "backward", "weight_update"):
                    part[name] = part.get(name, 0) + row.flops
        order = [*(name for name in first if name != _ALL), _ALL]
        cases += [case for name in order for case in _twice(name, first[name], then.get(name, 0), book)]
    yield "backward", cases


def _convolution(axes: Mapping[str, int]) -> list[Case]:
    """Compare a convolution of the model's width with a kernel of three."""
    derived = derive(shipped_layer("convolution").table, wanted=("X", "W", "b"))
    sizes = {"B": axes["B"], "M": axes["M"], "c": 3, "d": axes["d"], "e": axes["d"]}
    once, *others = (
        price(table, sizes, find_book("matmul")).flops for table in (derived.forward, derived.backward, derived.update)
    )
    return _twice("a convolution of width 3", once, sum(others), "matmul")


def _twice(title: str, once: Number, twice: Number, book: str) -> list[Case]:
    return [Case(title, rules_of_thumb()["backward"].at(), Fraction(twice) / once, book)] if once and twice else []


def _products(measures: Measures) -> _Cases:
    axes = measures.run.axes
    width = axes["d"]
    expressions = measures.run.model.rules
    grown = {axis for axis, rule in expressions.items() if _WITH_THE_WIDTH.search(rule) and "/" not in rule}
    wide = {**axes, **{axis: max(1, 8192 * axes[axis] // width) for axis in ("d", *grown)}}
    cases = []
    for sizes, title in ((axes, f"width {width:,}"), (wide, "width 8,192")):
        at_length = Measures(replace(measures.run, axes=sizes))
        for block in at_length.blocks:
            once = at_length.flops("bp", "run", lambda row: forward(row) and row.kind == "elementwise", block)
            other = at_length.flops("bp", "run", lambda row: forward(row) and row.kind != "elementwise", block)
            rule = rules_of_thumb()["elementwise"].at(h=sizes["d"])
            cases.append(Case(f"{block.title}, {title}", rule, Fraction(once) / other, "run"))
    yield "elementwise", cases
    cases = []
    attending = frozenset().union(*attentions([line for line, _ in walk(measures.run.model.table.lines)]))

    def attends(row: PricedLine) -> bool:
        return forward(row) and row.layer in attending and is_softmax(row.source)

    for book in ("paper", "run"):
        for block in measures.blocks:
            once = measures.flops("bp", book, attends, block)
            other = measures.flops("bp", "matmul", lambda row: forward(row) and row.kind == "attention", block)
            if other:
                cases.append(
                    Case(block.title, rules_of_thumb()["softmax"].at(k=axes["k"]), Fraction(once) / other, book)
                )
    yield "softmax", cases
    multiplied, added = measures.additions
    rule = rules_of_thumb()["products"].at(P=multiplied)
    parts = (ErrorPart("an addition less in each sum", multiplied - added),)
    yield "products", [Case("matrix products, forward", rule, multiplied + added, "", parts)]
    if measures.run.model.learns:
        try:
            less, more = (measures.maccs(name, "paper") for name in ("pepita", "mempepita"))
        except InputError:
            return  # a model that they cannot train
        yield "third", [Case("MACCs", rules_of_thumb()["third"].at(), Fraction(more) / less, "paper")]


def _gpt3() -> tuple[Rule, ...]:
    """Return the rules about GPT-3."""
    blog, full = (
        Measures(prepare(Request(name, price_book="matmul", batch_size=1, tokens="300000000000"), ()))
        for name in ("gpt3-jiang", "gpt3-175b")
    )
    days, rounded = rules_of_thumb()["gpt3_days"].at(), rules_of_thumb()["gpt3_rounded"].at()
    tokens = full.run.tokens or 0
    by_rule = rules_of_thumb()["6nd"].at(N=full.parameters, D=tokens)
    by_products = _run_of(full, tokens, rules_of_thumb()["6nd"], "bp").exact
    return (
        _rule("gpt3_blog", [Case("gpt3-jiang", rules_of_thumb()["gpt3_blog"].at(), blog.parameters)]),
        _rule("gpt3_full", [Case("gpt3-175b", rules_of_thumb()["gpt3_full"].at(), full.parameters)]),
        _rule("gpt3_days", [Case("6 N D, exact N", days, by_rule), Case("products", days, by_products, "matmul")]),
        _rule("gpt3_rounded", [Case("products", rounded, by_products, "matmul")]),
    )


def _nonzero(parts: Iterable[ErrorPart]) -> tuple[ErrorPart, ...]:
    return tuple(part for part in parts if part.amount)
