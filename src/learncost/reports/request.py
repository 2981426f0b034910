"""A request: everything that can be asked about a step or about inference, built once and passed whole.

A function of a request is a question (`takes_request`): its flags, keywords and JSON schema are the fields that it
names, and whoever has a request already passes it as it is.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import BoundArguments, Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from learncost.ir.dataclass import dataclass, field, fields, replace
from learncost.ir.errors import InputError
from learncost.ir.precision import Precision, either, training_precision, without_autocast
from learncost.layers.layer import Layer
from learncost.models.argument import NamedLayer, described_elsewhere, layer_given
from learncost.models.configuration import Configuration
from learncost.models.files import DATA_FILES
from learncost.models.sizes import check_size
from learncost.models.tables import RUN
from learncost.procedures.procedure import INFERENCE, PAPER
from learncost.reports.question import asked, docstring_parts, flags_typed

if TYPE_CHECKING:
    from learncost.cost_models import Book
    from learncost.models.adaptation import Adaptation
    from learncost.timing.rates import Rates

Own = ParamSpec("Own")
Answer = TypeVar("Answer")

ADAPTING = ("train", "train_layers", "lora", "lora_rank", "lora_alpha", "dora")
"""The fields that say which parameters are trained."""


OF_MEMORY = (
    *("accumulate", "module", "optimizer_implementation", "clip", "loss", "checkpoint_every", "offload", "no_sync"),
    *("communication_buffers", "lora_dropout"),
)
"""The fields of a step on which its memory depends: every answer about a device has those of a trainer's file."""

ON_DEVICE = "clip module optimizer_implementation loss lora_dropout"
"""Those on which one device's memory depends, and no count: what a question with a device takes behind `|`."""

OPERATORS = "op"
"""Checkpoints by operators in place of blocks, as torchtitan calls them."""

TIMED = {"eager": "operators", "graph": "kernels", "c99": "kernels", "cuda": "kernels", "compiled": "operators"}
"""The engines whose time is modelled, and what each runs."""

CPU, GPU = "cpu", "cuda"
"""The devices, as PyTorch calls them; as the device of a request the second is any GPU."""

COMPILED = "compiled"
"""The engine of a module under `torch.compile`."""
OF_KERNELS = GPU, COMPILED
"""The engines that are timed kernel by kernel alone, on published GPUs."""

UNDER_AUTOCAST = 1.5
"""By how much more the interval of a time reaches up under autocast, whose casts are not priced: three steps measured
on an H100 took 1.3 to 2.5 times as long as predicted (benchmarks/h100_steps.json)."""

CONFIG = "config.json"
"""The name of a configuration that came as data."""

CALLED = {"subject": "model"}
"""The fields by other names that they have in a question: its subject may be a layer as well as a model."""

REQUIRED: Any = Parameter.empty
"""The default of a field that a question requires."""


