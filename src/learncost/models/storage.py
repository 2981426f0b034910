"""Write files atomically: they are written under a temporary name, flushed to disk, and renamed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, imported, shown

Arrays = Mapping[str, Any]

TEMPORARY = ".partial"
"""The suffix of files that are being written; a killed run may leave one."""


@dataclass(frozen=True)
class WriteAdvice:
    """The advice in an error about a file that cannot be written: which files remain, and how to continue from them."""

    what: str = ""
    again: str = ""

    def after(self, advice: str) -> str:
        """Return the two texts of the advice with an action between them."""
        then = ", then ".join(part for part in (advice, self.again) if part)
        sentence = ": ".join(part for part in (self.what, then) if part)
        return f"; {sentence}" if sentence else ""


NO_ADVICE = WriteAdvice()


def output_path(path: object) -> Path:
    """Return the path of a file to write. Raises `InputError` for anything but a text or a path, such as a number."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"output must be a path, not {shown(path)}")
    return Path(path)


def path_of(what: str, endings: Sequence[str], path: str | os.PathLike[str]) -> Path:
    """Return the path of a trace or a figure. Raises InputError for an unsupported suffix or a missing folder."""
    file = output_path(path)
    if file.suffix.lower() not in endings:
        names = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
        raise InputError(f"a {what} ends in {names}, not {shown(str(path))}")
    check_folder(file)
    return file


def check_folder(path: Path) -> None:
    """Raise `InputError` for a file that cannot be written because its folder is missing, or it is a folder itself."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise cannot_write(path, OSError(errno.EISDIR if path.is_dir() else errno.ENOENT, ""))


@contextmanager
def written(path: Path, advice: WriteAdvice = NO_ADVICE) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` after it has been written to disk; a device is itself written.

    Raises InputError, and leaves `path` unchanged, if writing fails.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # such as /dev/stdout
            yield path
            return
        path = path.resolve()  # of a link, the file
        temporary = path.with_name(path.name + TEMPORARY)
        try:
            yield temporary
            _to_disk(temporary)
            os.replace(temporary, path)
            _to_disk(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise cannot_write(path, error, advice) from None


_ADVICE: Mapping[int, str] = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "free some space",
    errno.EROFS: "make the disk writable",
    errno.EACCES: "give yourself the right to write there",
    errno.EPERM: "give yourself the right to write there",
    errno.EISDIR: "move that folder away",
    errno.EEXIST: "move it away",
    errno.ENOTDIR: "move it away",
}
"""The advice for some errors of the operating system."""


def cannot_write(path: Path, error: OSError, advice: WriteAdvice = NO_ADVICE) -> InputError:
    """Return the error for a file or a folder that cannot be written, with the cause and advice."""
    return InputError(f"cannot write {path}: {_reason(path, error)}{advice.after(_ADVICE.get(error.errno or 0, ''))}")


def _reason(path: Path, error: OSError) -> str:
    """Return the cause of an operating system error, in clearer words for some errors."""
    if error.errno == errno.EROFS:
        return "the disk is mounted read-only"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission ({error.strerror})"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        obstacle = next((file for file in (path, *path.parents) if file.is_file()), None)
        if obstacle is not None:
            return f"{obstacle} is a file, not a folder"
    if error.errno == errno.ENOENT:
        return f"there is no folder {path.parent}"
    if error.errno == errno.EISDIR:
        return "there is a folder of this name"
    return error.strerror or str(error)


@contextmanager
def alone(folder: Path, refusal: str) -> Iterator[None]:
    """Lock a folder inside a `with` block; the operating system also releases the lock when the process ends.

    Raises InputError(refusal) if another process has locked it. Systems without such locks, such as Windows and some
    network file systems, lock nothing.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # without a folder there is no run: its reader raises the error
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(refusal) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def _to_disk(path: Path) -> None:
    """Flush a folder to disk, on systems that can open folders."""
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


def write_bytes(path: Path, content: bytes, advice: WriteAdvice = NO_ADVICE) -> None:
    """Write a file atomically."""
    with written(path, advice) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, advice: WriteAdvice = NO_ADVICE) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode(), advice)


