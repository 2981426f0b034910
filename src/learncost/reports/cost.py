"""The cost ledger of one training step: what goes in is a configuration, what comes out are counts by row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from learncost.cost_models import Book
from learncost.ir.errors import InputError
from learncost.ir.precision import either
from learncost.layers.layer import Layer
from learncost.models.configuration import Configuration
from learncost.procedures.procedure import INFERENCE
from learncost.procedures.procedure import procedure as find_procedure
from learncost.reports.question import question
from learncost.reports.record import Cost
from learncost.reports.rows import BY, by_module
from learncost.reports.run import adaptation_of, check_choice, prepare

if TYPE_CHECKING:
    from learncost.devices.device import Device
    from learncost.timing import Rates


@question()
def cost(
    model: str | Configuration | Layer,
    procedure: str = "bp",
    price_book: str | Book = "run",
    batch_size: int | str | None = None,
    seq_len: int | str | None = None,
    target_len: int | str | None = None,
    tokens: int | str | None = None,
    optimizer: str | None = None,
    dropout: float | str = 0.0,
    dtype: str | None = None,
    by: str = "layer",
    depth: int | str | None = None,
    context: int | str | None = None,
    train: object = None,
    train_layers: object = None,
    lora: object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    plan: str | None = None,
    on: str | Device | Rates | None = None,
    precision: str | None = None,
    mesh: str | None = None,
    place: str | None = None,
    placement: str | None = None,
    **sizes: Any,
) -> Cost:
    """MACCs, FLOPs, bytes and parameters of a training step or of inference, exactly, by layer and macro-operation.


    Every count is a whole number and follows the price book; one MACC is two FLOPs.

    Parameters
    ----------
    procedure
        What the step is: learning by {choices} (`learncost list procedures`); inference as prefill (the prompt's pass)
        or decode (one new token).
    seq_len
        How many tokens are in a sequence, in the encoder's where there is a decoder too. The default is the number of
        positions that the model has. With decode it is the number of new tokens, and the default is 1.
    target_len
        How many tokens are in a sequence of the decoder of an encoder-decoder. The default is `seq_len`, and 1 with
        decode.
    by
        What a row of the table is: layer, macro-operation, equation, kind (linear, attention, elementwise), or module,
        where a table's lines say which module they are of.
    depth
        With `by` module, how many parts of a module's path a row has: 2 puts all of encoder.layers together.
    context
        With decode, how many tokens the cache holds before the step. The default is as many as the model has positions
        for.
    on
        The device whose time is told, with what bounds every line and the energy where the power is known: here (after
        learncost calibrate), a file of learncost calibrate `out`, or a published device (`learncost list devices`).
        Under a plan it is the time of the package's own kernels, else of PyTorch's operators one by one. With `mesh` a
        cluster (`learncost list clusters`), a file that describes one, or a device of one: the time of collectives over
        its links comes with it.
    precision
        Which type each role has, for the bytes: {choices} (`learncost list precisions`). The default is fp32; with
        `on` a published device it is what one trains in on it: bf16, fp16 or fp32, the first that it has.

    Returns
    -------
    Cost
        The ledger of the step.

    Raises
    ------
    InputError
        A name, a size or a file that is not known or does not fit, in one line.

    Commands
    --------
    learncost cost gpt2
        What one training step of GPT-2 costs, layer by layer.
    learncost cost llama-2-7b --lora q_proj,v_proj --seq-len 4096
        The same for LoRA, which trains two projections of each block.
    learncost cost llama-3-8b --procedure decode --context 8191 --dtype bf16
        What one new token costs, with 8,191 tokens in the cache.
    learncost cost llama-3-8b --mesh dp=2,tp=4 --placement fsdp,megatron-sp --batch-size 8
        What each of eight devices computes and sends.
    learncost cost llama-3-8b --mesh dp=2,tp=4 --placement zero-1,megatron-sp --on DGX-H100 --plan flash,fused
        How long the step takes, with what waits for which link.
    learncost cost ./config.json --json
        The model of a Hugging Face config.json, for other programs.

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
    if depth is not None and by != "module":
        raise InputError(f"depth is of module paths: give --by module with it, not {by}")
    counts_alone = on is None and not mesh
    kind = None if dtype is None and precision is None else either(dtype, precision, counts_alone=counts_alone)
    adapted = adaptation_of(train, train_layers, lora, lora_rank, lora_alpha, kind=kind)
    rates = cluster = None
    if on is not None:
        from learncost.devices.rates import rates as attained  # imported where it is needed: start-up counts

        engine = "kernels" if plan else "operators"
        if mesh:
            from learncost.devices.sustained import sustained
            from learncost.reports.mesh_time import cluster_of

            cluster = cluster_of(on)
            rates = sustained(cluster.device, kind.values if kind else cluster.device.trained_in, engine)
        else:
            rates = attained(on, kind.values if kind else None, engine)
    type_name = kind.name if kind else (rates.dtype if rates else "") or "fp32"
    if procedure in INFERENCE:
        from learncost.reports.inference import (  # imported where it is needed: start-up counts
            cost_of_inference,
            served,
        )

        check_choice("by", by, BY)
        if adapted is not None:
            raise InputError(f"train and lora say what a training step changes; {procedure} changes nothing")
        if plan:
            raise InputError(f"a plan rewrites a training step; {procedure} is none")
        if mesh or place or placement:
            raise InputError(f"a placement is of a training step; {procedure} is none")
        training = {"tokens": tokens, "optimizer": optimizer, "dropout": dropout}
        lengths = {"batch_size": batch_size, "seq_len": seq_len, "target_len": target_len, "context": context}
        inference = INFERENCE[procedure]
        priced = served(model, inference, price_book, lengths, training, type_name, sizes, rates)
        answer = replace(cost_of_inference(priced, inference, by), dtype=type_name)
        return by_module(answer, depth) if by == "module" else answer
    if mesh and batch_size is None:
        from learncost.reports.mesh_cost import whole_batch  # imported where it is needed: start-up counts

        batch_size = whole_batch(mesh, place, placement)
    run = prepare(
        model,
        price_book,
        batch_size,
        seq_len,
        target_len,
        tokens,
        optimizer,
        dropout,
        type_name,
        sizes,
        (procedure,),
        adapted,
        plan,
    )
    check_choice("by", by, BY)
    if mesh or place or placement:
        from learncost.reports.mesh_cost import over_mesh  # imported where it is needed: start-up counts

        several = over_mesh(run, procedure, kind or either(None, type_name), mesh, place, placement)
        where = (cluster, rates) if cluster and rates else None
        answer = replace(run.cost_over(procedure, run.book, by, several, where), dtype=type_name)
        return by_module(answer, depth) if by == "module" else answer
    if context is not None:
        raise InputError(f"context goes with the procedure decode: {procedure} has no cache")
    answer = replace(run.cost(procedure, run.book, by, rates), dtype=type_name)
    return by_module(answer, depth) if by == "module" else answer
