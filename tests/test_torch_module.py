"""Layers and models as modules of PyTorch: gradients by differences, inside other models, compiled, under autocast."""

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import learncost as lc
from learncost.engines.options import Options
from learncost.layers.layer import shipped_layer
from learncost.training.engine import engine
from learncost.verification.check import finite_arrays
from learncost.verification.sample import small_sizes
from sampling import LEARNING

torch = pytest.importorskip("torch")
lt = pytest.importorskip("learncost.torch")

TINY = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 31, "n_positions": 16}


def gpt2(**more):
    torch.manual_seed(0)
    return lt.model("gpt2", **{**TINY, **more})


def tokens(rows=2, length=7, seed=0):
    return torch.randint(0, TINY["vocab_size"], (rows, length + 1), generator=torch.Generator().manual_seed(seed))


def batch():
    numbers = tokens()
    return numbers[:, :-1], numbers[:, 1:].clone()


def module_of(name, dtype=torch.float64):
    """A layer at small, pairwise different sizes with sound inputs and weights, in fp64."""
    table = shipped_layer(name).table
    sizes = small_sizes(table)
    arrays = {key: torch.tensor(array) for key, array in finite_arrays(table, sizes).items()}
    arrays = {key: array.to(dtype) if array.is_floating_point() else array for key, array in arrays.items()}
    stands = {axis.rstrip("'") for key in table.inputs for axis in table.axes[key]}
    axes_of_weights = {axis.rstrip("'") for key in table.weights for axis in table.axes[key]}
    layer = lt.layer(name, dtype=dtype, **{a: s for a, s in sizes.items() if a in axes_of_weights or a not in stands})
    with torch.no_grad():
        for key, parameter in layer.weights().items():
            parameter.copy_(arrays[key])
    return layer, {key: arrays[key] for key in table.inputs}


@pytest.mark.one_in(every=13)
@pytest.mark.parametrize("name", LEARNING)
def test_gradients_are_those_of_differences(name):
    # torch.autograd.gradcheck: central differences along a random direction of all inputs and weights (its fast mode;
    # its slow one, every entry, takes minutes), and undefined gradients.
    module, inputs = module_of(name)
    constants = shipped_layer(name).table.constants
    moved = [key for key, value in inputs.items() if value.is_floating_point() and key not in constants]
    for key in moved:
        inputs[key].requires_grad_()
    parameters = list(module.parameters())

    def outputs(*values):
        return module(**{**inputs, **dict(zip(moved, values, strict=False))})

    assert moved or parameters
    assert torch.autograd.gradcheck(outputs, (*(inputs[key] for key in moved), *parameters), fast_mode=True)


def test_nothing_is_derived_for_what_requires_no_gradient():
    module, inputs = module_of("feed_forward")
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    assert not module(**inputs).requires_grad
    inputs["X"].requires_grad_()
    module.W2.requires_grad_()
    module(**inputs).sum().backward()
    (names_derived,) = module.passes((False,))._derived
    assert names_derived == (("X", "W2"), "")  # these alone: one backward pass, emitted for them
    assert [p.grad is not None for p in module.parameters()] == [False, False, True, False]
    module(**inputs).sum().backward()
    assert len(module.passes((False,))._derived) == 1  # and kept


def test_of_several_outputs_some():
    module, inputs = module_of("recurrent")
    gradients = torch.autograd.grad(
        sum(output.sum() * k for output, k in zip(module(**inputs), (1, 0), strict=True)), module.U
    )
    output, _ = module(**inputs)
    assert torch.equal(torch.autograd.grad(output.sum(), module.U)[0], gradients[0])


def test_a_second_derivative_is_refused_in_one_line():
    module, inputs = module_of("norm")
    (gradient,) = torch.autograd.grad(module(**inputs).pow(2).sum(), module.g, create_graph=True)
    with pytest.raises(RuntimeError, match="trying to differentiate twice a function that was marked with @once_diff"):
        gradient.sum().backward()


