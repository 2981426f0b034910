"""`learncost verify MODEL --engine c99`: comparison of a freestanding program with its price and with NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from learncost.backends.c99 import masks
from learncost.backends.c99.layout import in_all, together
from learncost.cli import boards
from learncost.cli.emit_c99 import FirmwareOptions, FirmwareProgram, program_of
from learncost.cost_models import PricedLine, price
from learncost.cost_models.books import book
from learncost.engines import freestanding as alone
from learncost.engines.compiler import compiler
from learncost.engines.inputs import random_batch
from learncost.engines.numpy_engine import Training
from learncost.engines.rounding import real, whole
from learncost.interpreter.operation import mixed
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.polynomial import shape_of
from learncost.ir.precision import precision_of
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.models.argument import layer_or_model
from learncost.models.configuration import Configuration, configure
from learncost.models.model import build, run_sizes
from learncost.verification.report import Check, VerificationReport

STEPS, BATCH_SIZE, SEQ_LEN = 5, 2, 8

NEAR = 1e-10
"""The largest difference of losses and weights from NumPy's in fp64, relative to the largest of each array."""

ARENA_TOLERANCE = 1.05
"""The largest ratio of an arena to the live bytes: mostly they are equal, else the search reports the idle bytes."""

DIFFERENCE_TOLERANCE = 1e-6
"""The largest difference where NumPy's own is as large when it begins one rounding apart.

Updates by PEPITA are differences of two passes that are nearly the same.
"""

NEGLIGIBLE_GRADIENT = 1e-12
"""A gradient that is less than this share of the largest is nothing: what the optimizer makes of it is noise."""

ALLOWED = ("memcpy", "memset")
"""Functions that a compiler may call though the source does not."""


def verify_c99(
    model: str | Layer | None,
    options: FirmwareOptions,
    *,
    procedure: str = "bp",
    optimizer: str = "adamw",
    learned: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
) -> VerificationReport:
    """Compile the program of a model and compare it with its price, NumPy, its layout and the C99 standard.

    options  its plan, batch size and lengths; small ones by default
    learned  trainable parameters and the precision of frozen matrices, as for `Training`

    Raises `InputError`.
    """
    if model is None:
        raise InputError("--engine c99 requires a model")
    counted = layer_or_model(model)
    configuration = configure(counted, dict(sizes or {}))
    title = f"verification of {configuration.name}, {procedure} with {optimizer} in C99"
    if compiler() is None:
        missing = Check(configuration.name, "everything", "no C compiler found: install one of cc, gcc, clang", None)
        return VerificationReport(title, (missing,))
    length = options.seq_len or (None if options.target_len else _length(configuration))
    batch_size = BATCH_SIZE if options.batch_size is None else options.batch_size
    settings = replace(options, batch_size=batch_size, seq_len=length)
    learning = {"procedure": procedure, "optimizer": optimizer, **(learned or {})}
    return VerificationReport(title, tuple(checks(configuration, settings, learning)))


def _length(configuration: Configuration) -> int | None:
    """Return a small length, if the model requires one."""
    try:
        run_sizes(build(configuration), 1, SEQ_LEN, None)
    except InputError:
        return None
    return SEQ_LEN


def checks(
    configuration: Configuration, settings: FirmwareOptions, learning: Mapping[str, Any], steps: int = STEPS
) -> Iterator[Check]:
    """Yield the comparisons of one program."""
    kinds: tuple[str, ...] = ("fp64", "fp32")
    if (kind := precision_of(str(learning.get("precision") or "fp32"))).is_whole:
        kinds = (kind.values,)
    programs = {kind: program_of(configuration, replace(settings, dtype=kind), learning) for kind in kinds}
    precise, shipped = programs[kinds[0]], programs[kinds[-1]]
    name = f"{configuration.name}, {precise.plan or 'no plan'}"
    yield from _parity(precise, name, steps)
    yield from _prices(precise, name)
    for dtype in reversed(kinds):
        yield from _memory(programs[dtype], f"{name}, {dtype}")
    if shipped.training.model.learns:
        yield from boards.checks(f"{name}, {kinds[-1]}", shipped)


