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
    optimizer: Name = "sgd",
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
    model
        A preset (learncost list models), a path to a config.json or to its folder, - for a config on standard input,
        or encoder, decoder, encoder-decoder with all sizes as flags.
    ram
        Bytes of RAM, as 256MB or 512KiB.
    flash
        Bytes of flash, where frozen weights lie; without it they lie in RAM.
    procedure
        One or several with commas between: inference (no learning), bp, recompute, pepita, mempepita, head-only.
    seq_len
        Tokens in a sequence; by default the positions that the model has.
    optimizer
        sgd, momentum, adamw, adam8bit, adafactor, lion or muon.
    dtype
        fp32, fp64; bf16, fp16, fp8 with fp32 master weights; int8.
    plan
        This plan alone (learncost list plans); by default several are tried.
    engine
        numpy: exactly as NumPy executes the step, with its temporaries; by default as the step's table says.
    train
        What learns: all, none, head, embeddings, biases, or names of weights and modules, with commas between.
    train_layers
        Which blocks learn, counted from 0: 10-11, or 0,2,5-7, or "last 2".
    lora
        Projections with a low-rank path, all else frozen: q_proj,v_proj, attention, all-linear.
    lora_rank
        Of these paths; by default 8.
    format
        table, json or md.
    json
        Short for --format json.
    sizes
        Any size or setting of the model, in any accepted spelling. learncost list sizes shows them.
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
