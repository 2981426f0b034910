"""Trainers' files as questions: the keywords that a file stands for, and what became of its keys."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import dataclass, field, fields, made_of, replace
from learncost.ir.errors import InputError, counted, printable, shown
from learncost.ir.precision import PRECISIONS, without_autocast
from learncost.passes.plan import NONE
from learncost.program.autograd.losses import TASKS
from learncost.program.optimizer_step import CLASSES
from learncost.reports.question import flags_typed
from learncost.reports.request import OPERATORS, Request
from learncost.reports.sheet import WIDTH, Sheet, TableColumn, TabularAnswer, table
from learncost.sharding.mesh import mesh as mesh_of
from learncost.sharding.presets import NAMED
from learncost.trainer_files.framework import ENGINE, FULL, SELECTIVE, Step
from learncost.trainer_files.names import copied, family_of, named
from learncost.trainer_files.reading import (
    AXES,
    NAMED_FILES,
    KeyRead,
    Reading,
    TrainerFiles,
    is_trainer_file,
    read_files,
)

HUB = Path("~/.cache/huggingface/hub")
"""The folder of huggingface_hub's downloads on this machine; it is read, and nothing is fetched."""

OF_EAGER = (
    *("loss", "lora_dropout", "checkpoint_every", "offload", "offload_activations", "plan"),
    *("optimizer_implementation", "no_sync"),
)
"""Fields that engine eager alone counts, and over a mesh not always."""

FLAGS = {"offload_activations": "offload"}
"""The keywords of fields that have no own one."""

WITHOUT_AUTOCAST = {name: without_autocast(kind) for name, kind in PRECISIONS.items() if kind.autocast}
"""The precision of sharded weights, which are gathered in 16 bits, and the nearest one of engines without autocast."""

DEFAULTS = {"accumulate": 1, "optimizer": "adamw", "optimizer_implementation": "fused"}
"""The values of fields that questions need not say."""