@dataclass(frozen=True)
class Request:
    """All settings of a question about a step or inference, as given; `flags.toml` describes each.

    `sizes` are the sizes and settings of the model, in any spelling. The plan none is the empty one.
    """

    model: str | Configuration | Layer
    procedure: str = "bp"
    mode: str = PAPER
    price_book: str | Book = "run"
    batch_size: int | str | None = None
    seq_len: int | str | Sequence[int] | None = None
    target_len: int | str | None = None
    tokens: int | str | None = None
    context: int | str | None = None
    page_size: int | str | None = None
    optimizer: str | None = None
    dropout: float | str = 0.0
    dtype: str | None = None
    precision: str | None = None
    optimizer_implementation: str = ""
    accumulate: int | str | None = None
    clip: float | str | None = None
    loss: str = ""
    task: str = ""
    teacher: Any = None  # a name, a file, a Configuration
    checkpoint_every: int | str = 1
    offload: str = ""
    no_sync: bool = False
    communication_buffers: int | str | None = None
    train: object = None
    train_layers: object = None
    lora: object = None
    lora_rank: object = None
    lora_alpha: object = None
    dora: bool | None = None
    lora_dropout: float | str = 0.0
    plan: str | None = None
    mesh: str | None = None
    place: str | None = None
    placement: str | None = None
    engine: str = ""
    module: str = ""
    devices: int | str | None = None
    schedule: str = "1f1b"
    microbatch: int | str | None = None
    chunks: int | str | None = None
    on: Any = None  # a name, a file, a Device, Rates or a Cluster
    budget: int | str | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.plan is not None:
            from learncost.passes.plan import NONE  # imported where it is needed: start-up counts

            object.__setattr__(self, "plan", "" if self.plan.strip() == NONE else self.plan.strip())
        if self.task:
            from learncost.program.autograd.losses import TASKS, TrainedTask  # imported where used, for a fast start

            row = TASKS.get(self.task, TrainedTask())
            object.__setattr__(self, "sizes", {**row.sizes, **self.sizes})
            if row.pairs and self.batch_size is None:
                object.__setattr__(self, "batch_size", 2)  # the least: a pair

    @property
    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults, with the sizes of the model, by name; without the model."""
        usual = {each.name: each.default for each in fields(self)}
        named = {name: getattr(self, name) for name in usual if name not in ("model", "sizes", "reading")}
        if self.plan == "":
            from learncost.passes.plan import NONE  # imported where it is needed: start-up counts

            named["plan"] = NONE
        # what is typed is a text: --checkpoint-every 1 is the default
        other = {name: value for name, value in named.items() if value not in (usual[name], f"{usual[name]}")}
        return other | {**self.sizes}

    @property
    def lengths(self) -> dict[str, Any]:
        """The batch size and the lengths of sequences that were given, by name."""
        return {name: value for name in RUN if (value := getattr(self, name)) is not None}

    @property
    def microbatches(self) -> int | str:
        """The microbatches of gradient accumulation on one device: one where none are given."""
        return 1 if self.accumulate is None else self.accumulate

    @property
    def is_typed(self) -> bool:
        """Return whether a precision was given."""
        return self.dtype is not None or self.precision is not None

    @property
    def is_training(self) -> bool:
        """Return whether the procedure is a training step, not inference."""
        return self.procedure not in INFERENCE

    def kind(self, counts_alone: bool = False, trains: bool | None = None) -> Precision:
        """Return the precision, or the usual one if none was given. Raises `InputError`.

        counts_alone  whether nothing but operations is counted, so that types of products alone are allowed
        trains        whether the answer depends on the types of updates; by default where the procedure is training
        """
        depends = self.is_training if trains is None else trains
        usual = "" if self.is_typed else self.usual_precision(depends)
        kind = either(self.dtype, self.precision, usual, counts_alone=counts_alone, trains=depends)
        if kind.autocast and not counts_alone:
            self._check_autocast(kind.name, without_autocast(kind))
        return kind

    def _check_autocast(self, name: str, masters: str) -> None:
        if not self.is_training:
            raise InputError(f"--precision {name} is that of training steps: give fp32, bf16 or fp16 for inference")
        if self.mesh is not None and self.timed_by != "eager":
            raise InputError(
                f"--precision {name} over a mesh requires --engine eager, PyTorch's autocast: give that, or "
                f"--precision {masters}"
            )

    @property
    def timed_by(self) -> str:
        """Return the engine whose time is predicted: eager by default, and graph over a mesh."""
        return self.engine or ("graph" if self.mesh else "eager")

    @property
    def timed_as(self) -> str:
        """Return what the engine runs: PyTorch's operators, or this package's kernels. Raises `InputError`."""
        if self.timed_by not in TIMED:
            raise InputError(f"--engine {self.engine} has no model of time: give --engine {' or '.join(TIMED)}")
        if self.timed_by in OF_KERNELS and (self.mesh or not self.is_training):
            raise InputError(f"--engine {self.engine} runs training steps on one GPU: give --engine graph")
        return TIMED[self.timed_by]

    @property
    def one_of_several(self) -> str:
        """Return the remark that the memory is that of one of the devices of a cluster; empty for others."""
        if self.on is None or self.mesh:
            return ""
        from learncost.devices.cluster import cluster_of  # imported where it is needed: start-up counts

        group = cluster_of(self.on)
        return f" on one of {group.devices} devices" if group and group.devices > 1 else ""

    def rates(self, kind: Precision) -> Rates | None:
        """Return the rates of the request's device in a precision; None without a device."""
        if self.on is None:
            return None
        from learncost.devices.rates import rates  # imported where it is needed: start-up counts

        found = rates(self.on, kind.values, self.timed_as)
        return replace(found, high=UNDER_AUTOCAST * found.high) if kind.autocast else found

    def usual_precision(self, trains: bool) -> str:
        """Return the name of the precision where none is given. Raises `InputError` for an unknown device.

        It is that of the device: of bf16, fp16 and fp32 the first with a published peak, in training with fp32 master
        weights; of a calibrated machine the type that was measured. It is fp32 without a device and on any GPU.
        """
        if self.on is None or self.on == GPU:
            return "fp32"
        from learncost.devices.cluster import cluster_of  # imported where it is needed: start-up counts
        from learncost.devices.device import device
        from learncost.devices.rates import calibrated

        if measured := calibrated(self.on, engine=TIMED.get(self.timed_by, "operators")):
            dtype = measured.dtype or "fp32"
        else:
            group = cluster_of(self.on)
            dtype = (group.device if group else device(self.on)).trained_in
        return training_precision(dtype) if trains else dtype

    @property
    def adapts(self) -> bool:
        """Return whether anything is said about which parameters are trained."""
        return any(getattr(self, name) is not None for name in ADAPTING)

    def in_precision(self, name: str) -> Request:
        """Return the same request in a precision."""
        return replace(self, dtype=None, precision=name)

    def adaptation(self, kind: Precision | None = None) -> Adaptation | None:
        """Return what is trained, if the request says it; `kind` is the precision. Raises `InputError`."""
        if not self.adapts:
            return None
        from learncost.models.adaptation import adaptation  # imported where it is needed: start-up counts

        quantizes = kind is not None and kind.quantized is not None
        return adaptation(
            self.train, self.train_layers, self.lora, self.lora_rank, self.lora_alpha, self.dora, quantizes
        )

    @property
    def tokens_in_page(self) -> int:
        """Return the tokens in a page of the KV cache, by default 1. Raises `InputError`."""
        return 1 if self.page_size is None else check_size("page_size", self.page_size)

    def check_without_cache(self, of: str) -> None:
        """Raise `InputError` for settings of a KV cache, which a training step or a model does not have."""
        for name, several in (("context", "decode"), ("page_size", "prefill or decode")):
            if getattr(self, name) is not None:
                raise InputError(f"--{name.replace('_', '-')} requires --procedure {several}: {of} has no KV cache")

    @property
    def is_sharded(self) -> bool:
        """Return whether the step is over a mesh. Raises `InputError` for settings of a mesh without one."""
        if self.mesh is None:
            for name in ("placement", "place", "microbatch", "chunks", "schedule"):
                if given := self.given.get(name):
                    over = f"dp={self.devices}" if self.devices and f"{given}".startswith("zero") else "dp=2,tp=4"
                    raise InputError(f"--{name} {given} requires --mesh, for example --mesh {over}")
        return self.mesh is not None

    @property
    def model_name(self) -> str:
        """The model as typed: a name, a path, or for data the name of its file."""
        if isinstance(self.model, str):
            return str(self.model)
        return f"{self.model.name}.table" if isinstance(self.model, Layer) else getattr(self.model, "name", CONFIG)

    def command(self, command: str, **more: Any) -> str:
        """Return the equivalent command line; `more` are flags of the command alone."""
        read_by = getattr(self.model, "read_by", ())
        return shlex.join(["learncost", command, self.model_name, *read_by, *flags_typed(self._given_with(more))])

    def call(self, function: str, **more: Any) -> str:
        """Return the equivalent Python call; `more` are keywords of the function alone."""
        layer = layer_given(self.model)
        live = layer is not None and layer.steps is not None
        model = "lc.from_module(module, inputs)" if live else repr(self.model_name)
        given = self._given_with(more).items()
        keywords = (f"{name.replace('-', '_')}={_literal(value)}" for name, value in given)
        return f"lc.{function}({', '.join((model, *keywords))})"

    def _given_with(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in {**self.given, **more}.items() if value is not None}


