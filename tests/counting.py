"""A counting array: what NumPy really executes, one operation after the other.

It follows NumPy's protocols and knows nothing of tables or prices. One unit for each element of the result of an
elementwise operation, for each element that a reduction reads, for each point that a scatter-add adds; two for each
term of a matrix product. Moves (transposing, reshaping, indexing, stacking) and choices (sorting) are nothing.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

TALLY: Counter[str] = Counter()  # operation -> units, of all arrays together

_MOVES = {
    "argsort", "broadcast_to", "concatenate", "copyto", "empty_like", "expand_dims", "full_like", "moveaxis", "ndim",
    "ones_like", "real", "reshape", "shape", "size", "squeeze", "stack", "swapaxes", "transpose", "zeros_like",
}  # fmt: skip


class Counting(np.ndarray):
    """Counts what is done to it, and so is what comes out."""

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        plain = [np.asarray(x) if isinstance(x, Counting) else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **keywords)
        if method == "at":
            target, places, added = plain
            TALLY[f"{ufunc.__name__}.at"] += np.broadcast(np.empty(np.shape(target[places])), added).size
            return None
        if method == "reduce":
            TALLY[f"{ufunc.__name__}.reduce"] += np.size(plain[0])
        elif method == "__call__" and ufunc is np.matmul:
            TALLY["matmul"] += 2 * np.size(result) * np.shape(plain[0])[-1]
        elif method == "__call__":
            TALLY[ufunc.__name__] += np.size(result)
        else:
            raise NotImplementedError(f"{ufunc.__name__}.{method}")
        return np.asarray(result).view(Counting)

    def __array_function__(self, function, types, arguments, keywords):
        result = function(*_plain(arguments), **_plain(keywords))
        if function is np.where:
            TALLY["where"] += np.size(result)
        elif function.__name__ not in _MOVES:
            raise NotImplementedError(function.__name__)
        return result.view(Counting) if isinstance(result, np.ndarray) else result


def _plain(value):
    if isinstance(value, Counting):
        return value.view(np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def counting(array):
    """The array, counting; integers are positions and stay as they are."""
    array = np.asarray(array)
    return array if array.dtype.kind in "iu" else array.view(Counting)


def tally_of(function, *arguments, **keywords):
    """What a call executes: its result, and the units in all."""
    TALLY.clear()
    result = function(*arguments, **keywords)
    return result, sum(TALLY.values())
