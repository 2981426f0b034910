"""Numbers as C writes them: each as the type has it, to its last bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

WIDTH = 112
"""Characters of a line of numbers, and a blank."""


def initial(number: Any, dtype: str) -> str:
    """One number."""
    return initializer([number], dtype)[1:-1].strip()


def initializer(values: Any, dtype: str) -> str:
    """An array, its elements in the order in which they lie."""
    flat = np.asarray(values).reshape(-1)
    if dtype in ("fp32", "fp64"):
        texts = _reals(flat.astype(np.float32 if dtype == "fp32" else np.float64))
    else:
        texts = [str(int(number)) for number in flat]
    if sum(map(len, texts)) + 2 * len(texts) < 60:
        return f"{{{', '.join(texts)}}}"
    return "{\n" + "\n".join(f"    {line}" for line in _lines(texts)) + "\n}"


def _lines(texts: list[str]) -> Iterator[str]:
    """Numbers in lines of a width; `textwrap` takes a minute for a million of them."""
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
