"""Models of transformers that are read from their exported graphs, against the tables that are typed for them."""

import importlib

import pytest
import torch
import transformers
from module_parity import parity, read_module
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from learncost.engines.hugging_face import config as hugging_face
from learncost.models.families import FAMILIES
from learncost.models.sizes import CANONICAL
from learncost.models.small import small

GENERIC = {"decoder", "encoder", "encoder-decoder", "gpt3-jiang", "palm"}
"""Families that are no class of transformers."""

PADDED = {"bart", "mt5", "roberta", "t5", "whisper", "xlm-roberta"}
EVALUATED = {"gemma3n_text"}
"""Families whose classes clip weights in place in training, unseen by autograd, which no export keeps."""

BATCH, LENGTH = 2, 7


def spelled(family, keys):
    """The keys as the family's class of transformers spells them."""
    base = transformers.AutoConfig.for_model(family)
    spellings = {**CANONICAL, **FAMILIES[family].spellings}
    names = base.to_dict()
    result = {}
    for key, value in keys.items():
        others = [spelling for spelling, name in spellings.items() if name == key and spelling in names]
        if not (hasattr(type(base), key) and isinstance(getattr(type(base), key), property)):
            result[others[0] if others else key] = value
    return result


def module_of(family):
    configuration = small(family)
    keys = hugging_face(configuration, 0.0, None)
    for key in ("model_type", "architectures", "torch_dtype", "activation"):
        keys.pop(key, None)
    keys = {
        key: value for key, value in spelled(family, keys).items() if value not in ([], (), None, 0.0) or value is False
    }
    for key, value in keys.items():
        if "intermediate" in key or key == "query_pre_attn_scalar":  # PyTorch's products of groups want fours
            keys[key] = -(-int(value) // 4) * 4
    if family == "deepseek_v3":
        keys |= {"num_key_value_heads": keys["num_attention_heads"], "first_k_dense_replace": 1}
    if family == "llama4_text":  # every expert computes every token there, most of them zeros: here all are chosen
        keys["num_experts_per_tok"] = keys["num_local_experts"]
    if family == "mamba2":  # no padding
        keys["chunk_size"] = LENGTH
    if family == "qwen2_5_vl_text":  # the angles of a head of eight, along three axes
        keys["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1]}
    if family == "gpt_neo":
        keys = {**keys, "attention_types": [[["global"], keys["num_layers"]]]}
        keys.pop("attention_layers", None)
    config = transformers.AutoConfig.for_model(family, **keys)
    if family in PADDED:
        config.pad_token_id = config.decoder_start_token_id = 0
    else:
        config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    config._attn_implementation, config.use_cache = "eager", False
    for name, value in vars(config).items():
        if isinstance(value, float) and ("drop" in name):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    name = configuration.architecture
    if "ForConditionalGeneration" in name and family.endswith("_text"):  # its config is that of text and images
        name = name.replace("ForConditionalGeneration", "TextModel")
    return getattr(modeling(family), name)(config).train(family not in EVALUATED), configuration


def modeling(family):
    """The module of transformers with a family's classes, some of which the package itself does not name."""
    return importlib.import_module(
        type(transformers.AutoConfig.for_model(family)).__module__.replace("configuration", "modeling")
    )


def inputs_of(module, configuration):
    """Example inputs of a class, and the sizes of the typed model for them."""
    config, kind = module.config, configuration.architecture

    def tokens(*shape):
        return torch.randint(1, config.vocab_size, shape)

    if "pixel" in module.main_input_name:
        side = config.image_size
        return {
            "pixel_values": torch.randn(BATCH, 3, side, side),
            "labels": torch.randint(0, config.num_labels, (BATCH,)),
        }, {}
    if "features" in module.main_input_name:
        frames = torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": frames, "labels": tokens(BATCH, LENGTH)}, {"target_len": LENGTH}
    sizes = {"seq_len": LENGTH, **({"target_len": LENGTH} if configuration.two_sided else {})}
    if type(module).__name__.endswith("TextModel"):
        return {"input_ids": tokens(BATCH, LENGTH)}, sizes
    labels = torch.randint(0, config.num_labels, (BATCH,)) if "Classif" in kind else tokens(BATCH, LENGTH)
    return {"input_ids": tokens(BATCH, LENGTH), "labels": labels}, sizes


def of_chunks(config):
    """FLOPs of what Mamba-2 computes in chunks beside its projections, in place of the recurrence that the table has.

    Dao & Gu 2024, Transformers are SSMs, section 6: within chunks, to their states, between these, and from them.
    """
    long, chunks = config.chunk_size, -(-LENGTH // config.chunk_size)
    within = chunks * long**2 * (config.state_size + config.head_dim)
    states = (2 * chunks * long + (chunks + 1) ** 2) * config.state_size * config.head_dim
    return 2 * BATCH * config.num_hidden_layers * config.num_heads * (within + states)


def of_states(config):
    """FLOPs of what Mamba reads its states with: a product for each position, one column for each sequence.

    transformers runs it as bmm, whose FLOPs FlopCounterMode counts; in the typed table it is no product of matrices.
    """
    return 2 * BATCH * LENGTH * config.num_hidden_layers * config.intermediate_size * config.state_size


COUNTED_OTHERWISE = {"mamba": of_states, "mamba2": of_chunks}
"""Forward FLOPs of products that a family's code runs and its table has not, although the values are the same."""

QUICK = ("bert", "deepseek_v2", "t5")


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in QUICK else pytest.mark.slow)
        for family in sorted(FAMILIES.keys() - GENERIC)
    ],
)
def test_a_typed_family_is_its_import(family):
    """Matrix products of forward, backward and update, parameters, values and gradients."""
    module, configuration = module_of(family)
    inputs, sizes = inputs_of(module, configuration)
    imported = read_module(module, inputs)
    found = parity(module, inputs, imported)
    assert max(found.value, found.gradient) < 1e-10
    typed = lc.cost(lc.from_module(module), batch_size=BATCH, price_book="matmul", **sizes)
    read = lc.cost(lc.layer(imported.text), price_book="matmul")
    assert read.parameters == typed.parameters
    beside = COUNTED_OTHERWISE[family](module.config) if family in COUNTED_OTHERWISE else 0
    more = {"forward": beside, "backward": 2 * beside}
    for phase, amounts in typed.macro_operations.items():
        assert read.macro_operations[phase][1].flops == amounts[1].flops + more.get(phase, 0), phase


@pytest.mark.slow
def test_gemma_3_with_images_is_read():
    """The tower, the projector that pools its patches, and text whose images see themselves whole."""
    text = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40, "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
    image = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
             "image_size": 8, "patch_size": 2}  # fmt: skip
    places = {"mm_tokens_per_image": 4, "image_token_index": 39, "attn_implementation": "eager"}
    module = transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(text_config=text, vision_config=image, **places)
    ).train()
    tokens = torch.randint(1, 30, (BATCH, 9))
    tokens[:, 1:5] = 39
    inputs = {
        "input_ids": tokens,
        "pixel_values": torch.randn(BATCH, 3, 8, 8),
        "token_type_ids": (tokens == 39).long(),
        "labels": tokens,
    }
    imported = read_module(module, inputs)
    found = parity(module, inputs, imported)
    assert max(found.value, found.gradient) < 1e-10
    with FlopCounterMode(display=False) as counter:
        module(**inputs).loss.backward()
    layer = lc.layer(imported.text)
    total = lc.cost(layer, price_book="matmul").total.flops + layer.unused.at({})  # nothing reads the tower's own head
    assert total == counter.get_total_flops()
