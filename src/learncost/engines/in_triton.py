"""Run the step of `emit --backend triton`: on a GPU as one CUDA graph, under TRITON_INTERPRET=1 on the CPU."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from threading import Lock
from time import perf_counter
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from learncost.backends import triton as printed
from learncost.backends.placed import TYPES, InPlaceProgram
from learncost.engines.in_place import InPlace
from learncost.ir.errors import InputError
from learncost.ir.table import Table

MIN_CAPABILITY = (8, 0)
"""The least compute capability for which the kernels are compiled: that of an A100."""


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def check_device(device: str) -> None:
    """Raise `InputError` for a device that PyTorch does not know or see."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"--device {device} cannot be used here: {reason}") from None


def check_gpu(device: str) -> None:
    """Raise `InputError` where a device cannot run kernels in Triton."""
    if find_spec("triton") is None:
        raise InputError(f"--device {device} needs Triton: pip install triton")
    if is_interpreted():
        return
    check_device(device)
    if (found := torch.cuda.get_device_capability(device)) < MIN_CAPABILITY:
        name, (major, minor) = torch.cuda.get_device_name(device), found
        raise InputError(
            f"--device {device} needs compute capability {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}, that of "
            f"an A100, and {name} has {major}.{minor}: give --device cpu"
        )


def on_device(device: str | torch.device) -> AbstractContextManager[Any]:
    """Return a context in which streams, graphs and Triton's launches are those of a device."""
    return nullcontext() if str(device) == "cpu" else torch.cuda.device(device)


def free_bytes(device: str) -> int | None:
    """Return the bytes that are free on a GPU; None in Triton's interpreter."""
    return None if is_interpreted() else torch.cuda.mem_get_info(device)[0]


@contextmanager
def compiling(instead: str) -> Iterator[None]:
    """Raise `InputError` for whatever Triton raises, also where it finds no C compiler, with what to do instead."""
    from triton import TritonError

    try:
        yield
    except Exception as error:
        modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in walk_tb(error.__traceback__)}
        if isinstance(error, torch.OutOfMemoryError) or not ("triton" in modules or isinstance(error, TritonError)):
            raise
        reason = (str(error).strip() or "no reason").splitlines()[-1]
        raise InputError(f"a kernel does not compile in Triton: {reason}: {instead}") from None


