"""Peaks and times of steps that were predicted before they were measured, on an H100 and an A100.

    python benchmarks/steps_ahead.py --predict [--with DIR] [--only T5,ViT]
    python benchmarks/steps_ahead.py [--only T5,ViT] [--json FILE]

`--predict` records every step in a new process, without a GPU, for both cards, and writes steps_ahead.json: the
peak in bytes without the allocator's rounding and the libraries' workspaces, the time with its interval, and that of
kernels by kind. `--with DIR` installs transformers 5.17 and peft into DIR, as h100_steps.py does. Without `--predict`
the steps run on the GPU of this machine with the installed versions, which takes about ten minutes, and each is printed
beside its prediction for that card: the median of five steps, the requested bytes, and the kernels of a profiled step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from h100_steps import BERT, LLAMA, MIXTRAL, PACKAGES, PYTHIA, QWEN, adapted, defaults
from measure import show

from learncost.importer.recorder.device import load_guard

PREDICTED = Path(__file__).with_suffix(".json")
CARDS = {"H100": "NVIDIA H100 SXM", "A100": "NVIDIA A100 SXM 80GB"}


@dataclass(frozen=True)
class Case:
    """A step: transformers' class and configuration, the shape of the tokens, and how it is trained.

    task     train, prefill, or decode after `context` tokens
    amp      the type of autocast
    scaler   whether the loss is scaled, as in fp16
    targets  the length of a decoder's sequence; pixels: whether inputs are images
    """

    name: str
    model: str
    config: str
    batch: int
    length: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "bfloat16"
    amp: str = ""
    scaler: bool = False
    checkpoints: bool = False
    lora: bool = False
    microbatches: int = 1
    targets: int = 0
    pixels: bool = False
    task: str = "train"
    context: int = 0


T5 = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128,
      "decoder_start_token_id": 0, "pad_token_id": 0}  # fmt: skip
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
GPT2 = {"vocab_size": 50304}
MEDIUM = {"vocab_size": 50304, "n_layer": 24, "n_embd": 1024, "n_head": 16}
EXPERTS = {**MIXTRAL, "num_local_experts": 16, "num_experts_per_tok": 4, "intermediate_size": 1024}
SMALL_BERT = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}

CASES = (
    Case("T5-base, 512 and 128 tokens", "T5ForConditionalGeneration", "T5Config", 8, 512, T5, targets=128),
    Case("ViT-base, autocast", "ViTForImageClassification", "ViTConfig", 64, 0, {}, "float32", "bfloat16", pixels=True),
    Case("Llama-3-8B, LoRA, checkpoints", "LlamaForCausalLM", "LlamaConfig", 1, 2048, LLAMA_8B, checkpoints=True,
         lora=True),
    Case("16 experts, 4 a token", "MixtralForCausalLM", "MixtralConfig", 2, 2048, EXPERTS),
    Case("GPT-2, dropout 0.1", "GPT2LMHeadModel", "GPT2Config", 8, 1024, GPT2),
    Case("Qwen3-0.6B, batch 1", "Qwen3ForCausalLM", "Qwen3Config", 1, 512, QWEN),
    Case("Llama-3.2-1B, 16,384 tokens, checkpoints", "LlamaForCausalLM", "LlamaConfig", 1, 16384, LLAMA,
         checkpoints=True),
    Case("Pythia-410M, autocast, 4 microbatches", "GPTNeoXForCausalLM", "GPTNeoXConfig", 4, 1024, PYTHIA, "float32",
         "bfloat16", microbatches=4),
    Case("GPT-2 medium, fp16 with a scaler", "GPT2LMHeadModel", "GPT2Config", 8, 1024, MEDIUM, "float32", "float16",
         scaler=True),
    Case("GPT-2 medium, bf16", "GPT2LMHeadModel", "GPT2Config", 4, 1024, MEDIUM),
    Case("BERT-base, autocast, 128 tokens", "BertForMaskedLM", "BertConfig", 32, 128, SMALL_BERT, "float32",
         "bfloat16"),
    Case("BERT-large, bf16", "BertForMaskedLM", "BertConfig", 16, 512, BERT),
    Case("Llama-3.2-1B, prefill", "LlamaForCausalLM", "LlamaConfig", 8, 2048, LLAMA, task="prefill"),
    Case("Llama-3.2-1B, decode after 2,048", "LlamaForCausalLM", "LlamaConfig", 16, 1, LLAMA, task="decode",
         context=2048),
)  # fmt: skip
"""Steps that were measured nowhere when they were predicted."""


def made(case: Case) -> tuple[Any, Mapping[str, Any]]:
    """Return a case's module and its inputs, on the GPU."""
    import torch
    import transformers

    kind = getattr(torch, case.weights)
    with defaults(torch, kind):
        module = getattr(transformers, case.model)(getattr(transformers, case.config)(**case.settings))
        module.tie_weights()  # which a module does with its values, and these are not made for a prediction
        if case.lora:
            module = adapted(module)
        if case.checkpoints:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    module.config.use_cache = case.task != "train"
    module.train(case.task == "train")
    with torch.device("cuda"):
        if case.pixels:
            pixels = torch.zeros(case.batch, 3, 224, 224)
            return module, {"pixel_values": pixels, "labels": torch.zeros(case.batch, dtype=torch.long)}
        tokens = torch.zeros(case.batch, case.length, dtype=torch.long)
        labels = torch.zeros(case.batch, case.targets, dtype=torch.long) if case.targets else tokens
    return module, {"input_ids": tokens, **({"labels": labels} if case.task == "train" else {})}


