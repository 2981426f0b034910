"""A model's step as freestanding C99: constants, initial values and the plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost import __version__
from learncost.backends.c99 import Firmware, FirmwareInputs, firmware
from learncost.backends.c99.layout import varies
from learncost.devices.device import Device
from learncost.devices.device import device as find_device
from learncost.engines.boards.board import linker_script
from learncost.engines.computed_inputs import names_computed
from learncost.engines.hugging_face import from_checkpoint, to_checkpoint
from learncost.engines.inputs import data, random_batch
from learncost.engines.numpy_engine import Training
from learncost.engines.state import StateArray, evaluated, from_state, stored, to_state
from learncost.engines.weights import DEVIATION, deviations, initial_weights
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError, nearest, shown
from learncost.ir.line import Product
from learncost.ir.precision import precision_of
from learncost.ir.stated import size_names
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.layers.names import written_once
from learncost.models.argument import layer_or_model
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, build, run_sizes
from learncost.models.sizes import check_size
from learncost.models.storage import check_finite, path_of, read_arrays, write_arrays
from learncost.models.tables import letters
from learncost.passes.plan import plan_of, planned
from learncost.passes.rewrite_integers import check_sums
from learncost.procedures.accumulation import accumulated
from learncost.procedures.inference import scored
from learncost.procedures.needed import needed
from learncost.procedures.optimizer import DEFAULT, check_unrounded, without_gradients
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.statistics import check_batches, over_batch, statistics_of
from learncost.procedures.step import trained_by
from learncost.reports.memory.planner import smallest_arena_plan
from learncost.reports.request import ADAPTING, Request
from learncost.reports.run import lengths_of
from learncost.training.train import number

if TYPE_CHECKING:
    from learncost.cli.emit import Freestanding

ENTRIES = ("both", "step", "predict")

DTYPES = {"fp32": np.float32, "fp64": np.float64, "int32": np.float64}


@dataclass(frozen=True)
class FirmwareOptions:
    """The options of a program in C99, by the flags of `learncost emit`."""

    entry: str = "both"
    prefix: str = "model"
    plan: str | None = None
    batch_size: int | None = None
    seq_len: int | None = None
    target_len: int | None = None
    dtype: str = "fp32"
    device: Device | None = None


class FirmwareSource(str):
    """A C file with its header and linker script.

    program     the program with its inputs
    is_unnamed  whether the prefix of its names is the name of the output file
    """

    program: FirmwareProgram
    is_unnamed: bool

    def __new__(cls, program: FirmwareProgram, is_unnamed: bool = False) -> FirmwareSource:
        text = super().__new__(cls, program.firmware.source)
        text.program, text.is_unnamed = program, is_unnamed
        return text

    @property
    def header(self) -> str:
        """The text of the header."""
        return self.program.firmware.header

    @property
    def script(self) -> str:
        """The linker script of the device; "" without a device, or if its addresses are unknown."""
        device, places = self.program.device, self.program.firmware.places
        return linker_script(device, [*places.values()]) if device else ""

    def state_dict(self) -> dict[str, Any]:
        """Return the initial values as the state_dict of the imported module, or of transformers' module.

        Raises `InputError` for weights that are drawn on the device.
        """
        return self.program.state_dict()

    def files(self, path: Path) -> dict[Path, str]:
        """Return the texts of the files for an output path."""
        named = FirmwareSource(self.program.named(prefix_of(path.name))) if self.is_unnamed else self
        header = path.with_suffix(".h")
        include = f'#include "{named.program.firmware.prefix}.h"'
        script = {path.with_suffix(".ld"): named.script} if named.script else {}
        return {path: named.replace(include, f'#include "{header.name}"', 1), header: named.header, **script}


@dataclass(frozen=True)
class FirmwareProgram:
    """A program with its inputs.

    training  the training on NumPy whose step the program runs
    tables    the tables of its entries, as they are priced
    plan      the given plan or the planner's
    content   its inputs other than its tables
    title     the comment at its top
    device    the device that it was laid out for
    """

    training: Training
    tables: Mapping[str, Table]
    sizes: Mapping[str, int]
    plan: str
    content: FirmwareInputs
    title: tuple[str, ...]
    firmware: Firmware
    begin: InitialValues
    device: Device | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the initial values by the module's names. Raises `InputError` if the device draws the weights."""
        training = self.training
        configuration = training.configuration
        if not self.begin.arrays:
            raise InputError("--state-dict requires --weights FILE: otherwise the device draws the weights")
        weights = {**training.plain_weights, **training.state, **training.buffers}
        if configuration.layer is None:
            return to_checkpoint(training.model, weights)
        origin, others = configuration.layer.origin, self.begin.others
        like = dict(origin.saved()) if origin is not None else dict(others)
        like |= {path: np.asarray(array, like[path].dtype) for path, array in others.items() if path in like}
        return to_state(self.stored, weights, like)

    @property
    def stored(self) -> dict[str, StateArray]:
        """The arrays of a layer by name, with their place in a state_dict; none for other models."""
        configuration = self.training.configuration
        return _stored(configuration) if configuration.layer is not None else {}

    def named(self, prefix: str) -> FirmwareProgram:
        """Return the program with another prefix of its names."""
        dtype = self.firmware.dtype
        return replace(self, firmware=firmware(self.tables, self.sizes, dtype, prefix, self.content, self.title))


