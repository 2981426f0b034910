"""The text at the end of a training."""

from __future__ import annotations

from learncost.reports.sheet import size_of, wrapped
from learncost.training.folder import SAMPLES
from learncost.training.loop import TrainingResult, TrainingStep


def stopped(result: TrainingResult) -> str:
    """Return how to resume a run that stopped early."""
    return (
        f"saved after step {result.steps:,} of {result.options.steps:,}; "
        f"learncost train --resume {result.folder} goes on"
    )


def _memory(step: TrainingStep) -> list[str]:
    """Return the measured memory of the process, and the predicted memory of a step's arrays."""
    if step.process is None or step.memory is None:
        return []
    more = f"{size_of(step.memory)} of it since it has weights"
    lines = [f"process, measured: {size_of(step.process)} at most, {more}"]
    if step.predicted is not None:
        lines.append(f"arrays of a step, predicted: {size_of(step.predicted)}")
    return lines


def summary(result: TrainingResult) -> str:
    """Return the summary of a training."""
    options, lines = result.options, []
    steps_text = "1 step" if result.steps == 1 else f"{result.steps:,} steps"
    lines.append(f"{result.folder}: {result.name}, {result.parameters:,} parameters, {steps_text}")
    if result.last is None:
        lines.append(f"nothing was left to do; --resume {result.folder} --steps N with more steps goes on")
    elif result.validated is not None:
        count, unit = result.steps * (options.batch_size or 0) * options.accumulate, "examples"
        if result.validated.tokens_per_second is not None:
            count, unit = count * (options.seq_len or 0), "tokens"
        loss = f"loss {result.validated.validation_loss:.3f}"
        score = result.validated.validated
        text = score if loss in score else f"{score}, {loss}"
        lines.append(f"validation: {text}, after {count:,} {unit}; {result.seconds:.0f} s")
    if result.last is not None:
        lines += _memory(result.last)
    writes = f"learncost sample {result.folder} --prompt TEXT lets it write"
    lines.append(writes if result.writes else f"what it says of some examples is in {result.folder / SAMPLES}")
    return "\n".join(map(wrapped, lines))
