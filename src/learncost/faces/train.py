"""`learncost train PATH...`: a model learns text, in a folder that others can load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

from learncost.equation.errors import InputError
from learncost.equation.precision import either
from learncost.faces.flags import Name, Number, Value, refuse_unknown
from learncost.faces.progress import reporter
from learncost.ledger.sheet import size_of, wrapped
from learncost.training.files import cannot_write
from learncost.training.loop import Result, Step, go_on, start
from learncost.training.options import Options

INTERRUPTED = 130

WHOLE = (
    "batch_size",
    "accumulate",
    "seq_len",
    "warm_up",
    "seed",
    "steps",
    "validate_every",
    "save_every",
    "sample_every",
)
REAL = (
    *(
        "learning_rate",
        "final_learning_rate",
        "beta_2",
        "weight_decay",
        "dropout",
        "clip",
        "minutes",
        "validation_share",
    ),
    "peak_flops",
)
CHANGEABLE = ("steps", "minutes", "validate_every", "save_every", "sample_every", "prompt", "peak_flops")
"""What may differ when a run resumes; everything else would make it another run."""


def train(
    *paths: str,
    resume: Name | None = None,
    out: Name | None = None,
    model: Name | None = None,
    from_: Name | None = None,
    tokenizer: Name | None = None,
    engine: Name | None = None,
    procedure: Name | None = None,
    mode: Name | None = None,
    optimizer: Name | None = None,
    dtype: Name | None = None,
    precision: Name | None = None,
    train_: Name | None = None,
    train_layers: Name | None = None,
    lora: Name | None = None,
    lora_rank: Number | None = None,
    lora_alpha: Number | None = None,
    plan: Name | None = None,
    device: Name | None = None,
    budget: Name | None = None,
    batch_size: Number | None = None,
    accumulate: Number | None = None,
    seq_len: Number | None = None,
    learning_rate: Number | None = None,
    final_learning_rate: Number | None = None,
    warm_up: Number | None = None,
    beta_2: Number | None = None,
    weight_decay: Number | None = None,
    dropout: Number | None = None,
    clip: Number | None = None,
    seed: Number | None = None,
    steps: Number | None = None,
    minutes: Number | None = None,
    validate_every: Number | None = None,
    save_every: Number | None = None,
    sample_every: Number | None = None,
    validation_share: Number | None = None,
    prompt: Name | None = None,
    peak_flops: Number | None = None,
    **sizes: Value,
) -> str | int:
    """Train a language model on text files, or on all text files in folders.

    Parameters
    ----------
    paths
        Text files in UTF-8, and folders of them. Everything else in a folder is skipped, and counted.
    resume
        Goes on with the run in this folder, from its last checkpoint.
    out
        The folder to make. The default is run-1, run-2 and so on.
    model
        nano (the default) or small, a preset (learncost list models), or a config.json. Sizes as flags change it.
    from_
        Starts from a checkpoint of transformers in this folder, of GPT-2's or Llama's kind.
    tokenizer
        bytes, or a tokenizer.json of Hugging Face. The default is the checkpoint's own, else bytes.
    engine
        What runs the steps: torch (the default where PyTorch is installed), numpy or jax.
    procedure
        How the model learns: bp (the default), recompute, pepita or mempepita.
    mode
        How pepita and mempepita update: stable (the default) or paper.
    optimizer
        What updates the weights: adamw (the default), momentum or sgd.
    precision
        Which type each role of the step has: fp32 (the default), fp64, bf16 with weights in fp32, bf16-pure; with
        frozen weights nf4 and others (learncost list precisions).
    train_
        What learns: all, head, embeddings, biases, or names of weights and modules with commas between. All else is
        frozen.
    plan
        How the step is rewritten, such as recompute=gelu+norm. The default is the engine's choice.
    device
        With --engine torch, cpu (the default) or cuda, where PyTorch's operators run under torch.compile.
    budget
        How many bytes a step of --engine torch may take, such as 2GB. What is kept and what is made again is chosen by
        it.
    batch_size
        How many sequences are computed at once.
    accumulate
        How many batches are one step. Their gradients are averaged, and memory is that of one batch. The default is 1.
    seq_len
        How many tokens are in a sequence.
    learning_rate
        The highest learning rate, after the warm-up; it then goes down by half a cosine.
    final_learning_rate
        The share of the learning rate that is left at the end. The default is 0.1.
    warm_up
        In how many steps the learning rate rises. The default is a tenth of all, at most 100.
    beta_2
        The second beta of adamw. The default is 0.99.
    weight_decay
        The weight decay. The default is 0.01.
    dropout
        The probability of dropout. The default is 0.
    clip
        The largest norm of all gradients together. The default is 0, which leaves them alone.
    seed
        The seed of weights, batches, dropout and samples. The default is 0.
    steps
        How many steps are run. The default is as many as fit in --minutes, which is measured before the first.
    minutes
        How many minutes the run may take. The default is 2. With --steps too, the run stops there, saved.
    validate_every
        After how many steps the loss on held-out documents is measured. The default is a tenth of all, at
        least 50. It is always measured after the last step.
    save_every
        After how many steps a checkpoint is saved. The default is a tenth of all.
    sample_every
        After how many steps a sample is written. The default is a quarter of all, at least 50.
    validation_share
        The share of the documents that is held out. The default is 0.05.
    prompt
        How samples begin. The default is a new line.
    peak_flops
        How many FLOPs this machine does in a second at best, such as 2e11. The share that is used (MFU) is then shown.
    sizes
        Any size or setting of the model: --num-hidden-layers 4, --hidden-size 256.

    Examples
    --------
    learncost train my-texts/ --minutes 5
        Trains a small model on all texts of a folder for five minutes.
    learncost train --resume run-1
        Goes on where a run stopped.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    own = {name: value for name, value in given.items() if name not in ("paths", "resume", "out", "from_", "sizes")}
    if "train_" in own:
        own["train"] = own.pop("train_")
    if "precision" in own and resume is None:
        own["dtype"] = either(dtype, own.pop("precision")).name
    options = own | {name: number(name, own[name], name in WHOLE) for name in (*WHOLE, *REAL) if name in own}
    with reporter() as report:
        if resume is not None:
            fixed = [*(["PATH"] if paths else []), *(n for n in ("out", "from_") if n in given), *sizes]
            fixed += [name for name in options if name not in CHANGEABLE]
            if fixed:
                flag = fixed[0] if fixed[0] == "PATH" else f"--{fixed[0].strip('_').replace('_', '-')}"
                raise InputError(f"--resume goes on as the run began: leave {flag} out, or begin anew without --resume")
            result = go_on(Path(resume), report, **options)
        else:
            known = [name.strip("_").replace("_", "-") for name in train.__annotations__]
            options |= {"paths": paths, "start": from_, "sizes": refuse_unknown(sizes, known)}
            told = Options(**options)
            with nullcontext(Path(out)) if out else _reserved() as folder:
                result = start(told, folder, report)
    if result.stopped:
        print(_stopped(result), file=sys.stderr)
        return INTERRUPTED if result.asked else 0
    return _summary(result)


