"""Execution of a user's file `FILE.py:NAME`, and a record of the files that it reads."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from learncost.importer.refusals import is_local, one_line
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, nearest, printable, shown
from learncost.models.argument import described_elsewhere

_SPEC = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)", re.DOTALL)


@dataclass(frozen=True)
class Target:
    """A file and the name of its function or module; "" for a config.json."""

    file: Path
    name: str

    def __str__(self) -> str:
        return f"{printable(str(self.file))}:{self.name}" if self.name else printable(str(self.file))


def target(text: object) -> Target | None:
    """Return the target of `FILE.py:NAME`, or of a config.json for other packages; None for any other text.

    Raises `InputError` for a file of Python without a name.
    """
    if not isinstance(text, str):
        return None
    if match := _SPEC.fullmatch(text):
        return Target(Path(match["file"]), match["name"])
    if text.endswith((".py", ".py:")) and not text.startswith("-"):
        file = text.removesuffix(":")
        raise InputError(
            f"{printable(file)} requires the name of the function that builds the module, as in {printable(file)}:build"
        )
    if described_elsewhere(text) is not None:
        return Target(Path(text, "config.json") if Path(text).is_dir() else Path(text), "")
    return None


class UserError(InputError):
    """An exception of the user's code, with its file and line."""


@dataclass
class RanFile:
    """A file that was run, with its names."""

    target: Target
    values: ModuleType

    def named(self, name: str) -> Any:
        """Return the value of a name. Raises `InputError`."""
        value: Any = self.values
        for part in name.split("."):
            if not hasattr(value, part):
                names = [each for each in vars(value) if not each.startswith("_")] if hasattr(value, "__dict__") else []
                callables = [each for each in names if callable(getattr(value, each))]
                hint = nearest(part, names) or (f"; it has {', '.join(callables[:8])}" if callables else "")
                raise InputError(f"{printable(str(self.target.file))} has no {shown(part)}{hint}")
            value = getattr(value, part)
        return value


def run(wanted: Target) -> RanFile:
    """Run a file as Python would, with its folder first in the module search path.

    Raises `InputError` for a file that is not there or fails.
    """
    file = wanted.file
    if not file.is_file():
        raise InputError(f"no such file: {printable(str(file))}" + ("; that is a folder" if file.is_dir() else ""))
    name, folder = _place(file.resolve())
    with user_code(str(wanted.file)):
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        if "." in name:
            return RanFile(wanted, importlib.import_module(name))
        spec = importlib.util.spec_from_file_location(name, file.resolve())
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return RanFile(wanted, module)


def _place(file: Path) -> tuple[str, Path]:
    """Return a file's name as a module, and the folder to import it from: for a package, its parent."""
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier() and folder.parent != folder:
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) > 1 and all(part.isidentifier() for part in parts):
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts), folder
    name = re.sub(r"\W", "_", file.stem)
    return (f"_{name}" if name in sys.modules or name[:1].isdigit() else name), file.parent


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Run the user's code: its output goes to standard error, its exceptions become one-line errors."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (KeyboardInterrupt, InputError):
        raise
    except SystemExit as error:
        raise UserError(f"{printable(what)} ended Python (exit {error.code}): it must build and return") from None
    except BaseException as error:
        raise UserError(f"{printable(what)} failed: {one_line(error)}") from None


_watching: list[set[str]] = []
_hooked: list[bool] = []  # a hook is never taken away, so there is one


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """Record Python's audit event of an opened file, if recording is active."""
    if event != "open" or not _watching or set(arguments[1] or "") & set("wax+"):
        return
    if isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.fsdecode(arguments[0])
        _watching[-1].add(path if os.path.isabs(path) else os.path.join(os.getcwd(), path))


@contextmanager
def watched() -> Iterator[set[Path]]:
    """Record the files, also modules, that are opened for reading: the result depends on them."""
    opened, names = set[Path](), set[str]()
    if not _hooked:
        sys.addaudithook(_note)
        _hooked.append(True)
    _watching.append(names)
    try:
        yield opened
    finally:
        _watching.pop()
        modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        names |= {file for file in modules if isinstance(file, str)}
        local = [Path(name).absolute() for name in names if not name.endswith(".pyc") and is_local(name)]
        opened |= {file for file in local if file.is_file()}