def _literal(value: object) -> str:
    """Return a value as a Python literal; digits become a number."""
    return value if isinstance(value, str) and value.isascii() and value.isdecimal() else repr(value)


_FIELDS = {each.name: each for each in fields(Request)}
_TEXTS = {name for name, each in _FIELDS.items() if each.type in ("str", "str | None")}


def takes_request(
    names: str, grouped: type[Any] | None = None, **defaults: Any
) -> Callable[[Callable[Concatenate[Request, Own], Answer]], Callable[..., Answer]]:
    """Make a function of a request a question that accepts a `Request` or the named fields as keywords.

    Sizes of the model are always taken.

    names     the fields of the request that the question has, in the order of its parameters, among them the names of
              the function's own parameters; those before `/` are no keywords, and those behind `*` are keywords only,
              as are own ones that are not named; those behind `|` are keywords that are refused without a device
    grouped   a dataclass whose fields are keywords too: the function takes it whole, as its second argument
    defaults  of fields that have another default in this question
    """
    sizes = Parameter("sizes", Parameter.VAR_KEYWORD, annotation="Any")

    def make(function: Callable[Concatenate[Request, Own], Answer]) -> Callable[..., Answer]:
        own = [*signature(function).parameters.values()][1 if grouped is None else 2 :]
        device_alone = names.partition("|")[2].split()
        several = [parameter for parameter in own if parameter.kind is Parameter.VAR_POSITIONAL]
        more = {p.name: p for p in (*own, *(signature(grouped).parameters.values() if grouped else ()))}
        words = names.replace("|", "" if several or "*" in names else "*")
        named = [*_parameters(f"* {words}" if several else words, {**more, **defaults})]
        listed = {parameter.name for parameter in (*named, *several)}
        keywords = [p.replace(kind=Parameter.KEYWORD_ONLY) for name, p in more.items() if name not in listed]
        accepted = Signature([*several, *named, *keywords, sizes])
        grouped_names = {each.name for each in fields(grouped)} if grouped else set()

        usual = {name: value for name, value in defaults.items() if value is not REQUIRED}

        def requested(request: Request, *others: Any, **arguments: Any) -> BoundArguments:
            """Return the arguments of the function for a request; those that are missing are the request's, or usual.

            As of trainers' files, fields that the question does not have are left out, unless memory depends on them.
            """
            given = {name: value for name, value in request.given.items() if name not in request.sizes}
            given |= {"model": request.model, "sizes": request.sizes}
            of_files = _of_files(given, {each.name for each in named}, arguments.get("devices"))
            request = request if of_files is given else Request(**of_files)
            check_has(request.given, accepted.parameters, is_placed="devices" in accepted.parameters)
            kept = {CALLED.get(name, name) for name in accepted.parameters} | {"model", "sizes", *OF_MEMORY}
            others_usual: dict[str, Any] = {name: each.default for name, each in _FIELDS.items() if name not in kept}
            request = replace(request, **others_usual)
            given = request.given
            of_group = {name: arguments.pop(name) for name in [*arguments] if name in grouped_names}
            usual_here = {name: value for name, value in usual.items() if name not in given}
            bound = signature(function).bind_partial(replace(request, **usual_here), *others, **arguments)
            if grouped:
                bound.arguments.setdefault([*signature(function).parameters][1], grouped(**of_group))
            in_place = {"subject": request.model} | ({several[0].name: (request.model,)} if several else {})
            for name, value in {**given, **in_place}.items():
                if name in more:
                    bound.arguments.setdefault(name, value)
            return bound

        def call(*args: Any, **arguments: Any) -> Answer:
            if args and isinstance(args[0], Request):
                bound_request = requested(*args, **arguments)
                return function(*bound_request.args, **bound_request.kwargs)
            try:
                bound = accepted.bind(*args, **arguments).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            of_group = {name: bound.pop(name) for name in [*bound] if name in grouped_names}
            of_function = {name: bound.pop(name) for name in [*bound] if name in more}
            models: tuple[Any, ...] = of_function.pop(several[0].name, ()) if several else ()
            bound = {name: value for name, value in bound.items() if value is not None or name == "model"}
            named_bound = {CALLED.get(name, name): value for name, value in bound.items()}
            named_bound |= {name: _text(name, named_bound[name]) for name in _TEXTS & named_bound.keys()}
            if alone := [name for name in device_alone if name in bound and bound.get("on") is None]:
                raise InputError(f"--{alone[0].replace('_', '-')} requires --on: counts do not depend on it")
            one_model = len(models) == 1 and several[0].name == "models"
            if one_model:
                named_bound["model"] = models[0]
            named_bound = _of_files(named_bound, {each.name for each in named}, of_function.get("devices"))
            if one_model:
                models = (named_bound.pop("model"),)
            if "model" in named_bound:
                named_bound["model"] = _model_given(named_bound["model"])
            models = tuple(map(_model_given, models))
            request = Request(**{"model": "", **usual, **named_bound})
            return function(request, *((grouped(**of_group),) if grouped else ()), *models, **of_function)

        question = asked(function, accepted, call, docstring_parts(grouped).parameters if grouped else {})
        question.__dict__["device_alone"] = frozenset(device_alone)
        return question

    return make


