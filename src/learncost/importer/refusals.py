"""What a user's code, or an export of it, raises: told in one line with the user's own file and line."""

from __future__ import annotations

import io
import logging
import os
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from learncost.ir.errors import InputError, printable


def told(error: BaseException) -> str:
    """An error of the user's code in one line: where in the user's code, what kind, what it says."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{printable(error.filename)}:{error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_local(Path(frame.filename))]
    where = f"{printable(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    if isinstance(error, InputError):  # what the package itself says of it
        return f"{where}{said}"
    return f"{where}{type(error).__name__}{f': {said}' if said else ''}"


_FOLDERS = sysconfig.get_paths()
_OTHERS = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        *(_FOLDERS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[2]),
    )
)


def is_local(file: Path) -> bool:
    """Whether a file is the user's: not Python's, not in site-packages, not this package's own."""
    path = os.path.realpath(file)
    inside = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
    return not inside and not path.startswith((*_OTHERS, "/proc/", "/sys/", "/dev/")) and not str(file).startswith("<")


class NotExportedError(InputError):
    """What PyTorch's export refuses, with the user's line."""


class GradientTakenError(InputError):
    """A gradient that a forward pass takes by this function, and that PyTorch does not export."""


class WhileExportedError(NotExportedError):
    """What PyTorch, or a package, raises while it exports, though a run may not."""


class RaisedError(NotExportedError):
    """What a module's code raises itself."""


class FixedError(InputError):
    """A size that was to stay open, and that a module's code fixes."""


class OnValuesError(InputError):
    """What depends on values that no export has: no sizes help there."""


_ON_VALUES = frozenset({"GuardOnDataDependentSymNode", "DynamicOutputShapeException", "DataDependentOutputException"})

_NOT_A_NUMBER = ("unhashable type: non-nested SymInt", "Cannot convert symbols to int")
"""What PyTorch and SymPy say, as a TypeError, where code makes a number of what is none while it is exported."""

_NO_SHAPES = "NotImplementedType"
"""What PyTorch speaks of where an operation says nothing of shapes, as those on sparse tensors do."""

_NESTED = re.compile(r"nested_tensor|NestedTensor|nested tensor")
"""What PyTorch speaks of where sequences of several lengths are one tensor."""

_LEFT_OPEN = "Unexpected key _export_root"
"""What PyTorch says where a module inside raised, and code around it went on."""

_DERIVATIVES = ("functorch tensor", "TensorWrapper")
"""What PyTorch speaks of where `torch.func.grad` or `vjp` runs while it exports."""

_BATCHED = "fake tensor in the exported program constant's list"
"""What PyTorch speaks of where `torch.vmap` runs an operation that it does not export, as `mv`."""

_CALLS = ("_wrapped_call_impl", "_call_impl", "inner")
"""Functions of `torch.nn.Module` that only call a layer."""

_TRANSFORMS = f"{os.sep}_functorch{os.sep}eager_transforms.py"
"""Where PyTorch has `torch.func.grad` and its like."""


