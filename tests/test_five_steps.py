"""Five steps of training of tiny models of every kind, held to transformers' own modules, losses and labels in float64.

transformers shifts labels itself, torch.optim updates; here the same steps run on NumPy, as tables and as emitted
programs, on PyTorch, in place wherever kernels can be compiled, and on JAX. The loss before every step and all weights
after the fifth are the same to 1e-9. All families on all engines: pytest tests/test_five_steps.py -m "slow or not slow"
"""

from copy import deepcopy
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import learncost as lc
import test_decoder_values as decoders
import test_encoder_values as encoders
import test_families_experts as experts
import test_scans_and_chunks as scans
from decoder_places import places_of
from encoder_places import PLACES
from foreign_models import float64, numpy_of, shaken
from hugging_face import module_of, read
from learncost.engines.compiler import compiler
from learncost.engines.options import Options
from learncost.models.model import build
from learncost.ops.optimizers import OF_MATRICES
from learncost.training.engine import engine
from test_transformers import places as gpt_places

transformers = pytest.importorskip("transformers")

LAYERS = Path(__file__).parents[1] / "examples" / "layers"
STEPS, RATE, DECAY, BETAS = 5, 0.02, 0.1, (0.9, 0.99)
B, M, N = 2, 5, 6
OPTIMIZERS = {
    "adamw": lambda learned: [torch.optim.AdamW(learned, RATE, BETAS, 1e-8, DECAY)],
    "sgd": lambda learned: [torch.optim.SGD(learned, RATE, weight_decay=DECAY)],
    "lion": lambda learned: [Lion(learned)],
    "adafactor": lambda learned: [torch.optim.Adafactor(learned, RATE, eps=(2**-23, 1e-3), weight_decay=DECAY)],
    "muon": lambda learned: muon(learned),
}


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, Algorithm 2, as google/automl's lion_pytorch.py writes it."""

    def __init__(self, learned):
        super().__init__(learned, {})

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            average = self.state[weight].setdefault("average", torch.zeros_like(weight))
            update = average * BETAS[0] + weight.grad * (1 - BETAS[0])
            weight.mul_(1 - RATE * DECAY).add_(update.sign_(), alpha=-RATE)
            average.mul_(BETAS[1]).add_(weight.grad, alpha=1 - BETAS[1])


def muon(learned):
    """PyTorch's Muon of the matrices in blocks, which have no side as long as the vocabulary; AdamW of all else."""
    matrices = [each for each in learned if each.ndim == 2 and decoders.WIDE["vocab_size"] not in each.shape]
    others = [each for each in learned if all(each is not matrix for matrix in matrices)]
    return [torch.optim.Muon(matrices, RATE, DECAY, 0.9), *OPTIMIZERS["adamw"](others)]


LM = "ForCausalLM"
GPT2 = {"vocab_size": 13, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 8}


def kind_of(name):
    """The model type; a name may say behind a comma what is special."""
    return name.partition(",")[0]


