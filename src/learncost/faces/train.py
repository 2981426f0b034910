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
from learncost.faces.progress import reporter
from learncost.ledger.question import flags_of, question
from learncost.ledger.sheet import size_of, wrapped
from learncost.models.wording import counted
from learncost.training.files import cannot_write
from learncost.training.folder import SAMPLES
from learncost.training.loop import Result, Step, go_on, start
from learncost.training.options import Options

INTERRUPTED = 130

CHANGEABLE = ("steps", "minutes", "validate_every", "save_every", "sample_every", "prompt", "peak_flops")
"""What may differ when a run resumes; everything else would make it another run."""


@question(Options)
def train(
    *paths: str, precision: str | None = None, resume: str | None = None, out: str | None = None, **sizes: Any
) -> str | int:
    """Train a model on plain files: texts, pairs or classes of texts, images with classes, sounds with texts.

    What it learns from follows from its head and its inputs. A language model reads text files and folders of them; all
    others read lists, a line for each example.

    Parameters
    ----------
    precision
        Which type each role of the step has: fp32 (the default), fp64, bf16 with weights in fp32, bf16-pure; with
        frozen weights nf4 and others (`learncost list precisions`).
    resume
        Goes on with the run in this folder, from its last checkpoint.
    out
        The folder to make. The default is run-1, run-2 and so on.
    sizes
        Any size or setting of the model: `num_hidden_layers` 4, `hidden_size` 256.

    Commands
    --------
    learncost train my-texts/ --minutes 5
        Trains a small model on all texts of a folder for five minutes.
    learncost train images/labels.csv --model vit-base-patch16-224 --image-size 32 --num-hidden-layers 2
        Trains a small vision transformer on images with classes, which the list names.
    learncost train --resume run-1
        Goes on where a run stopped.
    """
    flags = {flag.name: flag for flag in flags_of(train)}
    kinds = {name: flags[name].kind for name in flags.keys() & sizes.keys()}
    options = {name: sizes.pop(name) for name in kinds}
    options |= {name: number(name, options[name], kind == "integer") for name, kind in kinds.items() if kind in NUMBERS}
    if precision is not None and resume is None:
        options["dtype"] = either(options.get("dtype"), precision).name
    with reporter() as report:
        if resume is not None:
            others = {"PATH": paths, "--out": out, "--precision": precision, **{f"--{name}": name for name in sizes}}
            fixed = [name for name, value in others.items() if value]
            if fixed := [*fixed, *(flags[name].names[0] for name in options if name not in CHANGEABLE)]:
                raise InputError(
                    f"--resume goes on as the run began: leave {fixed[0]} out, or begin anew without --resume"
                )
            result = go_on(Path(resume), report, **options)
        else:
            told = Options(**options, paths=paths, sizes=sizes)
            with nullcontext(Path(out)) if out else _reserved() as folder:
                result = start(told, folder, report)
    if result.stopped:
        print(_stopped(result), file=sys.stderr)
        return INTERRUPTED if result.asked else 0
    return _summary(result)


NUMBERS = ("integer", "number")


def number(name: str, value: Any, whole: bool) -> Any:
    """What a flag says, as a number. Raises InputError."""
    try:
        return (counted(value) or int(value)) if whole else float(value)
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
        count, what = result.steps * (options.batch_size or 0) * options.accumulate, "examples"
        if result.validated.tokens_per_second is not None:
            count, what = count * (options.seq_len or 0), "tokens"
        loss = f"loss {result.validated.validation_loss:.3f}"
        said = result.validated.validated
        lines.append(
            f"validation: {said if loss in said else f'{said}, {loss}'}, after {count:,} {what}; {result.seconds:.0f} s"
        )
    if result.last is not None:
        lines += _memory(result.last)
    writes = f"learncost sample {result.folder} --prompt TEXT lets it write"
    lines.append(writes if result.writes else f"what it says of some examples is in {result.folder / SAMPLES}")
    return "\n".join(map(wrapped, lines))
