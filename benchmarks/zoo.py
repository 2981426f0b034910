"""Public modules as tables: how each is read, and how far its table is from it.

    pip install 'learncost[test,zoo]'
    python benchmarks/zoo.py docs/zoo.md          # the table; without a file it is printed
    python benchmarks/zoo.py --only resnet,llama  # some of them
    python benchmarks/zoo.py --operators          # rules and operators without one, counted

Every module is built small and without trained weights, exported, read, and held to itself in float64 under autograd.
Its products are counted beside PyTorch's FlopCounterMode. A module that cannot be read stays in the table, with what
is said of it. Rows that a file has already are kept, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

HEAD = """# A zoo of modules

These are public modules of several packages, small and without trained weights. `lc.from_module` reads each as a table,
which is compared with the module in float64. The columns are the errors of values and of gradients under autograd,
relative to the largest value and the largest gradient. The FLOPs of matrix products, forward and backward, are compared
with PyTorch's `FlopCounterMode`, with attention as plain products. `python benchmarks/zoo.py docs/zoo.md` writes this
page (extra `zoo`).

| module | parameters | value | gradient | FLOPs forward / backward | PyTorch counts |
| --- | ---: | ---: | ---: | ---: | --- |
"""

LANGUAGE = {
    "vocab_size": 30,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
GROUPED = {**LANGUAGE, "num_key_value_heads": 2, "head_dim": 4, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
IMAGES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}

DECODERS = (
    "Llama Mistral Qwen2 Qwen3 Gemma Phi3 Olmo Olmo2 Cohere Cohere2 Glm Granite Starcoder2 Nemotron Helium SmolLM3 "
    "Ernie4_5 Arcee HunYuanDenseV1 Exaone4 SeedOss"
)
MIXTURES = "Mixtral Olmoe Qwen3Moe Phimoe"
ENCODERS = "Bert Roberta Electra MPNet Camembert Ernie RoFormer ModernBert Esm"
POSITIONS = {
    "MptForCausalLM": {"d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 32, "vocab_size": 30},
    "XLNetLMHeadModel": {"d_model": 16, "n_head": 4, "n_layer": 2, "d_inner": 24, "vocab_size": 30},
}
"""Whose scores have numbers by distance."""
VISION = "ViT DeiT Dinov2 ViTMSN SiglipVision CLIPVision IJepa"
TORCHVISION = {
    "resnet18": 32,
    "mobilenet_v3_small": 32,
    "shufflenet_v2_x0_5": 32,
    "squeezenet1_1": 32,
    "efficientnet_b0": 32,
    "regnet_y_400mf": 32,
    "mnasnet0_5": 32,
    "alexnet": 64,
    "vgg11": 32,
    "densenet121": 32,
    "swin_t": 32,
    "convnext_tiny": 32,
}
TIMM = {
    "eva02_tiny_patch14_224": 28,
    "poolformer_s12": 32,
    "mobilevit_xxs": 64,
    "resmlp_12_224": 32,
    "gmlp_ti16_224": 32,
    "mixer_s32_224": 64,
    "deit_tiny_distilled_patch16_224": 32,
    "convnextv2_atto": 32,
    "edgenext_xx_small": 64,
    "efficientvit_b0": 64,
    "repvit_m0_9": 32,
    "ghostnet_100": 32,
    "lcnet_050": 32,
    "mobilenetv4_conv_small": 32,
    "pvt_v2_b0": 32,
    "starnet_s1": 32,
    "inception_next_atto": 32,
    "seresnet18": 32,
    "mambaout_femto": 32,
    "twins_svt_small": 32,
    "test_nfnet": 64,
    "test_maxvit": 64,
    "resnest14d": 64,
    "botnet26t_256": 64,
    "nest_tiny": 64,
    "volo_d1_224": 64,
    "focalnet_tiny_srf": 64,
    "gcvit_xxtiny": 64,
    "mvitv2_tiny": 64,
}
SHALLOW = {
    "beit_base_patch16_224": (32, {"depth": 2, "embed_dim": 24, "num_heads": 2}),
    "swinv2_tiny_window8_256": (64, {"depths": (1, 1, 1, 1), "embed_dim": 24, "window_size": 2}),
    "hiera_tiny_224": (64, {"stages": (1, 1, 1, 1), "embed_dim": 24}),
    "cait_xxs24_224": (32, {"depth": 2}),
    "convit_tiny": (32, {"depth": 2}),
    "tnt_s_patch16_224": (32, {"depth": 1}),
    "sequencer2d_s": (32, {"layers": (1, 1, 1, 1)}),
    "vit_small_patch16_dinov3": (32, {"depth": 2}),
    "vit_small_patch14_reg4_dinov2": (28, {"depth": 2}),
    "xcit_nano_12_p16_224": (32, {"depth": 2, "batch": 2}),
    "levit_128s": (64, {"batch": 2}),
    "lambda_resnet26rpt_256": (64, {"batch": 2}),
    "efficientformerv2_s0": (64, {"batch": 2}),
    "efficientvim_m1": (64, {"batch": 2}),
    "shvit_s1": (64, {"batch": 2}),
    "fasternet_t0": (64, {"batch": 2}),
}
"""Of timm, most with fewer blocks than they have: the side of an image, and what they are built with. With one image
some would be held to gradients of PyTorch that are off (docs/module-limits.md): of these a batch is two."""
IN_PARTS = {
    "video.r3d_18": (3, 4, 16, 16),
    "video.r2plus1d_18": (3, 4, 16, 16),
    "segmentation.lraspp_mobilenet_v3_large": (3, 32, 32),
}
"""Of torchvision's packages: what they are given."""


