"""The printer of a sharded step for JAX: a function that runs it on each device of a mesh by `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill

from learncost.backends.between import JAX_MESH, MESH
from learncost.backends.expression import WIDTH
from learncost.backends.records import RecordNode, Tree
from learncost.ir.polynomial import sharded_over, whole

NAME, PARTS = "over", "parts"
"""The name of the function, and of the record that has the sharding of weights and their states."""


_WIDER = """
    def along(X, spec, change):
        for axis, over in enumerate(spec):
            *outer, last = (over,) if isinstance(over, str) else over or (None,)
            if last is not None:
                blocks = math.prod(mesh.shape[each] for each in outer)
                blocked = X.reshape(*X.shape[:axis], blocks, -1, *X.shape[axis + 1 :])
                blocked = change(blocked, axis + 1, last, blocks)
                X = blocked.reshape(*X.shape[:axis], -1, *X.shape[axis + 1 :])
        return X

    def wider(X, spec):
        return along(X, spec, lambda X, axis, last, _: filled(X, mesh, last, axis))

    def narrower(X, spec, sizes):
        def change(X, axis, _, blocks):
            size = sizes[axis - 1]
            return X if size is None else trimmed(X, size // blocks, axis)

        return X if sizes is None else along(X, spec, change)

    def whole(*arrays):
        arrays = jax.tree.map(wider, arrays, given)
        return jax.tree.map(narrower, over_all(*arrays), results, sizes)

    return jax.jit(whole)"""
"""The part of a mesh's function for padded shards: each device has zeros at the end of its shard."""


def sharded(
    function: str,
    given: Sequence[Tree],
    results: Sequence[Tree],
    axes: Mapping[str, tuple[str, ...]],
    filled: Mapping[str, int] | None = None,
) -> str:
    """Return the text of a function of a mesh: the step of all devices, with global arrays as arguments and results.

    function  the step of one device, whose last argument is the mesh
    axes      of every name, `f/tp` where it is cut
    filled    the sizes of the axes of which parts are filled up; of other axes none
    """
    texts = [_tree(tree, axes) for tree in (*given, *results)]
    record = next(
        (text for tree, text in zip((*given, *results), texts, strict=True) if isinstance(tree, RecordNode)), ""
    )
    texts_of_record = [PARTS if text == record else text for text in texts]
    first, then = texts_of_record[: len(given)], texts_of_record[len(given) :]
    body = f"    {PARTS} = {record}\n" if record else ""
    body = fill(body, WIDTH, subsequent_indent=" " * 8, break_long_words=False) + "\n" if body else ""
    if filled:
        sizes = [_tree(tree, axes, lambda axes: _sizes(axes, filled)) for tree in results]
        several = len(results) > 1
        return f'''\
def {NAME}({MESH}: {JAX_MESH.type}):
    """The step of all devices of the mesh together: it takes and returns whole arrays."""
{body}
    given = ({_listed(first)})
    results = {f"({_listed(then)})" if several else then[0]}
    sizes = {f"({_listed(sizes)})" if several else sizes[0]}

    def each(*arrays):
        return {function}(*arrays, {MESH})

    over_all = jax.shard_map(each, mesh={MESH}, in_specs=given, out_specs=results, check_vma=False)
{_WIDER}'''
    return f'''\
def {NAME}({MESH}: {JAX_MESH.type}):
    """The step of all devices of the mesh together: it takes and returns whole arrays."""
{body}
    def each(*arrays):
        return {function}(*arrays, {MESH})

    return jax.jit(jax.shard_map(
        each,
        mesh={MESH},
        in_specs=({_listed(first)}),
        out_specs={f"({_listed(then)})" if len(then) > 1 else then[0]},
        check_vma=False,
    ))'''


def _listed(texts: Sequence[str]) -> str:
    return fill(f"{', '.join(texts)},", WIDTH, subsequent_indent=" " * 12, break_long_words=False)


def _tree(
    tree: Tree, axes: Mapping[str, tuple[str, ...]], spec_of: Callable[[Sequence[str]], str] | None = None
) -> str:
    if isinstance(tree, RecordNode):
        return f"{tree.record}({', '.join(_tree(part, axes, spec_of) for part in tree.fields)})"
    return "None" if tree is None else (spec_of or _spec)(axes[tree])


def _sizes(axes: Sequence[str], filled: Mapping[str, int]) -> str:
    """Return the sizes of an array with padded shards; else None."""
    sizes = tuple(filled.get(whole(axis)) if sharded_over(axis) else None for axis in axes)
    return repr(sizes) if any(sizes) else "None"


def _spec(axes: Iterable[str]) -> str:
    """Return the mesh axes that shard each array axis, outermost first: `PartitionSpec("dp", None, ("tp", "dp"))`."""
    over = [sharded_over(axis) for axis in axes]
    while over and not over[-1]:
        over.pop()
    specs = (
        "None" if not names else f'"{names[0]}"' if len(names) == 1 else repr(names).replace("'", '"') for names in over
    )
    return f"PartitionSpec({', '.join(specs)})"
