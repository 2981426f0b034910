"""The folder of a run, and its checkpoints.

A checkpoint of one process is two files: optimizer-STEP.safetensors, written first, and model.safetensors, whose
renaming is the moment at which the checkpoint is complete. Only then is the optimizer's file of the one before it
deleted. So whenever a run is killed, there is one complete checkpoint. Several processes write theirs in parts
(`parts.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from learncost.engines import hugging_face
from learncost.engines.options import Options, from_dict
from learncost.engines.state import from_state, stored, to_state
from learncost.engines.tokenizer import TOKENIZER, TOKENIZER_CONFIG, Tokenizer
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.models.configuration import Configuration, configure
from learncost.models.files import read_layer
from learncost.models.model import Model
from learncost.models.storage import (
    TEMPORARY,
    WriteAdvice,
    alone,
    cannot_write,
    check_finite,
    metadata,
    read_arrays,
    read_json,
    write_arrays,
    write_bytes,
    write_json,
)
from learncost.training import parts as in_parts
from learncost.training.data.tasks import tokenizer_of
from learncost.training.engine import NumPyEngine
from learncost.training.parts import Parts, SavedCheckpoint
from learncost.training.processes import Processes

OPTIONS, CONFIG, WEIGHTS = "training.json", "config.json", hugging_face.WEIGHTS
SAMPLES = "samples.txt"
TABLE, INITIAL = "model.table", "initial.safetensors"
"""Of a module that was imported: its table, which is read again where the module is not, and its weights."""
LOGS = ("metrics.jsonl", SAMPLES)
OURS = "learncost"


@dataclass(frozen=True)
class Checkpoint:
    """The state to resume from: weights by this package's names, optimizer state, steps, and lengths of the logs."""

    weights: Mapping[str, Any]
    state: Mapping[str, Any]
    steps: int
    logs: Mapping[str, int]


