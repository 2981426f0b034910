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
    """The exact MACCs, FLOPs, bytes and parameters of a training step or of inference, by layer and macro-operation.

    Counts are whole numbers and follow the price book; one MACC is two FLOPs.

    Parameters
    ----------
    procedure
        The learning procedure of the step: {choices} (`learncost list procedures`); or inference: prefill (forward pass
        of the prompt) or decode (one new token).
    seq_len
        Tokens in a sequence; in the encoder's sequence for an encoder-decoder. The default is the model's number of
        positions. For decode: the number of new tokens, 1 by default.
    target_len
        Tokens in a decoder sequence of an encoder-decoder. The default is `seq_len`, and 1 for decode.
    by
        Rows of the table: layer, macro-operation, equation, kind (linear, attention, elementwise), or module for
        imported modules.
    depth
        With `by` module: the number of levels of the module path in a row; 2 merges all of encoder.layers.
    context
        For decode: tokens in the KV cache before the step. The default is the model's number of positions.
    on
        The device for predicted time, bounds and energy: here (after learncost calibrate), a file of learncost
        calibrate `out`, or a published device (`learncost list devices`). Under a plan the time is that of this
        package's kernels, otherwise that of PyTorch's operators one by one. With `mesh`: a cluster (`learncost list
        clusters`), a file that describes one, or its device; the time of collectives is included.
    precision
        Data type of weights, activations, gradients and optimizer states: {choices} (`learncost list precisions`). The
        default is fp32; for a published device in `on`, the first of bf16, fp16 and fp32 that it supports.

    Returns
    -------
    Cost
        The counts of the step, row by row.

    Raises
    ------
    InputError
        If a name, a size or a file is unknown or invalid, in one line.

    Commands
    --------
    learncost cost gpt2
        The cost of one training step of GPT-2, layer by layer.
    learncost cost llama-2-7b --lora q_proj,v_proj --seq-len 4096
        The same with LoRA on two projections of each block.
    learncost cost llama-3-8b --procedure decode --context 8191 --dtype bf16
        The cost of one new token with 8,191 tokens in the KV cache.
    learncost cost llama-3-8b --mesh dp=2,tp=4 --placement fsdp,megatron-sp --batch-size 8
        The computation and communication of each of eight devices.
    learncost cost llama-3-8b --mesh dp=2,tp=4 --placement zero-1,megatron-sp --on DGX-H100 --plan flash,fused
        The time of the step, with the waiting time for each link.
    learncost cost ./config.json --json
        A Hugging Face config.json as input, JSON as output.

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
        raise InputError(f"--depth requires --by module, not {by}")
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
            raise InputError(f"--train and --lora do not apply to inference ({procedure})")
        if plan:
            raise InputError(f"--plan does not apply to inference ({procedure})")
        if mesh or place or placement:
            raise InputError(
                f"multi-device inference is not supported (--mesh works for training steps, not {procedure})"
            )
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
        raise InputError(f"--context requires --procedure decode: {procedure} has no KV cache")
    answer = replace(run.cost(procedure, run.book, by, rates), dtype=type_name)
    return by_module(answer, depth) if by == "module" else answer
