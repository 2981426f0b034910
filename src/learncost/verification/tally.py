"""An instrumented array that counts its operations in the units of the price book `run`."""

from __future__ import annotations

from typing import Any

import numpy as np

_MOVES = frozenset(
    ("broadcast_to", "concatenate", "real", "reshape", "shape", "ndim", "size", "stack", "transpose", "zeros_like")
)


class Tally(np.ndarray[Any, Any]):
    """Counts one unit per element of an elementwise result or reduction operand, and two per term of a matmul."""

    units = 0
    maccs = 0  # the terms of matmuls alone
    products = 0  # the elements of products of two arrays, element by element

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = [_plain(value) for value in inputs]
        result = getattr(ufunc, method)(*plain, **keywords)
        if method == "at":
            Tally.units += np.broadcast(plain[0][plain[1]], plain[2]).size
            return None
        if method == "reduce":
            Tally.units += np.size(plain[0])
        elif ufunc is np.matmul:
            terms = np.size(result) * np.shape(plain[0])[-1]
            Tally.units += 2 * terms
            Tally.maccs += terms
        else:
            Tally.units += np.size(result)
            if ufunc is np.multiply and all(isinstance(value, Tally) for value in inputs):
                Tally.products = np.size(result)
        return tallied(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        result = function(*map(_plain, arguments), **{name: _plain(value) for name, value in keywords.items()})
        if function is np.where:
            Tally.units += np.size(result)
        elif function in (np.argmax, np.argmin, np.argsort):
            Tally.units += np.size(_plain(arguments[0]))
        elif function.__name__ not in _MOVES:
            raise NotImplementedError(f"what does {function.__name__} cost?")
        return tallied(result) if isinstance(result, np.ndarray) else result


def _plain(value: Any) -> Any:
    if isinstance(value, Tally):
        return value.view(np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value


def tallied(value: Any) -> Any:
    """Return the array as a counting one; integers stay plain arrays."""
    array = np.asarray(value)
    return array if array.dtype.kind in "iu" else array.view(Tally)
