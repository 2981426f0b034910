"""`learncost memory MODEL`: the peak of one training step, who makes it, and what fits a budget."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from learncost.faces.flags import Name, Number, Procedures, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.memory import Memory
from learncost.ledger.memory_several import Several, several

OWN = (
    "procedure",
    "procedures",
    "batch-size",
    "seq-len",
    "target-len",
    "optimizer",
    "dropout",
    "dtype",
    "precision",
    "plan",
    "accumulate",
    "budget",
    "ram",
    "engine",
    "module",
    "mode",
    "train",
    "train-layers",
    "lora",
    "lora-rank",
    "lora-alpha",
    "format",
    "json",
    "help",
)


def memory(
    model: str,
    /,
    *,
    procedures: Procedures = "bp",
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    optimizer: Name | None = None,
    dropout: Number = "0",
    dtype: Name | None = None,
    precision: Name | None = None,
    plan: Name | None = None,
    accumulate: Number = "1",
    budget: Annotated[str | None, Parameter(name=["--budget", "--ram"], metavar="BYTES")] = None,
    engine: Name = "",
    module: Name = "",
    mode: Name = "paper",
    train: Name | None = None,
    train_layers: Name | None = None,
    lora: Name | None = None,
    lora_rank: Number | None = None,
    lora_alpha: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Memory | Several | str:
    """The memory of one training step, exactly: the peak, the arrays that make it, and what fits a budget.

    Parameters
    ----------
    procedures
        How the model learns: bp (backpropagation), recompute, pepita, mempepita, or head-only, a control. Several with
        commas between stand side by side.
    optimizer
        adamw (the default), sgd, momentum; or adam8bit, adafactor, lion, muon, whose state alone is known.
    dropout
        The probability of dropout. Above 0 the masks are there.
    plan
        Rewritings of the step, with commas between: head,at-once,recompute=gelu+norm (learncost list plans); auto: the
        planner's, and what --engine torch takes where it is left out.
    accumulate
        Into how many microbatches the batch is cut.
    budget
        How many bytes there are, as 8GB or 256MiB. The largest batch and the longest sequence that fit are then shown.
    engine
        Who runs the step: autograd, which is PyTorch's with AdamW fused, autograd-foreach or autograd-for-loop; table,
        as the step is written; numpy, torch (in place where it can be) or torch-operators, which run this package's
        programs. The default is autograd where it has an answer, else table. Several with commas between stand side by
        side, with what makes the difference.
    module
        Whose code autograd trains: transformers (the default), transformers-reentrant, whose checkpoints are the older
        ones (use_reentrant=True), or plain, which is written as for speed.
    mode
        How pepita and mempepita update: paper (the default), or stable, which learncost train runs.
    format
        How the result is written: table, json or md.

    Examples
    --------
    learncost memory gpt2 --batch-size 4
        The peak of a training step of four sequences, and what makes it.
    learncost memory gpt2 --engine table,autograd,numpy
        What the step takes as three runners execute it, and which rules make the difference.
    learncost memory gpt2 --budget 8GB
        The largest batch and the longest sequence that fit in 8 GB.
    """
    wanted = chosen(format, json, ("table", "json", "md"))
    found = several(
        model,
        procedures,
        batch_size,
        seq_len,
        target_len,
        optimizer,
        dropout,
        dtype,
        precision=precision,
        plan=plan,
        accumulate=accumulate,
        budget=budget,
        engine=engine,
        module=module,
        mode=mode,
        train=train,
        train_layers=train_layers,
        lora=lora,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        **refuse_unknown(sizes, OWN),
    )
    return written(found, wanted)
