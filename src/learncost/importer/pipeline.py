"""Import a module as the text of a table: choose example sizes for the letters, and report errors in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import sympy
import torch

from learncost.importer.axes import AxisSplitError, Size
from learncost.importer.examples import flattened, parts_of, size_at
from learncost.importer.export import Exported, export
from learncost.importer.inputs import Input, attempts, checked, examples_of, sized, symbols_of, tensors
from learncost.importer.refusals import (
    ExportOnlyError,
    NotExportedError,
    SpecializedSizeError,
    exports,
    fails_on_shapes,
)
from learncost.importer.tracing import straight
from learncost.importer.tried import copied
from learncost.importer.walk import ImportedModule, read_exported
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import.

    symbols  by path of an example value, its symbolic dimensions
    as_run   trace one concrete run
    unknown  the treatment of operators with unknown cost: refuse or zero
    fold     merge equal blocks into a loop
    taken    letters that are not used for sizes
    """

    symbols: Mapping[str, str] = field(default_factory=dict)
    as_run: bool = False
    unknown: str = "refuse"
    fold: bool = True
    taken: Set[str] = frozenset()


@dataclass(frozen=True)
class ImportObserver:
    """The functions that are called during an import.

    stage  with the current stage
    say    with notices
    keep   with the imported module and its source: the module, or one traced run of it
    """

    stage: Callable[[str], None] = lambda text: None
    say: Callable[[str], None] = lambda text: None
    keep: Callable[[ImportedModule, Any], None] = lambda imported, whole: None


UNOBSERVED = ImportObserver()
"""The observer of an import that nobody follows."""


def table_of(
    module: Any,
    given: Sequence[Input] | Mapping[str, Any],
    called: str,
    options: ImportOptions,
    observer: ImportObserver = UNOBSERVED,
) -> tuple[str, list[str]]:
    """Return the text of a module's table, and the descriptions of its inputs. Raises `InputError`.

    given   its inputs: descriptions, or example values by name
    called  its name in messages
    """
    name = type(module).__name__

    def read(values: Mapping[str, Any], letters: Mapping[str, str]) -> str:
        with exports(called):
            whole = straight(module, values) if options.as_run else module
            leaves = flattened(values).items()
            taken = {key: value for key, value in leaves if hasattr(value, "shape")} if options.as_run else values
            exported = export(whole, taken, letters)
            roll = bool(exported.letters.fixed)

            def at(sizes: Mapping[str, int]) -> Exported:
                observer.stage(f"reading {name} at {', '.join(f'{letter} = {size}' for letter, size in sizes.items())}")
                ops = {key: " ".join(_with_numbers(op, sizes) for op in text.split()) for key, text in letters.items()}
                return export(whole, sized(values, sizes, letters), ops)

            def table(exported: Exported, stated: Mapping[int, Size]) -> ImportedModule:
                exported = replace(exported, unrolled=roll)
                how: dict[str, Any] = {"unknown": options.unknown, "fold": options.fold, "taken": options.taken}
                return read_exported(exported, whole, name=name, stated=stated, **how)

            try:
                first = table(exported, {})
            except AxisSplitError:
                if not exported.letters.fixed:
                    raise
            else:
                observer.keep(first, whole)
                if first.left_out:
                    observer.say(f"{called}: {first.left_out[0].lower()}{first.left_out[1:-1]}")
                if not exported.letters.fixed:
                    return first.text
                with suppress(InputError):
                    if answer := varied(first, at, table, _numbers(values)):
                        imported, tried = answer
                        observer.say(remark := notice(called, tried))
                        return f"% {remark}\n{imported.text}"
        letter, size = next(iter(exported.letters.fixed.items()))
        raise SpecializedSizeError(
            f"{called} cannot be read with {letter} symbolic: its code converts it to a number, as a loop does, "
            f"or an input or weight of fixed size does (tried with {letter} = {size}); write a number instead, as in "
            f"{_with(values, letters, letter, size)}"
        )

    observer.stage(f"reading {name}")
    if isinstance(given, Mapping):
        described = [f"{key}: {_described(value)}" for key, value in given.items()]
        tries = iter([(dict[str, int](), given, options.symbols)])
    else:
        given = checked(given, module, called)
        described = [str(each) for each in given]
        known = examples_of(given)
        for letter in (letter for each in given for letter in each.letters if options.as_run and letter not in known):
            raise InputError(
                f"a traced run has one size for {letter}: write a number, or {letter}=8, in the inputs of {called}"
            )
        every = [known] if options.as_run else attempts(given)
        tries = ((sizes, tensors(given, sizes), symbols_of(given)) for sizes in every)
    first: NotExportedError | None = None
    for sizes, values, symbols in tries:
        at = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
        if first:
            if fails_on_shapes(module, values, first):  # without its export, which takes longer
                continue
            observer.stage(f"reading {name}, tried with {at}")
        try:
            return read(values, {} if options.as_run else symbols), described
        except NotExportedError as error:
            first = first or error
    assert first is not None
    if sizes and _SYMBOL.search(str(first)):  # PyTorch's type for an open size; for numbers it is a number
        try:
            read(copied(values), {})
        except NotExportedError as error:
            letters = ", ".join(sizes)
            first = type(error)(
                f"{error} (tried with {at}; if the code needs one size, write it in place of {letters})"
            )
    if options.as_run or not isinstance(first, ExportOnlyError) or fails_on_shapes(module, values, first):
        raise first
    raise type(first)(f"{first}; --as-run (in Python as_run=True) traces one run")


