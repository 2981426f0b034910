"""The predicted peak of a training step of any PyTorch module beside the one that PyTorch's allocator hands out.

    python benchmarks/imported_peaks.py [--only linear,llama] [--dtype fp32,bf16]

Needs torch and transformers (extra `test`), and for the rows of their modules torchvision, timm, diffusers and peft
(extra `zoo`). Each module is read by `lc.from_module`; its memory is `lc.memory(..., engine="eager")`. Beside it two
steps of AdamW (fused) run on a processor, as in peaks.py. bf16 is a module in bf16 throughout. What kernels of products
take for themselves is apart: the last column has what that adds.
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


def _transformers(kind: str, config: str, attention: str = "sdpa", **more: Any) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        settings = getattr(transformers, config)(**{**LANGUAGE, **STILL, **more})
        settings._attn_implementation = attention
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


class Recurrent(nn.Module):
    """An LSTM of two layers, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


class Heads(nn.Module):
    """PyTorch's own module of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.heads(y, y, y, need_weights=False)[0]


class UNet(nn.Module):
    """Two levels, a pool, an interpolation, a joined skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = self._block(3, 16), self._block(16, 32)
        self.up, self.last = self._block(48, 16), nn.Conv2d(16, 3, 1)

    @staticmethod
    def _block(inner: int, outer: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        y = self.middle(nn.functional.max_pool2d(skip, 2))
        y = nn.functional.interpolate(y, scale_factor=2, mode="nearest")
        return self.last(self.up(torch.cat([y, skip], 1)))


class Diffused(nn.Module):
    """A denoiser's result."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return self.inner(x, times).sample.mean()


def _diffusers() -> Any:
    import diffusers

    sizes: dict[str, Any] = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
    kinds = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return Diffused(diffusers.UNet2DModel(sample_size=32, **sizes, **kinds))


def _diffused(dtype: torch.dtype) -> dict[str, Any]:
    return {"x": torch.randn(BATCH, 3, 32, 32, dtype=dtype), "times": torch.arange(BATCH)}


def _timm(name: str, **more: Any) -> Callable[[], Any]:
    def build() -> Any:
        import timm

        return timm.create_model(name, **more)

    return build


def _adapted() -> Any:
    import peft

    model = _transformers("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2)()
    return peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


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
    "LSTM": (Recurrent, _sequence),
    "MultiheadAttention": (Heads, _sequence),
    "U-Net": (UNet, _images()),
    "t5": (
        _transformers("T5ForConditionalGeneration", "T5Config", d_model=WIDTH, d_kv=32, d_ff=3 * WIDTH, num_layers=2,
                      num_heads=4, dropout_rate=0.0, decoder_start_token_id=0),
        _masked,
    ),
    "gemma2": (
        _transformers("Gemma2ForCausalLM", "Gemma2Config", "eager", num_key_value_heads=2, head_dim=32), _tokens,
    ),
    "mamba": (
        _transformers("MambaForCausalLM", "MambaConfig", "eager", num_hidden_layers=2, state_size=8), _tokens,
    ),
    "llama with LoRA (peft)": (_adapted, _tokens),
    "UNet2DModel (diffusers)": (_diffusers, _diffused),
    "vit_tiny (timm)": (_timm("vit_tiny_patch16_224", img_size=64), _images()),
    "efficientnet_b0 (timm)": (_timm("efficientnet_b0"), _images()),
    "swin_tiny (timm)": (_timm("swin_tiny_patch4_window7_224", img_size=112, window_size=7), _images(side=112)),
    "resnetv2_50 (timm)": (_timm("resnetv2_50"), _images()),
}  # fmt: skip
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRECISIONS = {"fp32": "fp32", "bf16": "bf16-true"}


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


def predicted(
    build: Callable[[], Any], given: Callable[[torch.dtype], dict[str, Any]], dtype: str, on: str | None = None
) -> int:
    """What `learncost memory` says of the module."""
    inputs = given(torch.float32)
    layer = lc.from_module(built(build, inputs), inputs)
    return lc.memory(layer, engine="eager", on=on, optimizer="adamw", precision=PRECISIONS[dtype]).peak


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