@dataclass(frozen=True)
class Folder:
    """The folder of a run."""

    path: Path

    @property
    def advice(self) -> str:
        """The advice for a damaged file."""
        return "put a copy in its place, or start another run with another --out"

    @property
    def again(self) -> str:
        """The command that resumes the run."""
        return f"learncost train --resume {self.path}"

    # The beginning.

    def make(self) -> None:
        """Create the folder. Raises InputError if it exists."""
        if (self.path / OPTIONS).exists():
            raise InputError(
                f"{self.path} already contains a run: continue it with {self.again}, or give another --out"
            )
        ours = (CONFIG, TOKENIZER, TOKENIZER_CONFIG, TABLE, INITIAL)
        if self.path.is_dir() and any(p.name not in ours and p.suffix != TEMPORARY for p in self.path.iterdir()):
            raise InputError(f"{self.path} is not empty and no run: give another --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from None

    def begin(
        self, options: Options, config: Mapping[str, Any], files: Mapping[str, bytes], initial: Mapping[str, Any]
    ) -> None:
        """Write the run's options, and the files of its tokenizer; with the options, the last, it is a run."""
        for name, content in files.items():
            write_bytes(self.path / name, content)
        if initial:
            write_arrays(self.path / INITIAL, initial, {"format": "pt"})
        write_json(self.path / CONFIG, config)
        write_json(self.path / OPTIONS, options.to_dict())

    def forget(self) -> None:
        """Delete a run that has not started, and its folder."""
        with suppress(OSError):  # why it has not begun is the news
            for path in self.path.iterdir():
                path.unlink()
            self.path.rmdir()

    def alone(self) -> AbstractContextManager[None]:
        """Lock the folder while the block runs. Raises InputError if another process trains there."""
        return alone(self.path, f"another training is at work in {self.path}: wait for it, or give another --out")

    def is_begun(self) -> bool:
        """Return whether there is a run."""
        return (self.path / OPTIONS).exists()

    def options(self) -> Options:
        """Return the options of the run. Raises InputError where there is no run."""
        path = self.path / OPTIONS
        if not path.exists():
            raise InputError(
                f"{self.path} is not a run: it has no {OPTIONS}; start one with learncost train PATH --out {self.path}"
            )
        options = from_dict(read_json(path, self.advice), str(path))
        if None in (options.batch_size, options.seq_len, options.learning_rate):
            raise InputError(f"{path} is damaged: batch_size, seq_len and learning_rate are needed; {self.advice}")
        return options

    def rewrite(self, options: Options, advice: WriteAdvice) -> None:
        """Replace the options."""
        write_json(self.path / OPTIONS, options.to_dict(), advice)

    def configuration(self) -> Configuration:
        """Return the model of the run."""
        if (self.path / TABLE).exists():
            return configure(read_layer(self.path / TABLE), self.options().sizes)
        path = self.path / CONFIG
        if not path.exists():
            raise InputError(f"no such file: {path}; {self.advice}")
        return configure(str(path))

    def tokenizer(self) -> Tokenizer | None:
        """Return the run's tokenizer: its copy of a file, or bytes; None for a model without tokens."""
        tokenizer_name = self.options().tokenizer
        return tokenizer_of(
            self.configuration(), str(self.path / TOKENIZER) if tokenizer_name == TOKENIZER else "bytes"
        )

    # Checkpoints.

    def save(self, model: Model, weights: Mapping[str, Any], state: Mapping[str, Any], steps: int, last: int) -> None:
        """Write a checkpoint that replaces the previous one, of step `last` or -1. Raises InputError."""
        last_one = last_checkpoint(last)
        check_finite({**weights, **state}, f"step {steps:,}", f"give a smaller --learning-rate; {last_one}")
        advice = WriteAdvice(last_one, self.again)
        theirs = _to_checkpoint(model, weights)
        optimizer = self._optimizer(steps)
        fingerprint = write_arrays(optimizer, state, {OURS: json.dumps({"steps": steps})}, advice)
        facts = {"steps": steps, "optimizer": fingerprint, "logs": {name: self._length(name) for name in LOGS}}
        write_arrays(self.path / WEIGHTS, theirs, {"format": "pt", OURS: json.dumps(facts)}, advice)
        for old in (*self.path.glob("optimizer-*.safetensors"), *self.path.glob(f"*{TEMPORARY}")):
            if old != optimizer:
                old.unlink(missing_ok=True)
        in_parts.forget(self.path, steps)

    def save_parts(self, arrays: Parts, steps: int, last: int, processes: Processes) -> None:
        """Write this process's shards of a checkpoint that replaces all previous ones. Raises InputError."""
        advice = WriteAdvice(last_checkpoint(last), self.again)
        in_parts.save(self.path, arrays, steps, {name: self._length(name) for name in LOGS}, advice, processes)

        def forget_others() -> None:
            in_parts.forget(self.path, steps)
            whole = (self.path / WEIGHTS, *self.path.glob("optimizer-*.safetensors"))
            for old in (*whole, *self.path.glob(f"*{TEMPORARY}")):
                old.unlink(missing_ok=True)

        processes.of_first(forget_others)

    def distributed(self, whole: bool = False) -> SavedCheckpoint | None:
        """Return the last checkpoint if it is distributed; `whole` ones have priority if requested.

        Raises InputError for a damaged one.
        """
        saved = in_parts.newest(self.path, self.advice)
        if saved is None or self.whole_steps() < saved.steps + (not whole):
            return saved
        return None

    def whole_steps(self) -> int:
        """Return the number of steps of the whole checkpoint; -1 if there is none."""
        try:
            return int(json.loads(metadata(self.path / WEIGHTS)[OURS])["steps"])
        except (OSError, KeyError, TypeError, ValueError):
            return -1

    def load(self, model: Model) -> Checkpoint | None:
        """Return the last checkpoint, None before the first. Raises InputError for a damaged or foreign one."""
        if (checkpoint := self._from_parts()) is not None:
            return checkpoint
        if not self._saved():
            return None
        weights, facts, steps = self._read(self.path / WEIGHTS)
        state, metadata, _ = self._read(self._optimizer(steps), steps)
        if facts.get("optimizer", metadata["digest"]) != metadata["digest"]:
            raise InputError(f"{self._optimizer(steps)} is of another run than {WEIGHTS}; {self.advice}")
        named = _from_checkpoint(model, weights, self.path / WEIGHTS)
        return Checkpoint(named, state, steps, self.lengths(facts.get("logs", {})))

    def _from_parts(self) -> Checkpoint | None:
        """Return the last checkpoint with shards joined, if it was written in shards."""
        if (saved := self.distributed(whole=True)) is None:
            return None
        weights, state = in_parts.read_whole(saved, self.advice).values()
        return Checkpoint(weights, {**state, **weights}, saved.steps, self.lengths(saved.logs))

    def lengths(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """Return the lengths of the logs at a checkpoint. Raises InputError where one is shorter now."""
        logs = {name: int(facts.get(name, 0)) for name in LOGS}
        for name, length in logs.items():
            if 0 < self._length(name) < length:
                raise InputError(
                    f"{self.path / name} is damaged: {self._length(name):,} bytes are left of {length:,}; "
                    "restore it from a copy, or remove it to begin a new one"
                )
        return logs

    def weights(self, model: Model) -> Mapping[str, Any]:
        """Return the weights of the last checkpoint. Raises InputError."""
        if (checkpoint := self._from_parts()) is not None:
            options = replace(self.options(), engine="numpy", plan=None, device="cpu")
            engine = NumPyEngine(self.configuration(), options)
            engine.load(checkpoint.state, checkpoint.state, checkpoint.steps)
            return engine.plain_weights
        if not self._saved():
            raise InputError(f"{self.path} has no checkpoint yet; {self.again} continues it")
        weights, _, _ = self._read(self.path / WEIGHTS)
        return _from_checkpoint(model, weights, self.path / WEIGHTS)

    def initial(self, model: Model) -> Mapping[str, Any] | None:
        """Return the weights that an imported module had; None for other models."""
        path = self.path / INITIAL
        return read_arrays(path, self.advice)[0] if path.exists() else None

    def _saved(self) -> bool:
        """Return whether there is a checkpoint. Raises InputError if steps were logged but weights are missing."""
        if (self.path / WEIGHTS).exists():
            return True
        later = set(self.path.glob("optimizer-*.safetensors")) - {self._optimizer(0)}
        if later or any(self._length(name) for name in LOGS):
            raise InputError(f"no such file: {self.path / WEIGHTS}; {self.advice}")
        return False

    def _read(self, path: Path, expected: int | None = None) -> tuple[dict[str, Any], dict[str, Any], int]:
        arrays, metadata = read_arrays(path, self.advice)
        try:
            facts = {**json.loads(metadata[OURS]), "digest": metadata.get("digest")}
            steps = int(facts["steps"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path} was not saved by learncost train; {self.advice}") from None
        if expected is not None and steps != expected:
            raise InputError(f"{path} is of step {steps}, not of {expected}; {self.advice}")
        check_finite(arrays, str(path), self.advice)
        return arrays, facts, steps

    def _optimizer(self, steps: int) -> Path:
        return self.path / f"optimizer-{steps}.safetensors"

    def _length(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.exists() else 0


def _to_checkpoint(model: Model, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights with the names of transformers, or of the module that was imported, or with their own."""
    if (layer := model.configuration.layer) is not None:
        return to_state(stored(layer, model.sizes), weights)
    ours = model.configuration.family not in hugging_face.layouts()
    return dict(weights) if ours else hugging_face.to_checkpoint(model, weights)


def _from_checkpoint(model: Model, weights: dict[str, Any], path: Path) -> Mapping[str, Any]:
    """Return weights by the names of the model's table."""
    if (layer := model.configuration.layer) is not None:
        return from_state(stored(layer, model.sizes), weights, str(path))
    ours = model.configuration.family not in hugging_face.layouts()
    return weights if ours else hugging_face.from_checkpoint(model, weights, str(path))


def last_checkpoint(steps: int) -> str:
    """Return the sentence of an error about the checkpoint after so many steps, -1 if there is none."""
    return f"the checkpoint of step {steps:,} is kept" if steps >= 0 else "there is no checkpoint yet"
