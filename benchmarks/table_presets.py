"""Presets that are tables: published models whose family no file describes, read from their packages' own modules.

DiT's is typed from its paper: diffusers' class has other parameters. It is held to it, as the others to their module.

    pip install 'learncost[test,zoo]'
    python benchmarks/table_presets.py               # all of them
    python benchmarks/table_presets.py --only resnet # some of them, beside those that are there

Each is built by transformers or diffusers from the keys of its config.json, without weights, exported, read and folded;
its parameters must be as many as were published. The batch stays open, and is 1 where nothing says it.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
import warnings
from dataclasses import dataclass, field
from typing import Any

from learncost.importer.configured import inputs_of, module_of
from learncost.importer.inputs import parse_inputs
from learncost.importer.pipeline import ImportOptions, evaluation_of, table_of
from learncost.importer.refusals import DataDependentError
from learncost.importer.tried import allocate, without_memory
from learncost.layers.active import parameters
from learncost.layers.layer import EVALUATION, Layer, layer
from learncost.models.argument import TABLES
from learncost.procedures.statistics import statistics_of

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))


@dataclass(frozen=True)
class Published:
    """A published model: keys of its config.json that say more than its class does, and its parameters."""

    name: str
    title: str
    source: str
    parameters: int
    config: dict[str, Any]
    hub: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    sizes: str = "B=1"
    inputs: tuple[str, ...] = field(default=())
    stands: bool = False  # its table stands there already, and is not read again


IMAGENET = {"num_labels": 1000}

PUBLISHED = (
    Published(
        "resnet-18", "ResNet-18 with its classifier", "He et al. 2016, table 1; torchvision, resnet18",
        11_689_512,
        {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "depths": [2, 2, 2, 2],
         "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic", **IMAGENET},
        ("microsoft/resnet-18",), ("resnet18",),
    ),
    Published(
        "resnet-50", "ResNet-50 with its classifier", "He et al. 2016, table 1; torchvision, resnet50",
        25_557_032,
        {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "depths": [3, 4, 6, 3],
         "hidden_sizes": [256, 512, 1024, 2048], "layer_type": "bottleneck", **IMAGENET},
        ("microsoft/resnet-50",), ("resnet50",),
    ),
    Published(
        "convnext-tiny", "ConvNeXt-T with its classifier", "Liu et al. 2022, table 1; torchvision, convnext_tiny",
        28_589_128,
        {"model_type": "convnext", "architectures": ["ConvNextForImageClassification"], "depths": [3, 3, 9, 3],
         "hidden_sizes": [96, 192, 384, 768], **IMAGENET},
        ("facebook/convnext-tiny-224",), ("convnext-t",),
    ),
    Published(
        "swin-tiny", "Swin-T, windows of 7, with its classifier", "Liu et al. 2021, table 1; torchvision, swin_t",
        28_288_354,
        {"model_type": "swin", "architectures": ["SwinForImageClassification"], "depths": [2, 2, 6, 2],
         "embed_dim": 96, "num_heads": [3, 6, 12, 24], "window_size": 7, **IMAGENET},
        ("microsoft/swin-tiny-patch4-window7-224",), ("swin-t",),
    ),
    Published(
        "clip-vit-b-32", "CLIP, ViT-B/32: both towers and the contrastive loss",
        "Radford et al. 2021, section 2; safetensors of openai/clip-vit-base-patch32, 151,277,313 without positions' "
        "numbers",
        151_277_313,
        {"model_type": "clip", "architectures": ["CLIPModel"]},
        ("openai/clip-vit-base-patch32",), (), "B=2 M=77",
    ),
    Published(
        "siglip-base-patch16-224", "SigLIP, base, images of 224: both towers and the sigmoid loss",
        "Zhai et al. 2023; model card of google/siglip-base-patch16-224, 0.2B (203,155,970)",
        203_155_970,
        {"model_type": "siglip", "architectures": ["SiglipModel"]},
        ("google/siglip-base-patch16-224",), ("siglip-base",), "B=2",
        ("input_ids: int B 64", "pixel_values: float B 3 224 224", "return_loss = true"),
    ),
    Published(
        "modernbert-base", "ModernBERT, base, with its masked language model",
        "Warner et al. 2024, arXiv 2412.13663, table 4; config.json of answerdotai/ModernBERT-base",
        149_655_232,
        {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]},
        ("answerdotai/modernbert-base",), (), "B=1 M=512",
    ),
    Published(
        "wav2vec2-base", "wav2vec 2.0, base, with a head of characters; one second of sound",
        "Baevski et al. 2020, section 4.2; safetensors of facebook/wav2vec2-base-960h, 94,396,320",
        94_396_320,
        {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]},
        ("facebook/wav2vec2-base-960h",), (), "B=1",
    ),
    Published(
        "dit-xl-2-256", "DiT-XL/2 on images of 256, with classes", "Peebles & Xie 2023, section 3.2 and table 4",
        675_129_632,
        {"model_type": "dit-xl-2", "hidden_size": 1152, "depth": 28, "num_heads": 16, "input_size": 32},
        ("facebook/dit-xl-2-256",), ("dit-xl-2",), stands=True,
    ),
)  # fmt: skip

NOISE = ("transformers_version", "dtype", "id2label", "label2id", "architectures", "return_dict", "problem_type")
"""Settings that say nothing about a model, or that a file says otherwise."""


def settings_of(config: Any) -> dict[str, Any]:
    """What a class says beside a file's keys: a file that says otherwise is another model."""
    values = dict(config) if isinstance(config, dict) else config.to_dict()
    kept = {key: value for key, value in values.items() if key not in NOISE and not key.startswith(("_", "output_"))}
    return {
        key: settings_of(value) if isinstance(value, dict) else value
        for key, value in kept.items()
        if value is not None and "drop" not in key and "initializer" not in key and "token_id" not in key
    }


