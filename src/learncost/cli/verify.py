"""`learncost verify [MODEL]`: run the tables at small sizes and hold them to everything that can be asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from learncost.ir.errors import InputError
from learncost.layers.layer import Layer, shipped
from learncost.models.argument import layer_or_model
from learncost.reports.question import question
from learncost.reports.run import check_probability, lengths_of
from learncost.verification.report import VerificationReport
from learncost.verification.verify import verify as compute

FEW = 20
"""Comparisons that are shown one by one unasked."""


@question()
def verify(
    model: str | Layer | None = None,
    /,
    *,
    every: bool = False,
    engine: str | None = None,
    plan: str | None = None,
    procedure: str | None = None,
    optimizer: str | None = None,
    batch_size: int | str | None = None,
    seq_len: int | str | None = None,
    mesh: str | None = None,
    place: str | None = None,
    placement: str | None = None,
    precision: str | None = None,
    dropout: float | str | None = None,
    train: object = None,
    train_layers: object = None,
    lora: object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    **sizes: Any,
) -> VerificationReport:
    """Run the tables and prove the counts and the gradients; exit code 1 if anything fails.

    At small, pairwise different sizes: values with foreign implementations, gradients with complex steps or
    differences, the operations that arrays count with the price of the book run, line by line, the explicit Jacobian
    with the closed form; where PyTorch or JAX is installed, values and gradients with its autograd, and FLOPs with
    PyTorch's FlopCounterMode. For a model, a step of every procedure with every optimizer too, and MEMPEPITA with
    PEPITA bit for bit, and what else is known of each: with `procedure`, of some alone.

    For a module of a file of yours, FILE.py:NAME: the module itself is run on random inputs at two sizes, and outputs,
    gradients, products as FlopCounterMode counts them, buffers and inputs after the call are compared with the table's.

    With --mesh: the step over many devices, each of them a thread, with the step of one device: loss, gradients, new
    weights and states in fp64, and the bytes that are sent with those that are priced.

    With --engine: what an engine executes with what is priced, line by line. Of a model one step; of a layer, or of
    every layer without a name, the passes as they are emitted, their values too.

    Parameters
    ----------
    model
        A model, as learncost cost takes it, a layer, or a file in the notation. Without it, every word and every layer
        is verified.
    every
        Shows one line for each comparison, also where there are hundreds.
    engine
        Watches what an engine executes: torch or jax; or c99, the program that learncost emit writes, which is held to
        NumPy, to its price, to its layout and to C99.
    plan
        With `engine` torch, the rewritings of the step, as flash,fused. The default is the planner's choice.
    procedure
        How the model learns: {choices}. With `engine` and `mesh` one, which is run; the default is bp. Else several
        with commas between, which are proved.
    optimizer
        With `engine`, what updates the weights: adamw (the default), sgd or momentum.
    batch_size
        With `engine`, how many sequences are in the step. The default is 2.
    seq_len
        With `engine`, how many tokens are in each. The default is 80.
    placement
        With `mesh`, clauses by name: {choices}; or all, which has meshes of its own.
    precision
        With `engine` c99, the type of frozen matrices: int8-frozen-fp32.
    dropout
        With `engine` c99, the probability of dropout.
    sizes
        With `engine`, any size or setting of the model, such as `num_hidden_layers` 2.

    Commands
    --------
    learncost verify attention
        Proves the counts and gradients of one layer.
    learncost verify gpt2 --procedure skip,local
        Proves two ways to learn: their counts, and what they are the same as.
    learncost verify gpt2 --mesh dp=2,tp=2 --placement fsdp,megatron-sp
        Runs a step on four devices and holds it to the step of one.
    learncost verify gpt2 --engine torch --num-hidden-layers 2
        Holds what PyTorch executes against what is priced.
    """
    engine_flags = {
        "plan": plan,
        "procedure": procedure,
        "optimizer": optimizer,
        "batch_size": batch_size,
        "seq_len": seq_len,
    }
    settings = {name: value for name, value in engine_flags.items() if value is not None}
    if engine is None and (mesh or place or placement):
        report = _of_placement(model, mesh, place, placement, settings, sizes)
        return report if every or model is not None else replace(report, summed=True)
    if mesh or place or placement:
        raise InputError("--mesh runs devices as threads on NumPy: leave --engine out")
    learned = {
        "precision": precision,
        "dropout": None if dropout is None else check_probability("dropout", dropout),
        "train": train,
        "train_layers": train_layers,
        "lora": lora,
        "lora_rank": lora_rank,
        "lora_alpha": lora_alpha,
    }
    learned = {name: value for name, value in learned.items() if value is not None}
    if learned and engine != "c99":
        raise InputError(f"--{next(iter(learned)).replace('_', '-')} is for --engine c99")
    if engine is None and procedure and not sizes and len(settings) == 1:
        report = compute(model, procedure)
        return report if every or len(report.checks) <= FEW else replace(report, summed=True)
    if engine is None and (settings or sizes):
        named = next(iter((*sizes, *settings))).replace("_", "-")
        raise InputError(f"--{named} is for --engine torch, jax or c99: tables are proved at sizes of their own")
    if engine is not None:  # a table's letters are said as `--B 2 --M 8`
        asked = {name: settings.get(name) for name in ("batch_size", "seq_len", "target_len")}
        lengths, sizes = lengths_of(asked, sizes)
        settings |= lengths
        of_table = model is not None and isinstance(layer_or_model(model), Layer)
        if engine != "c99" and "target_len" in lengths and not of_table:
            raise InputError("--target-len is for --engine c99")
    if engine == "c99":
        from learncost.cli.verified_c99 import verify_c99

        return verify_c99(model, **_lengths(settings), learned=learned, sizes=sizes)
    report = compute(model) if engine is None else _of_engine(model, engine, settings, sizes)
    return report if every or model is not None else replace(report, summed=True)


def _of_placement(
    model: str | Layer | None,
    mesh: str | None,
    place: str | None,
    placement: str | None,
    settings: dict[str, Any],
    sizes: dict[str, Any],
) -> VerificationReport:
    """A step over many devices; at small sizes that divide, so that lengths do not go with it."""
    from learncost.models.configuration import configure
    from learncost.models.model import build
    from learncost.verification.placements import verify_placements

    if length := next((name for name in ("batch_size", "seq_len") if name in settings), None):
        raise InputError(f"--mesh runs at small sizes that divide: leave --{length.replace('_', '-')} out")
    if sizes and model is None:
        raise InputError(f"--{next(iter(sizes)).replace('_', '-')} is for a model: name one")
    named = None if model is None else layer_or_model(model)
    if isinstance(named, Layer) and named.name in shipped():
        raise InputError(f"{model} is a layer: --mesh places the training step of a model")
    built = None if model is None else build(configure(model, sizes))
    asked = {name: str(value) for name, value in settings.items()}
    checks = verify_placements(built, mesh, place, placement, **asked)
    over = f" over {mesh}" if mesh else ""
    subject = named.name if isinstance(named, Layer) else named or "every family"
    return VerificationReport(f"verification of {subject}{over}, a thread for each device", tuple(checks))


def _of_engine(
    model: str | Layer | None, engine: str, settings: dict[str, Any], sizes: dict[str, Any]
) -> VerificationReport:
    """What an engine executes; its libraries are imported only here."""
    from learncost.verification.engine_run import verify_engine

    if settings or sizes:
        flag = next(iter((*settings, *sizes))).replace("_", "-")
        if model is None:
            raise InputError(f"--{flag} is for a model: name one")
        if isinstance(layer_or_model(model), Layer):
            raise InputError(f"--{flag} is for a model by its name: a table is watched at sizes of its own")
    return verify_engine(model, engine, **_lengths(settings), sizes=sizes)


def _lengths(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, lengths as numbers."""
    from learncost.training.train import number

    lengths = {name: number(name, value, True) for name, value in settings.items() if name in ("batch_size", "seq_len")}
    return {**settings, **lengths}
