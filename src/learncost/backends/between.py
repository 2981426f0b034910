"""Collectives as helpers of a program: PyTorch's functional collectives over a DeviceMesh, JAX's by axis names.

On NumPy every device of the mesh is a thread. A collective allocates its result, and no thread continues before all
have allocated theirs, so that an array may be written to when its collective is over.
"""

from __future__ import annotations

from collections.abc import Mapping

from learncost.ir.dataclass import dataclass

MESH = "mesh"
"""The name of the device mesh in programs."""

SENT = "sent"
"""The name in programs of the list of pending sends to other stages."""


@dataclass(frozen=True)
class MeshOf:
    """A library's device mesh: its type and its expressions for an axis, `{}`.

    imports  what programs import for it
    devices  how many there are along it; place, which of them this one is
    text     the type itself, which programs have on their top where no module has it
    """

    type: str
    imports: str
    devices: str
    place: str
    text: str = ""


_DEVICE = '''\
class Device:
    """One of the devices of a mesh, each a thread: how many there are along every axis, and which one it is."""

    def __init__(self, sizes, place, communicators):
        self.sizes, self.place, self.communicators = sizes, place, communicators

    @staticmethod
    def all(**sizes):
        """All devices of a mesh; the last axis is between the nearest ones."""
        communicators, places = {}, itertools.product(*map(range, sizes.values()))
        return [Device(sizes, dict(zip(sizes, place, strict=True)), communicators) for place in places]

    def meet(self, over, X, make):
        """What is made of the arrays that all along an axis of the mesh have; they wait until everyone has made it."""
        key = over, *(place for axis, place in self.place.items() if axis != over)
        number = self.sizes[over]
        arrays, barrier = self.communicators.setdefault(key, ([None] * number, threading.Barrier(number)))
        arrays[self.place[over]] = X
        barrier.wait()
        result = make(arrays)
        barrier.wait()
        arrays[self.place[over]] = None
        return result

    def rows(self, owner, over, place):
        """The rows that the device at a place of an axis of the mesh owns."""
        return np.flatnonzero(owner == place)'''

TORCH_MESH = MeshOf(
    "DeviceMesh",
    "from torch.distributed.device_mesh import DeviceMesh",
    f'{MESH}["{{}}"].size()',
    f'{MESH}.get_local_rank("{{}}")',
)
JAX_MESH = MeshOf(
    "Mesh", "from jax.sharding import Mesh, PartitionSpec", f'{MESH}.shape["{{}}"]', 'jax.lax.axis_index("{}")'
)
NUMPY_MESH = MeshOf(
    "Device", "import itertools\nimport threading", f'{MESH}.sizes["{{}}"]', f'{MESH}.place["{{}}"]', _DEVICE
)

_SENT = "torch.ops._c10d_functional"

_REDUCED = """\
    group = mesh.get_group(over).group_name
    return {sent}.wait_tensor({sent}.all_reduce(X.contiguous(), "{how}", group))"""

_ROWS = """\
    group = mesh.get_group(over)
    owner = (I // owned).flatten()
    order = owner.argsort(stable=True)
    there = owner.bincount(minlength=group.size())
    here = torch.empty_like(there)
    torch.distributed.all_to_all_single(here, there, group=group)"""

ALONG = '''\
GROUPS = {}


def along(mesh, over, direction, *places):
    """The processes at some places of an axis of the mesh, or at all, as a group that sends in one direction.

    The first time all processes of the mesh ask for it.
    """
    key = mesh, over, direction, places
    if key not in GROUPS:
        GROUPS[key] = None
        lines = mesh.mesh.movedim(mesh.mesh_dim_names.index(over), -1)
        for line in lines.reshape(-1, lines.shape[-1]).tolist():
            line = [line[place] for place in places] or line
            group = torch.distributed.new_group(line)
            if torch.distributed.get_rank() in line:
                GROUPS[key] = group
    return GROUPS[key]'''

