"""The `paper` price books against the paper's printed formulas: every layer, macro-operation, procedure and model."""

import io
import json
import random
from pathlib import Path

import pytest
import sympy

import learncost as lc
from learncost.cost_models import Price
from learncost.cost_models.books import BOOKS
from learncost.ir.polynomial import Polynomial
from learncost.layers.layer import shipped_layer
from learncost.models.configuration import Configuration, configure
from learncost.models.model import build
from learncost.reports.run import rows_of
from printed import equations as e
from printed.equations import Cost, total
from printed.models import CORRECTED, LAYERS, PARTS, encoder_decoder, encoder_only, nothing, training

FOLDER = Path(__file__).parent / "printed"
FORMULAS = json.loads((FOLDER / "formulas.json").read_text(encoding="utf-8"))["entries"]
WORKED = json.loads((FOLDER / "worked.json").read_text(encoding="utf-8"))

BOOK_LAYERS = {"paper": LAYERS, "paper-corrected": CORRECTED}
PROCEDURES = {"bp": "BP", "pepita": "PEPITA", "mempepita": "MEMPEPITA"}
PHASES_OF_A_STEP = ("forward", "backward", "weight_update")
OURS = {
    "embedding": "embedding",
    "attention": "mha",
    "cross_attention": "mha",
    "feed_forward": "ffn",
    "add_norm": "add_norm",
    "head": "softmax",
}
"""A layer here and the paper's name for it."""


def random_sizes(seed: int) -> dict[str, int]:
    """Printed names of sizes, with a batch b; M is never N, so that one cannot stand for the other unseen."""
    chance = random.Random(seed)
    h, d_k, d_ff, voc, b, n_enc, n_dec = (chance.randint(2, 40) for _ in range(7))
    M, N = chance.sample(range(1, 60), 2)
    sizes = {"M": M, "N": N, "h": h, "d_k": d_k, "d_model": h * d_k, "d_ff": d_ff, "voc": voc}
    return sizes | {"b": b, "n_enc": n_enc, "n_dec": n_dec}


SIZES = [random_sizes(seed) for seed in range(8)]


def axes_of(sizes: dict[str, int]) -> dict[str, int]:
    """The same sizes by the letters of the tables."""
    letters = {"M": "M", "N": "N", "h": "h", "d_k": "k", "d_model": "d", "d_ff": "f", "voc": "v", "b": "B"}
    return {letter: sizes[name] for name, letter in letters.items()} | {"p": 99}


def cost_of(price: Price) -> Cost:
    return Cost(price.maccs, price.flops)


def derived(layer: str) -> dict[str, object]:
    """The layer's tables by macro-operation, backward through explicit Jacobians, as the paper derives it."""
    derived = lc.derive(shipped_layer(layer), jacobian=True)
    return {"forward": derived.forward, "backward": derived.backward, "weight_update": derived.update}


# Layers, one by one


@pytest.mark.parametrize("book", BOOK_LAYERS)
@pytest.mark.parametrize("layer", OURS)
def test_layer_as_printed(layer: str, book: str) -> None:
    printed = BOOK_LAYERS[book]
    for phase, table in derived(layer).items():
        expected = printed[OURS[layer], phase]
        if (layer, phase) == ("embedding", "weight_update"):
            expected = nothing  # backpropagation scatters; the dense product is PEPITA's, see the models below
        for sizes in SIZES:
            # Every printed count is of one sequence.
            assert cost_of(lc.price(table, axes_of(sizes), book)) == sizes["b"] * expected(**sizes), phase


@pytest.mark.parametrize("book", BOOK_LAYERS)
def test_error_projection_as_printed(book: str) -> None:
    for sizes in SIZES:
        price = lc.price(shipped_layer("error_projection"), axes_of(sizes), book)
        assert cost_of(price) == sizes["b"] * e.cost_48(**sizes)


@pytest.mark.parametrize("book", BOOK_LAYERS)
@pytest.mark.parametrize("layer", ["positions", "sinusoidal_positions", "loss"])
def test_what_the_paper_counts_as_nothing(layer: str, book: str) -> None:
    # 5.2: a simple addition, negligible; 5.6.2: target - s; the loss itself is nowhere.
    for table in derived(layer).values():
        assert cost_of(lc.price(table, axes_of(SIZES[0]), book)) == Cost(0, 0)