def cases() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """The modules by name, each with what builds it and its inputs."""
    for name in DECODERS.split():
        yield f"transformers {name}ForCausalLM", lambda name=name: _transformers(f"{name}ForCausalLM", name, GROUPED)
    for name in MIXTURES.split():
        yield f"transformers {name}ForCausalLM", lambda name=name: _transformers(f"{name}ForCausalLM", name, EXPERTS)
    for name in ENCODERS.split():
        yield f"transformers {name}Model", lambda name=name: _transformers(f"{name}Model", name, LANGUAGE)
    for kind, settings in POSITIONS.items():
        name = kind.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
        yield f"transformers {kind}", lambda kind=kind, name=name, s=settings: _transformers(kind, name, s)
    for name in VISION.split():
        yield f"transformers {name}Model", lambda name=name: _transformers(f"{name}Model", name, IMAGES)
    for name, side in TIMM.items():
        yield f"timm {name}", lambda name=name, side=side: _timm(name, side)
    for name, side in TORCHVISION.items():
        yield f"torchvision {name}", lambda name=name, side=side: _torchvision(name, side)
    for name, (side, settings) in SHALLOW.items():
        yield f"timm {name}", lambda name=name, side=side, settings=settings: _timm(name, side, **settings)
    for name, shape in IN_PARTS.items():
        yield f"torchvision {name}", lambda name=name, shape=shape: _part_of_torchvision(name, shape)
    yield "torchvision optical_flow.raft_small, two updates", _flow
    yield "torchvision video.MViT, two stages", _video
    yield "torchvision detection: ResNet-18 with a pyramid, RetinaNetHead", _detection
    yield "torchvision googlenet in training, its auxiliary outputs too", _auxiliary
    yield "torch nn.Transformer, its answers read too", _translation
    yield "torch nn.LSTM in both directions, projected", _projected
    yield "diffusers UNet2DModel", _unet
    yield "diffusers AutoencoderKL", _autoencoder
    yield "diffusers DiTTransformer2DModel", _dit
    yield "peft LoRA on LlamaForCausalLM", _lora
    yield "transformers SegformerForSemanticSegmentation", _segformer
    yield "transformers SamVisionModel", _sam
    yield "transformers Wav2Vec2Model in training", _speech
    yield "transformers EncodecModel", _codec
    yield "transformers MimiModel", _mimi
    yield "diffusers SD3Transformer2DModel", _stable_diffusion
    yield "diffusers FluxTransformer2DModel", _flux
    yield "diffusers WanTransformer3DModel", _wan
    yield "diffusers UNet2DConditionModel", _conditioned
    yield "diffusers ControlNetModel", _control
    yield "diffusers CosmosTransformer3DModel", _cosmos


def _transformers(kind: str, name: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    import torch
    import transformers

    configuration = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, kind)(configuration).eval()
    if "image_size" in settings:
        return model, {"pixel_values": torch.randn(2, 3, 16, 16)}
    tokens = {"input_ids": torch.randint(5, 30, (2, 5))}
    return model, {**tokens, "use_cache": False} if kind.endswith("CausalLM") else tokens


