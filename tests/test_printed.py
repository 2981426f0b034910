"""The oracle against itself: printed costs against the list of formulas, meanings against differences, errata."""

import ast
import json
import operator
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from learncost.cost_models.errata import Erratum, errata
from printed import equations as e
from printed import models
from printed.equations import Array, Cost, total
from printed.models import CORRECTED, LAYERS, PARTS, PASSES, encoder_decoder, encoder_only, training

FOLDER = Path(__file__).parent / "printed"
FORMULAS = json.loads((FOLDER / "formulas.json").read_text(encoding="utf-8"))["entries"]
PAPER = [row for row in FORMULAS if row["doc"] == "000/003" and row["quantity"] in ("MACCs", "FLOPs")]
WORKED = json.loads((FOLDER / "worked.json").read_text(encoding="utf-8"))
PAPER_LAYERS = {layer for layer, _ in LAYERS} | {"positions"}
OPERATIONS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def evaluate(expression: str, sizes: dict[str, int]) -> Fraction:
    """Arithmetic over names and whole numbers, and nothing else."""

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.BinOp(left=left, op=operation, right=right):
                return OPERATIONS[type(operation)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.Constant(value=int(number)):
                return Fraction(number)
            case ast.Name(id=name):
                return Fraction(sizes[name])
            case _:
                raise ValueError(f"not arithmetic: {ast.unparse(node)}")

    return value(ast.parse(expression, mode="eval").body)


def random_sizes(seed: int) -> dict[str, int]:
    """Sizes that fit each other; M is never N, so that one cannot stand for the other unseen."""
    generator = np.random.default_rng(seed)
    d_k, d_ff, h, voc, n_enc, n_dec = (int(size) for size in generator.integers(2, 50, size=6))
    M, N = (int(size) for size in generator.choice(np.arange(1, 50), size=2, replace=False))
    width = {"d_model": d_k * h, "d_k": d_k, "d_ff": d_ff, "h": h, "voc": voc}
    return {"M": M, "N": N, **width, "n_enc": n_enc, "n_dec": n_dec}


SIZES = [random_sizes(seed) for seed in range(20)]


def quantity(cost: Cost, name: str) -> int:
    return {"MACCs": cost.maccs, "FLOPs": cost.flops}[name]


def agree(expression: str, name: str, cost_of: Callable[..., Cost]) -> bool:
    return all(evaluate(expression, sizes) == quantity(cost_of(**sizes), name) for sizes in SIZES)


def describe(row: dict) -> str:
    return " ".join(str(row[key]) for key in ("id", "layer", "macro_operation", "quantity"))


# Costs against the list of formulas

PRINTED_PARTS = [
    row
    for row in PAPER
    if row["layer"] in PAPER_LAYERS and not row["is_total"] and row["variant"] in ("printed", "printed_as_negligible")
]
PRINTED_TOTALS = [
    row for row in PAPER if row["layer"] in PAPER_LAYERS and row["variant"] == "printed" and row["is_total"]
]


def test_formulas_are_whole() -> None:
    assert [row["id"] for row in FORMULAS] == list(range(1, 304))
    assert {(row["layer"], row["macro_operation"], row["equation"]) for row in PRINTED_PARTS} == set(PARTS)
    assert {(row["layer"], row["macro_operation"]) for row in PRINTED_TOTALS} == set(LAYERS)
    assert len(PRINTED_PARTS) == 2 * len(PARTS)
    assert len(PRINTED_TOTALS) == 2 * len(LAYERS)


@pytest.mark.parametrize("row", PRINTED_PARTS, ids=describe)
def test_printed_equation(row: dict) -> None:
    cost_of = PARTS[row["layer"], row["macro_operation"], row["equation"]]
    assert agree(row["expression"], row["quantity"], cost_of)


@pytest.mark.parametrize("row", PRINTED_TOTALS, ids=describe)
def test_printed_total(row: dict) -> None:
    assert agree(row["expression"], row["quantity"], LAYERS[row["layer"], row["macro_operation"]])


@pytest.mark.parametrize("row", [row for row in PAPER if row["layer"] == "mha" and row["variant"] == "corrected"])
def test_corrected(row: dict) -> None:
    cost_of = CORRECTED["mha", "backward"] if row["is_total"] else e.right_cost_29
    assert agree(row["expression"], row["quantity"], cost_of)


def sum_of_parts(layer: str, phase: str, sizes: dict[str, int]) -> Cost:
    return total(cost_of(**sizes) for (of, during, _), cost_of in PARTS.items() if (of, during) == (layer, phase))


@pytest.mark.parametrize(("layer", "phase"), LAYERS)
def test_total_is_the_sum_of_its_parts(layer: str, phase: str) -> None:
    for sizes in SIZES:
        missing = e.cost_28(**sizes) if (layer, phase) == ("mha", "backward") else Cost(0, 0)  # erratum E3
        assert sum_of_parts(layer, phase, sizes) == LAYERS[layer, phase](**sizes) + missing


def test_sum_of_printed_parts_is_listed() -> None:
    (row,) = [row for row in PAPER if row["variant"] == "sum_of_printed_parts"]
    assert agree(row["expression"], "FLOPs", lambda **sizes: sum_of_parts("mha", "backward", sizes))


def test_right_total_is_the_sum_of_right_parts() -> None:
    for sizes in SIZES:
        change = e.right_cost_29(**sizes) + -1 * e.cost_29(**sizes)
        assert CORRECTED["mha", "backward"](**sizes) == sum_of_parts("mha", "backward", sizes) + change


def test_backward_and_update_are_twice_the_forward_pass_but_for_the_slice_product() -> None:
    for sizes in SIZES:
        for layer, more in (("ffn", 0), ("softmax", 0), ("mha", sizes["M"] ** 2 * sizes["N"] * sizes["h"])):
            forward, backward, update = (LAYERS[layer, phase](**sizes).maccs for phase in models.PHASES_OF_A_STEP[:3])
            assert backward + update == 2 * forward + more


# Models against the list of formulas


def block_cost(row: dict, **sizes: int) -> Cost:
    """What a row on a model means: one macro-operation, or a training step under a procedure."""
    layers = CORRECTED if row["variant"] == "corrected" else LAYERS
    model, depths = {
        "encoder_only_1": (encoder_only, {"n_enc": 1}),
        "encoder_only_n": (encoder_only, {"n_enc": sizes["n_enc"]}),
        "encoder_decoder": (encoder_decoder, {"n_enc": sizes["n_enc"], "n_dec": sizes["n_dec"]}),
    }[row["layer"]]
    at = {name: size for name, size in sizes.items() if name not in ("n_enc", "n_dec")} | depths
    if row["macro_operation"] == "training_total":
        return training(row["learning_procedure"], model, layers, **at)
    dropped = e.cost_embedding_update(**at) if row.get("learning_procedure") == "BP" else Cost(0, 0)
    return model(row["macro_operation"], layers, **at) + -1 * dropped


MODEL_ROWS = [
    row
    for row in PAPER
    if row["layer"] in ("encoder_only_1", "encoder_only_n", "encoder_decoder") and row["variant"] != "uncounted"
]


@pytest.mark.parametrize("row", MODEL_ROWS, ids=describe)
def test_model(row: dict) -> None:
    assert agree(row["expression"], row["quantity"], lambda **sizes: block_cost(row, **sizes))


LAYER_ROWS = [row for row in PAPER if row["equation"] == "per layer and procedure"]


@pytest.mark.parametrize("row", LAYER_ROWS, ids=describe)
def test_layer_under_a_procedure(row: dict) -> None:
    def cost_of(**sizes: int) -> Cost:
        layers = dict(LAYERS)
        if row["learning_procedure"] == "BP":
            layers["embedding", "weight_update"] = models.nothing
        passes = zip(models.PHASES_OF_A_STEP, PASSES[row["learning_procedure"]], strict=True)
        return total(
            times * layers[row["layer"], phase](**sizes) for phase, times in passes if (row["layer"], phase) in layers
        )

    assert agree(row["expression"], row["quantity"], cost_of)


def test_every_formula_of_a_procedure_is_compared() -> None:
    assert len(MODEL_ROWS) == 40
    assert len(LAYER_ROWS) == 6 * 3 * 2


def test_table_2() -> None:
    rows = [row for row in FORMULAS if row["equation"] == "Table 2"]
    assert len(rows) == 12
    for row in rows:
        passes = PASSES[row["learning_procedure"]][models.PHASES_OF_A_STEP.index(row["macro_operation"])]
        assert int(row["expression"]) == passes


def test_section_6_is_the_sum_of_the_layers() -> None:
    for sizes in SIZES:
        assert models.section_6_forward(**sizes) == encoder_only("forward", **sizes | {"n_enc": 1}).maccs
        assert models.section_6_backward(**sizes) == encoder_only("backward", **sizes | {"n_enc": 1}).maccs
        assert models.section_6_update(**sizes) == encoder_only("weight_update", **sizes | {"n_enc": 1}).maccs


# Worked numbers


@pytest.mark.parametrize("case", WORKED["encoder_only"], ids=lambda case: case["name"])
def test_worked_encoder(case: dict) -> None:
    sizes = case["sizes"]
    sizes = sizes | {"d_k": sizes["d_model"] // sizes["h"]}
    sections = {
        "forward": models.section_6_forward(**sizes),
        "backward": models.section_6_backward(**sizes),
        "weight_update": models.section_6_update(**sizes),
    }
    assert case["maccs"] == sections | {procedure: models.section_6_total(procedure, **sizes) for procedure in PASSES}
    for procedure in PASSES:
        printed = training(procedure, encoder_only, **sizes)
        corrected = training(procedure, encoder_only, CORRECTED, **sizes)
        assert (printed.maccs, printed.flops) == (case["maccs"][procedure], case["flops"][procedure])
        # M = N here, so that only the omission of (28) changes a total.
        assert (corrected.maccs, corrected.flops) == (case["maccs"][procedure], case["flops_corrected"][procedure])


@pytest.mark.parametrize("case", WORKED["encoder_decoder"], ids=lambda case: case["name"])
def test_worked_encoder_decoder(case: dict) -> None:
    sizes = case["sizes"]
    assert e.cost_48(**sizes) == Cost(**case["error_projection"])
    for procedure in PASSES:
        printed = training(procedure, encoder_decoder, **sizes)
        corrected = training(procedure, encoder_decoder, CORRECTED, **sizes)
        assert printed == Cost(case["maccs"][procedure], case["flops"][procedure])
        assert corrected == Cost(case["maccs_corrected"][procedure], case["flops_corrected"][procedure])


def test_worked_parameters_of_gpt3() -> None:
    d, d_ff, voc, positions, depth = 12288, 49152, 50257, 2048, 96
    weights = voc * d + depth * (4 * d * d + 2 * d * d_ff)
    biases = depth * (5 * d + d_ff)
    norms = (2 * depth + 1) * 2 * d
    assert list(WORKED["gpt3_parameters"].values()) == [
        weights,
        weights + depth * 2 * d,
        weights + depth * 2 * d + biases,
        weights + depth * 2 * d + biases + positions * d,
        weights + biases + positions * d + norms,
        weights + voc * d,
        weights + positions * d + norms,
        weights + positions * d,
    ]
    assert WORKED["gpt3_parts"] == {
        "embedding": voc * d,
        "per_layer_ABC": 3 * d * d,
        "per_layer_Wo": d * d,
        "per_layer_W1W2": 2 * d * d_ff,
        "per_layer": 4 * d * d + 2 * d * d_ff,
        "all_layers": depth * (4 * d * d + 2 * d * d_ff),
        "positions": positions * d,
        "biases_all": biases,
        "LN_one_per_block": depth * 2 * d,
        "LN_openai": norms,
    }


# Meanings against complex-step derivatives

STEP = 1e-30  # a complex step has no cancellation, so that it may be as small as it likes


def derivative(function: Callable[[Array], Array], at: Array) -> Array:
    result = np.empty_like(at)
    for index in np.ndindex(at.shape):
        moved = at.astype(complex)
        moved[index] += STEP * 1j
        result[index] = function(moved).imag / STEP
    return result


def assert_gradients(loss: Callable[..., Array], inputs: dict, gradients: dict) -> None:
    """Every input's gradient, where an input is a matrix or one matrix for each head."""
    assert gradients
    for name, gradient in gradients.items():
        if isinstance(gradient, list):
            for i, of_head in enumerate(gradient):

                def moved_head(matrix: Array, name: str = name, i: int = i) -> Array:
                    heads = [matrix if j == i else head for j, head in enumerate(inputs[name])]
                    return loss(**inputs | {name: heads})

                np.testing.assert_allclose(of_head, derivative(moved_head, inputs[name][i]), rtol=1e-11, atol=1e-13)
        else:
            expected = derivative(lambda matrix, name=name: loss(**inputs | {name: matrix}), inputs[name])
            np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-13)


ROWS = [(3, 5), (5, 3), (4, 4), (1, 4)]


@pytest.fixture
def draw() -> Callable[..., Array]:
    return np.random.default_rng(7).normal


def attention_inputs(draw: Callable[..., Array], M: int, N: int, h: int = 2, d_k: int = 3) -> dict:
    d = h * d_k
    weights = {name: [draw(size=(d, d_k)) for _ in range(h)] for name in ("w_q", "w_k", "w_v")}
    x = {"x_q": draw(size=(M, d)), "x_k": draw(size=(N, d)), "x_v": draw(size=(N, d))}
    return x | weights | {"w_o": draw(size=(d, d))}


@pytest.mark.parametrize(("M", "N"), ROWS)
def test_attention_backward(draw: Callable[..., Array], M: int, N: int) -> None:
    inputs = attention_inputs(draw, M, N)
    out, backward = e.attention(**inputs)
    df = draw(size=out.shape)
    gradients = backward(df)
    assert set(gradients) == set(inputs)
    assert_gradients(lambda **at: (e.attention(**at)[0] * df).sum(), inputs, gradients)


def test_self_attention_adds_three_gradients_and_cross_attention_two(draw: Callable[..., Array]) -> None:
    weights = {name: value for name, value in attention_inputs(draw, 4, 4).items() if name.startswith("w")}
    x, x_enc = draw(size=(4, 6)), draw(size=(5, 6))
    df = draw(size=(4, 6))
    gradients = e.attention(x, x, x, **weights)[1](df)
    expected = derivative(lambda at: (e.attention(at, at, at, **weights)[0] * df).sum(), x)
    np.testing.assert_allclose(gradients["x_q"] + gradients["x_k"] + gradients["x_v"], expected, rtol=1e-11)
    cross = e.attention(x, x_enc, x_enc, **weights)[1](df)
    expected = derivative(lambda at: (e.attention(x, at, at, **weights)[0] * df).sum(), x_enc)
    np.testing.assert_allclose(cross["x_k"] + cross["x_v"], expected, rtol=1e-11)


@pytest.mark.parametrize(("M", "N"), ROWS)
def test_softmax_jacobian(draw: Callable[..., Array], M: int, N: int) -> None:
    scores, upstream = draw(size=(M, N)), draw(size=(M, N))
    s = e.softmax(scores)
    jacobian = e.equation_28(s)
    assert jacobian.shape == (M, N, N)  # M slices of N x N: the slice product is M*N*N, erratum E2
    gradient = e.slice_product(upstream, jacobian)
    np.testing.assert_allclose(gradient, derivative(lambda at: (e.softmax(at) * upstream).sum(), scores), atol=1e-14)
    vector_form = s * upstream - (s * upstream).sum(axis=1, keepdims=True) * s
    np.testing.assert_allclose(gradient, vector_form, atol=1e-14)


def test_slice_product_by_its_definition(draw: Callable[..., Array]) -> None:
    left, right = draw(size=(3, 4)), draw(size=(3, 4, 5))
    np.testing.assert_allclose(e.slice_product(left, right), np.einsum("nm,nmk->nk", left, right))


def test_embedding(draw: Callable[..., Array]) -> None:
    tokens = np.array([2, 0, 2])
    w_emb, p = draw(size=(4, 5)), draw(size=(7, 5))
    x = e.positions(e.embedding(np.eye(4)[tokens], w_emb), p)
    np.testing.assert_array_equal(x, w_emb[tokens] + p[:3])


@pytest.mark.parametrize("M", [1, 4])
def test_feed_forward_backward(draw: Callable[..., Array], M: int) -> None:
    d, d_ff = 3, 5
    inputs = {"x": (M, d), "w_1": (d, d_ff), "b_1": (d_ff,), "w_2": (d_ff, d), "b_2": (d,)}
    inputs = {name: draw(size=shape) for name, shape in inputs.items()}
    dy = draw(size=(M, d))
    gradients = e.equation_38_backward(inputs["x"], inputs["w_1"], inputs["b_1"], inputs["w_2"], dy)
    assert set(gradients) == set(inputs)
    assert_gradients(lambda **at: (e.equation_38(**at) * dy).sum(), inputs, gradients)


def test_gelu_derivative() -> None:
    u = np.linspace(-6, 6, 101)
    np.testing.assert_allclose(e.gelu_derivative(u), derivative(lambda at: e.gelu(at).sum(), u), atol=1e-14)


@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("M", [1, 3])
def test_add_norm_backward(draw: Callable[..., Array], M: int, epsilon: float) -> None:
    d = 4
    inputs = {"x": draw(size=(M, d)), "sublayer": draw(size=(M, d)), "gamma": draw(size=d), "beta": draw(size=d)}
    upstream = draw(size=(M, d))
    both = inputs["x"] + inputs["sublayer"]
    dz = e.equation_43(upstream, inputs["gamma"])
    jacobian = e.normalisation_jacobian(both, epsilon)
    dx = e.equation_44(dz, jacobian)
    gradients = {
        "x": dx,
        "sublayer": dx,
        "gamma": e.equation_41(upstream, e.normalised(both, epsilon)),
        "beta": e.equation_42(upstream),
    }
    assert_gradients(lambda **at: (e.equation_39_40(**at, epsilon=epsilon) * upstream).sum(), inputs, gradients)
    # Erratum E8: the same without a Jacobian.
    z = e.normalised(both, epsilon)
    _, sigma = e.deviation(both, epsilon)
    vector_form = (dz - dz.mean(axis=1, keepdims=True) - z * (dz * z).mean(axis=1, keepdims=True)) / sigma
    np.testing.assert_allclose(dx, vector_form, rtol=1e-10, atol=1e-13)


def test_skip_adds_what_goes_around_the_sublayer(draw: Callable[..., Array]) -> None:
    x, w, gamma, beta = draw(size=(3, 4)), draw(size=(4, 4)), draw(size=4), draw(size=4)
    upstream = draw(size=(3, 4))
    dz = e.equation_43(upstream, gamma)
    dx = e.equation_44(dz, e.normalisation_jacobian(x + x @ w, 0.01))
    expected = derivative(lambda at: (e.equation_39_40(at, at @ w, gamma, beta, 0.01) * upstream).sum(), x)
    np.testing.assert_allclose(e.skip(dx @ w.T, dx), expected, rtol=1e-11)


def test_epsilon_in_one_pass_alone_is_wrong(draw: Callable[..., Array]) -> None:
    x, upstream = 0.01 * draw(size=(3, 4)), draw(size=(3, 4))
    expected = derivative(lambda at: (e.normalised(at, 1e-5) * upstream).sum(), x)
    literal = e.equation_44(upstream, e.normalisation_jacobian(x, 0.0))  # erratum E7
    assert np.abs(literal - expected).max() > 0.01 * np.abs(expected).max()


def test_head_backward(draw: Callable[..., Array]) -> None:
    inputs = {"x": draw(size=(3, 4)), "w_s": draw(size=(4, 6))}
    target = np.eye(6)[[5, 0, 2]]
    dz = e.output_error(e.equation_45(**inputs), target)
    logits = inputs["x"] @ inputs["w_s"]
    expected = derivative(lambda at: e.cross_entropy(e.softmax(at), target), logits)
    np.testing.assert_allclose(dz, expected, atol=1e-14)  # erratum E1: s - target, not target - s
    gradients = {"x": e.equation_46(dz, inputs["w_s"]), "w_s": e.equation_47(inputs["x"], dz)}
    assert_gradients(lambda **at: e.cross_entropy(e.equation_45(**at), target), inputs, gradients)


def test_error_projection(draw: Callable[..., Array]) -> None:
    M, N, voc = 3, 5, 4
    tokens, error = np.eye(voc)[[1, 3, 0, 0, 2]], draw(size=(M, voc))
    projected = e.equation_48(tokens, error)
    assert projected.shape == (N, voc)
    for n in range(N):
        scores = [tokens[n] @ error[m] / np.sqrt(voc) for m in range(M)]
        shares = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(projected[n], sum(shares[m] * error[m] for m in range(M)))


# Errata


BY_ID = {erratum.id: erratum for erratum in errata()}


def difference(erratum: Erratum, sizes: dict[str, int]) -> tuple[Fraction, Fraction]:
    return evaluate(erratum.maccs, sizes), evaluate(erratum.flops, sizes)


def test_errata_are_whole() -> None:
    assert len(BY_ID) == len(errata())
    of_paper = [f"E{number}" for number in range(1, 29)]
    of_others = [
        name + letter
        for name, letters in (("001", "abcde"), ("002", "abcdefghi"), ("004", "abcde"), ("005", "ab"), ("006", "a"))
        for letter in letters
    ]
    assert list(BY_ID) == of_paper + of_others
    assert all(row.printed and row.right and row.effect and row.document and row.where for row in errata())


def test_errata_name_layers_and_macro_operations_of_the_paper() -> None:
    for row in errata():
        assert (row.layer is None) == (row.macro_operation is None), row.id
        assert row.layer is None or (row.layer, row.macro_operation) in LAYERS, row.id


def test_only_two_errata_of_the_paper_are_mended() -> None:
    for row in (row for row in errata() if row.id < "005" or row.id.startswith("E")):
        right = "corrected" if row.id in ("E2", "E3") else "printed"
        assert row.books == {"paper": "printed", "paper-corrected": right}, row.id


@pytest.mark.parametrize("sizes", SIZES)
def test_errata_2_and_3_lead_from_the_printed_to_the_right_total(sizes: dict[str, int]) -> None:
    printed, right = e.cost_29(**sizes), e.right_cost_29(**sizes)
    assert difference(BY_ID["E2"], sizes) == (right.maccs - printed.maccs, right.flops - printed.flops)
    omitted = e.cost_28(**sizes)
    assert difference(BY_ID["E3"], sizes) == (omitted.maccs, omitted.flops)
    whole = CORRECTED["mha", "backward"](**sizes) + -1 * LAYERS["mha", "backward"](**sizes)
    e2, e3 = difference(BY_ID["E2"], sizes), difference(BY_ID["E3"], sizes)
    assert (e2[0] + e3[0], e2[1] + e3[1]) == (whole.maccs, whole.flops)


@pytest.mark.parametrize("name", ["E9", "E10", "E23", "E26"])
def test_errata_of_omission_are_the_uncounted_terms(name: str) -> None:
    erratum = BY_ID[name]
    (row,) = [
        row
        for row in PAPER
        if row["variant"] == "uncounted"
        and (row["layer"], row["macro_operation"]) == (erratum.layer, erratum.macro_operation)
    ]
    assert row["quantity"] == "FLOPs"
    for sizes in SIZES:
        assert difference(erratum, sizes) == (0, evaluate(row["expression"], sizes))


def test_no_other_erratum_changes_a_total() -> None:
    changing = {row.id for row in errata() if (row.maccs, row.flops) != ("0", "0")}
    assert changing == {"E2", "E3", "E9", "E10", "E23", "E26"}
