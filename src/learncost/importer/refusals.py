"""Errors of the user's code, or of its export, in one line with the user's file and line."""

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
from functools import lru_cache
from pathlib import Path
from typing import Any

from learncost.ir.errors import InputError, printable


def one_line(error: BaseException) -> str:
    """Return an error of the user's code in one line: its place in the user's code, its type and its message."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{printable(error.filename)}:{error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_local(frame.filename)]
    where = f"{printable(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    if isinstance(error, InputError):  # an error of this package
        return f"{where}{text}"
    return f"{where}{type(error).__name__}{f': {text}' if text else ''}"


_FOLDERS = sysconfig.get_paths()
_OTHERS = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        *(_FOLDERS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[2]),
    )
)


@lru_cache(maxsize=4096)
def is_local(file: str) -> bool:
    """Return whether a file is the user's: not Python's, not in site-packages, not this package's."""
    path = os.path.realpath(file)
    inside = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
    return not inside and not path.startswith((*_OTHERS, "/proc/", "/sys/", "/dev/")) and not file.startswith("<")


class NotExportedError(InputError):
    """A construct that PyTorch's export refuses, with the user's line."""


class GradientInForwardError(InputError):
    """A gradient that a forward pass computes with this function, which PyTorch does not export."""


class ExportOnlyError(NotExportedError):
    """An error that PyTorch or a package raises during export, though a run may not."""


class SpecializedSizeError(InputError):
    """A size that should be symbolic and that a module's code fixes."""


class DataDependentError(InputError):
    """Code that depends on values, which an export does not have: example sizes do not help."""


_ON_VALUES = frozenset({"GuardOnDataDependentSymNode", "DynamicOutputShapeException", "DataDependentOutputException"})

_ON_VALUES_INSIDE = "data-dependent expression"
"""Text of an error when the body of a higher-order operator, such as `scan`, depends on values."""

_NOT_A_NUMBER = ("unhashable type: non-nested SymInt", "Cannot convert symbols to int")
"""Texts of TypeErrors of PyTorch and SymPy when code converts a symbolic value to a number during export."""

_NESTED = re.compile(r"nested_tensor|NestedTensor|nested tensor")
"""Texts of errors about nested tensors."""

_LEFT_OPEN = "Unexpected key _export_root"
"""Texts of errors when code caught an error that a submodule raised."""

_NAMED_AS_GRAPH = re.compile(r"references nonexistent attribute \w+ of (\w+)$")
"""Text of an error when a submodule is named as an attribute of `torch.fx.GraphModule`: `code`, `graph`, `meta`."""

_DERIVATIVES = ("functorch tensor", "TensorWrapper")
"""Texts of errors when `torch.func.grad` or `vjp` runs during export."""

_BATCHED = "fake tensor in the exported program constant's list"
"""Texts of errors when `torch.vmap` runs an operation that it does not export, such as `mv`."""

_CALLS = ("_wrapped_call_impl", "_call_impl", "inner")
"""Functions of `torch.nn.Module` that only call a layer."""

_TRANSFORMS = f"{os.sep}_functorch{os.sep}eager_transforms.py"
"""Modules of PyTorch with `torch.func.grad` and similar transforms."""


