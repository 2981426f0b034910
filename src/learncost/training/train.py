"""`learncost train PATH...` and `lc.train`: a model learns from plain files, in a folder that others can load."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

from learncost.engines.options import Options
from learncost.ir.errors import InputError, counted, shown
from learncost.ir.precision import either
from learncost.models.storage import cannot_write
from learncost.reports.question import flags_of, question
from learncost.reports.sheet import size_of, wrapped
from learncost.sharding.mesh import Mesh
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.presets import chosen
from learncost.training.folder import SAMPLES, Folder
from learncost.training.loop import TrainingReporter, TrainingResult, TrainingStep, go_on, start
from learncost.training.processes import Processes, has_master_address, joined, reported_once, started

PLACES: Mapping[str, str | None] = dict.fromkeys(("mesh", "place", "placement", "schedule", "microbatches"))
"""The options of distribution when a run begins or resumes; the result is the same."""

CHANGEABLE = (
    "steps", "minutes", "validate_every", "save_every", "sample_every", "prompt", "peak_flops", "device",
    "deterministic", *PLACES,
)  # fmt: skip
"""The options that may differ when a run resumes; any other would make it another run."""


@question(Options)
def train(
    *paths: str,
    precision: str | None = None,
    resume: str | None = None,
    out: str | None = None,
    or_resume: bool = False,
    trace: int | str | None = None,
    **sizes: Any,
) -> TrainingResult:
    """Train a model on plain files: texts, pairs or classes of texts, images with classes, sounds with texts.

    The model's head and inputs decide the data: language models (also masked ones) read text files and folders, and
    models with other outputs read lists with a line for each example.

    Parameters
    ----------
    precision
        Data type of weights, activations, gradients and optimizer states: fp32 (the default), fp64, bf16-masters,
        bf16-true; with frozen weights nf4 and others (`learncost list precisions`).
    resume
        Continue the run in this folder from its last checkpoint.
    out
        The run's folder. The default is run-1, run-2 and so on.
    or_resume
        Continue the run in the folder of `out` if there is one, otherwise start it: the same command starts and
        continues.
    trace
        The number of steps to time line by line, from the second on. Writes trace.json and trace.pftrace for Perfetto
        to the run's folder, with the predicted step if this machine is calibrated.
    sizes
        Any size or setting of the model: `num_hidden_layers` 4, `hidden_size` 256.

    Returns
    -------
    Result
        The run's folder, the number of steps, the last step and the last validation. Progress goes to standard error.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "seq_len": 16, "batch_size": 4}
    >>> with TemporaryDirectory() as folder:
    ...     text, run = Path(folder, "a.txt"), Path(folder, "run-1")
    ...     length = text.write_text("to be or not to be, " * 50)
    ...     result = lc.train(text, out=run, model="gpt2", engine="numpy", learning_rate=0.01, steps=20, **sizes)
    >>> result.steps, result.validated.validation_loss < result.last.loss + 1
    (20, True)

    Commands
    --------
    learncost train my-texts/ --minutes 5
        Train a small model on all texts of a folder for five minutes.
    learncost train images/labels.csv --model vit-base-patch16-224 --image-size 32 --num-hidden-layers 2
        Train a small vision transformer on images with classes from a list.
    learncost train --resume run-1
        Continue a stopped run.
    torchrun --nproc-per-node 4 -m learncost train my-texts/ --mesh dp=2,tp=2
        Train on four processes: tensor parallelism over two, data parallelism over two.
    torchrun --nnodes 1:2 --max-restarts 3 ... -m learncost train my-texts/ --mesh "dp=*" --out run --or-resume
        Start on the available nodes, and continue with fewer or more when that changes.
    """
    if strange := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        raise InputError(f"expected paths of training data, with the model as model=NAME, not {shown(strange[0])}")
    flags = {flag.name: flag for flag in flags_of(train)}
    kinds = {name: flags[name].kind for name in flags.keys() & sizes.keys()}
    options = {name: sizes.pop(name) for name in kinds}
    with ExitStack() as ends:
        with reported_once():
            whole = {name: kind == "integer" for name, kind in kinds.items() if kind in NUMBERS}
            options |= {name: number(name, options[name], is_whole) for name, is_whole in whole.items()}
            if precision is not None and resume is None:
                options["dtype"] = either(options.get("dtype"), precision, counts_alone=True).name
            traced = 0 if trace is None else number("trace", trace, True)
            if not 0 <= traced <= MOST_TRACED:
                raise InputError(f"trace must be a whole number from 0 to {MOST_TRACED}, not {trace!r}")
            grid = _spread(options)
            processes = ends.enter_context(joined(grid, options.get("device", "cpu")))
        report = ends.enter_context(reporter(processes.first))
        if or_resume and (out is None or resume is not None):
            raise InputError("--or-resume requires --out and cannot be combined with --resume")
        if resume is not None:
            others = {"PATH": paths, "--out": out, "--precision": precision, **{f"--{name}": name for name in sizes}}
            fixed = [name for name, value in others.items() if value]
            if fixed := [*fixed, *(flags[name].names[0] for name in options if name not in CHANGEABLE)]:
                raise InputError(
                    f"--resume continues with the run's options: remove {fixed[0]}, or start a new run without --resume"
                )
        elif or_resume and processes.of_first(Folder(Path(str(out))).is_begun):
            resume = str(out)
            processes.of_first(lambda: _check_same(Folder(Path(str(out))), paths, options, sizes))
        if resume is not None:
            changes = {name: value for name, value in options.items() if name in CHANGEABLE}
            if changes.get("device") == "cpu":  # whose steps are bit-identical anyway
                changes.setdefault("deterministic", False)
            result = go_on(Path(resume), report, trace=traced, processes=processes, **{**PLACES, **changes})
        else:
            run_options = Options(**options, paths=tuple(map(str, paths)), sizes=sizes)
            with nullcontext(Path(out)) if out else _reserved(processes) as folder:
                result = start(run_options, folder, report, trace=traced, processes=processes)
    if result.stopped and result.reports:
        print(stopped(result), file=sys.stderr)
    return result


def _spread(options: dict[str, Any]) -> Mesh | None:
    """Return the mesh after storing its sizes in the options; None for a single process."""
    if not options.get("mesh"):
        return None
    grid = parse_mesh(options["mesh"], started())
    if grid.devices == 1 and not has_master_address():
        _, place, placement, *_ = (options.pop(name, None) for name in PLACES)
        for clause in chosen(place, placement) if place or placement else ():
            clause.check(grid)
        return None
    options["mesh"] = str(grid)
    return grid


def _check_same(folder: Folder, paths: tuple[str, ...], options: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    """Refuse a command that would have begun another run than the one in the folder. Raises InputError."""
    kept = folder.options()
    names = {flag.name: flag.names[0] for flag in flags_of(train)}
    if tuple(str(Path(path).resolve()) for path in paths) != kept.paths:
        different = "PATH"
    elif dict(sizes) != dict(kept.sizes):
        different = "the model's sizes"
    else:
        fixed = {name: value for name, value in options.items() if name not in (*CHANGEABLE, *NOT_KEPT)}
        different = next((names[name] for name, value in fixed.items() if getattr(kept, name) != value), "")
    if different:
        raise InputError(f"{folder.path} contains a run with other options, see {different}: give another --out")


NOT_KEPT = ("tokenizer", "budget", "start")
"""The options that a run stores under another name."""

NUMBERS = ("integer", "number")

MOST_TRACED = 1_000
"""Steps that are traced at most."""


def number(name: str, value: Any, whole: bool) -> Any:
    """Return the number of a flag. Raises InputError."""
    try:
        return (counted(value) or int(value)) if whole else float(value)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{name.replace('_', '-')} must be {kind}, not {value!r}") from None


@contextmanager
def _reserved(processes: Processes) -> Iterator[Path]:
    """Create a folder with the first free name; delete it if it stays unused."""
    names = map(Path, map("run-{}".format, count(1)))
    folder = Path(processes.of_first(lambda: str(next(path for path in names if _made(path)))))
    try:
        yield folder
    finally:
        if processes.first:
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


@contextmanager
def reporter(reports: bool = True) -> Iterator[TrainingReporter]:
    """Yield the reporter of a training; of several processes one reports."""
    if not reports:
        yield TrainingReporter()
        return
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(TextColumn("{task.fields[facts]}"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as progress:
        yield ProgressBar(progress)


def _facts(step: TrainingStep) -> str:
    text = f"loss {step.loss:.3f}  "
    tokens = step.tokens_per_second is not None
    text += f"{step.tokens_per_second:,.0f} tokens/s" if tokens else f"{step.examples_per_second:,.0f} examples/s"
    text += f"  MFU {step.mfu:.1%}" if step.mfu is not None else ""
    return text


def _validation(step: TrainingStep) -> str:
    return f"step {step.step:,}: {_facts(step)}, validation {step.validated}"


class ProgressLines(TrainingReporter):
    """Progress for files and pipes."""

    def say(self, text: str) -> None:
        print(wrapped(text), file=sys.stderr, flush=True)

    def begin(self, step: int, steps: int) -> None:
        self.say(f"step {step:,} of {steps:,}")

    def stepped(self, step: TrainingStep) -> None:
        if step.validation_loss is not None:
            self.say(_validation(step))


class ProgressBar(TrainingReporter):
    """Progress for a terminal."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, facts="")

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def begin(self, step: int, steps: int) -> None:
        self._progress.update(self._task, description="training", completed=step, total=steps)

    def stepped(self, step: TrainingStep) -> None:
        self._progress.update(self._task, completed=step.step, facts=_facts(step))
        if step.validation_loss is not None:
            self._progress.console.print(_validation(step))

    def sampled(self, step: int, text: str) -> None:
        self._progress.console.print(text, markup=False, style="dim")


