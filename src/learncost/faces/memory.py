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
    optimizer: Name = "adamw",
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
    model
        A preset (learncost list models), a path to a config.json or to its folder, - for a config on standard input,
        or encoder, decoder, encoder-decoder with all sizes as flags.
    procedure
        bp, recompute, pepita, mempepita, or head-only, a control.
    batch_size
        Sequences in a step.
    seq_len
        Tokens in a sequence, the encoder's where there is a decoder too; by default the positions that the model has.
    target_len
        Tokens in a sequence of the decoder of an encoder-decoder; by default --seq-len.
    optimizer
        sgd, momentum, adamw, adam8bit, adafactor, lion or muon.
    dropout
        A probability; above 0 the masks are there.
    dtype
        fp32, fp64; bf16, fp16, fp8 with fp32 master weights; int8.
    plan
        Rewritings of the step, with commas between: head,at-once,recompute=gelu+norm (learncost list plans); auto: the
        planner's, and what --engine torch takes where it is left out.
    accumulate
        Microbatches that the batch is cut into.
    budget
        Bytes that there are, as 8GB or 256MiB: says the largest batch and the longest sequence that fit.
    engine
        Whose step: numpy, torch (in place where it can be) or torch-operators, which run this package's; autograd,
        which trains a plain module of PyTorch with AdamW fused, autograd-foreach or autograd-for-loop; by default
        nobody's: as the step's table says.
    train
        What learns: all, none, head, embeddings, biases, or names of weights and modules, with commas between.
    train_layers
        Which blocks learn, or have low-rank paths, counted from 0: 10-11, or 0,2,5-7, or "last 2".
    lora
        Projections with a low-rank path, all else frozen: q_proj,v_proj, attention, all-linear.
    lora_rank
        Of these paths; by default 8.
    lora_alpha
        The paths' result is scaled by this over the rank; by default 16.
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
