"""A config that holds a text model alone counts its causal language model, whose class transformers has."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from learncost.importer.configured import module_of

SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50,
    "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CLASSES = {
    "gemma4_text": "Gemma4ForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "mllama_text_model": "MllamaForCausalLM",
    "emu3_text_model": "Emu3ForCausalLM",
}


@pytest.mark.parametrize("kind", CLASSES)
def test_it_is_the_class_with_a_head(kind):
    with torch.device("meta"):
        module = module_of({"model_type": kind, **SMALL})
    assert type(module).__name__ == CLASSES[kind]


@pytest.mark.parametrize("architectures", [{}, {"architectures": None}])
def test_other_types_stay_bare(architectures):
    with torch.device("meta"):
        assert type(module_of({"model_type": "bert", **SMALL})).__name__ == "BertModel"
        found = module_of({"model_type": "clip_text_model", **SMALL, "num_key_value_heads": 2, **architectures})
    assert not type(found).__name__.endswith("ForCausalLM")


def test_a_text_config_inside_of_another_model_is_read_alike():
    """As `learncost cost config.json` takes it out of a model of several modalities, whose class it does not keep."""
    with torch.device("meta"):
        module = module_of({"model_type": "ministral", "architectures": None, **SMALL})
        named = module_of({"model_type": "ministral", "architectures": ["MinistralModel"], **SMALL})
    assert type(module).__name__ == "MinistralForCausalLM"
    assert type(named).__name__ == "MinistralModel"


def test_the_decoder_of_t5_begins_with_the_padding_token():
    """As decoder_start_token_id of its published files, which the class's default configuration does not have."""
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 50}
    module = module_of({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], **sizes})
    assert module._shift_right(torch.tensor([[3, 4, 1]])).tolist() == [[0, 3, 4]]


def test_its_head_is_there():
    """FlopCounterMode of transformers' own class: the head is 2 d v a token of it."""
    values = {"model_type": "gemma4_text", **SMALL, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
    tokens, counts = torch.zeros(2, 8, dtype=torch.long), []
    for architecture in ({}, {"architectures": ["Gemma4TextModel"]}):
        module = module_of({**values, **architecture})
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(input_ids=tokens, use_cache=False)
        counts.append(counter.get_total_flops())
    assert counts[0] - counts[1] == 2 * 32 * 50 * 16
