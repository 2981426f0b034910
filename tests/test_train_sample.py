"""Sampling from a trained model, and tokenizers."""

import json
import shutil

import numpy as np
import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.engines.options import Options
from learncost.engines.tokenizer import ByteTokenizer, FileTokenizer, tokenizer
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.models.storage import read_arrays, write_arrays
from learncost.training.generate import Decoder, Sampling, continuation
from learncost.training.loop import start
from trainings_on_disk import SIZES, Silent, weights_of

DRAWS = [(n + 0.5) / 1000 for n in range(1000)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model that has learned which of four letters follows which."""
    tmp_path = tmp_path_factory.mktemp("sample")
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.txt").write_text("abcd" * 7 + "ab" + "." * number)
    options = Options(
        paths=(str(folder),),
        model="gpt2",
        engine="numpy",
        sizes=SIZES | {"hidden_size": 16},
        steps=120,
        batch_size=4,
        seq_len=24,
        learning_rate=2e-2,
    )
    start(options, tmp_path / "run", Silent())
    return tmp_path / "run"


def test_it_goes_on_as_it_has_learned(run, capsys):
    assert main(["sample", str(run), "--prompt", "abc", "--tokens", "12", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "abcdabcdabcdabc\n"


def test_the_same_seed_the_same_text(run, capsys):
    texts = []
    for seed in (1, 1, 2):
        assert main(["sample", str(run), "--prompt", "ab", "--seed", str(seed), "--temperature", "3"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_logits_after_every_token_are_those_of_the_whole():
    # With 9 learned positions, after which the second half of the text is read again as a beginning.
    training = lc.Training(
        "gpt2", vocab_size=20, max_position_embeddings=9, num_hidden_layers=2, hidden_size=8, n_head=2
    )
    training.weights = {name: array * 20 for name, array in training.weights.items()}
    tokens = np.random.default_rng(0).integers(0, 20, 17)
    decoder = Decoder(training.configuration, training.weights, np.float64)
    scores = [decoder.begin(tokens[:4]), *(decoder.next(int(token)) for token in tokens[4:])]
    # The last place of what each token is read with: 4 to 9 tokens, then 5 (the last 4 of 9, and the new one) to 9.
    windows = [range(end) for end in range(4, 10)] + [range(5, end) for end in range(10, 15)]
    windows += [range(10, end) for end in range(15, 18)]
    for logits, window in zip(scores, windows, strict=True):
        window_tokens = tokens[window.start : window.stop][None]
        expected = training.forward(window_tokens, np.zeros_like(window_tokens))["P.L"][0, -1]
        np.testing.assert_allclose(logits, expected, atol=1e-12)


def test_a_model_whose_router_has_corrections_writes():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 32, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2}
    sizes |= {"n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 20}
    sizes |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    training = lc.Training({"model_type": "deepseek_v3", **sizes})
    training.weights = {name: array * 20 for name, array in training.weights.items()}
    tokens = np.random.default_rng(0).integers(0, 20, 7)
    decoder = Decoder(training.configuration, training.weights, np.float64)
    scores = [decoder.begin(tokens[:4]), *(decoder.next(int(token)) for token in tokens[4:])]
    expected = training.forward(tokens[None], np.zeros_like(tokens[None]))["P.L"][0, 3:]
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-10)


def test_tokens_are_drawn_with_their_probabilities():
    logits = np.log(np.array([0.1, 0.6, 0.05, 0.25]))

    def shares(**how):
        chosen = [Sampling(**{"temperature": 1.0, **how}).choose(logits, draw) for draw in DRAWS]
        return np.bincount(chosen, minlength=4) / len(DRAWS)

    np.testing.assert_allclose(shares(), [0.1, 0.6, 0.05, 0.25], atol=1e-3)
    np.testing.assert_allclose(shares(top_k=2), [0, 0.6 / 0.85, 0, 0.25 / 0.85], atol=1e-3)
    # 0.6 and 0.25 are the fewest that have 0.8 together; exactly 0.6 needs one alone.
    np.testing.assert_allclose(shares(top_p=0.8), [0, 0.6 / 0.85, 0, 0.25 / 0.85], atol=1e-3)
    np.testing.assert_allclose(shares(top_p=0.5), [0, 1, 0, 0])
    # Half the temperature squares the probabilities.
    squares = np.array([0.1, 0.6, 0.05, 0.25]) ** 2
    np.testing.assert_allclose(shares(temperature=0.5), squares / squares.sum(), atol=1e-3)
    np.testing.assert_allclose(shares(temperature=0.0), [0, 1, 0, 0])


def test_it_stops_at_the_end_of_the_document():
    class Counting:
        """After 3 comes the end."""

        def begin(self, tokens):
            return self.next(tokens[-1])

        def next(self, token):
            return np.where(np.arange(5) == (token + 1), 0.0, -1e9)

    assert list(continuation(Counting(), [0], 4, Sampling(tokens=50))) == [1, 2, 3]
    assert list(continuation(Counting(), [0], 4, Sampling(tokens=2))) == [1, 2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--temperature -1", "temperature must be a number from 0, not -1.0"),
        ("--temperature hot", "temperature must be a number, not 'hot'"),
        ("--top-p 0", "--top-p must be a number above 0 to 1, not 0.0"),
        ("--top-k -3", "--top-k must be a whole number from 0, not -3"),
        ("--tokens 0", "tokens must be a whole number from 1, not 0"),
    ],
)
def test_what_is_refused(flags, message, tmp_path, capsys):
    assert main(["sample", str(tmp_path), *flags.split()]) == 2
    assert message in capsys.readouterr().err


def test_no_run_and_no_checkpoint(run, tmp_path, capsys):
    assert main(["sample", str(tmp_path)]) == 2
    assert "is not a run: it has no training.json" in capsys.readouterr().err
    run = shutil.copytree(run, tmp_path / "run")
    (run / "model.safetensors").unlink()
    assert main(["sample", str(run)]) == 2
    assert f"no such file: {run / 'model.safetensors'}" in capsys.readouterr().err  # steps were taken: it is lost
    for path in (*run.glob("optimizer-*"), run / "metrics.jsonl", run / "samples.txt"):
        path.unlink(missing_ok=True)
    assert main(["sample", str(run)]) == 2
    assert f"has no checkpoint yet; learncost train --resume {run} continues it" in capsys.readouterr().err


def test_outputs_that_are_not_finite_are_said(run, tmp_path, capsys):
    """The first token was then the end of the document: nothing was printed, and all seemed well."""
    run = shutil.copytree(run, tmp_path / "run")
    arrays, facts = read_arrays(run / "model.safetensors", "")
    write_arrays(run / "model.safetensors", {name: array * np.float32(1e30) for name, array in arrays.items()}, facts)
    assert main(["sample", str(run), "--tokens", "2"]) == 2
    printed = capsys.readouterr().err
    assert "outputs are not finite" in printed
    assert printed.count("\n") == 1


# Tokenizers


def test_bytes_come_back():
    text = "naïve ☃"
    assert ByteTokenizer().decode([*ByteTokenizer().encode(text.encode()), ByteTokenizer.end]) == text
    assert ByteTokenizer().decode([0xE2, 0x98]) == "\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def ops(tmp_path):
    """A tokenizer.json of Hugging Face: bytes in pairs, learned from a text."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer_trained = tokenizers.ByteLevelBPETokenizer()
    tokenizer_trained.train_from_iterator(["to be or not to be " * 9], vocab_size=280, special_tokens=["<|endoftext|>"])
    tokenizer_trained.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_tokenizer_of_hugging_face(ops, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 50)
    flags = ["--tokenizer", str(ops), "--num-hidden-layers", "1", "--hidden-size", "8", "--seq-len", "8"]
    flags += ["--engine", "numpy"]
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "text.txt"), "--out", str(run), "--steps", "3", *flags]) == 0
    tokenizer_read = tokenizer(str(ops))
    text = (tmp_path / "text.txt").read_bytes()
    assert tokenizer_read.decode(tokenizer_read.encode(text)) == text.decode()
    assert configure(str(run / "config.json")).sizes["vocab_size"] == tokenizer_read.size
    # Bits are of a byte, also where a token has several.
    facts = json.loads((run / "data.json").read_text())
    assert facts["bytes_per_token"] == pytest.approx(len(text) / (len(tokenizer_read.encode(text)) + 1))
    assert facts["bytes_per_token"] > 1.3
    ops.unlink()  # the run has its own copy
    capsys.readouterr()
    assert main(["sample", str(run), "--prompt", "to be", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("to be")
    assert main(["train", "--resume", str(run), "--steps", "5"]) == 0
    assert any(name.startswith("optimizer-5") for name in weights_of(run))


@pytest.mark.parametrize("content", ["", "{}", '{"model": 3}', "\0"])
def test_what_is_no_tokenizer(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer\.json") as raised:
        tokenizer(str(path))
    assert "\n" not in str(raised.value)


def test_a_text_that_a_tokenizer_has_no_tokens_for_is_one_line(tmp_path):
    path = tmp_path / "tokenizer.json"
    words = {"type": "WordLevel", "vocab": {"</s>": 0, "a": 1}, "unk_token": "[UNK]"}
    path.write_text(json.dumps({"version": "1.0", "model": words, "added_tokens": []}))
    own = FileTokenizer(path)
    for encode in (own.encode, own.encode_alone):
        assert encode(b"a") == [1]
        with pytest.raises(lc.InputError, match=r"the tokenizer cannot encode a text: .*UNK"):
            encode(b"b")