def printed_rows(layer: str, phase: str, book: str, sizes: dict[str, int]) -> dict[str, Cost]:
    """What the paper prints beside every equation of a layer, by its number."""
    mha = layer in ("attention", "cross_attention")
    rows = {name: cost(**sizes) for (of, during, name), cost in PARTS.items() if (of, during) == (OURS[layer], phase)}
    rows = {name: cost for name, cost in rows.items() if name.startswith("(") and name[1].isdigit()}
    if mha and phase == "backward" and book == "paper":
        rows["(E3)"] = -1 * e.cost_28(**sizes)  # the printed total forgets (28)
    if mha and phase == "backward" and book == "paper-corrected":
        rows["(29)"] = e.right_cost_29(**sizes)  # E2: M N N h for the slice product
    return rows


@pytest.mark.parametrize("book", BOOK_LAYERS)
@pytest.mark.parametrize("layer", ["attention", "cross_attention", "add_norm", "head"])
def test_every_numbered_equation_has_its_printed_value(layer: str, book: str) -> None:
    for phase, table in derived(layer).items():
        for sizes in SIZES[:3]:
            ours: dict[str, Cost] = {}
            for (number,), price in lc.price(table, axes_of(sizes), book).by("equation").items():
                if number:
                    ours[f"({number.replace('-', ')-(')})"] = cost_of(price)  # the sheet writes (25)-(26)
            expected = {name: sizes["b"] * cost for name, cost in printed_rows(layer, phase, book, sizes).items()}
            if layer == "add_norm" and phase == "forward":  # printed as one
                ours = {"(39)-(40)": total(ours.values())}
            assert ours == expected, phase


def test_e3_takes_the_row_of_28_away_again() -> None:
    sizes = SIZES[0]
    rows = lc.price(derived("attention")["backward"], axes_of(sizes), "paper").rows
    count = sizes["b"] * e.cost_28(**sizes).flops
    by_equation = {row.equation: row.flops.at(axes_of(sizes)) for row in rows if row.equation in ("28", "E3")}
    assert by_equation == {"28": count, "E3": -count}
    assert not any(row.line == "E3" for row in lc.price(derived("attention")["backward"], {}, "paper-corrected").rows)
    ledger = lc.cost("gpt2", price_book="paper", seq_len=8, by="equation")
    assert [row.flops for row in ledger.rows if row.line == "E3"] == [-12 * 12 * 8**3]


def test_the_corrected_book_differs_by_e2_and_e3_alone() -> None:
    printed, corrected = BOOKS["paper"], BOOKS["paper-corrected"]
    assert (printed.ops, printed.unpriced) == (corrected.ops, corrected.unpriced)
    more = printed.overrides.keys() - corrected.overrides.keys()
    assert {printed.overrides[key].source.rpartition("erratum ")[2] for key in more} == {"E2"}
    assert all(printed.overrides[key] == override for key, override in corrected.overrides.items())
    assert set(printed.withdrawn.values()) == {"E3"}
    assert not corrected.withdrawn


@pytest.mark.parametrize("book", BOOKS.values(), ids=lambda book: book.name)
def test_books_hold_few_numbers_and_name_where_each_is_from(book: lc.Book) -> None:
    assert len(book.overrides) <= 15
    assert all("(" in o.source or "section 5" in o.source for o in book.overrides.values())
    assert all(op.source for op in book.ops.values())
    if book.rule != "printed":
        assert not book.overrides
        assert not book.ops


# As symbols


def symbols(expression: str) -> sympy.Expr:
    """A printed formula, d_model written as h d_k."""
    return sympy.expand(sympy.sympify(expression, locals={"N": sympy.Symbol("N")}).subs("d_model", "h*d_k"))


def polynomial(count: Polynomial | int) -> sympy.Expr:
    """A count of one sequence under the paper's names of sizes."""
    names = {"d": "h*d_k", "k": "d_k", "f": "d_ff", "v": "voc", "B": "1", "n_layer": "n_enc"}
    result = sympy.Integer(0)
    for monomial, coefficient in count.terms.items() if isinstance(count, Polynomial) else [((), count)]:
        factors = [sympy.sympify(names.get(n, n), locals={"N": sympy.Symbol("N")}) for n in monomial]
        result += coefficient * sympy.prod(factors)
    return sympy.expand(result)


PAPER = [row for row in FORMULAS if row["doc"] == "000/003" and row["quantity"] in ("MACCs", "FLOPs")]
TOTALS = [row for row in PAPER if row["is_total"] and row["variant"] in ("printed", "corrected", "assembled")]


def describe(row: dict) -> str:
    return " ".join(str(row[key]) for key in ("id", "layer", "macro_operation", "quantity", "variant"))