def check_has(of_step: Mapping[str, Any], names: Collection[str], is_placed: bool = False) -> None:
    """Raise `InputError` for a task, or on a device adapters or a mesh, that a question without their field would drop.

    of_step    the fields of a step, as trainers' files say them
    is_placed  whether the question chooses a mesh itself
    """
    if of_step.get("task") and "task" not in names:
        task = of_step["task"]
        raise InputError(f"the step is of task {task}, which only learncost memory, cost and run-cost support")
    for name, what in {"lora": "has adapters", "mesh": "is over several devices"}.items():
        if name in of_step and "on" in names and name not in names and not (name == "mesh" and is_placed):
            given = of_step[name] or "dp=N"
            raise InputError(
                f"the step {what} ({name} {given}), which only learncost memory, cost and run-cost support"
            )


def _of_files(given: dict[str, Any], names: Collection[str], devices: object) -> dict[str, Any]:
    """Return the fields of a question about trainers' files: what the files say, replaced by what is given.

    names    the fields that the question has; what files say for others is left out, if memory does not depend on it
    devices  their number, if the question has it itself
    """
    model = given.get("model")
    if not isinstance(model, list | tuple) and not str(model).lower().endswith(DATA_FILES):
        return given
    from learncost.reports.trainer_step import for_question, keywords_of, paths_of, read_step  # imported where needed

    if not (paths := paths_of(model)):
        return given
    typed = {name: value for name, value in given.items() if name != "model"}
    reading, model = read_step(paths)
    if devices is None and "devices" in reading.asks and typed.get("mesh") is None:
        check_has({"mesh": ""}, names)  # nothing else would be asked for in vain
    of_files = keywords_of(reading, model, **{"devices": devices, **typed})
    check_has(of_files, names, is_placed=devices is not None)
    if "engine" not in typed:
        of_files = for_question(of_files, names)
    kept = {*names, "model", "sizes"} | ({*OF_MEMORY} if typed.get("procedure") not in INFERENCE else set())
    sizes = {**of_files.pop("sizes", {}), **typed.pop("sizes", {})}
    return {name: value for name, value in of_files.items() if name in kept} | typed | {"sizes": sizes}


