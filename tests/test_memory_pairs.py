"""Trainings on pairs of sequences: predicted peaks beside those of PyTorch's allocator, with plainly written steps."""

from copy import deepcopy

import pytest
import torch
from against_torch_and_jax.torch_models import module
from torch.nn import functional

import learncost as lc
from allocator import apart
from learncost.ir.errors import InputError
from learncost.models.configuration import configure

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "max_position_embeddings": 64}
PAIRS, LENGTH = 2, 64


def logits(network, tokens):
    x = network.wte(tokens) + network.wpe(torch.arange(tokens.shape[1]))
    for block in network.h:
        x = block(x)
    return network.lm_head(network.ln_f(x))


def log_probabilities(scores, targets):
    """Those of every sequence's tokens, a sequence at a time."""
    if scores.dtype == torch.float32:
        chosen = scores.gather(-1, targets[..., None]).squeeze(-1)
        return (chosen - torch.stack([torch.logsumexp(each, -1) for each in scores])).sum(-1)
    rows = (
        functional.log_softmax(each, -1).gather(-1, own[:, None])[:, 0]
        for each, own in zip(scores, targets, strict=True)
    )
    return torch.stack([*rows]).sum(-1)


def dpo(network, reference, tokens, targets):
    scores = logits(network, tokens)
    own = log_probabilities(scores.narrow(1, 0, LENGTH), targets)
    with torch.no_grad():
        others = log_probabilities(logits(reference, tokens), targets)
    ratios = own - others
    return -functional.logsigmoid(0.1 * (ratios[:PAIRS] - ratios[PAIRS:])).mean()


def orpo(network, reference, tokens, targets):
    scores = logits(network, tokens)
    likely = functional.cross_entropy(scores[:PAIRS].flatten(0, 1), targets[:PAIRS].flatten())
    logs = scores.narrow(1, 0, LENGTH).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1).mean(-1)
    odds = logs[:PAIRS] - logs[PAIRS:] - torch.log1p(-torch.exp(logs[:PAIRS])) + torch.log1p(-torch.exp(logs[PAIRS:]))
    return likely - 0.1 * functional.logsigmoid(odds).mean()


def kto(network, reference, tokens, targets):
    """All sequences have a label; exchanged completions run before, without gradients."""
    with torch.no_grad():
        log_probabilities(logits(network, tokens).narrow(1, 0, LENGTH), targets)
    scores = logits(network, tokens)
    own = log_probabilities(scores.narrow(1, 0, LENGTH), targets)
    with torch.no_grad():
        log_probabilities(logits(reference, tokens).narrow(1, 0, LENGTH), targets)
        others = logits(reference, tokens)
        likely = log_probabilities(others.narrow(1, 0, LENGTH), targets)
    return (1 - torch.sigmoid(0.1 * (own - likely))).mean()


def graded(scores, targets):
    """Those of the completions, whose scores are divided by the temperature of sampling."""
    scores = scores.narrow(1, 0, LENGTH)[:, -LENGTH:]
    scores.div_(0.9)
    return log_probabilities(scores, targets)


def grpo(network, reference, tokens, targets):
    if reference:
        with torch.no_grad():
            others = graded(logits(reference, tokens), targets)
    own = graded(logits(network, tokens), targets)
    loss = -torch.exp(own - own.detach()).mean()
    return loss + (torch.exp(others - own) - (others - own) - 1).mean() if reference else loss


def grpo_kl(*given):
    return grpo(*given)


def distillation(network, teacher, tokens, targets):
    scores = logits(network, tokens)
    with torch.no_grad():
        others = logits(teacher, tokens)
    own, others = scores.narrow(1, 0, LENGTH), others.narrow(1, 0, LENGTH)
    return divergence(own, others)[torch.ones(own.shape[:2], dtype=torch.bool)].sum()


def divergence(own, others):
    own, others = own / 1.0, others / 1.0
    student, teacher = own.log_softmax(-1), others.log_softmax(-1)
    return functional.kl_div(teacher, student, reduction="none", log_target=True)


def train(configuration, loss, dtype, teacher=None):
    network = module(configuration).to(dtype)
    others = {distillation: lambda: module(teacher).to(dtype)}
    others |= dict.fromkeys((dpo, kto, grpo_kl), lambda: deepcopy(network))
    reference = others.get(loss, lambda: None)()
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    tokens, targets = (torch.randint(0, 100, (2 * PAIRS, LENGTH)) for _ in range(2))
    for _ in range(2):
        loss(network, reference, tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("loss", "precision"),
    [(orpo, "fp32")]  # in bf16 a processor adds gathered gradients in a copy in fp32, which no GPU does
    + [(loss, precision) for precision in ("fp32", "bf16-true") for loss in (dpo, kto, grpo, grpo_kl, distillation)],
)
@pytest.mark.parametrize("vocabulary", [4000, 100])
def test_the_predicted_peak_is_that_of_the_allocator(loss, precision, vocabulary):
    configuration = configure("gpt2", SMALL | {"vocab_size": vocabulary})
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    teacher = configure("gpt2", SMALL | {"vocab_size": vocabulary, "num_hidden_layers": 5, "hidden_size": 96})
    measured = apart(lambda: train(configuration, loss, dtype, teacher))[1]
    flags = {"precision": precision, "module": "plain", "engine": "eager", "task": loss.__name__.replace("_", "-")}
    flags |= {"teacher": teacher} if loss is distillation else {}
    found = lc.memory(configuration, "bp", 2 * PAIRS, LENGTH, **flags)
    assert found.peak == pytest.approx(measured, rel=0.012)  # a call's operands live while it runs without gradients
    assert sum(found.split.values()) == found.peak


