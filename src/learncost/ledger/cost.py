"""The cost ledger of one training step: what goes in is a configuration, what comes out are counts by row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from learncost.equation.errors import InputError
from learncost.equation.precision import either
from learncost.ledger.record import Cost
from learncost.ledger.run import BY, adaptation_of, check_choice, prepare
from learncost.models.configuration import Configuration
from learncost.procedures.procedure import INFERENCE
from learncost.procedures.procedure import procedure as find_procedure
from learncost.readings.price import Book

if TYPE_CHECKING:
    from learncost.devices.device import Device
    from learncost.readings.time import Rates


def cost(
    model: str | Configuration,
    procedure: str = "bp",
    price_book: str | Book = "run",
    batch_size: int | str = 1,
    seq_len: int | str | None = None,
    target_len: int | str | None = None,
    tokens: int | str | None = None,
    optimizer: str | None = None,
    dropout: float | str = 0.0,
    dtype: str | None = None,
    by: str = "layer",
    context: int | str | None = None,
    train: object = None,
    train_layers: object = None,
    lora: object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    plan: str | None = None,
    on: str | Device | Rates | None = None,
    precision: str | None = None,
    **sizes: Any,
) -> Cost:
    """The exact cost of one training step, or of one step of inference.

    Every count is a whole number and follows the price book; one MACC is two FLOPs. Numbers may be given as text, as on
    the command line.

    Parameters
    ----------
    model
        A preset (`learncost list models`), the path of a `config.json` or of its folder, or `encoder`, `decoder` or
        `encoder-decoder` with all sizes as arguments.
    procedure
        How the model learns: bp, recompute, pepita, mempepita, or head-only. For inference prefill or decode.
    price_book
        What is counted and how: run, matmul, paper, causal-half, palm and others (`learncost list price-books`).
    batch_size
        Sequences in a step.
    seq_len
        Tokens in a sequence. With an encoder and a decoder, the encoder's length N. By default what the model allows.
    target_len
        The decoder's length M, where there is an encoder too.
    tokens
        Tokens of a whole training run; the result then has the whole run beside one step.
    optimizer
        adamw, sgd or momentum. The default is adamw; under the paper's books it is sgd, as the paper has it.
    dropout
        The probability of a zero. Above 0 the products with the masks are counted.
    dtype
        The same as `precision`.
    by
        What a row of the result stands for: layer, macro-operation, equation or kind.
    context
        For decode: how many tokens of the sequence are in the cache already. `seq_len` is then the number of new
        tokens.
    train
        What learns: all, none, head, embeddings, biases, or names of weights and modules with commas between.
    train_layers
        Which blocks learn, or have low-rank paths: 10-11, 0,2,5-7, first 2, last 2.
    lora
        The projections that get a low-rank path: names of modules or weights, attention, feed_forward, all-linear.
    lora_rank
        The rank of these paths, 8 by default.
    lora_alpha
        Their result is multiplied by alpha over rank; 16 by default.
    plan
        Rewritings of the step, such as head,at-once,recompute=gelu+norm (`learncost list plans`).
    on
        The device whose time is wanted: a name such as "A100-SXM-80GB", "here" after `learncost calibrate`, or what
        `lc.rates` gave.
    precision
        Which type each role has: fp32, bf16 and others (`learncost list precisions`). Bytes depend on it, operations do
        not. By default fp32; with a device, what one trains in on it.
    sizes
        Any size of the model, in the spelling of Hugging Face, of nanoGPT or of the paper.

    Returns
    -------
    Cost
        The ledger of the step.

    Raises
    ------
    InputError
        A name, a size or a file that is not known or does not fit, in one line.

    Examples
    --------
    >>> step = lc.cost("gpt2", seq_len=1024, optimizer="adamw")
    >>> step.total.maccs, step.total.flops
    (437682439168, 880690382336)
    >>> step.parameters
    124439808
    >>> lc.cost("gpt2", "decode", context=1000, n_layer=6).total.flops
    181299556
    """
    find_procedure(procedure, INFERENCE)
    kind = None if dtype is None and precision is None else either(dtype, precision)
    wanted = adaptation_of(train, train_layers, lora, lora_rank, lora_alpha, kind=kind)
    rates = None
    if on is not None:
        from learncost.devices.rates import rates as attained  # imported where it is needed: start-up counts

        rates = attained(on, kind.values if kind else None, "kernels" if plan else "operators")
    named = kind.name if kind else (rates.dtype if rates else "") or "fp32"
    if procedure in INFERENCE:
        from learncost.ledger.inference import cost_of_inference  # imported where it is needed: start-up counts

        check_choice("by", by, BY)
        if wanted is not None:
            raise InputError(f"train and lora say what a training step changes; {procedure} changes nothing")
        if plan:
            raise InputError(f"a plan rewrites a training step; {procedure} is none")
        training = {"tokens": tokens, "optimizer": optimizer, "dropout": dropout}
        lengths = {"batch_size": batch_size, "seq_len": seq_len, "target_len": target_len, "context": context}
        served = cost_of_inference(model, INFERENCE[procedure], price_book, lengths, training, named, by, sizes, rates)
        return replace(served, dtype=named)
    run = prepare(
        model,
        price_book,
        batch_size,
        seq_len,
        target_len,
        tokens,
        optimizer,
        dropout,
        named,
        sizes,
        (procedure,),
        wanted,
        plan,
    )
    check_choice("by", by, BY)
    if context is not None:
        raise InputError(f"context goes with the procedure decode: {procedure} has no cache")
    found = run.cost(procedure, run.book, by, rates)
    return replace(found, dtype=named)
