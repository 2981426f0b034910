"""The cost ledger of one training step, from a configuration to counts by row."""

from __future__ import annotations

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError, counted, shown
from learncost.procedures.procedure import INFERENCE
from learncost.procedures.procedure import procedure as find_procedure
from learncost.reports.record import Cost
from learncost.reports.request import OF_KERNELS, ON_DEVICE, OPERATORS, Request, takes_request
from learncost.reports.rows import BY, by_module
from learncost.reports.run import check_choice, prepare


@takes_request(
    "model procedure price_book batch_size seq_len target_len tokens optimizer dropout dtype context train "
    "train_layers lora lora_rank lora_alpha dora plan on precision mesh place placement schedule microbatch chunks "
    f"page_size engine accumulate offload task teacher checkpoint_every | {ON_DEVICE} no_sync communication_buffers"
)
def cost(request: Request, by: str = "layer", depth: int | str | None = None) -> Cost:
    """The exact MACCs, FLOPs, bytes and parameters of a training step or of inference, by layer and macro-operation.

    Counts are whole numbers and follow the price book; one MACC is two FLOPs.

    Parameters
    ----------
    procedure
        The learning procedure of the step: {choices} (`learncost list procedures`); or prefill (forward pass of the
        prompt), decode (one new token), or inference (forward pass of a model without a KV cache).
    seq_len
        Tokens in a sequence; in the encoder's sequence for an encoder-decoder. The default is the model's context, at
        most 4,096. For decode: the number of new tokens, 1 by default.
    target_len
        Tokens in a decoder sequence of an encoder-decoder. The default is `seq_len`, and 1 for decode.
    by
        Rows of the table: layer, macro-operation, equation, kind (linear, attention, elementwise), or module for
        imported modules.
    depth
        With `by` module: the number of levels of the module path in a row; 2 merges all of encoder.layers.
    on
        The device for predicted time, bounds and energy: here (after learncost calibrate), a file of learncost
        calibrate `out`, or a published device (`learncost list devices`). The time is that of the step as `engine` runs
        it, with fused attention (`plan` none: without it), which changes no count. With `mesh`: a cluster (`learncost
        list clusters`), a file that describes one, or its device; the time of collectives is included.

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
    learncost cost llama-3-8b --procedure decode --mesh tp=4 --placement megatron --on DGX-H100 --batch-size 8
        The time of an output token and the tokens per second over four devices, with the KV cache of each.
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
    asked, procedure = request, request.procedure
    find_procedure(procedure, INFERENCE)
    if depth is not None and by != "module":
        raise InputError(f"--depth requires --by module, not {by}")
    check_choice("by", by, BY)
    counts_alone, trains = request.on is None and not request.mesh, bool(request.mesh) and request.is_training
    kind = request.kind(counts_alone, trains) if request.is_typed else request.kind()
    cluster, rates = None, None if request.mesh else request.rates(kind)
    if request.on is not None and request.mesh:
        from learncost.devices.cluster import cluster as find_cluster  # imported where needed: start-up counts
        from learncost.devices.sustained import sustained

        cluster = find_cluster(request.on)
        rates = sustained(cluster.device, kind.values, request.timed_as)
    request = request.in_precision(kind.name)
    if request.is_training:
        request.check_without_cache(procedure)
    has_kernels: object = False
    if procedure in INFERENCE:
        from learncost.reports.inference import cost_of_inference, served  # imported where needed: start-up counts

        answer = cost_of_inference(served(request, rates, cluster), INFERENCE[procedure], by)
    elif request.is_sharded:
        from learncost.reports.mesh_cost import over_mesh  # imported where it is needed: start-up counts

        run, several = over_mesh(request)
        where = (cluster, rates) if cluster and rates else None
        plan = run.executed(procedure, run.book, rates).plan if rates else ""
        plan = plan if plan != run.plan else ""
        answer = run.cost_over(procedure, run.book, by, several, where, plan)
        if answer.over_time and several.device not in (None, answer.over_time.busiest):
            run, several = over_mesh(request, answer.over_time.busiest)  # whose time is that of the step
            answer = run.cost_over(procedure, run.book, by, several, where, plan)
        has_kernels = where and several.device is None and (request.timed_by == "eager" or request.module)
    else:
        run = prepare(request)
        answer = run.cost(procedure, run.book, by, rates)
        asked_for = request.timed_by in OF_KERNELS or request.module or request.engine
        has_kernels = rates and answer._built and (answer._built.configuration.layer or asked_for)
    if has_kernels:
        from learncost.reports.recorded import with_kernels  # imported where it is needed: start-up counts

        answer = with_kernels(answer, request, cluster)
    parts = counted(request.microbatches) or 0
    if request.is_training and parts != 1 and not request.is_sharded:
        if not parts or answer.batch_size % parts:
            wrong = parts or shown(request.accumulate)
            raise InputError(f"accumulate must be a divisor of the batch size {answer.batch_size}, not {wrong}")
        more, split = ("", " time and") if answer.recorded else (" and time", "")
        whole = f"counts{more} are of the undivided batch,{split} memory of {parts:,} microbatches"
        answer = replace(answer, counted=f"{answer.counted}; {whole}")
    if f"{request.checkpoint_every}" != "1":
        if request.is_training and "recompute" not in f"{procedure} {request.plan}":
            raise InputError("--checkpoint-every requires --procedure recompute")
        if request.checkpoint_every == OPERATORS:
            counted_more = "counts and time are with all of every block recomputed, memory as asked"
            answer = replace(answer, counted=f"{answer.counted}; {counted_more}")
    answer = replace(answer, dtype=kind.name, _request=asked)
    if request.engine and answer.over_time and answer.memory and answer.memory.unavailable:
        raise InputError(answer.memory.unavailable)
    return by_module(answer, depth) if by == "module" else answer
