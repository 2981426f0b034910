"""The mathematical functions of the vocabulary's ops in plain C99, to be printed into a file.

The same operations in the same order on every processor, so that the same text gives the same numbers everywhere. Bits
of a number are read through a union, as in C99 6.5.2.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from learncost.ir.errors import InputError

SOURCES = {
    "fp32": ("float", "both", "memory"),
    "fp64": ("double", "both", "memory"),
    "int32": ("both", "memory", "whole"),
}
"""The source files of each type's functions."""

_NAME = re.compile(r"^static \w+ \**(\w+)\(", re.MULTILINE)

_OF_A_NUMBER = re.compile(r"(?!product_)[a-z0-9]+_real")


@cache  # by type that has shipped files
def known(dtype: str) -> Mapping[str, str]:
    """Return the text of every function for a type; files separate them by blank lines, after an initial comment."""
    texts: dict[str, str] = {}
    for name in SOURCES[dtype]:
        _, *parts = Path(__file__).with_name(f"{name}.c").read_text(encoding="utf-8").split("\n\n")
        for part in parts:
            match = _NAME.search(part)
            assert match, part
            texts[match[1]] = part.strip("\n") + "\n"
    return texts


def functions(text: str, dtype: str) -> list[str]:
    """Return the functions that a text calls, with their dependencies first."""
    texts = known(dtype)
    order: dict[str, None] = {}

    def add(names: Iterable[str]) -> None:
        for name in names:
            if name in texts and name not in order:
                add(inner for inner in called(texts[name]) if inner != name)
                order[name] = None

    add(called(text))
    return [texts[name] for name in order]


def check_written(text: str, dtype: str) -> None:
    """Refuse calls of mathematical functions without a source file, since programs have no library."""
    missing = [name for name in called(text) if _OF_A_NUMBER.fullmatch(name) and name not in known(dtype)]
    if missing:
        raise InputError(
            f"c99 has no function {missing[0].removesuffix('_real')}: write {missing[0]} into "
            "src/learncost/backends/c99/both.c; --backend c takes the one of the C library"
        )


def called(text: str) -> list[str]:
    """Return the called names of a text without its comments."""
    return re.findall(r"\b(\w+)\(", without_comments(text))


def without_comments(text: str) -> str:
    """Return a text without comments."""
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


WIDTH = 112
"""Characters of a line of numbers, and a blank."""


def initial(number: Any, dtype: str) -> str:
    """Return the C text of a number."""
    return initializer([number], dtype)[1:-1].strip()


def initializer(values: Any, dtype: str) -> str:
    """Return an array's elements in memory order."""
    flat = np.asarray(values).reshape(-1)
    if dtype in ("fp32", "fp64"):
        texts = _reals(flat.astype(np.float32 if dtype == "fp32" else np.float64))
    else:
        texts = [str(int(number)) for number in flat]
    if sum(map(len, texts)) + 2 * len(texts) < 60:
        return f"{{{', '.join(texts)}}}"
    return "{\n" + "\n".join(f"    {line}" for line in _lines(texts)) + "\n}"


def _lines(texts: list[str]) -> Iterator[str]:
    """Return numbers in lines of a width; `textwrap` takes a minute for a million of them."""
    first, width = 0, 0
    for number, text in enumerate(texts):
        width += len(text) + 2
        if width > WIDTH:
            yield ", ".join(texts[first:number]) + ","
            first, width = number, len(text) + 2
    yield ", ".join(texts[first:])


def _reals(numbers: np.ndarray) -> list[str]:
    suffix = "f" if numbers.dtype == np.float32 else ""
    texts = [str(number) for number in numbers]
    return [f"{text if '.' in text or 'e' in text else text + '.0'}{suffix}" for text in texts]
