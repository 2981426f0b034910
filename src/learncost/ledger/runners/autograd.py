"""PyTorch's autograd as a runner: a model's forward table as calls of PyTorch's operators, on a tape."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from learncost.ledger.memory_step import Step
from learncost.ledger.runner import Runner, Taken, at_line, bytes_of, held, refusal
from learncost.models.module import module_of
from learncost.schedule.autograd import Asked, Module, Tape, run_step

TRAINED = ("fp32", "fp64", "bf16", "fp16")
"""The types of values that PyTorch trains in."""

ADAMW = {
    "fused": ("autograd", "over the old ones", "AdamW with fused=True."),
    "foreach": ("autograd-foreach", "over, by copies", "AdamW with foreach=True."),
    "for-loop": ("autograd-for-loop", "over, one by one", "AdamW one weight after the other."),
}
"""PyTorch's implementations of AdamW: the runner's name, where new weights lie, and what is said."""

_CONVENTION = (
    "Predicted: the allocator's bytes when PyTorch's autograd trains {} on a processor, all gradients kept to the end, "
    "every operator keeping what its derivative reads. Not in it: buffers inside of kernels. {}"
)


def _run(implementation: str, step: Step, sizes: Mapping[str, int], stop_at: int | None = None) -> tuple[Tape, Module]:
    model, kind = step.model, step.kind
    recompute = step.procedure == "recompute"
    module = module_of(model, step.module, recompute)
    asked = Asked(
        module,
        step.state + step.master,
        kind.weight,
        frozenset(model.learning),
        frozenset(name for name in model.masks if model.table.values[name].role == "mask"),
        "frames" if recompute else "",
        0 if model.two_sided else model.configuration.sizes.get("num_hidden_layers", 0),
        implementation if step.optimizer.name == "adamw" else "",
    )
    tape = Tape(kind.value, stop_at)
    run_step(tape, model.table, sizes, asked)
    return tape, module


def _worst(implementation: str, step: Step, sizes: Mapping[str, int]) -> tuple[int, str]:
    """The peak and its line, remembered by the step."""
    key = implementation, step.module, *sorted(sizes.items())
    if key not in step.taped:
        account = _run(implementation, step, sizes)[0].account
        step.taped[key] = account.peak, str(account.line)
    return step.taped[key]


def _peak(implementation: str, step: Step, sizes: Mapping[str, int]) -> int:
    return _worst(implementation, step, sizes)[0]


def _takes(implementation: str, step: Step, sizes: Mapping[str, int]) -> Taken:
    peak, line = _worst(implementation, step, sizes)
    tape, module = _run(implementation, step, sizes, peak)
    rooms = tuple((size, str(label)) for size, label in tape.account.rooms)
    made = sum(size for size, label in rooms if label.endswith("backward") or label == "optimizer step")
    table = step.model.table
    weights = bytes_of(table, table.weights, sizes, lambda _: step.kind.weight)
    parts = {"weights": weights, "gradients": tape.gradients, "optimizer state": step.state}
    if step.master:
        parts["master weights"] = step.master
    parts["workspace"] = made - tape.gradients
    parts["activations"] = peak - sum(parts.values())
    said = _CONVENTION.format(module.said, ADAMW[implementation][-1])
    return Taken(peak, at_line(line, peak), parts, held(rooms), said=said)


def _refuses(step: Step) -> str:
    if step.kind.values not in TRAINED or step.model.quantized:
        return f"has values in {', '.join(TRAINED)}, and weights that are not quantized"
    if why := refusal(step, ()):
        return why
    if step.plan:
        return "knows no plans; --procedure recompute is torch.utils.checkpoint"
    if step.procedure not in ("bp", "recompute"):
        return "learns by bp, or by recompute: torch.utils.checkpoint of every block"
    return ""


def _runner(implementation: str) -> Runner:
    name, places, _ = ADAMW[implementation]
    rules = {
        "new weights and states": places,
        "gradients": "to the end",
        "kept for backward": "what operators save",
        "temporaries": "results",
    }
    return Runner(
        name,
        partial(_peak, implementation),
        partial(_takes, implementation),
        rules,
        _CONVENTION,
        _refuses,
        plans=("",),
        lengths=True,
        module=True,
    )


RUNNERS = tuple(map(_runner, ADAMW))
