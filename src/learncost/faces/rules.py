"""`learncost rules MODEL`: rules of thumb set against the exact numbers."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from learncost.faces.flags import chosen, refuse_unknown, written
from learncost.ledger import show_rules as show
from learncost.ledger.rules import rules as compute
from learncost.ledger.thumbs import Rules

OWN = ("tokens", "batch-size", "seq-len", "target-len", "format", "json", "help")


def rules(
    model: str,
    /,
    *,
    tokens: str | None = None,
    batch_size: str = "1",
    seq_len: str | None = None,
    target_len: str | None = None,
    format: str = "table",
    json: Annotated[bool, Parameter(negative=())] = False,
    **sizes: str,
) -> Rules | str:
    """Rules of thumb set against the exact numbers: the error of each, where it comes from, and who says so.

    Parameters
    ----------
    model
        A preset (learncost list models), a path to a config.json or to its folder, - for a config on standard input,
        or encoder, decoder, encoder-decoder with all sizes as flags.
    tokens
        Tokens of a whole training, such as 3e11; those of one step where it is left out.
    batch_size
        Sequences in a step.
    seq_len
        Tokens in a sequence, the encoder's where there is a decoder too; by default the positions that the model has.
    target_len
        Tokens in a sequence of the decoder of an encoder-decoder; by default --seq-len.
    format
        table, json, csv or md.
    json
        Short for --format json.
    sizes
        Any size or setting of the model, in any accepted spelling. learncost list sizes shows them.
    """
    wanted = chosen(format, json, ("table", "json", "csv", "md"))
    found = compute(model, tokens, batch_size, seq_len, target_len, **refuse_unknown(sizes, OWN))
    writers = {"csv": show.as_csv, "md": show.as_markdown}
    return written(found, wanted, writers)