MODELS = {
    "vit": ("ViTForImageClassification", encoders.VIT | {"num_labels": 3}),
    "whisper": ("WhisperForConditionalGeneration", encoders.WHISPER),
    "t5": ("T5ForConditionalGeneration", encoders.T5 | {"decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", encoders.BART),
    "bert": ("BertForMaskedLM", encoders.SMALL),
    "roberta": ("RobertaForTokenClassification", encoders.SMALL | {"num_labels": 3}),
    "electra": ("ElectraForPreTraining", encoders.ENCODERS["electra"][2]),
    "deberta": ("DebertaForMaskedLM", encoders.ENCODERS["deberta"][2]),
    "deberta-v2": ("DebertaV2ForSequenceClassification", encoders.ENCODERS["deberta-v2"][2] | {"num_labels": 3}),
    "albert": ("AlbertForQuestionAnswering", encoders.ENCODERS["albert"][2]),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "bloom": ("BloomForCausalLM", decoders.BLOOM),
    "gptj": ("GPTJForCausalLM", decoders.GPTJ),
    "llama": ("LlamaForCausalLM", decoders.WIDE),
    "gemma3_text": ("Gemma3ForCausalLM", decoders.MODELS["gemma3_text"][0]),
    "mpt": ("MptForCausalLM", decoders.MODELS["mpt"][0]),
    **{name: (f"{experts.PREFIX[kind_of(name)]}{LM}", experts.tiny(name)[0]) for name in experts.MODELS},
    "mamba": ("MambaForCausalLM", scans.MODELS["mamba"]),
    "mamba2": ("Mamba2ForCausalLM", scans.MODELS["mamba2"]),
    "rwkv": ("RwkvForCausalLM", scans.MODELS["rwkv"]),
    "llama4_text": ("Llama4ForCausalLM", scans.MODELS["llama4_text"]),
}
ENGINES = ("table", "numpy", "torch", "jax")

ON_OPERATORS = ("deberta-v2",)
"""Whose step does not run in place on PyTorch: kernels do not scatter into another iteration of a loop."""


def answers(architecture, draw, length, most):
    """Ours and transformers': the last tokens of a text have no label, which is -100 there, and negative here.

    Token 0, 1 or 2 pads: transformers gives its row of the embedding no gradient where it is read.
    """
    if architecture.endswith("QuestionAnswering"):
        ends = draw.integers(0, length, (B, 2))
        return {"ends": ends}, {"start_positions": ends[:, 0], "end_positions": ends[:, 1]}
    if architecture.endswith(("SequenceClassification", "ImageClassification")):
        labels = draw.integers(0, 3, B)
        return {"labels": labels}, {"labels": labels}
    if architecture == "ElectraForPreTraining":  # its loss takes every token that is no padding
        targets = draw.integers(0, 2, (B, length))
    else:
        targets = draw.integers(*((0, 3) if "TokenClassification" in architecture else (3, most)), (B, length))
        targets[0, -2:] = -100
    return {"targets": targets}, {"labels": targets}


def batch(model, architecture, config, draw):
    """A batch, ours and transformers'. What a decoder reads is, there, what it is to say, one place later."""
    reads = {name.rpartition(".")[2] for name in model.table.inputs}
    if "image" in reads:
        pixels = draw.normal(size=(B, config.num_channels, config.image_size, config.image_size))
        ours, theirs = answers(architecture, draw, 1, 0)
        return {"image": pixels, **ours}, {"pixel_values": pixels, **theirs}
    if architecture.endswith((LM, "LMHeadModel")):
        tokens = draw.integers(1, config.vocab_size, (B, M))
        return {"tokens": tokens}, {"input_ids": tokens, "labels": tokens}
    ours, theirs = answers(architecture, draw, M, config.vocab_size)
    if not model.two_sided:
        ours["tokens"] = theirs["input_ids"] = draw.integers(3, config.vocab_size, (B, M))
        if "types" in reads:
            ours["types"] = theirs["token_type_ids"] = draw.integers(0, 2, (B, M))
        return ours, theirs
    start = np.full((B, 1), config.decoder_start_token_id)
    decoder_targets = np.where(ours["targets"] < 0, config.pad_token_id, ours["targets"])
    ours["tokens"] = np.concatenate([start, decoder_targets[:, :-1]], 1)
    if "features" in reads:
        theirs["input_features"] = draw.normal(size=(B, config.num_mel_bins, 2 * N))
        return {**ours, "features": theirs["input_features"].swapaxes(1, 2)}, theirs
    ours["encoder_tokens"] = theirs["input_ids"] = draw.integers(3, config.vocab_size, (B, N))
    return ours, theirs


def seen(family, model, module, values):
    """A function that gives all weights of the module as ours."""
    kind, table, sizes = values["model_type"], model.table, model.sizes
    parameters = dict(module.named_parameters(remove_duplicate=False))  # a tied one goes by both names
    if kind in experts.PREFIX:
        found = experts.places_of(values, table, module, experts.MODELS[family][1])
    elif kind in scans.PLACES:
        places = scans.places_of(family, model, module)
        found = {name: ([parameters[at] for at in names], *how) for name, (names, *how) in places.items()}
    elif kind in PLACES or kind == "gpt2":
        places = PLACES[kind](values["architectures"][0]) if kind in PLACES else gpt_places("gpt2", 3)
        found = {}
        for name in table.weights:
            pattern, view = places[name]
            counts = [sizes[axis] for axis in table.axes[name][: pattern.count("{}")]]
            first = 1 if name.startswith("rest.") else 0
            iterations = [pattern.format(*(i + first for i in at)) for at in product(*map(range, counts))]
            found[name] = [parameters[iteration] for iteration in iterations], view, counts
    else:
        stacks = decoders.MODELS[kind][1] or {"": range(module.config.num_hidden_layers)}
        found = places_of(values, table.weights, parameters, stacks)
        found = {
            name: ([parameters[iteration] for iteration in iterations], *how)
            for name, (iterations, *how) in found.items()
        }

    def now():
        result = {}
        for name, (iterations, view, counts) in found.items():
            arrays = [np.array(view(numpy_of(iteration))) for iteration in iterations]
            result[name] = np.stack(arrays) if counts else arrays[0]
            if isinstance(counts, list):
                result[name] = result[name].reshape(*counts, *arrays[0].shape)
        return result

    assert {id(p) for iterations, _, _ in found.values() for p in iterations} == {id(p) for p in module.parameters()}
    return now


@cache
def trained(family, optimizer):
    """Five steps at transformers: our configuration, weights before and after, batches, the loss before every step."""
    architecture, keys = MODELS[family]
    values = {**deepcopy(keys), "model_type": kind_of(family), "architectures": [architecture]}
    configuration = read(values)
    model = build(configuration)
    draw = np.random.default_rng(5)
    with float64(), pytest.MonkeyPatch.context() as patch:
        # BLOOM's GELU there has sqrt(2/pi) rounded to eight digits, and a gradient of its own: after five steps of
        # AdamW 1e-8 of a weight whose gradient is next to nothing.
        gelu = torch.nn.GELU(approximate="tanh")
        patch.setattr(transformers.models.bloom.modeling_bloom.BloomGelu, "forward", lambda _, given: gelu(given))
        module = module_of(values, architecture, "cpu")
        module.config.use_cache = False  # RWKV has states there of another width than its keys
        shaken(module)  # but for buffers: what corrects DeepSeek-V3's choice of experts begins as zeros, here as there
        now = seen(family, model, module, values)
        learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # in which Muon's products are
        updates = OPTIMIZERS[optimizer](learned)
        before, losses, batches = now(), [], []
        for _ in range(STEPS):
            ours, theirs = batch(model, architecture, module.config, draw)
            module.zero_grad()
            loss = module(**{name: torch.tensor(array) for name, array in theirs.items()}).loss
            loss.backward()
            for update in updates:
                update.step()
            batches.append(ours)
            losses.append(loss.item())
    return SimpleNamespace(
        configuration=configuration, before=before, after=now(), batches=batches, losses=losses, learns=model.learning
    )


CASES = [*product(MODELS, ["adamw"], ENGINES), *product(["bert", "mixtral"], ["sgd"], ENGINES)]
CASES += product(["llama"], ["lion", "adafactor", "muon"], ENGINES)
SAMPLE = [
    *(
        (family, "adamw", "numpy")
        for family in ("vit", "whisper", "deberta", "mixtral", "qwen3_moe", "deepseek_v2, lite")
    ),
    *(("llama", optimizer, "numpy") for optimizer in ("lion", "adafactor", "muon")),
]


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    ("family", "optimizer", "kind"),
    [case if case in SAMPLE else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_losses_and_weights_are_those_of_transformers(family, optimizer, kind):
    training = trained(family, optimizer)
    if kind == "table":
        settings = {"learning_rate": RATE, "betas": BETAS, "weight_decay": DECAY}
        trained_here = lc.Training(training.configuration, "bp", optimizer, weights=training.before, **settings)
        losses = [trained_here.step(**each) for each in training.batches]
    else:
        options = Options(engine=kind, dtype="fp64", optimizer=optimizer, beta_2=BETAS[1], weight_decay=DECAY)
        trained_here = engine(training.configuration, options)
        trained_here.load(training.before, {name: 0 * array for name, array in trained_here.state.items()}, 0)
        losses = [trained_here.step(each, RATE) for each in training.batches]
        if kind == "torch" and compiler():
            compiles = family not in ON_OPERATORS and optimizer not in OF_MATRICES
            assert ("kernels compiled" in trained_here.says) == compiles, trained_here.says
    np.testing.assert_allclose(losses, training.losses, rtol=1e-9)
    agree(trained_here.weights, training.after, training.before, training.learns)


def agree(found, wanted, before, learns):
    """All weights are the same to 1e-9, and those that learn have moved far."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-9 * np.abs(array).max(), err_msg=name)
        assert (np.abs(array - before[name]).max() > 1e-3) == (name in learns)


MAMBA = """
% Gu & Dao 2023, figure 3: a gate beside a short convolution and a selective scan; without a head of its own.
mamba(tokens targets share; wte WU WZ WK bK WO) -> loss
  X[M B d] = wte[v=tokens[M B] d]
  repeat n_layer carry X shared wte:
    G[M B d] = rms_norm(X; ln)
    U[M B e] = G[M B d] WU[d e]
    Z[M B e] = G[M B d] WZ[d e]
    V[M B e] = U[M=(M + w - #w + 1) B e] WK[e w]
    C[M B e] = V[M B e] + bK[e]
    S[M B e] = silu(C[M B e])
    h[B e n] = zeros()
    Y[M B e] h[B e n] = selective_scan(S, h; scan)
    J[M B e] = silu(Z[M B e])
    Q[M B e] = Y[M B e] J[M B e]
    O[M B d] = Q[M B e] WO[e d]
    X[M B d] = X[M B d] + O[M B d]
  Y[M B d] = rms_norm(X; ln_f)
  L[M B v] = Y[M B d] wte[v d]
  P[M B v] = log_softmax[v](L[M B v])
  T[M B] = P[M B v=targets[M B]]
  loss[] = T[M B] share[M B]
share: share of targets
"""


class Mamba(torch.nn.Module):
    """The same as people write it: matrices of Linear, a Conv1d of so many groups, time step by time step."""

    def __init__(self, v=13, d=6, e=8, n=3, r=2, w=4, n_layer=2):
        super().__init__()
        self.wte, self.w = torch.nn.Embedding(v, d), w
        for name, make in {
            "WU": lambda: torch.nn.Linear(d, e, bias=False),
            "WZ": lambda: torch.nn.Linear(d, e, bias=False),
            "conv": lambda: torch.nn.Conv1d(e, e, w, groups=e, padding=w - 1),
            "WBC": lambda: torch.nn.Linear(e, 2 * n + r, bias=False),
            "WT": lambda: torch.nn.Linear(r, e),
            "WO": lambda: torch.nn.Linear(e, d, bias=False),
            "norm": lambda: torch.nn.RMSNorm(d, 1e-6),
            "scan": lambda: torch.nn.ParameterList([torch.empty(e, n), torch.empty(e)]),
        }.items():
            setattr(self, name, torch.nn.ModuleList(make() for _ in range(n_layer)))
        self.last, self.split = torch.nn.RMSNorm(d, 1e-6), (n, n, r)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        for at in range(len(self.norm)):
            A, D = self.scan[at]
            normed = self.norm[at](x)
            s = self.conv[at](self.WU[at](normed).transpose(1, 2))[..., : tokens.shape[1]].transpose(1, 2)
            s = torch.nn.functional.silu(s)
            k, c, low = self.WBC[at](s).split(self.split, -1)
            delta = torch.nn.functional.softplus(self.WT[at](low))
            h, rows = 0, []
            for t in range(tokens.shape[1]):
                now = delta[:, t, :, None]
                h = torch.exp(now * A) * h + now * k[:, t, None] * s[:, t, :, None]
                rows.append((h * c[:, t, None]).sum(-1))
            y = torch.stack(rows, 1) + D * s
            x = x + self.WO[at](y * torch.nn.functional.silu(self.WZ[at](normed)))
        logits = self.last(x) @ self.wte.weight.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def ours(self):
        """All weights, as the table has them."""

        def stack(find):
            return np.stack([numpy_of(find(at)) for at in range(len(self.norm))]).copy()

        first, second = self.split[0], 2 * self.split[0]
        return {
            "wte": numpy_of(self.wte.weight).copy(),
            "WU": stack(lambda at: self.WU[at].weight.T),
            "WZ": stack(lambda at: self.WZ[at].weight.T),
            "WK": stack(lambda at: self.conv[at].weight[:, 0]),
            "bK": stack(lambda at: self.conv[at].bias),
            "WO": stack(lambda at: self.WO[at].weight.T),
            "ln": stack(lambda at: self.norm[at].weight),
            "scan.A": stack(lambda at: self.scan[at][0]),
            "scan.WB": stack(lambda at: self.WBC[at].weight[:first].T),
            "scan.WC": stack(lambda at: self.WBC[at].weight[first:second].T),
            "scan.WD": stack(lambda at: self.WBC[at].weight[second:].T),
            "scan.WU": stack(lambda at: self.WT[at].weight.T),
            "scan.b": stack(lambda at: self.WT[at].bias),
            "scan.D": stack(lambda at: self.scan[at][1]),
            "ln_f": numpy_of(self.last.weight).copy(),
        }


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_a_scan_of_ones_own_learns_as_a_module_of_ones_own(optimizer):
    torch.manual_seed(1)
    module = shaken(Mamba())
    layers = {"selective_scan": lc.layer((LAYERS / "selective_scan.table").read_text())}
    settings = {"learning_rate": RATE, "betas": BETAS, "weight_decay": DECAY}
    before = module.ours()
    training = lc.LayerTraining(lc.layer(MAMBA, layers=layers), before, "bp", optimizer, **settings)
    (update,), draw = OPTIMIZERS[optimizer](module.parameters()), np.random.default_rng(2)
    for _ in range(STEPS):
        tokens, targets = draw.integers(0, 13, (2, B, M))
        loss = module(torch.tensor(tokens), torch.tensor(targets))
        update.zero_grad()
        loss.backward()
        update.step()
        assert training.step(tokens=tokens.T, targets=targets.T) == pytest.approx(loss.item(), rel=1e-9)
    agree(training.weights, module.ours(), before, before)


@pytest.mark.parametrize(
    ("weights", "inputs", "message"),
    [
        ({"w": 2, "v": 3}, {"X": (2, 2), "T": 2}, "regression has no weight v"),
        ({}, {"X": (2, 2), "T": 2}, "the weight w is missing"),
        ({"w": 2}, {"X": (2, 2), "T": 2, "Targets": 2}, "there is no input Targets"),
        ({"w": 2}, {"X": (2, 2)}, "T.B. is missing"),
    ],
)
def test_a_layer_of_ones_own_is_given_what_it_has_and_no_more(weights, inputs, message):
    layer = lc.layer("regression(X T; w) -> loss\n  P[B] = X[B d] w[d]\n  E[B] = P[B] - T[B]\n  loss[] = E[B] E[B]\n")
    arrays, named = ({name: np.zeros(size) for name, size in sizes.items()} for sizes in (weights, inputs))
    with pytest.raises(lc.InputError, match=message):
        lc.LayerTraining(layer, arrays).step(**named)
