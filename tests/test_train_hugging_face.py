"""Checkpoints of transformers, read, trained and written, against transformers itself."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from learncost.engines import hugging_face
from learncost.engines.numpy_engine import Training
from learncost.engines.options import Options
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.training.folder import Folder
from learncost.training.generate import Decoder
from learncost.training.loop import start
from trainings_on_disk import Silent

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 300, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"bos_token_id": 256, "eos_token_id": 256, "max_position_embeddings": 64}
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 40}
MODELS = {
    "gpt2": ("gpt2", {}),
    "gpt2, untied, wider": ("gpt2", {"tie_word_embeddings": False, "n_inner": 50}),
    "gpt2, another activation": ("gpt2", {"activation_function": "relu", "layer_norm_epsilon": 1e-3}),
    "gpt2, gelu by erf": ("gpt2", {"activation_function": "gelu"}),
    "llama": ("llama", {**GROUPED, "rms_norm_eps": 1e-5}),
    "llama, one key-value head": ("llama", {"num_key_value_heads": 1, "intermediate_size": 37}),
    "llama, tied": ("llama", {**GROUPED, "tie_word_embeddings": True, "head_dim": 10}),
    "llama, biases": ("llama", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
    "llama, other angles": (
        "llama",
        {**GROUPED, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
    ),
    "mistral, a window": ("mistral", {**GROUPED, "sliding_window": 5}),
    "qwen2, biases of queries, keys and values": ("qwen2", GROUPED),
}


@pytest.fixture(params=MODELS)
def checkpoint(request, tmp_path):
    """A folder that transformers saved, and the module, its parameters random: gains of one would hide faults."""
    family, keys = MODELS[request.param]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES, **keys)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    module.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs", module


def logits_of(module, tokens):
    with torch.no_grad():
        return module(torch.tensor(tokens)).logits.numpy()


def our_logits(configuration, weights, tokens):
    values = Training(configuration, weights=weights, dtype=np.float32).forward(tokens)
    return values["P.L"]


def test_logits_of_their_checkpoint(checkpoint):
    folder, module = checkpoint
    configuration = configure(str(folder))
    model = build(configuration)
    weights = hugging_face.read(model, folder)
    tokens = np.random.default_rng(0).integers(0, 300, (2, 20))
    theirs = logits_of(module, tokens)
    np.testing.assert_allclose(our_logits(configuration, weights, tokens), theirs, atol=1e-4)
    # Token by token with the cache: the logits after the tenth token and after each of those that follow.
    decoder = Decoder(configuration, weights)
    found = [decoder.begin(tokens[0, :10]), *(decoder.next(int(token)) for token in tokens[0, 10:])]
    np.testing.assert_allclose(found, theirs[0, 9:], atol=1e-4)


def test_every_tensor_comes_back_bit_for_bit(checkpoint):
    folder, module = checkpoint
    model = build(configure(str(folder)))
    tensors = hugging_face.to_checkpoint(model, hugging_face.read(model, folder))
    parameters = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    assert tensors.keys() == parameters.keys()
    assert all(np.array_equal(tensors[name], parameters[name]) for name in parameters)


@pytest.mark.one_in(every=14)
def test_fine_tuned_it_loads_in_transformers(checkpoint, tmp_path):
    folder, module = checkpoint
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 60)
    options = Options(
        engine="numpy",
        paths=(str(tmp_path / "text.txt"),),
        start=str(folder),
        steps=5,
        batch_size=2,
        seq_len=16,
        learning_rate=1e-2,
    )
    result = start(options, tmp_path / "run", Silent())
    assert result.steps == 5
    loaded, loading_info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not any(loading_info.values())  # no tensor is missing, left over or of another shape
    tokens = np.random.default_rng(0).integers(0, 300, (2, 20))
    theirs = logits_of(loaded.eval(), tokens)
    assert np.abs(theirs - logits_of(module, tokens)).max() > 1e-2  # it has learned something
    run = Folder(tmp_path / "run")
    weights = run.weights(build(run.configuration()))
    np.testing.assert_allclose(our_logits(run.configuration(), weights, tokens), theirs, atol=1e-4)


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_from_scratch_loads_in_transformers(family, tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 60)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "intermediate_size": 40, **SIZES}))
    options = Options(
        engine="numpy",
        paths=(str(tmp_path / "text.txt"),),
        model=str(tmp_path / "config.json"),
        steps=3,
        seq_len=16,
        batch_size=2,
    )
    start(options, tmp_path / "run", Silent())
    loaded, loading_info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not any(loading_info.values())
    run = Folder(tmp_path / "run")
    configuration = run.configuration()
    assert configuration.sizes["vocab_size"] == 257  # bytes and the end: the tokenizer says how many
    tokens = np.random.default_rng(0).integers(0, 257, (2, 20))
    ours = our_logits(configuration, run.weights(build(configuration)), tokens)
    np.testing.assert_allclose(ours, logits_of(loaded.eval(), tokens), atol=1e-4)
    # Its tokenizer says our numbers, of whatever text, and gives the text back.
    own = transformers.AutoTokenizer.from_pretrained(tmp_path / "run", local_files_only=True)
    for text in ("to be\n  or not\tto be", "Ünïcode, 日本語 🙂 \x00\x7f", "<|endoftext|> is text", " a  b ", ""):
        assert own(text)["input_ids"] == list(run.tokenizer().encode(text.encode()))
        assert own.decode(own(text)["input_ids"]) == text
    assert own.eos_token_id == run.tokenizer().end == configuration.sizes["vocab_size"] - 1
    writes = transformers.pipeline("text-generation", model=str(tmp_path / "run"), device="cpu")
    (written,) = writes("to be", max_new_tokens=4, do_sample=False)
    assert written["generated_text"].startswith("to be")


def test_half_precision_and_several_files_are_read(tmp_path):
    # What is stored in bfloat16 is exactly what torch makes of it in float32.
    config = transformers.AutoConfig.for_model("llama", **SIZES, **GROUPED)
    module = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    module.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    model = build(configure(str(tmp_path / "theirs")))
    tensors = hugging_face.to_checkpoint(model, hugging_face.read(model, tmp_path / "theirs"))
    for name, parameter in module.named_parameters():
        assert np.array_equal(tensors[name], parameter.detach().float().numpy())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "no such file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"PK\3\4" * 50), "is damaged, or not a file in"),
        (lambda folder: edit(folder, hidden_size=48), "but by config.json it must be"),
        (lambda folder: edit(folder, num_hidden_layers=4), "has no tensor model.layers.3.input_layernorm.weight"),
        (lambda folder: edit(folder, vocab_size=256), "has 256 tokens, but the tokenizer has 257"),
        (
            lambda folder: edit(folder, model_type="qwen3", architectures=["Qwen3ForCausalLM"]),
            "checkpoints of qwen3 cannot be read",
        ),
        (lambda folder: edit(folder, rope_parameters={"rope_type": "mrope"}), "no frequency of the kind 'mrope'"),
        (lambda folder: edit(folder, rope_parameters={"rope_type": "linear"}), "of the kind 'linear without a factor'"),
        (lambda folder: without_numbers(folder / "model.safetensors"), "ln_f holds numbers that are not finite"),
    ],
)
def test_what_cannot_be_started_from(change, message, tmp_path):
    config = transformers.AutoConfig.for_model("llama", **SIZES, **GROUPED)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "theirs")
    change(tmp_path / "theirs")
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 60)
    options = Options(paths=(str(tmp_path / "text.txt"),), start=str(tmp_path / "theirs"), steps=1, seq_len=8)
    with pytest.raises(InputError, match=message) as raised:
        start(options, tmp_path / "run", Silent())
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def without_numbers(path):
    """Another norm at the end, as a training that went astray leaves it."""
    arrays = load_file(path)
    save_file(arrays | {"model.norm.weight": np.full_like(arrays["model.norm.weight"], np.nan)}, path)


@pytest.mark.parametrize(
    ("preset", "theta"),
    # config.json of meta-llama, mistralai and Qwen, under these names.
    [
        ("llama-2-7b", 1e4),
        ("llama-3-8b", 5e5),
        ("llama-3.2-1b", 5e5),
        ("mistral-7b-v0.3", 1e6),
        ("qwen2.5-0.5b", 1e6),
        ("qwen3-8b", 1e6),
        ("qwen1.5-moe-a2.7b", 1e6),
        ("olmo-2-7b", 5e5),
        ("smollm3-3b", 5e6),
    ],
)
def test_presets_turn_by_their_own_angles(preset, theta):
    assert configure(preset, {"num_hidden_layers": 1}).settings["rope_theta"] == theta


def edit(folder, **changes):
    """Another config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
