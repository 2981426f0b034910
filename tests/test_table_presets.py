"""Presets that are tables, and config.json files of types that no family here has: what is read, what is refused."""

import json
import sys

import numpy as np
import pytest

import learncost as lc
from learncost.cli import emit_c99
from learncost.cli.command import main
from learncost.engines.numpy_engine import Training
from learncost.engines.state import from_state
from learncost.importer.files import reading
from learncost.importer.pipeline import values_of
from learncost.ir.errors import InputError
from learncost.models.argument import described_elsewhere, presets, table_presets
from learncost.models.configuration import configure

NAMES = [preset.name for preset in table_presets()]

PUBLISHED = {
    "resnet-18": 11_689_512,
    "resnet-50": 25_557_032,
    "convnext-tiny": 28_589_128,
    "swin-tiny": 28_288_354,
    "clip-vit-b-32": 151_277_313,
    "siglip-base-patch16-224": 203_155_970,
    "wav2vec2-base": 94_396_320,
    "dit-xl-2-256": 675_129_632,
}
"""torchvision's own num_params for the images' models, the safetensors of the others' repositories, DiT's paper."""


@pytest.mark.one_in(every=11)
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


def test_the_table_of_dit_is_its_paper():
    """118.64 Gflops, which are MACCs: Peebles & Xie 2023, table 4; and values and gradients of its code, in PyTorch."""
    forward = lc.cost("dit-xl-2-256", price_book="torch-flop-counter").macro_operations["forward"][1]
    assert forward.maccs / 1e9 == pytest.approx(118.64, abs=0.03)
    torch = pytest.importorskip("torch")
    table = configure("dit-xl-2-256").layer.table
    sizes = {"n_layer": 2, "B": 2, "c": 3, "i": 2, "j": 3, "u": 2, "w": 2, "y": 4, "x": 6, "o": 4}
    sizes |= {"e": 6, "d": 5, "v": 4, "n": 6, "m": 2, "h": 2, "k": 3, "f": 8}
    draw = np.random.default_rng(0)
    arrays = {
        name: draw.standard_normal([sizes[axis.rstrip("'")] for axis in table.axes[name]])
        for name in (*table.weights, "latents", "angles")
    }
    arrays["labels"] = np.array([3, 1])
    W = {name: torch.tensor(array, requires_grad=array.dtype.kind == "f") for name, array in arrays.items()}
    silu, linear = torch.nn.functional.silu, torch.tensordot

    def modulated(X, shift, scale):
        normal = torch.nn.functional.layer_norm(X, X.shape[-1:], eps=1e-6)
        return normal * (1 + scale[:, None]) + shift[:, None]

    patches = W["latents"].reshape(2, 3, 2, 2, 3, 2).permute(0, 2, 4, 1, 3, 5)
    X = (linear(patches, W["patch.W"], 3) + W["patch.b"] + W["P"]).reshape(2, 6, 6)
    time = silu(W["angles"] @ W["time.W1"] + W["time.b1"]) @ W["time.W2"] + W["time.b2"]
    C = silu(time + W["classes"][W["labels"]])
    for iteration in range(sizes["n_layer"]):
        own = {name.removeprefix("blocks.each."): W[name][iteration] for name in W if ".each." in name}
        A = (linear(C, own["adaLN.W"], 1) + own["adaLN.b"]).unbind(1)
        H = modulated(X, A[0], A[1])
        Q, K, V = (linear(H, own[f"attn.W{letter}"], 1) + own[f"attn.b{letter}"] for letter in "QKV")
        heads = torch.nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (Q, K, V)))
        X = X + A[2][:, None] * (linear(heads.transpose(1, 2), own["attn.WO"], 2) + own["attn.bO"])
        U = modulated(X, A[3], A[4]) @ own["mlp.W1"] + own["mlp.b1"]
        X = X + A[5][:, None] * (torch.nn.functional.gelu(U, approximate="tanh") @ own["mlp.W2"] + own["mlp.b2"])
    shift, scale = (linear(C, W["final.adaLN.W"], 1) + W["final.adaLN.b"]).unbind(1)
    Y = (linear(modulated(X, shift, scale), W["final.W"], 1) + W["final.b"]).reshape(2, 2, 3, 2, 2, 4)
    noise = torch.einsum("bijuwo->boiujw", Y)
    seed = draw.standard_normal(noise.shape)
    (noise * torch.tensor(seed)).sum().backward()
    ours = lc.run(table, {**arrays, "dnoise": seed})
    np.testing.assert_allclose(ours["noise"], noise.detach().numpy(), atol=1e-12)
    for name in (*table.weights,):
        if name != "P":
            np.testing.assert_allclose(ours[f"d{name}"], W[name].grad.numpy(), atol=1e-10, err_msg=name)


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
    from module_parity import parity, read_module

    from learncost.importer.configured import inputs_of, module_of
    from learncost.importer.inputs import checked, tensors

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
    read, times = reading._read, list[object]()
    monkeypatch.setattr(reading, "_read", lambda *given: times.append(given) or read(*given))
    assert main(["cost", str(file), "--B", "4"]) == 0
    first = capsys.readouterr()
    assert f"{count:,} parameters" in first.out
    assert len(times) == 1
    importing = ["import", str(file), "-o", str(tmp_path / "x.table")]  # its pass in evaluation, too, is read once
    for ops, is_read in ((["memory", str(tmp_path), "--B", "4"], False), (importing, True), (importing, False)):
        before = len(times)
        assert main(ops) == 0
        assert (len(times) > before) is is_read  # else it is remembered
    assert lc.cost(str(tmp_path / "x.table"), B=4).parameters == count


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "resnext"}, "model_type 'resnext' is unknown; did you mean 'resnet'"),
        (
            {"model_type": "lama"},
            "did you mean 'llama' or 'mllama' or 'llama4'?; a module of your own is given as FILE.py",
        ),
        ({"model_type": "mine", "auto_map": {"AutoModel": "mine.py"}}, "remote code (AutoModel) is not run"),
        ({"model_type": "resnet", "architectures": ["ResNetForPoetry"]}, "no class 'ResNetForPoetry' for this type"),
        ({"model_type": "resnet", "architectures": ["OutEnvironment"]}, "no class 'OutEnvironment' for this type"),
        ({"model_type": "convnext", "depths": "many"}, "transformers cannot build 'convnext' of this file"),
        ({"_class_name": "os.system"}, "diffusers"),
    ],
)
def test_what_another_package_does_not_have_is_one_line(tmp_path, monkeypatch, capsys, values, message):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    assert main(["cost", str(file), "--B", "2"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("missing", [("torch",), ("transformers", "diffusers"), ("torch", "transformers", "diffusers")])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "lama", "hidden_size": 64}, "model_type 'lama' is unknown; did you mean 'llama'"),
        (
            {"model_type": "nobody-has-this"},
            "model_type 'nobody-has-this' is unknown; a module of your own is given as",
        ),
        (
            {"_class_name": "UNetXD"},
            "no family of models here has the class 'UNetXD'; diffusers is needed to build its types",
        ),
    ],
)
def test_a_type_that_nobody_has_is_said_first_where_packages_are_missing(
    tmp_path, monkeypatch, capsys, values, message, missing
):
    """What a package would say is not known without it; that the type is unknown here is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    for ops in (["cost", str(file)], ["memory", str(tmp_path)], ["import", str(file)]):
        assert main(ops) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert "pip install" in error
        assert ("learncost[torch]" in error) == ("torch" in missing)


def test_resnet_18_predicts_as_its_module_in_evaluation_and_updates_running_statistics():
    """A state_dict of transformers' module goes in; its eval() and its own statistics after a batch are the oracle."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    preset = next(each for each in table_presets() if each.name == "resnet-18")
    torch.manual_seed(0)
    values = {name: value for name, value in preset.values.items() if name not in ("model_type", "architectures")}
    module = transformers.ResNetForImageClassification(transformers.ResNetConfig(**values))
    with torch.no_grad():
        for path, buffer in module.named_buffers():
            if path.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand(buffer.shape))
    training = Training(configure("resnet-18"), optimizer="sgd", dtype=np.float32)
    arrays = from_state(emit_c99._stored(training.configuration), values_of(module), "its module")
    training.load(arrays, training.state, 0)
    training.hold(arrays)
    image, labels = torch.randn(1, 3, 224, 224), torch.tensor([3])
    batch = {"pixel_values": image.numpy(), "targets": labels.numpy()}
    with torch.no_grad():
        expected = module.eval()(image).logits.log_softmax(-1)
    _, scores = training.look(**batch)
    np.testing.assert_allclose(scores, expected.numpy(), atol=2e-4)
    training.step(**batch)
    with torch.no_grad():
        module.train()(image)
    buffers = dict(module.named_buffers())
    for path in ("resnet.embedder.embedder", "resnet.encoder.stages.3.layers.1.layer.1"):
        for kind in ("running_mean", "running_var", "num_batches_tracked"):
            name = f"{path}.normalization.{kind}"
            np.testing.assert_allclose(training.state[name], buffers[name].numpy(), rtol=1e-4, err_msg=name)


def test_presets_that_are_tables_need_no_pytorch():
    before = "torch" in sys.modules
    assert not {preset.name for preset in presets()} & set(NAMES)
    assert lc.memory("resnet-18", B=2).peak > 4 * 11_689_512
    assert ("torch" in sys.modules) is before
