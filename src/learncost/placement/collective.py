"""What a placed table sends, as plain records: for prices, times and searches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of a placed step, as every device of the mesh runs it.

    Attributes
    ----------
    word
        all_reduce, all_reduce_max, all_gather, reduce_scatter, all_to_all, dispatch, combine. What sends nothing,
        shard, is not listed.
    mesh_axis
        The axis of the mesh over whose devices it runs, such as tp.
    payload_bytes
        Bytes of one run: of the larger of what goes in and what comes out on one device. That is the array that is
        reduced, what is gathered in all, what is scattered in all, what is exchanged in all, a device's own part
        included. What a ring sends of it is a convention: 2(p-1)/p of an all_reduce, (p-1)/p of the others.
    line
        The name of the array that it makes.
    reader
        The name that the first line makes that reads it.
    times
        How often it runs in a step: the turns of the repeats around it.
    macro
        The macro-operation that it stands in: forward, recomputation, backward, weight_update, optimizer_step.
    layer, block
        Of the line that it is there for.
    role
        What it moves: weights, gradients, states, values or inputs.
    place
        Where it stands among all lines of the placed table, in the order of `walk`.
    why
        Why it is there, in a sentence.
    """

    word: str
    mesh_axis: str
    payload_bytes: int
    line: str
    reader: str
    times: int
    macro: str
    layer: str
    block: str | None
    role: str
    place: int
    why: str