ZIGZAG = '''\
def zigzag(place, size, devices):
    """The position at a place of an axis of which each device has a stretch early and one late."""
    part, stretch = size // devices, size // (2 * devices)
    device, rest = place // part, place % part
    return rest + device * stretch + (rest >= stretch) * (2 * devices - 2 - 2 * device) * stretch'''

HEADS: Mapping[str, tuple[str, str]] = {
    "all_reduce": ("X, mesh, over", "The sum of the arrays of all devices along an axis of the mesh."),
    "all_reduce_max": ("X, mesh, over", "The largest of the numbers of all devices along an axis of the mesh."),
    "all_reduce_min": ("X, mesh, over", "The smallest of the numbers of all devices along an axis of the mesh."),
    "all_gather": (
        "X, mesh, over, place",
        "The parts of all devices along an axis of the mesh, one behind another on an axis of the array.",
    ),
    "reduce_scatter": (
        "X, mesh, over, place",
        "This device's part, on an axis of the array, of the sum of the arrays of all along an axis of the mesh.",
    ),
    "all_to_all": (
        "X, mesh, over, before, after",
        "What is cut on an axis of the array along an axis of the mesh, cut on another one.",
    ),
    "pass_on": (
        "X, mesh, over",
        "What the device before this one along an axis of the mesh has; the next one gets what this one has.",
    ),
    "send": (
        "X, mesh, over, place, direction, sent",
        "An array goes to the device at a place of an axis of the mesh, while this one computes on.",
    ),
    "receive": (
        "X, mesh, over, place, direction",
        "The next array that the device at a place of an axis of the mesh sends.",
    ),
    "all_reduce_among": (
        "X, mesh, over, *places",
        "The sum of the arrays of the devices at some places of an axis of the mesh.",
    ),
    "dispatch": (
        "X, I, mesh, over, owned",
        "Rows go to the device that owns what they read at an index; there along the first of their axes.",
    ),
    "combine": ("X, I, mesh, over, owned", "Rows come back from the device that owns what they read at an index."),
    "filled": (
        "X, mesh, over, place",
        "An array with zeros at the end of an axis, as many as let the devices along an axis of the mesh cut it.",
    ),
    "trimmed": ("X, size, place", "An array without what filled up the parts of an axis."),
    "part": ("X, first, size, place", "So many places of an axis from the first one on."),
    "shard": ("X, mesh, over, place", "This device's part of what it has whole."),
}
"""Of every collective the parameters of its helper and what it does, in every library."""


def _helpers(bodies: Mapping[str, str]) -> dict[str, str]:
    """Return the helpers of a library by the bodies of their functions."""
    return {op: f'def {op}({HEADS[op][0]}):\n    """{HEADS[op][1]}"""\n{body}' for op, body in bodies.items()}


