"""Save checkpoints of which every process writes and reads its shards, in the format of torch.distributed.checkpoint.

checkpoint-STEP holds PyTorch's files. learncost.json, written last, completes it, and has the digests of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, imported
from learncost.models.storage import WriteAdvice, cannot_write, check_finite, read_json, write_json
from learncost.training.processes import ONE_PROCESS, Processes, is_of_peers

METADATA_FILE = "learncost.json"
"""The file that completes a checkpoint."""

NAMED = "checkpoint-"

METADATA = ".metadata"
"""PyTorch's index of the parts, a pickle."""

KINDS = ("model", "optimizer")
"""The prefixes of names in a checkpoint: weights by the names of the model's table, states of the optimizer."""


@dataclass(frozen=True)
class ArrayPart:
    """An array that is a part of a whole one.

    first  where it begins, along every axis
    whole  the shape of the whole array
    """

    array: Any
    first: tuple[int, ...]
    whole: tuple[int, ...]


Parts = Mapping[str, tuple[ArrayPart, ...]]
"""The parts of every array, by its name, that a process stores: one, or several that are not adjacent."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint in its folder: after how many steps, and how long the logs were."""

    path: Path
    steps: int
    logs: Mapping[str, int]
    digests: Mapping[str, str]


def newest(run: Path, advice: str) -> SavedCheckpoint | None:
    """Return the last complete checkpoint in the folder of a run, if any. Raises InputError for a damaged one."""
    paths = [path for path in run.glob(f"{NAMED}*") if (path / METADATA_FILE).exists()]
    saved = [_saved(path, read_json(path / METADATA_FILE, advice), advice) for path in paths]
    return max(saved, key=lambda each: each.steps, default=None)


def _saved(path: Path, facts: Mapping[str, Any], advice: str) -> SavedCheckpoint:
    try:
        return SavedCheckpoint(path, int(facts["steps"]), dict(facts["logs"]), dict(facts["digests"]))
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path / METADATA_FILE} was not saved by learncost train; {advice}") from None


def save(
    run: Path,
    parts: Parts,
    steps: int,
    logs: Mapping[str, int],
    advice: WriteAdvice,
    processes: Processes = ONE_PROCESS,
) -> Path:
    """Write the parts of every process, and return the checkpoint's folder. Raises InputError.

    What could not be written is taken away again.
    """
    path = run / f"{NAMED}{steps}"
    rate_advice = f"give a smaller --learning-rate{advice.after('')}"
    processes.each(lambda: _check_finite(parts, f"step {steps:,}", rate_advice))
    processes.of_first(lambda: _replace_folder(path, advice))
    try:
        _written(path, parts, advice)
        mine = [*path.glob(f"__{processes.rank}_*"), *([path / METADATA] if processes.first else [])]
        digests = processes.gathered({path.name: _digest(path) for path in mine})
        together = {name: digest for each in digests for name, digest in each.items()}
        facts = {"steps": steps, "logs": dict(logs), "digests": together}
        processes.of_first(lambda: write_json(path / METADATA_FILE, facts, advice))
    except InputError:
        if processes.first:
            rmtree(path, ignore_errors=True)
        raise
    return path


def _replace_folder(path: Path, advice: WriteAdvice) -> None:
    try:
        if path.exists():  # what a killed run left
            rmtree(path)
        path.mkdir()
    except OSError as error:
        raise cannot_write(path, error, advice) from None


