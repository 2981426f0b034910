"""`learncost verify [MODEL]`: run the tables at small sizes and hold them to everything that can be asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from learncost.equation.errors import InputError
from learncost.layers.layer import Layer
from learncost.ledger.question import question
from learncost.ledger.sheet import WIDTH, Row, Sheet, Shown
from learncost.models.argument import layer_or_model
from learncost.proof.report import Check, Report
from learncost.proof.verify import verify as compute

_MARKS = {True: "passed", False: "FAILED", None: "not made"}


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """What was compared, as it is asked to be shown, and whether all was well."""

    report: Report
    sheet: Sheet

    @property
    def exit_code(self) -> int:
        return 0 if self.report.passed else 1

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it."""
        return {"schema": 1, "passed": self.report.passed, "checks": [asdict(check) for check in self.report.checks]}

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        return (self.sheet,)


@question()
def verify(
    model: str | None = None,
    /,
    *,
    every: bool = False,
    engine: str | None = None,
    plan: str | None = None,
    procedure: str | None = None,
    optimizer: str | None = None,
    batch_size: int | str | None = None,
    seq_len: int | str | None = None,
    **sizes: Any,
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
        With `engine` torch, the rewritings of the step, as flash,fused. The default is the planner's choice.
    procedure
        With `engine`, how the model learns: bp (the default), recompute, pepita or mempepita.
    optimizer
        With `engine`, what updates the weights: adamw (the default), sgd or momentum.
    batch_size
        With `engine`, how many sequences are in the step. The default is 2.
    seq_len
        With `engine`, how many tokens are in each. The default is 80.
    sizes
        With `engine`, any size or setting of the model, such as `num_hidden_layers` 2.

    Commands
    --------
    learncost verify attention
        Proves the counts and gradients of one layer.
    learncost verify gpt2 --engine torch --num-hidden-layers 2
        Holds what PyTorch executes against what is priced.
    """
    own = {"plan": plan, "procedure": procedure, "optimizer": optimizer, "batch_size": batch_size, "seq_len": seq_len}
    given = {name: value for name, value in own.items() if value is not None}
    if engine is None and (given or sizes):
        raise InputError(f"--{next(iter((*given, *sizes))).replace('_', '-')} is for --engine torch or jax")
    report = compute(model) if engine is None else _of_engine(model, engine, given, sizes)
    whole = every or model is not None
    return Verdict(report, _lines(report, model or "every word and every layer") if whole else _summary(report))


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