def number(name: str, value: str, whole: bool) -> Any:
    """What a flag says, as a number. Raises InputError."""
    try:
        return int(value) if whole else float(value)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{name.replace('_', '-')} must be {kind}, not {value!r}") from None


@contextmanager
def _reserved() -> Iterator[Path]:
    """A folder with the first name that is not taken, made at once, so that nobody else takes it; gone if unused."""
    folder = next(path for path in map(Path, map("run-{}".format, count(1))) if _made(path))
    try:
        yield folder
    finally:
        with suppress(OSError):  # it is not empty: a run is in it
            folder.rmdir()


def _made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot_write(folder, error) from None
    return True


def _stopped(result: Result) -> str:
    return (
        f"saved after step {result.steps:,} of {result.options.steps:,}; "
        f"learncost train --resume {result.folder} goes on"
    )


def _memory(step: Step) -> list[str]:
    """What the process took, as measured, and what was predicted for the arrays of a step."""
    if step.process is None or step.memory is None:
        return []
    more = f"{size_of(step.memory)} of it since it has weights"
    lines = [f"process, measured: {size_of(step.process)} at most, {more}"]
    if step.predicted is not None:
        lines.append(f"arrays of a step, predicted: {size_of(step.predicted)}")
    return lines


def _summary(result: Result) -> str:
    options, lines = result.options, []
    lines.append(f"{result.folder}: {result.name}, {result.parameters:,} parameters, {result.steps:,} steps")
    if result.last is None:
        lines.append(f"nothing was left to do; --resume {result.folder} --steps N with more steps goes on")
    elif result.validated is not None:
        tokens = result.steps * (options.batch_size or 0) * options.accumulate * (options.seq_len or 0)
        lines.append(
            f"validation: {result.validated.bits_per_byte:.3f} bits per byte, "
            f"loss {result.validated.validation_loss:.3f}, after {tokens:,} tokens; {result.seconds:.0f} s"
        )
    if result.last is not None:
        lines += _memory(result.last)
    lines.append(f"learncost sample {result.folder} --prompt TEXT lets it write")
    return "\n".join(map(wrapped, lines))
