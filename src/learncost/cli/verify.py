"""`learncost verify [MODEL]`: run tables at small sizes and compare them with independent results."""

from __future__ import annotations

from typing import Any, cast

from learncost.ir.dataclass import fields, replace
from learncost.ir.errors import InputError
from learncost.layers.layer import Layer, shipped
from learncost.models.argument import layer_or_model
from learncost.models.tables import RUN
from learncost.reports.request import ADAPTING, Request, takes_request
from learncost.reports.run import check_probability, lengths_of
from learncost.verification.report import VerificationReport
from learncost.verification.verify import verify as compute

FEW = 20
"""Comparisons that are shown one by one unasked."""


@takes_request(
    "model / * every engine plan procedure optimizer batch_size seq_len mesh place placement precision dropout train "
    "train_layers lora lora_rank lora_alpha dora",
    **dict.fromkeys(("model", "engine", "procedure", "dropout")),
)
def verify(request: Request, *, every: bool = False) -> VerificationReport:
    """Verify counts and gradients by running the tables; exit code 1 if a check fails.

    Compares, at small and pairwise different sizes: values against independent implementations, gradients by
    complex-step or finite differences, executed operation counts against predicted ones (price book run, line by line),
    and the explicit Jacobian against the closed form. If PyTorch or JAX is installed: values and gradients against its
    autograd, and FLOPs against PyTorch's FlopCounterMode. For a model also a step of every procedure with every
    optimizer, MEMPEPITA against PEPITA bit for bit, and other known identities; `procedure` selects some.

    For an imported module, FILE.py:NAME: runs the module on random inputs at two sizes, and compares outputs,
    gradients, FlopCounterMode's counts, buffers and inputs after the call with those of the table.

    With --mesh: compares a step over many devices (one thread each) with the step on one device: loss, gradients, new
    weights and states in fp64, and the bytes sent with those predicted.

    With --engine: compares executed operations with priced ones, line by line: a step of a model; or the emitted passes
    of a layer, or of all layers, with their values.

    Parameters
    ----------
    model
        A model, as in learncost cost, a layer, or a file in the notation. By default every operator and every layer is
        verified.
    every
        Print one line for each comparison, even if there are hundreds.
    engine
        Check what an engine executes: torch, jax or c99. c99 is the program of learncost emit, against NumPy, its
        price, its memory layout and the C99 standard.
    plan
        With `engine` torch: the plan of the step, as flash,fused. The default is the planner's choice.
    procedure
        The learning procedure: {choices}. With `engine` and `mesh` one procedure, which is run (default bp); otherwise
        a comma-separated list of procedures to verify.
    optimizer
        With `engine`: the optimizer: adamw (the default), sgd or momentum.
    batch_size
        With `engine`: sequences in the step. The default is 2.
    seq_len
        With `engine`: tokens in a sequence. The default is 80.
    placement
        With `mesh`: named sharding rules: {choices}; or all, which has its own meshes.
    precision
        With `engine` c99: the type of frozen matrices: int8-frozen-fp32.
    dropout
        With `engine` c99: the dropout probability.
    sizes
        With `engine`: any size or setting of the model, such as `num_hidden_layers` 2.

    Commands
    --------
    learncost verify attention
        Verify the counts and gradients of one layer.
    learncost verify gpt2 --procedure skip,local
        Verify two learning procedures: their counts, and their known identities.
    learncost verify gpt2 --mesh dp=2,tp=2 --placement fsdp,megatron-sp
        Run a step on four devices and compare it with the step on one.
    learncost verify gpt2 --engine torch --num-hidden-layers 2
        Compare executed operations of PyTorch with the priced ones.
    """
    model = cast("str | Layer | None", request.model)
    engine = cast("str | None", request.engine)
    mesh, place, placement = request.mesh, request.place, request.placement
    sizes = dict(request.sizes)
    settings = _given(request, "plan", "procedure", "optimizer", "batch_size", "seq_len")
    if engine is None and (mesh or place or placement):
        report = _of_placement(model, mesh, place, placement, settings, sizes)
        return report if every or model is not None else replace(report, summed=True)
    if mesh or place or placement:
        raise InputError("--mesh cannot be combined with --engine: devices are threads on NumPy")
    learned = _given(request, "precision", "dropout", *ADAPTING)
    if "dropout" in learned:
        learned["dropout"] = check_probability("dropout", learned["dropout"])
    if learned and engine != "c99":
        raise InputError(f"--{next(iter(learned)).replace('_', '-')} requires --engine c99")
    if engine is None and request.procedure and not sizes and len(settings) == 1:
        report = compute(model, request.procedure)
        return report if every or len(report.checks) <= FEW else replace(report, summed=True)
    if engine is None and (settings or sizes):
        named = next(iter((*sizes, *settings))).replace("_", "-")
        raise InputError(f"--{named} requires --engine torch, jax or c99: tables are verified at fixed small sizes")
    if engine is not None:  # a table's letters are said as `--B 2 --M 8`
        asked: dict[str, Any] = {name: settings.get(name) for name in RUN}
        lengths, sizes = lengths_of(Request("", sizes=sizes, **asked))
        settings |= lengths
        of_table = model is not None and isinstance(layer_or_model(model), Layer)
        if engine != "c99" and "target_len" in lengths and not of_table:
            raise InputError("--target-len requires --engine c99")
    if engine == "c99":
        from learncost.cli.emit_c99 import FirmwareOptions
        from learncost.cli.verified_c99 import verify_c99

        settings = _lengths(settings)
        of_program = {each.name: settings.pop(each.name) for each in fields(FirmwareOptions) if each.name in settings}
        return verify_c99(model, FirmwareOptions(**of_program), **settings, learned=learned, sizes=sizes)
    report = compute(model) if engine is None else _of_engine(model, engine, settings, sizes)
    return report if every or model is not None else replace(report, summed=True)


