"""What is offloaded to the host: predicted peaks beside what PyTorch's allocator hands out."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from against_torch_and_jax.torch_models import module
from torch.utils.checkpoint import checkpoint

import learncost as lc
from allocator import apart
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.reports.memory.memory import answered, memory_question
from learncost.reports.request import Request

SMALL = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": 50}
BATCH, LENGTH = 4, 128


class Offloading(torch.autograd.graph.saved_tensors_hooks):
    """Hooks that move saved tensors to arrays of NumPy, which PyTorch's allocator does not know."""

    def __init__(self, network):
        self.weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
        self.stash, self.bytes, self.most = [], 0, 0
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor):
        if tensor.untyped_storage().data_ptr() in self.weights or tensor.nbytes < 1024:
            return tensor
        self.stash = [*self.stash[-4:], tensor]
        self.bytes += tensor.nbytes
        self.most = max(self.most, self.bytes)
        return tensor.detach().numpy().copy()

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        self.stash.clear()
        self.bytes -= packed.nbytes
        return torch.from_numpy(packed).clone()


def train(configuration, offload, checkpoints, host):
    """Two steps; what the host updates is not PyTorch's here."""
    network = module(configuration)
    if checkpoints:
        for block in network.h:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    optimizer = None
    if "optimizer" in offload:
        for weight in network.parameters():
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    elif "states" not in offload:
        optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    hooks = Offloading(network)
    tokens, targets = (torch.randint(0, 50, (BATCH, LENGTH)) for _ in range(2))
    if "activations" in offload:
        network.register_forward_pre_hook(lambda *_: hooks.__enter__())
        network.lm_head.register_forward_pre_hook(lambda *_: hooks.__exit__(None, None, None))
    for _ in range(2):
        network(tokens, targets).backward()
        if optimizer:
            optimizer.step()
        network.zero_grad()
    host.append(hooks.most)


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("offload", "checkpoints"), [("activations", True), ("activations", False), ("states", True), ("optimizer", False)]
)
def test_the_predicted_peak_is_that_of_the_allocator(offload, checkpoints):
    configuration, host = configure("gpt2", SMALL), []
    measured = apart(lambda: train(configuration, offload, checkpoints, host))[1]
    asked = Request(configuration, batch_size=BATCH, seq_len=LENGTH, on="cuda", module="plain", offload=offload)
    question = memory_question(asked)  # on a GPU; the kernels are those of a processor, as the allocator's
    question = replace(question, eager=replace(question.eager, device="cpu"))
    procedure = "recompute" if checkpoints else "bp"
    found = answered(question.step(procedure, "eager"), "eager")
    usual = lc.memory(configuration, procedure, BATCH, LENGTH, engine="eager", module="plain")
    buffer = found.split.get("offload buffer", 0)  # of DeepSpeed
    assert found.peak - buffer == pytest.approx(measured, rel=0.005)
    assert found.peak < usual.peak
    assert sum(found.split.values()) == found.peak
    if offload == "activations":
        assert found.host == pytest.approx(host[0], rel=0.005)


def test_fully_sharded_weights_are_on_the_host_but_for_those_that_are_gathered():
    flags = {"mesh": "dp=4", "placement": "fsdp", "engine": "eager", "on": "cuda", "precision": "bf16-masters"}
    found, usual = (
        lc.memory("gpt2", batch_size=4, seq_len=64, **flags, **more) for more in ({"offload": "weights"}, {})
    )
    weights = 124_439_808
    assert found.host == pytest.approx(weights / 4 * (4 + 8 + 4), rel=1e-3)  # masters, two states, gradients
    assert not {"weights", "master weights", "optimizer state"} & {part for part, size in found.split.items() if size}
    assert weights / 4 * (4 + 8) <= usual.peak - found.peak <= weights / 4 * (4 + 8 + 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"offload": "nvme"}, "not NVMe: give offload='optimizer' or weights"),
        ({"offload": "paged-states,optimizer"}, "give one of them"),
        ({"offload": "weights"}, "only for fully sharded weights: give mesh and placement='fsdp'"),
        ({"offload": "optimizer", "plan": "fused-update"}, "whose update is on the GPU"),
        ({"offload": "states", "on": None}, "requires a GPU"),
    ],
)
def test_what_cannot_be_offloaded_is_refused_with_what_can(flags, message):
    with pytest.raises(InputError, match=message):
        lc.memory("gpt2", **{"on": "cuda", **flags})


@pytest.mark.parametrize(("optimizer", "states", "scales"), [("adamw", 2, 0), ("adamw8bit", 2, 2), ("lion", 1, 0)])
def test_paged_states_on_the_gpu_are_those_of_small_weights_and_the_scales_of_others(optimizer, states, scales):
    small = 12 * (2304 + 768 + 3072 + 768 + 4 * 768) + 2 * 768  # biases and norms of GPT-2
    asked = {"optimizer": optimizer, "offload": "paged-states", "on": "cuda", "batch_size": 1, "seq_len": 16}
    found = lc.memory("gpt2", engine="eager", **asked)
    assert found.split["optimizer state"] == 4 * (states * small + scales * (124_439_808 - small) // 256)
    with pytest.raises(InputError, match="requires optimizer='adamw' or adamw8bit or lion, not sgd"):
        lc.memory("gpt2", engine="eager", **{**asked, "optimizer": "sgd"})


def test_lion_of_bitsandbytes_has_its_state_in_fp32_and_that_of_automl_the_type_of_weights():
    """bitsandbytes 95f9af30, Optimizer1State.init_state; google/automl, lion_pytorch.py: `torch.zeros_like(p)`."""
    asked = {"engine": "eager", "optimizer": "lion", "precision": "bf16-true", "batch_size": 2, "seq_len": 16}
    for more, width in (
        ({}, 4),
        ({"optimizer_implementation": "for-loop"}, 2),
        ({"mesh": "dp=2", "placement": "ddp"}, 4),
    ):
        found = lc.memory("gpt2", **asked, **more)
        assert found.split["optimizer state"] == width * 124_439_808


def test_copies_to_the_host_and_back_take_the_time_of_the_link():
    asked = {"batch_size": 2, "seq_len": 64, "precision": "bf16-masters"}
    found = lc.cost("gpt2", on="A100-SXM-80GB", offload="optimizer", **asked).memory
    assert found.moved == (124_439_808 * 2, 124_439_808 * 2)  # gradients, and new weights
    assert found.copying == pytest.approx(4 * 124_439_808 / 31.5e9)
    run = {"tokens": 1e6, "on": "A100-SXM-80GB", **asked}
    slower, usual = (lc.run_cost("gpt2", **run, **more).figures["step"] for more in ({"offload": "optimizer"}, {}))
    assert slower.value - usual.value == pytest.approx(found.copying)
    assert (slower.low, slower.high) == (max(usual.low, found.copying), usual.high + found.copying)
    assert "changes no count" in str(lc.cost("gpt2", offload="optimizer", seq_len=64))
    with pytest.raises(InputError, match="does not time"):
        lc.run_cost("gpt2", tokens=1e6, on="DGX-A100", offload="optimizer")
