"""`learncost conventions MODEL`: the same model under every convention, and why they differ."""

from __future__ import annotations

from learncost.equation.errors import InputError
from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.conventions import Conventions
from learncost.ledger.conventions import conventions as compute
from learncost.ledger.memory_measured import Peaks, measured_of
from learncost.ledger.memory_published import PublishedMemory, published_memory

OWN = ("batch-size", "seq-len", "target-len", "mine", "memory", "format", "json", "help")


def conventions(
    model: str,
    /,
    *,
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    mine: Number | None = None,
    memory: Switch = False,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Conventions | PublishedMemory | Peaks | str:
    """What every price book and the common counters say of the same training step, and line by line why they differ.

    Parameters
    ----------
    mine
        A number that you have, such as 291.6G or 8.75e11. Which conventions give it is then said, or which comes
        nearest and what explains the rest.
    memory
        Shows instead what is published of memory: the activations of one sequence as Pau & Aymone count them, beside
        the exact ones; or the peaks that were measured of this model on one GPU, beside those predicted (learncost list
        peaks has all).
    format
        How the result is written: table, json, csv or md; with --memory not csv.

    Examples
    --------
    learncost conventions gpt2
        What counters and price books say of one step of GPT-2, and why they differ.
    learncost conventions gpt2 --mine 291.6G
        Which of them gives this number.
    """
    if memory:
        wanted = chosen(format, json, ("table", "json", "md"))
        if mine is not None:
            raise InputError("--mine is a count of operations: leave --memory out")
        if batch_size != "1":
            raise InputError("--memory is of one sequence: leave --batch-size out")
        runs = () if sizes or seq_len or target_len else measured_of(model)
        told: Peaks | PublishedMemory = Peaks(model, runs)
        if not runs:
            told = published_memory(model, seq_len, target_len, **refuse_unknown(sizes, OWN))
        return written(told, wanted)
    wanted = chosen(format, json, ("table", "json", "csv", "md"))
    found = compute(model, batch_size, seq_len, target_len, mine, **refuse_unknown(sizes, OWN))
    return written(found, wanted)
