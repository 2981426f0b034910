"""`learncost cost MODEL`: the exact cost of one training step."""

from __future__ import annotations

from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown, written
from learncost.ledger import show
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
    optimizer: Name = "sgd",
    dropout: Number = "0",
    dtype: Name = "fp32",
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
    model
        A preset (learncost list models), a path to a config.json or to its folder, - for a config on standard input,
        or encoder, decoder, encoder-decoder with all sizes as flags.
    procedure
        bp, recompute, pepita, mempepita, or head-only, a control; of inference prefill or decode.
    price_book
        What one operation costs: run, matmul, paper, palm or another (learncost list price-books).
    batch_size
        Sequences in a step.
    seq_len
        Tokens in a sequence, the encoder's where there is a decoder too; by default the positions that the model has.
        With decode the new tokens, by default 1.
    target_len
        Tokens in a sequence of the decoder of an encoder-decoder; by default --seq-len, with decode 1.
    context
        With decode the tokens that the cache holds before; by default as many as the model has positions for.
    tokens
        Tokens of a whole training, such as 3e11: adds its steps and its total.
    optimizer
        sgd, momentum or adamw.
    dropout
        A probability; above 0 the masks' products are charged.
    dtype
        Of what is moved, for the bytes: fp64, fp32, bf16, fp16, int8 or fp8.
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
    on
        A device, for the time of a step, what bounds every line, and the energy where the power is known: here (after
        learncost calibrate), a file of learncost calibrate --out, or a published one (learncost list devices). Under a
        plan the time is that of the package's own kernels, else of PyTorch's operators one by one.
    by
        What a row is: layer, macro-operation, equation or kind (linear, attention, elementwise).
    format
        table, json, csv, md or latex.
    json
        Short for --format json.
    sizes
        Any size or setting of the model, in any accepted spelling: --hidden-size 1024, --n_embd=1024, --d-model 1024,
        --activation relu, --architecture BertForMaskedLM. learncost list sizes shows them.
    """
    wanted = chosen(format, json, ("table", "json", "csv", "md", "latex"))
    device = None
    if on is not None:
        from learncost.hardware.rates import rates  # imported where it is needed: start-up counts

        device = rates(on, dtype, "kernels" if plan else "operators")
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
        on=device,
        **refuse_unknown(sizes, OWN),
    )
    writers = {"csv": show.as_csv, "md": show.as_markdown, "latex": show.as_latex}
    return written(found, wanted, writers)
