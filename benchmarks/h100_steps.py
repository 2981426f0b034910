"""The peak memory and the time of ten training steps that were measured on an H100, and those of their programs.

    python benchmarks/h100_steps.py [--only Qwen3,BERT] [--with DIR]

The rows of h100_steps.json were measured with transformers 5.17: `--with DIR` installs this version and peft into DIR,
and records with them; without it the installed version is recorded. Each step is recorded in a new process on tensors
without values, which needs a C++ compiler and a build of PyTorch without CUDA, and no GPU. On an H100 cuBLAS keeps a
workspace of 64 MiB, and another of 1 MiB is there with biases or grouped products: the measured bytes contain them.
Times are predicted from the published record of the H100 (src/learncost/devices/gpus.py). No constant is fitted to
these rows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from measure import show

from learncost.importer.recorder.device import load_guard

PACKAGES = ("transformers==5.17.0", "peft==0.21.2", "accelerate==1.15.0", "huggingface-hub==1.33.0")
WORKSPACE, MORE = 64 * 2**20, 2**20
"""The bytes that cuBLAS keeps on an H100, and those beside them where a step runs one of `WITH_MORE`, as measured."""
WITH_MORE = ("aten::addmm", "aten::_grouped_mm")
MEASURED = json.loads(Path(__file__).with_suffix(".json").read_text())["rows"]


@dataclass(frozen=True)
class Row:
    """A step: transformers' class and configuration, the shape of the tokens, and how it is trained."""

    model: str
    config: str
    batch: int
    length: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "bf16"
    autocast: bool = False
    checkpoints: bool = False
    optimizer: str = "fused"
    clip: bool = False
    lora: bool = False