def _written(path: Path, parts: Parts, advice: WriteAdvice) -> None:
    import torch.distributed as distributed
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save as write

    from learncost.training.shards import CheckpointWriter, nested

    alone = not distributed.is_initialized()
    try:
        with _quietly():
            write(nested(parts), storage_writer=CheckpointWriter(path), no_dist=alone)
    except CheckpointException as error:
        raise _refusal(path, error.failures.values(), advice) from None
    except (OSError, RuntimeError) as error:
        raise _refusal(path, [(error, None)], advice) from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warning that one process is one process."""
    with catch_warnings():
        simplefilter("ignore", UserWarning)
        yield


def _refusal(path: Path, failures: Iterable[tuple[BaseException, Any]], advice: WriteAdvice) -> Exception:
    """Return the error of the process that could not write; if a process is lost, that error."""
    errors = [error for error, _ in failures]
    if gone := next((error for error in errors if isinstance(error, RuntimeError) and is_of_peers(error)), None):
        return gone
    for error in errors:
        if isinstance(error, OSError):
            return cannot_write(path, error, advice)
    reason = str(errors[0]).strip().splitlines()[0] if errors else "no reason is given"
    return InputError(f"cannot write {path}: {reason}{advice.after('')}")


def read(saved: SavedCheckpoint, parts: Parts, advice: str, processes: Processes = ONE_PROCESS) -> None:
    """Fill the arrays of parts, of which every process has those that it needs. Raises InputError.

    Before PyTorch reads them all files are held to their digests, each by one process.
    """
    mine = sorted(saved.digests)[processes.rank :: processes.number]
    processes.each(lambda: _check(saved, mine, advice))
    processes.each(lambda: _filled(saved, parts, advice))


def read_whole(saved: SavedCheckpoint, advice: str) -> dict[str, dict[str, Any]]:
    """Whole weights and states, by kind and name, on one process. Raises InputError."""
    filesystem = imported("torch.distributed.checkpoint.filesystem", f"{saved.path} is read by PyTorch", "torch")
    _check(saved, saved.digests, advice)
    parts: dict[str, tuple[ArrayPart, ...]] = {}
    names: Mapping[str, Any] = filesystem.FileSystemReader(saved.path).read_metadata().state_dict_metadata
    for name, facts in names.items():
        kind = str(facts.properties.dtype).removeprefix("torch.")
        whole = tuple(facts.size)
        parts[name] = (ArrayPart(np.empty(whole, kind), (0,) * len(whole), whole),)
    _filled(saved, parts, advice)
    by_kind: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, (part,) in parts.items():
        kind, _, rest = name.partition(".")
        by_kind[kind][rest] = part.array
    return by_kind


def _filled(saved: SavedCheckpoint, parts: Parts, advice: str) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    from learncost.training.shards import nested

    # Every process reads for itself: nobody has to say what others need.
    try:
        with _quietly():
            load(nested(parts), storage_reader=FileSystemReader(saved.path), no_dist=True)
    except CheckpointException as error:
        reason = next(str(each) for each, _ in error.failures.values()).splitlines()[0].rstrip(".")
        raise InputError(f"{saved.path} does not fit this model: {reason}; {advice}") from None
    _check_finite(parts, str(saved.path), advice)


def _check_finite(parts: Parts, where: str, advice: str) -> None:
    for name, several in parts.items():
        for part in several:
            check_finite({name: part.array}, where, advice)


def forget(run: Path, step: int) -> None:
    """Take away the checkpoints of other steps than that one, and what killed runs left of some."""
    for path in run.glob(f"{NAMED}*"):
        if path.name != f"{NAMED}{step}":
            with suppress(OSError):
                (path / METADATA_FILE).unlink(missing_ok=True)  # first: what is no longer whole is no checkpoint
            rmtree(path, ignore_errors=True)


def _digest(path: Path) -> str:
    fingerprint = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            fingerprint.update(block)
    return fingerprint.hexdigest()


def _check(saved: SavedCheckpoint, names: Iterable[str], advice: str) -> None:
    """Hold files to their digests. Raises InputError."""
    for name in names:
        path = saved.path / name
        try:
            same = _digest(path) == saved.digests[name]
        except FileNotFoundError:
            raise InputError(f"no such file: {path}; {advice}") from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        if not same:
            raise InputError(f"{path} is damaged: its digest differs; {advice}")
