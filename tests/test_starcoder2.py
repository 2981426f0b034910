"""StarCoder 2 against transformers' own model: published sizes, parameters, matrix products, loss and gradients."""

import numpy as np
import pytest

import learncost as lc
from decoder_places import apart, network, norm, output, places_of
from foreign_models import in_float64, numpy_of, shaken
from hugging_face import check_flops, check_parameters, module_of, read
from learncost.engines.computed_inputs import computed_inputs
from learncost.models.model import build, run_sizes

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
__all__ = ["in_float64"]

BATCH, LENGTH = 2, 6
TINY = {
    "model_type": "starcoder2", "vocab_size": 13, "hidden_size": 24, "intermediate_size": 7, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 16, "norm_epsilon": 1e-3,
}  # fmt: skip
MODELS = [{}, {"sliding_window": 3}, {"use_bias": False, "tie_word_embeddings": False, "hidden_act": "relu"}]


def test_the_defaults_are_starcoder2_3b():
    """3,030,371,328 parameters: huggingface.co/bigcode/starcoder2-3b, of whose config.json these are the sizes."""
    assert lc.cost(read({"model_type": "starcoder2"}), seq_len=8).parameters == 3_030_371_328


@pytest.mark.parametrize("keys", MODELS)
def test_parameters_products_loss_and_every_gradient(keys):
    values = TINY | keys
    for architecture in ("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification"):
        check_parameters(values, f"Starcoder2{architecture}")
    numbers = torch.zeros((BATCH, LENGTH), dtype=torch.long)
    arguments = {"input_ids": numbers, "labels": numbers}, lambda result: result.loss
    assert check_flops(values, "Starcoder2ForCausalLM", *arguments, BATCH, LENGTH, device="cpu") == 0

    model = build(read(values))
    module = shaken(module_of(values, "Starcoder2ForCausalLM", "cpu"))
    tokens = np.random.default_rng(3).integers(1, values["vocab_size"], (BATCH, LENGTH))
    loss = module(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens)).loss
    loss.backward()
    theirs = dict(module.named_parameters())
    block = norm("ln_1", "input_layernorm") | norm("ln_2", "post_attention_layernorm")
    block |= apart(values, "self_attn.") | output(values, "self_attn.o_proj") | network("mlp.c_fc", "mlp.c_proj")
    places = places_of(values, model.table.weights, theirs, {"": range(2)}, block)
    assert {name for names, *_ in places.values() for name in names} == set(theirs)

    def stacked(arrays, view, repeated):
        views = [view(numpy_of(array)) for array in arrays]
        return np.stack(views) if repeated else views[0]

    share = np.full(tokens.shape, -1.0 / (BATCH * (LENGTH - 1)))
    share[:, -1] = 0
    arrays = {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "share": share, "dloss": np.array(1.0)}
    arrays |= computed_inputs(model.configuration, {"M": LENGTH})
    arrays |= {name: stacked([theirs[at] for at in names], *how) for name, (names, *how) in places.items()}
    windows = {"w": run_sizes(model, BATCH, LENGTH, None)["w"]} if "sliding_window" in keys else {}
    result = lc.run(model.table, {**arrays, **windows})
    np.testing.assert_allclose(result["loss"], loss.item(), rtol=1e-10)
    for name, (names, *how) in places.items():
        gradient = stacked([theirs[at].grad for at in names], *how)
        np.testing.assert_allclose(result[f"d{name}"], gradient, rtol=1e-9, atol=1e-9, err_msg=name)
