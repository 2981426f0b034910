"""The memory of a module that was read, for every optimizer in every variant that PyTorch has, beside its allocator."""

import pytest
import torch
from torch import nn

import learncost as lc
from allocator import apart
from learncost.ops.optimizers import OPTIMIZERS
from learncost.program.optimizer_step import CLASSES
from sampling import sampled

TORCHS = [name for name in OPTIMIZERS if CLASSES[name].pytorch]
"""Those of PyTorch; adamw8bit is of bitsandbytes, which needs a GPU."""

VARIANTS = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False},
    "hooks": {"fused": True},
}
FLAGS = {name: {"optimizer_implementation": name} for name in VARIANTS} | {
    "fused": {},
    "hooks": {"plan": "fused-update"},
}
DTYPES = {"fp32": torch.float32, "bf16-true": torch.bfloat16}


def optimizer(name, weights, variant):
    if name == "rmsprop":  # PyTorch has none fused: it steps as where nobody says how
        return torch.optim.RMSprop(weights, **({} if "fused" in variant else variant))
    if name == "adamw":
        return torch.optim.AdamW(weights, **variant)
    return torch.optim.SGD(weights, 0.1, momentum=0.9 if name == "momentum" else 0.0, **variant)


class Wide(nn.Module):
    """Weights of many sizes, the largest in the middle."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 900), nn.LayerNorm(900), nn.Linear(900, 300, bias=False)

    def forward(self, x):
        return self.last(self.norm(torch.relu(self.first(x)))).mean()


class Images(nn.Module):
    """Convolutions and a head that is larger than they are; its embedding of places is frozen."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, stride=2), nn.Linear(8 * 49, 500)
        self.places = nn.Parameter(torch.randn(8, 7, 7), requires_grad=False)

    def forward(self, x):
        return self.head((torch.relu(self.stem(x)) + self.places).flatten(1)).mean()


class Tied(nn.Module):
    """An embedding that is the head too: two gradients meet."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(300, 64), nn.Linear(64, 64)

    def forward(self, x):
        return (self.inner(self.table(x)) @ self.table.weight.t()).logsumexp(-1).mean()


MODULES = {
    "wide": (Wide, lambda dtype: {"x": torch.randn(4, 64, dtype=dtype)}),
    "images": (Images, lambda dtype: {"x": torch.randn(2, 3, 16, 16, dtype=dtype)}),
    "tied": (Tied, lambda _: {"x": torch.randint(0, 300, (2, 8))}),
}
CASES = [
    (module, name, how, dtype)
    for module in MODULES
    for name in TORCHS
    for how in VARIANTS
    for dtype in DTYPES
    if (name, how) != ("rmsprop", "hooks")
]


def train(module, given, name, how, dtype):
    """Two steps as a user writes them; in the backward pass with an optimizer a weight (PyTorch tutorial)."""
    inputs, before = given(dtype), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        network = module().train()
    finally:
        torch.set_default_dtype(before)
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    if how == "hooks":
        several = {weight: optimizer(name, [weight], VARIANTS[how]) for weight in weights}

        def hook(weight):
            several[weight].step()
            several[weight].zero_grad()

        for weight in weights:
            weight.register_post_accumulate_grad_hook(hook)
        for _ in range(2):
            network(**inputs).backward()
        return
    steps = optimizer(name, weights, VARIANTS[how])
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        network(**inputs).backward()
        steps.step()


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize(("module", "name", "how", "dtype"), sampled(CASES, 24, lambda case: case[1:3]))
def test_the_peak_is_that_of_the_allocator(module, name, how, dtype):
    build, given = MODULES[module]
    _, measured = apart(lambda: train(build, given, name, how, DTYPES[dtype]))
    layer = lc.from_module(build(), given(torch.float32))
    found = lc.memory(layer, engine="eager", optimizer=name, precision=dtype, **FLAGS[how])
    assert found.module == "itself"
    assert found.peak == pytest.approx(measured, rel=0.001)
    assert sum(found.split.values()) == found.peak == sum(live_array.bytes for live_array in found.live_at_peak)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("module", MODULES)
def test_microbatches_are_added_in_place(module):
    """Four samples as two microbatches of two: gradients of the second are added to those of the first."""
    build, given = MODULES[module]
    microbatch = {name: each[:2] for name, each in given(torch.float32).items()}
    rest = {name: "".join(f" {size}" for size in each.shape[1:]) for name, each in microbatch.items()}
    kinds = {name: "float" if each.is_floating_point() else "int" for name, each in microbatch.items()}
    layer = lc.from_module(build(), {name: f"{kinds[name]} B{rest[name]}" for name in microbatch})

    def train():
        network = build().train()
        steps = torch.optim.AdamW(network.parameters(), fused=True)
        for _ in range(2):
            steps.zero_grad(set_to_none=True)
            for _ in range(2):
                (network(**microbatch) / 2).backward()
            steps.step()

    _, measured = apart(train)
    found = lc.memory(layer, accumulate=2, batch_size=4, optimizer="adamw")
    assert found.module == "itself"
    assert found.peak == pytest.approx(measured, rel=0.005)
    assert found.split["gradients"] > 0


def test_variants_differ_by_the_temporaries_of_their_steps():
    """AdamW's roots: of all weights by foreach; of the largest twice, and of the one before it, weight by weight."""
    layer = lc.from_module(Wide(), MODULES["wide"][1](torch.float32))
    peaks = {how: lc.memory(layer, engine="eager", optimizer="adamw", **FLAGS[how]).peak for how in VARIANTS}
    counts = [weight.numel() for weight in Wide().parameters()]
    held = 4 * (4 * sum(counts) + len(counts) + 4 * 64)  # weights, gradients, two states, steps; the input
    assert peaks["foreach"] == held + 4 * sum(counts)
    assert peaks["for-loop"] == held + 4 * (counts[-2] + 2 * counts[-1])
    assert peaks["hooks"] < peaks["fused"] < peaks["for-loop"]


@pytest.mark.parametrize("name", TORCHS)
def test_the_page_names_the_optimizer_that_steps(name):
    layer = lc.from_module(Wide(), MODULES["wide"][1](torch.float32))
    convention = lc.memory(layer, engine="eager", optimizer=name, optimizer_implementation="foreach").convention
    assert type(optimizer(name, [nn.Parameter(torch.ones(1))], {"foreach": True})).__name__ + " with" in convention
    assert "with foreach=True" in convention
    fused = lc.memory(layer, engine="eager", optimizer=name).convention
    assert ("fused=True" in fused) != ("since PyTorch has no fused implementation" in fused)


def test_there_is_no_fused_rmsprop_for_a_hook():
    layer = lc.from_module(Wide(), MODULES["wide"][1](torch.float32))
    with pytest.raises(lc.InputError, match="PyTorch has no fused rmsprop"):
        lc.memory(layer, engine="eager", plan="fused-update", optimizer="rmsprop")
    with pytest.raises(TypeError, match="fused"):
        torch.optim.RMSprop([nn.Parameter(torch.ones(1))], fused=True)
