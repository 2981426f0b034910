"""The loop of a training, from its start or its last checkpoint.

`start` writes the run's options into its folder, `go_on` does everything that the folder does not have yet. So a
run that was killed at any moment goes on where its last checkpoint is.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from learncost.engines import hugging_face
from learncost.engines.options import LEARNS, MINUTES, Options
from learncost.engines.processor import one_thread
from learncost.engines.weights import shape
from learncost.interrupt import stop_requested
from learncost.ir import displayed
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.precision import precision_of
from learncost.models.model import build
from learncost.models.storage import WriteAdvice, cannot_write
from learncost.timing.traced import Tracer
from learncost.training import memory
from learncost.training.begin import begin
from learncost.training.data.columns import METADATA_FILE
from learncost.training.data.task import Data, count, right
from learncost.training.data.tasks import Text, next_token, task
from learncost.training.engine import NumPyEngine, engine
from learncost.training.folder import CONFIG, LOGS, Checkpoint, Folder, last_checkpoint
from learncost.training.generate import Decoder, Sampling, sample
from learncost.training.parts import read
from learncost.training.processes import ONE_PROCESS, Processes

INTERRUPTED = 130
"""The exit code of a command that was asked to stop, by convention of shells."""

SHOWN = 4
"""Examples in a sample."""

SMALL = 1e8
"""FLOPs of a product of the model's width, below which NumPy takes one thread for it."""


@dataclass(frozen=True)
class TrainingStep:
    """The record of a step, with validation if it was run; `seconds` are of this step alone.

    accuracy   the share of right answers where they are classes

    process    the most bytes that the process has held so far, its libraries, validation and samples among them
    memory     by how much that is more than the process held before there were weights
    predicted  bytes that are predicted for weights, state and step, where the engine can say
    """

    step: int
    loss: float
    learning_rate: float
    seconds: float
    tokens_per_second: float | None = None
    examples_per_second: float | None = None
    mfu: float | None = None
    process: int | None = None
    memory: int | None = None
    predicted: int | None = None
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    accuracy: float | None = None

    @property
    def validated(self) -> str:
        """Return the text of the validation."""
        if self.bits_per_byte is not None:
            return f"{self.bits_per_byte:.3f} bits per byte"
        return f"loss {self.validation_loss:.3f}" + ("" if self.accuracy is None else f", {self.accuracy:.1%} right")

    def line(self) -> str:
        """Return the line of metrics.jsonl."""
        return json.dumps({name: value for name, value in vars(self).items() if value is not None}) + "\n"


