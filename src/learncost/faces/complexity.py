"""`learncost complexity`: self-attention beside recurrence and convolution."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.complexity import Complexity
from learncost.ledger.complexity import complexity as compute

OWN = ("seq-len", "hidden-size", "num-attention-heads", "kernel-size", "window", "format", "json", "help")


def complexity(
    *,
    seq_len: Number | None = None,
    hidden_size: Number | None = None,
    num_attention_heads: Number | None = None,
    kernel_size: Number | None = None,
    window: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Complexity | str:
    """Self-attention, feed-forward, recurrence, convolution and restricted attention side by side.

    MACCs, parameters, orders, steps that must follow each other, path lengths, and the sequence lengths at which
    attention costs less. Sizes that are left out stay letters.

    Parameters
    ----------
    seq_len
        How many tokens are in a sequence, n.
    hidden_size
        How wide every layer is, d.
    num_attention_heads
        How many heads there are, h; they divide the width.
    kernel_size
        How many positions a convolution reads, k.
    window
        How many positions restricted attention looks at, r.
    format
        How the result is written: table, json, csv, md or latex.
    sizes
        The same sizes in any other accepted spelling, such as --d-model 512.

    Examples
    --------
    learncost complexity
        Costs in letters, and where they cross.
    learncost complexity --seq-len 1024 --hidden-size 768 --num-attention-heads 12 --kernel-size 3 --window 128
        The same with numbers.
    """
    wanted = chosen(format, json, ("table", "json", "csv", "md", "latex"))
    found = compute(
        seq_len=seq_len,
        hidden_size=hidden_size,
        num_attention_heads=num_attention_heads,
        kernel_size=kernel_size,
        window=window,
        **refuse_unknown(sizes, OWN),
    )
    return written(found, wanted)