def _timm(name: str, side: int, batch: int = 1, **settings: Any) -> tuple[Any, Any]:
    import timm
    import torch

    try:
        model = timm.create_model(name, num_classes=10, img_size=side, **settings)
    except TypeError:  # a network that takes any size is not told one
        model = timm.create_model(name, num_classes=10, **settings)
    return model.eval(), (torch.randn(batch, 3, side, side),)


def _torchvision(name: str, side: int) -> tuple[Any, Any]:
    import torch
    import torchvision

    return getattr(torchvision.models, name)(weights=None).eval(), (torch.randn(1, 3, side, side),)


def _part_of_torchvision(path: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    import torch
    import torchvision

    part, _, name = path.partition(".")
    none = {"weights_backbone": None} if part == "segmentation" else {}
    module = getattr(getattr(torchvision.models, part), name)(weights=None, **none)
    return module.eval(), (torch.randn(1, *shape),)


def _flow() -> tuple[Any, Any]:
    import torch
    from torchvision.models.optical_flow import raft_small

    images = {name: torch.randn(1, 3, 128, 128) for name in ("image1", "image2")}
    return raft_small(weights=None).eval(), {**images, "num_flow_updates": 2}


def _video() -> tuple[Any, Any]:
    import torch
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    kernels = {"kernel_q": [3, 3, 3], "kernel_kv": [3, 3, 3]}
    first = MSBlockConfig(
        num_heads=1, input_channels=16, output_channels=32, stride_q=[1, 1, 1], stride_kv=[1, 4, 4], **kernels
    )
    second = MSBlockConfig(
        num_heads=2, input_channels=32, output_channels=32, stride_q=[1, 2, 2], stride_kv=[1, 2, 2], **kernels
    )
    model = MViT((32, 32), 4, [first, second], True, False, True, True, num_classes=5)
    return model.eval(), (torch.randn(1, 3, 4, 32, 32),)


def _detection() -> tuple[Any, Any]:
    import torch
    from torch import nn
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.models.detection.retinanet import RetinaNetHead

    class Detection(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
            self.head = RetinaNetHead(256, 3, 5)

        def forward(self, image: Any) -> Any:
            return self.head(list(self.backbone(image).values()))

    return Detection().eval(), (torch.randn(1, 3, 64, 64),)


def _auxiliary() -> tuple[Any, Any]:
    import torch
    from torchvision.models import googlenet

    model = googlenet(weights=None, init_weights=False)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.train(), (torch.randn(3, 3, 64, 64),)


def _translation() -> tuple[Any, Any]:
    import torch
    from torch import nn

    class Translation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
            self.stacks = nn.Transformer(8, 2, 2, 2, 16, 0.0, batch_first=True, norm_first=True)

        def forward(self, source: Any, target: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            found = self.stacks(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
            return nn.functional.cross_entropy(self.head(found).transpose(1, 2), target)

    return Translation(), (torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 4)))


def _projected() -> tuple[Any, Any]:
    import torch

    return torch.nn.LSTM(5, 6, 2, bidirectional=True, proj_size=3), (torch.randn(4, 3, 5),)


def _unet() -> tuple[Any, Any]:
    import torch
    from diffusers import UNet2DModel

    model = UNet2DModel(8, 3, 3, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
                        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4)  # fmt: skip
    return model.eval(), {"sample": torch.randn(1, 3, 8, 8), "timestep": torch.tensor([3]), "return_dict": False}


def _autoencoder() -> tuple[Any, Any]:
    import torch
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=2)
    return model.eval(), {"sample": torch.randn(1, 3, 8, 8), "return_dict": False}


def _dit() -> tuple[Any, Any]:
    import torch
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(2, 4, in_channels=3, num_layers=1, norm_num_groups=4, sample_size=8, patch_size=2)
    inputs = {
        "hidden_states": torch.randn(1, 3, 8, 8),
        "timestep": torch.tensor([3]),
        "class_labels": torch.tensor([1]),
    }
    return model.eval(), {**inputs, "return_dict": False}


def _lora() -> tuple[Any, Any]:
    from peft import LoraConfig, get_peft_model

    model, inputs = _transformers("LlamaForCausalLM", "Llama", GROUPED)
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).eval(), inputs


