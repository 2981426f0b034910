"""`learncost fit MODEL --ram 256MB`: which learning procedures fit a device's memory, and what to change."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from learncost.faces.flags import Bytes, Name, Number, Procedures, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.memory_fit import Fit
from learncost.ledger.memory_fit import fit as compute
from learncost.ledger.memory_lengths import Lengths

OWN = (
    "ram",
    "budget",
    "flash",
    "procedure",
    "procedures",
    "seq-len",
    "target-len",
    "optimizer",
    "dtype",
    "precision",
    "plan",
    "engine",
    "module",
    "train",
    "train-layers",
    "lora",
    "lora-rank",
    "lora-alpha",
    "format",
    "json",
    "help",
)


def fit(
    model: str,
    /,
    *,
    ram: Annotated[str, Parameter(name=["--ram", "--budget"], metavar="BYTES")],
    flash: Bytes | None = None,
    procedures: Procedures = "inference,bp,recompute,pepita,mempepita",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    optimizer: Name | None = None,
    dtype: Name | None = None,
    precision: Name | None = None,
    plan: Name | None = None,
    engine: Name = "",
    module: Name = "",
    train: Name | None = None,
    train_layers: Name | None = None,
    lora: Name | None = None,
    lora_rank: Number | None = None,
    lora_alpha: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Fit | Lengths | str:
    """Which learning procedures fit a device's memory, how large a batch does, and what to change where none does.

    Parameters
    ----------
    ram
        How many bytes there are, as 24GB or 24GiB. It is the same as --budget of learncost memory.
    flash
        How many bytes of flash there are, where frozen weights lie. Without it they lie in RAM.
    procedures
        What is tried, with commas between: inference (no learning), bp, recompute, pepita, mempepita, head-only.
    seq_len
        How many tokens are in a sequence. Several with commas between, as 512,1024,2048, show what fits at each. The
        default is the number of positions that the model has.
    optimizer
        adamw (the default), sgd, momentum; or adam8bit, adafactor, lion, muon, whose state alone is known.
    plan
        This plan alone (learncost list plans). The default is to try several.
    engine
        Who runs the step, as in learncost memory. The default is autograd, PyTorch's, where it has an answer, and
        table, as the step is written, elsewhere: under a plan, with --flash, in int8.
    module
        Whose code autograd trains: transformers (the default) or plain, as in learncost memory.
    format
        How the result is written: table, json or md.

    Examples
    --------
    learncost fit gpt2 --ram 8GB
        Which procedures fit in 8 GB, and how large a batch.
    learncost fit gpt2 --ram 256MB --flash 1GB --seq-len 128
        A small device whose frozen weights lie in flash.
    learncost fit qwen2.5-7b --precision qlora --lora all-linear --seq-len 1024,4096,16384 --ram 24GB
        What fits a GPU at which length, with which checkpointing.
    """
    wanted = chosen(format, json, ("table", "json", "md"))
    found = compute(
        model,
        ram,
        flash,
        procedures,
        seq_len,
        optimizer,
        dtype,
        precision=precision,
        plan=plan,
        engine=engine,
        module=module,
        train=train,
        train_layers=train_layers,
        lora=lora,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        target_len=target_len,
        **refuse_unknown(sizes, OWN),
    )
    return written(found, wanted)
