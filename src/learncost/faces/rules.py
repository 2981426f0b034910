"""`learncost rules MODEL`: rules of thumb set against the exact numbers."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.rules import rules as compute
from learncost.ledger.thumbs import Rules

OWN = ("tokens", "batch-size", "seq-len", "target-len", "format", "json", "help")


def rules(
    model: str,
    /,
    *,
    tokens: Number | None = None,
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Rules | str:
    """Rules of thumb set against the exact numbers: the error of each, where it comes from, and who says so.

    Parameters
    ----------
    tokens
        How many tokens a whole training has, such as 3e11. The default is those of one step.
    format
        How the result is written: table, json, csv or md.

    Examples
    --------
    learncost rules gpt2 --tokens 3e11
        How far rules such as 6 N D are from the exact numbers, and why.
    """
    wanted = chosen(format, json, ("table", "json", "csv", "md"))
    found = compute(model, tokens, batch_size, seq_len, target_len, **refuse_unknown(sizes, OWN))
    return written(found, wanted)