def _segformer() -> tuple[Any, Any]:
    import torch
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes = {"hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16}
    model = SegformerForSemanticSegmentation(SegformerConfig(depths=[1, 1, 1, 1], num_labels=5, **sizes))
    return model.eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}


def _sam() -> tuple[Any, Any]:
    import torch
    from transformers import SamVisionConfig, SamVisionModel

    sizes = {**IMAGES, "num_hidden_layers": 2, "image_size": 32, "output_channels": 16, "mlp_dim": 24}
    sizes.pop("intermediate_size")
    model = SamVisionModel(SamVisionConfig(global_attn_indexes=[1], window_size=3, num_pos_feats=8, **sizes))
    return model.eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}


def _speech() -> tuple[Any, Any]:
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    sizes = {**LANGUAGE, "conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [8, 4], "num_feat_extract_layers": 2}
    sizes |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    sizes |= dict.fromkeys(("layerdrop", "mask_time_prob", "hidden_dropout", "activation_dropout"), 0.0)
    sizes |= dict.fromkeys(("attention_dropout", "feat_proj_dropout"), 0.0)
    return Wav2Vec2Model(Wav2Vec2Config(**sizes)).train(), {"input_values": torch.randn(2, 64)}


def _codec() -> tuple[Any, Any]:
    import torch
    from transformers import EncodecConfig, EncodecModel

    sizes = {"hidden_size": 8, "num_filters": 4, "upsampling_ratios": [2, 2], "codebook_size": 8, "codebook_dim": 8}
    model = EncodecModel(EncodecConfig(num_lstm_layers=1, sampling_rate=400, target_bandwidths=[1.5], **sizes))
    return model.eval(), {"input_values": torch.randn(2, 1, 32)}


def _mimi() -> tuple[Any, Any]:
    import torch
    from transformers import MimiConfig, MimiModel

    sizes = {"num_filters": 4, "upsampling_ratios": [2, 2], "codebook_size": 8, "codebook_dim": 8, "num_quantizers": 3}
    sizes |= {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 4, "head_dim": 4, "upsample_groups": 16, "sampling_rate": 400, "frame_rate": 50}
    model = MimiModel(MimiConfig(vector_quantization_hidden_dimension=8, sliding_window=8, **sizes))
    return model.eval(), {"input_values": torch.randn(2, 1, 64)}


def _stable_diffusion() -> tuple[Any, Any]:
    import torch
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(8, 2, 4, 2, 4, 4, 12, 16, 8, 4, 8, (0,), "rms_norm")
    inputs = {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "encoder_hidden_states": torch.randn(2, 5, 12),
        "pooled_projections": torch.randn(2, 8),
        "timestep": torch.tensor([3, 3]),
    }
    return model.eval(), {**inputs, "return_dict": False}


def _flux() -> tuple[Any, Any]:
    import torch
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(1, 4, None, 1, 1, 8, 2, 12, 8, True, (2, 2, 4))
    inputs = {
        "hidden_states": torch.randn(2, 6, 4),
        "encoder_hidden_states": torch.randn(2, 5, 12),
        "pooled_projections": torch.randn(2, 8),
        "timestep": torch.tensor([0.3, 0.3]),
        "img_ids": torch.randint(0, 4, (6, 3)).float(),
        "txt_ids": torch.zeros(5, 3),
        "guidance": torch.ones(2),
    }
    return model.eval(), {**inputs, "return_dict": False}


def _wan() -> tuple[Any, Any]:
    import torch
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel((1, 2, 2), 2, 12, 4, 4, 12, 8, 24, 1, rope_max_seq_len=16)
    inputs = {
        "hidden_states": torch.randn(2, 4, 2, 4, 4),
        "encoder_hidden_states": torch.randn(2, 5, 12),
        "timestep": torch.tensor([3, 3]),
    }
    return model.eval(), {**inputs, "return_dict": False}


CONDITIONED = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "cross_attention_dim": 12,
    "attention_head_dim": 2,
}


def _conditioned() -> tuple[Any, Any]:
    import torch
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(8, 4, 4, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **CONDITIONED)
    inputs = {
        "sample": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 7]),
        "encoder_hidden_states": torch.randn(2, 5, 12),
    }
    return model.eval(), {**inputs, "return_dict": False}


