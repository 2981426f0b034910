"""Parse descriptions of a module's inputs: `idx: int B M`, `x: float B 3 64 64 gradient`, `use_cache = false`.

A size is a number, or a letter for a symbolic dimension. A letter may have an example, `H=64`, for modules that accept
only some sizes.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from learncost.importer.examples import all_different, at_sizes, parts_of, size_at
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError, close_to, nearest, shown

KINDS: Mapping[str, str] = {
    "int": "int64",
    "long": "int64",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "float": "float32",
    "float32": "float32",
    "float64": "float64",
    "double": "float64",
    "float16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bool": "bool",
    "complex": "complex64",
    "complex64": "complex64",
}
"""The input types, and PyTorch's names for them."""

_SEVERAL = ("list", "tuple", "dict", "mapping")

GRADIENT = "gradient"

_IN_ONE = "describe each tensor in a tuple, a list, a dict or an object by its path, as in 'x.0: float B 8'"
_BETWEEN = str.maketrans(",()[]", "     ")

_AS_IN = "as in 'idx: int B M', 'x: float B 3 64 64 gradient' or 'use_cache = false'"
_NAME = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
_SIZE = re.compile(r"((?:\d+\*)?[^\W\d]\w*(?:[+-]\d+)?)(?:=(\d+))?|(\d+)")


@dataclass(frozen=True)
class Input:
    """An input of a module: a tensor by its kind and its sizes, or a value of another kind.

    kind      PyTorch's name of its type; empty if it is not a tensor
    sizes     a letter, or a number as digits, for each dimension
    examples  the example sizes of letters that have one
    value     its value if it is not a tensor
    """

    name: str
    kind: str = ""
    sizes: tuple[str, ...] = ()
    examples: Mapping[str, int] = field(default_factory=dict)
    gradient: bool = False
    value: Any = None

    @property
    def letters(self) -> tuple[str, ...]:
        """Return the symbolic dimensions."""
        return tuple(dict.fromkeys(parts_of(size)[1] for size in self.sizes if not size.isdigit()))

    def __str__(self) -> str:
        if not self.kind:
            return f"{self.name} = {json.dumps(self.value)}"
        sizes = (f"{size}={self.examples[size]}" if size in self.examples else size for size in self.sizes)
        return " ".join((f"{self.name}: {self.kind}", *sizes, *([GRADIENT] if self.gradient else [])))


def parse_input(text: str) -> Input:
    """Parse the description of one input. Raises `InputError`."""
    label = f"the input {shown(text)}"
    name, colon, rest = text.partition(":")
    if not colon or "=" in name:
        return _literal(text, label)
    if not _NAME.fullmatch(name.strip()):
        raise InputError(f"{label} has no name before its colon: {_AS_IN}")
    if rest.lstrip().startswith(("(", "[", "{")) or rest.strip().partition(" ")[0].lower() in _SEVERAL:
        raise InputError(f"{label}: {_IN_ONE}")
    kind, *sizes = rest.translate(_BETWEEN).split() or [""]
    if kind.isdigit():
        raise InputError(f"{label} has sizes but no type: write {shown(f'{name.strip()}: float {rest.strip()}')}")
    if not sizes and _is_value(kind):
        raise InputError(f"{label} is a value: write {shown(f'{name.strip()} = {kind}')}")
    gradient = GRADIENT in sizes[-1:]
    sizes = sizes[:-1] if gradient else sizes
    if kind.lower() not in KINDS:
        hint = nearest(kind, KINDS) or f"; there are {', '.join(KINDS)}"
        raise InputError(f"{label} has the unknown type {shown(kind)}{hint}")
    if gradient and not re.match("b?float|complex", KINDS[kind.lower()]):
        raise InputError(f"{label}: only floating-point tensors have a gradient, not {kind}")
    names, examples = list[str](), dict[str, int]()
    for size in sizes:
        match = _SIZE.fullmatch(size)
        if match and close_to(size, [GRADIENT], 0.65) and size != GRADIENT:
            raise InputError(f"{label}: write `{GRADIENT}` for its gradient, not {shown(size)}")
        if not match or size == GRADIENT:
            raise InputError(f"{label}: {shown(size)} is not a size: use a letter, or a number from 1, {_AS_IN}")
        letter, example, number = match.groups()
        if (number and int(number) < 1) or (example and int(example) < 1):
            raise InputError(f"{label}: a size must be at least 1, not {size}")
        names.append(letter or str(int(number)))
        if example and not letter.isidentifier():
            raise InputError(f"{label}: only a letter has an example, not {letter}")
        if example and examples.setdefault(letter, int(example)) != int(example):
            raise InputError(f"{label}: {letter} has two examples, {examples[letter]} and {example}")
    return Input(name.strip(), KINDS[kind.lower()], tuple(names), examples, gradient)