QWEN = {
    "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA = {
    "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA = {
    "num_hidden_layers": 26, "hidden_size": 2304, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "intermediate_size": 9216, "vocab_size": 256000,
}  # fmt: skip
BERT = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
PYTHIA = {
    "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
    "vocab_size": 50304,
}  # fmt: skip
MIXTRAL = {
    "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 2048, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
WHISPER = {
    "d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12,
    "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
}  # fmt: skip
ROWS = (
    Row("Qwen3ForCausalLM", "Qwen3Config", 4, 2048, QWEN),
    Row("Qwen3ForCausalLM", "Qwen3Config", 4, 1024, QWEN, "fp32", autocast=True, clip=True),
    Row("Qwen3ForCausalLM", "Qwen3Config", 4, 2048, QWEN, checkpoints=True, optimizer="foreach"),
    Row("LlamaForCausalLM", "LlamaConfig", 2, 4096, LLAMA, checkpoints=True),
    Row("LlamaForCausalLM", "LlamaConfig", 2, 4096, LLAMA, "fp32", autocast=True, checkpoints=True),
    Row("Gemma2ForCausalLM", "Gemma2Config", 2, 2048, GEMMA, checkpoints=True, lora=True),
    Row("BertForMaskedLM", "BertConfig", 16, 512, BERT, "fp32"),
    Row("GPTNeoXForCausalLM", "GPTNeoXConfig", 8, 1024, PYTHIA, "fp32", autocast=True),
    Row("MixtralForCausalLM", "MixtralConfig", 4, 1024, MIXTRAL),
    Row("WhisperForConditionalGeneration", "WhisperConfig", 8, 200, WHISPER),
)
"""The rows of h100_steps.json, in their order."""


def record(row: Row) -> Any:
    """Return the program of a row's step."""
    load_guard()
    import torch
    import transformers

    from learncost.importer.recorder.cuda import on_gpu
    from learncost.importer.recorder.module_step import attributed, in_a_run, record_step
    from learncost.importer.recorder.recorder import Recorder
    from learncost.program.optimizer_step import OptimizerStep
    from learncost.program.program import ACTIVATIONS, WEIGHTS, StepRequest

    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[row.weights]
    stepping = OptimizerStep("adamw", row.optimizer, kind.itemsize, row.clip, cuda=True)
    request = StepRequest(row.weights, "cuda", optimizer=stepping)
    recorder = Recorder("cuda")
    with in_a_run(), on_gpu(), recorder:
        with recorder.given(WEIGHTS, WEIGHTS), defaults(torch, kind):
            module = getattr(transformers, row.model)(getattr(transformers, row.config)(**row.settings)).train()
            module.config.use_cache = False
            if row.lora:
                module = adapted(module)
            if row.checkpoints:
                module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        with recorder.given(ACTIVATIONS, "inputs"), torch.device("cuda"):
            tokens = torch.zeros(row.batch, row.length, dtype=torch.long)
            inputs = {"input_ids": tokens, "labels": tokens}
            if row.config == "WhisperConfig":
                inputs = {"input_features": torch.empty(row.batch, 80, 3000, dtype=kind), "labels": tokens}

        def forward() -> Any:
            with torch.autocast("cuda", torch.bfloat16, enabled=row.autocast):
                return module(**inputs).loss

        with attributed(module, recorder):
            record_step(recorder, module, request, forward)
    return recorder.program()


@contextlib.contextmanager
def defaults(torch: Any, kind: Any) -> Any:
    """Make tensors on the GPU in a type by default."""
    torch.set_default_dtype(kind)
    try:
        with torch.device("cuda"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def adapted(module: Any) -> Any:
    """Return the module with peft's adapters; they are made on the device and in the type, where `to` has no effect."""
    import peft
    from torch import nn

    from learncost.importer.replaced import attributes_replaced

    module.enable_input_require_grads()
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
    with attributes_replaced({(nn.Module, "to"): lambda self, *_, **__: self}):
        return peft.get_peft_model(module, config, autocast_adapter_dtype=False)


def answer(row: Row) -> Mapping[str, Any]:
    """Return the peak of a row's recorded step, what it is the peak of, and its time on an H100."""
    from learncost.devices.device import device
    from learncost.devices.gpus import gpu
    from learncost.program.program import peak
    from learncost.timing.clocks import program_time

    began = time.perf_counter()
    program = record(row)
    most, took = peak(program), program_time(program, gpu(device("NVIDIA H100 SXM")))
    return {
        "bytes": most.bytes, "line": most.op.label, "roles": most.by_role, "ops": len(program.ops),
        "workspaces": WORKSPACE + MORE * any(op.name in WITH_MORE for op in program.ops),
        "seconds": time.perf_counter() - began,
        "ms": 1e3 * took.seconds, "low": 1e3 * took.low, "high": 1e3 * took.high,
        "busy": 1e3 * took.busy, "issue": 1e3 * took.issue, "kernels": took.launches,
        "kinds": {kind: 1e3 * seconds for kind, (seconds, _) in took.by_kind.items()},
    }  # fmt: skip


def recorded(number: int, folder: str) -> Mapping[str, Any]:
    """Return the answer of a row from a new process."""
    places = [folder] * bool(folder) + [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, __file__, "--row", str(number)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Record the chosen rows, and print each with what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names of transformers' classes, with commas between them")
    parser.add_argument("--with", dest="folder", default="", help="a folder for transformers 5.17 and peft")
    parser.add_argument("--row", type=int, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(answer(ROWS[chosen.row])))
        return
    if chosen.folder and not Path(chosen.folder, "transformers").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", chosen.folder]
        subprocess.run([*pip, *PACKAGES], check=True)
    rows, times, errors = [], [], []
    for number, (row, measured) in enumerate(zip(ROWS, MEASURED, strict=True)):
        if any(part in row.model for part in chosen.only.split(",")):
            found = recorded(number, chosen.folder)
            apart = found["bytes"] + found["workspaces"] - measured["requested_bytes"]
            name = [row.model, measured["how"]]
            rows.append([*name, f"{found['bytes']:,}", f"{measured['requested_bytes']:,}", f"{apart:,}"])
            errors.append(found["ms"] / measured["ms"] - 1)
            values = [found[key] for key in ("ms", "low", "high")]
            took = [f"{value:.1f}" for value in (*values, measured["ms"], found["busy"], found["issue"])]
            kinds = ", ".join(f"{kind} {ms / found['busy']:.0%}" for kind, ms in [*found["kinds"].items()][:4])
            times.append([*name, *took, f"{errors[-1]:+.1%}", str(found["kernels"]), kinds])
            print(*rows[-1], *took, f"{found['ops']} ops, {found['seconds']:.0f} s", file=sys.stderr, flush=True)
    columns = ["module", "training", "recorded", "measured", "recorded + workspaces - measured"]
    show("Peak bytes of steps on an H100", columns, rows)
    columns = ["module", "training", "predicted", "low", "high", "measured", "GPU busy", "CPU", "error", "kernels", ""]
    show("Milliseconds of steps on an H100", columns, times)
    sizes = [abs(error) for error in errors]
    print(f"Absolute error: median {median(sizes):.1%}, worst {max(sizes):.1%}.")


if __name__ == "__main__":
    main()