def write_json(path: Path, value: Mapping[str, Any], advice: WriteAdvice = NO_ADVICE) -> None:
    """Write an indented JSON file atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n", advice)


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Return the object of a JSON file; `advice` ends the error for a damaged one."""
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
    """Import the optional package safetensors. Raises InputError."""
    return imported("safetensors", "training needs the package safetensors", "train")


def write_arrays(path: Path, arrays: Arrays, metadata: Mapping[str, str], advice: WriteAdvice = NO_ADVICE) -> str:
    """Write named arrays with metadata and a digest of the arrays to a safetensors file; return the digest.

    Arrays are written one after the other, so that only one is copied at a time.
    """
    fingerprint = digest(arrays)
    header: dict[str, Any] = {"__metadata__": {**metadata, "digest": fingerprint}}
    end = 0
    # The widest first, as the package orders them, so that every array is aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    for name in names:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _WRITTEN[array.dtype.str], "shape": [*array.shape], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with written(path, advice) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(np.ascontiguousarray(arrays[name]).data)
    return fingerprint


_WRITTEN: Mapping[str, str] = {
    "<f8": "F64",
    "<f4": "F32",
    "<f2": "F16",
    "<c8": "C64",
    "|u1": "U8",
    "|i1": "I8",
    "<i2": "I16",
    "<i4": "I32",
    "<i8": "I64",
    "|b1": "BOOL",
}
"""NumPy's types by their names in safetensors files."""


def read_arrays(path: Path, advice: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays and the metadata of a safetensors file; bfloat16 becomes float32.

    Raises InputError, with `advice` at its end, for an absent, damaged or different file. If the file has a digest, it
    is checked.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; {advice}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    package = safetensors()
    try:
        arrays = {name: _array(**packed) for name, packed in package.deserialize(content)}
    except package.SafetensorError:
        raise InputError(f"{path} is damaged, or not a file in the format safetensors; {advice}") from None
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    if "digest" in metadata and metadata["digest"] != digest(arrays):
        raise InputError(f"{path} is damaged: its digest differs; {advice}")
    return arrays, metadata


def metadata(path: Path) -> dict[str, str]:
    """Return only the metadata of a safetensors file. Raises OSError, and ValueError for another file."""
    with path.open("rb") as file:
        text = file.read(int.from_bytes(file.read(8), "little"))
    return dict(json.loads(text).get("__metadata__", {}))


_READ: Mapping[str, Callable[[bytes], Any]] = {
    "F64": lambda data: np.frombuffer(data, "<f8"),
    "F32": lambda data: np.frombuffer(data, "<f4"),
    "F16": lambda data: np.frombuffer(data, "<f2"),
    "U8": lambda data: np.frombuffer(data, np.uint8),
    "I8": lambda data: np.frombuffer(data, np.int8),
    "I16": lambda data: np.frombuffer(data, "<i2"),
    "I32": lambda data: np.frombuffer(data, "<i4"),
    "I64": lambda data: np.frombuffer(data, "<i8"),
    "BOOL": lambda data: np.frombuffer(data, np.bool_),
    "C64": lambda data: np.frombuffer(data, "<c8"),
    # The upper half of a float32.
    "BF16": lambda data: (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32),
}


def _array(dtype: str, shape: list[int], data: bytes) -> Any:
    """Return an array of a safetensors file; for types that NumPy does not have, such as fp8, its bytes."""
    read = _READ.get(dtype)
    return np.frombuffer(data, np.uint8) if read is None else read(data).reshape(shape)


def check_finite(arrays: Arrays, where: str, advice: str) -> None:
    """Raise InputError for arrays with infinities or NaN, from which training cannot continue."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InputError(f"{where}: {name} holds numbers that are not finite; {advice}")


def digest(arrays: Arrays) -> str:
    """Return a digest of arrays, their names, types and shapes."""
    fingerprint = blake2b(digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        fingerprint.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        fingerprint.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return fingerprint.hexdigest()
