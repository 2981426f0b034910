"""Training from plain files of every kind: what is read, what a batch holds, and that it is learned."""

import json
import shutil
import sys
import wave

import numpy as np
import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.engines.options import Options
from learncost.engines.tokenizer import ByteTokenizer
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.training.data import tasks
from learncost.training.data.corpus import ListLine
from learncost.training.data.examples import Examples
from learncost.training.data.media import log_mel, resampled, samples
from learncost.training.data.tasks import task
from learncost.training.folder import Folder
from learncost.training.loop import go_on, start
from trainings_on_disk import Silent, same

NARROW = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
STACKS = {"hidden_size": 16, "n_enc": 1, "n_dec": 1, "num_attention_heads": 2, "intermediate_size": 32}
WIDE = STACKS | {"decoder_attention_heads": 2, "decoder_ffn_dim": 32}
VIT = ("images", "vit-base-patch16-224", NARROW | {"image_size": 8, "patch_size": 4})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of every kind, each with something to learn."""
    images = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("data")
    numbers = np.random.default_rng(0)
    for name in ("text", "images", "sounds"):
        (folder / name).mkdir()
    for at in range(6):
        (folder / "text" / f"{at}.txt").write_text("the quick brown fox jumps over the lazy dog. " * 8 + str(at))
    colours, lines = ("blue", "green", "red"), ["label,file,of"]
    for at in range(30):
        pixels = numbers.integers(0, 60, (8, 8, 3)).astype(np.uint8)
        pixels[..., 2 - at % 3] += 150
        images.fromarray(pixels).save(folder / "images" / f"{at}.png")
        (folder / "classes" / colours[at % 3]).mkdir(parents=True, exist_ok=True)
        images.fromarray(pixels).save(folder / "classes" / colours[at % 3] / f"{at}.png")
        lines.append(f'{colours[at % 3]},{at}.png,"nobody, nowhere"')
    (folder / "images" / "labels.csv").write_text("\n".join(lines))
    letters = ["".join(numbers.choice(list("abc"), 4)) for _ in range(40)]
    (folder / "pairs.tsv").write_text("".join(f"{op}\t{op[:2]}\n" for op in letters))
    (folder / "labels.tsv").write_text(
        "".join(f"{'ab'[at % 2] * 5}{at}\t{'no' if at % 2 else 'yes'}\n" for at in range(40))
    )
    spelled = [(" ".join(op), " ".join("01"[letter == "a"] for letter in op)) for op in letters]
    (folder / "words.tsv").write_text("text\tlabels\n" + "".join(f"{ops}\t{names}\n" for ops, names in spelled))
    for at in range(12):
        sound = np.sin(2 * np.pi * (300 + 500 * (at % 2)) * np.arange(1000 + at) / 16000)
        with wave.open(str(folder / "sounds" / f"{at}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes((sound * 2**14).astype("<i2").tobytes())
    (folder / "sounds" / "list.tsv").write_text("".join(f"{at}.wav\t{'ab'[at % 2]}\n" for at in range(12)))
    return folder


def options(data, kind, model, sizes, **more):
    usual = {"engine": "numpy", "steps": 12, "batch_size": 4, "learning_rate": 1e-2, "sample_every": 12}
    lengths = {} if kind in ("images", "sounds", "classes") else {"seq_len": 12}
    return Options(paths=(str(data / kind),), model=model, sizes=sizes, **{**usual, **lengths, **more})


KINDS = [
    ("text", "bert-base", NARROW | {"architecture": "BertForMaskedLM"}),
    ("text", "bert-base", NARROW | {"architecture": "BertForPreTraining"}),
    ("text", "electra-small-discriminator", NARROW | {"embedding_size": 8}),
    ("text", "encoder", NARROW),
    ("labels.tsv", "bert-base", NARROW | {"architecture": "BertForSequenceClassification"}),
    ("labels.tsv", "gpt2", NARROW | {"architecture": "GPT2ForSequenceClassification"}),
    ("words.tsv", "bert-base", NARROW | {"architecture": "BertForTokenClassification"}),
    ("text", "deberta-base", NARROW | {"architecture": "DebertaForMaskedLM"}),
    ("pairs.tsv", "t5-small", STACKS | {"head_dim": 8}),
    ("pairs.tsv", "bart-base", WIDE),
    ("pairs.tsv", "encoder-decoder", STACKS),
    ("sounds", "whisper-tiny", WIDE | {"max_source_positions": 5, "num_mel_bins": 8}),
    VIT,
    ("classes", *VIT[1:]),
]


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize(("kind", "model", "sizes"), KINDS, ids=lambda own: own if isinstance(own, str) else "")
def test_every_kind_is_learned_and_goes_on(kind, model, sizes, data, tmp_path):
    report = Silent()
    more = {"learning_rate": 3e-2, "steps": 20, "sample_every": 20} if kind == "labels.tsv" else {}
    start(options(data, kind, model, sizes, **more), tmp_path / "whole", report)
    first, last = report.steps[0], report.steps[-1]
    assert last.loss < first.loss
    assert (last.accuracy is None) == (kind in ("text", "pairs.tsv", "sounds") and "electra" not in model)
    (sample,) = report.samples
    assert "predicted" in sample or "right" in sample or "replaced" in sample


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("at", [0, 8, -2])
def test_pieces_are_the_whole_bit_for_bit(at, data, tmp_path):
    start(options(data, *KINDS[at], steps=3), tmp_path / "whole", Silent())
    start(options(data, *KINDS[at], steps=3), tmp_path / "parts", Silent(), stop=lambda: True)
    go_on(tmp_path / "parts", Silent())
    assert same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_engines_take_the_steps_of_numpy(engine, data, tmp_path):
    pytest.importorskip(engine)
    found = []
    for name in ("numpy", engine):
        report = Silent()
        start(options(data, *VIT, engine=name, dtype="fp64", steps=3), tmp_path / name, report)
        found.append([step.loss for step in report.steps] + [report.steps[-1].validation_loss])
    assert found[0] == pytest.approx(found[1], abs=1e-9)


# What batches hold


def test_masks_are_those_of_bert():
    """15 % of the tokens of each row are to be said: 80 % are masks, a tenth another token, a tenth stays."""
    own, draw = ByteTokenizer(masks=True), np.random.default_rng(0)
    rows = draw.integers(0, 256, (400, 101))
    rows[:, 50] = own.end
    found = tasks.masked(rows, draw, own)
    chosen = found["targets"] >= 0
    assert (chosen.sum(axis=1) == 15).all()
    assert not chosen[:, 50].any()
    tokens = rows[:, :-1]
    assert (found["targets"][chosen] == tokens[chosen]).all()
    assert (found["tokens"] == tokens)[~chosen].all()
    shares = [(found["tokens"] == own.mask)[chosen].mean(), (found["tokens"] == tokens)[chosen].mean()]
    assert shares == pytest.approx([0.8, 0.1], abs=0.02)
    replaced = tasks.replaced(rows, draw, own)
    assert ((replaced["tokens"] != tokens) == replaced["targets"]).all()
    assert replaced["targets"].mean() == pytest.approx(0.15, abs=0.005)


def test_a_second_half_is_the_next_one_or_another_row_s():
    rows = np.arange(6)[:, None] * 10 + np.arange(9)
    found = tasks.two_sentences(rows, np.random.default_rng(1), ByteTokenizer(masks=True))
    plain = np.where(found["targets"] >= 0, found["targets"], found["tokens"])
    follows = plain[:, 0] // 10 == plain[:, -1] // 10
    assert (follows == (found["labels"] == 0)).all()
    assert 0 < found["labels"].sum() < 6
    assert (found["types"] == [[0] * 4 + [1] * 4] * 6).all()


def test_pairs_are_shifted_as_transformers_shifts(data):
    bart = pytest.importorskip("transformers.models.bart.modeling_bart")
    torch = pytest.importorskip("torch")
    own = task(configure("bart-base"), ByteTokenizer(), Options(seq_len=5, target_len=3))
    rows = {"encoder_tokens": [np.array([7, 8]), np.arange(9)], "targets": [np.array([5, 256]), np.arange(4)]}
    found = own.reader.batch(rows, {"encoder_tokens": 9, "targets": 4})
    assert found["encoder_tokens"].tolist() == [[7, 8, 0, 0, 0], [0, 1, 2, 3, 4]]
    assert found["encoder_mask"].tolist() == [[True, True, False, False, False], [True] * 5]
    assert found["targets"].tolist() == [[5, 256, -1], [0, 1, 2]]
    labels = torch.tensor(np.where(found["targets"] < 0, -100, found["targets"]))
    theirs = bart.shift_tokens_right(labels, pad_token_id=0, decoder_start_token_id=256)
    assert found["tokens"].tolist() == theirs.tolist()


def test_spectrograms_are_whisper_s():
    feature_extraction = pytest.importorskip("transformers.models.whisper.feature_extraction_whisper")
    numbers = np.random.default_rng(0)
    for channels, length in ((80, 5000), (128, 20000)):
        theirs = feature_extraction.WhisperFeatureExtractor(feature_size=channels, chunk_length=1)
        sound = numbers.normal(size=length) * 0.1
        expected = theirs(sound, sampling_rate=16000, return_tensors="np")["input_features"][0].T
        np.testing.assert_allclose(log_mel(sound, 100, channels), expected, atol=2e-5)  # theirs are fp32


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_every_width(width, tmp_path):
    sound = np.array([[0.5, -0.25], [-1.0, 0.75]])
    whole = np.round(sound * 2 ** (8 * width - 1)).astype(np.int64) + (128 if width == 1 else 0)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((2, width, 16000, 0, "NONE", ""))
        file.writeframes(b"".join(int(n).to_bytes(width, "little", signed=width > 1) for n in whole.ravel()))
    found = samples(ListLine(tmp_path / "l.tsv", 1, "a.wav", ""), (tmp_path / "a.wav").read_bytes())
    assert found == pytest.approx(sound.mean(axis=1), abs=2**-7)


@pytest.mark.parametrize(("rate", "length"), [(8000, 501), (8000, 500), (44100, 4410), (44100, 4411), (16000, 300)])
def test_sounds_are_resampled_as_scipy_does(rate, length):
    signal = pytest.importorskip("scipy.signal")
    sound = np.random.default_rng(length).normal(size=length)
    expected = signal.resample(sound, round(length * 16000 / rate))
    np.testing.assert_allclose(resampled(sound, rate), expected, atol=1e-12)


def test_an_epoch_has_every_example_once():
    own = Examples({"labels": np.arange(10)})
    seen = np.concatenate([own.stream(3, at, 4) for at in range(0, 20, 4)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist()
    assert own.stream(3, 8, 4).tolist() == seen[8:12].tolist()


# What is refused


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize(
    ("flags", "change", "message"),  # flags begin with the data and the model
    [
        ("images VIT", ("labels.csv", "file,label\n0.png,a\nno.png,b"), "labels.csv line 3: there is no file"),
        ("images VIT", ("1.png", "nothing"), "is not a readable image: it must be a PNG or a JPEG"),
        ("images VIT", ("labels.csv", "0.png,a\n1.png,a"), "at least two classes are needed, not a"),
        ("images VIT", ("labels.csv", "0.png\n1.png"), "line 1 has 1 column, and must be file and label with"),
        ("images VIT --num-labels 2", None, "remove --num-labels: the data has 3 classes"),
        ("images VIT --num-channels 2", None, "images have 1, 3 or 4 channels"),
        ("images VIT --seq-len 7", None, "reads 5 positions, not 7"),
        ("text VIT", None, "this model learns from images with classes, a .csv"),
        ("text bart-base", None, "this model learns from pairs of texts, a .tsv with SOURCE, a tab and TARGET"),
        ("sounds whisper-tiny", ("list.tsv", "0.wav\ta\nlist.tsv\tb"), "list.tsv line 2: "),
        ("sounds whisper-tiny", ("0.wav", "RIFF"), "is not a readable WAV"),
        ("text bert-base --architecture BertForQuestionAnswering", None, "learns the positions of answers"),
        ("text VIT --architecture ViTModel", None, "has no answers to learn from"),
    ],
)  # fmt: skip
def test_bad_files_have_one_clear_line(flags, change, message, data, tmp_path, capsys):
    kind, model, *more = flags.replace("VIT", VIT[1]).split()
    shutil.copytree(data / kind, tmp_path / kind)
    if change:
        (tmp_path / kind / change[0]).write_text(change[1])
    sizes = {"vit": VIT[2], "who": dict(model[1:] for model in KINDS)["whisper-tiny"]}.get(model[:3], {})
    for name, value in sizes.items():
        more += [f"--{name.replace('_', '-')}", str(value)]
    arguments = ["train", str(tmp_path / kind), "--model", model, "--engine", "numpy", "--steps", "1", *more]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert message in line
    assert not (tmp_path / "run" / "data.json").exists()


def test_without_the_package_pillow(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match="pip install 'learncost\\[images\\]'"):
        start(options(data, *VIT), tmp_path / "run", Silent())


def test_the_run_says_what_its_data_are(data, tmp_path):
    start(options(data, *VIT, steps=1), tmp_path / "run", Silent())
    facts = json.loads((tmp_path / "run" / "data.json").read_text())
    assert facts["labels"] == ["blue", "green", "red"]
    assert sum(facts["examples"].values()) == 30
    assert Folder(tmp_path / "run").configuration().settings["num_labels"] == 3


def test_python_trains_as_the_command_does(data, tmp_path, capsys):
    sizes = {"image_size": 8, "patch_size": 4, "n_layer": 1, "hidden_size": 8, "num_attention_heads": 2}
    options_given = {"model": VIT[1], "engine": "numpy", "steps": 2, "batch_size": 4, **sizes}
    result = lc.train(data / "images", out=tmp_path / "python", **options_given)
    assert (result.steps, result.stopped, result.exit_code) == (2, False, 0)
    assert result.validated.accuracy is not None
    assert "% right, after 8 examples" in str(result)
    capsys.readouterr()
    flags = [item for name, value in options_given.items() for item in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["train", str(data / "images"), "--out", str(tmp_path / "command"), *flags]) == 0
    assert "what it says of some examples is in" in capsys.readouterr().out
    assert same(tmp_path / "python", tmp_path / "command")
