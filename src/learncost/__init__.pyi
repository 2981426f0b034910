"""learncost tells what learning costs a neural network - and proves it by running it.

    import learncost as lc
    print(lc.cost("gpt2", procedure="pepita", seq_len=1024))

Everything public is a name of this module, with its parameters in __init__.pyi; the packages below are private and may
change.
"""
# Written by benchmarks/stubs.py.

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from learncost.autodiff.derive import Derived as Derived
from learncost.autodiff.derive import derive as derive
from learncost.cli.lists.listing import list_devices as list_devices
from learncost.cli.lists.listing import list_models as list_models
from learncost.cost_models import Book as Book
from learncost.cost_models import Price as Price
from learncost.cost_models.books import book as book
from learncost.cost_models.books import price as price
from learncost.cost_models.errata import errata as errata
from learncost.devices.cluster import Cluster as Cluster
from learncost.devices.cluster import cluster as cluster
from learncost.devices.device import Device as Device
from learncost.devices.device import device as device
from learncost.devices.figure import Figure as Figure
from learncost.devices.rates import rates as rates
from learncost.engines.layer_training import LayerTraining as LayerTraining
from learncost.engines.numpy_engine import Training as Training
from learncost.importer.from_module import from_module as from_module
from learncost.interpreter import run as run
from learncost.ir.errors import InputError as InputError
from learncost.ir.errors import NotationError as NotationError
from learncost.layers.layer import Layer as Layer
from learncost.layers.layer import layer as layer
from learncost.liveness import Live as Live
from learncost.liveness import live as live
from learncost.models.configuration import Configuration
from learncost.passes.lower import lower as lower
from learncost.procedures.inference import Inference as Inference
from learncost.procedures.inference import inference as inference
from learncost.reports.compare import Comparison as Comparison
from learncost.reports.complexity import Complexity
from learncost.reports.conventions import Conventions as Conventions
from learncost.reports.formulas.explanation import Explanation as Explanation
from learncost.reports.formulas.formulas import Formulas as Formulas
from learncost.reports.formulas.of_model import ModelFormulas as ModelFormulas
from learncost.reports.memory.fit import Fit as Fit
from learncost.reports.memory.lengths import Lengths
from learncost.reports.memory.memory import Memory as Memory
from learncost.reports.memory.published import Peaks, PublishedMemory
from learncost.reports.memory.show import MemoryComparison
from learncost.reports.placed import PlacedStep as PlacedStep
from learncost.reports.record import Cost as Cost
from learncost.reports.rules_of_thumb import Rules as Rules
from learncost.reports.run_cost.record import RunCost as RunCost
from learncost.reports.search.search import Search as Search
from learncost.reports.several_models import ModelComparison
from learncost.reports.sweep import Sweep as Sweep
from learncost.reports.trainer_step import TrainerStep as TrainerStep
from learncost.reports.trainer_step import request_of as request_of
from learncost.training.compiled import CompiledStep as CompiledStep
from learncost.training.compiled import compile as compile
from learncost.training.loop import TrainingResult
from learncost.verification.check import check_layer as check_layer
from learncost.verification.verify import verify as verify
from learncost.viz.report import Report as Report
from learncost.viz.trace import Trace as Trace