def book_of(row: dict) -> str:
    return "paper-corrected" if row["variant"] == "corrected" else "paper"


def quantity(price: Price, name: str) -> Polynomial | int:
    return {"MACCs": price.maccs, "FLOPs": price.flops}[name]


LAYER_TOTALS = [row for row in TOTALS if row["equation"] == "layer total"]


@pytest.mark.parametrize("row", LAYER_TOTALS, ids=describe)
def test_layer_total_as_symbols(row: dict) -> None:
    for layer in [ours for ours, theirs in OURS.items() if theirs == row["layer"]] or [row["layer"]]:
        table = derived(layer)[row["macro_operation"]] if layer in OURS else shipped_layer(layer)
        ours = polynomial(quantity(lc.price(table, {}, book_of(row)), row["quantity"]))
        if (layer, row["macro_operation"]) == ("embedding", "weight_update"):
            assert ours == 0  # the printed product is PEPITA's
        else:
            assert ours == symbols(row["expression"])


def model_price(family: str, procedure: str, book: str) -> Price:
    """One step of a model, its sizes left as symbols."""
    depth = {"n_enc": 2, "n_dec": 3} if family == "encoder-decoder" else {"num_hidden_layers": 2}
    tiny = {"hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 5, "vocab_size": 7}
    return Price(book, rows_of(build(configure(family, depth | tiny)), procedure, book), {})


MODEL_TOTALS = [row for row in TOTALS if row["layer"] in ("encoder_only_1", "encoder_only_n", "encoder_decoder")]


@pytest.mark.parametrize("row", MODEL_TOTALS, ids=describe)
def test_model_total_as_symbols(row: dict) -> None:
    two_sided = row["layer"] == "encoder_decoder"
    phase, procedure = row["macro_operation"], row.get("learning_procedure")
    if procedure is None or phase != "training_total":
        # One pass of a macro-operation. The update is PEPITA's, the rows that discard the embedding are BP's.
        with_embedding = phase == "weight_update" and procedure != "BP"
        price = model_price(
            "encoder-decoder" if two_sided else "encoder", "pepita" if with_embedding else "bp", book_of(row)
        )
        price = price.by("macro_operation")[(phase,)]
    else:
        price = model_price("encoder-decoder" if two_sided else "encoder", procedure.lower(), book_of(row))
    ours, theirs = polynomial(quantity(price, row["quantity"])), symbols(row["expression"])
    if not two_sided:  # an encoder's attention is over its own tokens: M = N
        theirs = sympy.expand(theirs.subs("N", "M"))
    if row["layer"] == "encoder_only_1":
        ours = sympy.expand(ours.subs("n_enc", 1))
    assert ours == theirs


def test_every_printed_total_is_compared() -> None:
    per_procedure = [row for row in TOTALS if row["equation"] == "per layer and procedure"]
    assert len(LAYER_TOTALS) == 2 * len(LAYERS) + 2  # MACCs and FLOPs; two corrected
    assert len(MODEL_TOTALS) == 40
    assert len(TOTALS) == len(LAYER_TOTALS) + len(MODEL_TOTALS) + len(per_procedure)


@pytest.mark.parametrize("row", [r for r in TOTALS if r["equation"] == "per layer and procedure"], ids=describe)
def test_layer_under_a_procedure_as_symbols(row: dict) -> None:
    procedure, layer = row["learning_procedure"].lower(), row["layer"]
    price = model_price("encoder-decoder", procedure, "paper").by("layer", "block")
    ours = {
        # The decoder's own rows, so that its lengths are M alone; cross-attention has M and N as printed.
        "embedding": ("embedding", "decoder"),
        "mha": ("cross_attention", "decoder"),
        "ffn": ("feed_forward", "decoder"),
        "add_norm": ("add_norm", "decoder"),
        "softmax": ("head", None),
        "error_projection": ("error_projection", None),
    }[layer]
    if ours not in price:
        assert (layer, procedure, row["expression"]) == ("error_projection", "bp", "0")
        return
    repeats = {"mha": "n_dec", "ffn": "n_dec", "add_norm": "3*n_dec"}.get(layer, "1")
    assert polynomial(quantity(price[ours], row["quantity"])) == sympy.expand(
        symbols(row["expression"]) * sympy.sympify(repeats)
    )


# Models of the paper's own layers


def run(family: str, sizes: dict[str, int], **keywords: object) -> lc.Cost:
    names = {"h": "num_attention_heads", "d_model": "hidden_size", "d_ff": "intermediate_size", "voc": "vocab_size"}
    keywords_given = {ours: sizes[theirs] for theirs, ours in names.items()}
    if family == "encoder-decoder":
        keywords_given |= {
            "n_enc": sizes["n_enc"],
            "n_dec": sizes["n_dec"],
            "seq_len": sizes["N"],
            "target_len": sizes["M"],
        }
    else:
        keywords_given |= {"num_hidden_layers": sizes["n_enc"], "seq_len": sizes["M"]}
    return lc.cost(family, batch_size=sizes["b"], **keywords_given, **keywords)


def rows(ledger: lc.Cost) -> dict[tuple[str | None, str | None, str], tuple[int, Cost]]:
    """Rows that cost anything, by layer, block and macro-operation, with their repeats."""
    rows_found = {}
    for row in ledger.rows:
        assert (row.layer, row.block, row.macro_operation) not in rows_found
        rows_found[row.layer, row.block, row.macro_operation] = row.repeat, Cost(row.maccs, row.flops)
    return {key: value for key, value in rows_found.items() if value[1] != Cost(0, 0)}


def expected_rows(family: str, procedure: str, book: str, sizes: dict[str, int]) -> dict:
    """The printed layer totals, times batch, passes and blocks."""
    printed = BOOK_LAYERS[book]
    passes = {"bp": (1, 1, 1), "pepita": (2, 0, 1), "mempepita": (3, 0, 1)}[procedure]
    at_encoder, at_decoder = sizes | {"M": sizes["N"]}, sizes | {"N": sizes["M"]}
    n_enc, n_dec = sizes["n_enc"], sizes["n_dec"]
    if family == "encoder-decoder":
        stack = [
            ("embedding", "encoder", 1, at_encoder),
            ("attention", "encoder", n_enc, at_encoder),
            ("feed_forward", "encoder", n_enc, at_encoder),
            ("add_norm", "encoder", 2 * n_enc, at_encoder),
            ("embedding", "decoder", 1, at_decoder),
            ("attention", "decoder", n_dec, at_decoder),
            ("cross_attention", "decoder", n_dec, sizes),
            ("feed_forward", "decoder", n_dec, at_decoder),
            ("add_norm", "decoder", 3 * n_dec, at_decoder),
        ]
    else:
        stack = [
            ("embedding", None, 1, at_decoder),
            ("attention", family, n_enc, at_decoder),
            ("feed_forward", family, n_enc, at_decoder),
            ("add_norm", family, 2 * n_enc, at_decoder),
        ]
    stack.append(("head", None, 1, at_decoder))
    result = {}
    for phase, times in zip(PHASES_OF_A_STEP, passes, strict=True):
        for layer, block, repeat, at in stack:
            cost = times * repeat * sizes["b"] * printed[OURS[layer], phase](**at)
            if (layer, phase, procedure) == ("embedding", "weight_update", "bp"):
                cost = Cost(0, 0)  # 5.1.2: backpropagation updates the rows of the tokens directly
            if cost != Cost(0, 0):
                result[layer, block, phase] = repeat, cost
    if family == "encoder-decoder" and procedure != "bp":
        result["error_projection", None, "error_projection"] = 1, sizes["b"] * e.cost_48(**sizes)
    return result


@pytest.mark.parametrize("book", BOOK_LAYERS)
@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
def test_generic_models_as_printed(family: str, procedure: str, book: str) -> None:
    for sizes in SIZES:
        ledger = run(family, sizes, procedure=procedure, price_book=book)
        expected = expected_rows(family, procedure, book, sizes)
        assert rows(ledger) == expected
        assert not any(row.outside_paper for row in ledger.rows)
        assert Cost(ledger.total.maccs, ledger.total.flops) == total(cost for _, cost in expected.values())
        # The same from the assembled models of the oracle.
        model = encoder_decoder if family == "encoder-decoder" else encoder_only
        at = {name: size for name, size in sizes.items() if name != "n_dec" or family == "encoder-decoder"}
        at |= {} if family == "encoder-decoder" else {"N": sizes["M"]}
        whole = sizes["b"] * training(PROCEDURES[procedure], model, BOOK_LAYERS[book], **at)
        assert Cost(ledger.total.maccs, ledger.total.flops) == whole


@pytest.mark.parametrize("case", WORKED["encoder_only"], ids=lambda case: case["name"])
def test_worked_encoder(case: dict) -> None:
    sizes = case["sizes"] | {"n_enc": 1, "b": 1}
    for procedure, name in PROCEDURES.items():
        printed = run("encoder", sizes, procedure=procedure, price_book="paper")
        corrected = run("encoder", sizes, procedure=procedure, price_book="paper-corrected")
        assert (printed.total.maccs, printed.total.flops) == (case["maccs"][name], case["flops"][name])
        # M = N, where E2 changes nothing.
        assert (corrected.total.maccs, corrected.total.flops) == (case["maccs"][name], case["flops_corrected"][name])
    phases = run("encoder", sizes, procedure="pepita", price_book="paper").macro_operations
    assert phases["forward"][1].maccs == 2 * case["maccs"]["forward"]
    assert phases["weight_update"][1].maccs == case["maccs"]["weight_update"]
    phases = run("encoder", sizes, price_book="paper").macro_operations
    assert phases["backward"][1].maccs == case["maccs"]["backward"]


@pytest.mark.parametrize("case", WORKED["encoder_decoder"], ids=lambda case: case["name"])
def test_worked_encoder_decoder(case: dict) -> None:
    sizes = case["sizes"] | {"b": 1}
    for procedure, name in PROCEDURES.items():
        printed = run("encoder-decoder", sizes, procedure=procedure, price_book="paper")
        corrected = run("encoder-decoder", sizes, procedure=procedure, price_book="paper-corrected")
        assert (printed.total.maccs, printed.total.flops) == (case["maccs"][name], case["flops"][name])
        assert corrected.total.maccs == case["maccs_corrected"][name]
        assert corrected.total.flops == case["flops_corrected"][name]
        projection = printed.macro_operations["error_projection"]
        if procedure != "bp":
            assert projection[0] == 1
            assert Cost(projection[1].maccs, projection[1].flops) == Cost(**case["error_projection"])


def test_the_transformer_of_vaswani() -> None:
    """Preset transformer-base: tied tables, and relu where the paper has GELU, one maximum at the run price."""
    sizes = {"M": 9, "N": 8, "h": 8, "d_k": 64, "d_model": 512, "d_ff": 2048, "voc": 37000, "n_enc": 6, "n_dec": 6}
    sizes["b"] = 2
    lengths = {"batch_size": 2, "seq_len": 8, "target_len": 9}
    for procedure, forwards in (("bp", 1), ("pepita", 2), ("mempepita", 3)):
        expected = expected_rows("encoder-decoder", procedure, "paper", sizes)
        for (layer, block, phase), (repeat, cost) in expected.items():
            if layer == "feed_forward" and phase != "weight_update":
                points = repeat * sizes["b"] * sizes["N" if block == "encoder" else "M"] * sizes["d_ff"]
                less = {"forward": forwards * (8 - 1), "backward": 13 - 2}[phase]
                expected[layer, block, phase] = repeat, cost + Cost(0, -less * points)
        ledger = lc.cost("transformer-base", procedure=procedure, price_book="paper", **lengths)
        assert rows(ledger) == expected
        assert {(row.layer, row.macro_operation) for row in ledger.rows if row.outside_paper} == {
            ("feed_forward", phase) for phase in ("forward", "backward")[: 1 + (procedure == "bp")]
        }


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
def test_recompute_runs_every_line_of_every_block_once_more(family: str, book: str) -> None:
    def lines(phase: str) -> dict:
        return {
            (row.layer, row.block, row.line, row.equation): (row.repeat, row.maccs, row.flops, row.bytes)
            for row in ledger.rows
            if row.macro_operation == phase and row.block and row.layer not in ("embedding", "positions")
        }

    keywords = {"price_book": book, "by": "equation"}
    ledger, plain = (run(family, SIZES[0], procedure=name, **keywords) for name in ("recompute", "bp"))
    assert lines("forward") == lines("recomputation")
    assert plain.rows == tuple(row for row in ledger.rows if row.macro_operation != "recomputation")


def test_published_totals() -> None:
    sizes = {"M": 128, "h": 12, "d_model": 768, "d_ff": 3072, "voc": 30522, "n_enc": 1, "b": 1}
    totals = [run("encoder", sizes, procedure=p, price_book="paper").total.maccs for p in PROCEDURES]
    assert totals == [14_971_502_592, 20_771_045_376, 27_703_050_240]


# Models with more than the paper's layers: what the paper does not have, counted by hand


def gpt2(M: int, d: int, h: int, f: int, v: int, n: int) -> dict:
    """GPT-2's rows of one sequence in forward, backward and weight update: layer and block -> repeat and costs."""
    attention, feed_forward, head, norm = (
        [LAYERS[layer, phase](M=M, N=M, d_model=d, d_k=d // h, h=h, d_ff=f, voc=v) for phase in PHASES_OF_A_STEP]
        for layer in ("mha", "ffn", "softmax", "add_norm")
    )
    biases = Cost(0, 4 * M * d)  # of queries, keys, values and the output: one addition each, no update
    alone = [
        Cost(0, 8 * M * d),  # 8 of add and norm's 9
        Cost(M * d * d, M * d + 9 * M * d * d + 2 * M * d * d),  # (43), the Jacobian, (44); no skip branch
        norm[2],  # (41), (42)
    ]
    sum_of_two = Cost(0, M * d)  # a residual sum: one addition forward, one backward (5.5.2), nothing to learn
    return {
        ("embedding", None): (1, [Cost(M * v * d, 2 * M * v * d), Cost(0, 0), Cost(0, 0)]),
        ("norm", "decoder"): (2 * n, [2 * n * cost for cost in alone]),
        ("attention", "decoder"): (n, [n * (attention[0] + biases), n * attention[1], n * attention[2]]),
        ("residual", "decoder"): (2 * n, [2 * n * sum_of_two, 2 * n * sum_of_two, Cost(0, 0)]),
        ("feed_forward", "decoder"): (n, [n * cost for cost in feed_forward]),
        ("norm", None): (1, alone),
        ("head", None): (1, head),
    }


def openai_gpt(M: int, d: int, h: int, f: int, v: int, n: int) -> dict:
    """The first GPT: the paper's add and norm after each sublayer, biases in attention, a tied head."""
    layers = gpt2(M, d, h, f, v, n)
    add_norm = [LAYERS["add_norm", phase](M=M, d_model=d) for phase in PHASES_OF_A_STEP]
    blocks = {key: value for key, value in layers.items() if key[0] not in ("norm", "residual")}
    return blocks | {("add_norm", "decoder"): (2 * n, [2 * n * cost for cost in add_norm])}


def check_ledger(model: str, layers: dict, batch: int, keywords: dict, outside: set | None = None) -> None:
    """Every procedure's ledger is these rows: passes of table 2, blocks once more when they are recomputed."""
    embedding = layers["embedding", None][1][0]
    for procedure, (forward, again, backward) in {
        "bp": (1, 0, 1),
        "recompute": (1, 1, 1),
        "pepita": (2, 0, 0),
        "mempepita": (3, 0, 0),
    }.items():
        if procedure.endswith("pepita") and "share" not in build(configure(model)).table.inputs:
            continue  # no output to learn from
        expected = {}
        for (layer, block), (repeat, costs) in layers.items():
            for phase, passes, cost in zip(
                ("forward", "recomputation", "backward", "weight_update"),
                (forward, again if block else 0, backward, 1),
                (costs[0], *costs),
                strict=True,
            ):
                if (layer, phase) == ("embedding", "weight_update") and procedure.endswith("pepita"):
                    cost = embedding  # the dense product that backpropagation does not need
                if passes and cost != Cost(0, 0):
                    expected[layer, block, phase] = repeat, batch * passes * cost
        ledger = lc.cost(model, procedure=procedure, price_book="paper", batch_size=batch, **keywords)
        assert rows(ledger) == expected, procedure
        assert {row.layer for row in ledger.rows if row.outside_paper} == (outside or set())
        for name in ("layer", "macro-operation", "equation", "kind"):  # rows always sum to the totals
            split = lc.cost(model, procedure=procedure, price_book="paper", batch_size=batch, by=name, **keywords)
            for phase, (_, amount) in split.macro_operations.items():
                parts = [row for row in split.rows if row.macro_operation == phase]
                assert sum(row.maccs for row in parts) == amount.maccs
                assert sum(row.flops for row in parts) == amount.flops
            assert sum(amount.flops for _, amount in split.macro_operations.values()) == split.total.flops


def test_gpt2_line_by_line() -> None:
    layers = gpt2(M=100, d=768, h=12, f=3072, v=50257, n=12)
    check_ledger("gpt2", layers, 3, {"seq_len": 100})


def test_openai_gpt_line_by_line() -> None:
    layers = openai_gpt(M=77, d=768, h=12, f=3072, v=40478, n=12)
    check_ledger("openai-gpt", layers, 2, {"seq_len": 77})


def distilbert(M: int, d: int, h: int, f: int, v: int, n: int) -> dict:
    """DistilBERT's bare encoder: a norm on the embeddings, then the paper's block with biases in attention."""
    layers = gpt2(M, d, h, f, v, n)
    add_norm = [LAYERS["add_norm", phase](M=M, d_model=d) for phase in PHASES_OF_A_STEP]
    block = {("add_norm", "encoder"): (2 * n, [2 * n * cost for cost in add_norm])}
    block |= {(layer, "encoder"): layers[layer, "decoder"] for layer in ("attention", "feed_forward")}
    return block | {key: layers[key] for key in [("embedding", None), ("norm", None)]}


def test_distilbert_line_by_line() -> None:
    layers = distilbert(M=50, d=768, h=12, f=3072, v=30522, n=6)
    check_ledger("distilbert-base", layers, 2, {"seq_len": 50})


def bert(M: int, d: int, h: int, f: int, v: int, n: int) -> dict:
    """BERT with its pooler: the first token's value is moved for nothing, then d by d weights, a bias and a tanh."""
    pooler = [
        Cost(d * d, 2 * d * d + d + d),  # one addition and one tanh an element, as it runs
        Cost(
            d * d, 2 * d * d + 3 * d
        ),  # 1 - y^2 has two operations, times the gradient one; gradients merge for nothing
        Cost(d * d, 2 * d * d),
    ]
    return distilbert(M, d, h, f, v, n) | {("pooler", None): (1, pooler)}


def masked(layers: dict, M: int, d: int, v: int) -> dict:
    """With a masked-language-model head: dense, bias, GELU, norm; the tied output table with a bias."""
    dense, (_, alone) = M * d * d, layers["norm", None]
    head = [LAYERS["softmax", phase](M=M, d_model=d, voc=v) for phase in PHASES_OF_A_STEP]
    transform = [
        Cost(dense, 2 * dense + M * d + 8 * M * d) + alone[0],
        Cost(dense, 2 * dense + 13 * M * d) + alone[1],
        Cost(dense, 2 * dense) + alone[2],
    ]
    biases = [Cost(0, M * v), Cost(0, 0), Cost(0, 0)]
    rows = [total(parts) for parts in zip(head, transform, biases, strict=True)]
    return {key: value for key, value in layers.items() if key[0] != "pooler"} | {("head", None): (1, rows)}


def test_bert_line_by_line() -> None:
    layers = bert(M=50, d=768, h=12, f=3072, v=30522, n=12)
    check_ledger("bert-base", layers, 2, {"seq_len": 50}, outside={"pooler"})


def test_masked_language_models_line_by_line(tmp_path: Path) -> None:
    for model_type, name, n in (("bert", "BertForMaskedLM", 12), ("distilbert", "DistilBertForMaskedLM", 6)):
        layers = masked(distilbert(M=50, d=768, h=12, f=3072, v=30522, n=n), M=50, d=768, v=30522)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [name]}))
        check_ledger(str(tmp_path), layers, 2, {"seq_len": 50})


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("book", BOOK_LAYERS)
@pytest.mark.parametrize("procedure", [*PROCEDURES, "recompute"])
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
def test_a_padding_mask_is_not_counted(family: str, procedure: str, book: str) -> None:
    depth = {"n_enc": 2, "n_dec": 3} if family == "encoder-decoder" else {"num_hidden_layers": 2}
    tiny = {"hidden_size": 6, "num_attention_heads": 2, "intermediate_size": 5, "vocab_size": 7}
    configuration = configure(family, depth | tiny)
    plain, padded = (
        Price(book, rows_of(build(configuration, padding=padding), procedure, book), {}) for padding in (False, True)
    )
    assert (plain.maccs, plain.flops) == (padded.maccs, padded.flops)
    assert not any(row.outside_paper for row in padded.rows)


