"""A module's own checkpoints: what FlopCounterMode counts of a step, recomputation included, and the same gradients."""

from functools import partial

import numpy as np
import pytest
import torch
from module_parity import read_module
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.interpreter import execute
from learncost.passes.lower import lower
from learncost.passes.rematerialization import checkpointed
from planned import given
from sampling import sampled

ADDMM = torch.ops.aten.addmm.default


class Blocks(nn.Module):
    """Four blocks of 16 to 64 to 16, called by a function."""

    def __init__(self, run, frozen=()):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4))
        self.run = run
        for path, each in self.named_parameters():
            each.requires_grad_(not path.startswith(frozen) if frozen else True)

    def forward(self, x):
        return self.run(self, x)


def each(**named):
    def run(module, x):
        for block in module.blocks:
            x = checkpoint(block, x, **named)
        return x

    return run


def nested(outer, inner):
    def run(module, x):
        def inside(x):
            for block in module.blocks:
                x = x + checkpoint(block, x, use_reentrant=inner)
            return torch.tanh(x)

        return checkpoint(inside, x, use_reentrant=outer)

    return run


def every_second(count=ADDMM):
    """Keeps every second product, as torchtitan does."""
    known = [0]

    def policy(_context, operation, *_, **__):
        known[0] += operation is count
        keeps = operation is count and known[0] % 2
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def whole(module, x):
    with set_checkpoint_early_stop(False):
        return each(use_reentrant=False)(module, x)


def first_two(module, x):
    return module.blocks[3](module.blocks[2](checkpoint(nn.Sequential(*module.blocks[:2]), x, use_reentrant=False)))


def once(function, reentrant=False):
    """One checkpoint around a function of the module and its input."""
    return lambda module, x: checkpoint(lambda y: function(module, y), x, use_reentrant=reentrant)


def linear(module, block, y):
    return module.blocks[block][0](y)


FORMS = {
    "without reentry": each(use_reentrant=False),
    "reentrant": each(use_reentrant=True),
    "nested": nested(False, False),
    "in segments": lambda m, x: checkpoint_sequential(m.blocks, 2, x, use_reentrant=False),
    "selective": each(use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, [ADDMM])),
    "nested in reentrant": nested(True, False),
    "reentrant in nested": nested(False, True),
    "reentrant nested": nested(True, True),
    "in reentrant segments": lambda m, x: checkpoint_sequential(m.blocks, 3, x, use_reentrant=True),
    "selective, every second": each(use_reentrant=False, context_fn=every_second),
    "to the end": whole,
    "two blocks of four": first_two,
    "two side by side": once(lambda m, y: linear(m, 0, y) * linear(m, 1, y)),
    "what nothing is kept of": once(lambda m, y: linear(m, 0, y) + linear(m, 1, y)),
    "a last product whose result is kept": once(lambda m, y: m.blocks[0](y).relu()),
    "a last product that is normalized": once(lambda m, y: functional.layer_norm(m.blocks[0](y), (16,))),
    "a last product that is hidden": once(lambda m, y: functional.dropout(m.blocks[0](y), 0.5)),
}