@contextmanager
def silenced() -> Iterator[None]:
    """Suppress prints, logs and warnings inside."""
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
    """Convert the errors of an export to one line with the user's file and line, and advice.

    PyTorch's prints and logs about it are suppressed.
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
        raise NotExportedError(f"{called} called exit({error.code}) in its forward pass: it must return") from None


def refusal(error: Exception, called: str) -> InputError:
    """Return an error of an export in one line."""
    place, code = _place_of(error)
    if isinstance(error, TypeError) and str(error).startswith(_NOT_A_NUMBER):
        return NotExportedError(
            f"{place}: `{code}` converts a size or a value to a number that {called} has only when it runs: write that "
            "size as a number in the inputs, or trace one run with --as-run (in Python as_run=True)"
        )
    if type(error).__name__ in _ON_VALUES:
        return DataDependentError(
            f"{place}: `{code}` depends on values, which {called} has only when it runs: remove it if it only "
            "checks, write it with torch.where, or trace the branch of one run with --as-run (in Python as_run=True)"
        )
    if _ON_VALUES_INSIDE in str(error):  # a traced run refuses it too
        return NotExportedError(
            f"{place}: `{code}` depends on values within an operator that runs a function, such as scan: write it with "
            "torch.where, or write the operator as a loop in Python"
        )
    if _LEFT_OPEN in str(error):
        part = str(error).split(_LEFT_OPEN, 1)[1].partition(",")[0].lstrip(".")
        return NotExportedError(
            f"{called} catches an error of its submodule {part}, which PyTorch does not export: "
            "test before the call whether the submodule accepts the input"
        )
    if named := _NAMED_AS_GRAPH.search(str(error)):
        return NotExportedError(
            f"{called} has a part named {named[1]}, as an attribute of PyTorch's graphs, which then cannot hold its "
            "weights: give it another name"
        )
    frames = traceback.extract_tb(error.__traceback__)
    of_func = is_by_func(error)
    if of_func or isinstance(error, GradientInForwardError):
        by = FUNC if of_func else str(error)
        does = f"computes a derivative with {by} in its forward pass, which PyTorch does not export: write out the "
        does += "derivative; the gradients of a step are derived from the table"
        return NotExportedError(f"{called} {_UNTRACED.get(by, does)}")
    if any(f"{os.sep}torch{os.sep}nested{os.sep}" in each.filename for each in frames) or _NESTED.search(str(error)):
        return NotExportedError(f"{place}: `{code}` works on nested tensors, which PyTorch does not export: {_PADDED}")
    what = "exported" if any(f"{os.sep}torch{os.sep}" in frame.filename for frame in frames) else "read"
    message = one_line(error)
    if code and not str(error).strip():  # an assertion without a message
        message = f"{message}: {code}"
    if not message.startswith(place) and f"{os.sep}torch{os.sep}" not in place:  # an error of a package's code
        message = f"{place}: {message}"
    if isinstance(error, InputError):  # this package refuses it, also in a traced run
        return NotExportedError(f"{called} cannot be {what}: {message}")
    kind = NotExportedError if frames and is_local(frames[-1].filename) else ExportOnlyError
    return kind(f"{called} cannot be {what}: {message}")


def _place_of(error: Exception) -> tuple[str, str]:
    """Return the user's file and line that an error is from, and that line of code; otherwise those of the last frame
    outside PyTorch, or of PyTorch's last layer. For an operation that is run from a graph, PyTorch puts the place into
    the error.
    """
    frames = [*traceback.extract_tb(error.__traceback__)]
    places = re.findall(r'File "(.+)", line (\d+), in (\S+)', str(error))
    frames += [traceback.FrameSummary(file, int(line), name) for file, line, name in places]
    mine = [frame for frame in frames if is_local(frame.filename)]
    named = [frame for frame in frames if not frame.filename.startswith("<")]
    others = [frame for frame in named if "/torch/" not in frame.filename and "learncost" not in frame.filename]
    layers = [frame for frame in named if "/torch/nn/" in frame.filename and frame.name not in _CALLS]
    frame = (mine or others or layers or named or frames)[-1]
    return f"{printable(frame.filename)}:{frame.lineno}", (frame.line or "").strip()


FUNC, VMAP, NESTED = "torch.func", "torch.vmap", "nested tensors"
_PADDED = "write it with padded sequences and a mask, or with concatenated tokens and their lengths as numbers"
_UNTRACED = {
    NESTED: f"works on nested tensors with operators that cannot be traced: {_PADDED}",
    VMAP: "runs an operation under torch.vmap that PyTorch does not export: write the axis that vmap maps over into "
    "the operation, as in torch.einsum",
}


def transform_of(error: BaseException) -> str:
    """Return the transform of PyTorch that an error is from: `torch.func`, which takes derivatives, `torch.vmap`, or
    none.
    """
    return VMAP if _BATCHED in str(error) else FUNC if is_by_func(error) else ""


def is_by_func(error: BaseException) -> bool:
    """Return whether an error is from a derivative by `torch.func`, and not from a dependence on values."""
    if type(error).__name__ in _ON_VALUES:
        return False
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _TRANSFORMS in each.filename]
    takes = any(op in each.name for each in frames for op in ("grad", "vjp", "jvp"))
    return takes or any(ops in str(error) for ops in _DERIVATIVES)


def fails_on_shapes(module: Any, values: Mapping[str, Any], error: InputError) -> bool:
    """Return whether a run with shapes only, without an export, raises the refused error."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from learncost.importer.examples import as_called

    row, by_name = as_called(module, values)
    try:
        with silenced(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            row, by_name = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, (row, by_name))
            module(*row, **by_name)
    except Exception as raised:  # any error that a user's module raises
        return one_line(raised) in str(error)
    return False
