"""Live modules of transformers: their class and config give the configuration, their parameters hold it to account."""

import pytest

import learncost as lc

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

LLAMA = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 40}
LLAMA |= {"num_hidden_layers": 3, "vocab_size": 50}


def tiny(kind="LlamaForCausalLM", **keys):
    return getattr(transformers, kind)(transformers.LlamaConfig(**LLAMA, **keys))


def test_a_module_is_priced_as_its_config_is():
    module = tiny(tie_word_embeddings=True)
    configuration = lc.from_module(module)
    assert (configuration.name, configuration.architecture, configuration.tied) == (
        "LlamaForCausalLM",
        "LlamaForCausalLM",
        True,
    )
    cost = lc.cost(configuration, seq_len=7)
    assert cost.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert cost.source == "a live module"
    assert cost.total == lc.cost({"model_type": "llama", **LLAMA, "tie_word_embeddings": True}, seq_len=7).total


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "GPT2Model", "BertModel", "BertForMaskedLM", "DistilBertModel"])
def test_the_class_is_the_architecture(kind):
    config = getattr(transformers, f"{kind.partition('L')[0].partition('For')[0].removesuffix('Model')}Config")()
    with torch.device("meta"):
        module = getattr(transformers, kind)(config)
    configuration = lc.from_module(module)
    assert configuration.architecture == kind
    assert lc.cost(configuration).parameters == sum(parameter.numel() for parameter in module.parameters())


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
        (lambda: 3, "expected a torch.nn.Module, not 3"),
        (lambda: torch.nn.Linear(2, 2), "Linear has no config of transformers, so its structure is unknown: pass"),
        (Wrapped, "Wrapped has no config of transformers.*; inside it body is a LlamaModel: give that"),
        (
            lambda: transformers.FNetModel(transformers.FNetConfig(hidden_size=8, num_hidden_layers=1, vocab_size=9)),
            "FNetModel has the unknown model type 'fnet'",
        ),
        (
            lambda: transformers.GPT2DoubleHeadsModel(
                transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=9)
            ),
            r"GPT2DoubleHeadsModel is not a known class of gpt2 \(.*inside it transformer is a GPT2Model",
        ),
        # one more row of 24 weights
        (changed, r"LlamaForCausalLM has [\d,]+ parameters, and its config describes [\d,]+ \(\+24\): it was changed"),
    ],
)
def test_what_is_not_known_is_said(make, message):
    with pytest.raises(lc.InputError, match=message) as info:
        lc.from_module(make())
    assert "\n" not in str(info.value)


# What learns is what requires_grad says. FLOPs are those of FlopCounterMode on meta, where backward stops by itself.

SMALL = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 4, "num_attention_heads": 3, "pad_token_id": None}
SMALL |= {"intermediate_size": 20, "max_position_embeddings": 16, "bos_token_id": None, "eos_token_id": None}
KINDS = {
    "gpt2": ("GPT2LMHeadModel", {}),
    "llama": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "gemma2": ("Gemma2ForCausalLM", {"num_key_value_heads": 3, "head_dim": 4}),
    "bert": ("BertForMaskedLM", {}),
    "phi3": ("Phi3ForCausalLM", {"num_key_value_heads": 3}),
}


def module_on_meta(family):
    kind, more = KINDS[family]
    keys = {**SMALL, **more}
    if family == "gpt2":
        keys["n_inner"] = keys.pop("intermediate_size")
    config = transformers.AutoConfig.for_model(family, **keys)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return getattr(transformers, kind)(config)


