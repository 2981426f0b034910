"""Verification of learning procedures on a model: what it compares, and that it finds errors."""

from dataclasses import replace

import pytest

import learncost as lc
from learncost.models.model import build
from learncost.models.small import small
from learncost.procedures.procedure import LEARNING
from learncost.verification import known as proof
from learncost.verification.known_given import exact

KNOWN = {
    "fa": "fa with bp, bit for bit",
    "kolen-pollack": "the difference of both weights after a step with 0.99 of it",
    "local-groups": "gradients of one block with bp's",
    "local": "gradients of one block with bp's",
    "skip": "gradients of one block with bp's",
    "skip-out": "gradients with bp's of the table with stop_gradient there",
    "galore": "new weights and states with bp's, where its directions are the axes",
    "dfa": "gradients with bp's where the matrices are exact",
    "forward-gradient": "its slope with <bp's gradient, direction>",
    "dfa-linear": "gradients with bp's where the matrices are exact",
    "forward-gradient-activities": "its slopes with <bp's gradients, directions> of what linear layers make",
    "reversible": "gradients with bp's of the model of two streams",
    "badam": "its gradients with bp's, and no others",
    "mezo": "its error with four times that of half the distance",
}


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("procedure", KNOWN)
def test_what_is_known_of_a_procedure_is_proved(procedure):
    report = lc.verify(build(small("gpt2")), procedure)
    assert report.passed
    assert KNOWN[procedure] in {check.compared for check in report.checks}
    assert all(check.passed for check in report.checks)


def test_the_proof_sees_what_is_wrong():
    model, fixed = build(small("gpt2")), LEARNING["fa"].schedule
    wrong = {
        "kolen-pollack": proof._comes_nearer(model, replace(LEARNING["kolen-pollack"], schedule=fixed), ""),
        "skip-out": proof._one_block(model, LEARNING["skip-out"], ""),
        "skip-blocks": proof._slope(model, LEARNING["skip-blocks"], ""),
    }
    for checks in wrong.values():
        assert [check.passed for check in checks] == [False]
    stopped = ("forward", "backward, stopped at branch-inputs, given error at blocks, update")
    assert next(exact(model, replace(LEARNING["dfa"], schedule=stopped), "")).passed is False


@pytest.mark.parametrize(
    ("family", "procedure", "by_matrices"),
    [("vit", "dfa", None), ("vit", "dfa-linear", None), ("rwkv", "dfa-linear", True), ("bart", "dfa", True)],
)
def test_direct_feedback_is_backpropagation_where_what_is_given_is_exact(family, procedure, by_matrices):
    # The error of a vision transformer's class stands at no patch: one matrix serves a class token and all patches.
    given, matrices = exact(build(small(family)), LEARNING[procedure], "")
    assert given.compared == "gradients with bp's where what is given is exact"
    assert (given.passed, matrices.passed) == (True, by_matrices)


def test_an_encoder_and_a_decoder_of_one_block_each_have_nothing_between():
    assert [check.passed for check in proof._one_block(build(small("t5")), LEARNING["skip"], "")] == [True]
    assert [check.passed for check in proof._one_block(build(small("gemma2")), LEARNING["skip"], "")] == [None]


def test_a_file_is_proved_too_and_a_layer_has_no_procedure():
    report = lc.verify(build(small("llama")), "examples/procedures/skip-and-align.toml")
    assert "gradients of one block with bp's" in {check.compared for check in report.checks}
    assert report.passed
    with pytest.raises(lc.InputError, match="procedure requires a model"):
        lc.verify("attention", "mezo")
