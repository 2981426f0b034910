"""Files that are whole or not there at all: written under another name, brought to the disk, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from learncost.equation.errors import InputError

Arrays = Mapping[str, Any]

TEMPORARY = ".partial"
"""How the names of files end that are being written; one that is found later is what a killed run left."""


@contextmanager
def written(path: Path, kept: str = "") -> Iterator[Path]:
    """A temporary path to write to, which takes the place of `path` when everything is on the disk.

    kept   what the message of a failure adds: what is still there, and what to do
    Raises InputError; what was at `path` stays then.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        try:
            yield temporary
            _to_disk(temporary)
            os.replace(temporary, path)
            _to_disk(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, _safetensors_error()) as error:
        raise cannot_write(path, error, kept) from None


def cannot_write(path: Path, error: Exception, kept: str = "") -> InputError:
    """The message about a file that cannot be written."""
    return InputError(f"cannot write {path}: {_reason(error)}" + (f"; {kept}" if kept else ""))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rpartition("I/O error: ")[2]


def _to_disk(path: Path) -> None:
    """What was written there survives the machine's end too; a system that cannot open folders is left alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, kept: str = "") -> None:
    """A whole file of text."""
    with written(path, kept) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any], kept: str = "") -> None:
    """A whole JSON file, readable by people."""
    write_text(path, json.dumps(value, indent=2) + "\n", kept)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """The object that a JSON file holds; `advice` ends the message where it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; {advice}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:  # of JSON and of UTF-8
        raise InputError(f"{path} is damaged: it is not JSON; {advice}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged: it is not a JSON object; {advice}")
    return value


# Arrays, in the format safetensors.


def safetensors() -> Any:
    """The package safetensors, which a plain installation does not have. Raises InputError."""
    try:
        import safetensors
    except ImportError:
        raise InputError("training needs the package safetensors: pip install 'learncost[train]'") from None
    return safetensors


def _safetensors_error() -> type[Exception]:
    try:
        from safetensors import SafetensorError
    except ImportError:
        return OSError
    return SafetensorError


def write_arrays(path: Path, arrays: Arrays, metadata: Mapping[str, str], kept: str = "") -> str:
    """Arrays by name, with metadata and a digest of all of them, as a file in the format safetensors; the digest."""
    safetensors()
    from safetensors.numpy import save_file

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    fingerprint = digest(whole)
    with written(path, kept) as temporary:
        temporary.touch()
        rights = temporary.stat().st_mode
        save_file(whole, temporary, {**metadata, "digest": fingerprint})
        temporary.chmod(rights)  # those of any file; the package makes one for its owner alone
    return fingerprint


def read_arrays(path: Path, advice: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays and the metadata of a file in the format safetensors; bfloat16 becomes float32.

    Raises InputError, which `advice` ends, for a file that is absent, damaged or something else. Where the file has a
    digest, as ours have, not a bit may differ.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; {advice}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        arrays = {name: _array(**one) for name, one in safetensors().deserialize(content)}
    except _safetensors_error():
        raise InputError(f"{path} is damaged, or not a file in the format safetensors; {advice}") from None
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    if "digest" in metadata and metadata["digest"] != digest(arrays):
        raise InputError(f"{path} is damaged: its digest differs; {advice}")
    return arrays, metadata


_FLOATS: Mapping[str, Callable[[bytes], Any]] = {
    "F64": lambda data: np.frombuffer(data, "<f8"),
    "F32": lambda data: np.frombuffer(data, "<f4"),
    "F16": lambda data: np.frombuffer(data, "<f2"),
    # The upper half of a float32.
    "BF16": lambda data: (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32),
}


def _array(dtype: str, shape: list[int], data: bytes) -> Any:
    """An array; what holds no real numbers (masks that old checkpoints keep) is of no use here and becomes bytes."""
    read = _FLOATS.get(dtype)
    return np.frombuffer(data, np.uint8) if read is None else read(data).reshape(shape)


def check_finite(arrays: Arrays, where: str, advice: str) -> None:
    """Refuse arrays with infinities or what is no number: nothing can be learned from there. Raises InputError."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InputError(f"{where}: {name} holds numbers that are not finite; {advice}")


def digest(arrays: Arrays) -> str:
    """A fingerprint of arrays, their names, types and shapes."""
    found = blake2b(digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