def counted(module, *inputs):
    """The FLOPs of a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        module(*inputs).sum().backward()
    return counter.get_total_flops()


def forward_of(module, *inputs):
    """The FLOPs of a forward pass."""
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    "form", [*list(FORMS)[:5], *(pytest.param(f, marks=pytest.mark.slow) for f in list(FORMS)[5:])]
)
@pytest.mark.parametrize("frozen", [(), pytest.param(("blocks.0", "blocks.2.2"), marks=pytest.mark.slow)])
def test_what_a_checkpoint_computes_again_is_counted(form, frozen):
    module, x = Blocks(FORMS[form], frozen), torch.randn(5, 16, requires_grad=True)
    model = lc.from_module(module, {"x": "float B 16 gradient"})
    for book in ("matmul", "torch-flop-counter"):
        cost = lc.cost(model, price_book=book, B=5)
        assert cost.total.flops == counted(module, x)
    assert cost.macro_operations["forward"][1].flops == forward_of(module, x)


def test_a_part_beside_what_is_read_is_said_and_not_counted():
    module = Blocks(once(lambda m, y: (m.blocks[0](y), m.blocks[1](y))[0]))
    model = lc.from_module(module, {"x": "float B 16 gradient"})
    cost = lc.cost(model, price_book="matmul", B=5)
    assert cost.total.flops + model.unused.at({"B": 5}) == counted(module, torch.randn(5, 16, requires_grad=True))
    assert "6144 B FLOPs are excluded" in " ".join(str(cost).split())
    alone = Blocks(once(lambda m, y: m.blocks[0](y)))
    last = 2 * 5 * 64 * 16  # which is run again before the part that nothing reads
    assert cost.total.flops == counted(alone, torch.randn(5, 16, requires_grad=True)) + last


def test_three_blocks_as_they_are_reported():
    module = Blocks(each(use_reentrant=False))
    module.blocks = module.blocks[:3]
    cost = lc.cost(lc.from_module(module, {"x": "float B 16"}), price_book="torch-flop-counter", B=5)
    assert cost.total.flops == counted(module, torch.randn(5, 16)) == 204_800
    assert cost.macro_operations["recomputation"][1].flops == 30_720


def test_a_reentrant_checkpoint_without_an_input_that_has_a_gradient_has_none():
    module = Blocks(lambda m, x: m.blocks[1](x) + checkpoint(m.blocks[0], x, use_reentrant=True))
    cost = lc.cost(lc.from_module(module, {"x": "float 5 16"}), price_book="matmul")
    assert cost.total.flops == counted(module, torch.randn(5, 16))
    assert module.blocks[0][0].weight.grad is None


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("form", sampled(FORMS, 5))
def test_the_gradients_are_those_of_a_step_without_checkpoints(form):
    text = read_module(Blocks(FORMS[form]), (torch.randn(5, 16, requires_grad=True),)).text
    layer = lc.layer(text)
    step = derive(layer).step
    again = checkpointed(step)
    assert again.lines != step.lines
    values = given(step, layer.sizes)
    found = {}
    for table in (step, again):
        arrays = dict(values)
        execute(lower(table), arrays, layer.sizes)
        found[table is again] = {name: arrays[name] for name in step.outputs}
    for name, array in found[False].items():
        np.testing.assert_array_equal(array, found[True][name])


class Layers(nn.Module):
    """Attention and a convolution under checkpoints, folded and with what stands between them."""

    def __init__(self, reentrant, count=3):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(8), "qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8)})
            for _ in range(count)
        )
        self.reentrant = reentrant

    def block(self, block, x):
        q, k, v = block["qkv"](block["norm"](x)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        return x + block["out"](scores @ v)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(self.block, block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_blocks_with_checkpoints_are_folded(reentrant):
    module, tokens = Layers(reentrant), torch.randint(11, (2, 6))
    model = lc.from_module(module, {"tokens": "int B M"})
    assert len(model.table.repeats) == 1
    cost = lc.cost(model, price_book="matmul", B=2, M=6)
    assert cost.total.flops == counted(module, tokens)
    with pytest.raises(lc.InputError, match=r"remove torch.utils.checkpoint from the module.*procedure=.recompute."):
        lc.cost(model, plan="flash", B=2, M=6)


def test_one_run_has_the_checkpoints_too():
    module = Blocks(nested(False, False))
    model = lc.from_module(module, {"x": "float 5 16"}, as_run=True)
    assert lc.cost(model, price_book="matmul").total.flops == counted(module, torch.randn(5, 16))


def test_a_table_says_what_runs_again():
    text = read_module(Blocks(each(use_reentrant=True)), (torch.randn(5, 16, requires_grad=True),), fold=False).text
    assert "linear again 1!!\n" in text
    with pytest.raises(lc.InputError, match="the operator there"):
        lc.layer("a(X) -> Y\n  Y[B d] = relu(X[B d]) @ . relu again one")


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_gradient_checkpointing_of_transformers_is_counted(name, reentrant):
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    dropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    kinds = {
        "gpt2": (
            transformers.GPT2LMHeadModel,
            transformers.GPT2Config(
                n_embd=16, n_layer=3, n_head=2, vocab_size=50, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
            ),
        ),
        "llama": (
            transformers.LlamaForCausalLM,
            transformers.LlamaConfig(**small, vocab_size=50, num_key_value_heads=1),
        ),
        "bert": (transformers.BertForMaskedLM, transformers.BertConfig(**small, **dropped, vocab_size=50)),
        "vit": (
            transformers.ViTForImageClassification,
            transformers.ViTConfig(**small, **dropped, image_size=16, patch_size=8),
        ),
    }
    kind, configuration = kinds[name]
    configuration.use_cache = False
    configuration._attn_implementation = "eager"
    inner = kind(configuration).train()
    inner.gradient_checkpointing_enable({"use_reentrant": reentrant})

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x).logits

    x, description = (
        (torch.randn(2, 3, 16, 16), "float B 3 16 16") if name == "vit" else (torch.randint(50, (2, 6)), "int B 6")
    )
    cost = lc.cost(lc.from_module(Logits(), {"x": description}), price_book="torch-flop-counter", B=2)
    assert cost.total.flops == counted(Logits(), x)


class Low(nn.Module):
    """A linear layer with a path of low rank beside it, as peft adds it."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * 2.0


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return self.narrow(torch.relu(self.wide(x)))


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("chosen", ["wide", "narrow", "wide,narrow"])
@pytest.mark.parametrize("fold", [True, False])
def test_paths_of_low_rank_run_again_with_the_line_that_they_adapt(chosen, fold):
    module = Blocks(each(use_reentrant=False))
    module.blocks = nn.ModuleList(Wide() for _ in range(4))
    model = lc.from_module(module, {"x": "float B 16"}, fold=fold)
    ours = lc.cost(model, B=5, price_book="matmul", lora=chosen)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for block in module.blocks:
        for name in chosen.split(","):
            setattr(block, name, Low(getattr(block, name)))
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(5, 16)).sum().backward()
    assert ours.total.flops == counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("reentrant", [True, False, None])
