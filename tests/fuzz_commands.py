"""Command lines of chance: whatever is typed gives a result, or one line on standard error and exit code 2.

python -m tests.fuzz --commands 5000
"""

from __future__ import annotations

import random
import resource
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from commands.called import call, ending
from learncost.cli.command import COMMANDS
from learncost.models.argument import presets
from learncost.models.families import FAMILIES
from learncost.models.sizes import CANONICAL
from learncost.reports.formulas.subject import layers

RUN = ("calibrate", "contest", "sample", "serve", "train", "verify")
"""Commands that run something, or wait for a browser: only what they refuse is fuzzed, see `_refusing`."""

MOST_MEMORY = 6 * 2**30

NUMBERS = (
    "0", "1", "2", "3", "7", "16", "64", "1000", "-1", "-0", "0.5", "1.5", "1e3", "1e9", "3e11", "1e400", "-1e-9",
    "nan", "NaN", "inf", "-inf", "1_000", "1,000", "0x10", "١٢", "²", "½", "", " ", "12 ", "9" * 30, "9" * 5000, "1/2",
    "8GB", "8 GB", "24GiB", "-8GB", "GB", "8XB", "1e3GB", "0GB", "None", "true", "--", "-", "1;2", "+5", "1e",
    "1:10:3", "10:1", "1:10:0", "1,,2", "1:1000000000000",
)  # fmt: skip
TEXTS = (
    "", " ", "é", "日本語", "a\nb", "a\tb", "\x1b[31m", "\x00", "../..", "/", ".", "~", "-", "--", "'", '"', "%s", "{}",
    "{0}", "a" * 3000, "%(x)s", "[red]", "[/]", "$HOME", "*", "a,b", ",", "a=b", "=", "auto", "none", "None", "all",
    "nan", "🙂", "ﬁt", "bp", "BP", "run", "json",
)  # fmt: skip
CHOICES = {
    "procedure": "bp recompute pepita mempepita head-only prefill decode all bp,pepita bp,bp inference",
    "procedures": "bp,recompute pepita,mempepita bp bp,head-only bp,bp decode",
    "price_book": "run matmul paper paper-corrected causal-half flash kaplan gpt3 chinchilla palm nanogpt all run,run",
    "optimizer": "sgd momentum adamw adamw8bit adam8bit adafactor lion muon none",
    "dtype": "fp64 fp32 tf32 bf16 bf16-masters bf16-true fp16 fp8 int8 int4",
    "by": "layer macro-operation equation kind total",
    "format": "table json csv md latex text markdown mathml yaml",
    "train": "all none head embeddings biases attn mlp.fc1 wte q_proj",
    "train_layers": "0 last 0-1 5-2 0,0 99 -1 0-99999999999 first",
    "lora": "all-linear attention feed_forward q_proj,v_proj query,value c_attn q,v WQ wte",
    "plan": "recompute chunked-loss fused-update flash auto chunked-loss,fused-update recompute=block/2+norm "
    "chunked-loss,chunked-loss",
    "engine": "numpy torch eager graph jax",
    "optimizer_implementation": "fused foreach for-loop neither",
    "on": "A100-SXM-40GB H100-SXM here V100-SXM2 nowhere",
    "backend": "numpy torch jax c",
    "phase": "step forward backward",
    "country": "France USA DEU Atlantis",
    "output": "",
}
RIGHT = {
    "batch_size": "1 2 64 100000",
    "seq_len": "1 2 16 100 1:17:8 512",
    "target_len": "1 5 64",
    "context": "0 1 7 100",
    "tokens": "1 1e9 3e11 1000000000",
    "dropout": "0 0.1 0.5 1 0.999999 1e-300",
    "lora_rank": "1 4 64 100000",
    "lora_alpha": "1 16 0.5 1e9",
    "accumulate": "1 2 3",
    "budget": "1 8GB 24GB 80GiB 1e15 1TB",
    "flash_size": "0 1MB 1GB",
    "devices": "1 8 1024 1e6",
    "mfu": "0.4 1 1e-9",
    "hfu": "0.4 1 1e-9",
    "tokens_per_second": "1 1e6 1e-300",
    "peak_tflops": "1 312 1e300",
    "power": "1 400 1e300",
    "pue": "1 1.1 100",
    "year": "2000 2020 2023 1900 9999",
    "carbon_intensity": "0 0.3 1e300",
    "price_per_hour": "0 2 1e300",
    "hidden_size": "1 8 12 64 768 1000000000000",
    "window": "1 4 1000000",
    "kernel_size": "1 3 1000",
    "num_attention_heads": "1 2 12",
    "batch": "1",
}
NEEDED = {"fit": ("--budget", "8GB"), "run-cost": ("--tokens", "1e9", "--on", "A100-SXM-40GB")}
LISTS = "models families sizes price-books procedures optimizers plans layers words devices countries runs commands"