# Layers that the paper does not have


def outside(text: str, phase: str = "forward") -> tuple[object, object, bool]:
    """MACCs and FLOPs as text, and whether any row is marked."""
    derived = lc.derive(lc.layer(text), jacobian=True)
    table = {"forward": derived.forward, "backward": derived.backward, "weight_update": derived.update}[phase]
    price = lc.price(table, {}, "paper")
    return str(price.maccs), str(price.flops), any(row.outside_paper for row in price.rows)


def test_products_by_their_shapes() -> None:
    dense = "own(X; W b) -> Y\n  H[B M e] = X[B M d] W[d e]\n  Y[B M e] = H[B M e] + b[e]"
    assert outside(dense) == ("B M d e", "2 B M d e + B M e", False)  # a bias is one addition an element
    assert outside(dense, "backward") == ("B M d e", "2 B M d e", False)
    assert outside(dense, "weight_update") == ("B M d e", "2 B M d e", False)  # and nothing in the update
    scaled = "own(X s) -> Y\n  Y[B M] = X[B M] s[]"
    assert outside(scaled) == ("0", "B M", False)  # a product without a sum: one FLOP a point
    assert outside(scaled, "backward") == ("B M", "3 B M", False)  # that, and the sum of X dY for s


def test_anything_else_at_the_run_price() -> None:
    row = "own(T places) -> Y\n  Y[B M d] = T[B v=places[B M] d]"
    assert outside(row) == ("0", "0", False)  # a look-up is a move; the paper's one-hot products are its embedding's
    first = "own(X) -> Y\n  Y[B d] = X[B M=0[] d]"
    assert outside(first) == ("0", "0", False)
    window = "own(X Z places) -> Y\n  Y[B M r] = X[B M k] Z[B M=places[M r] k]"
    assert outside(window) == ("B M k r", "2 B M k r", False)
    # Both gradients have that many terms; Z's are added where they belong.
    assert outside(window, "backward") == ("2 B M k r", "4 B M k r", False)
    assert outside("own(X) -> Y\n  Y[B d] = sigmoid(X[B d])") == ("0", "4 B d", True)