class TrainingReporter:
    """The callbacks of a training's progress, which do nothing by default."""

    def say(self, text: str) -> None:
        """Report a started or finished task."""

    def begin(self, step: int, steps: int) -> None:
        """Report the start of the steps, after `step` of `steps`."""

    def stepped(self, step: TrainingStep) -> None:
        """Report a completed step."""

    def sampled(self, step: int, text: str) -> None:
        """Report generated text."""


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training: its steps and the last one; whether it `stopped` early, `asked` or out of time.

    reports  whether this process reports for all of them
    """

    folder: Path
    name: str
    options: Options
    steps: int
    parameters: int
    seconds: float
    last: TrainingStep | None
    validated: TrainingStep | None
    stopped: bool
    asked: bool
    writes: bool
    reports: bool = True

    def __str__(self) -> str:
        """Return the summary; "" if the run was stopped or another process reports."""
        from learncost.training.train import summary

        return "" if self.stopped or not self.reports else summary(self)

    def __rich__(self) -> str:
        return str(self).replace("[", r"\[")  # no markup

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.asked else 0


def start(
    options: Options,
    path: Path,
    report: TrainingReporter,
    stop: Callable[[], bool] | None = None,
    trace: int = 0,
    processes: Processes = ONE_PROCESS,
) -> TrainingResult:
    """Train with the options in a new folder; `stop`, `trace` and `processes` as for `go_on`. Raises InputError.

    What is refused before its first step, such as a list with a mistake, leaves no folder: it can be run again.
    """
    folder = Folder(path)

    def write() -> None:
        beginning = begin(options)
        folder.make()
        with folder.alone():
            folder.begin(beginning.options, beginning.config, beginning.files, beginning.initial)

    processes.of_first(write)
    with _alone(folder, processes):
        try:
            run = _TrainingRun(folder, report, {}, trace, processes)
        except InputError:
            if processes.first:
                folder.forget()
            raise
        return run.to_the_end(stop)


def go_on(
    path: Path,
    report: TrainingReporter,
    stop: Callable[[], bool] | None = None,
    trace: int = 0,
    processes: Processes = ONE_PROCESS,
    **changes: Any,
) -> TrainingResult:
    """Continue a run from its last checkpoint, bit-identical to an uninterrupted run. Raises InputError.

    stop       asked after every step; the run is saved where it says yes. None: Ctrl-C says yes
    trace      how many steps are timed line by line, for a trace in the folder
    processes  those that train it together
    changes    options in place of the run's own, such as more steps
    """
    folder = Folder(path)
    with _alone(folder, processes):
        return _TrainingRun(folder, report, changes, trace, processes).to_the_end(stop)


@contextmanager
def _alone(folder: Folder, processes: Processes) -> Iterator[None]:
    """Lock the folder while the block runs. Raises InputError in all processes."""
    with ExitStack() as held:
        processes.of_first(lambda: held.enter_context(folder.alone()))
        yield


class _TrainingRun:
    """A run with everything that its steps require."""

    def __init__(
        self, folder: Folder, report: TrainingReporter, changes: dict[str, Any], trace: int, processes: Processes
    ) -> None:
        self.tracer = Tracer(trace)
        self.folder, self.report, self.announced, self.processes = folder, report, False, processes
        options = folder.options()
        self.options = replace(options, **changes)
        self.configuration = folder.configuration()
        self.model = build(self.configuration)
        self.name = self.options.title(self.configuration.family)
        self.tokenizer = folder.tokenizer()
        self.task = task(self.configuration, self.tokenizer, self.options)
        self.data = self._data()
        self.engine: NumPyEngine = engine(self.configuration, self.options)
        held_bytes = sum(array.nbytes for array in _held(self.engine))
        memory.reset_peak()
        self.before = memory.highest() - held_bytes
        logs = self._loaded()
        if self.options.steps is None:
            self._measure()
        lengths = logs or dict.fromkeys(LOGS, 0)
        self.saved = self.engine.steps if logs is not None else -1
        advice = WriteAdvice(self._advice(), folder.again)
        if not processes.first:
            self.metrics = self.samples = MetricsLog(Path(os.devnull), 0, advice)

        def log() -> None:
            self.metrics, self.samples = (MetricsLog(folder.path / name, lengths[name], advice) for name in LOGS)

        processes.of_first(log)
        if self.options != options:
            processes.of_first(lambda: folder.rewrite(self.options, advice))

    def _loaded(self) -> Mapping[str, int] | None:
        """Load the last checkpoint; return the lengths of the logs, None without one."""
        folder, engine, processes = self.folder, self.engine, self.processes
        answers: list[Any] = []
        parts = engine.parts()
        if parts is not None:
            processes.each(lambda: answers.append(folder.distributed()))
            if (saved := answers.pop()) is not None:
                read(saved, parts, folder.advice, processes)
                engine.load_parts(parts, saved.steps)
                processes.each(lambda: answers.append(folder.lengths(saved.logs)))
                return dict(answers[0])
        processes.each(lambda: answers.append(folder.load(self.model)))
        checkpoint: Checkpoint | None = answers[0]
        if checkpoint is not None:
            weights = checkpoint.weights if engine.is_plain else checkpoint.state
            engine.load(weights, checkpoint.state, checkpoint.steps)
            return checkpoint.logs
        if (initial := folder.initial(self.model)) is not None:
            engine.load(initial, engine.state, 0)
        if self.options.start is not None:
            engine.load(hugging_face.read(self.model, Path(self.options.start)), engine.state, 0)
        return None

    def _data(self) -> Data:
        path = self.folder.path

        def prepare() -> None:
            if not (path / METADATA_FILE).exists():
                self.task.prepare(self.options, path, self.report.say)

        self.processes.of_first(prepare)
        return self.task.load(self.options, path, self.folder.advice)

    def _threads(self) -> AbstractContextManager[None]:
        """Limit small NumPy products to one thread, by a rule of sizes alone, so that results stay bit-identical."""
        tokens = (self.options.batch_size or 1) * (self.options.seq_len or 1)
        sizes = self.configuration.sizes
        width: int = sizes["hidden_size"] if self.configuration.layer is None else max(sizes.values())
        return one_thread() if 2 * tokens * width * width < SMALL else nullcontext()

    def _measure(self) -> None:
        """Return the number of steps that fit the minutes: time a few, then restore the weights."""
        engine, minutes = self.engine, self.options.minutes or MINUTES
        self.report.say("measuring a step")
        parts = engine.parts()
        if parts is None:
            weights, state = (
                {name: np.array(array) for name, array in of.items()} for of in (engine.weights, engine.state)
            )
        else:
            parts = {
                name: tuple(replace(part, array=np.array(part.array)) for part in several)
                for name, several in parts.items()
            }
        times: list[float] = []
        with self._threads():
            while self.processes.of_first(lambda: len(times) < 4 or (sum(times) < 1 and len(times) < 50)):
                began = perf_counter()
                engine.step(self.data.batch(len(times)), 0.0)
                times.append(perf_counter() - began)
        if parts is None:
            engine.load(weights, state, 0)
        else:
            engine.load_parts(parts, 0)
        # The first one is slower than all that follow; a tenth is left for validation, samples and checkpoints.
        steps = self.processes.of_first(lambda: max(1, int(0.9 * 60 * minutes / float(np.median(times[1:])))))
        self.options = replace(self.options.resolved(steps), minutes=None)

    def to_the_end(self, stop: Callable[[], bool] | None) -> TrainingResult:
        """Run all steps, or until the training is stopped."""
        if stop is not None:
            with self._threads():
                return self._steps(stop)
        with stop_requested() as asked, self._threads():
            return self._steps(asked)

    def _steps(self, stop: Callable[[], bool]) -> TrainingResult:
        """Run the steps, with validation, samples and checkpoints when they are due."""
        options, engine = self.options.resolved(self.options.steps or 1), self.engine
        assert options.steps is not None
        began, interrupted, stopped = perf_counter(), False, False
        step: TrainingStep | None = None
        validated: TrainingStep | None = None
        self.report.begin(engine.steps, options.steps)
        if self.saved < 0:
            self._save()
        while engine.steps < options.steps and not stopped:
            step = self._step(options)
            last = engine.steps == options.steps
            if last or _due(engine.steps, options.validate_every):
                step = validated = self._validated(step)
            late = options.minutes is not None and perf_counter() - began > 60 * options.minutes
            interrupted, late = self.processes.each(partial(self.metrics.add, step.line()), stop(), late)
            stopped = (interrupted or late) and not last
            self.report.stepped(step)
            if last or _due(engine.steps, options.sample_every):
                self._sample()
            if last or stopped or _due(engine.steps, options.save_every):
                self._save(last)
        for log in (self.metrics, self.samples):
            log.close()
        if self.tracer.traced and self.processes.first:
            self._trace()
        table, sizes = self.model.table, self.model.sizes
        parameters = sum(math.prod(shape(table, name, sizes)) for name in table.weights)
        seconds = perf_counter() - began
        ended = (step, validated, stopped, interrupted, self.writes, self.processes.first)
        return TrainingResult(self.folder.path, self.name, options, engine.steps, parameters, seconds, *ended)

    def _step(self, options: Options) -> TrainingStep:
        engine, at = self.engine, self.engine.steps
        rate, batch = options.rate(at), self.data.batch(at)
        began = perf_counter()
        loss = self.tracer.step(at + 1, lambda: engine.step(batch, rate))
        seconds = perf_counter() - began
        if not math.isfinite(loss):
            raise InputError(f"the loss of step {at + 1:,} is {loss}: give a smaller --learning-rate; {self._advice()}")
        flops = engine.flops(batch) if options.peak_flops else 0
        mfu = flops / seconds / options.peak_flops if options.peak_flops else None
        most_bytes = memory.highest()
        if not self.announced:
            self.announced = True
            self.report.say(f"model {self.name}")
            self.report.say(engine.says)
            if not engine.is_plain:
                self.report.say(engine.learns)
        bytes_ = (most_bytes, most_bytes - self.before, engine.memory)
        text = isinstance(self.task, Text)
        speed = (batch["tokens"].size if text else len(next(iter(batch.values())))) / seconds
        tokens, examples = (speed, None) if text else (None, speed)
        return TrainingStep(at + 1, loss, rate, seconds, tokens, examples, mfu, *bytes_)

    def _trace(self) -> None:
        """Write the traced steps as files for a viewer."""
        options, path = self.options, self.folder.path
        names = ("procedure", "optimizer", "seq_len", "target_len", "dropout", "precision", "plan", *LEARNS)
        step = {name: getattr(options, name, None) for name in names} | {"precision": options.dtype}
        step |= {"model": str(path / CONFIG), "batch_size": (options.batch_size or 1) * options.accumulate}
        parts = self.engine.parts()  # the others are not asked for theirs: this process alone writes
        mine = self.engine.weights if parts is None else [name.partition(".")[2] for name in parts]
        weights = {*self.model.table.weights, *mine}
        written = (path, self.tracer.traced, weights, self.engine.says, self.engine.memory, step)
        self.report.say(displayed.drawing().write_traces(*written))

    def _advice(self) -> str:
        return last_checkpoint(self.saved)

    def _validated(self, step: TrainingStep) -> TrainingStep:
        """Add the validation loss, in batches of a step's size, and the share of right answers."""
        losses, counts, rights = [], [], 0
        for batch in self.data.check():
            counts.append(count(batch))
            alone = self.writes or self.configuration.layer is not None  # what a module returns is its loss
            loss, scores = (self.engine.loss(batch), None) if alone else self.engine.look(batch)
            rights += right(batch, scores) if self.task.classes else 0
            losses.append(loss)
        loss = float(np.average(losses, weights=counts))
        bytes_ = self.data.bytes_per_token
        bits = None if bytes_ is None else loss / math.log(2) / bytes_
        accuracy = rights / sum(counts) if self.task.classes else None
        return replace(step, validation_loss=loss, bits_per_byte=bits, accuracy=accuracy)

    def _sample(self) -> None:
        if self.configuration.layer is not None:
            return
        prompt, text = (self.options.prompt, self._written()) if self.writes else ("", self._shown())
        self.processes.of_first(lambda: self.samples.add(f"--- step {self.engine.steps}\n{prompt}{text}\n"))
        self.report.sampled(self.engine.steps, text)

    @property
    def writes(self) -> bool:
        """Return whether the model continues a text; if not, its predictions are shown."""
        return next_token(self.configuration)

    def _written(self) -> str:
        weights = self.engine.plain_weights
        if not self.processes.first:
            return ""
        decoder = Decoder(self.configuration, weights, precision_of(self.options.dtype).array)
        how = Sampling(tokens=200, seed=self.options.seed)
        assert self.tokenizer is not None
        return sample(decoder, self.tokenizer, self.options.prompt, how)

    def _shown(self) -> str:
        """Show some validation examples with targets and predictions."""
        batch = next(self.data.check())
        _, scores = self.engine.look(batch)
        return "\n".join(self.data.show(batch, scores)[:SHOWN])

    def _save(self, last: bool = False) -> None:
        """Write a checkpoint: distributed by several processes, and whole by one process or after the last step."""
        engine, parts, saved = self.engine, self.engine.parts(), self.saved

        def settle() -> None:
            for log in (self.metrics, self.samples):
                log.settle()

        self.processes.of_first(settle)
        if parts is not None:
            self.folder.save_parts(parts, engine.steps, saved, self.processes)
        if parts is None or last:
            adapted = {} if engine.is_plain else engine.weights  # which the plain weights do not determine
            weights, state = engine.plain_weights, {**engine.state, **adapted}
            self.processes.of_first(lambda: self.folder.save(self.model, weights, state, engine.steps, saved))
        self.saved = engine.steps


def _held(engine: NumPyEngine) -> Iterator[Any]:
    """Return this process's arrays of weights and optimizer state."""
    parts = engine.parts()
    if parts is None:
        yield from (*engine.weights.values(), *engine.state.values())
    else:
        yield from (part.array for several in parts.values() for part in several)


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


class MetricsLog:
    """An append-only file of metrics or samples; a resumed run truncates it to its length at the last checkpoint."""

    def __init__(self, path: Path, length: int, advice: WriteAdvice) -> None:
        self._path, self._advice = path, advice
        try:
            self._file = path.open("ab")
            if path.stat().st_size > length:
                os.truncate(path, length)
        except OSError as error:
            raise cannot_write(path, error, advice) from None

    def add(self, text: str) -> None:
        """Write a text, at once. Raises InputError."""
        try:
            self._file.write(text.encode())
            self._file.flush()
        except OSError as error:
            raise cannot_write(self._path, error, self._advice) from None

    def settle(self) -> None:
        """Flush everything to the disk before a checkpoint refers to it."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self._path, error, self._advice) from None

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # what could not be written was reported when it was added
            self._file.close()
