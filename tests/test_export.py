"""`learncost search --export`: a trainer's file of a step over a mesh is priced as the step; the rest is refused."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.devices.cluster import cluster
from learncost.ir.errors import InputError
from learncost.reports.request import Request
from learncost.reports.search.export import ENDINGS, exported, target_of

NODES = cluster("DGX-H100")
TENSORS = "h g f v over tp, M over tp of values"
EXPERTS = "e over ep of experts, B over ep, * over ep"
SHARDED = "B over dp, * over dp of weights gradients states"
STATES = "B over dp, * over dp of states"


def request(model: str = "gpt2", microbatch: int = 1, precision: str = "bf16-masters", **more: object) -> Request:
    """64 sequences of a step on a cluster."""
    chosen = {"place": STATES, **more}
    return Request(
        model,
        batch_size=64,
        seq_len=512,
        tokens=2**15,
        precision=precision,
        microbatch=microbatch,
        on="DGX H100",
        **chosen,
    )


CASES = (
    ("torchtitan", request("llama-3-8b", mesh="pp=2,dp=4,tp=2", place=f"{TENSORS}, {SHARDED}")),
    ("torchtitan", request("qwen3-0.6b", 4, mesh="dp=16", place=SHARDED, plan="flash,recompute=block")),
    ("megatron", request(mesh="pp=2,dp=4,tp=2", place=f"{TENSORS}, {STATES}")),
    ("megatron", request("mixtral-8x7b", mesh="dp=2,ep=8", place=f"{EXPERTS} of states, {STATES}")),
    ("megatron", request("llama-3-8b", mesh="dp=16", place=SHARDED)),
    ("accelerate", request(mesh="dp=8", placement="ddp", place=None, optimizer="lion", lora="all-linear", lora_rank=8)),
    ("deepspeed", request(mesh="dp=16", placement="zero-2", place=None, optimizer="sgd", dropout=0.1)),
    ("accelerate", request(mesh="dp=64", place=SHARDED, plan="flash,recompute=block")),
    ("megatron", request(mesh="pp=2,dp=8", schedule="interleaved", chunks=2)),
)
"""Steps that a trainer's file can say."""

REFUSED = {
    "zero-1": ("torchtitan", request("qwen3-0.6b", mesh="dp=16")),
    "model = gpt2": ("torchtitan", request(mesh="dp=16", place=SHARDED)),
    "the plan flash,recompute=gelu": ("megatron", request(mesh="dp=16", plan="flash,recompute=gelu")),
    "chunks = 2": (
        "torchtitan",
        request("llama-3-8b", mesh="pp=2,dp=8", place=SHARDED, schedule="interleaved", chunks=2),
    ),
    "zero-2": ("megatron", request(mesh="dp=16", placement="zero-2", place=None)),
    "tp = 2": ("deepspeed", request(mesh="dp=8,tp=2", place=f"{TENSORS}, {STATES}")),
    "checkpointing = full": ("deepspeed", request(mesh="dp=8", plan="flash,recompute=block")),
    "sequence_parallel = True": ("accelerate", request(mesh="dp=8,tp=2", place=f"{TENSORS}, {SHARDED}")),
    "lora = all-linear": ("megatron", request(mesh="dp=8", lora="all-linear")),
    "pp = 2": ("accelerate", request(mesh="pp=2,dp=8")),
    "bf16_master_weights_and_grads": ("deepspeed", request(mesh="dp=8", precision="bf16-true")),
    "a model with sizes": ("torchtitan", request("qwen3-0.6b", mesh="dp=16", place=SHARDED, sizes={"n_layer": 2})),
}
"""What a trainer's file cannot express."""


def priced(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[float, float]:
    """The bytes of a device and the seconds of a step that a command line of run-cost gives."""
    assert main([*words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    return round(figures["memory"]["value"] * 1e9), figures["step"]["value"]


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_file_is_priced_as_its_step(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, asked = CASES[number]
    made = exported(asked, NODES, target_of(target))
    path = tmp_path / f"step{ENDINGS[target]}"
    path.write_text(made.text, encoding="utf-8")
    read = lc.request_of(str(path)) if target in ("torchtitan", "megatron") else None
    assert read is None or (read.mesh, read.batch_size, read.seq_len) == (asked.mesh, asked.batch_size, asked.seq_len)
    memory, seconds = priced([str(path) if word == "FILE" else word for word in made.command[1:]], capsys)
    assert (memory, seconds) == (made.peak, pytest.approx(made.seconds, rel=1e-9))
    memory_asked, seconds_asked = priced(shlex.split(asked.command("run-cost"))[1:], capsys)
    assert (memory - made.added, seconds) == (memory_asked, pytest.approx(seconds_asked, rel=1e-9))
    assert made.added == (10**9 if target == "deepspeed" else 0)


@pytest.mark.parametrize("reason", REFUSED)
def test_what_a_file_cannot_say_is_refused_by_name(reason: str) -> None:
    target, asked = REFUSED[reason]
    with pytest.raises(InputError, match=f"^a file of .* cannot express .*{re.escape(reason)}"):
        exported(asked, NODES, target_of(target))


def test_search_writes_the_fastest_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    words = "search gpt2 --on DGX-H100 --devices 2 --batch-size 4 --seq-len 64 --top 1 --export".split()  # noqa: SIM905
    assert main([*words, "deepspeed", "-o", str(path)]) == 0
    found = lc.search("gpt2", on="DGX-H100", devices=2, batch_size=4, seq_len=64, top=1, export="deepspeed")
    assert found.exported is not None
    assert path.read_text(encoding="utf-8") == found.exported.text
    assert found.exported.peak - found.exported.added == found.best.peak
    assert found.exported.seconds == pytest.approx(found.best.time, rel=1e-9)
    assert str(path) in capsys.readouterr().out
    path.unlink()
    for more, message in (
        (["torchtitan", "-o", str(path)], "cannot express"),
        (["deepspeed"], "-o FILE"),
        (["deepspeed", "-o", str(path), "--budget", "1MB"], "no configuration fits"),
        (["axolotl", "-o", str(path)], "torchtitan"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err
        assert not [*tmp_path.iterdir()]