def program_of(
    configuration: Configuration,
    settings: FirmwareOptions,
    learning: Mapping[str, Any],
    weights: Mapping[str, Any] | None = None,
    title: tuple[str, ...] = (),
    origin: str = "",
    others: Mapping[str, Any] = MappingProxyType({}),
) -> FirmwareProgram:
    """Return the program of a model.

    learning  what `Training` takes: procedure, optimizer, clip, accumulate, train and others
    weights   initial arrays of the plain or adapted model; `origin` describes them, and `others` the remaining
              entries of their state_dict
    Raises `InputError`.
    """
    check_unrounded(learning.get("optimizer"), "--backend c99")
    if settings.dtype not in DTYPES:
        raise InputError(f"--backend c99 supports {' or '.join(DTYPES)}, not {settings.dtype}")
    configuration = _with_lengths(configuration, settings)
    begin = (
        begun(configuration) if weights is None else InitialValues(weights, origin or "they are given", others=others)
    )
    training = Training(configuration, dtype=DTYPES[settings.dtype], **learning)
    chosen = find_procedure(training.settings.procedure)
    if chosen.finds and chosen.held > 1 and settings.entry != "predict":
        raise InputError(
            f"{chosen.name} computes directions in one of {chosen.held} steps with a separate table, but C99 "
            f"supports one table: use a file with held = 1"
        )
    if not training.model.learns and settings.entry != "predict":
        hint = "" if training.model.changed else "; --entry predict needs no loss"
        raise InputError(f"{configuration.name} {training.model.without_loss}{hint}")
    if begin.arrays:
        training.load(begin.arrays, training.state, 0)
        training.hold(begin.arrays)
    elif begin.spread:  # the program holds the frozen ones and the scales of codes
        plain = build(configuration)
        drawn = initial_weights(plain.table, plain.sizes, training.settings.seed, training.dtype, begin.spread)
        training.load(drawn, training.state, 0)
    sizes = run_sizes(training.model, settings.batch_size, settings.seq_len, settings.target_len)
    batch = random_batch(training.model, sizes)
    tables, sizes, plan = _tables(training, batch, settings)
    if training.precision.is_whole:
        check_sums(training.table(), sizes)
    content = _constants(training, batch, tables, sizes, begin)
    if settings.device:
        content = replace(content, regions=settings.device.free)
    title = (*title, *_titles(training, tables, sizes, plan), *_of_begin(begin, tables))
    written = firmware(tables, sizes, settings.dtype, settings.prefix, content, title)
    flash = settings.device.flash if settings.device else None
    if flash is not None and written.program_memory.constants > flash:
        raise InputError(
            f"constants need {written.program_memory.constants:,} bytes of flash, and {flash:,} are available"
        )
    return FirmwareProgram(training, tables, sizes, plan, content, title, written, begin, settings.device)


def _of_weights(step: Table) -> list[str]:
    """Return the results of products with weights: a pass runs all its layers, even if the last result is not read.

    Lines behind them, such as the loss of a repeated pass, are no part of the program.
    """
    weights = set(step.weights)
    products = (line for line in step.lines if isinstance(line, Product))
    return [line.name for line in products if not weights.isdisjoint(line.reads)]


