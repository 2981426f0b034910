"""Comparison of rules of thumb, which are data with sources, with exact numbers of tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction

from learncost.autodiff.derive import derive
from learncost.cost_models import PricedLine, price
from learncost.cost_models.books import book as find_book
from learncost.cost_models.formula import FormulaValues
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.loop import check_known, walk
from learncost.layers.layer import shipped_layer
from learncost.models.configuration import Configuration
from learncost.models.purposes import activates, attentions, layers_that
from learncost.ops import is_softmax
from learncost.reports.measures import BlockMeasure, Measures, backward, forward
from learncost.reports.request import Request, takes_request
from learncost.reports.rules_of_thumb import Case, ErrorPart, Number, Rule, RuleOfThumb, Rules, evaluate, rules_of_thumb
from learncost.reports.run import prepare

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


_Found = Iterator[tuple[str, list[Case]]]


def _training(measures: Measures, tokens: int) -> _Found:
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


def _blocks(measures: Measures) -> _Found:
    axes = measures.run.axes
    for key, procedure, keep in (
        ("block", "bp", forward),
        ("block_training", "bp", _always),
        ("block_recomputed", "recompute", _always),
    ):
        thumb = rules_of_thumb()[key]
        cases = []
        for block in measures.blocks:
            letters = {"b": axes["B"], "s": axes[block.axis], "h": axes["d"]}
            exact = measures.flops(procedure, "matmul", keep, block)
            cases.append(
                Case(block.title, thumb.at(**letters), exact, "matmul", _block_parts(measures, thumb, block, key))
            )
        yield key, cases
    yield "block_parameters", [_block_parameters(measures, block) for block in measures.blocks]
    crossing = rules_of_thumb()["overtakes"].at(h=axes["d"])
    crossings = {**{block.title: measures.overtaking(block) for block in measures.blocks}, _ALL: measures.overtaking()}
    yield (
        "overtakes",
        [Case(title, crossing, exact, "matmul") for title, exact in crossings.items() if exact is not None],
    )


def _block_parts(measures: Measures, thumb: RuleOfThumb, block: BlockMeasure, key: str) -> tuple[ErrorPart, ...]:
    """Return rule minus exact by the operands of products."""
    axes = measures.run.axes
    letters = {"b": axes["B"], "s": axes[block.axis], "h": axes["d"]}
    procedure, keep = ("recompute" if key == "block_recomputed" else "bp"), (forward if key == "block" else _always)

    def exact(selects: Callable[[PricedLine], bool]) -> Number:
        return measures.flops(procedure, "matmul", lambda row: keep(row) and selects(row), block)

    lines = [line for line, _ in walk(measures.run.model.table.lines)]
    attending, crossing = attentions(lines)
    networks = layers_that(lines, activates) - attending - crossing
    mine = {
        "projections": exact(lambda row: row.layer in attending and row.kind != "attention"),
        "feed_forward": exact(lambda row: row.layer in networks),
        "scores": exact(lambda row: row.layer in attending and row.kind == "attention"),
    }
    titles = {
        "projections": "heads that are together not as wide as the model",
        "feed_forward": "a feed-forward network that is not four times as wide",
        "scores": "products of queries, keys and values of another width",
    }
    parts = [ErrorPart(titles[name], evaluate(thumb.parts[name], letters) - value) for name, value in mine.items()]
    cross = ErrorPart("cross-attention", -exact(lambda row: row.layer in crossing))
    others = exact(lambda row: row.layer not in attending | crossing | networks)
    return _nonzero([*parts, cross, ErrorPart("products of other layers", -others)])


def _block_parameters(measures: Measures, block: BlockMeasure) -> Case:
    rule = rules_of_thumb()["block_parameters"].at(h=measures.run.axes["d"])
    matrices, every = measures.block_parameters(block)
    parts = [
        ErrorPart("matrices of another shape or number", rule - matrices),
        ErrorPart("biases and norms", matrices - every),
    ]
    return Case(block.title, rule, every, "", _nonzero(parts))


def _ratios(measures: Measures) -> _Found:
    """Return the ratios of backward to forward of products, layers and all."""
    cases = []
    for kind, title in (("linear", "products with weights"), ("attention", "products of attention")):
        once, twice = (measures.flops("bp", "matmul", _of_kind(kind, part)) for part in (forward, backward))
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


def _of_kind(kind: str, part: Callable[[PricedLine], bool]) -> Callable[[PricedLine], bool]:
    return lambda row: part(row) and row.kind == kind


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


def _products(measures: Measures) -> _Found:
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
    blog, full = (_whole(name, "300000000000") for name in ("gpt3-jiang", "gpt3-175b"))
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


def _whole(name: str, tokens: str) -> Measures:
    return Measures(prepare(Request(name, price_book="matmul", batch_size=1, tokens=tokens), ()))


def _always(row: PricedLine) -> bool:
    return True


def _nonzero(parts: Iterable[ErrorPart]) -> tuple[ErrorPart, ...]:
    return tuple(part for part in parts if part.amount)