_Backend = Literal["numpy", "torch", "jax", "c", "c99", "triton"]
_By = Literal["layer", "macro-operation", "equation", "kind", "module", "total"]
_Device = Literal[
    "NVIDIA-V100-SXM2",
    "NVIDIA-A100-SXM-40GB",
    "NVIDIA-A100-SXM-80GB",
    "NVIDIA-A100-PCIe-80GB",
    "NVIDIA-A100-PCIe-40GB",
    "NVIDIA-H800",
    "NVIDIA-H100-SXM",
    "NVIDIA-H100-PCIe",
    "NVIDIA-H200-SXM",
    "NVIDIA-GH200",
    "NVIDIA-B200-SXM",
    "NVIDIA-B300-SXM",
    "NVIDIA-GB200-SXM-(per-GPU)",
    "NVIDIA-GB300-SXM-(per-GPU)",
    "NVIDIA-L40S",
    "NVIDIA-RTX-3090",
    "NVIDIA-RTX-3080",
    "NVIDIA-RTX-4080-16GB",
    "NVIDIA-RTX-4090",
    "NVIDIA-RTX-5080",
    "NVIDIA-RTX-5090",
    "NVIDIA-L4",
    "NVIDIA-T4",
    "AMD-MI250X",
    "AMD-MI300X",
    "AMD-MI325X",
    "AMD-MI355X",
    "Intel-Gaudi2",
    "Intel-Gaudi3",
    "Google-TPU-v3",
    "Google-TPU-v4",
    "Google-TPU-v5p",
    "Google-TPU-v5e",
    "Google-TPU-v6e-(Trillium)",
    "Google-TPU-v2",
    "NVIDIA-Jetson-AGX-Orin-64GB",
    "NVIDIA-Jetson-Orin-Nano-8GB",
    "Apple-M1-(8-core-GPU)",
    "Apple-M1-Max",
    "Apple-M1-Ultra",
    "Apple-M2",
    "Apple-M2-Ultra",
    "Apple-M3",
    "Apple-M3-Max",
    "Apple-M4",
    "Apple-M4-Pro",
    "Apple-M4-Max",
    "Raspberry-Pi-5-(8GB)",
    "STM32H733ZGT6",
    "NVIDIA-GTX-1080-Ti",
    "NVIDIA-RTX-2080-Ti",
    "NVIDIA-Tesla-P100",
    "NVIDIA-Titan-RTX",
    "NVIDIA-RTX-A6000",
    "NVIDIA-A10G",
    "STM32F407",
    "STM32F746",
    "STM32G474RE",
    "STM32L476",
    "STM32H735",
    "STM32H743/H753",
    "STM32H747",
    "STM32U575/U585",
    "nRF52840",
    "Arduino-Nano-33-BLE-Sense",
    "nRF5340",
    "RP2040",
    "RP2350",
    "ESP32-S3",
    "ESP32-C6",
    "GAP8",
    "GAP9",
    "STM32N657",
]
_Dtype = Literal[
    "fp32",
    "fp64",
    "bf16",
    "fp16",
    "bf16-masters",
    "bf16-masters-fp32-gradients",
    "amp",
    "amp-fp16",
    "fp16-masters",
    "fp8",
    "int8",
    "bf16-true",
    "fp16-true",
    "int8-frozen",
    "int8-frozen-fp32",
    "int8-saved",
    "int8-products",
    "int8-frozen-products",
    "int8-learned",
    "int8-learned-products",
    "integer-only",
    "nf4",
    "nf4-double",
    "nf4-double-amp",
    "nf4-double-fp32-norms",
    "nf4-true",
    "nf4-double-true",
    "nf4-fp16",
    "int4-frozen",
]
_Engine = Literal["graph", "c99", "eager", "compiled", "torch", "cuda", "numpy", "jax"]
_Export = Literal["torchtitan", "megatron", "deepspeed", "accelerate"]
_Lora = Literal["attention", "feed_forward", "all-linear"]
_Loss = Literal["liger", "cut", "torchtune", "litgpt", "litgpt-full", "olmo"]
_Mode = Literal["paper", "stable"]
_Model = Literal[
    "albert-base-v2",
    "albert-large-v2",
    "albert-xlarge-v2",
    "albert-xxlarge-v2",
    "afm-4.5b",
    "bart-base",
    "bart-large",
    "bart-large-cnn",
    "bert-base",
    "bert-large",
    "bert-base-cased",
    "bert-large-cased",
    "bert-base-chinese",
    "bert-base-multilingual-cased",
    "bert-base-multilingual-uncased",
    "bert-tiny",
    "bert-mini",
    "bert-small",
    "bert-medium",
    "all-minilm-l6-v2",
    "all-minilm-l12-v2",
    "bloom-560m",
    "bloom-1b1",
    "bloom-1b7",
    "bloom-3b",
    "bloom-7b1",
    "bloom-176b",
    "command-r7b",
    "dbrx",
    "deberta-v3-xsmall",
    "deberta-v3-small",
    "deberta-v3-base",
    "deberta-v3-large",
    "mdeberta-v3-base",
    "deberta-v2-xlarge",
    "deberta-v2-xxlarge",
    "deberta-base",
    "deberta-large",
    "deberta-xlarge",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
    "distilbert-base",
    "distilbert-base-cased",
    "distilbert-base-multilingual-cased",
    "electra-small-discriminator",
    "electra-small-generator",
    "electra-base-discriminator",
    "electra-base-generator",
    "electra-large-discriminator",
    "electra-large-generator",
    "transformer-base",
    "transformer-big",
    "falcon-7b",
    "falcon-40b",
    "falcon-h1-0.5b",
    "gemma-2b",
    "gemma-7b",
    "gemma-2-2b",
    "gemma-2-9b",
    "gemma-2-27b",
    "gemma-3-1b",
    "gemma-3-4b",
    "gemma-3-12b",
    "gemma-3-27b",
    "gemma-3-270m",
    "gemma-3n-e2b",
    "gemma-3n-e4b",
    "gemma-4-e2b",
    "gemma-4-e4b",
    "gemma-4-26b-a4b",
    "gemma-4-31b",
    "glm-4-9b",
    "glm-4-9b-0414",
    "glm-4-32b-0414",
    "glm-4.5-air",
    "glm-4.5",
    "glm-4.7-flash",
    "gpt2",
    "distilgpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "gpt3-small",
    "gpt3-medium",
    "gpt3-large",
    "gpt3-xl",
    "gpt3-2.7b",
    "gpt3-6.7b",
    "gpt3-13b",
    "gpt3-175b",
    "cerebras-gpt-1.3b",
    "gpt3-jiang",
    "gpt-neo-125m",
    "gpt-neo-1.3b",
    "gpt-neo-2.7b",
    "pythia-70m",
    "pythia-160m",
    "pythia-410m",
    "pythia-1b",
    "pythia-1.4b",
    "pythia-2.8b",
    "pythia-6.9b",
    "pythia-12b",
    "gpt-neox-20b",
    "pythia-14m",
    "redpajama-incite-3b",
    "redpajama-incite-7b",
    "stablelm-base-alpha-3b",
    "stablelm-base-alpha-7b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "gpt-j-6b",
    "hunyuan-0.5b",
    "jamba-52b",
    "jamba-1.5-large",
    "lfm2-350m",
    "lfm2-700m",
    "lfm2-1.2b",
    "llama-1-7b",
    "llama-1-13b",
    "llama-1-30b",
    "llama-1-65b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "tinyllama-1.1b",
    "smollm2-135m",
    "smollm2-360m",
    "smollm2-1.7b",
    "code-llama-7b",
    "code-llama-13b",
    "code-llama-34b",
    "open-llama-3b",
    "yi-6b",
    "yi-1.5-9b",
    "yi-34b",
    "deepseek-coder-1.3b",
    "deepseek-coder-6.7b",
    "deepseek-llm-7b",
    "solar-10.7b",
    "xgen-7b-8k",
    "micro-llama-300m",
    "orpheus-3b",
    "llama-4-scout",
    "llama-4-maverick",
    "mamba-130m",
    "mamba-370m",
    "mamba-790m",
    "mamba-1.4b",
    "mamba-2.8b",
    "mamba2-130m",
    "mamba2-370m",
    "mamba2-780m",
    "mamba2-1.3b",
    "mamba2-2.7b",
    "mamba-codestral-7b",
    "ministral-3-3b",
    "ministral-3-8b",
    "mistral-7b-v0.1",
    "mistral-7b-v0.2",
    "mistral-7b-v0.3",
    "mistral-nemo-12b",
    "ministral-8b",
    "mistral-small-24b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "mpt-7b",
    "mpt-30b",
    "nemotron-h-8b",
    "nemotron-3-nano-30b-a3b",
    "olmo-2-7b",
    "olmo-2-13b",
    "olmo-2-32b",
    "olmo-3-7b",
    "olmo-3-32b",
    "openai-gpt",
    "opt-125m",
    "opt-350m",
    "opt-1.3b",
    "opt-2.7b",
    "opt-6.7b",
    "opt-13b",
    "opt-30b",
    "opt-66b",
    "opt-175b",
    "palm-8b",
    "palm-62b",
    "palm-540b",
    "phi-1.5",
    "phi-2",
    "phi-3-mini-4k",
    "phi-4",
    "phi-4-mini",
    "phi-3-medium-4k",
    "phi-3.5-mini",
    "qwen2.5-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-3b",
    "qwen2.5-7b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen1.5-0.5b",
    "qwen1.5-1.8b",
    "qwen1.5-4b",
    "qwen1.5-7b",
    "qwen1.5-14b",
    "deepseek-r1-distill-qwen-1.5b",
    "qwen2.5-vl-3b",
    "qwen2.5-vl-7b",
    "qwen2.5-vl-72b",
    "qwen1.5-moe-a2.7b",
    "qwen2-57b-a14b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3.5-35b-a3b",
    "qwen3.5-122b-a10b",
    "qwen3.5-397b-a17b",
    "qwen3.5-0.8b",
    "qwen3.5-2b",
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen3.5-27b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b",
    "qwen3-vl-30b-a3b",
    "qwen3-vl-2b",
    "qwen3-vl-4b",
    "qwen3-vl-8b",
    "roberta-base",
    "roberta-large",
    "distilroberta-base",
    "rwkv-4-169m",
    "rwkv-4-430m",
    "rwkv-4-1.5b",
    "rwkv-4-3b",
    "rwkv-4-7b",
    "rwkv-4-14b",
    "seed-oss-36b",
    "smollm3-3b",
    "stablelm-2-1.6b",
    "stablelm-3b-4e1t",
    "starcoder2-3b",
    "starcoder2-7b",
    "starcoder2-15b",
    "t5-small",
    "t5-base",
    "t5-large",
    "t5-3b",
    "t5-11b",
    "t5-v1_1-small",
    "flan-t5-small",
    "t5-v1_1-base",
    "flan-t5-base",
    "t5-v1_1-large",
    "flan-t5-large",
    "t5-v1_1-xl",
    "flan-t5-xl",
    "t5-v1_1-xxl",
    "flan-t5-xxl",
    "vit-b-16",
    "vit-b-32",
    "vit-l-16",
    "vit-l-32",
    "vit-h-14",
    "vit-base-patch16-384",
    "whisper-tiny",
    "whisper-tiny.en",
    "whisper-base",
    "whisper-base.en",
    "whisper-small",
    "whisper-small.en",
    "whisper-medium",
    "whisper-medium.en",
    "whisper-large",
    "whisper-large-v2",
    "whisper-large-v3",
    "whisper-large-v3-turbo",
    "xlm-roberta-base",
    "xlm-roberta-large",
    "resnet-18",
    "resnet-50",
    "convnext-tiny",
    "swin-tiny",
    "clip-vit-b-32",
    "siglip-base-patch16-224",
    "modernbert-base",
    "wav2vec2-base",
    "dit-xl-2-256",
    "encoder",
    "decoder",
    "encoder-decoder",
]
_Module = Literal[
    "transformers", "transformers-uncached", "transformers-reentrant", "transformers-4", "plain", "litgpt", "itself"
]
_Offload = Literal["paged-states", "states", "optimizer", "weights", "activations"]
_Optimizer = Literal[
    "sgd",
    "momentum",
    "adamw",
    "rmsprop",
    "lion",
    "adamw8bit",
    "adam8bit",
    "adamw4bit",
    "adafactor",
    "muon",
    "soap",
    "none",
]
_OptimizerImplementation = Literal["fused", "foreach", "for-loop"]
_Placement = Literal[
    "ddp",
    "dp",
    "zero-1",
    "zero-2",
    "zero-3",
    "fsdp",
    "hsdp",
    "megatron",
    "tp",
    "megatron-sp",
    "sp",
    "cp",
    "ulysses",
    "ep",
    "pp",
]
_Plan = Literal[
    "flash",
    "ring",
    "chunked-loss",
    "recompute",
    "fused-update",
    "multi-tensor-update",
    "epilogue-update",
    "fused",
    "keep",
    "zigzag",
    "auto",
    "none",
]
_Precision = Literal[
    "fp32",
    "fp64",
    "bf16",
    "fp16",
    "bf16-masters",
    "bf16-masters-fp32-gradients",
    "amp",
    "amp-fp16",
    "fp16-masters",
    "fp8",
    "int8",
    "bf16-true",
    "fp16-true",
    "int8-frozen",
    "int8-frozen-fp32",
    "int8-saved",
    "int8-products",
    "int8-frozen-products",
    "int8-learned",
    "int8-learned-products",
    "integer-only",
    "nf4",
    "nf4-double",
    "nf4-double-amp",
    "nf4-double-fp32-norms",
    "nf4-true",
    "nf4-double-true",
    "nf4-fp16",
    "int4-frozen",
]
_PriceBook = Literal[
    "run",
    "matmul",
    "causal-half",
    "causal-exact",
    "flash",
    "torch-flop-counter",
    "paper",
    "paper-corrected",
    "kaplan",
    "kaplan-table-1",
    "gpt3",
    "chinchilla",
    "chinchilla-table-a4",
    "palm",
    "megatron",
    "nanogpt",
    "nanogpt-mfu",
]
_Procedure = Literal[
    "bp",
    "recompute",
    "pepita",
    "mempepita",
    "head-only",
    "fa",
    "sign-symmetric",
    "kolen-pollack",
    "local",
    "local-groups",
    "local-shared",
    "skip",
    "skip-blocks",
    "skip-branches",
    "skip-out",
    "dfa",
    "dfa-linear",
    "forward-gradient",
    "forward-gradient-activities",
    "mezo",
    "evolution",
    "galore",
    "reversible",
    "badam",
]
_Procedures = Literal[
    "bp",
    "recompute",
    "pepita",
    "mempepita",
    "head-only",
    "fa",
    "sign-symmetric",
    "kolen-pollack",
    "local",
    "local-groups",
    "local-shared",
    "skip",
    "skip-blocks",
    "skip-branches",
    "skip-out",
    "dfa",
    "dfa-linear",
    "forward-gradient",
    "forward-gradient-activities",
    "mezo",
    "evolution",
    "galore",
    "reversible",
    "badam",
]
_Task = Literal["dpo", "orpo", "kto", "reward", "grpo", "grpo-kl", "distillation"]
_Train = Literal["all", "none", "head", "embeddings", "biases", "encoder", "decoder"]