def _literal(text: str, label: str) -> Input:
    """Parse `use_cache = false`: a value in the notation of JSON or Python."""
    name, equals, value = (part.strip() for part in text.partition("="))
    first, *rest = text.split() or [""]
    if not equals and any(op.lower() in KINDS for op in (first, *rest[:1])):
        is_kind = first.lower() in (*KINDS, *_SEVERAL)
        meant = f"x: {text.strip()}" if is_kind else f"{first}: {' '.join(rest)}"
        raise InputError(f"{label} has no colon after the name of the input: write {shown(meant)}")
    if not equals or not _NAME.fullmatch(name):
        raise InputError(f"{label} has neither a type nor a value: write it {_AS_IN}")
    try:
        return Input(name, value=_WORDS[value] if value in _WORDS else json.loads(value))
    except (ValueError, RecursionError):
        raise InputError(f'{label}: {shown(value)} is not a value: use false, 3, 0.5, null or "a text"') from None


_WORDS = {"True": True, "False": False, "None": None}


def _is_value(text: str) -> bool:
    """Return whether a token is a number, true, false or null, or Python's equivalent."""
    try:
        return text in _WORDS or not isinstance(json.loads(text), str)
    except (ValueError, RecursionError):
        return False


def parse_inputs(texts: Iterable[str] | Mapping[str, Any]) -> tuple[Input, ...]:
    """Parse descriptions of inputs: lines, or a mapping of names to the text after the colon, or to values. Raises
    `InputError`.
    """
    if isinstance(texts, Mapping):
        inputs = tuple(
            parse_input(f"{name}: {text}") if isinstance(text, str) else Input(name, value=text)
            for name, text in texts.items()
        )
    else:
        inputs = tuple(parse_input(line) for line in texts)
    plain = {size for each in inputs for size in each.sizes}
    for size in (size for each in inputs for size in each.sizes if not size.isdigit()):
        if parts_of(size)[1] not in plain:
            raise InputError(f"the size {size} needs an input with the size {parts_of(size)[1]}")
    names = [each.name for each in inputs]
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise InputError(f"the input {twice[0]} is given twice")
    examples_of(inputs)
    return inputs


def examples_of(inputs: Iterable[Input]) -> dict[str, int]:
    """Return the example sizes of letters, which all inputs share. Raises `InputError` if two differ."""
    examples: dict[str, int] = {}
    for each in inputs:
        for letter, number in each.examples.items():
            if examples.setdefault(letter, number) != number:
                raise InputError(f"{letter} has two examples, {examples[letter]} and {number}")
    return examples


MOST = 2**22
"""The most elements of a tensor whose values are known in a recorded step."""

LARGEST = 2**36
"""The most bytes of an example; letters are tried at small sizes."""

_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
_LENGTHS, _IMAGES = (1, 8, 32, 224), (32, 8, 224, 1)
"""The multiples that sizes are tried in: short ones for lengths, and powers of two for sides of images."""


def attempts(inputs: Sequence[Input]) -> Iterator[dict[str, int]]:
    """Yield sizes to try for the letters: all different from each other and from the numbers among the sizes.

    The first dimension of a module is its batch, which need not be divisible.
    """
    given = examples_of(inputs)
    letters = list(dict.fromkeys(letter for each in inputs for letter in each.letters))
    fixed = {int(size) for each in inputs for size in each.sizes if size.isdigit()} | {*given.values()}
    every = {size for each in inputs for size in each.sizes if not size.isdigit()}
    first = {each.sizes[0] for each in inputs if each.sizes}
    sides = {size for each in inputs if len(each.sizes) > 3 for size in each.sizes[2:]}
    for steps in list(zip(_LENGTHS, _IMAGES, strict=True))[: None if {*letters} - given.keys() - first else 1]:

        def choices(letter: str, steps: tuple[int, int] = steps) -> Iterable[int]:
            return (prime * (1 if letter in first else steps[letter in sides]) for prime in _PRIMES)

        yield given | all_different((each for each in letters if each not in given), every, choices, fixed)


def _are_texts(values: Iterable[Any]) -> bool:
    """Return whether inputs are described by texts, possibly with values that are not tensors."""
    every = tuple(values)
    texts = any(isinstance(value, str) for value in every)
    return texts and all(value is None or isinstance(value, str | bool | int | float) for value in every)