MODULES = (*(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down")))
"""The linear modules of a block of Llama and its kin, by their names in transformers."""

UNSPECIFIED_TASK = "preference"
"""The task of files that are of a step on pairs, and do not say of which."""

LONGEST = 200  # characters of a pattern of modules
NESTED = re.compile(r"\)[*+{]|([*+{].*){5}")  # repetitions in a pattern that may take exponential time

DATA = {0: "ddp", 1: "zero-1", 2: "zero-2", 3: "fsdp"}
"""The placement of a stage of ZeRO."""


def paths_of(model: object) -> tuple[str, ...]:
    """Return the paths that a MODEL argument joins if it is trainers' files, else none."""
    if isinstance(model, TrainerFiles):
        return model if any(map(is_trainer_file, model)) else ()
    several = model if isinstance(model, list | tuple) else (model,)
    paths = tuple(os.fspath(path) if isinstance(path, os.PathLike) else path for path in several)
    return paths if any(map(is_trainer_file, paths)) else ()


def read_step(paths: Sequence[str]) -> tuple[Reading, str]:
    """Return the reading of trainers' files, and the model that stands behind them; empty if none does.

    Raises InputError for files that cannot be read, and under `strict` for keys that are not known.
    """
    files = paths if isinstance(paths, TrainerFiles) else TrainerFiles(paths)
    models = [path for path in paths if not is_trainer_file(path)]
    if len(models) > 1:
        raise InputError(f"{shown(models[0])} and {shown(models[1])} are both models: give one behind a trainer's file")
    reading = read_files([path for path in paths if path not in models] or paths, files.format_of, bool(models))
    if files.strict and reading.unknown:
        unknown = ", ".join(printable(each.key) + each.near for each in reading.unknown)
        raise InputError(f"{printable(reading.files[0])} has keys that are not known: {unknown}")
    return reading, "".join(models)


def keywords_of(reading: Reading, model: str = "", **given: Any) -> dict[str, Any]:
    """Return the keywords of the question that a trainer's files ask, with the model among them.

    model  a preset or a config.json in place of theirs
    given  keywords that replace what the files say

    Raises InputError if the files are no training that can be predicted, or do not say what is needed.
    """
    where = printable(reading.files[0])
    if reading.refused and not (reading.step.task == UNSPECIFIED_TASK and given.get("task")):
        raise InputError(f"{where}: {reading.refused}")
    sizes = {name.replace("-", "_") for name in {**given, **given.get("sizes", {})}}
    step = _with_own_loss(reading.step.having("task", given.get("task") or reading.step.task))
    if given.get("devices") is not None and step.devices is None:
        step = step.having("devices", counted(given["devices"]))
    asked = given.get("mesh") or ""
    mesh, placement = _mesh(step, dict(mesh_of(asked, step.devices).axes) if asked else None)
    if deepspeed := any(each.role == ENGINE for each in reading.frameworks):
        placement = placement.replace("fsdp", "zero-3")  # as DeepSpeed calls it
    if missing := next((name for name in NAMED_FILES if name in reading.asks), ""):
        named_file = missing.replace("the a", "an a").replace("the ", "a ")
        raise InputError(f"{where} names {named_file} that is not in its folder: give that file behind it")
    unknown = [axis for axis in AXES if axis in reading.asks]
    if given.get("mesh") is None and (unknown or (given.get("devices") is None and "devices" in reading.asks)):
        sizes_known = {axis: step.get(axis) or 1 for axis in AXES} | dict.fromkeys(unknown, "N")
        inner = "".join(f",{axis}={size}" for axis, size in sizes_known.items() if size != 1)
        shards = f"shards the step ({placement}) and " if placement else ""
        raise InputError(f"{where} {shards}does not say over how many devices: add --mesh dp=N{inner}")
    if step.seq_len is None and given.get("seq_len") is None:
        raise InputError(f"{where} does not say the length of sequences: add --seq-len N")
    if "batch_size" in reading.asks and given.get("batch_size") is None:
        raise InputError(f"{where} does not say the sequences of a step: add --batch-size N")
    if "vocab_size" in reading.asks and not model and "vocab_size" not in sizes:
        raise InputError(f"{where} does not say the size of the vocabulary: add --vocab-size N")
    over_mesh = bool(asked or mesh)
    data = _data_parallel(asked or mesh, step.devices) if over_mesh else 1
    accumulate = _accumulated(step, data, given)
    described = not model and not step.model and "model_type" in (step.sizes or {})
    every = step.checkpoint_every or 1
    again = step.checkpointing == FULL or (step.checkpointing == SELECTIVE and every != 1)
    step = step if _sums_whole(placement if over_mesh else "", accumulate) else step.having("no_sync", False)
    by_eager = given.get("engine") in (None, "eager")
    by_eager &= not (over_mesh and (_unwrapped(step, placement) or (deepspeed and placement == DATA[2])))
    task = TASKS.get(step.task)
    if task and over_mesh and not by_eager:
        raise InputError(f"{where}: {step.task} is not predicted over this mesh ({placement}): add --devices 1")
    kept = not over_mesh or (by_eager and placement == "ddp")  # autocast
    precision = step.precision if kept else WITHOUT_AUTOCAST.get(step.precision or "", step.precision)
    engine = "eager" if over_mesh and by_eager and _needs_eager(step, precision) else None
    has_chunks = over_mesh and (step.pp or 1) > 1 and (step.chunks or 1) > 1
    own = step.module or ("transformers-reentrant" if again and step.reentrant else None)
    parameters = (".".join(name.split(".")[-2:]) for name in (step.lora_parameters or "").split(","))
    lora = ",".join(filter(None, (_targets(step.lora), *parameters))) or None
    keywords: dict[str, Any] = {
        "model": step.sizes if described else model or _model(step, reading),
        "batch_size": (1 if step.micro_batch_size is None else step.micro_batch_size)
        * accumulate
        * data
        * (2 if task and task.pairs else 1),
        "seq_len": step.seq_len,
        "accumulate": accumulate,
        "microbatch": step.micro_batch_size if accumulate == 1 and "pp" in placement.split(",") else None,
        "procedure": "recompute" if again and (every == 1 or by_eager) else None,
        "checkpoint_every": every if every != 1 and again and by_eager else None,
        "module": own if by_eager and (engine or not over_mesh or given.get("engine")) else None,
        "precision": precision if given.get("dtype") is None else None,
        "optimizer": step.optimizer,
        "optimizer_implementation": _implementation(step) if by_eager else None,
        "clip": step.clip or None,
        "dropout": step.dropout or None,
        "engine": engine,
        "loss": step.loss if by_eager else None,
        "task": step.task if task else None,
        "teacher": _teacher(step, reading) if task and task.teacher and given.get("teacher") is None else None,
        "offload": _offloaded(step, over_mesh) if by_eager else None,
        "no_sync": step.no_sync or None if by_eager else None,
        "communication_buffers": step.communication_buffers if over_mesh else None,
        "plan": step.plan if (accumulate == 1 and not step.clip) or step.plan == NONE else None,
        "lora": lora,
        "train": step.also_trained if lora else None,
        **({"lora_rank": step.lora_rank, "lora_alpha": step.lora_alpha, "dora": step.dora} if lora else {}),
        "lora_dropout": (step.lora_dropout or None) if lora and by_eager else None,
        "mesh": mesh or None,
        **(_placed(placement, mesh_of(asked or mesh, step.devices).names) if over_mesh else {}),
        **({"schedule": "interleaved", "chunks": step.chunks} if has_chunks else {}),
        "sizes": {**step.sizes, **given.get("sizes", {})} if step.sizes and step.model and not model else None,
    }
    return {name: value for name, value in keywords.items() if value is not None and DEFAULTS.get(name) != value}


def for_question(keywords: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the keywords of a question with fields of these names, of which some have no engine eager over a mesh."""
    alone = () if "loss" in names else ("engine", "module", *OF_EAGER) if "engine" in keywords else ("engine",)
    kept = {name: value for name, value in keywords.items() if name not in alone}
    if kept.get("checkpoint_every") == OPERATORS and "checkpoint_every" not in names:
        kept.pop("procedure")  # which runs whole blocks again, and few products with this selection
    if "loss" not in names and ("mesh" in kept or "engine" not in names):
        kept |= {"precision": WITHOUT_AUTOCAST[kept["precision"]]} if kept.get("precision") in WITHOUT_AUTOCAST else {}
    return kept


def _with_own_loss(step: Step) -> Step:
    """Return a step of another task than the next token with that task's loss alone."""
    return step.having("loss", None) if step.task in TASKS else step


def _needs_eager(step: Step, precision: str | None) -> bool:
    """Return whether a step over a mesh has a setting that engine eager alone counts, or counts exactly: checkpoints
    and codes, which PyTorch gathers and dequantizes block by block."""
    kind = PRECISIONS.get(precision or "")
    precise = step.checkpointing == FULL or precision in WITHOUT_AUTOCAST or (kind and kind.quantized)
    return bool(precise) or step.task in TASKS or any(map(partial(_counts, step), OF_EAGER))


def _counts(step: Step, name: str) -> bool:
    """Return whether a step has a field that engine eager alone counts, with another value than the usual one."""
    value = _implementation(step) if name == "optimizer_implementation" else step.get(name)
    return bool(value) and value != DEFAULTS.get(name)


def _unwrapped(step: Step, placement: str) -> bool:
    """Return whether PyTorch's wrappers do not place a step over a mesh as its files say, so that graph answers."""
    kind, parts = PRECISIONS.get(step.precision or ""), {*placement.split(",")}
    alone = step.loss or step.task in TASKS or (kind and kind.quantized)  # which no parts of a vocabulary have
    inside = {"megatron", "megatron-sp"} if {"fsdp", "hsdp", "zero-3"} & parts and not alone else set()
    wraps = len(parts - inside) == 1 and parts - inside <= {"ddp", "zero-2", "fsdp", "zero-3", "hsdp"}
    return not wraps or step.plan not in (None, NONE)


def _sums_whole(placement: str, accumulate: int) -> bool:
    """Return whether it matters to a step that FSDP reduces gradients behind the last microbatch alone."""
    return accumulate > 1 and bool({"zero-2", "fsdp", "hsdp"} & {*placement.split(",")})


def not_counted(reading: Reading, keywords: Mapping[str, Any]) -> tuple[KeyRead, ...]:
    """Return the keys of what engine eager alone counts, which another one answers over the mesh of the files.

    keywords  those of the question
    """
    whole = _sums_whole(str(keywords.get("placement", "")), int(keywords.get("accumulate", 1)))
    step = _with_own_loss(reading.step if whole else reading.step.having("no_sync", False))
    lost = [name for name in OF_EAGER if _counts(step, name) and FLAGS.get(name, name) not in keywords]
    lost += ["offload"] if step.offload == "weights" and "optimizer" in keywords.get("offload", "") else []
    replaced, placement = WITHOUT_AUTOCAST.get(step.precision or ""), str(keywords.get("placement", "ddp"))
    if replaced and keywords.get("precision") == replaced and placement == "ddp":
        lost.append("precision")
    why = "which is not counted over this mesh"
    more = {"no_sync": ": the peak is higher, as gradients stay whole up to the last microbatch"}
    more["offload"] = ": weights stay on one device, and the peak is higher by them" if "mesh" not in keywords else ""
    more["precision"] = f", but as {replaced}: the peak is higher by copies in 16 bits and the fp32 residual stream"
    return tuple(
        replace(key, effect=f"{name} = {step.get(name)}, {why}{more.get(name, '')}")
        for name in lost
        for key in (*reading.read, *reading.assumed)
        if f"{name} = " in key.effect and (name != "lora_dropout" or step.lora)
    )


def _targets(lora: str | None) -> str | None:
    """Return the modules with LoRA; a text that is no name is a pattern of whole names, as in peft."""
    if lora and not {*lora} & {*"()[]*\\|+"}:
        names = lora.split(",")
        return ",".join(dict.fromkeys(re.sub(r"^(self_attn|mlp)\.", "", name) for name in names))
    if not lora or len(lora) > LONGEST or NESTED.search(lora):
        return lora
    try:
        pattern = re.compile(lora)
    except re.error:
        return lora
    layers = ("model.layers.0", "model.language_model.layers.0", "language_model.model.layers.0")
    names = [f"{layer}.{module}" for layer in layers for module in MODULES]
    return ",".join(dict.fromkeys(name.rpartition(".")[2] for name in names if pattern.fullmatch(name))) or lora


def _offloaded(step: Step, over_mesh: bool) -> str | None:
    """Return what is offloaded; weights are where they are sharded, and on one device all else of their offload."""
    states = "optimizer" if step.offload == "weights" and not over_mesh else step.offload
    return ",".join(filter(None, (states, "activations" if step.offload_activations else ""))) or None


def _implementation(step: Step) -> str | None:
    """Return the implementation of the optimizer, if PyTorch has it."""
    known = CLASSES.get(step.optimizer or "adamw")
    return step.optimizer_implementation if known and step.optimizer_implementation in known.implementations else None


def _accumulated(step: Step, data: int, given: Mapping[str, Any]) -> int:
    """Return the microbatches of an optimizer step on one device."""
    if given.get("accumulate") is not None:
        return int(given["accumulate"])
    if step.accumulate is None and step.global_batch_size and step.micro_batch_size:
        return max(1, step.global_batch_size // (step.micro_batch_size * data))
    return step.accumulate or 1


def _mesh(step: Step, asked: Mapping[str, int] | None) -> tuple[str, str]:
    """Return the mesh and the placement of a step; no mesh where the number of devices is unknown, or one.

    asked  the axes of another mesh, which is placed instead
    """
    inner = {name: value for name, value in (("pp", step.pp), ("cp", step.cp), ("tp", step.tp)) if value and value > 1}
    replicate, shard, zero, experts = step.replicate or 1, step.shard or 1, step.zero or 0, step.ep or 1
    shard //= 1 if shard % experts else experts  # the devices of experts are among those of data parallelism
    data = {"dp": replicate, "shard": shard} if replicate > 1 and shard > 1 else {"dp": max(replicate, shard)}
    if data == {"dp": 1} and (step.dp or step.devices):
        data = {"dp": step.dp or max(1, (step.devices or 1) // prod((*inner.values(), experts)))}
    axes = asked or {"pp": inner.get("pp", 1), **data, "ep": experts, **inner}  # the last one is the innermost
    axes = {name: value for name, value in axes.items() if value > 1}
    placed = "hsdp" if "shard" in axes and "dp" in axes else DATA[zero]
    tensors = "megatron-sp" if step.sequence_parallel else "megatron"
    names = [name for name in axes if name in ("pp", "cp")]
    is_open = asked is None and not (axes and (step.devices or step.shard))  # devices that are asked for
    names += [placed] if {"dp", "shard"} & {*axes} or (zero and (is_open or "ep" in axes)) else []
    names += [each for axis, each in (("tp", tensors), ("ep", "ep")) if axis in axes]
    return ",".join(f"{name}={value}" for name, value in axes.items()), ",".join(names)


def _placed(placement: str, axes: Collection[str]) -> dict[str, str | None]:
    """Return placements as keywords: shards of data parallelism are over the devices of experts, too."""
    names = placement.split(",") if placement else []
    cut = next((NAMED[name].place.rpartition(" of ")[2] for name in names if " * over " in NAMED[name].place), "")
    if "ep" not in names or not cut:
        return {"placement": placement or None}
    others = [name for name in names if name != "ep" and ("dp" in axes or "dp" not in NAMED[name].mesh_axes)]
    return {"place": f"{NAMED['ep'].place}, * over ep of {cut}", "placement": ",".join(others) or None}


def _data_parallel(text: str, devices: int | None) -> int:
    """Return over how many devices of a mesh the sequences are split."""
    return prod(size for name, size in mesh_of(text, devices).axes if name in ("dp", "shard", "ep"))


def _model(step: Step, reading: Reading) -> str:
    """Return the preset or the config.json of a file's model. Raises `InputError` for an unknown one."""
    name, where = step.model or "", printable(reading.files[0])
    key = next((each for each in reading.read if each.effect.startswith("model = ")), None)
    if known := named(name):
        return known.name
    own = Path(reading.files[0]).parent / name / "config.json"
    folder = HUB.expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    found = [own] if ".." not in name and own.is_file() else sorted(folder.glob("*/config.json"))
    if name and found:
        return str(found[-1])
    line = f", line {key.line}" if key and key.line else ""
    copy, _ = copied(name)
    if copy:
        return copy.name
    if not name and not {"hidden_size", "d_model", "n_embd"} & {*(step.sizes or ())}:
        raise InputError(f"{where} does not name its model: add a preset or the path of a config.json after the file")
    if not name:
        raise InputError(
            f"{where} describes a kind of model that is not known here: add the path of a config.json, or a preset of "
            "the same sizes, after the file"
        )
    family, is_known = family_of(name)
    kind = f"; its family, {family}, is {'known' if is_known else 'not known here'}" if family else ""
    add = "a preset of similar sizes" if family and not is_known else "the path of its config.json"
    raise InputError(
        f"{where}{line}: {key.key if key else 'the model'} {shown(name)} is no known preset, and nothing is fetched"
        f"{kind}: add {add} after the file"
    )


def _teacher(step: Step, reading: Reading) -> str:
    """Return the preset of a file's teacher. Raises `InputError` for an unknown one."""
    name = step.teacher or ""
    builders = (
        str(rule.fields["model"])
        for framework in reading.frameworks
        for rule in framework.rules
        if rule.fields and "model" in rule.fields and rule.holds(dict.fromkeys(rule.conditions, name), {})
    )
    known = named(next((each for each in builders if "$" not in each), name)) or copied(name)[0]
    if known is None:
        raise InputError(
            f"{printable(reading.files[0])}: the teacher {shown(name)} is no known preset: add --teacher MODEL"
        )
    return known.name


def _by_name(reading: Reading, model: str) -> tuple[KeyRead, ...]:
    """Return the key of a model that is known as a copy of another by its name."""
    name = reading.step.model or ""
    key = next((each for each in reading.read if each.effect.startswith("model = ")), None)
    copy, is_quantized = copied(name)
    if model or not key or not copy or named(name):
        return ()
    stored = ", whose weights are quantized: they are counted as the file loads them" if is_quantized else ""
    return (KeyRead(key.file, key.key, name, f"a copy of {copy.name} by its name{stored}", key.line),)


@dataclass(frozen=True)
class TrainerRequest(Request):
    """A request that trainers' files make.

    reading      what became of every key
    read         keys that give the step
    assumed      keys that are absent, with their defaults
    no_effect    keys that change neither memory nor time
    unsupported  keys whose effect is not counted
    unknown      keys that are not known
    asks         what the files do not say
    """

    reading: Reading = field(kw_only=True)

    read = property(attrgetter("reading.read"))
    assumed = property(attrgetter("reading.assumed"))
    no_effect = property(attrgetter("reading.no_effect"))
    unsupported = property(attrgetter("reading.unsupported"))
    unknown = property(attrgetter("reading.unknown"))
    asks = property(attrgetter("reading.asks"))


def request_of(*files: str, format_of: str = "", strict: bool = False, **given: Any) -> TrainerRequest:
    """Return the request that trainers' files make.

    Parameters
    ----------
    files
        A file of a trainer, such as axolotl or torchtune, those of accelerate, DeepSpeed or PEFT that it is launched
        with, and a preset or a config.json that replaces its model.
    format_of
        The framework, such as trl, of a file whose keys several frameworks have.
    strict
        Whether keys that are not known are refused.
    given
        Fields of the request, or sizes of the model, that replace what the files say.

    Returns
    -------
    Request
        The request, which every function takes in place of a model, with the `reading` of its keys.

    Raises
    ------
    InputError
        If a file cannot be read, is of no known trainer, describes another step than a training on next tokens, or
        does not say what is needed.

    Examples
    --------
    >>> request = lc.request_of("examples/trainer_files/qlora.yaml")
    >>> request.model, request.batch_size, request.precision, request.lora
    ('llama-3-8b', 8, 'nf4-double', 'all-linear')
    """
    if others := [file for file in files if not isinstance(file, str | os.PathLike)]:
        raise InputError(f"expected trainers' files by their paths, not {shown(others[0])}")
    reading, model = read_step(TrainerFiles(files, format_of, strict))
    known = {each.name for each in fields(Request)}
    sizes = {name: value for name, value in given.items() if name not in known}
    given = {name: value for name, value in given.items() if name in known}
    if sizes:
        given["sizes"] = {**given.get("sizes", {}), **sizes}
    merged = {"sizes": given.get("sizes", {}), **keywords_of(reading, model, **given)}
    given.pop("sizes", None)
    return TrainerRequest(**{**merged, **given}, reading=reading)


@dataclass(frozen=True, repr=False)
class TrainerStep(TabularAnswer):
    """A trainer's files as a step: every key with what became of it, and the equal command.

    Attributes
    ----------
    files
        The names of the files.
    frameworks
        The kinds of files with their versions.
    step
        The step in the terms of all frameworks; what the files do not say is left out.
    read
        The keys that give the step.
    assumed
        Keys that are absent, with their defaults.
    unsupported
        Keys whose effect is not counted.
    unknown
        Keys that are not known.
    no_effect
        Keys that change neither memory nor time.
    asks
        What the files do not say.
    refused
        Why the step cannot be predicted; empty if it can.
    command
        The command with flags in place of the files; empty if the files do not say enough.
    left_out
        What the files say and the command has no flags for.
    overridden
        What flags say in place of the files, with what these say.

    Examples
    --------
    >>> found = lc.explain("examples/trainer_files/qlora.yaml")
    >>> [key.key for key in found.unsupported], found.step["lora_rank"]
    (['liger_rms_norm'], 16)
    """

    files: tuple[str, ...]
    frameworks: tuple[str, ...]
    step: Mapping[str, Any]
    read: tuple[KeyRead, ...]
    assumed: tuple[KeyRead, ...]
    unsupported: tuple[KeyRead, ...]
    unknown: tuple[KeyRead, ...]
    no_effect: tuple[KeyRead, ...]
    asks: tuple[str, ...]
    refused: str
    command: str
    left_out: tuple[str, ...]
    overridden: tuple[str, ...] = ()

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the keys by what became of them."""
        columns = (
            TableColumn("key", lambda each: each[1].key, words=True),
            TableColumn("value", lambda each: _short(each[1].value), words=True),
            TableColumn("effect", lambda each: each[1].effect or each[0], words=True),
        )
        entries = [(kind, each) for kind, every in self.classes() for each in every]
        return (table(self._title, columns, entries, tuple(self.notes())),)

    @property
    def _title(self) -> str:
        return f"{', '.join(map(printable, self.files))}: {', '.join(self.frameworks)}"

    def classes(self) -> Iterator[tuple[str, tuple[KeyRead, ...]]]:
        """Yield the keys by what became of them."""
        yield "no effect at this value", self.read
        yield "assumed", self.assumed
        yield "not counted", self.unsupported
        yield "unknown", self.unknown
        yield "no effect", self.no_effect

    def notes(self) -> Iterator[str]:
        """Yield what the files do not say, and the equal command."""
        if self.refused:
            yield f"Not predicted: {self.refused}."
        if self.asks:
            yield f"Not in the files: {', '.join(self.asks)}."
        if self.overridden:
            yield f"Flags override the files: {'; '.join(self.overridden)}."
        if self.command:
            yield f"The same with flags: {self.command}"
        if self.left_out:
            yield f"No flags of this command, where they change a device's memory at most: {' '.join(self.left_out)}"

    def heading(self) -> Sheet:
        """Return what was read in a few lines, to stand above an answer."""
        title = f"{self._title}: {len(self.read)} keys read, {len(self.no_effect)} without effect"
        assumed = ", ".join(f"{each.key} = {_short(each.value)}" for each in self.assumed)
        unknown = ", ".join(
            f"{each.key} = {_short(each.value)}" if each.effect else each.key + each.near for each in self.unknown
        )
        notes = [f"Assumed: {assumed}."] if assumed else []
        notes += [f"Not counted: {each.key}: {each.effect}." for each in self.unsupported]
        notes += [f"Unknown keys: {unknown}{'' if unknown.endswith('?') else '.'}"] if unknown else []
        return Sheet(title, (), (), (*notes, *self.notes()))


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = printable(" ".join(text.split()))
    return text if len(text) <= 18 else f"{text[:15]}..."


def trainer_step(
    paths: Sequence[str], command: str = "memory", flags: Collection[str] = (), **given: Any
) -> TrainerStep:
    """Return trainers' files key by key, with the command line of the same question.

    paths    the files, and a model in place of theirs
    command  the command that asks
    flags    the names of its flags; none: all
    given    flags that replace what the files say
    """
    return step_of_reading(*read_step(paths), command, flags, **given)


def step_of_reading(
    reading: Reading, model: str = "", command: str = "memory", flags: Collection[str] = (), **given: Any
) -> TrainerStep:
    """Return what was read key by key; the parameters are those of `trainer_step`, and the model in place of theirs."""
    line, left_out = "", dict[str, Any]()
    try:
        keywords = {**keywords_of(reading, model, **given), **given}
    except InputError:  # what is missing is among `asks`
        keywords = {}
    if keywords:
        asked = for_question(keywords, flags) if flags else keywords
        dropped: dict[str, Any] = {
            name: keywords[name] for name in ("engine", "module") if name in keywords and name not in asked
        }
        keywords, typed = asked, {**asked}
        subject, settings = typed.pop("model"), {each.name for each in fields(Request)}
        typed |= typed.pop("sizes", {})
        left_out = {name: typed.pop(name) for name in [*typed] if flags and name in settings and name not in flags}
        left_out |= dropped
        sizes = isinstance(subject, Mapping)
        line = shlex.join(["learncost", command, "-" if sizes else str(subject), *flags_typed(typed)])
        line = f"echo {shlex.quote(json.dumps(subject))} | {line}" if sizes else line
    step = {name: value for name, value in vars(reading.step).items() if value is not None}
    return made_of(
        TrainerStep,
        reading,
        frameworks=tuple(framework.source for framework in reading.frameworks),
        step=step,
        assumed=(*reading.assumed, *_by_name(reading, model)),
        unsupported=(*reading.unsupported, *(not_counted(reading, keywords) if keywords else ())),
        command=line,
        left_out=tuple(flags_typed(left_out)),
        overridden=tuple(_overridden(reading, model, given)),
    )


def _overridden(reading: Reading, model: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags that say something else than the files, each with what these say."""
    own = reading.step.model
    if model and own and model != own:
        yield f"{printable(model)} (the files: {printable(own)})"
    for name, value in given.items():
        try:  # what the files give beside the other flags
            of_files = keywords_of(reading, model, **{other: each for other, each in given.items() if other != name})
        except InputError:
            continue
        if (theirs := of_files.get(name)) is not None and str(theirs) != str(value):
            typed, without = (shlex.join(flags_typed({name: each})) for each in (value, theirs))
            yield f"{typed} (the files: {without})"


@dataclass(frozen=True, repr=False)
class AnswerOfFiles(TabularAnswer):
    """An answer about trainers' files: what was read, above the answer.

    Attributes
    ----------
    trainer_files
        What was read.
    answer
        The answer of the command.
    """

    trainer_files: TrainerStep
    answer: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the answer's dictionary with the files in front."""
        return {"trainer_files": self.trainer_files.to_dict(), **self.answer.to_dict()}

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return what was read, and the sheets of the answer."""
        return (self.trainer_files.heading(), *self.answer.sheets(width))