def test_wrong_inputs_are_refused_in_one_line():
    module = lt.layer("feed_forward", d=4, f=8)
    x = torch.zeros(1, 2, 4)
    for call, message in (
        (lambda: module(), "feed_forward needs X"),
        (lambda: module(x, x), "feed_forward takes 1 inputs, not 2: X"),
        (lambda: module(x, Y=x), "Y is not an input: there are X"),
        (lambda: module(x[0]), r"X must have the axes \[B M d\], not the shape \(2, 4\)"),
        (lambda: module(x[..., :3]), r"the axis d of X\[B M d\] is 3, but 4 elsewhere"),
        (lambda: module([1]), "X must be a tensor, not list"),
        (lambda: lt.layer("feed_forward", d=4), "feed_forward requires the size of f: give f="),
        (lambda: lt.layer("feed_forward", d=4, f=8, q=1), "feed_forward has no axis 'q'"),
        (lambda: lt.layer("feed_forward", d=4, f=0), "f must be a whole number from 1, not 0"),
        (lambda: lt.layer("feed_forward", d=4, f=8, dropout={"Q": 0.1}), "feed_forward has no value 'Q' for dropout"),
        (lambda: lt.layer("feed_forward", d=4, f=8, dropout={"G": 1}), "the dropout of G must be a number from 0"),
        (lambda: lt.layer("feedforward"), "no layer is called 'feedforward'"),
        (lambda: gpt2()(x), "tokens must be integers"),
        (lambda: gpt2()(), "gpt2 needs tokens"),
        (lambda: gpt2(dropout=2.0), "dropout must be a number from 0 to below 1, not 2.0"),
        (lambda: lt.layer("loss")(*_loss(torch.ones(1, 2, requires_grad=True))), "share is a constant of the table"),
    ):
        with pytest.raises(lc.InputError, match=message) as refused:
            call()
        assert "\n" not in str(refused.value)


def _loss(share):
    return torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.long), share


def test_a_model_is_the_engines():
    # The loss of the same weights and batch in NumPy's engine, whose steps other tests hold to autograd.
    module = gpt2(dtype=torch.float64)
    trained = engine(module.configuration, Options(engine="numpy", dtype="fp64", learning_rate=1e-3))
    trained.load({name: weight.detach().numpy() for name, weight in module.weights().items()}, trained.state, 0)
    tokens_given, targets = batch()
    targets[0, :3] = -1  # no target there
    assert module(tokens_given, targets).item() == pytest.approx(
        trained.loss({"tokens": tokens_given.numpy(), "targets": targets.numpy()}), abs=1e-12
    )
    weights = {name: weight.detach().numpy() for name, weight in module.weights().items()}
    updates = lc.Training(module.configuration, weights=weights).updates(tokens_given.numpy(), targets.numpy())
    module(tokens_given, targets).backward()
    for name, parameter in module.weights().items():
        np.testing.assert_allclose(parameter.grad.numpy(), updates[name], rtol=0, atol=1e-12, err_msg=name)
    picked = torch.nn.functional.cross_entropy(module(tokens_given).flatten(0, 1), targets.flatten(), ignore_index=-1)
    assert picked.item() == pytest.approx(module(tokens_given, targets).item(), abs=1e-12)


@pytest.mark.parametrize("model", ["bert-base-uncased", "encoder-decoder", "llama-3-8b", "mistral-7b"])
def test_other_models_and_padding(model):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 31}
    sizes |= {"n_enc": 1, "n_dec": 2} if model == "encoder-decoder" else {"num_hidden_layers": 2}
    sizes |= {"num_key_value_heads": 1, "head_dim": 4} if model in ("llama-3-8b", "mistral-7b") else {}
    sizes |= {"architecture": "BertForMaskedLM"} if model.startswith("bert") else {}
    module = lt.model(model, dtype=torch.float64, **sizes)
    training = lc.Training(
        module.configuration, weights={name: weight.detach().numpy() for name, weight in module.weights().items()}
    )
    tokens_given, targets = batch()
    more = {"encoder_tokens": tokens(seed=1)} if model == "encoder-decoder" else {}
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    arrays = {name: tensor.numpy() for name, tensor in more.items()}
    expected = training.forward(tokens_given.numpy(), targets.numpy(), mask=mask.numpy(), **arrays)["loss"]
    assert module(tokens_given, targets, mask=mask, **more).item() == pytest.approx(float(expected), abs=1e-12)


def test_copies_and_files():
    module, (tokens_given, targets) = gpt2(), batch()
    expected = module(tokens_given, targets)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(tokens_given, targets), expected)
        assert other.wte is not module.wte
    fresh = lt.model("gpt2", **TINY)
    assert not torch.equal(fresh(tokens_given, targets), expected)
    assert fresh.load_state_dict(module.state_dict()) == ([], [])
    assert list(module.state_dict()) == list(module.weights())
    assert torch.equal(fresh(tokens_given, targets), expected)


