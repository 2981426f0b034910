"""The predicted peak of a training step of any PyTorch module beside the one that PyTorch's allocator hands out.

    python benchmarks/imported_peaks.py [--only linear,llama] [--dtype fp32,bf16]

Needs torch and transformers (extra `test`), torchvision for the rows of its modules (extra `zoo`). Each module is read
by `lc.from_module`; its memory is `lc.memory(..., engine="autograd")`. Beside it two steps of AdamW (fused) run on a
processor, as in peaks.py. bf16 is a module in bf16 throughout. What kernels of products take for themselves is apart.
"""

from __future__ import annotations

import argparse
import logging
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from measure import show
from torch import nn

import learncost as lc

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from allocator import apart  # noqa: E402 - the folder of the tests comes first

BATCH, LENGTH, WIDTH = 8, 64, 128


class Attention(nn.Module):
    """Attention written out, causal, of four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, m, d = x.shape
        q, k, v = (each.view(b, m, 4, d // 4).transpose(1, 2) for each in self.qkv(x).split(d, -1))
        scores = q @ k.transpose(-2, -1) * (d // 4) ** -0.5
        mask = torch.ones(m, m, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, m, d))


class Fused(nn.Module):
    """Attention by PyTorch's own function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, m, d = x.shape
        q, k, v = (each.view(b, m, 4, d // 4).transpose(1, 2) for each in self.qkv(x).split(d, -1))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(a.transpose(1, 2).reshape(b, m, d))


class Residual(nn.Module):
    """A norm, a network and a sum."""

    def __init__(self, act: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.act = norm, act
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.act(self.first(self.norm(x))))


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Squeeze(nn.Module):
    """Squeeze and excitation over a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.down, self.up = nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        s = torch.sigmoid(self.up(torch.relu(self.down(y.mean((2, 3))))))
        return y * s[:, :, None, None]


class Classified(nn.Module):
    """A network with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 1000))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), labels)


class Ended(nn.Module):
    """A module whose result ends in a number, as a loss does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).mean()


def _sequence(dtype: torch.dtype) -> dict[str, Any]:
    return {"x": torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype)}


def _images(channels: int = 3, side: int = 64) -> Callable[[torch.dtype], dict[str, Any]]:
    return lambda dtype: {"x": torch.randn(BATCH, channels, side, side, dtype=dtype)}


def _labelled(dtype: torch.dtype) -> dict[str, Any]:
    return {"x": torch.randn(BATCH * LENGTH, WIDTH, dtype=dtype), "labels": torch.randint(0, 1000, (BATCH * LENGTH,))}


def _tokens(dtype: torch.dtype) -> dict[str, Any]:
    tokens = torch.randint(3, 500, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens.clone(), "use_cache": False}


def _masked(dtype: torch.dtype) -> dict[str, Any]:
    return {key: value for key, value in _tokens(dtype).items() if key != "use_cache"}


LANGUAGE: Mapping[str, Any] = {
    "vocab_size": 500, "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


def _transformers(kind: str, config: str, **more: Any) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        settings = getattr(transformers, config)(**{**LANGUAGE, **STILL, **more})
        settings._attn_implementation = "sdpa"
        return getattr(transformers, kind)(settings)

    return build


def _torchvision(name: str) -> Callable[[], Any]:
    def build() -> Any:
        import torchvision

        return getattr(torchvision.models, name)(weights=None)

    return build


def _encoder() -> Any:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


CASES: Mapping[str, tuple[Callable[[], Any], Callable[[torch.dtype], dict[str, Any]]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), _sequence),
    "mlp relu": (lambda: Residual(nn.ReLU(), nn.LayerNorm(WIDTH)), _sequence),
    "mlp gelu": (lambda: Residual(nn.GELU(), nn.LayerNorm(WIDTH)), _sequence),
    "mlp tanh, rms": (lambda: Residual(nn.Tanh(), nn.RMSNorm(WIDTH)), _sequence),
    "swiglu": (Gated, _sequence),
    "attention written out": (Attention, _sequence),
    "attention, fused": (Fused, _sequence),
    "TransformerEncoder": (_encoder, _sequence),
    "classifier with its loss": (Classified, _labelled),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2)),
        _images(),
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        _images(),
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()),
        _images(),
    ),
    "squeeze and excitation": (Squeeze, _images(16, 32)),
    "gpt2": (
        _transformers("GPT2LMHeadModel", "GPT2Config", n_embd=WIDTH, n_layer=3, n_head=4, attn_pdrop=0.0,
                      bos_token_id=1, eos_token_id=2),
        _tokens,
    ),
    "llama": (_transformers("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2), _tokens),
    "qwen3": (_transformers("Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=32), _tokens),
    "bert": (_transformers("BertForMaskedLM", "BertConfig"), _masked),
    "modernbert": (_transformers("ModernBertForMaskedLM", "ModernBertConfig"), _masked),
    "resnet18": (_torchvision("resnet18"), _images()),
    "mobilenet_v3_small": (_torchvision("mobilenet_v3_small"), _images()),
    "squeezenet1_1": (_torchvision("squeezenet1_1"), _images()),
    "convnext_tiny": (_torchvision("convnext_tiny"), _images()),
}  # fmt: skip
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRECISIONS = {"fp32": "fp32", "bf16": "bf16-pure"}


def built(build: Callable[[], Any], inputs: Mapping[str, Any]) -> Any:
    """The module in training, with a number at its end."""
    module = build()
    return (Ended(module) if [*inputs] == ["x"] else module).train()


def train(build: Callable[[], Any], given: Callable[[torch.dtype], dict[str, Any]], dtype: torch.dtype) -> None:
    """Two steps as a user writes them."""
    inputs = given(dtype)
    module = built(build, inputs).to(dtype)
    steps = torch.optim.AdamW(module.parameters(), fused=True)
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        result = module(**inputs)
        getattr(result, "loss", result).backward()
        del result
        steps.step()


def predicted(build: Callable[[], Any], given: Callable[[torch.dtype], dict[str, Any]], dtype: str) -> int:
    """What `learncost memory` says of the module."""
    inputs = given(torch.float32)
    layer = lc.from_module(built(build, inputs), inputs)
    return lc.memory(layer, engine="autograd", optimizer="adamw", precision=PRECISIONS[dtype]).peak


def main() -> None:
    """Measure, and print a line for every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, with commas between them")
    parser.add_argument("--dtype", default="fp32,bf16")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    rows = []
    for name, (build, given) in CASES.items():
        if not any(part in name for part in chosen.only.split(",")):
            continue
        for dtype in chosen.dtype.split(","):
            torch.manual_seed(0)
            try:
                whole, measured = apart(lambda: train(build, given, DTYPES[dtype]))  # noqa: B023
                ours = predicted(build, given, dtype)
            except (ImportError, lc.InputError, RuntimeError) as error:
                print(name, dtype, str(error).splitlines()[0][:150], file=sys.stderr)
                continue
            row = [name, dtype, f"{ours:,}", f"{measured:,}", f"{ours / measured:.3f}", f"{whole / measured - 1:.1%}"]
            print(*row, file=sys.stderr, flush=True)
            rows.append(row)
    show("Peaks of imported modules", ["module", "dtype", "predicted", "measured", "ratio", "kernels' buffers"], rows)


if __name__ == "__main__":
    main()