def _given(request: Request, *names: str) -> dict[str, Any]:
    """Return the fields of a request that are given, by name."""
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def _of_placement(
    model: str | Layer | None,
    mesh: str | None,
    place: str | None,
    placement: str | None,
    settings: dict[str, Any],
    sizes: dict[str, Any],
) -> VerificationReport:
    """Verify a step over many devices, at small divisible sizes; lengths cannot be given."""
    from learncost.models.configuration import configure
    from learncost.models.model import build
    from learncost.verification.placements import verify_placements

    if length := next((name for name in ("batch_size", "seq_len") if name in settings), None):
        raise InputError(
            f"--{length.replace('_', '-')} cannot be combined with --mesh, which uses small divisible sizes"
        )
    if sizes and model is None:
        raise InputError(f"--{next(iter(sizes)).replace('_', '-')} requires a model")
    named = None if model is None else layer_or_model(model)
    if isinstance(named, Layer) and named.name in shipped():
        raise InputError(f"--mesh requires a model; {model} is a layer")
    built = None if model is None else build(configure(model, sizes))
    asked = {name: str(value) for name, value in settings.items()}
    checks = verify_placements(built, mesh, place, placement, **asked)
    over = f" over {mesh}" if mesh else ""
    subject = named.name if isinstance(named, Layer) else named or "every family"
    return VerificationReport(f"verification of {subject}{over}, a thread for each device", tuple(checks))


def _of_engine(
    model: str | Layer | None, engine: str, settings: dict[str, Any], sizes: dict[str, Any]
) -> VerificationReport:
    """Return the report of an engine's executed operations; its libraries are imported only here."""
    from learncost.verification.engine_run import verify_engine

    if settings or sizes:
        flag = next(iter((*settings, *sizes))).replace("_", "-")
        if model is None:
            raise InputError(f"--{flag} requires a model")
        if isinstance(layer_or_model(model), Layer):
            raise InputError(f"--{flag} requires a model by its name: tables are run at fixed small sizes")
    return verify_engine(model, engine, **_lengths(settings), sizes=sizes)


def _lengths(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with lengths as integers."""
    from learncost.training.train import number

    lengths = {name: number(name, value, True) for name, value in settings.items() if name in ("batch_size", "seq_len")}
    return {**settings, **lengths}
