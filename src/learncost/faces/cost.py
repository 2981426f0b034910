"""`learncost cost MODEL`: the exact cost of one training step."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger.cost import cost as compute
from learncost.ledger.record import Cost

OWN = (
    "procedure",
    "price-book",
    "batch-size",
    "seq-len",
    "target-len",
    "context",
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
    "on",
    "by",
    "format",
    "json",
    "help",
)


def cost(
    model: str,
    /,
    *,
    procedure: Name = "bp",
    price_book: Name = "run",
    batch_size: Number = "1",
    seq_len: Number | None = None,
    target_len: Number | None = None,
    context: Number | None = None,
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
    on: Name | None = None,
    by: Name = "layer",
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Cost | str:
    """MACCs, FLOPs, bytes and parameters of a training step or of inference, exactly, by layer and macro-operation.

    Parameters
    ----------
    procedure
        What the step is: learning by bp (backpropagation), recompute, pepita, mempepita or the control head-only;
        inference as prefill (the prompt's pass) or decode (one new token).
    seq_len
        How many tokens are in a sequence, in the encoder's where there is a decoder too. The default is the number of
        positions that the model has. With decode it is the number of new tokens, and the default is 1.
    target_len
        How many tokens are in a sequence of the decoder of an encoder-decoder. The default is --seq-len, and 1 with
        decode.
    context
        With decode, how many tokens the cache holds before the step. The default is as many as the model has positions
        for.
    precision
        Which type each role has, for the bytes: {precisions} (learncost list precisions). The default is fp32; with
        --on a published device it is what one trains in on it: bf16, fp16 or fp32, the first that it has.
    on
        The device whose time is told, with what bounds every line and the energy where the power is known: here (after
        learncost calibrate), a file of learncost calibrate --out, or a published device (learncost list devices). Under
        a plan it is the time of the package's own kernels, else of PyTorch's operators one by one.
    by
        What a row of the table is: layer, macro-operation, equation, or kind (linear, attention, elementwise).
    format
        How the result is written: table, json, csv, md or latex.

    Examples
    --------
    learncost cost gpt2
        What one training step of GPT-2 costs, layer by layer.
    learncost cost llama-2-7b --lora q_proj,v_proj --seq-len 4096
        The same for LoRA, which trains two projections of each block.
    learncost cost llama-3-8b --procedure decode --context 8191 --dtype bf16
        What one new token costs, with 8,191 tokens in the cache.
    learncost cost ./config.json --json
        The model of a Hugging Face config.json, for other programs.
    """
    wanted = chosen(format, json, ("table", "json", "csv", "md", "latex"))
    found = compute(
        model,
        procedure,
        price_book,
        batch_size,
        seq_len,
        target_len,
        tokens,
        optimizer,
        dropout,
        dtype,
        by,
        context,
        train=train,
        train_layers=train_layers,
        lora=lora,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        plan=plan,
        on=on,
        precision=precision,
        **refuse_unknown(sizes, OWN),
    )
    return written(found, wanted)
