"""Collectives on NumPy as helpers of a program: every device of the mesh is a thread.

A collective allocates its result, and no thread continues before all have allocated theirs, so that an array may be
written to when its collective is over.
"""

from __future__ import annotations

from collections.abc import Mapping

DEVICE = '''\
class Device:
    """One of the devices of a mesh, each a thread: how many there are along every axis, and which one it is."""

    def __init__(self, sizes, place, meetings):
        self.sizes, self.place, self.meetings = sizes, place, meetings

    @staticmethod
    def all(**sizes):
        """All devices of a mesh; the last axis is between the nearest ones."""
        meetings, places = {}, itertools.product(*map(range, sizes.values()))
        return [Device(sizes, dict(zip(sizes, place, strict=True)), meetings) for place in places]

    def meet(self, over, X, make):
        """What is made of the arrays that all along an axis of the mesh have; they wait until everyone has made it."""
        key = over, *(place for axis, place in self.place.items() if axis != over)
        number = self.sizes[over]
        arrays, barrier = self.meetings.setdefault(key, ([None] * number, threading.Barrier(number)))
        arrays[self.place[over]] = X
        barrier.wait()
        result = make(arrays)
        barrier.wait()
        arrays[self.place[over]] = None
        return result

    def rows(self, owner, over, place):
        """The rows that the device at a place of an axis of the mesh owns."""
        return np.flatnonzero(owner == place)'''

_JOINED = """
    def joined(arrays):
        first, *others = arrays
        total = np.array(first)
        for other in others:
            np.{function}(total, other, out=total)
        return total

    return mesh.meet(over, X, joined)"""

_OWN = """\
    size = X.shape[{axis}] // mesh.sizes[over]
    own = (*[slice(None)] * {axis}, slice(mesh.place[over] * size, (mesh.place[over] + 1) * size))"""

NUMPY: Mapping[str, str] = {
    "all_reduce": _JOINED.format(function="add"),
    "all_reduce_max": _JOINED.format(function="maximum"),
    "all_reduce_min": _JOINED.format(function="minimum"),
    "all_gather": """\
    return mesh.meet(over, X, lambda arrays: np.concatenate(arrays, place))""",
    "reduce_scatter": f"""\
{_OWN.format(axis="place")}

    def joined(arrays):
        first, *others = arrays
        total = np.array(first[own])
        for other in others:
            np.add(total, other[own], out=total)
        return total

    return mesh.meet(over, X, joined)""",
    "all_to_all": f"""\
{_OWN.format(axis="after")}
    return mesh.meet(over, X, lambda arrays: np.concatenate([array[own] for array in arrays], before))""",
    "pass_on": """\
    return mesh.meet(over, X, lambda arrays: np.array(arrays[mesh.place[over] - 1]))""",
    "dispatch": """\
    place, form = mesh.place[over], X.shape[len(I.shape) :]
    owner = (I // owned).reshape(-1)
    X = np.broadcast_to(X, (*I.shape, *form)).reshape(-1, *form)

    def mine(several):
        return np.concatenate([rows[mesh.rows(owner, over, place)] for rows, owner in several])

    X = mesh.meet(over, (X, owner), mine)
    return X.reshape(-1, *[1] * (len(I.shape) - 1), *form)""",
    "combine": """\
    form = X.shape[len(I.shape) :]
    owner = (I // owned).reshape(-1)

    def mine(several):
        Y = np.zeros((len(owner), *form), X.dtype)
        for place, (rows, _) in enumerate(several):
            first = sum(len(mesh.rows(other, over, place)) for _, other in several[: mesh.place[over]])
            own = mesh.rows(owner, over, place)
            Y[own] = rows[first : first + len(own)]
        return Y

    Y = mesh.meet(over, (X.reshape(-1, *form), owner), mine)
    return Y.reshape(*I.shape, *form)""",
    "filled": """\
    ends = [(0, 0)] * len(X.shape)
    ends[place] = (0, -X.shape[place] % mesh.sizes[over])
    return np.pad(X, ends)""",
    "trimmed": """\
    return X[(*[slice(None)] * place, slice(size))]""",
    "part": """\
    return X[(*[slice(None)] * place, slice(first, first + size))]""",
    "shard": f"""\
{_OWN.format(axis="place")}
    return X[own]""",
}
"""The body of the helper of every collective, by its op."""