def held_against_torch(module):
    tokens = torch.zeros(2, 5, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        loss = module(input_ids=tokens, labels=tokens).loss
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    ledger = lc.cost(lc.from_module(module), price_book="matmul", batch_size=2, seq_len=5)
    assert ledger.macro_operations["forward"][1].flops == forward
    assert ledger.total.flops == forward + counter.get_total_flops()
    assert ledger.trained_parameters == sum(p.numel() for p in module.parameters() if p.requires_grad)
    return ledger


def frozen(module, chosen):
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(chosen(name))
    return module


def of_blocks(*numbers):
    return lambda name: any(f".{number}." in name for number in numbers)


PATTERNS = {
    "embeddings frozen": lambda name: "embed" not in name and ".wte" not in name and ".wpe" not in name,
    "first two blocks frozen": lambda name: of_blocks(2, 3)(name) or ("norm" in name and not of_blocks(0, 1)(name)),
    "first and third block": of_blocks(0, 2),
    "biases": lambda name: name.endswith("bias"),
    "gains and shifts": lambda name: "norm" in name.lower() or ".ln_" in name,
    "one projection of one block": lambda name: ".1." in name and ("mlp.c_fc.weight" in name or "down_proj" in name
                                                                   or "intermediate.dense.weight" in name),
}  # fmt: skip


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("family", KINDS)
def test_frozen_parameters_do_not_learn(family, pattern):
    module = frozen(module_on_meta(family), PATTERNS[pattern])
    if any(parameter.requires_grad for parameter in module.parameters()):
        comparison = held_against_torch(module)
        assert comparison.trained_parameters < comparison.parameters


class Path(torch.nn.Module):
    """A projection as peft wraps it: the names of its parts, which is what can be read off."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        wide, narrow = base.weight.shape if isinstance(base, torch.nn.Linear) else base.weight.shape[::-1]
        self.base_layer, self.scaling = base, {"default": alpha / rank}
        a, b = torch.nn.Linear(narrow, rank, bias=False), torch.nn.Linear(rank, wide, bias=False)
        self.lora_A, self.lora_B = torch.nn.ModuleDict({"default": a}), torch.nn.ModuleDict({"default": b})

    def forward(self, x):
        path = self.lora_B["default"](self.lora_A["default"](x))
        return self.base_layer(x) + path * self.scaling["default"]


class Magnitudes(Path):
    """DoRA: the columns of the adapted weight have magnitudes, and their norms no gradient."""

    def __init__(self, base, *given):
        super().__init__(base, *given)
        holder = torch.nn.Linear(1, 1, bias=False)
        holder.weight = torch.nn.Parameter(torch.empty(len(self.lora_B["default"].weight)))
        self.lora_magnitude_vector = torch.nn.ModuleDict({"default": holder})

    def forward(self, x):
        base, path = self.base_layer(x), self.lora_B["default"](self.lora_A["default"](x))
        change = self.lora_B["default"].weight @ self.lora_A["default"].weight * self.scaling["default"]
        norm = torch.linalg.norm(self.base_layer.weight + change, dim=1).detach()
        scale = self.lora_magnitude_vector["default"].weight / norm
        return base + (scale - 1) * base + scale * path * self.scaling["default"]


def with_paths(module, ends, blocks=None, rank=3, alpha=12, kind=Path):
    module.requires_grad_(False)
    for name, submodule in list(module.named_modules()):
        if name.endswith(ends) and (blocks is None or of_blocks(*blocks)(f".{name}.")):
            parent, _, last = name.rpartition(".")
            with torch.device("meta"):
                setattr(module.get_submodule(parent), last, kind(submodule, rank, alpha))
    return module


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("blocks", [(0, 1, 2, 3), (1, 2)])
@pytest.mark.parametrize(
    ("family", "ends"),
    [("gpt2", ("c_attn",)), ("llama", ("q_proj", "v_proj")), ("bert", ("self.query", "attention.output.dense")),
     ("phi3", ("qkv_proj", "gate_up_proj"))],
)  # fmt: skip
def test_a_model_adapted_by_peft_is_counted_as_it_is(family, ends, blocks):
    comparison = held_against_torch(with_paths(module_on_meta(family), ends, blocks))
    assert "LoRA of rank 3 and alpha 12 on" in comparison.trained


def test_a_live_module_with_dora():
    comparison = held_against_torch(with_paths(module_on_meta("llama"), ("q_proj", "down_proj"), kind=Magnitudes))
    assert "DoRA of rank 3 and alpha 12 on" in comparison.trained


def test_paths_beside_what_learns():
    module = with_paths(module_on_meta("gpt2"), ("c_attn",))
    held_against_torch(frozen(module, lambda name: "lora_" in name or name.endswith("ln_f.weight")))


# Where a parameter is called otherwise than most: shared by T5's blocks, without "weight", inside of a head, beside
# experts. What learns must be as many as there, by the name that chooses them and with paths of low rank.
ODD = {"num_hidden_layers": 2, "num_layers": 2, "num_decoder_layers": 2, "hidden_size": 12, "num_attention_heads": 3}
ODD |= {"vocab_size": 31, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
SIDES = {**ODD, "d_kv": 4, "d_ff": 20}
MASKED = {**ODD, "intermediate_size": 20, "max_position_embeddings": 16}
EXPERTS = {**ODD, "num_key_value_heads": 3, "num_experts": 4, "intermediate_size": 20}
EXPERTS |= {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 4}


@pytest.mark.parametrize(
    ("kind", "keys", "chosen", "ends"),
    [
        ("T5ForConditionalGeneration", SIDES, lambda name: "decoder" not in name, ()),
        ("T5ForConditionalGeneration", SIDES, lambda name: name.endswith("relative_attention_bias.weight"), ()),
        ("ViTForImageClassification", {**MASKED, "image_size": 32}, lambda name: "classifier" not in name, ()),
        ("DebertaForMaskedLM", MASKED | {"pos_att_type": ["p2c", "c2p"], "relative_attention": True},
         lambda name: name.endswith("bias"), ()),
        ("Qwen2MoeForCausalLM", EXPERTS, lambda name: ".experts." in name, ()),
        ("Qwen2MoeForCausalLM", EXPERTS, None, ("shared_expert.down_proj",)),
        ("RobertaForMaskedLM", MASKED, None, ("dense",)),
        ("RobertaForSequenceClassification", MASKED, None, ("classifier.dense",)),
        ("ElectraForMaskedLM", {**MASKED, "embedding_size": 8}, None, ("dense",)),
    ],
)  # fmt: skip
def test_odd_names_of_parameters_learn_too(kind, keys, chosen, ends):
    config = getattr(transformers, kind).config_class(**keys)
    with torch.device("meta"):
        module = getattr(transformers, kind)(config)
    module = frozen(module, chosen) if chosen else with_paths(module, ends)
    ledger = lc.cost(lc.from_module(module), **({} if "ViT" in kind else {"seq_len": 5}))
    assert ledger.trained_parameters == sum(p.numel() for p in module.parameters() if p.requires_grad) > 0
    assert ledger.parameters == sum(p.numel() for p in module.parameters())


def test_what_does_not_follow_a_part_that_learns_says_so():
    adapted = lc.from_module(with_paths(module_on_meta("llama"), ("q_proj",)))
    part = lc.from_module(frozen(module_on_meta("llama"), of_blocks(3)))
    configuration = lc.from_module(module_on_meta("llama"))
    for model in (adapted, part):
        for ask in (lc.rules, lc.Training, lc.emit):
            with pytest.raises(lc.InputError, match=r"partly frozen or adapted|only to fully trainable models"):
                ask(model)
        with pytest.raises(lc.InputError, match="the live module fixes the trainable parameters"):
            lc.cost(model, train="head")
    assert lc.cost(part, "decode", context=5).total == lc.cost(configuration, "decode", context=5).total
    with pytest.raises(lc.InputError, match="partly frozen or adapted"):
        lc.cost(adapted, "decode", context=5)


def test_paths_that_are_not_alike_name_the_nearest_call():
    module = with_paths(with_paths(module_on_meta("llama"), ("q_proj",), (0, 1)), ("v_proj",), (2,), rank=2)
    with pytest.raises(
        lc.InputError, match=r"different ranks.*nearest call is lc.cost\(.*lora='q_proj,v_proj', lora_rank"
    ):
        lc.from_module(module)


def test_the_example_of_the_reference():
    from test_reference import run_example

    run_example("from_module")
