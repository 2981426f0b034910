"""`learncost memory MODEL`: the peak of one training step, who makes it, and what fits a budget."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.memory import Memory
from learncost.ledger.memory import memory as compute

OWN = (
    "procedure",
    "batch-size",
    "seq-len",
    "target-len",
    "optimizer",
    "dropout",
    "dtype",
    "plan",
    "accumulate",
    "budget",
    "engine",
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
    procedure: Name = "bp",
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    optimizer: Name | None = None,
    dropout: Number = "0",
    dtype: Name = "fp32",
    plan: Name | None = None,
    accumulate: Number = "1",
    budget: Number | None = None,
    engine: Name = "",
    train: Name | None = None,
    train_layers: Name | None = None,
    lora: Name | None = None,
    lora_rank: Number | None = None,
    lora_alpha: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Memory | str:
    """The memory of one training step, exactly: the peak, the arrays that make it, and what fits a budget.

    Parameters
    ----------
    optimizer
        adamw (the default), sgd, momentum; or adam8bit, adafactor, lion, muon, whose state alone is known.
    dropout
        The probability of dropout. Above 0 the masks are there.
    dtype
        fp32, fp64; bf16, fp16, fp8 with fp32 master weights; int8.
    plan
        Rewritings of the step, with commas between: head,at-once,recompute=gelu+norm (learncost list plans); auto: the
        planner's, and what --engine torch takes where it is left out.
    accumulate
        Into how many microbatches the batch is cut.
    budget
        How many bytes there are, as 8GB or 256MiB. The largest batch and the longest sequence that fit are then shown.
    engine
        Whose step: numpy, torch (in place where it can be) or torch-operators, which run this package's; autograd,
        which trains a plain module of PyTorch with AdamW fused, autograd-foreach or autograd-for-loop; by default
        nobody's: as the step's table says.
    format
        How the result is written: table, json or md.

    Examples
    --------
    learncost memory gpt2 --batch-size 4
        The peak of a training step of four sequences, and what makes it.
    learncost memory gpt2 --budget 8GB
        The largest batch and the longest sequence that fit in 8 GB.
    """
    wanted = chosen(format, json, ("table", "json", "md"))
    found = compute(
        model,
        procedure,
        batch_size,
        seq_len,
        target_len,
        optimizer,
        dropout,
        dtype,
        plan=plan,
        accumulate=accumulate,
        budget=budget,
        engine=engine,
        train=train,
        train_layers=train_layers,
        lora=lora,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        **refuse_unknown(sizes, OWN),
    )
    return written(found, wanted, {"md": _markdown})


def _markdown(found: Memory) -> str:
    from learncost.ledger.show_memory import sheet

    return sheet(found).markdown()
