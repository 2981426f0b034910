"""`learncost compare MODEL`: learning procedures side by side."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger import show_comparison as show
from learncost.ledger.compare import Comparison
from learncost.ledger.compare import compare as compute

OWN = (
    "procedures",
    "price-book",
    "batch-size",
    "seq-len",
    "target-len",
    "tokens",
    "optimizer",
    "dropout",
    "dtype",
    "train",
    "train-layers",
    "lora",
    "lora-rank",
    "lora-alpha",
    "plan",
    "format",
    "json",
    "help",
)


def compare(
    model: str,
    /,
    *,
    procedures: Name | None = None,
    price_book: Name = "run",
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    tokens: Number | None = None,
    optimizer: Name = "sgd",
    dropout: Number = "0",
    dtype: Name = "fp32",
    train: Name | None = None,
    train_layers: Name | None = None,
    lora: Name | None = None,
    lora_rank: Number | None = None,
    lora_alpha: Number | None = None,
    plan: Name | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Comparison | str:
    """Learning procedures side by side, and the sequence length at which one overtakes another.

    Macro-operations and totals under one price book; ratios to bp under run and paper; and for each pair of procedures
    which of them is cheaper at every length from 1 to 10^12, exactly.

    Parameters
    ----------
    model
        A preset (learncost list models), a path to a config.json or to its folder, - for a config on standard input,
        or encoder, decoder, encoder-decoder with all sizes as flags.
    procedures
        Of bp, recompute, pepita, mempepita and head-only, with commas between; by default all that the model can be
        trained by, without the control head-only.
    price_book
        Whose macro-operations are shown: run, matmul, paper or another (learncost list price-books).
    batch_size
        Sequences in a step.
    seq_len
        Tokens in a sequence, the encoder's where there is a decoder too; by default the positions that the model has.
    target_len
        Tokens in a sequence of the decoder of an encoder-decoder; by default --seq-len, and both vary together.
    tokens
        Tokens of a whole training, such as 3e11.
    optimizer
        sgd, momentum or adamw.
    dropout
        A probability; above 0 the masks' products are charged.
    dtype
        Of what is moved; no count that is compared depends on it.
    train
        What learns: all, none, head, embeddings, biases, or names of weights and modules, with commas between.
    train_layers
        Which blocks learn, or have low-rank paths, counted from 0: 10-11, or 0,2,5-7, or "last 2".
    lora
        Projections with a low-rank path, all else frozen: q_proj,v_proj, c_attn, attention, feed_forward, all-linear.
    lora_rank
        Of these paths; by default 8.
    lora_alpha
        The paths' result is scaled by this over the rank; by default 16.
    plan
        Rewritings of the step, with commas between: head,at-once,recompute=gelu+norm (learncost list plans).
    format
        table, json, csv, md or latex.
    json
        Short for --format json.
    sizes
        Any size or setting of the model, in any accepted spelling. learncost list sizes shows them.
    """
    wanted = chosen(format, json, ("table", "json", "csv", "md", "latex"))
    found = compute(
        model,
        procedures,
        price_book,
        batch_size,
        seq_len,
        target_len,
        tokens,
        optimizer,
        dropout,
        dtype,
        train=train,
        train_layers=train_layers,
        lora=lora,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        plan=plan,
        **refuse_unknown(sizes, OWN),
    )
    writers = {"csv": show.as_csv, "md": show.as_markdown, "latex": show.as_latex}
    return written(found, wanted, writers)