def test_the_predicted_peak_of_a_model_of_rewards_is_that_of_the_allocator():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 64, "vocab_size": 1000}
    chances = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0)
    config = transformers.GPT2Config(**sizes, **chances, num_labels=1, pad_token_id=0)

    def run():
        network = transformers.GPT2ForSequenceClassification(config)
        optimizer = torch.optim.AdamW(network.parameters(), fused=True)
        tokens = torch.randint(1, 90, (2 * PAIRS, LENGTH))
        for _ in range(2):
            rewards = network(tokens, use_cache=False).logits.squeeze(-1).chunk(2)
            (-functional.logsigmoid(rewards[0] - rewards[1]).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

    flags = {"task": "reward", "engine": "eager", "module": "transformers-uncached"}
    found = lc.memory("gpt2", "bp", 2 * PAIRS, LENGTH, **flags, **sizes)
    assert found.peak == pytest.approx(apart(run)[1], rel=0.001)


def test_counts_of_a_reference_model_are_those_of_the_flop_counter():
    from torch.utils.flop_counter import FlopCounterMode

    configuration = configure("gpt2", SMALL | {"vocab_size": 100})
    network = module(configuration)
    tokens, targets = (torch.randint(0, 100, (2 * PAIRS, LENGTH)) for _ in range(2))
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        dpo(network, deepcopy(network), tokens, targets).backward()
    found, usual = (lc.cost(configuration, "bp", "matmul", 2 * PAIRS, LENGTH, task=task) for task in ("dpo", "orpo"))
    assert found.flops == counter.get_total_flops()
    assert found.flops - usual.flops == usual.macro_operations["forward"][1].flops
    asked = {"batch_size": 2 * PAIRS, "seq_len": LENGTH, "price_book": "matmul", "lora": "c_attn"}
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        kto(network, deepcopy(network), tokens, targets).backward()
    assert lc.cost(configuration, "bp", "matmul", 2 * PAIRS, LENGTH, task="kto").flops == counter.get_total_flops()
    other = configure("gpt2", SMALL | {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2})
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        distillation(network, module(other), tokens, targets).backward()
    flags = {"task": "distillation", "teacher": other}
    assert lc.cost(configuration, "bp", "matmul", 2 * PAIRS, LENGTH, **flags).flops == counter.get_total_flops()
    adapted = [lc.cost(configuration, task=task, **asked) for task in ("dpo", "orpo")]
    assert adapted[0].flops - adapted[1].flops == usual.macro_operations["forward"][1].flops
    assert next(row.repeat for row in adapted[0].rows if row.layer == "lora") == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch_size": 3}, "requires pairs"),
        ({"batch_size": 4, "accumulate": 4}, "requires pairs"),
        ({"engine": "graph"}, "does not support"),
        ({"loss": "liger"}, "only with its own loss"),
        ({"mesh": "dp=2", "placement": "zero-2", "engine": "eager", "batch_size": 4}, "shards the other model"),
        ({"task": "distillation"}, "teacher=MODEL"),
        ({"teacher": "gpt2"}, "has a teacher: remove teacher"),
        ({"task": "distillation", "teacher": "llama-3-8b", "engine": "eager"}, "of one vocabulary"),
    ],
)
def test_what_pairs_do_not_have_is_refused(flags, message):
    with pytest.raises(InputError, match=message):
        lc.memory("gpt2", **{"task": "dpo", "batch_size": 2, **flags})
    if "engine" in flags and "teacher" in flags:
        with pytest.raises(InputError, match=message):
            lc.cost("gpt2", task="distillation", teacher="t5-small")
    for function in (lc.cost, lc.run_cost) if flags == {"batch_size": 3} else ():
        with pytest.raises(InputError, match=message):
            function("gpt2", task="dpo", batch_size=3, **({} if function is lc.cost else {"tokens": 1e6, "on": "V100"}))


@pytest.mark.parametrize("model", ["vit-base-patch16-224", "bert-base"])
def test_a_model_without_a_language_models_head_scores_no_tokens(model):
    with pytest.raises(InputError, match=f"scores tokens with task='kto', which {model} as .* does not do"):
        lc.memory(model, task="kto")


def test_settings_of_autograd_alone_are_answered_by_it_over_a_mesh():
    asked = {"seq_len": 16, "batch_size": 4, "mesh": "dp=2", "placement": "fsdp", **SMALL}
    assert lc.memory("gpt2", **asked).engine == "graph"
    for more in (
        {"task": "dpo"},
        {"loss": "liger"},
        {"offload": "weights", "on": "cuda"},
        {"lora_dropout": 0.1, "lora": "c_attn"},
    ):
        assert lc.memory("gpt2", **asked, **more).engine == "eager"
