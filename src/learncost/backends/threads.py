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

_JOINED = """\
def {name}(X, mesh, over):
    \"\"\"{says} along an axis of the mesh.\"\"\"

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
    **{
        name: _JOINED.format(name=name, says=says, function=function)
        for name, function, says in (
            ("all_reduce", "add", "The sum of the arrays of all devices"),
            ("all_reduce_max", "maximum", "The largest of the numbers of all devices"),
            ("all_reduce_min", "minimum", "The smallest of the numbers of all devices"),
        )
    },
    "all_gather": '''\
def all_gather(X, mesh, over, place):
    """The parts of all devices along an axis of the mesh, one behind another on an axis of the array."""
    return mesh.meet(over, X, lambda arrays: np.concatenate(arrays, place))''',
    "reduce_scatter": f'''\
def reduce_scatter(X, mesh, over, place):
    """This device's part, on an axis of the array, of the sum of the arrays of all along an axis of the mesh."""
{_OWN.format(axis="place")}

    def joined(arrays):
        first, *others = arrays
        total = np.array(first[own])
        for other in others:
            np.add(total, other[own], out=total)
        return total

    return mesh.meet(over, X, joined)''',
    "all_to_all": f'''\
def all_to_all(X, mesh, over, before, after):
    """What is cut on an axis of the array along an axis of the mesh, cut on another one."""
{_OWN.format(axis="after")}
    return mesh.meet(over, X, lambda arrays: np.concatenate([array[own] for array in arrays], before))''',
    "pass_on": '''\
def pass_on(X, mesh, over):
    """What the device before this one along an axis of the mesh has; the next one gets what this one has."""
    return mesh.meet(over, X, lambda arrays: np.array(arrays[mesh.place[over] - 1]))''',
    "dispatch": '''\
def dispatch(X, I, mesh, over, owned):
    """Rows go to the device that owns what they read at an index; there along the first of their axes."""
    place, form = mesh.place[over], X.shape[len(I.shape) :]
    owner = (I // owned).reshape(-1)
    X = np.broadcast_to(X, (*I.shape, *form)).reshape(-1, *form)

    def mine(several):
        return np.concatenate([rows[mesh.rows(owner, over, place)] for rows, owner in several])

    X = mesh.meet(over, (X, owner), mine)
    return X.reshape(-1, *[1] * (len(I.shape) - 1), *form)''',
    "combine": '''\
def combine(X, I, mesh, over, owned):
    """Rows come back from the device that owns what they read at an index."""
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
    return Y.reshape(*I.shape, *form)''',
    "filled": '''\
def filled(X, mesh, over, place):
    """An array with zeros at the end of an axis, as many as let the devices along an axis of the mesh cut it."""
    ends = [(0, 0)] * len(X.shape)
    ends[place] = (0, -X.shape[place] % mesh.sizes[over])
    return np.pad(X, ends)''',
    "trimmed": '''\
def trimmed(X, size, place):
    """An array without what filled up the parts of an axis."""
    return X[(*[slice(None)] * place, slice(size))]''',
    "part": '''\
def part(X, first, size, place):
    """So many places of an axis from the first one on."""
    return X[(*[slice(None)] * place, slice(first, first + size))]''',
    "shard": f'''\
def shard(X, mesh, over, place):
    """This device's part of what it has whole."""
{_OWN.format(axis="place")}
    return X[own]''',
}
"""The helper of every collective, by its word."""