def _text(name: str, value: object) -> str:
    """Return the text of a field, of a list with commas between its texts. Raises `InputError`."""
    several = value if isinstance(value, list | tuple) else [value]
    texts = [each for each in several if isinstance(each, str)]
    if not texts or len(texts) < len(several):
        raise InputError(f"--{name.replace('_', '-')} must be a text, not {value!r}")
    return ",".join(texts)


def _model_given(model: Any) -> Any:
    """Return a MODEL argument; of a config.json whose type no family supports, the table of its package's class."""
    path = os.fspath(model) if isinstance(model, str | os.PathLike) else ""
    if isinstance(model, NamedLayer) or described_elsewhere(path) is None:
        return model
    from learncost.importer.files.reading import layer_of  # imported where it is needed: start-up counts

    return layer_of(path)


def _parameters(names: str, defaults: Mapping[str, Any]) -> Iterable[Parameter]:
    """Return the parameters of fields in order: positional-only before `/`, keyword-only after `*`.

    defaults  by name, a default or a whole parameter
    """
    kinds: Mapping[str, Any] = {"/": Parameter.POSITIONAL_OR_KEYWORD, "*": Parameter.KEYWORD_ONLY}
    kind: Any = Parameter.POSITIONAL_ONLY if "/" in names.split() else Parameter.POSITIONAL_OR_KEYWORD
    for name in names.split():
        if name in kinds:
            kind = kinds[name]
            continue
        if isinstance(own := defaults.get(name), Parameter):
            yield own.replace(kind=kind)
            continue
        known = _FIELDS[CALLED.get(name, name)]
        usual = defaults.get(name, REQUIRED if known.name == "model" else known.default)
        yield Parameter(name, kind, default=usual, annotation=known.type)