def test_t5_makes_zeros_that_require_a_gradient(reentrant):
    """Its layers share a bias; under checkpoints that is zeros which require a gradient that nothing reads."""
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 50}
    quiet = {"use_cache": False, "decoder_start_token_id": 0, "dropout_rate": 0.0, "attn_implementation": "eager"}
    module = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **quiet)).train()
    if reentrant is not None:
        module.gradient_checkpointing_enable({"use_reentrant": reentrant})
    inputs = {"input_ids": torch.randint(1, 50, (2, 7)), "labels": torch.randint(1, 50, (2, 5))}
    with FlopCounterMode(display=False) as counter:
        module(**inputs).loss.backward()
    cost = lc.cost(lc.from_module(module, inputs), price_book="matmul")
    assert cost.total.flops == counter.get_total_flops()
    assert (cost.macro_operations["recomputation"][1].flops > 0) == (reentrant is not None)


class Asks(nn.Module):
    """What frozen layers compute, or what is made of nothing, is made to require a gradient: the first as PEFT does."""

    def __init__(self, of_input):
        super().__init__()
        self.frozen, self.linear = nn.ModuleList(nn.Linear(6, 6).requires_grad_(False) for _ in "ab"), nn.Linear(6, 6)
        self.of_input = of_input

    def forward(self, x):
        more = self.frozen[0](x) if self.of_input else torch.zeros(6)
        more.requires_grad_()
        return self.linear(self.frozen[1](more) + x)


@pytest.mark.parametrize("of_input", [True, False])
def test_gradients_reach_what_is_made_to_require_one(of_input):
    """Where it follows from nothing, no gradient is counted, as autograd has one that nothing reads."""
    module = Asks(of_input)
    total = lc.cost(lc.from_module(module, {"x": "float 3 6"}), price_book="matmul").total.flops
    assert total == (counted(module, torch.randn(3, 6)) if of_input else 504)


KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FUSED = {
    KERNEL: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda d, q, k, v, *_, **__: (
        sdpa_backward_flop_count(d, q, k, v)
    ),
}
"""The formulas of PyTorch's kernels of CUDA, for that of a processor, which has none."""


class Attention(nn.Module):
    """Attention under a checkpoint, alone, twice, or with something behind it."""

    def __init__(self, behind, reentrant):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(8, 8)
        self.behind, self.reentrant = behind, reentrant

    def attend(self, x):
        q, k, v = self.qkv(x).view(2, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        values = functional.scaled_dot_product_attention(q, k, v)
        return self.behind(self, q, k, values)

    def forward(self, x):
        return self.attend(x) if self.reentrant is None else checkpoint(self.attend, x, use_reentrant=self.reentrant)


BEHIND = {
    "nothing": lambda module, q, k, values: values,
    "a sum": lambda module, q, k, values: values + q,
    "a product": lambda module, q, k, values: module.out(values),
    "another": lambda module, q, k, values: functional.scaled_dot_product_attention(q, k, values),
}


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("behind", BEHIND)
def test_attention_at_the_end_of_a_checkpoint_runs_again_as_a_kernel_or_as_its_products(behind, reentrant):
    module, x = Attention(BEHIND[behind], reentrant), torch.randn(2, 12, 16, requires_grad=True)
    model = lc.from_module(module, {"x": "float 2 12 16 gradient"})
    with FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        module(x).sum().backward()
    assert KERNEL in counter.get_flop_counts()["Global"]
    assert lc.cost(model, price_book="torch-flop-counter").total.flops == counter.get_total_flops()
    with sdpa_kernel(SDPBackend.MATH):
        assert lc.cost(model, price_book="matmul").total.flops == counted(module, x)


class Adapted(nn.Linear):
    """A linear layer, frozen beside a path of low rank."""

    def __init__(self, of, to, rank):
        super().__init__(of, to)
        self.paths = nn.Sequential(nn.Linear(of, rank, bias=False), nn.Linear(rank, to, bias=False)) if rank else None
        for each in (self.weight, self.bias) if rank else ():
            each.requires_grad_(False)

    def forward(self, x):
        return super().forward(x) if self.paths is None else super().forward(x) + self.paths(x)


class Embedded(nn.Module):
    """Blocks under checkpoints behind an embedding, of which one linear layer between them makes the gradient begin."""

    def __init__(self, reentrant, rank=0, between=0, outer=False):
        super().__init__()
        self.embedding = nn.Embedding(7, 16).requires_grad_(not rank)
        self.first, self.head = Adapted(16, 16, rank), Adapted(16, 5, rank)
        self.blocks = nn.ModuleList(
            nn.Sequential(Adapted(16, 64, rank), nn.GELU(), Adapted(64, 16, rank)) for _ in range(4)
        )
        self.reentrant, self.between, self.outer = reentrant, between, outer

    def run(self, x):
        for place, block in enumerate(self.blocks):
            x = self.first(x) if place == self.between else x
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return x

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(checkpoint(self.run, x, use_reentrant=False) if self.outer else self.run(x))


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(("between", "outer"), [(0, False), (2, False), (4, False), (2, True)])
def test_a_reentrant_checkpoint_whose_input_stops_to_learn_has_no_gradient(reentrant, between, outer):
    tokens = torch.randint(7, (5,))
    model = lc.from_module(Embedded(reentrant, 0, between, outer), {"tokens": "int 5"})
    cost = lc.cost(model, price_book="matmul", lora="all-linear", lora_rank=2)
    adapted = Embedded(reentrant, 2, between, outer)
    assert cost.total.flops == counted(adapted, tokens)
    for learns in ("head", "blocks"):
        module = Embedded(reentrant, 0, between, outer)
        for path, weight in module.named_parameters():
            weight.requires_grad_(path.startswith(learns))
        with FlopCounterMode(display=False) as counter:
            result = module(tokens)
            if result.requires_grad:
                result.sum().backward()
        assert result.requires_grad == (learns == "head" or not reentrant)
        assert lc.cost(model, price_book="matmul", train=learns).total.flops == counter.get_total_flops()