def written(model: Published) -> dict[str, Any]:
    """Write the table of one model, and return what the index says of it."""
    entry: dict[str, Any] = {"title": model.title, "source": model.source, "hub": list(model.hub)}
    entry |= {"aliases": list(model.aliases)} if model.aliases else {}
    if model.stands:
        made = layer((TABLES / f"{model.name}.table").read_text(encoding="utf-8"))
        _counted(model, made)
        index: dict[str, dict[str, Any]] = json.loads((TABLES / "index.json").read_text(encoding="utf-8"))
        return index[model.name]
    module = None
    with without_memory():
        module = module_of(model.config)
    allocate(module)
    given = parse_inputs(model.inputs) or inputs_of(module)
    mode = ""
    try:
        text, described = table_of(module, given, model.name, ImportOptions())
    except DataDependentError:
        text, described = table_of(module.eval(), given, model.name, ImportOptions())
        mode = ", as in evaluation"
    made = layer(text)
    count = _counted(model, made)
    package = "diffusers" if "_class_name" in model.config else "transformers"
    version = __import__(package).__version__
    remarks = [f"{model.title}: {model.source}.", f"Read from {type(module).__name__} of {package} {version}{mode}."]
    remarks.append(f"Inputs: {'; '.join(described)}.")
    body = _body(text)
    lines = "".join(f"% {line}\n" for line in remarks)
    evaluation = evaluation_of(module, given, model.name, text, ImportOptions()) if statistics_of(made.table) else ""
    lines += f"{body}\nsizes: {model.sizes}\n"
    lines += f"{EVALUATION}\n{_body(evaluation)}\nsizes: {model.sizes}\n" if evaluation else ""
    (TABLES / f"{model.name}.table").write_text(lines, encoding="utf-8")
    settings = settings_of(module.config)
    usual = {key: value for key, value in settings.items() if key not in model.config}
    print(f"{model.name}: {count:,} parameters, {len(body.splitlines())} lines", flush=True)
    return {**entry, "parameters": count, "config": model.config, "usual": usual}


def _body(text: str) -> str:
    """A table without its remarks."""
    return "\n".join(line for line in text.strip().splitlines() if not line.startswith("%"))


def _counted(model: Published, made: Layer) -> int:
    """The parameters of a table, which must be those that were published."""
    count = int(parameters(made.table).at(made.sizes)) + (made.unread or 0)
    if count != model.parameters:
        raise SystemExit(f"{model.name} has {count:,} parameters, and {model.parameters:,} are published")
    return count


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, with commas between them")
    parts = parser.parse_args().only.split(",")
    warnings.filterwarnings("ignore")
    index = TABLES / "index.json"
    known = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {}
    for model in PUBLISHED:
        if any(part in model.name for part in parts):
            known[model.name] = written(model)
            order = {each.name: known[each.name] for each in PUBLISHED if each.name in known}
            index.write_text(json.dumps(order, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
