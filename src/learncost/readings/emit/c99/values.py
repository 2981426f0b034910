"""Numbers as C writes them: each as the type has it, to its last bit."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np


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
    text = ", ".join(texts)
    if len(text) < 60:
        return f"{{{text}}}"
    return "{\n" + textwrap.fill(text, 116, initial_indent="    ", subsequent_indent="    ") + "\n}"


def _reals(numbers: np.ndarray) -> list[str]:
    suffix = "f" if numbers.dtype == np.float32 else ""
    texts = [str(number) for number in numbers]
    return [f"{text if '.' in text or 'e' in text else text + '.0'}{suffix}" for text in texts]