def cached(case: Case, module: Any) -> Mapping[str, Any]:
    """Return the cache of keys and values that a step of decode has."""
    import torch

    if case.task != "decode":
        return {}
    with torch.no_grad(), torch.device("cuda"):
        prompt = torch.zeros(case.batch, case.context, dtype=torch.long)
        return {"past_key_values": module(input_ids=prompt, logits_to_keep=1).past_key_values}


def run(
    case: Case, module: Any, inputs: Mapping[str, Any], optimizer: Any, scaler: Any, phase: Callable[[str], None]
) -> None:
    """Run a step, with the name of each phase before it."""
    import torch

    if case.task != "train":
        phase("forward")
        with torch.no_grad():
            module(**inputs, logits_to_keep=1)
        return
    amp = getattr(torch, case.amp) if case.amp else torch.bfloat16
    for _ in range(case.microbatches):
        phase("forward")
        with torch.autocast("cuda", amp, enabled=bool(case.amp)):
            loss = module(**inputs).loss
        phase("backward")
        (scaler.scale(loss) if scaler else loss).backward()
        del loss
    phase("optimizer")
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def predicted(case: Case) -> Mapping[str, Any]:
    """Return the predictions of a case by card, recorded in this process with the kernels of the H100."""
    load_guard()
    import torch
    import transformers.initialization

    from learncost.devices.device import device
    from learncost.devices.gpus import gpu
    from learncost.importer.recorder.cuda import on_gpu
    from learncost.importer.recorder.module_step import attributed, in_a_run
    from learncost.importer.recorder.optimizer import optimizer_of
    from learncost.importer.recorder.recorder import Recorder
    from learncost.program.optimizer_step import OptimizerStep
    from learncost.program.program import ACTIVATIONS, WEIGHTS, peak
    from learncost.timing.clocks import program_time

    recorder = Recorder("cuda")
    with in_a_run(), on_gpu(), recorder:
        with recorder.given(WEIGHTS, WEIGHTS):
            with transformers.initialization.no_init_weights():
                module, inputs = made(case)
            scaler = torch.amp.GradScaler("cuda") if case.scaler else None
            if scaler:
                scaler.scale(torch.zeros((), device="cuda"))
        weights = [each for each in module.parameters() if each.requires_grad]
        optimizer = None
        if case.task == "train":
            width = getattr(torch, case.weights).itemsize
            optimizer = optimizer_of(recorder, OptimizerStep("adamw", "fused", width, cuda=True), weights)
        with recorder.given(ACTIVATIONS, "cache"):
            inputs = {**inputs, **cached(case, module)}

        def phase(name: str) -> None:
            recorder.settle()
            recorder.phase = name

        with attributed(module, recorder):
            run(case, module, inputs, optimizer, scaler, phase)
    program = recorder.program()
    most = peak(program)
    cards = {card: program_time(program, gpu(device(name))) for card, name in CARDS.items()}
    return {
        card: {
            "bytes": most.bytes, "ms": 1e3 * took.seconds, "low": 1e3 * took.low, "high": 1e3 * took.high,
            "busy": 1e3 * took.busy, "issue": 1e3 * took.issue, "ops": len(program.ops), "kernels": took.launches,
            "kinds": {kind: 1e3 * seconds for kind, (seconds, _) in took.by_kind.items()},
        }
        for card, took in cards.items()
    }  # fmt: skip