def fuzz(count: int, seed: int = 0) -> list[str]:
    """What went wrong in so many command lines; the same lines for the same seed."""
    with bounded(), tempfile.TemporaryDirectory() as folder, chdir(folder):
        files = _files(Path(folder))
        chance = random.Random(seed)
        answers = (call(_line(chance, files)) for _ in range(count))
        return [f"{fault}: learncost {answer.line}" for answer in answers if (fault := ending(answer))]


@contextmanager
def bounded() -> Iterator[None]:
    """What takes all memory ends with an error instead of ending the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _files(folder: Path) -> list[str]:
    """Paths to what is not what a command looks for: folders, binary files, broken and wrong JSON, nothing at all."""
    contents = {
        "binary.json": b"\x00\xff\xfe\x80" * 100,
        "broken.json": b'{"model_type": "gpt2", ',
        "list.json": b"[1, 2]",
        "number.json": b"1e999",
        "nan.json": b'{"model_type": "gpt2", "n_embd": NaN}',
        "deep.json": b"[" * 100_000,
        "good.json": b'{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10}',
        "empty.json": b"",
        "bad.table": b"layer(X; W) -> Y\n  Y[B] = X[B] + \n",
        "binary.table": b"\xff\xfe\x00",
        "good.table": b"thing(X; W) -> Y\n  Y[B d] = X[B c] W[c d]\n",
        "device.toml": b"name = 3\n[peak",
        "two words.json": b"{}",
        "no_suffix": b"gpt2",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir()
    (folder / "config.json").mkdir()
    names = [str(folder / name) for name in (*contents, "folder", "config.json", "absent.json", "absent/absent.json")]
    return [str(folder), *names, "/dev/null", "/proc/self/mem", "x" * 300 + ".json", "gpt2/", "./gpt2"]


def _line(chance: random.Random, files: list[str]) -> str:
    command = chance.choice(list(COMMANDS))
    words = [command] if chance.random() < 0.98 else [chance.choice((*TEXTS, "cots", "--version", "--help", "-h"))]
    words += _subject(chance, command, files) if chance.random() < 0.97 else []
    flags = _flags(command)
    words += NEEDED.get(command, ()) if chance.random() < 0.8 else ()
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 3, 4, 6))):
        flag = chance.choice(flags) if flags and chance.random() < 0.85 else chance.choice(_sizes())
        words += _given(chance, flag, files)
    if chance.random() < 0.1:
        words.insert(chance.randrange(1, len(words) + 1), chance.choice((*TEXTS, *NUMBERS, *files)))
    if chance.random() < 0.1 and len(words) > 3:
        words += words[-2:]  # given twice
    if command in RUN or "--serve" in words:
        words = _refusing(words)
    return shlex.join(word.replace("\x00", "") if chance.random() < 0.9 else word for word in words)


def _refusing(words: list[str]) -> list[str]:
    """The line with something that no command takes, so that nothing is trained or measured."""
    return [*words, "--no-such-flag", "1"]


def _subject(chance: random.Random, command: str, files: list[str]) -> list[str]:
    if command == "list":
        names = LISTS.split()
    elif command == "errata":
        names = [f"E{number}" for number in range(40)]
    elif command in ("explain", "formulas") or (command == "emit" and chance.random() < 0.5):
        names = list(layers())
    elif command in ("complexity", "calibrate", "contest"):
        return []
    else:
        names = [*(preset.name for preset in presets()), "encoder", "decoder", "encoder-decoder"]
    kind = chance.random()
    if kind < 0.8:
        return [chance.choice(names)]
    return [chance.choice(files if kind < 0.93 else TEXTS)]


def _given(chance: random.Random, flag: str, files: list[str]) -> list[str]:
    """A flag with a value that may be right, wrong, or not there."""
    plain = flag.lstrip("-").replace("-", "_")
    kind = chance.random()
    if plain in RIGHT and kind < 0.5:
        value = chance.choice(RIGHT[plain].split())
    elif plain == "architecture" and kind < 0.8:
        architectures = chance.choice(list(FAMILIES.values())).architectures
        value = chance.choice(architectures).name
    elif plain in CHOICES and kind < 0.75:
        value = chance.choice(CHOICES[plain].split() or files)
    elif kind < 0.85:
        value = chance.choice(NUMBERS)
    elif kind < 0.95:
        value = chance.choice((*TEXTS, *files))
    else:
        return [flag]
    if plain == "output":
        value = chance.choice([name for name in files if not name.startswith(("gpt2", "x", "."))] + ["/proc/absent"])
    return [f"{flag}={value}"] if chance.random() < 0.2 else [flag, value]


def _flags(command: str) -> list[str]:
    """Every flag of a command."""
    return [flag.names[0] for flag in COMMANDS[command].flags if flag.how == "flag"]


def _sizes() -> list[str]:
    """Every spelling of a size, and some settings."""
    return [*(f"--{name.replace('_', '-')}" for name in CANONICAL), "--architecture", "--activation", "--unknown", "-x"]
