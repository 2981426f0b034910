"""The stages of a pipeline as one program: its schedule, what it sends, and that it learns what one device learns."""

import threading

import pytest

import learncost as lc
import processes
from learncost.ir.errors import InputError
from learncost.sharding.devices import MeshCommunicators, MeshDevice
from stages_worker import Case

SMALL = {"n_layer": 4, "n_embd": 8, "n_head": 2, "vocab_size": 16, "seq_len": 8}


def emitted(**flags):
    return lc.emit("gpt2", "torch", **{"mesh": "pp=2", "placement": "pp", **SMALL, **flags})


@pytest.mark.parametrize(
    ("flags", "orders"),
    [
        ({"batch_size": 4}, ("F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3")),
        ({"schedule": "gpipe", "microbatches": 2, "batch_size": 6}, ("F0 F1 B0 B1", "F0 F1 B0 B1")),
        ({"schedule": "zb-h1", "batch_size": 3}, ("F0 F1 B0 W0 F2 B1 W1 B2 W2", "F0 B0 F1 B1 W0 F2 B2 W1 W2")),
        ({"schedule": "interleaved"}, ("F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1", "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1")),
    ],
)
def test_the_schedule_stands_in_the_program_as_a_value(flags, orders):
    text = emitted(**flags)
    compile(text, "step.py", "exec")
    assert "ORDERS = (\n" + "".join(f'    "{order}",\n' for order in orders) + ")" in text


def test_a_stage_sends_what_it_carries_and_waits_for_its_gradient():
    text = emitted(batch_size=4)
    first, last = text.partition("def stage_1(")[::2]
    assert 'send(X_4_between_0, mesh, "pp", 1, "forward", sent)' in first
    assert first.index("yield\n") < first.index('receive(w.wte.new_empty((B, M, d)), mesh, "pp", 1, "backward")')
    assert 'send(dX_4_between_0, mesh, "pp", 0, "backward", sent)' in last
    assert text.count('all_reduce(gradients.wte, mesh, "pp")') == 2  # the embedding is the head


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"schedule": "2f2b"}, "no schedule is called '2f2b'"),
        ({"batch_size": 7, "microbatches": 2}, "batch_size=7 is not divisible into 2 microbatches .* the next .* is 8"),
        ({"schedule": "interleaved", "batch_size": 3}, "3 microbatches are not a multiple of the 2 devices"),
        ({"optimizer": "none"}, "pipeline stages require an optimizer"),
        ({"procedure": "pepita"}, "pipeline stages require procedure='bp'"),
        ({"mesh": "dp=2", "placement": "ddp", "microbatches": 2}, "require pipeline stages"),
        ({"mesh": None, "placement": None, "seq_len": None, "schedule": "gpipe"}, "require pipeline stages"),
        ({"mesh": "pp=2,cp=2", "placement": "pp,cp", "plan": "zigzag"}, "since it reorders positions"),
        (
            {"plan": "fused-update"},
            "stages update with the gradients of all microbatches: remove the plan fused-update",
        ),
        ({"mesh": "pp=3"}, "4 blocks are not divisible into 3 equal stages"),
    ],
)
def test_what_no_program_has_is_refused(flags, message):
    with pytest.raises(InputError, match=message):
        emitted(**flags)


class Place:
    """A place of a mesh of threads, in the place of PyTorch's."""

    def __init__(self, device):
        self.device = device

    def get_local_rank(self, axis):
        return self.device.place[axis]


HELPERS = {
    "along": lambda mesh, over, direction, *places: None,
    "send": lambda X, mesh, over, place, direction, sent: mesh.device.send(over, place, X.clone()),
    "receive": lambda X, mesh, over, place, direction: mesh.device.receive(over, place),
    "all_reduce": lambda X, mesh, over: sum(mesh.device(over, X)[0]),
}


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    ("kind", "where", "clips", "dtype", "error"),
    [
        ("gpipe", None, False, None, 1e-12),
        ("1f1b", None, True, None, 1e-12),
        ("1f1b", "blocks over pp of 2 0", True, None, 1e-12),
        ("zb-h1", None, True, None, 1e-12),
        ("1f1b", None, False, "bf16-masters", 0.02),
        ("zb-h1", None, False, "bf16-masters", 0.02),
    ],
)
def test_stages_learn_what_one_device_learns(kind, where, clips, dtype, error):
    """On threads; the sum over stages that have the same weight, or a norm together, meets all of them."""
    placement = None if where else "pp"
    case, communicators, found = (
        Case("gpt2", "pp=2", placement, where, "", kind, 3, "sgd", clips, dtype),
        MeshCommunicators(),
        {},
    )

    def run(rank, place):
        found[rank] = case.ran(place, Place(MeshDevice(case.grid, place, communicators)), **HELPERS)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(case.grid.places())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(worst for worst, _, _ in found.values()) < error
    assert [has_loss for _, (_, _, has_loss) in sorted(found.items())] == [False, True]


CASES = {
    2: [
        ["gpt2", "pp=2", "pp", None, "", "1f1b", 4, "adamw", True],
        ["gpt2", "pp=2", "pp", None, "flash", "interleaved", 4, "sgd"],
        ["gpt2", "pp=2", "pp", None, "", "zb-h1", 4, "adamw", True],
        ["mixtral", "pp=2", "pp", None, "fused", "zb-h1", 3, "sgd"],
    ],
    4: [
        ["gpt2", "pp=2,tp=2", "pp,megatron-sp", None, "flash", "1f1b", 3, "sgd", True],
        ["gpt2", "pp=2,dp=2", "pp,zero-1", None, "", "gpipe", 2, "adamw"],
        ["gpt2", "pp=2,dp=2", "pp,fsdp", None, "", "1f1b", 4, "sgd", True],
        ["gpt2", "pp=4", None, "blocks over pp of 1 2 2 1", "recompute=block", "1f1b", 5, "sgd"],
        ["mistral", "pp=2,cp=2", "pp,cp", None, "flash,ring", "1f1b", 2, "sgd"],
        ["llama", "pp=4", "pp", None, "recompute=block", "zb-h1", 6, "sgd"],
        ["mixtral", "pp=2,dp=2", "pp,fsdp", None, "", "zb-h1", 3, "sgd"],
        ["bert", "pp=2,tp=2", "pp,megatron-sp", None, "flash", "zb-h1", 2, "sgd"],
        ["bart", "pp=4", "pp", None, "", "gpipe", 4, "sgd"],
        ["bert", "pp=4", "pp", None, "", "interleaved", 4, "sgd"],
    ],
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", CASES)
def test_processes_learn_what_one_device_learns_and_send_what_is_priced(number, tmp_path):
    results = processes.worked(number, {"steps": CASES[number]}, tmp_path, "stages_worker.py")
    for case, (worst, sent, priced) in zip(CASES[number], results, strict=True):
        assert worst < 1e-12, case
        assert sent == priced, case