def test_block_of_jiang() -> None:
    """By hand: products, softmax 5 and a scaling forward; a norm 8; two residual sums; relu as it runs."""
    price = {phase: lc.price(table, {}, "paper") for phase, table in derived("jiang_block").items()}
    products = "4 T d h k + 2 T d f + 2 T T h k"
    expected = sum_of(products), 2 * sum_of(products) + sum_of("6 T T h + 8 T d + 2 T d + T f")
    assert (polynomial_of(price["forward"].maccs), polynomial_of(price["forward"].flops)) == expected
    # The norm's Jacobian 9 and its product 2, gains 1; the softmax's Jacobian 1 and its product 2, the scaling 1.
    jacobians = sum_of("T T T h + T d d")
    products = sum_of("4 T d h k + 2 T d f + 4 T T h k") + jacobians
    more = sum_of("9 T d d + T d + T T T h + T T h + 2 T d + 2 T f")
    backward_price = price["backward"]
    assert (polynomial_of(backward_price.maccs), polynomial_of(backward_price.flops)) == (products, 2 * products + more)
    products = sum_of("4 T d h k + 2 T d f + T d")  # (41) of the gains
    backward_price = price["weight_update"]
    assert (polynomial_of(backward_price.maccs), polynomial_of(backward_price.flops)) == (
        products,
        2 * products + sum_of("T d"),
    )


