"""A placed step for JAX: the function that gives each device of a mesh its parts, by `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill

from learncost.equation.count import cuts
from learncost.readings.emit.between import JAX_MESH, MESH
from learncost.readings.emit.expression import WIDTH
from learncost.readings.emit.records import Node, Tree

NAME, PARTS = "over", "parts"
"""What the function is called, and the record that says how weights, or what belongs to each, are cut."""


def sharded(function: str, given: Sequence[Tree], results: Sequence[Tree], axes: Mapping[str, tuple[str, ...]]) -> str:
    """The text of a function of a mesh: the step of all its devices together, which takes and returns whole arrays.

    function  the step of one device, whose last argument is the mesh
    axes      of every name, `f/tp` where it is cut
    """
    texts = [_tree(tree, axes) for tree in (*given, *results)]
    record = next((text for tree, text in zip((*given, *results), texts, strict=True) if isinstance(tree, Node)), "")
    said = [PARTS if text == record else text for text in texts]
    first, then = said[: len(given)], said[len(given) :]
    body = f"    {PARTS} = {record}\n" if record else ""
    body = fill(body, WIDTH, subsequent_indent=" " * 8, break_long_words=False) + "\n" if body else ""
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


def _tree(tree: Tree, axes: Mapping[str, tuple[str, ...]]) -> str:
    if isinstance(tree, Node):
        return f"{tree.record}({', '.join(_tree(part, axes) for part in tree.fields)})"
    return "None" if tree is None else _spec(axes[tree])


def _spec(axes: Iterable[str]) -> str:
    """Over what each axis of an array is cut, the outermost first: `PartitionSpec("dp", None, ("tp", "dp"))`."""
    over = [cuts(axis) for axis in axes]
    while over and not over[-1]:
        over.pop()
    said = (
        "None" if not names else f'"{names[0]}"' if len(names) == 1 else repr(names).replace("'", '"') for names in over
    )
    return f"PartitionSpec({', '.join(said)})"