@contextmanager
def silenced() -> Iterator[None]:
    """Without what is printed, logged and warned of meanwhile."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def exports(called: str) -> Iterator[None]:
    """What an export raises, in one line with the user's own file and line, and what can be done.

    What PyTorch prints and logs about it is not shown.
    """
    try:
        with silenced():
            yield
    except InputError as error:
        if error.__cause__ is None or not isinstance(error.__cause__, Exception):
            raise
        raise refusal(error.__cause__, called) from None
    except Exception as error:
        raise refusal(error, called) from None
    except SystemExit as error:
        raise RaisedError(f"{called} ended Python (exit {error.code}) in its forward pass: it must return") from None


def refusal(error: Exception, called: str) -> InputError:
    """What an export refuses, in one line."""
    place, code = _place_of(error)
    if isinstance(error, TypeError) and str(error).startswith(_NOT_A_NUMBER):
        return NotExportedError(
            f"{place}: `{code}` makes a number of a size or of a value that {called} has only when it runs: write that "
            "size as a number in the inputs, or take down one run, --as-run (in Python as_run=True)"
        )
    if type(error).__name__ in _ON_VALUES:
        return OnValuesError(
            f"{place}: `{code}` depends on values, which {called} has only when it runs: leave it out where it only "
            "checks, write it with torch.where, or take the branch of one run, --as-run (in Python as_run=True)"
        )
    if _LEFT_OPEN in str(error):
        part = str(error).split(_LEFT_OPEN, 1)[1].partition(",")[0].lstrip(".")
        return NotExportedError(
            f"{called} goes on, by try and except, after its part {part} raised, which PyTorch does not export: "
            "ask before the call what the part can take"
        )
    if _NO_SHAPES in str(error):
        return NotExportedError(
            f"{place}: `{code}`, which PyTorch does not export for these tensors, as for sparse ones: "
            f"write in {called} what it does with dense ones"
        )
    frames = traceback.extract_tb(error.__traceback__)
    of_func = is_by_func(error)
    if of_func or isinstance(error, GradientTakenError):
        by = FUNC if of_func else str(error)
        if by == VMAP:
            return NotExportedError(
                f"{called} runs an operation by torch.vmap that PyTorch does not export so: write the axis that vmap "
                "goes over into the operation, as in torch.einsum"
            )
        return NotExportedError(
            f"{called} takes a derivative by {by} in its forward pass, which PyTorch does not export: "
            "write out what it computes; a table derives the gradients of a step itself"
        )
    if any(f"{os.sep}torch{os.sep}nested{os.sep}" in each.filename for each in frames) or _NESTED.search(str(error)):
        return NotExportedError(
            f"{place}: `{code}` works on nested tensors, which PyTorch does not export: write it with padded sequences "
            "and a mask, or with all tokens in one row and their lengths as numbers"
        )
    what = "exported" if any(f"{os.sep}torch{os.sep}" in frame.filename for frame in frames) else "read"
    said = told(error)
    if code and not str(error).strip():  # as of an assertion without words
        said = f"{said}: {code}"
    if not said.startswith(place) and f"{os.sep}torch{os.sep}" not in place:  # of a package's own code
        said = f"{place}: {said}"
    if isinstance(error, InputError):  # the package itself refuses it, of one run as well
        return NotExportedError(f"{called} cannot be {what}: {said}")
    kind = RaisedError if frames and is_local(Path(frames[-1].filename)) else WhileExportedError
    return kind(f"{called} cannot be {what}: {said}")


def _place_of(error: Exception) -> tuple[str, str]:
    """The user's file and line that an error is from, and what stands there; else of the last that is no part of
    PyTorch, or of the last layer of PyTorch. Of an operation that is run out of a graph, PyTorch says in the error
    where it stood."""
    frames = [*traceback.extract_tb(error.__traceback__)]
    said = re.findall(r'File "(.+)", line (\d+), in (\S+)', str(error))
    frames += [traceback.FrameSummary(file, int(line), name) for file, line, name in said]
    mine = [frame for frame in frames if is_local(Path(frame.filename))]
    named = [frame for frame in frames if not frame.filename.startswith("<")]
    others = [frame for frame in named if "/torch/" not in frame.filename and "learncost" not in frame.filename]
    layers = [frame for frame in named if "/torch/nn/" in frame.filename and frame.name not in _CALLS]
    frame = (mine or others or layers or named or frames)[-1]
    return f"{printable(frame.filename)}:{frame.lineno}", (frame.line or "").strip()


FUNC, VMAP = "torch.func", "torch.vmap"


def transform_of(error: BaseException) -> str:
    """The transform of PyTorch that an error is from: `torch.func`, which takes derivatives, `torch.vmap`, or none."""
    return VMAP if _BATCHED in str(error) else FUNC if is_by_func(error) else ""


def is_by_func(error: BaseException) -> bool:
    """Whether an error is from a derivative that `torch.func` takes, and no question of values."""
    if type(error).__name__ in _ON_VALUES:
        return False
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _TRANSFORMS in each.filename]
    takes = any(op in each.name for each in frames for op in ("grad", "vjp", "jvp"))
    return takes or any(ops in str(error) for ops in _DERIVATIVES)


def raises_too(module: Any, values: Mapping[str, Any], error: InputError) -> bool:
    """Whether a run of shapes alone, without an export, raises what an export refused: then no part can be run."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from learncost.importer.examples import as_called

    row, by_name = as_called(module, values)
    try:
        with silenced(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            row, by_name = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, (row, by_name))
            module(*row, **by_name)
    except Exception as raised:  # whatever a user's module raises
        return told(raised) in str(error)
    return False
