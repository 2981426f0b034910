"""`learncost conventions MODEL`: the same model under every convention, and why they differ."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger import show_conventions
from learncost.ledger.conventions import Conventions
from learncost.ledger.conventions import conventions as compute

OWN = ("batch-size", "seq-len", "target-len", "format", "json", "help")


def conventions(
    model: str,
    /,
    *,
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Conventions | str:
    """What every price book and the common counters say of the same training step, and line by line why they differ.

    Parameters
    ----------
    model
        A preset (learncost list models), a path to a config.json or to its folder, - for a config on standard input,
        or encoder, decoder, encoder-decoder with all sizes as flags.
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
    found = compute(model, batch_size, seq_len, target_len, **refuse_unknown(sizes, OWN))
    writers = {"csv": show_conventions.as_csv, "md": show_conventions.as_markdown}
    return written(found, wanted, writers)