def _tables(
    training: Training, batch: Mapping[str, Any], settings: FirmwareOptions
) -> tuple[dict[str, Table], dict[str, int], str]:
    """Return the tables of the entries under the plan, the sizes of one call, and the plan."""
    prepared = training.prepare(**batch)
    sizes, parts = dict(prepared.sizes), training.settings.accumulate
    if sizes["B"] % parts:
        raise InputError(
            f"{sizes['B']} sequences cannot be split into {parts} microbatches: give a multiple of {parts}"
        )
    sizes["B"] //= parts
    step = written_once(without_gradients(prepared.table))
    step = replace(needed(step, (*step.outputs, *_of_weights(step))), outputs=step.outputs)
    tables: dict[str, Table] = {}
    if settings.entry != "predict":
        check_batches(training.model.table, sizes)
        tables["step"] = step
        if parts > 1:
            halves = accumulated(training.table())
            tables = {"gather": halves.gather, "update": halves.update}
    first = next(iter(tables.values()), step)
    plan = settings.plan
    if plan is None:
        plan = smallest_arena_plan(first, sizes, settings.dtype)
    tables = {entry: planned(table, _fitting(plan, entry), sizes) for entry, table in tables.items()}
    if settings.entry != "step":
        evaluated = trained_by(training.evaluated, training.settings.procedure, training.iteration)
        if evaluated.changed:
            raise InputError(
                f"{evaluated.configuration.name} changes {', '.join(evaluated.changed)} in its forward pass, which "
                "constants of a prediction cannot keep: let the forward pass take and return the values"
            )
        lengths = (settings.batch_size and settings.batch_size // parts, settings.seq_len, settings.target_len)
        sizes = {**run_sizes(evaluated, *lengths), **sizes}
        model = evaluated.table
        outputs = (scored(model),) if "loss" in model.outputs else model.outputs
        tables["predict"] = planned(needed(model, outputs), _fitting(plan, "predict"), sizes)
    return tables, sizes, plan


def _fitting(plan: str, entry: str) -> str:
    """Return the passes of a step's plan that apply to an entry: a prediction saves nothing for a backward pass."""
    wanted = {"predict": ("flash", "fused"), "update": ("fused",)}.get(entry)
    items = [item for item in plan.split(",") if item]
    return ",".join(item for item in items if wanted is None or plan_of(item)[0][0].name in wanted)


def _constants(
    training: Training,
    batch: Mapping[str, Any],
    tables: Mapping[str, Table],
    sizes: Mapping[str, int],
    begin: InitialValues,
) -> FirmwareInputs:
    """Return the program's inputs other than its tables."""
    model = training.model
    values = dict(training.prepare(**batch).values)
    values |= training.inputs(**batch) if "predict" in tables else {}
    values |= {"weight_decay": training.settings.weight_decay}
    for name in {name for table in tables.values() for name in table.inputs if name in values}:
        axes = training.table().values[name].axes if name in training.table().values else ()
        if axes[:1] == ("B",):  # of a microbatch
            values[name] = values[name][: sizes["B"]]
    learns = {name for table in tables.values() for name in table.renewed}
    models = (model, training.evaluated) if "predict" in tables else (model,)
    fed = {datum.input for each in models for datum in data(each)}
    read = {name for table in tables.values() for name in (*table.inputs, *table.weights)}
    fixed = names_computed(model) | {name for name in read if name in (*training.constants, *training.buffers)}
    fixed |= {name for name in training.state if name in read - learns}
    if missing := [name for name in sorted(read - values.keys()) if name not in fed | learns | fixed]:
        raise InputError(f"{missing[0]} is used only in prediction and has no values: give --weights FILE")
    _check_numbers(training, batch, fed | learns | fixed)
    begins = {}
    learned = {name: array for name, array in training.state.items() if np.any(array)}  # what learns as weights do
    for name, array in (training.weights | training.weights_read | learned).items():
        if name not in learns:
            continue
        if begin.arrays:
            continue
        deviation = float(np.std(array)) if array.dtype.kind == "i" else begin.spread.get(name, DEVIATION)
        begins[name] = (0.0, deviation) if np.ptp(array) else (float(np.mean(array)), 0.0)  # codes: with their scales
        values.pop(name, None)
    stays = frozenset(learns) if begin.arrays else frozenset[str]()
    stays -= {name for name in training.state if name not in learned and training.table().values[name].role == "state"}
    return FirmwareInputs(values, begins, fixed, training.settings.accumulate, training.dropout, stays=stays)


@dataclass(frozen=True)
class InitialValues:
    """The initial values of a program.

    arrays  weights, running statistics and buffers by their names in the table; empty if they are drawn on the device
    description  the description of the arrays
    spread  the standard deviation of each drawn matrix that is not drawn with 0.02
    others  entries of the arrays' state_dict for which the table has no array
    """

    arrays: Mapping[str, Any]
    description: str
    spread: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)


