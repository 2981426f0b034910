"""`learncost fit MODEL --ram 256MB`: which learning procedures fit a device's memory, and what to change."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.memory_fit import Fit
from learncost.ledger.memory_fit import fit as compute

OWN = (
    "ram",
    "flash",
    "procedure",
    "seq-len",
    "optimizer",
    "dtype",
    "plan",
    "engine",
    "train",
    "train-layers",
    "lora",
    "lora-rank",
    "format",
    "json",
    "help",
)


def fit(
    model: str,
    /,
    *,
    ram: Number,
    flash: Number | None = None,
    procedure: Name = "inference,bp,recompute,pepita,mempepita",
    seq_len: Number | None = None,
    optimizer: Name | None = None,
    dtype: Name = "fp32",
    plan: Name | None = None,
    engine: Name = "",
    train: Name | None = None,
    train_layers: Name | None = None,
    lora: Name | None = None,
    lora_rank: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Fit | str:
    """Which learning procedures fit a device's memory, how large a batch does, and what to change where none does.

    Parameters
    ----------
    ram
        How many bytes of RAM there are, as 256MB or 512KiB.
    flash
        How many bytes of flash there are, where frozen weights lie. Without it they lie in RAM.
    procedure
        What is tried, with commas between: inference (no learning), bp, recompute, pepita, mempepita, head-only.
    optimizer
        adamw (the default), sgd, momentum; or adam8bit, adafactor, lion, muon, whose state alone is known.
    dtype
        fp32, fp64; bf16, fp16, fp8 with fp32 master weights; int8.
    plan
        This plan alone (learncost list plans). The default is to try several.
    engine
        numpy: exactly as NumPy executes the step, with its temporaries; by default as the step's table says.
    format
        How the result is written: table, json or md.

    Examples
    --------
    learncost fit gpt2 --ram 8GB
        Which procedures fit in 8 GB, and how large a batch.
    learncost fit gpt2 --ram 256MB --flash 1GB --seq-len 128
        A small device whose frozen weights lie in flash.
    """
    wanted = chosen(format, json, ("table", "json", "md"))
    found = compute(
        model,
        ram,
        flash,
        procedure,
        seq_len,
        optimizer,
        dtype,
        plan=plan,
        engine=engine,
        train=train,
        train_layers=train_layers,
        lora=lora,
        lora_rank=lora_rank,
        **refuse_unknown(sizes, OWN),
    )
    return written(found, wanted, {"md": lambda fit: fit.sheet.markdown()})