def predict(only: str, folder: str) -> None:
    """Predict the chosen cases on both cards, and write them beside those that were predicted before."""
    import transformers

    known = json.loads(PREDICTED.read_text(encoding="utf-8")) if PREDICTED.exists() else {"rows": {}}
    paths = [folder] * bool(folder) + [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for number, case in chosen_cases(only):
        command = [sys.executable, __file__, "--case", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            print(f"failed: {case.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr, flush=True)
            continue
        row = known["rows"][case.name] = json.loads(done.stdout.splitlines()[-1])
        print(case.name, row, file=sys.stderr, flush=True)
        known["transformers"] = "5.17.0" if folder else transformers.__version__
        PREDICTED.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


GROUPS: Mapping[str, str] = {
    "product": r"gemm|nvjet|cutlass|xmma|splitK|gemv|grouped",
    "attention": r"fmha|flash|sdpa|attention|cudnn_generated",
    "convolution": r"conv|fprop|dgrad|wgrad|nchw|nhwc",
    "norm": r"layer_norm|LayerNorm|rms_norm|RMSNorm|GammaBeta",
    "softmax": r"[sS]oft[mM]ax",
    "loss": r"nll_loss",
    "optimizer": r"multi_tensor|Adam",
    "index": r"index|embedding|gather|scatter|[sS]ort|topk|radix",
    "reduction": r"reduce",
    "cat": r"CatArray",
}
"""Kinds of kernels by their names in a profile, in this order; all others are elementwise."""

ELEMENTWISE = "elementwise"
INTO: Mapping[str, str] = {"sort": "index", "clip": "optimizer"}


def grouped(kinds: Mapping[str, float]) -> Counter[str]:
    """Return predicted milliseconds by the groups that names of kernels can be assigned to."""
    found = Counter[str]()
    for kind, ms in kinds.items():
        group = INTO.get(kind, kind if kind in GROUPS else ELEMENTWISE)
        found[group] += ms  # type: ignore[assignment]
    return found


@contextlib.contextmanager
def profiled() -> Iterator[Counter[str]]:
    """Yield the milliseconds of kernels by group, filled when the block ends."""
    from torch.profiler import ProfilerActivity, profile

    found = Counter[str]()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield found
    for event in profiler.key_averages():
        group = next((name for name, pattern in GROUPS.items() if re.search(pattern, event.key)), ELEMENTWISE)
        found[group] += event.self_device_time_total / 1e3  # type: ignore[assignment]


def measured(case: Case) -> Mapping[str, Any]:
    """Return the requested bytes, the time and the kernels of a case on this machine's GPU."""
    import torch

    module, inputs = made(case)
    inputs = {**inputs, **cached(case, module)}
    weights = [each for each in module.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, fused=True) if case.task == "train" else None
    scaler = torch.amp.GradScaler("cuda") if case.scaler else None

    def once() -> None:
        run(case, module, inputs, optimizer, scaler, lambda _: None)
        if case.task == "decode":
            inputs["past_key_values"].crop(case.context)

    for _ in range(2):
        once()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    once()
    torch.cuda.synchronize()
    most = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        once()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    with profiled() as kinds:
        once()
        torch.cuda.synchronize()
    return {"bytes": most, "ms": median(times), "busy": sum(kinds.values()), "kinds": dict(kinds)}


def compare(only: str, file: Path | None) -> None:
    """Measure the chosen cases, and print each beside its prediction."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("steps_ahead.py: there is no GPU; --predict needs none")
    name = torch.cuda.get_device_name()
    card = next((each for each in CARDS if each in name), "H100")
    known = json.loads(PREDICTED.read_text(encoding="utf-8"))["rows"]
    rows, kinds, found = [], [], {}
    for _, case in chosen_cases(only):
        ahead = known.get(case.name, {}).get(card)
        if ahead is None:
            print(f"not predicted: {case.name}", file=sys.stderr, flush=True)
            continue
        try:
            took = measured(case)
        except Exception as error:  # the next case goes on
            print(f"failed: {case.name}: {error}", file=sys.stderr, flush=True)
            continue
        finally:
            torch.cuda.empty_cache()
        found[case.name] = took
        cells = [f"{ahead['bytes']:,}", f"{took['bytes']:,}", f"{took['bytes'] - ahead['bytes']:,}"]
        cells += [f"{ahead[key]:.1f}" for key in ("ms", "low", "high")]
        rows.append([case.name, *cells, f"{took['ms']:.1f}", f"{ahead['ms'] / took['ms'] - 1:+.1%}",
                     f"{ahead['busy']:.1f}", f"{took['busy']:.1f}"])  # fmt: skip
        groups = grouped(ahead["kinds"])
        kinds += [
            [case.name, kind, f"{groups[kind]:.2f}", f"{took['kinds'].get(kind, 0.0):.2f}"]
            for kind in sorted({*groups, *took["kinds"]})
        ]
        if file:
            file.write_text(json.dumps({"device": name, "torch": torch.__version__, "rows": found}, indent=1))
    columns = ["step", "bytes predicted", "measured", "more", "ms predicted", "low", "high", "measured", "error",
               "busy predicted", "measured"]  # fmt: skip
    show(f"Steps on {name}", columns, rows)
    show("Milliseconds by kind of kernel", ["step", "kind", "predicted", "measured"], kinds)


def chosen_cases(only: str) -> list[tuple[int, Case]]:
    """Return the cases with one of the parts of names, and their numbers."""
    return [(number, case) for number, case in enumerate(CASES) if any(part in case.name for part in only.split(","))]


def main() -> None:
    """Predict or measure the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true", help="record, without a GPU, and write the predictions")
    parser.add_argument("--only", default="", help="parts of names of steps, with commas between them")
    parser.add_argument("--with", dest="folder", default="", help="a folder for transformers 5.17 and peft")
    parser.add_argument("--json", type=Path, help="the file of what is measured")
    parser.add_argument("--case", type=int, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        print(json.dumps(predicted(CASES[given.case])))
        return
    if given.folder and not Path(given.folder, "transformers").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", given.folder]
        subprocess.run([*pip, *PACKAGES], check=True)
    if given.predict:
        predict(given.only, given.folder)
    else:
        compare(given.only, given.json)


if __name__ == "__main__":
    main()