def examples(given: Any, module: Any, symbols: Mapping[str, str]) -> tuple[Input, ...] | Mapping[str, Any]:
    """Return the inputs of a module: descriptions by name, or tensors by name or in the order of forward.

    Tensors may be on the meta device. Raises `InputError`.
    """
    import torch

    from learncost.importer.examples import arguments

    parameters = inspect.signature(module.forward).parameters
    if isinstance(given, Mapping) and _are_texts(given.values()):
        if symbols:
            raise InputError("descriptions already name the symbolic sizes: remove `symbols`")
        return parse_inputs(given)
    if isinstance(given, str):
        return parse_inputs([given])
    if not isinstance(given, Mapping):
        several = tuple(given) if isinstance(given, tuple | list) else (given,)
        if several and all(isinstance(value, str) for value in several):
            return parse_inputs(several)
        rows = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters.values())
        if len(several) > len(parameters) and not rows:
            raise InputError(f"{len(several)} inputs are given, but {type(module).__name__} takes {takes_text(module)}")
        given = arguments(module, several)
    if wrong := next((name for name in symbols if name.partition(".")[0] not in given), None):
        raise InputError(f"there is no input {shown(wrong)}{nearest(wrong, given)}; the inputs are {', '.join(given)}")

    for name, ops in symbols.items():
        outer, dot, _ = name.partition(".")
        if not isinstance(ops, str) or not (dot or isinstance(given[outer], torch.Tensor)):
            raise InputError(
                f"symbols name the sizes of a tensor as text, {{'x': 'B 64'}}, but {name} is a "
                f"{type(given[name]).__name__}: remove it from symbols, which fixes its sizes, or name each tensor "
                f"in it by its path, {{'{name}.0': 'B 64'}}"
            )

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            return torch.zeros_like(value, device="cpu").requires_grad_(value.requires_grad)
        return value

    # All arguments of `*several` are in one tuple.
    return {name: tuple(map(made, value)) if type(value) is tuple else made(value) for name, value in given.items()}


def checked(inputs: Sequence[Input], module: Any, called: str) -> tuple[Input, ...]:
    """Return the inputs in the order of the module's forward. Raises `InputError` if its signature differs."""
    parameters = inspect.signature(module.forward).parameters
    kinds = inspect.Parameter
    named = {
        name: each for name, each in parameters.items() if each.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    }
    takes = f"{called} takes {takes_text(module)}"
    others = any(each.kind is kinds.VAR_KEYWORD for each in parameters.values())
    rows = [name for name, each in parameters.items() if each.kind is kinds.VAR_POSITIONAL]
    for each in inputs:
        if each.name in rows:
            raise InputError(f"the input {each.name}: {_IN_ONE}; {takes}")
        if each.name not in named and not others and not rows:
            raise InputError(f"no input is called {shown(each.name)}{nearest(each.name, named)}; {takes}")
    names = [each.name for each in inputs]
    missing = [name for name, each in named.items() if each.default is kinds.empty and name not in names]
    if missing:
        name, shape = missing[0], "float B 3 64 64"
        example = f"--input '{name}: {shape}', or inputs = {{'{name}': '{shape}'}} in its file"
        raise InputError(f"the input {name} is missing; {takes}: describe it, for example {example}")
    order = [*named]
    return tuple(sorted(inputs, key=lambda each: order.index(each.name) if each.name in order else len(order)))


def takes_text(module: Any) -> str:
    """Return the signature of a module's forward in Python, without types."""
    signature, empty = inspect.signature(module.forward), inspect.Parameter.empty
    parameters = (each.replace(annotation=empty) for each in signature.parameters.values())
    return f"forward{inspect.Signature([*parameters])}"


def tensors(
    inputs: Iterable[Input], sizes: Mapping[str, int], device: str = "cpu", most: float = math.inf
) -> dict[str, Any]:
    """Return example values by name: random numbers from a fixed seed, indices 0, and true.

    most  the elements above which a tensor of floats has no values
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    values: dict[str, Any] = {}
    for each in inputs:
        if not each.kind:
            values[each.name] = each.value
            continue
        kind = getattr(torch, each.kind)
        shape = [size_at(size, sizes) for size in each.sizes]
        if device == "meta" or (kind.is_floating_point and math.prod(shape) > most):
            value = torch.empty(shape, dtype=kind, device="meta")
        elif math.prod(shape) * kind.itemsize > LARGEST:
            raise InputError(f"the input {each} needs {math.prod(shape) * kind.itemsize:,} bytes: use smaller sizes")
        elif kind.is_floating_point:
            value = torch.randn(shape, generator=generator).to(kind)
        else:
            value = torch.ones(shape, dtype=kind) if kind is torch.bool else torch.zeros(shape, dtype=kind)
        values[each.name] = value.requires_grad_(each.gradient)
    return values


def symbols_of(inputs: Iterable[Input]) -> dict[str, str]:
    """Return the dimensions of every tensor: letters are open, numbers fixed."""
    return {each.name: " ".join(each.sizes) for each in inputs if each.kind}


def sized(
    given: Sequence[Input] | Mapping[str, Any],
    sizes: Mapping[str, int],
    symbols: Mapping[str, str],
    most: float = math.inf,
) -> Any:
    """Return example values by name at sizes by letter, as `tensors` does; given tensors are repeated cyclically."""
    if isinstance(given, Mapping):
        return at_sizes(given, sizes, symbols)
    return tensors(given, {**examples_of(given), **sizes}, most=most)