def test_dropout_is_torchs_and_of_training_alone():
    module, (tokens_given, targets) = gpt2(dropout=0.5), batch()
    torch.manual_seed(1)
    first, second = module(tokens_given, targets), module(tokens_given, targets)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(module(tokens_given, targets), first)
    module.eval()
    assert torch.equal(module(tokens_given, targets), module(tokens_given, targets))
    layer = lt.layer("feed_forward", d=4, f=1000, dropout={"G": 0.25})
    with torch.no_grad():
        layer.W1.zero_(), layer.b1.fill_(10.0), layer.W2.fill_(1.0)
    x = torch.zeros(1, 1, 4)
    # gelu(10) is 10: a sum of 1,000 of them, of which each is dropped or 4/3 of itself; its deviation is 183.
    assert layer(x)[0, 0, 0].item() == pytest.approx(10000, abs=1000)
    assert layer(x)[0, 0, 0].item() != layer.eval()(x)[0, 0, 0].item()
    assert layer(x)[0, 0, 0].item() == pytest.approx(10000, rel=1e-5)


@pytest.mark.parametrize("name", ["attention", "mixture_of_experts", "gated_feed_forward", "score", "recurrent"])
def test_autocast(name):
    # Products are bf16, which has 8 bits: a relative error of some 2^-8 for each of a few products in a row.
    module, inputs = module_of(name, torch.float32)
    for value in inputs.values():
        if value.is_floating_point():
            value.requires_grad_()
    moved = [value for value in (*inputs.values(), *module.parameters()) if value.requires_grad]

    def gradients():
        outputs = module(**inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return outputs, lambda: torch.autograd.grad(sum(output.float().pow(2).sum() for output in outputs), moved)

    exact = gradients()[1]()
    with torch.autocast("cpu", torch.bfloat16):
        backward = gradients()[1]
    for left, right in zip(backward(), exact, strict=True):  # outside of autocast, as everybody calls it
        assert left.dtype == torch.float32
        assert (left - right).norm() < 0.05 * right.norm()


def test_a_model_under_autocast_and_in_bf16():
    module, (tokens_given, targets) = gpt2(), batch()
    expected = module(tokens_given, targets)
    with torch.autocast("cpu", torch.bfloat16):
        loss = module(tokens_given, targets)
    loss.backward()
    assert loss.dtype == torch.float32  # log_softmax is, as everywhere under autocast
    assert loss.item() == pytest.approx(expected.item(), rel=1e-2)
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())
    module.bfloat16()
    assert module(tokens_given, targets).dtype == torch.bfloat16


@pytest.mark.slow  # the next two compile layers
def test_compiled_whole():
    # aot_eager runs the graphs that Dynamo and AOTAutograd make, which is what may fail, without a compiler.
    module, (tokens_given, targets) = gpt2(), batch()
    module(tokens_given, targets).backward()
    expected = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    fresh = copy.deepcopy(module)  # one that was never run
    loss = torch.compile(fresh, fullgraph=True, backend="aot_eager")(tokens_given, targets)
    loss.backward()
    assert loss.item() == pytest.approx(module(tokens_given, targets).item(), abs=1e-6)
    for parameter, gradient in zip(fresh.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)


