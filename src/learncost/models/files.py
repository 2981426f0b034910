"""Read configuration files into mappings: from a path, a folder or standard input.

Every error is one line that names the file.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import NoReturn, TextIO

from learncost.ir.errors import InputError, printable, shown
from learncost.layers.layer import Layer, layer

LARGEST_FILE = 16 * 2**20  # bytes; published configurations have a few thousand, and /dev/zero never ends


NOTATION = ".table"
"""The suffix of files in the notation."""


YAML = (".yaml", ".yml")

SHELL = (".sh", ".bash", ".slurm", ".sbatch")
"""The suffixes of shell scripts; the last two are submitted to a scheduler."""

PYTHON = ".py"

DATA_FILES = (*YAML, ".json", ".toml", *SHELL, PYTHON)
"""The suffixes of files that may be those of a trainer."""


def user_folder(what: str) -> Path:
    """Return the user's cache folder: $XDG_CACHE_HOME or ~/.cache, under learncost."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "learncost" / what


def looks_like_path(model: str) -> bool:
    """Return whether a MODEL argument means a file or a folder: it has a separator or a suffix, or it exists."""
    if "/" in model or "\\" in model or model in {".", ".."} or model.lower().endswith((".json", ".toml")):
        return True
    try:
        return bool(model) and Path(model).exists()
    except (OSError, ValueError):  # a name too long for a file, a null character
        return False


def read_path(model: str, hint: str = "") -> dict[str, object]:
    """Return the content of a JSON or TOML file, or of the config.json in a folder.

    Raises InputError for a file that is absent, unreadable, malformed or not an object; `hint` is added to the message
    about an absent file.
    """
    path = Path(model)
    if path.suffix.lower() == ".ipynb":
        raise InputError(f"{shown(model)} is a notebook, which is not read: give the configuration that it trains with")
    try:
        if path.is_dir():
            path = path / "config.json"
            if not path.exists():
                raise InputError(f"folder {shown(model)} holds no config.json")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"no such file: {shown(model)}{hint}") from None
    except UnicodeDecodeError:
        raise InputError(f"{shown(model)} is not UTF-8 text, so it is not a configuration") from None
    except OSError as error:
        raise InputError(f"cannot read {shown(model)}: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not a path: {shown(model)}") from None  # a null character in it
    parse = parse_toml if path.suffix.lower() == ".toml" else parse_json
    return parse(text, printable(str(path)))


def read_stream(stream: TextIO) -> dict[str, object]:
    """Return the JSON configuration in an open stream, such as standard input for `MODEL = -`."""
    try:
        text = stream.read(LARGEST_FILE + 1)
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None
    return parse_json(text.removeprefix("\ufeff"), "standard input")


def parse_json(text: str, where: str) -> dict[str, object]:
    """Return the object in a JSON text; `where` is the name of the text in an InputError."""
    if len(text) > LARGEST_FILE:
        raise InputError(f"{where} is larger than {LARGEST_FILE // 2**20} MiB, so it is not a configuration")
    if not text.strip():
        raise InputError(f"{where} is empty; a JSON object like that of a config.json is needed")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{where} gives {shown(twice)} twice")
        return table

    def refuse(constant: str) -> NoReturn:
        raise InputError(f"{where} holds {constant}, which is not a number in JSON")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        hint = f"; a file in the notation ends in {NOTATION}" if "->" in text else ""
        raise InputError(f"{where} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}{hint}") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply for a configuration") from None
    except InputError:
        raise
    except ValueError:  # thousands of digits
        raise InputError(f"{where} holds a number with too many digits") from None
    if not isinstance(value, dict):
        raise InputError(f"{where} holds {shown(value)}; a JSON object like that of a config.json is needed")
    return value


def parse_toml(text: str, where: str) -> dict[str, object]:
    """Return the table in a TOML text, with the keys of a config.json; `where` is the name of the text in an
    InputError."""
    import tomllib  # not needed for the usual config.json

    if len(text) > LARGEST_FILE:
        raise InputError(f"{where} is larger than {LARGEST_FILE // 2**20} MiB, so it is not a configuration")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply for a configuration") from None
    except ValueError:  # thousands of digits
        raise InputError(f"{where} holds a number with too many digits") from None


def read_layer(path: Path) -> Layer:
    """Return the layer of a file in the notation. Raises `InputError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file in UTF-8") from None
    except ValueError:
        raise InputError(f"not a path: {shown(str(path))}") from None  # a null character in it
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    return _of_text(text)


_of_text = lru_cache(maxsize=16)(layer)
"""The layer that a text describes, cached since several commands read the same file."""
