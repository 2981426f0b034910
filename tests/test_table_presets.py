"""Presets that are tables, and config.json files of types that no family here has: what is read, what is refused."""

import json
import sys

import pytest

import learncost as lc
from learncost.equation.errors import InputError
from learncost.faces.command import main
from learncost.models.argument import described_elsewhere
from learncost.models.configuration import configure
from learncost.models.presets import presets, table_presets

NAMES = [preset.name for preset in table_presets()]

PUBLISHED = {
    "resnet-18": 11_689_512,
    "resnet-50": 25_557_032,
    "convnext-tiny": 28_589_128,
    "swin-tiny": 28_288_354,
    "clip-vit-b-32": 151_277_313,
    "siglip-base-patch16-224": 203_155_970,
    "wav2vec2-base": 94_396_320,
}
"""torchvision's own num_params for the images' models, and the safetensors of the others' repositories."""


@pytest.mark.parametrize("preset", table_presets(), ids=NAMES)
def test_a_preset_that_is_a_table_costs_what_its_parameters_say(preset):
    step = lc.cost(preset.name, price_book="matmul")
    assert step.parameters == PUBLISHED.get(preset.name, preset.parameters)
    assert step.model == preset.name
    assert lc.cost(preset.name, price_book="matmul", B=4).total.flops > step.total.flops


def test_the_usual_sizes_of_a_table_are_those_of_one_sample():
    """torchvision prints the multiply-adds of one image, forward, in its weights' metadata: 4.09 and 1.81 billion."""
    for name, billions in (("resnet-50", 4.09), ("resnet-18", 1.81), ("convnext-tiny", 4.46), ("swin-tiny", 4.49)):
        forward = lc.cost(name, price_book="torch-flop-counter").macro_operations["forward"][1]
        assert round(forward.maccs / 1e9, 2) == pytest.approx(billions, abs=0.03), name


def test_a_config_json_of_the_very_model_is_the_preset(tmp_path):
    preset = next(each for each in table_presets() if each.name == "resnet-18")
    values = {**preset.values, "transformers_version": "4.30", "torch_dtype": "float32", "hidden_act": "relu"}
    assert configure(values).layer == configure("resnet-18").layer
    values["id2label"] = {str(label): "x" for label in range(values.pop("num_labels"))}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    assert configure(str(file)).layer == configure("ResNet18").layer == configure("microsoft/resnet-18").layer
    for other in ({"depths": [3, 4, 6, 3]}, {"downsample_in_first_stage": True}, {"num_channels": 1}):
        with pytest.raises(InputError, match="'resnet' is unknown"):
            configure({**values, **other})


def test_what_is_described_elsewhere(tmp_path):
    file = tmp_path / "config.json"
    for values, elsewhere in (
        ({"model_type": "gpt2"}, False),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, False),
        ({"model_type": "resnet"}, True),
        ({"_class_name": "UNet2DModel"}, True),
        ({}, False),
    ):
        file.write_text(json.dumps(values))
        assert (described_elsewhere(str(file)) is not None) is elsewhere
        assert (described_elsewhere(str(tmp_path)) is not None) is elsewhere
    file.write_text("{")
    assert described_elsewhere(str(file)) is None
    assert described_elsewhere("gpt2") is None


SMALL = {
    "resnet": {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 2], "layer_type": "basic", "num_labels": 3},
    "convnext": {"hidden_sizes": [4, 6], "depths": [1, 2], "num_stages": 2, "image_size": 16, "num_labels": 3},
    "swin": {"embed_dim": 4, "depths": [2], "num_heads": [2], "image_size": 16, "window_size": 2, "num_labels": 3},
    "modernbert": {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 4,
                   "num_attention_heads": 2, "pad_token_id": 0, "local_attention": 4},
    "clip": {"projection_dim": 4, "text_config": {"vocab_size": 11, "hidden_size": 4, "intermediate_size": 6,
             "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8, "eos_token_id": 2},
             "vision_config": {"hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
             "num_attention_heads": 2, "image_size": 8, "patch_size": 4}},
    "wav2vec2": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 6,
                 "vocab_size": 7, "conv_dim": [4, 4], "conv_stride": [50, 4], "conv_kernel": [100, 4],
                 "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
}  # fmt: skip
CLASSES = {
    "resnet": "ResNetForImageClassification",
    "convnext": "ConvNextForImageClassification",
    "swin": "SwinForImageClassification",
    "modernbert": "ModernBertForMaskedLM",
    "clip": "CLIPModel",
    "wav2vec2": "Wav2Vec2ForCTC",
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "convnext" else pytest.mark.slow) for kind in SMALL]
)
def test_the_table_of_a_small_model_of_its_type_is_its_module(kind):
    """Values and all gradients against autograd in float64, parameters to the unit."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from learncost.models.imported.configured import inputs_of, module_of
    from learncost.models.imported.inputs import checked, tensors
    from learncost.models.imported.walk import read_module
    from learncost.proof.imported import parity

    torch.manual_seed(0)
    module = module_of({"model_type": kind, "architectures": [CLASSES[kind]], **SMALL[kind]}).eval()
    inputs = checked(inputs_of(module), module, kind)
    values = tensors(inputs, {"B": 3, "M": 5})
    for name, value in values.items():
        if hasattr(value, "dtype") and not value.dtype.is_floating_point:
            values[name] = torch.randint(1, 3, value.shape)
        elif hasattr(value, "dtype"):
            values[name] = torch.randn(value.shape)
    imported = read_module(module, values)
    apart = parity(module, values, imported)
    assert apart.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert max(apart.value, apart.gradient) < 1e-10


def test_every_command_reads_a_config_json_of_another_package(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "config.json"
    values = {"model_type": "convnext", "architectures": [CLASSES["convnext"]], **SMALL["convnext"]}
    file.write_text(json.dumps(values))
    config = transformers.ConvNextConfig(**SMALL["convnext"])
    count = transformers.ConvNextForImageClassification(config).num_parameters()
    assert main(["cost", str(file), "--B", "4"]) == 0
    first = capsys.readouterr()
    assert f"{count:,} parameters" in first.out
    assert "reads" in first.err
    for words in (["memory", str(tmp_path), "--B", "4"], ["import", str(file), "-o", str(tmp_path / "x.table")]):
        assert main(words) == 0
        assert "reads" not in capsys.readouterr().err  # it is remembered
    assert lc.cost(str(tmp_path / "x.table"), B=4).parameters == count


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "resnext"}, "model_type 'resnext' is not known to transformers"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "mine.py"}}, "code of its own (AutoModel) is not run"),
        ({"model_type": "resnet", "architectures": ["ResNetForPoetry"]}, "no class 'ResNetForPoetry' of this type"),
        ({"model_type": "resnet", "architectures": ["OutEnvironment"]}, "no class 'OutEnvironment' of this type"),
        ({"model_type": "convnext", "depths": "many"}, "transformers cannot build 'convnext' of this file"),
        ({"_class_name": "os.system"}, "diffusers"),
    ],
)
def test_what_another_package_does_not_have_is_one_line(tmp_path, monkeypatch, capsys, values, said):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    assert main(["cost", str(file), "--B", "2"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_presets_that_are_tables_need_no_pytorch():
    before = "torch" in sys.modules
    assert not {preset.name for preset in presets()} & set(NAMES)
    assert lc.memory("resnet-18", B=2).peak > 4 * 11_689_512
    assert ("torch" in sys.modules) is before
