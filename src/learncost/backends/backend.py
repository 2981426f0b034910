"""The operations of tables in NumPy, PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from learncost.backends import between
from learncost.backends.expression import ATOM, Code, shape
from learncost.backends.shard_map import sharded
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import named_one
from learncost.ops.op_def import OpDef

# Helpers at the top of programs that use them.
EINSUM = '''\
def einsum(equation, one, two):
    """np.einsum of two operands as one batched matrix product, which BLAS computes, on copies in its order."""
    operands, result = equation.split("->")
    a, b = operands.split(",")
    size = dict(zip(a + b, one.shape + two.shape, strict=True))
    batch = [x for x in result if x in a and x in b]
    rows = [x for x in result if x in a and x not in b]
    columns = [x for x in result if x in b and x not in a]
    summed = [x for x in a if x not in result]
    groups = [size[x] for x in batch]
    k = math.prod(size[x] for x in summed)
    one = one.transpose([a.index(x) for x in batch + rows + summed]).reshape(*groups, -1, k)
    two = two.transpose([b.index(x) for x in batch + summed + columns]).reshape(*groups, k, -1)
    if groups:
        one, two = np.ascontiguousarray(one), np.ascontiguousarray(two)
    product = (one @ two).reshape([size[x] for x in batch + rows + columns])
    return product.transpose([(batch + rows + columns).index(x) for x in result])'''
ERF = '''\
def erf(X):
    """The error function, by SciPy where it is installed."""
    try:
        from scipy.special import erf
    except ImportError:
        erf = np.frompyfunc(math.erf, 1, 1)
    return np.asarray(erf(X), X.dtype)'''


def _hashes(whole: str, number: str, constant: str = "{}", masked: str = " & 0xFFFFFFFF") -> dict[str, str]:
    """Return the random helpers: a number below 2^24 or a sign from two integers.

    whole     a number as an integer of the library
    number    an integer as a number of X's type
    constant  a large integer
    masked    what leaves the lower 32 bits of an integer that has more
    """
    first, factor = constant.format("0x9E3779B1"), constant.format("0x45D9F3B")
    mixing = f"""\
    kind, X, Z = X.dtype, {whole.format("X")}, {whole.format("Z")}
    H = X * {first} + Z{masked}
    H = (H ^ H >> 16) * {factor}{masked}
    H = (H ^ H >> 16) * {factor}{masked}
    H = H ^ H >> 16"""
    texts = {
        "hashed": ("A whole number below 2^24, as two whole numbers say.", number.format("H >> 8")),
        "coin": ("1 or -1, as two whole numbers say.", f"1 - 2 * {number.format('H >> 31')}"),
    }
    return {
        name: f'def {name}(X, Z):\n    """{says}"""\n{mixing}\n    return {value}'
        for name, (says, value) in texts.items()
    }


_TAKEN = '"""X along an axis at first + factor * position + ...; a number beyond the ends of the axis."""'
_LAID = (
    '"""X, added along an axis of this size at first + factor * position + ...; what is beyond its ends is left out."""'
)


def _places(arange: str) -> str:
    """Return lines that compute the indices along an axis at which a helper reads or writes."""
    return f"""places = first + factors[0] * {arange.format("sizes[0]")}
    for count, factor in zip(sizes[1:], factors[1:], strict=True):
        places = places[..., None] + factor * {arange.format("count")}"""


TAKEN = f"""\
def taken(X, axis, sizes, factors, first, outside=0):
    {_TAKEN}
    {_places("np.arange({})")}
    beyond = (places < 0) | (places >= X.shape[axis])
    X = X[(*[slice(None)] * axis, np.where(beyond, 0, places))]
    X[(*[slice(None)] * axis, beyond)] = outside
    return X"""
LAID = f"""\
def laid(X, axis, sizes, factors, first, size):
    {_LAID}
    {_places("np.arange({})")}
    places = np.where((places < 0) | (places >= size), size, places).reshape(sizes[0], -1)
    before, after, every = X.shape[:axis], X.shape[axis + len(sizes) :], [slice(None)] * axis
    X = X.reshape(*before, *places.shape, *after)
    total = np.zeros((*before, size + 1, *after), X.dtype)
    total[(*every, places[:, 0])] = X[(*every, slice(None), 0)]
    for column in range(1, places.shape[1]):  # of which none has two of the same place
        at = (*every, places[:, column])
        total[at] = total[at] + X[(*every, slice(None), column)]
    return total[(*every, slice(size))]"""
TORCH_TAKEN = f"""\
def taken(X, axis, sizes, factors, first, outside=0):
    {_TAKEN}
    if factors == (1,) and first < X.shape[axis] and first + sizes[0] > 0:
        ends = (-first, first + sizes[0] - X.shape[axis])
        return functional.pad(X, (0, 0) * (X.ndim - axis - 1) + ends, value=outside)
    {_places("torch.arange({}, device=X.device)")}
    ends = [factor * (size - 1) for size, factor in zip(sizes, factors, strict=True)]
    low = max(0, -first - sum(min(0, end) for end in ends))
    high = max(0, first + sum(max(0, end) for end in ends) - X.shape[axis] + 1)
    X = functional.pad(X, (0, 0) * (X.ndim - axis - 1) + (low, high), value=outside)
    return X.index_select(axis, (places + low).flatten()).unflatten(axis, places.shape)"""
TORCH_LAID = f"""\
def laid(X, axis, sizes, factors, first, size):
    {_LAID}
    {_places("torch.arange({}, device=X.device)")}
    places = places.where((places >= 0) & (places < size), size)
    X = X.flatten(axis, axis + len(sizes) - 1)
    total = X.new_zeros((*X.shape[:axis], size + 1, *X.shape[axis + 1 :]))
    return total.index_add_(axis, places.flatten(), X).narrow(axis, 0, size)"""
JAX_TAKEN = f"""\
def taken(X, axis, sizes, factors, first, outside=0):
    {_TAKEN}
    {_places("jnp.arange({})")}
    inside = (places >= 0) & (places < X.shape[axis])
    after = (None,) * (X.ndim - axis - 1)
    return jnp.where(inside[(..., *after)], jnp.take(X, places * inside, axis), outside)"""
JAX_LAID = f"""\
def laid(X, axis, sizes, factors, first, size):
    {_LAID}
    {_places("jnp.arange({})")}
    places = jnp.where((places >= 0) & (places < size), places, size)
    before, after = X.shape[:axis], X.shape[axis + len(sizes) :]
    total = jnp.zeros((*before, size + 1, *after), X.dtype)
    total = total.at[(*[slice(None)] * axis, places.ravel())].add(X.reshape(*before, -1, *after))
    return total[(*[slice(None)] * axis, slice(size))]"""


@dataclass(frozen=True)
class Backend:
    """A library: its name, its imports, the module of its functions, and differences in spelling.

    like  the name of the library whose spelling it has where it has none: numpy, torch or jax
    """

    name: str
    imports: tuple[str, ...]
    module: str
    array: str
    like: str = "numpy"
    keep: str = "keepdims"
    releases: bool = True  # whether `del` frees memory; under jax.jit it does not apply
    helpers: Mapping[str, str] = field(default_factory=dict)
    mesh: between.MeshOf = between.TORCH_MESH
    sharded: Callable[..., str] | None = None  # the function that shards arrays over devices, if the library has one
    casts: Mapping[str, str] = field(default_factory=dict)  # methods that give an array's numbers another type

    def cast(self, x: Code, dtype: str) -> Code:
        return Code(f"{x.atom}.{self.casts[dtype]}")

    def spelled(self, op: OpDef) -> str | None:
        """Return the call of an operator, with names of its inputs; None where it is a function of its name."""
        text = op.spelled.get(self.name, op.spelled.get(self.like))
        return text and text.replace("np.", f"{self.module}.") if self.like == "numpy" else text

    def transpose(self, x: Code, order: Sequence[int]) -> Code:
        if tuple(order) == (1, 0):
            return Code(f"{x.atom}.T")
        return Code(f"{x.atom}.{'permute' if self.like == 'torch' else 'transpose'}({', '.join(map(str, order))})")

    def function(self, name: str, *operands: str) -> Code:
        return Code(f"{self.module}.{name}({', '.join(operands)})", ATOM)

    def reduce(self, kind: str, x: Code, axis: str, keep: bool = False) -> Code:
        """Return a sum, mean, maximum or minimum over axes; `count` is the numeric sum of a condition."""
        name = f"a{kind}" if self.like == "torch" and kind in ("max", "min") else "sum" if kind == "count" else kind
        arguments = [axis] if axis else []
        arguments += [f"{self.keep}=True"] if keep else []
        arguments += ["dtype=np.float32"] if kind == "count" and self.like == "numpy" else []
        return Code(f"{x.atom}.{name}({', '.join(arguments)})")

    def filled(self, sizes: Sequence[str], like: str, value: str = "0.0") -> Code:
        """Return an array of one number, with the type of another array."""
        if self.like == "torch":
            return Code(f"{like}.new_full({shape(sizes)}, {value})")
        return Code(f"{self.module}.full({shape(sizes)}, {value}, {like}.dtype)")

    def zeros(self, sizes: Sequence[str], like: str) -> Code:
        if self.like == "torch":
            return Code(f"{like}.new_zeros({shape(sizes)})")
        return Code(f"{self.module}.zeros({shape(sizes)}, {like}.dtype)")

    def ones_below(self, rows: str, columns: str, place: str, like: str) -> Code:
        """Return a mask that is true where column <= row + place."""
        if self.like == "torch":
            ones = f"torch.ones({rows}, {columns}, dtype=torch.bool, device={like}.device)"
            return Code(f"{ones}.tril({'' if place == '0' else place})")
        return Code(f"{self.module}.tri({rows}, {columns}, {place}, dtype=bool)")

    def eye(self, size: str, like: str) -> Code:
        device = f", device={like}.device" if self.like == "torch" else ""
        return Code(f"{self.module}.eye({size}, dtype={like}.dtype{device})")

    def arange(self, size: str, like: str) -> Code:
        device = f", device={like}.device" if self.like == "torch" else ""
        return Code(f"{self.module}.arange({size}{device})")

    def devices_along(self, mesh_axis: str) -> str:
        """Return the number of devices along a mesh axis."""
        return self.mesh.devices.format(mesh_axis)

    def place_along(self, mesh_axis: str) -> Code:
        """Return this device's index along a mesh axis."""
        return Code(self.mesh.place.format(mesh_axis))

    def where(self, mask: Code, x: Code, otherwise: str) -> Code:
        """Return the array where the mask is true, else a number."""
        return Code(f"{self.module}.where({mask.text}, {x.text}, {otherwise})")

    def typed(self, mask: Code, like: str) -> Code:
        return Code(f"{mask.atom}.{'to' if self.like == 'torch' else 'astype'}({like}.dtype)")

    def broadcast(self, x: Code, sizes: Sequence[str]) -> Code:
        if self.like == "torch":
            return Code(f"{x.atom}.expand({', '.join(sizes)})")
        return Code(f"{self.module}.broadcast_to({x.text}, {shape(sizes)})")

    @property
    def join(self) -> str:
        """Return the concatenation function."""
        return f"{self.module}.{'cat' if self.like == 'torch' else 'concatenate'}"

    def joined(self, parts: Sequence[str], axis: int) -> Code:
        return Code(f"{self.join}(({', '.join(parts)}), {axis})")

    def einsum(self, equation: str, left: str, right: str) -> Code:
        function = "einsum" if "einsum" in self.helpers else f"{self.module}.einsum"
        return Code(f'{function}("{equation}", {left}, {right})')

    def along(self, x: str, index: str) -> Code:
        """Return one or several elements of every row."""
        if self.like == "torch":
            return Code(f"{x}.gather(-1, {index})")
        return Code(f"{self.module}.take_along_axis({x}, {index}, -1)")