_TORCH = {
    "all_reduce": _REDUCED.format(how="sum", sent=_SENT),
    "all_reduce_max": _REDUCED.format(how="max", sent=_SENT),
    "all_reduce_min": _REDUCED.format(how="min", sent=_SENT),
    "all_gather": f"""\
    group = mesh.get_group(over)
    X = X.movedim(place, 0).contiguous()
    X = {_SENT}.all_gather_into_tensor(X, group.size(), group.group_name)
    return {_SENT}.wait_tensor(X).movedim(0, place)""",
    "reduce_scatter": f"""\
    group = mesh.get_group(over)
    X = X.movedim(place, 0).contiguous()
    X = {_SENT}.reduce_scatter_tensor(X, "sum", group.size(), group.group_name)
    return {_SENT}.wait_tensor(X).movedim(0, place)""",
    "all_to_all": f"""\
    group = mesh.get_group(over)
    X = torch.stack(X.chunk(group.size(), after))
    X = {_SENT}.all_to_all_single(X, [1] * group.size(), [1] * group.size(), group.group_name)
    return torch.cat({_SENT}.wait_tensor(X).unbind(), before)""",
    "pass_on": f"""\
    group = mesh.get_group(over)
    there, here = ([0] * group.size() for _ in range(2))
    there[(group.rank() + 1) % group.size()] = here[group.rank() - 1] = X.numel()
    Y = {_SENT}.all_to_all_single(X.contiguous().view(-1), here, there, group.group_name)
    return {_SENT}.wait_tensor(Y).view(X.shape)""",
    # Backward sends use a separate group: NCCL processes each group in order, which could deadlock otherwise.
    "send": """\
    sent.append(torch.distributed.isend(X.contiguous(), group=along(mesh, over, direction), group_dst=place))""",
    "receive": """\
    torch.distributed.recv(X, group=along(mesh, over, direction), group_src=place)
    return X""",
    "all_reduce_among": f"""\
    group = along(mesh, over, "together", *places).group_name
    return {_SENT}.wait_tensor({_SENT}.all_reduce(X.contiguous(), "sum", group))""",
    "dispatch": f"""\
{_ROWS}
    X = X.expand(*I.shape, *X.shape[I.ndim :]).flatten(0, I.ndim - 1)[order]
    X = {_SENT}.all_to_all_single(X, here.tolist(), there.tolist(), group.group_name)
    return {_SENT}.wait_tensor(X).view(-1, *[1] * (I.ndim - 1), *X.shape[1:])""",
    "combine": f"""\
{_ROWS}
    X = X.flatten(0, I.ndim - 1).contiguous()
    X = {_SENT}.all_to_all_single(X, there.tolist(), here.tolist(), group.group_name)
    Y = torch.empty_like(X)
    Y[order] = {_SENT}.wait_tensor(X)
    return Y.view(*I.shape, *Y.shape[1:])""",
    "filled": """\
    more = -X.shape[place] % mesh[over].size()
    return torch.nn.functional.pad(X, [0, 0] * (X.ndim - 1 - place) + [0, more])""",
    "trimmed": """\
    return X.narrow(place, 0, size)""",
    "part": """\
    return X.narrow(place, first, size)""",
    "shard": """\
    return X.chunk(mesh.size(mesh.mesh_dim_names.index(over)), place)[mesh.get_local_rank(over)]""",
}
TORCH: Mapping[str, str] = {"zigzag": ZIGZAG, "along": ALONG, **_helpers(_TORCH)}
"""The helper of every collective, by its op, and that of zigzag positions."""

_JAX = {
    "all_reduce": "    return jax.lax.psum(X, over)",
    "all_reduce_max": "    return jax.lax.pmax(X, over)",
    "all_reduce_min": "    return jax.lax.pmin(X, over)",
    "all_gather": """\
    return jax.lax.all_gather(X, over, axis=place, tiled=True)""",
    "reduce_scatter": """\
    return jax.lax.psum_scatter(X, over, scatter_dimension=place, tiled=True)""",
    "all_to_all": """\
    return jax.lax.all_to_all(X, over, split_axis=after, concat_axis=before, tiled=True)""",
    "pass_on": """\
    number = mesh.shape[over]
    return jax.lax.ppermute(X, over, [(place, (place + 1) % number) for place in range(number)])""",
    "filled": """\
    more = -X.shape[place] % mesh.shape[over]
    return jnp.pad(X, [(0, more if axis == place else 0) for axis in range(X.ndim)])""",
    "trimmed": """\
    return jax.lax.slice_in_dim(X, 0, size, axis=place)""",
    "part": """\
    return jax.lax.dynamic_slice_in_dim(X, first, size, place)""",
    "shard": """\
    size = X.shape[place] // mesh.shape[over]
    return jax.lax.dynamic_slice_in_dim(X, jax.lax.axis_index(over) * size, size, place)""",
}
JAX: Mapping[str, str] = {"zigzag": ZIGZAG, **_helpers(_JAX)}
"""The same for JAX, within `jax.shard_map`. XLA has no dispatch to experts, whose sizes depend on the data."""

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

_NUMPY = {
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
NUMPY: Mapping[str, str] = {"zigzag": ZIGZAG, **_helpers(_NUMPY)}
"""The same for NumPy, over threads."""