__version__: str

def emit(
    subject: _Model | str | Configuration | Layer,
    backend: _Backend | str = "numpy",
    *,
    procedure: _Procedure | str | None = None,
    optimizer: _Optimizer | str | None = None,
    phase: str = "step",
    plan: _Plan | str | None = None,
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    dtype: _Dtype | str | None = None,
    precision: _Precision | str | None = None,
    mesh: str | None = None,
    place: str | None = None,
    placement: _Placement | str | None = None,
    schedule: str | None = None,
    microbatches: int | str | None = None,
    entry: str = "both",
    prefix: str | None = None,
    weights: str | None = None,
    state_dict: str | None = None,
    accumulate: int | str | None = None,
    clip: float | str | None = None,
    learning_rate: float | str | None = None,
    weight_decay: float | str | None = None,
    target_len: int | str | None = None,
    mode: _Mode | str = "paper",
    projected: str | None = None,
    dropout: float | str = 0.0,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    on: _Device | Any = None,
    **sizes: Any,
) -> str:
    r"""Write the step as source code without dependency on learncost: NumPy, PyTorch or JAX, or C99 for a device.

    subject: A layer (`learncost list layers`), a file in the notation, or a model as in learncost cost.
    backend: The target of the program: numpy, torch or jax; for a model with a fixed batch and length also c
        (PyTorch's matrix products and C kernels on one arena), triton (the same on a GPU, with kernels in
        Triton) or c99 (freestanding, such as for a microcontroller).
    procedure: For a model: the learning procedure: bp, recompute, pepita, mempepita, head-only, fa, sign-
        symmetric, kolen-pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out,
        dfa, dfa-linear, forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible,
        badam.
    optimizer: The optimizer: adamw, sgd, momentum, or none, which returns the gradients.
    phase: The part to write: step; for a layer also forward or backward only.
    plan: For a model: the plan of the step, as chunked-loss,recompute=gelu+norm (`learncost list plans`).
    batch_size: With `backend` c, triton and c99: sequences in the step.
    seq_len: With `backend` c, triton and c99: tokens in a sequence.
    dtype: Short form of `precision`.
    precision: bf16-masters, with weights in fp32, or bf16-true; with `backend` c and triton also fp32 (the
        default) and fp64, with c99 these two.
    mesh: The mesh: axes with their sizes, such as dp=2,tp=4; the last axis is the innermost (same node).
    place: Sharding rules 'DIMS over MESH_AXIS [of weights|gradients|states|values]', comma-separated: "h f v
        over tp, M over tp of values, B over dp".
    placement: Named sharding rules, comma-separated: ddp, dp, zero-1, zero-2, zero-3, fsdp, hsdp, megatron, tp,
        megatron-sp, sp, cp, ulysses, ep, pp (`learncost list placements`).
    schedule: With pipeline stages (`placement` pp): the schedule: 1f1b (the default), gpipe, or interleaved
        with two stages on a device.
    microbatches: With pipeline stages: the number of microbatches per device.
    entry: With `backend` c99: the entry points: step, predict, or both (the default).
    prefix: With `backend` c99: the prefix of function and array names.
    weights: With `backend` c99: a safetensors file of initial weights: a module's own state_dict, or with this
        package's or transformers' names.
    state_dict: With `backend` c99: a safetensors file to write: the program's initial weights as the module's
        state_dict.
    accumulate: With `backend` c99: the number of microbatches for gradient accumulation.
    clip: With `backend` c99: the largest global gradient norm.
    learning_rate: With `backend` c99: the initial learning rate.
    weight_decay: With `backend` c99: the weight decay.
    target_len: With `backend` c99: tokens in a decoder sequence of an encoder-decoder.
    mode: The update rule of pepita and mempepita.
    projected: With `backend` c99 and pepita or mempepita: the inputs to which the projected output error is
        added, comma-separated, for inputs other than tokens.
    dropout: With `backend` c99: the dropout probability; each step draws its masks from the seed.
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    on: With `backend` c99: a microcontroller (`learncost list devices`) or a file that describes one: arrays
        are assigned to its RAM regions, programs that do not fit are refused, and a linker script is written if
        the addresses are known.
    sizes: Any size or setting of a model, such as `hidden_size` 1024.
    """