def begun(configuration: Configuration) -> InitialValues:
    """Return the default initial values of a program: a module's own, or drawn ones."""
    layer = configuration.layer
    if layer is None:
        return InitialValues({}, "")
    model = build(configuration)
    values = layer.origin.values() if layer.origin is not None else {}
    if values and layer.origin is not None:
        return InitialValues(from_state(_stored(configuration), values, layer.name), layer.origin.description)
    return InitialValues({}, "", deviations(model.table, model.sizes))


def _stored(configuration: Configuration) -> dict[str, StateArray]:
    """Return the arrays of a layer, in training and in evaluation, by name."""
    assert configuration.layer is not None
    evaluation = evaluated(configuration)
    assert evaluation.layer is not None
    sizes = build(evaluation).sizes
    return {**stored(evaluation.layer, sizes), **stored(configuration.layer, build(configuration).sizes)}


def _with_lengths(configuration: Configuration, settings: FirmwareOptions) -> Configuration:
    """Return the configuration of a layer with the program's lengths in place of those that it fixes."""
    layer = configuration.layer
    if layer is None:
        return configuration
    lengths = {"M": settings.target_len or settings.seq_len, "N": settings.seq_len or settings.target_len}
    sizes = {axis: length for axis, length in lengths.items() if length and axis in size_names(layer.table)}
    return replace(configuration, layer=replace(layer, sizes={**layer.sizes, **sizes})) if sizes else configuration


def _check_numbers(training: Training, batch: Mapping[str, Any], others: set[str]) -> None:
    """Refuse inputs that change from step to step and that the program does not compute."""
    before = training.prepare(**batch)
    steps, training.steps = training.steps, training.steps + 6
    after = training.prepare(**batch).values
    training.steps = steps
    values = before.table.values
    for name in before.table.inputs:
        if name in others or varies(values[name].of) or values[name].role == "mask":
            continue
        if not np.array_equal(before.values[name], after[name]):
            raise InputError(f"{name} changes from step to step, which --backend c99 does not support")


def _of_begin(begin: InitialValues, tables: Mapping[str, Table]) -> tuple[str, ...]:
    """Return the comment on the initial values of weights."""
    if not any(table.renewed for table in tables.values()):
        return (f"Weights are as {begin.description}.",) if begin.arrays else ()
    if begin.arrays:
        return (f"Weights begin as {begin.description}, and no function draws them.",)
    deviation = str(DEVIATION)
    if begin.spread:
        deviation = f"the root of 2 over the inputs of a sum (He et al. 2015), of {DEVIATION} where rows are looked up"
    return (f"Matrices are drawn with a deviation of {deviation}; biases begin at 0, gains at 1.",)


def _titles(training: Training, tables: Mapping[str, Table], sizes: Mapping[str, int], plan: str) -> tuple[str, ...]:
    layer = training.configuration.layer
    axes = [axis for axis in ("B", "M", "N") if axis in (sizes if layer is None else letters(layer))]
    lengths = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes) or "the sizes of its table"
    under = f"under the plan {plan}" if plan else "under no plan"
    lines = [f"For {lengths}, {under}; entries: {', '.join(tables)}."]
    if (predict := tables.get("predict")) is not None and (line := over_batch(predict)):
        lines.append(
            f"{training.configuration.name} has no running statistics: a prediction normalizes {line} by the mean and "
            f"variance of the {sizes['B']} that it is called with, as a step does, so that what is said of one depends "
            "on the others."
        )
    if not find_procedure(training.settings.procedure).by_iterations:
        return tuple(lines)
    iteration = f"Only block {training.iteration}, the first of the cycle, is trained. The step of block K is that"
    return *lines, f"{iteration} of --procedure bp --train-layers K."


