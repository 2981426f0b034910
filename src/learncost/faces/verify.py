"""`learncost verify [MODEL]`: run the tables at small sizes and hold them to everything that can be asked."""

from __future__ import annotations

import json as to_json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from learncost.equation.errors import InputError
from learncost.faces.flags import Name, Number, Switch, Value, chosen, refuse_unknown
from learncost.layers.layer import Layer
from learncost.ledger.sheet import Row, Sheet
from learncost.models.argument import layer_or_model
from learncost.proof.report import Check, Report
from learncost.proof.verify import verify as compute

OWN = ("every", "engine", "plan", "procedure", "optimizer", "batch_size", "seq_len", "format", "json", "help")
_MARKS = {True: "passed", False: "FAILED", None: "not made"}


@dataclass(frozen=True)
class Verdict:
    """What is printed, and whether all was well."""

    shown: Sheet | str
    exit_code: int

    def __str__(self) -> str:
        return str(self.shown)

    def __rich__(self) -> Sheet | str:
        return self.shown


def verify(
    model: str | None = None,
    /,
    *,
    every: Switch = False,
    engine: Name | None = None,
    plan: Name | None = None,
    procedure: Name | None = None,
    optimizer: Name | None = None,
    batch_size: Number | None = None,
    seq_len: Number | None = None,
    format: Name = "table",
    json: Switch = False,
    **sizes: Value,
) -> Verdict:
    """Run the tables and prove the counts and the gradients; exit code 1 if anything fails.

    At small, pairwise different sizes: values with foreign implementations, gradients with complex steps or
    differences, the operations that arrays count with the price of the book run, line by line, the explicit Jacobian
    with the closed form; where PyTorch or JAX is installed, values and gradients with its autograd, and FLOPs with
    PyTorch's FlopCounterMode. For a model, a step of every procedure with every optimizer too, and MEMPEPITA with
    PEPITA bit for bit.

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
        Watches what an engine executes: torch or jax.
    plan
        With --engine torch, the rewritings of the step, as flash,fused. The default is the planner's choice.
    procedure
        With --engine, how the model learns: bp (the default), recompute, pepita or mempepita.
    optimizer
        With --engine, what updates the weights: adamw (the default), sgd or momentum.
    batch_size
        With --engine, how many sequences are in the step. The default is 2.
    seq_len
        With --engine, how many tokens are in each. The default is 80.
    format
        How the result is written: table or json.
    sizes
        With --engine, any size or setting of the model, such as --num-hidden-layers 2.

    Examples
    --------
    learncost verify attention
        Proves the counts and gradients of one layer.
    learncost verify gpt2 --engine torch --num-hidden-layers 2
        Holds what PyTorch executes against what is priced.
    """
    wanted = chosen(format, json, ("table", "json"))
    own = {"plan": plan, "procedure": procedure, "optimizer": optimizer, "batch_size": batch_size, "seq_len": seq_len}
    given = {name: value for name, value in own.items() if value is not None}
    sizes = refuse_unknown(sizes, OWN)
    if engine is None and (given or sizes):
        raise InputError(f"--{next(iter((*given, *sizes))).replace('_', '-')} is for --engine torch or jax")
    report = compute(model) if engine is None else _of_engine(model, engine, given, sizes)
    code = 0 if report.passed else 1
    if wanted == "json":
        checks = [asdict(check) for check in report.checks]
        return Verdict(to_json.dumps({"schema": 1, "passed": report.passed, "checks": checks}, indent=2), code)
    if every or model is not None:
        return Verdict(_lines(report, model or "every word and every layer"), code)
    return Verdict(_summary(report), code)


def _of_engine(model: str | None, engine: str, given: dict[str, Any], sizes: dict[str, Any]) -> Report:
    """What an engine executes; its libraries are imported only here."""
    from learncost.faces.train import number
    from learncost.training.verified import verify_engine

    if (given or sizes) and (model is None or isinstance(layer_or_model(model), Layer)):
        raise InputError(f"--{next(iter((*given, *sizes))).replace('_', '-')} is for a model: name one")
    lengths = {name: number(name, value, True) for name, value in given.items() if name in ("batch_size", "seq_len")}
    return verify_engine(model, engine, **{**given, **lengths}, sizes=sizes)


def _lines(report: Report, title: str) -> Sheet:
    texts = ((c.passed, f"{c.subject}, {c.compared}: {c.found}") for c in report.checks)
    rows = (Row((_MARKS[passed], text), "bold" if passed is False else "") for passed, text in texts)
    return Sheet(f"Verification of {title}", ("", ""), tuple(rows), (_verdict(report.checks),), frozenset({0, 1}))


def _summary(report: Report) -> Sheet:
    """How many of each comparison passed; what failed or was not made, in full."""
    rows = []
    states = [state for state in _MARKS if state is not None or any(c.passed is None for c in report.checks)]
    for compared in dict.fromkeys(_kind(check) for check in report.checks):
        own = [check.passed for check in report.checks if _kind(check) == compared]
        rows.append(Row((compared, *(str(own.count(state)) for state in states))))
    rest = [check for check in report.checks if check.passed is not True]
    notes = (*(str(check) for check in rest if check.passed is False), _verdict(report.checks))
    columns = ("", *(_MARKS[state].lower() for state in states))
    return Sheet("Verification of every word and every layer", columns, tuple(rows), notes)


def _kind(check: Check) -> str:
    """The comparison without how many points or directions it took."""
    return check.compared.partition(", ")[0]


def _verdict(checks: Iterable[Check]) -> str:
    states = [check.passed for check in checks]
    failed = f"{states.count(False)} of {len(states)} comparisons failed"
    missing = f"; {states.count(None)} were not made" if None in states else ""
    return (failed if False in states or not states else f"All {states.count(True)} comparisons passed") + missing + "."
