"""PyTorch's autograd as a runner: a model's forward table as calls of PyTorch's operators, on a tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from learncost.equation.count import size_of
from learncost.equation.table import Repeat
from learncost.ledger.memory_step import Step
from learncost.ledger.runner import Runner, Taken, at_line, bytes_of, grouped, refusal
from learncost.ledger.runners.logged import Logs
from learncost.models.model import Model
from learncost.models.module import module_of
from learncost.procedures.procedure import procedure
from learncost.schedule.autograd import Asked, Module, Tape, run_step

TRAINED = ("fp32", "fp64", "bf16", "fp16")
"""The types of values that PyTorch trains in."""

_CONVENTION = (
    "Predicted: the allocator's bytes when PyTorch's autograd trains {} on a processor, {}, every operator keeping "
    "what its derivative reads. Not in it: buffers inside of kernels. {}"
)


@dataclass(frozen=True)
class Stepping:
    """A way in which PyTorch's optimizers step.

    name       of the runner
    adamw      AdamW's implementation: fused, foreach, for-loop
    new        the rule of new weights and states; `gradients`, that of gradients
    gone       how long gradients are there, and `said`, how AdamW runs, as the convention has it
    tape       on which the step runs
    """

    name: str
    adamw: str
    new: str
    said: str
    gradients: str = "to the end"
    gone: str = "all gradients kept to the end"
    tape: Callable[[int, int | None], Tape] = Tape


def _run(way: Stepping, step: Step, sizes: Mapping[str, int], stop_at: int | None = None) -> tuple[Tape, Module]:
    model, kind = _plain(step.model), step.kind
    recompute = "forward again" in procedure(step.procedure).moves
    module = module_of(model, step.module, recompute, kind.weight)
    settings = Asked(
        module,
        step.state + step.master,
        kind.weight,
        frozenset(model.learning),
        frozenset(name for name in model.masks if model.table.values[name].role == "mask"),
        module.checkpoint if recompute else "",
        0 if model.two_sided else model.configuration.sizes.get("num_hidden_layers", 0),
        way.adamw if step.optimizer.name == "adamw" else "",
        {weight.weight: weight.bytes(step.run.axes) for weight in model.quantized},
    )
    tape = way.tape(kind.value, stop_at)
    run_step(tape, model.table, sizes, settings)
    return tape, module


def _plain(model: Model) -> Model:
    """The model with the weights that codes stand for, as its modules have them."""
    return replace(model, table=model.plain) if model.plain else model


def _worst(way: Stepping, step: Step, sizes: Mapping[str, int]) -> tuple[int, str]:
    """The peak and its line, remembered by the step."""
    key = way.name, step.module, *sorted(sizes.items())
    if key not in step.taped:
        account = _run(way, step, sizes)[0].account
        step.taped[key] = account.peak, str(account.line)
    return step.taped[key]


def _peak(way: Stepping, step: Step, sizes: Mapping[str, int]) -> int:
    return _worst(way, step, sizes)[0]


def _takes(way: Stepping, step: Step, sizes: Mapping[str, int]) -> Taken:
    peak, line = _worst(way, step, sizes)
    tape, module = _run(way, step, sizes, peak)
    rooms = tuple((size, str(label)) for size, label in tape.account.rooms)
    backward_rooms = sum(size for size, label in rooms if label.endswith("backward") or label == "optimizer step")
    table = _plain(step.model).table
    codes = {weight.weight for weight in step.model.quantized}
    unquantized = [weight for weight in table.weights if weight not in codes]
    weights = bytes_of(table, unquantized, sizes, lambda _: step.kind.weight) + step.quantized
    parts = {"weights": weights, "gradients": tape.gradients, "optimizer state": step.state}
    if step.master:
        parts["master weights"] = step.master
    parts["workspace"] = backward_rooms - tape.gradients
    parts["activations"] = peak - sum(parts.values())
    convention = _CONVENTION.format(module.said, way.gone, way.said)
    inputs = dict.fromkeys(table.inputs, "activations")
    labels = inputs | dict.fromkeys(table.weights, "weights")
    state = {name: size for name, size in (("optimizer state", step.state), ("master weights", step.master)) if size}
    repeats = [line.count for line in table.lines if isinstance(line, Repeat)]
    counts = {int(size_of(count, sizes)): count for count in repeats}
    curve, stays = Logs(tape.account.log, table, labels, state, counts).account()
    return Taken(peak, at_line(line, peak), parts, grouped(rooms), curve, stays, convention)


def _refuses(step: Step) -> str:
    if step.kind.values not in TRAINED:
        return f"has values in {', '.join(TRAINED)}"
    if why := refusal(step, ()):
        return why
    if step.kind.kept:
        return "keeps activations as they are"
    if step.plan:
        return "knows no plans; --procedure recompute is torch.utils.checkpoint"
    if not procedure(step.procedure).differentiates:
        return "learns by bp, or by recompute: torch.utils.checkpoint of every block"
    return ""


def runner(way: Stepping) -> Runner:
    """The runner that steps in a way."""
    rules = {
        "new weights and states": way.new,
        "gradients": way.gradients,
        "kept for backward": "what operators save",
        "temporaries": "results",
    }
    return Runner(
        way.name,
        partial(_peak, way),
        partial(_takes, way),
        rules,
        _CONVENTION,
        _refuses,
        plans=("",),
        lengths=True,
        module=True,
    )


RUNNERS = (
    runner(Stepping("autograd", "fused", "over the old ones", "AdamW with fused=True.")),
    runner(Stepping("autograd-foreach", "foreach", "over, by copies", "AdamW with foreach=True.")),
    runner(Stepping("autograd-for-loop", "for-loop", "over, one by one", "AdamW one weight after the other.")),
)