def freestanding(request: Request, flags: Freestanding) -> FirmwareSource:
    """Return the answer of `learncost emit MODEL --backend c99`. Raises `InputError`."""
    if flags.entry not in ENTRIES:
        raise InputError(f"entry must be {', '.join(ENTRIES)}, not {shown(flags.entry)}{nearest(flags.entry, ENTRIES)}")
    if request.optimizer == "none":
        raise InputError("--backend c99 requires an optimizer, or --entry predict")
    if flags.prefix is not None and not re.fullmatch(r"[A-Za-z]\w*", flags.prefix):
        raise InputError(f"prefix must be a valid start of a C name, not {shown(flags.prefix)}")
    kind = precision_of(request.dtype or "fp32")
    dtype = kind.computed
    checked, sizes = lengths_of(request)
    subject: object = request.model
    name = subject if isinstance(subject, str) else None
    if isinstance(subject, str | Layer):
        subject = configure(layer_or_model(subject), dict(sizes))
    if isinstance(subject, Model):
        subject = subject.configuration
    if not isinstance(subject, Configuration):
        raise InputError("--backend c99 requires a model, or a layer with a loss")
    numbers = {"clip": request.clip, "learning_rate": flags.learning_rate}
    numbers |= {"weight_decay": flags.weight_decay, "dropout": request.dropout}
    learning = {
        "procedure": request.procedure or "bp",
        "optimizer": request.optimizer or DEFAULT,
        "accumulate": check_size("accumulate", request.microbatches),
        **{name: float(number(name, value, False)) for name, value in numbers.items() if value is not None},
        **{name: getattr(request, name) for name in ADAPTING},
        **({"precision": kind.name} if kind.computed != kind.name else {}),
        **({"mode": request.mode} if request.mode else {}),
        **({"projected": tuple(flags.projected.split(","))} if flags.projected else {}),
    }
    device = None if request.on is None else find_device(request.on)
    if device and not device.core:
        raise InputError(f"--on requires a microcontroller; {device.name} has no core in its data")
    configuration, name = subject, name or subject.name
    settings = FirmwareOptions(
        flags.entry, flags.prefix or "model", request.plan, dtype=dtype, device=device, **checked
    )
    given, others = _read(_with_lengths(subject, settings), flags.weights)
    title = (f"{name}: one step of {learning['procedure']} with {learning['optimizer']}, by learncost {__version__}.",)
    text = f"{Path(flags.weights).name} has them" if flags.weights else ""
    source = FirmwareSource(
        program_of(configuration, settings, learning, given, title, text, others), flags.prefix is None
    )
    if flags.state_dict is not None:
        path = path_of("state_dict", (".safetensors",), flags.state_dict)
        write_arrays(path, source.state_dict(), {"format": "pt"})
    return source


def _read(configuration: Configuration, path: str | None) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """Return the weights of a file with our names, transformers' or a state_dict's, and the file's other entries."""
    if path is None:
        return None, {}
    arrays, _ = read_arrays(Path(path), "give --weights a file of weights")
    if configuration.layer is not None:
        known = _stored(configuration)
        ours = {name for name, array in known.items() if (name,) not in array.entry.paths}
        return _of_layer(configuration, arrays, path), {n: a for n, a in arrays.items() if n not in ours}
    arrays = {name.removeprefix("weights."): array for name, array in arrays.items()}
    model = build(configuration)
    if not set(model.table.weights) & set(arrays):
        arrays = from_checkpoint(model, arrays, path)
    check_finite(arrays, path, "give --weights a file of weights")
    return arrays, {}


def _of_layer(configuration: Configuration, state: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the arrays of a layer from a state_dict, or from arrays with their names in the table."""
    layer = configuration.layer
    assert layer is not None
    known = _stored(configuration)
    learned = {*layer.table.weights, *statistics_of(layer.table)}
    arrays = from_state(known, state, path)
    for name, array in known.items():
        given = state.get(name, state.get(f"weights.{name}"))
        if name not in arrays and given is not None:
            if given.size != prod(array.shape):
                raise InputError(f"{path}: {name} is {given.shape}, but must be {array.shape}")
            arrays[name] = given.reshape(array.shape)
    if layer.origin is not None and known.keys() - arrays.keys():
        buffers = {name: known[name] for name in known.keys() - arrays.keys() - learned}  # that no state_dict has
        arrays |= from_state(buffers, layer.origin.values(), path) if buffers else {}
    check_finite({n: a for n, a in arrays.items() if n in learned}, path, "give --weights a file of weights")
    counts = (name for name in learned if name.endswith("num_batches_tracked"))  # old files do not have them
    if missing := [name for name in known if name in learned - arrays.keys() - {*counts}]:
        paths = [several[0] for several in known[missing[0]].entry.paths]
        raise InputError(f"{path} has no {missing[0]}" + (f" ({', '.join(paths[:3])})" if paths != missing[:1] else ""))
    return arrays


def prefix_of(text: str) -> str:
    """Return a C identifier made of a file's or model's name."""
    name = re.sub(r"\W+", "_", Path(text).stem).strip("_")
    return f"m{name}" if not name or name[0].isdigit() else name