def _batches(program: FirmwareProgram, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return random batches for training steps, and the inputs of every call of the program."""
    training, parts = program.training, program.training.settings.accumulate
    whole = {**program.sizes, "B": program.sizes["B"] * parts}
    drawn = [random_batch(training.model, whole, seed) for seed in range(steps)]
    calls = []
    for batch in drawn:
        values = training.prepare(**batch).values
        calls += [
            {name: _part(program, name, values[name], part) for name in alone.fed(program.firmware)}
            for part in range(parts)
        ]
    return drawn, calls


def _part(program: FirmwareProgram, name: str, array: Any, part: int) -> Any:
    """Return a microbatch's part of an input."""
    shape = alone.shape(program.firmware, name)
    size = shape[0] if shape else 0
    return np.asarray(array)[part * size : (part + 1) * size] if np.shape(array) != shape else array


def _begin(program: FirmwareProgram) -> dict[str, Any]:
    training = program.training
    begin = {
        name: np.array(array) for name, array in (training.weights | training.weights_read | training.state).items()
    }
    for name in alone.changed(program.firmware):  # gradients that are gathered begin as zeros
        begin.setdefault(name, np.zeros(alone.shape(program.firmware, name)))
    return begin | {"lr": whole(training.table(), "lr", training.learning_rate)}


@dataclass(frozen=True)
class StepParity:
    """The differences from NumPy after steps: losses, weights, scores, relative to the largest number of each.

    worst    the weight with the largest difference
    nothing  weights whose gradient is zero except for rounding, which are not compared
    rounding  the difference of NumPy's weights from initial ones that differ by one rounding; 0 if all else is near
    """

    losses: float
    weights: float
    worst: str
    nothing: tuple[str, ...]
    scores: float = 0.0
    rounding: float = 0.0


def parity(program: FirmwareProgram, steps: int, options: Sequence[str] = alone.SANITIZED) -> StepParity:
    """Run steps of a program and of its training on NumPy. Raises `InputError`, also for a sanitizer's finding."""
    training = program.training
    training.draw = lambda steps: (int(mixed(np.asarray(1), np.asarray(steps + 1))) >> 8) + 1  # as with the seed 1
    if training.dropout:
        _masked(program)
    drawn, calls = _batches(program, steps)
    begin = _begin(program)
    nothing = _without_gradient(program, drawn[0])
    ran = alone.run(program.firmware, begin, calls, options)
    expected = np.array([training.step(**batch) for batch in drawn])
    parts = training.settings.accumulate
    losses = np.asarray(real(training.table(), "loss", ran.losses[parts - 1 :: parts]))
    worst_loss = float(np.max(np.abs(losses - expected) / np.abs(expected))) if len(losses) else 0.0
    errors = {
        name: float(np.max(np.abs(ran.arrays[name] - array)) / max(np.max(np.abs(array)), 1e-300))
        for name, array in (training.weights_read | ({} if nothing else _statistics(training))).items()
        if name in ran.arrays and name not in nothing
    }
    worst = max(errors, key=lambda key: errors[key]) if errors else ""
    weights, state = training.weights, training.state
    if nothing and _statistics(training):  # a prediction of the weights and the statistics that the program has
        training.weights = {name: ran.arrays.get(name, array) for name, array in weights.items()}
        training.state = {name: ran.arrays.get(name, array) for name, array in state.items()}
    scores = _scores(program, drawn[-1], ran.scores)
    training.weights, training.state = weights, state
    off = errors.get(worst, 0.0)
    is_near = max(worst_loss, off, scores) <= NEAR or training.precision.is_whole
    rounding = 0.0 if is_near else _rounding(program, begin, drawn, nothing)
    return StepParity(worst_loss, off, worst, tuple(nothing), scores, rounding)


def _statistics(training: Training) -> dict[str, Any]:
    """Return the running statistics of a training, which also depend on biases with zero gradient."""
    values = training.table().values
    return {name: array for name, array in training.state.items() if values[name].role == "running"}


def _rounding(
    program: FirmwareProgram, begin: Mapping[str, Any], drawn: Sequence[Mapping[str, Any]], nothing: list[str]
) -> float:
    """Return the difference of NumPy's weights after the same steps when the initial weights differ by one rounding."""
    training, rng = program.training, np.random.default_rng(0)
    expected = {name: np.array(array) for name, array in training.weights.items()}
    unit = np.finfo(np.float64).eps
    weights = {name: begin[name] * (1 + unit * rng.choice((-1, 1), begin[name].shape)) for name in expected}
    training.load(weights, {name: begin[name] for name in training.state}, 0)
    for batch in drawn:
        training.step(**batch)
    return max(
        float(np.max(np.abs(training.weights[name] - array)) / max(np.max(np.abs(array)), 1e-300))
        for name, array in expected.items()
        if name not in nothing
    )


def _scores(program: FirmwareProgram, batch: Mapping[str, Any], scores: Any) -> float:
    """Return the difference of the last microbatch's prediction from NumPy's, over finite values."""
    if scores is None:
        return 0.0
    table = program.tables["predict"]
    expected = program.training.forward(**batch)[table.outputs[0]]
    scores = real(table, table.outputs[0], scores)
    if table.axes[table.outputs[0]][:1] == ("B",):
        expected = expected[-len(scores) :]
    finite = np.isfinite(expected)
    largest = max(float(np.max(np.abs(expected), where=finite, initial=0.0)), 1e-300)
    return float(np.max(np.abs(scores - expected), where=finite, initial=0.0)) / largest


def _masked(program: FirmwareProgram) -> None:
    """Replace NumPy's dropout masks by the program's with its default seed 1."""
    training, firmware = program.training, program.firmware
    names = [name for name, (kind, _, _) in firmware.given.items() if kind == "masks"]
    parts = training.settings.accumulate

    def of_step(table: Table, name: str, sizes: Mapping[str, int], dropout: float, part: int = 0) -> Any:
        number = names.index(name) * parts + part
        return mask(dropout, 1, training.steps + 1, number, shape_of(table.values[name].axes, sizes))

    training.mask = of_step


def mask(dropout: float, seed: int, step: int, number: int, shape: tuple[int, ...]) -> Any:
    """Return the dropout mask of a step, counted from 1.

    number  the index of the mask in the program, times the number of microbatches, plus the index of
            the microbatch
    """
    begin = int(mixed(np.asarray(0), np.asarray(int(mixed(np.asarray(seed), np.asarray(step))) + number)))
    numbers = mixed(np.asarray(0), begin + np.arange(prod(shape))) >> np.uint64(32 - masks.BITS)
    return np.where(numbers < masks.least(dropout), 0.0, masks.scale(dropout)).reshape(shape)


def _without_gradient(program: FirmwareProgram, batch: Mapping[str, Any]) -> list[str]:
    """Return weights whose gradient is zero except for rounding, such as a key's bias under a softmax."""
    updates = program.training.updates(**batch)
    largest = max((float(np.max(np.abs(array))) for array in updates.values()), default=0.0)
    return [name for name, array in updates.items() if float(np.max(np.abs(array))) <= NEGLIGIBLE_GRADIENT * largest]


def _parity(program: FirmwareProgram, name: str, steps: int) -> Iterator[Check]:
    is_whole = program.training.precision.is_whole
    numbers, near = ("whole numbers", 0.0) if is_whole else ("fp64", NEAR)
    compared = f"losses, weights and logits against NumPy's over {steps} steps in {numbers}, under sanitizers"
    try:
        errors = parity(program, steps)
    except InputError as problem:
        yield Check(name, compared, str(problem), False)
        return
    text = f"losses off by {errors.losses:.1e}, weights by {errors.weights:.1e}"
    text += f" at most, in {errors.worst}" if errors.worst else ""
    text += f", logits by {errors.scores:.1e}" if "predict" in program.tables else ""
    text += f"; without {', '.join(errors.nothing)} (zero gradient)" if errors.nothing else ""
    if errors.rounding:
        text += f"; NumPy's own weights are off by {errors.rounding:.1e} where initial weights differ by one rounding"
    allowed = max(near, min(errors.rounding, DIFFERENCE_TOLERANCE))
    yield Check(name, compared, text, max(errors.losses, errors.weights, errors.scores) <= allowed)


@dataclass(frozen=True)
class _CallCounts:
    """MACCs and FLOPs of the lines of a call."""

    text: str
    priced: tuple[int, int]


def _prices(program: FirmwareProgram, name: str) -> Iterator[Check]:
    """Check the operations that a counting number type executes in every call against the price of its lines."""
    compared = "executed MACCs against the price book run, call by call"
    _, batches = _batches(program, 1)
    try:
        counted = alone.counted(program.firmware, _begin(program), batches)
    except InputError as problem:
        yield Check(name, compared, str(problem), None if "no C++" in str(problem) else False)
        return
    calls = _calls(program)
    executed = {number: counted.get(number, (0, 0)) for number in calls}
    maccs, flops = ([(calls[number], executed[number][unit]) for number in calls] for unit in (0, 1))
    yield Check(name, compared, *_of_maccs(maccs))
    yield Check(name, "executed FLOPs against the price book run, reported", _of_flops(flops), True)


def _of_maccs(calls: list[tuple[_CallCounts, int]]) -> tuple[str, bool]:
    total, priced = sum(in_run for _, in_run in calls), sum(call.priced[0] for call, _ in calls)
    text = f"{total:,} in {len(calls)} calls" if total == priced else f"{total:,}, {priced:,} priced"
    wrong = next(((call, in_run) for call, in_run in calls if in_run != call.priced[0]), None)
    if wrong:
        call, in_run = wrong
        text += f"; call {call.text}: {in_run:,} in place of {call.priced[0]:,}"
    return text, wrong is None


def _of_flops(calls: list[tuple[_CallCounts, int]]) -> str:
    total, priced = sum(in_run for _, in_run in calls), sum(call.priced[1] for call, _ in calls)
    text = f"{total:,} executed, {priced:,} priced, {total / max(priced, 1) - 1:+.2%}"
    different = [(call, in_run) for call, in_run in calls if in_run != call.priced[1]]
    if different:
        worst = sorted(different, key=lambda pair: -abs(pair[1] - pair[0].priced[1]))[:3]
        lines = "; ".join(f"{call.text} {in_run:,} for {call.priced[1]:,}" for call, in_run in worst)
        text += (
            f", in {len(different)} of {len(calls)} calls: a kernel computes what is cheap where it reads it and what "
            f"is equal once, and a choice between two numbers is none of their operations. {lines}"
        )
    return text


def _calls(program: FirmwareProgram) -> dict[int, _CallCounts]:
    """Return the calls of a step by number; one call represents all microbatches."""
    result: dict[int, _CallCounts] = {}
    firmware = program.firmware
    for entry, layout in firmware.layouts.items():
        if entry == "predict":
            continue
        times = program.training.settings.accumulate if entry == "gather" else 1
        rows = price(layout.table, program.sizes, book("run")).rows
        of_line = {row.source.name: row for row in rows if not isinstance(row.source, str)}
        for number, call in firmware.calls.items():
            if firmware.entries[number] == entry:
                priced = [_counts(of_line[line.name], program.sizes, times) for line in call.lines]
                maccs, flops = (sum(counts[unit] for counts in priced) for unit in (0, 1))
                result[number] = _CallCounts(f"{number}. {call.lines[0]}", (maccs, flops))
    return result


def _counts(row: PricedLine, sizes: Mapping[str, int], times: int) -> tuple[int, int]:
    return int(row.maccs.at(sizes)) * times, int(row.flops.at(sizes)) * times


def _memory(program: FirmwareProgram, name: str) -> Iterator[Check]:
    firmware = program.firmware
    layouts, arena = [*firmware.layouts.values()], firmware.program_memory.arena
    alive = in_all(layouts, together(layout.alive for layout in layouts))
    lost = f", {arena - alive:,} of them between arrays" if arena > alive else ""
    text = f"{arena:,} bytes{lost}, {alive:,} live at the peak"
    yield Check(name, "the arena against the most live bytes", text, arena <= ARENA_TOLERANCE * alive)
    compiled = alone.compiled(firmware)
    text = f"{compiled.ram:,} bytes of variables, {firmware.program_memory.ram:,} predicted"
    if compiled.between:
        text += f"; size reports {compiled.between:,} more for the alignment of arrays on this machine"
    yield Check(name, "predicted RAM against the object file's", text, compiled.ram == firmware.program_memory.ram)
    others = [symbol for symbol in compiled.undefined if symbol not in ALLOWED]
    text = f"needs {', '.join(others or compiled.undefined) or 'nothing'}"
    yield Check(name, "the object by -std=c99 -O2 with what it may need", text, not others)