def _control() -> tuple[Any, Any]:
    import torch
    from diffusers import ControlNetModel

    model = ControlNetModel(4, 3, conditioning_embedding_out_channels=(4, 8), **CONDITIONED)
    _, inputs = _conditioned()
    return model.eval(), {**inputs, "controlnet_cond": torch.randn(2, 3, 16, 16)}


def _cosmos() -> tuple[Any, Any]:
    import torch
    from diffusers import CosmosTransformer3DModel

    model = CosmosTransformer3DModel(4, 4, 2, 16, 1, 2.0, 12, 4, (4, 8, 8))
    inputs = {
        "hidden_states": torch.randn(2, 4, 2, 8, 8),
        "timestep": torch.tensor([0.3, 0.7]),
        "encoder_hidden_states": torch.randn(2, 5, 12),
        "attention_mask": torch.ones(2, 5),
        "fps": 30,
        "padding_mask": torch.zeros(1, 1, 8, 8),
    }
    return model.eval(), {**inputs, "return_dict": False}


def row(name: str, make: Callable[[], tuple[Any, Any]]) -> str:
    """A line of the table."""
    import torch
    from module_parity import parity, read_module

    from learncost.ir.errors import InputError
    from learncost.verification.imported import products

    torch.manual_seed(0)
    try:
        module, inputs = make()
        imported = read_module(module, inputs)
        apart = parity(module, inputs, imported)
        counts = products(module, inputs, imported)
    except InputError as error:
        return f"| {name} | refused | | | | {str(error).replace('|', '/')} |"
    except Exception as error:  # whatever a package or PyTorch raises is told, not hidden
        return f"| {name} | failed | | | | {type(error).__name__}: {str(error).splitlines()[:1]} |".replace("|:", ":")
    ours, theirs = (f"{a:,} / {b:,}" for a, b in (counts.table, counts.torch))
    explanation = "equal" if counts.equal else f"{theirs}; {counts.reason or 'not explained'}"
    cells = [f"{apart.parameters:,}", f"{apart.value:.0e}", f"{apart.gradient:.0e}", ours, explanation]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def operators() -> str:
    """How the importer reads PyTorch's core operators: their number by what reads them, and those that nothing does."""
    import torch

    from learncost.importer.export import RULES, WRITTEN_OUT, is_of_primitives
    from learncost.importer.nodes import operator_name
    from learncost.importer.reading import COMPLEX_RULES, rule_of

    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    every = [getattr(each, name) for each in packets if hasattr(each, "overloads") for name in each.overloads()]
    origins: dict[str, list[str]] = {
        origin: [] for origin in ("a rule", "lines here", "PyTorch's decomposition", "nothing")
    }
    for core in (each for each in every if torch.Tag.core in each.tags):
        name, parts = operator_name(core), torch._decomp.decomposition_table.get(core)
        known = [rule_of(name, RULES), rule_of(name, WRITTEN_OUT), parts and not is_of_primitives(parts)]
        origins[next((origin for origin, reads in zip(origins, known, strict=False) if reads), "nothing")].append(name)
    by_origin = ", ".join(f"{len(names)} by {origin}" for origin, names in origins.items())
    rules = f"{len(RULES)} names with {len({*RULES.values()})} rules, {len(COMPLEX_RULES)} names of complex numbers"
    return (
        f"{sum(map(len, origins.values()))} core operators: {by_origin}\n{rules}, {len(WRITTEN_OUT)} written out\n"
        f"By nothing, as backward passes, tensors without a gradient or opaque: {', '.join(origins['nothing'])}"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--only", default="", help="parts of names, with commas between them")
    parser.add_argument("--operators", action="store_true", help="how many operators the importer has rules for")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.operators:
        print(operators())
        return
    known = {}
    if arguments.file and arguments.file.exists():
        lines = [line for line in arguments.file.read_text().splitlines() if line.startswith("| ")]
        known = {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}
    for name, make in cases():
        if not any(part in name for part in arguments.only.split(",")) or name in known:
            continue
        known[name] = row(name, make)
        print(known[name], flush=True)
        if arguments.file:
            order = [known[each] for each, _ in cases() if each in known]
            arguments.file.write_text(HEAD + "\n".join(order) + "\n")


if __name__ == "__main__":
    main()