def test_a_compiled_layer_with_one_tensor_as_three_inputs():
    layer = lt.layer("attention", d=8, h=2, k=4)
    x = torch.randn(2, 5, 8, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    (gradient,), (expected,) = (torch.autograd.grad(callee(x, x, x).pow(2).sum(), x) for callee in (compiled, layer))
    torch.testing.assert_close(gradient, expected)


def results(module, inputs, autocast=False):
    """Outputs, and gradients of everything that requires one."""
    for value in inputs.values():
        if value.is_floating_point():
            value.requires_grad_()
    moved = [value for value in (*inputs.values(), *module.parameters()) if value.requires_grad]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outputs = module(**inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return *outputs, *torch.autograd.grad(sum(output.float().pow(2).sum() for output in outputs), moved)


INDUCTOR = ["feed_forward", "attention", "grouped_attention", "gated_feed_forward", "recurrent"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "autocast"),
    [
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in ("norm", *INDUCTOR)),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in INDUCTOR[:2]),
    ],
)
def test_compiled_by_inductor(name, autocast):
    # What torch.compile does where no backend is named; in bf16, of 8 bits, it rounds fewer values than eager.
    torch._dynamo.reset()
    module, inputs = module_of(name, torch.float32 if autocast else torch.float64)
    expected = results(module, inputs, autocast)
    computed = results(torch.compile(module, fullgraph=True), inputs, autocast)
    for left, right in zip(computed, expected, strict=True):
        assert left.dtype == right.dtype
        assert (left - right).norm() <= (0.02 if autocast else 1e-6) * right.norm()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_compiled_by_inductor(autocast):
    torch._dynamo.reset()
    module, (tokens_given, targets) = gpt2(), batch()
    by_runner = []
    for one in (module, torch.compile(module, fullgraph=True)):
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = one(tokens_given, targets)
        loss.backward()
        by_runner.append((loss.detach(), *(parameter.grad for parameter in module.parameters())))
    share, zero = (0.05, 5e-6) if autocast else (1e-4, 1e-8)  # the gradients of keys' biases are zero but for rounding
    for one, two in zip(*by_runner, strict=True):
        assert (one - two).norm() <= share * two.norm() + zero


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_inside_a_compiled_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY)).eval()
    for block in model.transformer.h:
        block.mlp = lt.layer("feed_forward", d=16, f=64)
    given, found = tokens(), []
    for one in (model, torch.compile(model)):
        model.zero_grad()
        loss = one(input_ids=given, labels=given).loss
        loss.backward()
        found.append((loss.detach(), *(parameter.grad for parameter in model.parameters())))
    for one, two in zip(*found, strict=True):
        assert (one - two).norm() <= 1e-4 * two.norm() + 1e-7


def test_inside_a_model_of_transformers():
    """A GPT-2 of transformers whose feed-forward networks are ours learns as the one whose are its own."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(**TINY, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    theirs = transformers.GPT2LMHeadModel(config).double()
    mixed = copy.deepcopy(theirs)
    for block, other in zip(mixed.transformer.h, theirs.transformer.h, strict=True):
        block.mlp = lt.layer("feed_forward", d=16, f=64, dtype=torch.float64)
        pairs = (("W1", "c_fc.weight"), ("b1", "c_fc.bias"), ("W2", "c_proj.weight"), ("b2", "c_proj.bias"))
        with torch.no_grad():
            for ours, own in pairs:
                getattr(block.mlp, ours).copy_(other.mlp.get_parameter(own))
    given = tokens()
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (theirs, mixed)]
    for _ in range(5):
        losses = []
        for one, optimizer in zip((theirs, mixed), optimizers, strict=True):
            optimizer.zero_grad()
            loss = one(input_ids=given, labels=given).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], abs=1e-10)
    # What is before, the embedding, and after, the head, learned the same.
    torch.testing.assert_close(mixed.transformer.wte.weight, theirs.transformer.wte.weight, rtol=0, atol=1e-8)
    torch.testing.assert_close(mixed.transformer.ln_f.weight, theirs.transformer.ln_f.weight, rtol=0, atol=1e-8)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_weights_of_transformers(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if family == "gpt2":
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY))
    else:
        config = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}
        theirs = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**config, num_hidden_layers=2, vocab_size=31, max_position_embeddings=16)
        )
    theirs.eval().save_pretrained(tmp_path)
    given = tokens()[:, :7]
    with torch.no_grad():
        expected = theirs(input_ids=given).logits
        for source in (tmp_path, theirs.state_dict()):
            ours = lt.model(str(tmp_path)).load_hugging_face(source).eval()
            torch.testing.assert_close(ours(given), expected, rtol=0, atol=1e-5)
        for parameter in ours.parameters():
            parameter.mul_(1.25)
        theirs.load_state_dict(ours.hugging_face(), strict=False)
        torch.testing.assert_close(ours(given), theirs(input_ids=given).logits, rtol=0, atol=1e-4)


def test_torch_is_imported_by_name_alone():
    code = "import sys, learncost, learncost.cli.command; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_the_programs_on_the_page(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parent.parent / "docs" / "torch-module.md").read_text(encoding="utf-8")
    scope = {}
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert programs
    for program in programs:
        exec(compile(program, "torch-module.md", "exec"), scope)
