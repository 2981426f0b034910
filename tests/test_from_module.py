"""Live modules of transformers: their class and config give the configuration, their parameters hold it to account."""

import pytest

import learncost as lc

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

LLAMA = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 40}
LLAMA |= {"num_hidden_layers": 3, "vocab_size": 50}


def tiny(kind="LlamaForCausalLM", **keys):
    return getattr(transformers, kind)(transformers.LlamaConfig(**LLAMA, **keys))


def test_a_module_is_priced_as_its_config_is():
    module = tiny(tie_word_embeddings=True)
    found = lc.from_module(module)
    assert (found.name, found.architecture, found.tied) == ("LlamaForCausalLM", "LlamaForCausalLM", True)
    cost = lc.cost(found, seq_len=7)
    assert cost.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert cost.source == "a live module"
    assert cost.total == lc.cost({"model_type": "llama", **LLAMA, "tie_word_embeddings": True}, seq_len=7).total


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "GPT2Model", "BertModel", "BertForMaskedLM", "DistilBertModel"])
def test_the_class_is_the_architecture(kind):
    config = getattr(transformers, f"{kind.partition('L')[0].partition('For')[0].removesuffix('Model')}Config")()
    with torch.device("meta"):
        module = getattr(transformers, kind)(config)
    found = lc.from_module(module)
    assert found.architecture == kind
    assert lc.cost(found).parameters == sum(parameter.numel() for parameter in module.parameters())


class Wrapped(torch.nn.Module):
    """Somebody's own module around a known one."""

    def __init__(self):
        super().__init__()
        self.body = tiny("LlamaModel")
        self.top = torch.nn.Linear(24, 2)


def changed():
    module = tiny()
    module.model.layers[1].mlp.up_proj = torch.nn.Linear(24, 41, bias=False)
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 3, "a torch.nn.Module is needed, not 3"),
        (lambda: torch.nn.Linear(2, 2), "Linear has no config of transformers, so its structure is not known$"),
        (Wrapped, "Wrapped has no config of transformers.*; inside it body is a LlamaModel: give that"),
        (
            lambda: transformers.RwkvModel(
                transformers.RwkvConfig(hidden_size=8, num_hidden_layers=2, vocab_size=9, attention_hidden_size=8)
            ),
            "RwkvModel is of the model type 'rwkv', which is unknown",
        ),
        (
            lambda: transformers.GPT2DoubleHeadsModel(
                transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=9)
            ),
            r"GPT2DoubleHeadsModel is not a class that is known for gpt2 \(.*inside it transformer is a GPT2Model",
        ),
        # one more row of 24 weights
        (changed, r"LlamaForCausalLM has [\d,]+ parameters, and its config describes [\d,]+ \(\+24\): it was changed"),
    ],
)
def test_what_is_not_known_is_said(make, message):
    with pytest.raises(lc.InputError, match=message) as info:
        lc.from_module(make())
    assert "\n" not in str(info.value)


def test_the_example_of_the_reference():
    from test_reference import run_example

    run_example("from_module")