def compare(
    model: _Model | str | Configuration | Layer,
    procedures: _Procedures | Iterable[str] | str | None = None,
    price_book: _PriceBook | str | Book = "run",
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    tokens: int | str | None = None,
    optimizer: _Optimizer | str | None = None,
    dropout: float | str = 0.0,
    dtype: _Dtype | str | None = None,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    plan: _Plan | str | None = None,
    precision: _Precision | str | None = None,
    on: _Device | Any = None,
    engine: _Engine | str = "",
    checkpoint_every: int | str = 1,
    *,
    accumulate: int | str | None = None,
    offload: _Offload | str = "",
    clip: float | str | None = None,
    module: _Module | str = "",
    optimizer_implementation: _OptimizerImplementation | str = "",
    loss: _Loss | str = "",
    lora_dropout: float | str = 0.0,
    **sizes: Any,
) -> Comparison | ModelComparison:
    r"""Compare learning procedures, and find the sequence lengths at which one becomes cheaper than another.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    procedures: The learning procedures to compare, comma-separated: bp, recompute, pepita, mempepita, head-
        only, fa, sign-symmetric, kolen-pollack, local, local-groups, local-shared, skip, skip-blocks, skip-
        branches, skip-out, dfa, dfa-linear, forward-gradient, forward-gradient-activities, mezo, evolution,
        galore, reversible, badam (`learncost list procedures`).
    price_book: The price book of the macro-operations: run, matmul, paper or another (`learncost list price-
        books`).
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    tokens: Tokens in a whole training run, such as 3e11; the decoder's tokens for an encoder-decoder.
    optimizer: The optimizer: adamw, sgd or momentum.
    dropout: The dropout probability.
    dtype: Short form of `precision`.
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    plan: Memory optimizations, comma-separated: flash (FlashAttention), recompute=.
    precision: Data types for memory traffic, and with `on` for time and memory.
    on: The device, as in learncost cost: adds the time of a step and its peak memory under every procedure.
    engine: The engine of the step's time and memory: eager, graph or cuda.
    checkpoint_every: Checkpoint only the first block of each group of this size, under `engine` eager with
        `procedure` recompute.
    accumulate: Number of microbatches for gradient accumulation, on which the memory of a step depends.
    offload: Tensors outside of the memory of a GPU, under `engine` eager, comma-separated: paged-states (of
        bitsandbytes' PagedAdamW and PagedAdamW8bit, for weights of 100,000 elements or more); or on the host:
        states (of the optimizer, with master weights), optimizer (states and gradients, DeepSpeed's
        offload_optimizer), weights (these and shards of weights, FSDP's CPU offload) and activations (saved
        tensors, activation_offloading).
    clip: The norm to which gradients are clipped (clip_grad_norm_), under `engine` eager or graph.
    module: The module whose autograd step is simulated: transformers (the default), transformers-uncached
        (use_cache=False), transformers-reentrant (checkpoints with use_reentrant=True), transformers-4 (before
        4.50), plain (a hand-optimized implementation) or litgpt (that trainer's own); itself: an imported
        module (the default), or the one that the installed transformers builds for a preset, which is recorded
        as it runs.
    optimizer_implementation: The implementation of PyTorch's optimizer under `engine` eager: fused (the
        default), foreach or for-loop.
    loss: The loss that is computed together with the head, under `engine` eager: liger, cut (Apple's cut cross-
        entropy), torchtune, litgpt (with LoRA), litgpt-full or olmo, each as that framework computes it.
    lora_dropout: The dropout probability of the adapters' inputs, under `engine` eager.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def complexity(
    *,
    seq_len: int | str | None = None,
    hidden_size: int | str | None = None,
    num_attention_heads: int | str | None = None,
    kernel_size: int | str | None = None,
    window: int | str | None = None,
    **sizes: int | str,
) -> Complexity:
    r"""Compare self-attention, feed-forward, recurrence, convolution and restricted attention.

    seq_len: Tokens in a sequence, n.
    hidden_size: The width of every layer, d.
    num_attention_heads: The number of heads, h; it divides the width.
    kernel_size: Positions that a convolution reads, k.
    window: Positions that restricted attention reads, r.
    sizes: The same sizes in any other accepted spelling, such as `d_model` 512.
    """

def conventions(
    model: _Model | str | Configuration | Layer,
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    *,
    identify: int | float | str | None = None,
    memory: bool = False,
    **sizes: Any,
) -> Conventions | PublishedMemory | Peaks:
    r"""Compare the counts of all price books and common counters for one training step, and explain their
        differences.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    identify: Your own number, such as 291.6G or 8.75e11: shows which conventions give it, or the nearest one
        and the difference.
    memory: Show published memory figures instead: activations of one sequence as counted by Pau & Aymone,
        compared with the exact ones; or peaks measured on one GPU, compared with predictions (`learncost list
        peaks`).
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def cost(
    model: _Model | str | Configuration | Layer,
    procedure: _Procedure | str = "bp",
    price_book: _PriceBook | str | Book = "run",
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    tokens: int | str | None = None,
    optimizer: _Optimizer | str | None = None,
    dropout: float | str = 0.0,
    dtype: _Dtype | str | None = None,
    context: int | str | None = None,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    plan: _Plan | str | None = None,
    on: _Device | Any = None,
    precision: _Precision | str | None = None,
    mesh: str | None = None,
    place: str | None = None,
    placement: _Placement | str | None = None,
    schedule: str = "1f1b",
    microbatch: int | str | None = None,
    chunks: int | str | None = None,
    page_size: int | str | None = None,
    engine: _Engine | str = "",
    accumulate: int | str | None = None,
    offload: _Offload | str = "",
    task: _Task | str = "",
    teacher: Any = None,
    checkpoint_every: int | str = 1,
    *,
    clip: float | str | None = None,
    module: _Module | str = "",
    optimizer_implementation: _OptimizerImplementation | str = "",
    loss: _Loss | str = "",
    lora_dropout: float | str = 0.0,
    no_sync: bool = False,
    communication_buffers: int | str | None = None,
    by: _By | str = "layer",
    depth: int | str | None = None,
    **sizes: Any,
) -> Cost:
    r"""The exact MACCs, FLOPs, bytes and parameters of a training step or of inference, by layer and macro-
        operation.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    procedure: The learning procedure of the step: bp, recompute, pepita, mempepita, head-only, fa, sign-
        symmetric, kolen-pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out,
        dfa, dfa-linear, forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible,
        badam (`learncost list procedures`); or prefill (forward pass of the prompt), decode (one new token), or
        inference (forward pass of a model without a KV cache).
    price_book: The price book, which defines what one operation costs: run, matmul, paper, palm or another
        (`learncost list price-books`).
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    tokens: Tokens in a whole training run, such as 3e11; the decoder's tokens for an encoder-decoder.
    optimizer: The optimizer: adamw, sgd or momentum.
    dropout: The dropout probability.
    dtype: Short form of `precision`.
    context: For decode: tokens in the KV cache before the step.
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    plan: Memory optimizations, comma-separated: flash (FlashAttention), recompute=.
    on: The device for predicted time, bounds and energy: here (after learncost calibrate), a file of learncost
        calibrate `out`, or a published device (`learncost list devices`).
    precision: Data type of weights, activations, gradients and optimizer states: fp32, fp64, bf16, fp16,
        bf16-masters, bf16-masters-fp32-gradients, amp, amp-fp16, fp16-masters, fp8, int8, bf16-true, fp16-true,
        int8-frozen, int8-frozen-fp32, int8-saved, int8-products, int8-frozen-products, int8-learned,
        int8-learned-products, integer-only, nf4, nf4-double, nf4-double-amp, nf4-double-fp32-norms, nf4-true,
        nf4-double-true, nf4-fp16, int4-frozen (`learncost list precisions`).
    mesh: The mesh: axes with their sizes, such as dp=2,tp=4; the last axis is the innermost (same node).
    place: Sharding rules 'DIMS over MESH_AXIS [of weights|gradients|states|values]', comma-separated: "h f v
        over tp, M over tp of values, B over dp".
    placement: Named sharding rules, comma-separated: ddp, dp, zero-1, zero-2, zero-3, fsdp, hsdp, megatron, tp,
        megatron-sp, sp, cp, ulysses, ep, pp (`learncost list placements`).
    schedule: The pipeline schedule, for a mesh with pp: gpipe, 1f1b, interleaved (several stages on a device)
        or zb-h1.
    microbatch: Sequences in a microbatch, per data-parallel rank.
    chunks: Stages on a device in the interleaved schedule.
    page_size: Tokens in a page of the KV cache, such as 16 in vLLM: each sequence has full pages.
    engine: The engine of the step's time and memory: eager, graph or cuda.
    accumulate: Number of microbatches for gradient accumulation, on which the memory of a step depends.
    offload: Tensors outside of the memory of a GPU, under `engine` eager, comma-separated: paged-states (of
        bitsandbytes' PagedAdamW and PagedAdamW8bit, for weights of 100,000 elements or more); or on the host:
        states (of the optimizer, with master weights), optimizer (states and gradients, DeepSpeed's
        offload_optimizer), weights (these and shards of weights, FSDP's CPU offload) and activations (saved
        tensors, activation_offloading).
    task: The training objective, under `engine` eager: dpo, orpo or reward (a score of each sequence), on pairs
        of sequences, so that the batch size is even; kto; grpo or grpo-kl (its penalty), on completions that a
        separate request generates; or distillation, from a `teacher`.
    teacher: The teacher of `task` distillation, a preset or a config.json: its logits are the targets.
    checkpoint_every: Checkpoint only the first block of each group of this size, under `engine` eager with
        `procedure` recompute.
    clip: The norm to which gradients are clipped (clip_grad_norm_), under `engine` eager or graph.
    module: The module whose autograd step is simulated: transformers (the default), transformers-uncached
        (use_cache=False), transformers-reentrant (checkpoints with use_reentrant=True), transformers-4 (before
        4.50), plain (a hand-optimized implementation) or litgpt (that trainer's own); itself: an imported
        module (the default), or the one that the installed transformers builds for a preset, which is recorded
        as it runs.
    optimizer_implementation: The implementation of PyTorch's optimizer under `engine` eager: fused (the
        default), foreach or for-loop.
    loss: The loss that is computed together with the head, under `engine` eager: liger, cut (Apple's cut cross-
        entropy), torchtune, litgpt (with LoRA), litgpt-full or olmo, each as that framework computes it.
    lora_dropout: The dropout probability of the adapters' inputs, under `engine` eager.
    no_sync: Keep full gradients on each device until the last of the `accumulate` microbatches, as FSDP's
        no_sync in Hugging Face's Trainer does, under `engine` eager with `placement` fsdp or zero-2.
    communication_buffers: Communication buffers on each device, in bytes, added to the prediction of any
        engine: DeepSpeed's ZeRO has one of reduce_bucket_size gradients, and with overlap_comm two.
    by: Rows of the table: layer, macro-operation, equation, kind (linear, attention, elementwise), or module
        for imported modules.
    depth: With `by` module: the number of levels of the module path in a row; 2 merges all of encoder.layers.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def explain(
    subject: _Model | str | Layer,
    layer: str | None = None,
    /,
    *,
    price_book: _PriceBook | str | Book = "run",
    procedure: _Procedure | str | None = None,
    jacobian: bool | None = None,
    optimizer: _Optimizer | str | None = None,
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    **sizes: Any,
) -> Explanation | TrainerStep:
    r"""Explain a layer, an operator or a model's layer line by line: forward, backward, weight update, saved
        tensors.

    subject: A layer by its name or alias (attention, mha, SwiGLU; learncost list layers), a file in the
        notation, an operator (softmax; learncost list operators), a model as in learncost cost, or a trainer's
        file, key by key.
    layer: A layer of the model.
    price_book: The price book, which defines what one operation costs: run, matmul, paper, palm or another
        (`learncost list price-books`).
    procedure: The learning procedure: bp, recompute, pepita, mempepita, head-only, fa, sign-symmetric, kolen-
        pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out, dfa, dfa-linear,
        forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible, badam.
    jacobian: For a layer: backward through explicit Jacobians, or in closed form.
    optimizer: The optimizer: adamw, sgd or momentum.
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def formulas(
    subject: _Model | str | Layer,
    layer: str | None = None,
    /,
    *,
    price_book: _PriceBook | str | Book = "run",
    procedure: _Procedure | str = "bp",
    jacobian: bool | None = None,
    optimizer: _Optimizer | str | None = None,
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    **sizes: Any,
) -> Formulas | ModelFormulas:
    r"""Return MACCs and FLOPs as formulas: of a layer in the symbols of the paper, or of a model's layers.

    subject: A layer by its name or alias (attention, mha, SwiGLU; learncost list layers), a file in the
        notation, or a model as in learncost cost.
    layer: A layer of the model.
    price_book: The price book, which defines what one operation costs: run, matmul, paper, palm or another
        (`learncost list price-books`).
    procedure: The learning procedure: bp, recompute, pepita, mempepita, head-only, fa, sign-symmetric, kolen-
        pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out, dfa, dfa-linear,
        forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible, badam (`learncost
        list procedures`).
    jacobian: For a layer: backward through explicit Jacobians, or in closed form.
    optimizer: The optimizer: adamw, sgd or momentum.
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def fit(
    model: _Model | str | Configuration | Layer,
    budget: int | str | None = None,
    flash_size: int | str | None = None,
    procedures: _Procedures | Iterable[str] | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    optimizer: _Optimizer | str | None = None,
    dtype: _Dtype | str | None = None,
    *,
    dropout: float | str = 0.0,
    precision: _Precision | str | None = None,
    plan: _Plan | str | None = None,
    engine: _Engine | str = "",
    module: _Module | str = "",
    optimizer_implementation: _OptimizerImplementation | str = "",
    loss: _Loss | str = "",
    offload: _Offload | str = "",
    no_sync: bool = False,
    communication_buffers: int | str | None = None,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    lora_dropout: float | str = 0.0,
    target_len: int | str | None = None,
    on: _Device | Any = None,
    mesh: str | None = None,
    place: str | None = None,
    placement: _Placement | str | None = None,
    schedule: str = "1f1b",
    chunks: int | str | None = None,
    accumulate: int | str | None = None,
    context: int | str | None = None,
    page_size: int | str | None = None,
    **sizes: Any,
) -> Fit | Lengths:
    r"""Find the learning procedures that fit a device's memory, their largest batches, and what to change if none
        fits.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    budget: Available memory, as 24GB or 24GiB.
    flash_size: Available flash memory for frozen weights.
    procedures: The learning procedures to try, comma-separated: inference (no learning), bp, recompute, pepita,
        mempepita, head-only, fa, sign-symmetric, kolen-pollack, local, local-groups, local-shared, skip, skip-
        blocks, skip-branches, skip-out, dfa, dfa-linear, forward-gradient, forward-gradient-activities, mezo,
        evolution, galore, reversible, badam; or prefill or decode alone, as in learncost memory.
    seq_len: Tokens in a sequence.
    optimizer: adamw (the default), adamw8bit, lion, muon and others (`learncost list optimizers`).
    dtype: Short form of `precision`.
    dropout: The dropout probability.
    precision: Data type of weights, activations, gradients and optimizer states: fp32, fp64, bf16, fp16,
        bf16-masters, bf16-masters-fp32-gradients, amp, amp-fp16, fp16-masters, fp8, int8, bf16-true, fp16-true,
        int8-frozen, int8-frozen-fp32, int8-saved, int8-products, int8-frozen-products, int8-learned,
        int8-learned-products, integer-only, nf4, nf4-double, nf4-double-amp, nf4-double-fp32-norms, nf4-true,
        nf4-double-true, nf4-fp16, int4-frozen (`learncost list precisions`).
    plan: Try only this plan (`learncost list plans`).
    engine: The engine that executes the step, as in learncost memory.
    module: The module whose autograd step is simulated: transformers (the default), transformers-uncached
        (use_cache=False), transformers-reentrant (checkpoints with use_reentrant=True), transformers-4 (before
        4.50), plain (a hand-optimized implementation) or litgpt (that trainer's own); itself: an imported
        module (the default), or the one that the installed transformers builds for a preset, which is recorded
        as it runs.
    optimizer_implementation: The implementation of PyTorch's optimizer under `engine` eager: fused (the
        default), foreach or for-loop.
    loss: The loss that is computed together with the head, under `engine` eager: liger, cut (Apple's cut cross-
        entropy), torchtune, litgpt (with LoRA), litgpt-full or olmo, each as that framework computes it.
    offload: Tensors outside of the memory of a GPU, under `engine` eager, comma-separated: paged-states (of
        bitsandbytes' PagedAdamW and PagedAdamW8bit, for weights of 100,000 elements or more); or on the host:
        states (of the optimizer, with master weights), optimizer (states and gradients, DeepSpeed's
        offload_optimizer), weights (these and shards of weights, FSDP's CPU offload) and activations (saved
        tensors, activation_offloading).
    no_sync: Keep full gradients on each device until the last of the `accumulate` microbatches, as FSDP's
        no_sync in Hugging Face's Trainer does, under `engine` eager with `placement` fsdp or zero-2.
    communication_buffers: Communication buffers on each device, in bytes, added to the prediction of any
        engine: DeepSpeed's ZeRO has one of reduce_bucket_size gradients, and with overlap_comm two.
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    lora_dropout: The dropout probability of the adapters' inputs, under `engine` eager.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    on: A published device (`learncost list devices`) or a file that describes one; the defaults of `budget` and
        `flash_size`.
    mesh: The mesh of devices, such as dp=2,tp=4: memory is per device, the batch is global.
    place: Sharding rules 'DIMS over MESH_AXIS [of weights|gradients|states|values]', comma-separated: "h f v
        over tp, M over tp of values, B over dp".
    placement: Named sharding rules, comma-separated: ddp, dp, zero-1, zero-2, zero-3, fsdp, hsdp, megatron, tp,
        megatron-sp, sp, cp, ulysses, ep, pp (`learncost list placements`).
    schedule: The pipeline schedule, for a mesh with pp: gpipe, 1f1b, interleaved (several stages on a device)
        or zb-h1.
    chunks: Stages on a device in the interleaved schedule.
    accumulate: Number of microbatches for gradient accumulation or of a pipeline; it divides the batch.
    context: For decode: tokens in the KV cache before the step.
    page_size: Tokens in a page of the KV cache, such as 16 in vLLM: each sequence has full pages.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def memory(
    model: _Model | str | Configuration | Layer,
    procedure: _Procedure | str = "bp",
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    optimizer: _Optimizer | str | None = None,
    dropout: float | str = 0.0,
    dtype: _Dtype | str | None = None,
    *,
    context: int | str | None = None,
    page_size: int | str | None = None,
    precision: _Precision | str | None = None,
    plan: _Plan | str | None = None,
    accumulate: int | str | None = None,
    clip: float | str | None = None,
    budget: int | str | None = None,
    on: _Device | Any = None,
    engine: _Engine | str = "",
    module: _Module | str = "",
    optimizer_implementation: _OptimizerImplementation | str = "",
    loss: _Loss | str = "",
    task: _Task | str = "",
    teacher: Any = None,
    checkpoint_every: int | str = 1,
    offload: _Offload | str = "",
    no_sync: bool = False,
    mode: _Mode | str = "paper",
    communication_buffers: int | str | None = None,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    lora_dropout: float | str = 0.0,
    mesh: str | None = None,
    place: str | None = None,
    placement: _Placement | str | None = None,
    schedule: str = "1f1b",
    microbatch: int | str | None = None,
    chunks: int | str | None = None,
    **sizes: Any,
) -> Memory | MemoryComparison:
    r"""The exact memory of one training step or pass of inference: its peak, the live arrays there, what fits a
        budget.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    procedure: The learning procedure: bp, recompute, pepita, mempepita, head-only, fa, sign-symmetric, kolen-
        pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out, dfa, dfa-linear,
        forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible, badam (`learncost
        list procedures`); or prefill, decode or inference, as in learncost cost.
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    optimizer: adamw (the default), adamw8bit, lion, muon and others (`learncost list optimizers`).
    dropout: The dropout probability.
    dtype: Short form of `precision`.
    context: For decode: tokens in the KV cache before the step.
    page_size: Tokens in a page of the KV cache, such as 16 in vLLM: each sequence has full pages.
    precision: Data type of weights, activations, gradients and optimizer states: fp32, fp64, bf16, fp16,
        bf16-masters, bf16-masters-fp32-gradients, amp, amp-fp16, fp16-masters, fp8, int8, bf16-true, fp16-true,
        int8-frozen, int8-frozen-fp32, int8-saved, int8-products, int8-frozen-products, int8-learned,
        int8-learned-products, integer-only, nf4, nf4-double, nf4-double-amp, nf4-double-fp32-norms, nf4-true,
        nf4-double-true, nf4-fp16, int4-frozen (`learncost list precisions`).
    plan: Memory optimizations, comma-separated: flash (FlashAttention), recompute=.
    accumulate: Number of microbatches for gradient accumulation, on which the memory of a step depends.
    clip: The norm to which gradients are clipped (clip_grad_norm_), under `engine` eager or graph.
    budget: Available memory, as 8GB or 256MiB.
    on: A published device (`learncost list devices`) or a file that describes one; its memory is the default of
        `budget`.
    engine: The engine that executes the step: eager (PyTorch's autograd, on a CPU or on the GPU of `on`; under
        the plan fused-update with an optimizer step in gradient hooks, under chunked-loss with Liger's loss),
        graph (the step's table, line by line), numpy or torch (programs that learncost emits, torch in place
        where possible), cuda (the step of emit in Triton on a GPU, which was never measured on one), compiled
        (a module of a file under torch.compile), or c99.
    module: The module whose autograd step is simulated: transformers (the default), transformers-uncached
        (use_cache=False), transformers-reentrant (checkpoints with use_reentrant=True), transformers-4 (before
        4.50), plain (a hand-optimized implementation) or litgpt (that trainer's own); itself: an imported
        module (the default), or the one that the installed transformers builds for a preset, which is recorded
        as it runs.
    optimizer_implementation: The implementation of PyTorch's optimizer under `engine` eager: fused (the
        default), foreach or for-loop.
    loss: The loss that is computed together with the head, under `engine` eager: liger, cut (Apple's cut cross-
        entropy), torchtune, litgpt (with LoRA), litgpt-full or olmo, each as that framework computes it.
    task: The training objective, under `engine` eager: dpo, orpo or reward (a score of each sequence), on pairs
        of sequences, so that the batch size is even; kto; grpo or grpo-kl (its penalty), on completions that a
        separate request generates; or distillation, from a `teacher`.
    teacher: The teacher of `task` distillation, a preset or a config.json: its logits are the targets.
    checkpoint_every: Checkpoint only the first block of each group of this size, under `engine` eager with
        `procedure` recompute.
    offload: Tensors outside of the memory of a GPU, under `engine` eager, comma-separated: paged-states (of
        bitsandbytes' PagedAdamW and PagedAdamW8bit, for weights of 100,000 elements or more); or on the host:
        states (of the optimizer, with master weights), optimizer (states and gradients, DeepSpeed's
        offload_optimizer), weights (these and shards of weights, FSDP's CPU offload) and activations (saved
        tensors, activation_offloading).
    no_sync: Keep full gradients on each device until the last of the `accumulate` microbatches, as FSDP's
        no_sync in Hugging Face's Trainer does, under `engine` eager with `placement` fsdp or zero-2.
    mode: The update rule of pepita and mempepita: paper (the default) or stable (used by learncost train).
    communication_buffers: Communication buffers on each device, in bytes, added to the prediction of any
        engine: DeepSpeed's ZeRO has one of reduce_bucket_size gradients, and with overlap_comm two.
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    lora_dropout: The dropout probability of the adapters' inputs, under `engine` eager.
    mesh: The mesh: axes with their sizes, such as dp=2,tp=4; the last axis is the innermost (same node).
    place: Sharding rules 'DIMS over MESH_AXIS [of weights|gradients|states|values]', comma-separated: "h f v
        over tp, M over tp of values, B over dp".
    placement: Named sharding rules, comma-separated: ddp, dp, zero-1, zero-2, zero-3, fsdp, hsdp, megatron, tp,
        megatron-sp, sp, cp, ulysses, ep, pp (`learncost list placements`).
    schedule: The pipeline schedule, for a mesh with pp: gpipe, 1f1b, interleaved (several stages on a device)
        or zb-h1.
    microbatch: Sequences in a microbatch, per data-parallel rank.
    chunks: Stages on a device in the interleaved schedule.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def place(
    model: _Model | str | Configuration | Layer,
    mesh: str | None,
    place: str | None = None,
    placement: _Placement | str | None = None,
    procedure: _Procedure | str = "bp",
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    optimizer: _Optimizer | str | None = None,
    dropout: float | str = 0.0,
    precision: _Precision | str | None = None,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    plan: _Plan | str | None = None,
    on: _Device | Any = None,
    engine: _Engine | str = "",
    accumulate: int | str | None = None,
    microbatch: int | str | None = None,
    **sizes: Any,
) -> PlacedStep:
    r"""The sharded training step that each device of a mesh executes, with a reason for each collective.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    mesh: The mesh: axes with their sizes, such as dp=2,tp=4; the last axis is the innermost (same node).
    place: Sharding rules 'DIMS over MESH_AXIS [of weights|gradients|states|values]', comma-separated: "h f v
        over tp, M over tp of values, B over dp".
    placement: Named sharding rules, comma-separated: ddp, dp, zero-1, zero-2, zero-3, fsdp, hsdp, megatron, tp,
        megatron-sp, sp, cp, ulysses, ep, pp (`learncost list placements`).
    procedure: The learning procedure: bp, recompute, pepita, mempepita, head-only, fa, sign-symmetric, kolen-
        pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out, dfa, dfa-linear,
        forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible, badam (`learncost
        list procedures`).
    batch_size: The global batch size in sequences.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    optimizer: The optimizer: adamw, sgd or momentum.
    dropout: The dropout probability.
    precision: Data type of weights, activations, gradients and optimizer states: fp32, fp64, bf16, fp16,
        bf16-masters, bf16-masters-fp32-gradients, amp, amp-fp16, fp16-masters, fp8, int8, bf16-true, fp16-true,
        int8-frozen, int8-frozen-fp32, int8-saved, int8-products, int8-frozen-products, int8-learned,
        int8-learned-products, integer-only, nf4, nf4-double, nf4-double-amp, nf4-double-fp32-norms, nf4-true,
        nf4-double-true, nf4-fp16, int4-frozen (`learncost list precisions`).
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    plan: Memory optimizations, comma-separated: flash (FlashAttention), recompute=.
    on: The cluster (`learncost list clusters`), a file that describes one, or its device: adds the time of the
        collectives over its links, and whether the step fits the memory of each device.
    engine: The engine of the step's time and memory: eager, graph or cuda.
    accumulate: Number of microbatches for gradient accumulation, on which the memory of a step depends.
    microbatch: Sequences in a microbatch, per data-parallel rank.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def rules(
    model: _Model | str | Configuration | Layer,
    tokens: int | str | None = None,
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    **sizes: Any,
) -> Rules:
    r"""Compare rules of thumb with the exact numbers: the error of each, its causes, and its source.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    tokens: Tokens in a whole training run, such as 3e11.
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def run_cost(
    model: _Model | str | Configuration | Layer,
    tokens: int | str | None = None,
    on: _Device | Any = None,
    devices: int | str | None = 1,
    *,
    mesh: str | None = None,
    place: str | None = None,
    placement: _Placement | str | None = None,
    schedule: str = "1f1b",
    microbatch: int | str | None = None,
    chunks: int | str | None = None,
    plan: _Plan | str | None = None,
    procedure: _Procedure | str = "bp",
    price_book: _PriceBook | str | Book = "matmul",
    dtype: _Dtype | str | None = None,
    precision: _Precision | str | None = None,
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    optimizer: _Optimizer | str | None = None,
    dropout: float | str = 0.0,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    engine: _Engine | str = "",
    context: int | str | None = None,
    page_size: int | str | None = None,
    accumulate: int | str | None = None,
    communication_buffers: int | str | None = None,
    offload: _Offload | str = "",
    task: _Task | str = "",
    teacher: Any = None,
    no_sync: bool = False,
    checkpoint_every: int | str = 1,
    clip: float | str | None = None,
    module: _Module | str = "",
    optimizer_implementation: _OptimizerImplementation | str = "",
    loss: _Loss | str = "",
    lora_dropout: float | str = 0.0,
    mfu: float | str | None = None,
    hfu: float | str | None = None,
    tokens_per_second: float | str | None = None,
    peak_tflops: float | str | None = None,
    power: float | str | None = None,
    pue: float | str | None = None,
    country: str | None = None,
    year: int | str | None = None,
    carbon_intensity: float | str | None = None,
    price_per_hour: float | str | None = None,
    **sizes: Any,
) -> RunCost:
    r"""The time, energy, CO2 and price of a whole training run, or of serving, each with its source and interval.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    tokens: Tokens in the run, such as 3e11; the decoder's tokens for an encoder-decoder, and with `procedure`
        decode those that are generated, with prefill those of prompts.
    on: A device (`learncost list devices`), a file in TOML or JSON that describes one, here (after learncost
        calibrate), or a file of learncost calibrate `out`.
    devices: The number of devices.
    mesh: The devices as axes, such as pp=4,dp=8,tp=8: the time is that of a step over this mesh, with the links
        of the cluster.
    place: Sharding rules 'DIMS over MESH_AXIS [of weights|gradients|states|values]', comma-separated: "h f v
        over tp, M over tp of values, B over dp".
    placement: Named sharding rules, comma-separated: ddp, dp, zero-1, zero-2, zero-3, fsdp, hsdp, megatron, tp,
        megatron-sp, sp, cp, ulysses, ep, pp (`learncost list placements`).
    schedule: The pipeline schedule, for a mesh with pp: gpipe, 1f1b, interleaved (several stages on a device)
        or zb-h1.
    microbatch: Sequences in a microbatch, per data-parallel rank.
    chunks: Stages on a device in the interleaved schedule.
    plan: Memory optimizations, such as flash,fused,recompute=block (`learncost list plans`).
    procedure: The learning procedure: bp, recompute, pepita, mempepita, head-only, fa, sign-symmetric, kolen-
        pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out, dfa, dfa-linear,
        forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible, badam (`learncost
        list procedures`).
    price_book: The price book, which defines what counts as an operation: matmul, the convention of
        utilization, or another (`learncost list price-books`).
    dtype: Short form of `precision`; also tf32, of which only the peak is known.
    precision: Data type of weights, activations, gradients and optimizer states (`learncost list precisions`);
        the peak rate is that of the activations' type.
    batch_size: Sequences in one step of a device, by default 1; over a mesh the global batch, by default about
        4 million tokens.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    optimizer: adamw, sgd or momentum, for price books that count the optimizer.
    dropout: The dropout probability.
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    engine: The engine of the step's time and memory: eager, graph or cuda.
    context: For decode: tokens in the KV cache before the step.
    page_size: Tokens in a page of the KV cache, such as 16 in vLLM: each sequence has full pages.
    accumulate: Number of microbatches for gradient accumulation, on which the memory of a step depends.
    communication_buffers: Communication buffers on each device, in bytes, added to the prediction of any
        engine: DeepSpeed's ZeRO has one of reduce_bucket_size gradients, and with overlap_comm two.
    offload: Tensors outside of the memory of a GPU, under `engine` eager, comma-separated: paged-states (of
        bitsandbytes' PagedAdamW and PagedAdamW8bit, for weights of 100,000 elements or more); or on the host:
        states (of the optimizer, with master weights), optimizer (states and gradients, DeepSpeed's
        offload_optimizer), weights (these and shards of weights, FSDP's CPU offload) and activations (saved
        tensors, activation_offloading).
    task: The training objective, under `engine` eager: dpo, orpo or reward (a score of each sequence), on pairs
        of sequences, so that the batch size is even; kto; grpo or grpo-kl (its penalty), on completions that a
        separate request generates; or distillation, from a `teacher`.
    teacher: The teacher of `task` distillation, a preset or a config.json: its logits are the targets.
    no_sync: Keep full gradients on each device until the last of the `accumulate` microbatches, as FSDP's
        no_sync in Hugging Face's Trainer does, under `engine` eager with `placement` fsdp or zero-2.
    checkpoint_every: Checkpoint only the first block of each group of this size, under `engine` eager with
        `procedure` recompute.
    clip: The norm to which gradients are clipped (clip_grad_norm_), under `engine` eager or graph.
    module: The module whose autograd step is simulated: transformers (the default), transformers-uncached
        (use_cache=False), transformers-reentrant (checkpoints with use_reentrant=True), transformers-4 (before
        4.50), plain (a hand-optimized implementation) or litgpt (that trainer's own); itself: an imported
        module (the default), or the one that the installed transformers builds for a preset, which is recorded
        as it runs.
    optimizer_implementation: The implementation of PyTorch's optimizer under `engine` eager: fused (the
        default), foreach or for-loop.
    loss: The loss that is computed together with the head, under `engine` eager: liger, cut (Apple's cut cross-
        entropy), torchtune, litgpt (with LoRA), litgpt-full or olmo, each as that framework computes it.
    lora_dropout: The dropout probability of the adapters' inputs, under `engine` eager.
    mfu: Model FLOPs utilization, above 0 and at most 1; it determines the time of the run.
    hfu: Hardware FLOPs utilization: recomputed operations (`procedure` recompute) count as work too.
    tokens_per_second: The measured rate of all devices together, instead of a utilization.
    peak_tflops: The peak rate of one device in TFLOP/s, if none is published.
    power: The measured power of one device with its share of the host, in watts.
    pue: The power usage effectiveness of the data centre.
    country: The country of the data centre, as a name or three letters, for the carbon intensity of its
        electricity.
    year: The year of the carbon intensity.
    carbon_intensity: Carbon intensity in kilograms of CO2 equivalents per kWh, instead of a country's.
    price_per_hour: The price of one device per hour, in US dollars.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def search(
    model: _Model | str | Configuration | Layer,
    on: _Device | Any = None,
    devices: int | str | None = None,
    *,
    tokens: int | str | None = None,
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    precision: _Precision | str | None = None,
    budget: int | str | None = None,
    top: int | str = 8,
    price_per_hour: float | str | None = None,
    export: _Export | str | None = None,
    **sizes: Any,
) -> Search:
    r"""Find the fastest parallel configurations of a training step on a cluster: meshes, schedules and plans that
        fit.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    on: A cluster (`learncost list clusters`), or a file in TOML or JSON that describes one.
    devices: The number of devices, over all nodes.
    tokens: Tokens in the whole training run, such as 15e12: adds the days that each configuration takes.
    batch_size: The global batch size in sequences.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    precision: Precisions to try, comma-separated.
    budget: Available memory of a device, as 80GB or 75GiB.
    top: The number of configurations to show.
    price_per_hour: The price of one device per hour, in US dollars.
    export: The trainer for which the fastest configuration that it supports is written as a file: torchtitan,
        megatron, deepspeed or accelerate.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def sweep(
    model: _Model | str | Configuration | Layer,
    procedure: _Procedure | str = "bp",
    price_book: _PriceBook | str | Book = "run",
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    *,
    grid: bool = True,
    by: _By | str = "total",
    skip_invalid: bool = False,
    optimizer: _Optimizer | str | None = None,
    dropout: float | str = 0.0,
    on: _Device | Any = None,
    progress: Callable[[int, int], None] | None = None,
    precision: _Precision | str | None = None,
    **sizes: Any,
) -> Sweep:
    r"""The cost of one training step for very many configurations at once; any row equals `lc.cost` of its sizes.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    procedure: The learning procedures: bp, recompute, pepita, mempepita, head-only, fa, sign-symmetric, kolen-
        pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out, dfa, dfa-linear,
        forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible, badam, one or more
        as a comma-separated list, or all: the first four that the model supports.
    price_book: The price books: run, matmul, paper or others (`learncost list price-books`) as a comma-
        separated list, or all that count line by line.
    batch_size: One or more numbers of sequences; 1 by default.
    seq_len: One or more lengths.
    target_len: One or more of the decoder's lengths.
    grid: True takes all combinations of the values, the last size varying fastest.
    by: Rows: total, or macro-operation for a row for each macro-operation.
    skip_invalid: Leave out combinations that are not valid models, such as a width that the heads do not
        divide.
    optimizer: The optimizer: adamw, sgd or momentum.
    dropout: The dropout probability.
    on: The device, as in learncost cost: adds the columns seconds, memory and fits, for at most 1,000 rows,
        under price books run and matmul.
    progress: A function that is called with the number of configurations that are done, and of all.
    precision: Data type of weights, activations, gradients and optimizer states: fp32, fp64, bf16, fp16,
        bf16-masters, bf16-masters-fp32-gradients, amp, amp-fp16, fp16-masters, fp8, int8, bf16-true, fp16-true,
        int8-frozen, int8-frozen-fp32, int8-saved, int8-products, int8-frozen-products, int8-learned,
        int8-learned-products, integer-only, nf4, nf4-double, nf4-double-amp, nf4-double-fp32-norms, nf4-true,
        nf4-double-true, nf4-fp16, int4-frozen (`learncost list precisions`).
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """

def train(
    *paths: str,
    precision: _Precision | str | None = None,
    resume: str | None = None,
    out: str | None = None,
    or_resume: bool = False,
    trace: int | str | None = None,
    model: _Model | str = "nano",
    start: str | None = None,
    tokenizer: str | None = None,
    engine: _Engine | str | None = None,
    procedure: _Procedure | str = "bp",
    mode: _Mode | str = "stable",
    optimizer: _Optimizer | str = "adamw",
    dtype: _Dtype | str = "fp32",
    batch_size: int | None = None,
    accumulate: int = 1,
    seq_len: int | None = None,
    target_len: int | None = None,
    dropout: float = 0.0,
    learning_rate: float | None = None,
    final_learning_rate: float = 0.1,
    warm_up: int | None = None,
    beta_2: float = 0.99,
    weight_decay: float = 0.01,
    clip: float = 0.0,
    plan: _Plan | str | None = None,
    device: _Device | str = "cpu",
    deterministic: bool = False,
    budget: str | None = None,
    seed: int = 0,
    steps: int | None = None,
    minutes: float | None = None,
    validate_every: int | None = None,
    save_every: int | None = None,
    sample_every: int | None = None,
    validation_share: float = 0.05,
    peak_flops: float | None = None,
    prompt: str = "\n",
    train: _Train | str | None = None,
    train_layers: str | None = None,
    lora: _Lora | str | None = None,
    lora_rank: str | None = None,
    lora_alpha: str | None = None,
    dora: bool | None = None,
    mesh: str | None = None,
    place: str | None = None,
    placement: _Placement | str | None = None,
    schedule: str | None = None,
    microbatches: int | None = None,
    **sizes: Any,
) -> TrainingResult:
    r"""Train a model on plain files: texts, pairs or classes of texts, images with classes, sounds with texts.

    paths: UTF-8 text files and folders of them; other files in a folder are skipped and counted.
    precision: Data type of weights, activations, gradients and optimizer states: fp32 (the default), fp64,
        bf16-masters, bf16-true; with frozen weights nf4 and others (`learncost list precisions`).
    resume: Continue the run in this folder from its last checkpoint.
    out: The run's folder.
    or_resume: Continue the run in the folder of `out` if there is one, otherwise start it: the same command
        starts and continues.
    trace: The number of steps to time line by line, from the second on.
    model: nano (the default) or small, a preset (`learncost list models`), a config.json, or FILE.py:NAME, a
        module whose inputs are tokens and targets.
    start: Start from a transformers checkpoint in this folder, of a GPT-2 or Llama model.
    tokenizer: bytes, or a tokenizer.json of Hugging Face.
    engine: The engine that executes the steps: torch (the default if PyTorch is installed), numpy or jax.
    procedure: The learning procedure: bp, recompute, pepita, mempepita, head-only, fa, sign-symmetric, kolen-
        pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out, dfa, dfa-linear,
        forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible, badam (`learncost
        list procedures`).
    mode: The update rule of pepita and mempepita: stable (the default) or paper.
    optimizer: The optimizer: adamw (the default), momentum or sgd.
    dtype: Short form of `precision`.
    batch_size: Sequences in a microbatch.
    accumulate: The number of microbatches in a step (gradient accumulation).
    seq_len: Tokens in a sequence.
    target_len: The most tokens in a decoder sequence of an encoder-decoder.
    dropout: The dropout probability.
    learning_rate: The peak learning rate, after warm-up; it then follows a half cosine.
    final_learning_rate: The final learning rate as a share of the peak.
    warm_up: The number of warm-up steps.
    beta_2: The second beta of adamw.
    weight_decay: The weight decay.
    clip: The largest global gradient norm.
    plan: The plan of the step, such as recompute=gelu+norm.
    device: With `engine` torch: cpu (the default), or cuda, which runs the step of emit in Triton as a CUDA
        graph.
    deterministic: With `device` cuda: two runs are bit-identical.
    budget: With `engine` torch: available memory for a step, such as 2GB.
    seed: The seed of weights, batches, dropout and samples.
    steps: The number of steps.
    minutes: The time limit in minutes.
    validate_every: Steps between validations on held-out documents.
    save_every: Steps between checkpoints.
    sample_every: Steps between samples.
    validation_share: The held-out share of documents or examples.
    peak_flops: The peak FLOP/s of this machine, such as 2e11.
    prompt: The prompt of samples.
    train: The trainable parameters: all, head, embeddings, biases, or a comma-separated list of weights and
        modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    mesh: The mesh of the processes that torchrun starts: axes with their sizes, such as dp=2,tp=2.
    place: Sharding rules 'DIMS over MESH_AXIS [of weights|gradients|states|values]', comma-separated: "h f v
        over tp, M over tp of values, B over dp".
    placement: Named sharding rules, comma-separated: ddp, dp, zero-1, zero-2, zero-3, fsdp, hsdp, megatron, tp,
        megatron-sp, sp, cp, ulysses, ep, pp (`learncost list placements`).
    schedule: With pipeline stages (a mesh with pp): the schedule: 1f1b (the default), gpipe, or interleaved
        with two stages on each process.
    microbatches: With pipeline stages: the number of microbatches per process.
    sizes: Any size or setting of the model: `num_hidden_layers` 4, `hidden_size` 256.
    """

def report(
    *models: _Model | str,
    procedure: _Procedure | str | None = None,
    on: _Device | Any = None,
    output: str | None = "report.html",
    price_book: _PriceBook | str | Book = "run",
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    optimizer: _Optimizer | str | None = None,
    dropout: float | str = 0.0,
    dtype: _Dtype | str | None = None,
    context: int | str | None = None,
    precision: _Precision | str | None = None,
    plan: _Plan | str | None = None,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    engine: _Engine | str = "",
    accumulate: int | str | None = None,
    offload: _Offload | str = "",
    checkpoint_every: int | str = 1,
    clip: float | str | None = None,
    module: _Module | str = "",
    optimizer_implementation: _OptimizerImplementation | str = "",
    loss: _Loss | str = "",
    lora_dropout: float | str = 0.0,
    **sizes: Any,
) -> Report:
    r"""Write one HTML file with the cost of a step by layer and line, its memory, its time, and every formula.

    models: Presets, or configuration files.
    procedure: The learning procedures, comma-separated: bp, recompute, pepita, mempepita, head-only, fa, sign-
        symmetric, kolen-pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out,
        dfa, dfa-linear, forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible,
        badam; or prefill or decode for inference.
    on: The device whose time and energy are predicted (`learncost list devices`), or here.
    output: The file to write.
    price_book: The price book, which defines what one operation costs: run, matmul, paper, palm or another
        (`learncost list price-books`).
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    optimizer: The optimizer: adamw, sgd or momentum.
    dropout: The dropout probability.
    dtype: Short form of `precision`.
    context: For decode: tokens in the KV cache before the step.
    precision: Data type of weights, activations, gradients and optimizer states: fp32, fp64, bf16, fp16,
        bf16-masters, bf16-masters-fp32-gradients, amp, amp-fp16, fp16-masters, fp8, int8, bf16-true, fp16-true,
        int8-frozen, int8-frozen-fp32, int8-saved, int8-products, int8-frozen-products, int8-learned,
        int8-learned-products, integer-only, nf4, nf4-double, nf4-double-amp, nf4-double-fp32-norms, nf4-true,
        nf4-double-true, nf4-fp16, int4-frozen (`learncost list precisions`).
    plan: Memory optimizations, comma-separated: flash (FlashAttention), recompute=.
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    engine: The engine of the step's time and memory: eager, graph or cuda.
    accumulate: Number of microbatches for gradient accumulation, on which the memory of a step depends.
    offload: Tensors outside of the memory of a GPU, under `engine` eager, comma-separated: paged-states (of
        bitsandbytes' PagedAdamW and PagedAdamW8bit, for weights of 100,000 elements or more); or on the host:
        states (of the optimizer, with master weights), optimizer (states and gradients, DeepSpeed's
        offload_optimizer), weights (these and shards of weights, FSDP's CPU offload) and activations (saved
        tensors, activation_offloading).
    checkpoint_every: Checkpoint only the first block of each group of this size, under `engine` eager with
        `procedure` recompute.
    clip: The norm to which gradients are clipped (clip_grad_norm_), under `engine` eager or graph.
    module: The module whose autograd step is simulated: transformers (the default), transformers-uncached
        (use_cache=False), transformers-reentrant (checkpoints with use_reentrant=True), transformers-4 (before
        4.50), plain (a hand-optimized implementation) or litgpt (that trainer's own); itself: an imported
        module (the default), or the one that the installed transformers builds for a preset, which is recorded
        as it runs.
    optimizer_implementation: The implementation of PyTorch's optimizer under `engine` eager: fused (the
        default), foreach or for-loop.
    loss: The loss that is computed together with the head, under `engine` eager: liger, cut (Apple's cut cross-
        entropy), torchtune, litgpt (with LoRA), litgpt-full or olmo, each as that framework computes it.
    lora_dropout: The dropout probability of the adapters' inputs, under `engine` eager.
    sizes: Any size or setting of the models, such as `num_hidden_layers` 4.
    """

def trace(
    model: _Model | str | Configuration | Layer,
    procedure: _Procedure | str = "bp",
    batch_size: int | str | None = None,
    seq_len: int | str | Sequence[int] | None = None,
    target_len: int | str | None = None,
    optimizer: _Optimizer | str | None = None,
    dropout: float | str = 0.0,
    dtype: _Dtype | str | None = None,
    context: int | str | None = None,
    train: _Train | object = None,
    train_layers: object = None,
    lora: _Lora | object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    dora: bool | None = None,
    plan: _Plan | str | None = None,
    on: _Device | Any = None,
    precision: _Precision | str | None = None,
    engine: _Engine | str = "",
    module: _Module | str = "",
    *,
    output: str | None = None,
    compare: str | None = None,
    **sizes: Any,
) -> Trace:
    r"""Write the predicted step as a trace, with a slice for every line of every block and a counter for memory.

    model: A preset (`learncost list models`), the path of a config.json or of its folder, - for a config.json
        on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.
    procedure: The learning procedure of the step: bp, recompute, pepita, mempepita, head-only, fa, sign-
        symmetric, kolen-pollack, local, local-groups, local-shared, skip, skip-blocks, skip-branches, skip-out,
        dfa, dfa-linear, forward-gradient, forward-gradient-activities, mezo, evolution, galore, reversible,
        badam (`learncost list procedures`); or inference: prefill (forward pass of the prompt) or decode (one
        new token).
    batch_size: Sequences in one step.
    seq_len: Tokens in a sequence; in the encoder's sequence for an encoder-decoder.
    target_len: Tokens in a decoder sequence of an encoder-decoder.
    optimizer: The optimizer: adamw, sgd or momentum.
    dropout: The dropout probability.
    dtype: Short form of `precision`.
    context: For decode: tokens in the KV cache before the step.
    train: The trainable parameters: all, none, head, embeddings, biases, the encoder or decoder of a model with
        both, or a comma-separated list of weights and modules.
    train_layers: The blocks that are trained, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or
        "last 2".
    lora: The modules with LoRA adapters, all else frozen: q_proj,v_proj or c_attn or attention or feed_forward
        or all-linear.
    lora_rank: The rank of the LoRA adapters.
    lora_alpha: LoRA's alpha: the adapters' output is scaled by alpha / rank.
    dora: Weight-decomposed LoRA: the adapted weights' columns have trainable magnitudes, as with peft's
        use_dora.
    plan: Memory optimizations, comma-separated: flash (FlashAttention), recompute=.
    on: The device for predicted times: here (after learncost calibrate), a file of learncost calibrate `out`,
        or a published device (`learncost list devices`).
    precision: Data type of weights, activations, gradients and optimizer states: fp32, fp64, bf16, fp16,
        bf16-masters, bf16-masters-fp32-gradients, amp, amp-fp16, fp16-masters, fp8, int8, bf16-true, fp16-true,
        int8-frozen, int8-frozen-fp32, int8-saved, int8-products, int8-frozen-products, int8-learned,
        int8-learned-products, integer-only, nf4, nf4-double, nf4-double-amp, nf4-double-fp32-norms, nf4-true,
        nf4-double-true, nf4-fp16, int4-frozen (`learncost list precisions`).
    engine: The engine of the step's time and memory: eager, graph or cuda.
    module: The module whose autograd step is simulated: transformers (the default), transformers-uncached
        (use_cache=False), transformers-reentrant (checkpoints with use_reentrant=True), transformers-4 (before
        4.50), plain (a hand-optimized implementation) or litgpt (that trainer's own); itself: an imported
        module (the default), or the one that the installed transformers builds for a preset, which is recorded
        as it runs.
    output: The output file: .json for the Trace Event Format, .pftrace for Perfetto's protobuf.
    compare: A measured step, which is compared op by op: a trace of torch.profiler (export_chrome_trace), or a
        memory snapshot as JSON.
    sizes: Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or
        `architecture` BertForMaskedLM (`learncost list sizes`).
    """