def _with_numbers(op: str, sizes: Mapping[str, int]) -> str:
    """Return a size of an input with numbers in place of these letters."""
    return op if op.isdigit() or parts_of(op)[1] not in sizes else str(size_at(op, sizes))


def _lines(text: str) -> list[str]:
    """Return the lines of a table without its remarks."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("%")]


def letters_of(text: str) -> frozenset[str]:
    """Return the letters of sizes that the text of a table fixes or derives from others."""
    lines = (line for line in text.splitlines() if line.strip().startswith(("sizes:", "follows:", "undecided:")))
    ops = (op for line in lines for op in line.partition(":")[2].split())
    return frozenset(op.partition("=")[0] for op in ops)


_SYMBOL = re.compile(r"\bs\d+\b")


def _with(values: Mapping[str, Any], letters: Mapping[str, str], letter: str, size: int) -> str:
    """Return the description of the first input with a letter, with a number in its place."""
    name, ops = next((name, ops.split()) for name, ops in letters.items() if letter in ops.split())
    kind = str(values[name].dtype).removeprefix("torch.")
    return f"'{name}: {kind} {' '.join(str(size) if op == letter else op for op in ops)}'"


def _described(value: Any) -> str:
    """Describe a value in one line: a tensor by its type and its sizes."""
    if (shape := getattr(value, "shape", None)) is not None:
        return " ".join(map(str, (str(value.dtype).removeprefix("torch."), *shape)))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_described(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_described, value))})"
    return " ".join(repr(value).split())


def _numbers(values: Mapping[str, Any]) -> set[int]:
    """Return all sizes of the example values."""
    return {int(size) for value in values.values() for size in getattr(value, "shape", ())}


NEAR, FAR, BEYOND = (7, 11, 13, 17, 19, 23, 29, 31, 37), (67, 71, 73, 79, 83), (1031, 1033, 1039, 1049, 1051)
"""Further sizes for a module: the difference to a near one determines the table, and a far one checks it, if it can
beyond the chunks into which modules cut lengths.
"""

MOST_UNROLLED = 500
"""The most lines of an export that checks a table: of a loop over a size, an export has every step."""


def varied(
    first: ImportedModule,
    at: Callable[[Mapping[str, int]], Exported],
    read: Callable[[Exported, Mapping[int, Size]], ImportedModule],
    taken: Iterable[int],
) -> tuple[ImportedModule, list[dict[str, int]]] | None:
    """Return the table of a module whose export fixes sizes, with these open, and the sizes at which it was read.

    None if the tables differ by more than the size.

    first  the imported module with these sizes as numbers
    at     a function that exports the module at given values of its fixed letters
    read   a function that reads an export, with refinements of some sizes
    taken  sizes with another meaning

    Raises `InputError` if it accepts no near size but its own.
    """
    fixed = dict(first.exported.letters.fixed)
    used = {*taken, *fixed.values()}
    if fixed.keys() & first.exported.letters.symbols.values():  # open in one input, a number in another
        first = read(at(fixed), {})
    exports, tried = [first.exported], [fixed]
    stated: dict[int, Size] = {}
    steps = 0
    for letter, size in fixed.items():
        again = next(each for each in NEAR if each not in used)
        used.add(again)
        tried.append({**fixed, letter: again})
        exports.append(at(tried[-1]))
        other = read(exports[-1], {})
        longer = len(other.reader.recorder.equations) - len(first.reader.recorder.equations)
        steps += longer // (again - size)
        if len(other.met) != len(first.met):
            return None
        for place, (here, there) in enumerate(zip(first.met, other.met, strict=True)):
            if here == there:
                continue
            if place in stated or not (isinstance(here, int) and isinstance(there, int)):
                return None
            times, rest = divmod(there - here, again - size)
            if rest:
                return None
            stated[place] = times * sympy.Symbol(letter) + here - times * size
    for sizes in (BEYOND, FAR, NEAR):  # a position that is looked up, say, has a last one
        if steps * sizes[0] > MOST_UNROLLED and sizes is not NEAR:
            continue
        far = dict(zip(fixed, (each for each in sizes if each not in used), strict=False))
        try:
            exports.append(at(far))
        except InputError:
            continue
        tried.append(far)
        break
    else:
        return None
    answers = [read(_open(each, fixed), stated) for each in exports]
    return (answers[0], tried) if len({each.text for each in answers}) == 1 else None


def _open(exported: Exported, letters: Iterable[str]) -> Exported:
    """Return an export whose fixed letters are names of sizes."""
    names: dict[str, str] = {letter: letter for letter in letters}
    return replace(exported, letters=replace(exported.letters, symbols=exported.letters.symbols | names, fixed={}))


def notice(called: str, tried: list[dict[str, int]]) -> str:
    """Return the notice for the user about a table that was read in this way."""
    sizes = "; ".join(", ".join(f"{letter} = {size}" for letter, size in each.items()) for each in tried)
    return (
        f"{called} converts {', '.join(tried[0])} to numbers: read at {sizes}, with equal tables except for these sizes"
    )


@dataclass
class LiveModule:
    """A module with parameter values, and the options with which its table was imported.

    build    returns the module
    inputs   its inputs: descriptions, or example values by name
    """

    build: Callable[[], Any]
    inputs: Sequence[Input] | Mapping[str, Any]
    called: str
    options: ImportOptions

    @cached_property
    def module(self) -> Any:
        """Return the module."""
        return self.build()

    def read(self) -> tuple[str, ImportedModule, Any]:
        """Import the module again; return the text of its table, and the imported module with its source: the module or
        one traced run of it. Raises `InputError`.
        """
        found: list[tuple[ImportedModule, Any]] = []
        keep = ImportObserver(keep=lambda *imported: found.append(imported))
        text, _ = table_of(self.module, self.inputs, self.called, self.options, keep)
        return text, *found[-1]


def evaluation_of(
    module: Any,
    given: Sequence[Input] | Mapping[str, Any],
    called: str,
    training: str,
    options: ImportOptions,
    observer: ImportObserver = UNOBSERVED,
) -> str:
    """Return the text of the table in evaluation mode; "" if its lines are those of training mode. Raises `InputError`.

    training  the text of the table in training
    """
    if not any(part.training for part in module.modules()):
        return ""
    is_folded = any(line.strip().startswith("repeat ") for line in training.splitlines())
    with in_evaluation(module):
        for taken in (frozenset[str](), letters_of(training)):
            text, _ = table_of(module, given, called, replace(options, fold=is_folded, taken=taken), observer)
            if _lines(text) == _lines(training):
                return ""
    return text


@contextmanager
def in_evaluation(module: Any) -> Iterator[None]:
    """Put the module in evaluation mode inside, and restore every submodule's mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def values_of(module: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a module as arrays, by their paths; empty where some have no values."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return _arrays({**parameters, **dict(module.named_buffers(remove_duplicate=False))})


def saved_of(module: Any) -> dict[str, Any]:
    """Return the tensors of a module's state_dict as arrays; empty where some have no values."""
    return _arrays({path: each for path, each in module.state_dict().items() if hasattr(each, "detach")})


def _arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors as arrays, bf16 and fp16 as fp32."""
    if any(tensor.device.type == "meta" for tensor in tensors.values()):
        return {}
    halves = (torch.bfloat16, torch.float16)
    there = {path: tensor.detach().cpu() for path, tensor in tensors.items()}
    return {path: (each.float() if each.dtype in halves else each).clone().numpy() for path, each in there.items()}