def stopped(result: TrainingResult) -> str:
    """Return how to resume a run that stopped early."""
    return (
        f"saved after step {result.steps:,} of {result.options.steps:,}; "
        f"learncost train --resume {result.folder} continues it"
    )


def _memory(step: TrainingStep) -> list[str]:
    """Return the measured memory of the process, and the predicted memory of a step's arrays."""
    if step.process is None or step.memory is None:
        return []
    more = f"{size_of(step.memory)} of it since it has weights"
    lines = [f"process, measured: {size_of(step.process)} at most, {more}"]
    if step.predicted is not None:
        lines.append(f"arrays of a step, predicted: {size_of(step.predicted)}")
    return lines


def summary(result: TrainingResult) -> str:
    """Return the summary of a training."""
    options, lines = result.options, []
    steps_text = "1 step" if result.steps == 1 else f"{result.steps:,} steps"
    lines.append(f"{result.folder}: {result.name}, {result.parameters:,} parameters, {steps_text}")
    if result.last is None:
        lines.append(f"all steps are done; --resume {result.folder} --steps N with more steps continues it")
    elif result.validated is not None:
        count, unit = result.steps * (options.batch_size or 0) * options.accumulate, "examples"
        if result.validated.tokens_per_second is not None:
            count, unit = count * (options.seq_len or 0), "tokens"
        loss = f"loss {result.validated.validation_loss:.3f}"
        score = result.validated.validated
        text = score if loss in score else f"{score}, {loss}"
        lines.append(f"validation: {text}, after {count:,} {unit}; {result.seconds:.0f} s")
    if result.last is not None:
        lines += _memory(result.last)
    if result.writes:
        lines.append(f"learncost sample {result.folder} --prompt TEXT lets it write")
    elif (result.folder / SAMPLES).stat().st_size:
        lines.append(f"what it says of some examples is in {result.folder / SAMPLES}")
    return "\n".join(map(wrapped, lines))