_NUMPY = Backend(
    "numpy",
    ("import numpy as np",),
    "np",
    "np.ndarray",
    mesh=between.NUMPY_MESH,
    helpers={"einsum": EINSUM, "erf": ERF, "taken": TAKEN, "laid": LAID, **between.NUMPY}
    | _hashes("np.asarray({}).astype(np.int64)", "np.asarray({}).astype(kind)"),
)
_TORCH = Backend(
    "torch",
    ("import torch", "from torch.nn import functional"),
    "torch",
    "torch.Tensor",
    like="torch",
    keep="keepdim",
    helpers={"taken": TORCH_TAKEN, "laid": TORCH_LAID, **between.TORCH} | _hashes("{}.long()", "({}).to(kind)"),
    casts={"fp32": "float()", "bf16": "bfloat16()"},
)
_JAX = Backend(
    "jax",
    ("import jax", "import jax.numpy as jnp"),
    "jnp",
    "jax.Array",
    like="jax",
    releases=False,
    mesh=between.JAX_MESH,
    sharded=sharded,
    helpers={"taken": JAX_TAKEN, "laid": JAX_LAID, **between.JAX}
    | _hashes("{}.astype(jnp.int32).astype(jnp.uint32)", "({}).astype(kind)", "jnp.uint32({})", ""),
    casts={"fp32": "astype(jnp.float32)", "bf16": "astype(jnp.bfloat16)"},
)

BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (_NUMPY, _TORCH, _JAX)}


def backend(name: str) -> Backend:
    """Return a library by name. Raises `InputError` for an unknown one."""
    return named_one("backend", name, BACKENDS)