class StepInTriton(InPlace):
    """A step in place with kernels in Triton. The first step compiles them; from then on it is one CUDA graph."""

    def __init__(
        self,
        table: Table,
        sizes: Mapping[str, int],
        dtype: str,
        tensors: Mapping[str, torch.Tensor],
        arena: torch.Tensor | None = None,
        device: str = "cuda",
        deterministic: bool = False,
    ) -> None:
        self.device, self.deterministic = "cpu" if is_interpreted() else device, deterministic
        self._cost = 0.0
        self._replay: Callable[[], None] | None = None
        super().__init__(table, sizes, dtype, tensors, arena)

    def _loaded(self, table: Table, sizes: Mapping[str, int], dtype: str) -> tuple[InPlaceProgram, dict[str, Any]]:
        program = printed.in_triton(table, sizes, dtype, "A step that learncost trains.")
        namespace = names_of(program.text)
        self._captured = namespace["captured"]
        return program, namespace

    @property
    def says(self) -> str:
        """The text on its kernels, on what PyTorch's operators compute, and on what may differ between two runs."""
        texts = [f"kernels in Triton on {self.device}"]
        texts += [f"{each.name} by PyTorch's operators" for each in self.program.functions if each.operators]
        names = ", ".join(each.name for each in self.program.functions if each.by_atomics)
        if names and self.deterministic:
            texts.append(f"deterministic, which costs {1000 * self._cost:.3g} ms a step in {names}")
        elif names:
            texts.append(f"not deterministic: {names}")
        return ", ".join(texts)

    def _allocated(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def _run(self) -> None:
        try:
            with _deterministic(self.deterministic), on_device(self.device), compiling("give --device cpu"):
                if self._replay is not None:
                    self._replay()
                elif self.device == "cpu":
                    self._step(self._memory, self._first)
                else:
                    self._replay = self._captured(self._memory, self._first)
        except torch.OutOfMemoryError:
            raise InputError(f"{self.device} has no memory left for workspaces: give a smaller --batch-size") from None
        except RuntimeError as error:
            if not (self.deterministic and "deterministic" in str(error)):
                raise
            raise InputError(f"{str(error).partition(',')[0]}: remove --deterministic") from None

    @property
    def _first(self) -> SimpleNamespace:
        """The kernels of the first step: if deterministic, what that costs is timed."""
        if not self.deterministic:
            return self._kernels
        names = [each.name for each in self.program.functions if each.by_atomics]
        timed = {name: self._timed(getattr(self._kernels, name)) for name in names}
        return SimpleNamespace(**{**vars(self._kernels), **timed})

    def _timed(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return a function that runs both ways, the deterministic one last, after one run each that loads kernels."""

        def wait() -> None:
            if self.device != "cpu":
                torch.cuda.synchronize(self.device)

        def seconds(arguments: tuple[Any, ...], deterministic: bool) -> float:
            with _deterministic(deterministic):
                for _ in range(2):
                    wait()
                    begun = perf_counter()
                    function(*arguments)
                wait()
                return perf_counter() - begun

        def run(*arguments: Any) -> None:
            faster = seconds(arguments, False)
            self._cost += seconds(arguments, True) - faster

        return run


@contextmanager
def _deterministic(chosen: bool) -> Iterator[None]:
    """Let PyTorch choose kernels whose results are bit-identical from run to run, or any."""
    memory: Any = torch.utils.deterministic
    before, filled = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    if chosen:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which cuBLAS refuses
    torch.use_deterministic_algorithms(chosen or before)
    memory.fill_uninitialized_memory = False  # nothing is read before it is written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = filled


class ProgramInTriton:
    """A table as a function of tensors by name. Its views of the arena are made once, those of tensors at each call."""

    def __init__(self, table: Table, sizes: Mapping[str, int], dtype: str) -> None:
        self.program = printed.in_triton(table, sizes, dtype, "A pass of a module.")
        self.names = names_of(self.program.text)
        self.given = {name: getattr(torch, TYPES[kind]) for name, (_, kind) in self.program.given.items()}

    @classmethod
    def of(cls, table: Table, sizes: Mapping[str, int], dtype: str, device: torch.device) -> ProgramInTriton | None:
        """Return the program; None for a table that has no step in place, and for a GPU below `MIN_CAPABILITY`."""
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
            return None
        try:
            return cls(table, sizes, dtype)
        except InputError:
            return None

    def __call__(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the results in new tensors."""
        given = {name: values[name].to(kind).contiguous() for name, kind in self.given.items()}
        device = next(iter(values.values())).device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        with _LOCK, on_device(device):
            arena = _ARENAS.get((device, stream))
            if arena is None or len(arena.memory) < self.program.bytes:
                memory = torch.empty(self.program.bytes, dtype=torch.uint8, device=device)
                arena = _ARENAS[device, stream] = SharedArena(memory, {})
            if self not in arena.records:
                arena.records[self] = self._prepared(given, arena.memory)
            m, views = arena.records[self]
            for view in views:
                view.put(given)
            with compiling("move the module to a CPU"):
                self.names["step"](m, self.names["KERNELS"])
            for view in views:
                view.drop()
            results = self.program.results
            return {name: getattr(m, field).view(shape).clone() for name, (field, shape) in results.items()}

    def _prepared(
        self, given: Mapping[str, torch.Tensor], memory: torch.Tensor
    ) -> tuple[SimpleNamespace, list[GivenView]]:
        """Return the record of the step's views, and those fields of records that are views of given tensors."""
        places, m = self.names["PLACES"], self.names["lay_out"](given, memory)
        views: list[GivenView] = []
        records = {"step": [m]}
        for scope, (around, _, fields) in reversed(places.items()):  # what is around a loop comes before it
            if around:
                records[scope] = [each for record in records[around] for each in getattr(record, scope)]
            for field, (shape, _, place) in fields.items():
                several = place if isinstance(place, list) else [place] * len(records[scope])
                parts = [
                    (record, _part(at, i)) for i, (record, at) in enumerate(zip(records[scope], several, strict=True))
                ]
                if there := [(record, part) for record, part in parts if part]:
                    views.append(GivenView(field, shape, *zip(*there, strict=True)))
        return m, views


def _part(place: Any, iteration: int) -> tuple[Any, ...]:
    """Return the given tensor of one of `lay_out`'s places and the indices in it; none in the arena."""
    if isinstance(place, str):
        return (place[:-2], iteration) if place.endswith("[]") else (place,)
    return place if isinstance(place, tuple) else ()


class GivenView(NamedTuple):
    """A field of records that is a view of a given tensor, or of a part in each record."""

    field: str
    shape: tuple[int, ...]
    records: tuple[SimpleNamespace, ...]
    parts: tuple[tuple[Any, ...], ...]

    def put(self, given: Mapping[str, torch.Tensor]) -> None:
        """Set the field in every record."""
        (name, *index), number = self.parts[0], len(self.parts)
        views: Sequence[torch.Tensor]
        if self.parts == tuple([(name, row) for row in range(number)]):
            views = given[name].view(-1, *self.shape).unbind()[:number]
        elif not index and self.parts.count(self.parts[0]) == number:
            views = [given[name].view(self.shape)] * number
        else:
            views = [given[name][tuple(index)].view(self.shape) for name, *index in self.parts]
        for record, view in zip(self.records, views, strict=True):
            setattr(record, self.field, view)

    def drop(self) -> None:
        """Clear the field in every record, so that nothing given is kept."""
        for record in self.records:
            setattr(record, self.field, None)


class SharedArena(NamedTuple):
    """The memory of all programs of modules on a stream, of which one runs at a time, with their views."""

    memory: torch.Tensor
    records: dict[ProgramInTriton, tuple[SimpleNamespace, list[GivenView]]]


_ARENAS: dict[tuple[torch.device, int], SharedArena] = {}
_LOCK = Lock()


def names_of(text: str) -> dict[str, Any]:
    """Return what an emitted file defines; Triton reads the text of its kernels where tracebacks do."""
    name = f"<step in Triton {len(linecache.cache)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    namespace: dict[str, Any] = {"__name__": "learncost_emitted"}
    exec(compile(text, name, "exec"), namespace)
    return namespace
