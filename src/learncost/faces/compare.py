"""`learncost compare MODEL`: learning procedures side by side."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Procedures, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.compare import Comparison
from learncost.ledger.compare import compare as compute

OWN = (
    "procedure",
    "procedures",
    "price-book",
    "batch-size",
    "seq-len",
    "target-len",
    "tokens",
    "optimizer",
    "dropout",
    "dtype",
    "precision",
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
    procedures: Procedures | None = None,
    price_book: Name = "run",
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    tokens: Number | None = None,
    optimizer: Name | None = None,
    dropout: Number = "0",
    dtype: Name | None = None,
    precision: Name | None = None,
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
    procedures
        Which procedures are compared, with commas between: bp, recompute, pepita, mempepita, head-only. The default is
        all by which the model can learn, without the control head-only.
    price_book
        The price book whose macro-operations are shown: run, matmul, paper or another (learncost list price-books).
    target_len
        How many tokens are in a sequence of the decoder of an encoder-decoder. The default is --seq-len, and both vary
        together.
    precision
        The types of what is moved. No count that is compared depends on it.
    format
        How the result is written: table, json, csv, md or latex.

    Examples
    --------
    learncost compare gpt2 --procedure bp,recompute,pepita
        Three procedures side by side, and at which lengths one overtakes another.
    learncost compare distilbert-base --price-book paper-corrected --architecture DistilBertForMaskedLM
        A paper's table of PEPITA for DistilBERT.
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
        precision=precision,
        **refuse_unknown(sizes, OWN),
    )
    return written(found, wanted)