def sum_of(text: str) -> sympy.Expr:
    """`2 T d + T f`, names apart from each other by spaces."""
    return sympy.Add(*(sympy.Mul(*map(sympy.sympify, term.split())) for term in text.split(" + ")))


def polynomial_of(count: Polynomial) -> sympy.Expr:
    return sympy.Add(*(c * sympy.Mul(*map(sympy.Symbol, names)) for names, c in count.terms.items()))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_dropout_and_the_optimizer_are_not_counted(optimizer: str) -> None:
    plain = lc.cost("gpt2", price_book="paper", seq_len=10)
    other = lc.cost("gpt2", price_book="paper", seq_len=10, optimizer=optimizer, dropout=0.1)
    assert other.total == plain.total
    assert rows(other) == rows(plain)


@pytest.mark.parametrize(("op", "forward", "backward"), [("gelu", 8, 13), ("gelu_new", 8, 13), ("relu", 1, 2)])
def test_activations(op: str, forward: int, backward: int) -> None:
    """GELU in either form as printed; relu at the run price: one maximum; one comparison, one selection."""
    tiny = {"n_layer": 2, "n_embd": 6, "n_head": 2, "n_inner": 11, "vocab_size": 13, "n_positions": 9}
    config = {"model_type": "gpt2", "activation_function": op, **tiny}
    for procedure, passes in (("bp", (1, 1)), ("pepita", (2, 0)), ("mempepita", (3, 0))):
        ledger = lc.cost(configure_text(config), procedure=procedure, price_book="paper", by="equation", seq_len=5)
        flops = {}
        for row in ledger.rows:
            if row.layer == "feed_forward" and row.line in ("G", "dU"):
                flops[row.macro_operation] = row.flops
                assert row.outside_paper == (op == "relu")
        points = 2 * 5 * 11
        expected = {"forward": passes[0] * forward * points, "backward": passes[1] * backward * points}
        assert flops == {phase: count for phase, count in expected.items() if count}


def configure_text(config: dict) -> Configuration:
    return configure("-", stdin=io.StringIO(json.dumps(config)))
