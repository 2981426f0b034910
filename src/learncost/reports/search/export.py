"""`learncost search --export`: a step over a mesh as the file of a trainer, which reads back as the same step."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import isclose
from pathlib import Path
from typing import Any

from learncost.autoshard.step import ParallelConfig
from learncost.devices.cluster import Cluster
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, named_one, shown
from learncost.models.argument import NamedLayer, find, presets
from learncost.models.storage import write_text
from learncost.passes.plan import CHECKPOINTS, FUSED_ATTENTION
from learncost.reports.memory.engines import GRAPH
from learncost.reports.question import flags_typed
from learncost.reports.request import Request
from learncost.reports.search.spread import described, spread
from learncost.reports.sheet import seconds_of, size_of
from learncost.reports.trainer_step import WITHOUT_AUTOCAST, keywords_of
from learncost.sharding.mesh import mesh as mesh_of
from learncost.sharding.presets import chosen
from learncost.trainer_files.documents import Document, document_of
from learncost.trainer_files.framework import ANY, FULL, START, STEP, Framework, KeyRule, framework_of, frameworks
from learncost.trainer_files.reading import joined

ENDINGS = {"torchtitan": ".toml", "megatron": ".sh", "deepspeed": ".json", "accelerate": ".yaml"}
"""The trainers whose files are written, with the endings of these."""

EQUAL_COST = ("rope_scaling", "rope_theta", "max_position_embeddings", "rms_norm_eps")
"""The keys of a config.json in which two models of the same cost differ."""

LEFT = ("optimizer", "dropout", "lora", "lora_rank", "lora_alpha", "dora")
"""The settings of a step that files of launchers and engines leave to the trainer."""

FieldValues = Mapping[str, tuple[Any, ...]]
"""The values of the fields of a step that are right, by name; the first that is not None is what is written."""


@dataclass(frozen=True)
class Export:
    """A step over a mesh as the text of a trainer's file, and the sentence about it.

    peak     bytes of the fullest device, with those that the trainer adds
    command  the words of the command line that asks about the file, `FILE` among them
    faster   why the trainer does not support the configurations before it; empty if it is the fastest
    """

    target: str
    text: str
    peak: int
    seconds: float
    added: int
    command: tuple[str, ...]
    faster: tuple[str, ...] = ()

    def written(self, path: str) -> str:
        """Write the file, and return what was written with the command that asks about it. Raises `InputError`."""
        if not path.lower().endswith(ending := ENDINGS[self.target]):
            raise InputError(f"the name of a file of {self.target} ends with {ending}, not as {shown(path)}")
        write_text(Path(path), self.text)
        more = f" with its buffers of {size_of(self.added)}" if self.added else ""
        line = shlex.join(path if word == "FILE" else word for word in self.command)
        return (
            f"{path}, a file of {self.target}, reads back as the same step: {size_of(self.peak)} per device{more}, "
            f"{seconds_of(self.seconds)} a step: {line}{self._passed_over}"
        )

    @property
    def _passed_over(self) -> str:
        count = len(self.faster)
        return (
            f"\nIt is number {count + 1}, as faster ones are not supported: {'; '.join(dict.fromkeys(self.faster))}"
            if count
            else ""
        )


def target_of(name: str) -> Framework:
    """Return the trainer of a name whose files are written. Raises `InputError` for another."""
    named = {each.name: each for each in frameworks() if each.name in ENDINGS}
    return named_one("export", name, named)


def first_exported(requests: Sequence[Request], cluster: Cluster, framework: Framework) -> Export:
    """Return the first of some steps that a trainer supports. Raises `InputError` of the first if it can none."""
    if not requests:
        raise InputError("no configuration fits, so that no file is written: use more devices, or a smaller batch")
    refused = list[InputError]()
    for request in requests:
        try:
            return replace(exported(request, cluster, framework), faster=tuple(error.written for error in refused))
        except InputError as error:
            refused.append(error)
    rest = f", nor {len(refused) - 1} slower ones: --top tries more" if len(refused) > 1 else ""
    raise InputError(f"{refused[0]}{rest}")


def exported(request: Request, cluster: Cluster, framework: Framework) -> Export:
    """Return a step over a mesh as a trainer's file. Raises `InputError` naming what the trainer does not support."""
    steps = framework.role == STEP
    if not isinstance(request.model, str) or isinstance(request.model, NamedLayer) or (steps and request.sizes):
        raise InputError(f"a file of {framework.title} cannot express a model with sizes other than a preset's")
    ours = spread(request, cluster)
    parallel = ours.step.parallel
    if parallel.devices == 1:
        raise InputError("--export writes a mesh, which one device does not have")
    wanted = _wanted(request, framework, parallel)
    document = document_of(
        f"{framework.name}{ENDINGS[framework.name]}",
        text := _text(framework, _inverted(framework, wanted, _starting(framework, parallel.devices, cluster))),
    )
    reading = joined([(framework_of(document), document)], alone=not steps)
    for key in (*reading.unsupported, *reading.unknown):
        raise InputError(f"a file of {framework.title} cannot express this step, only one with {key.key}: {key.effect}")
    more: dict[str, Any] = {} if steps else {"seq_len": request.seq_len, "devices": parallel.devices}
    more |= {} if steps else {name: value for name in LEFT if (value := getattr(request, name))}
    if not steps and reading.step.micro_batch_size is None:
        more |= {"batch_size": request.batch_size, "accumulate": parallel.microbatches}
    model = "" if steps else request.model
    if (
        parallel.microbatches == 1 < parallel.microbatch
    ):  # run-cost takes microbatches of one sequence over stages by default
        more["microbatch"] = parallel.microbatch
    keywords = {**keywords_of(reading, model, engine=GRAPH, **more), **more}
    keywords = {name: value for name, value in keywords.items() if name not in ("engine", "devices")}
    back = Request(**{**keywords, **({} if steps else {"sizes": request.sizes})}, on=request.on)
    theirs, added = spread(back, cluster), reading.step.communication_buffers or 0
    ours = spread(replace(request, communication_buffers=added), cluster) if added else ours
    pairs = (
        ("sequences", request.batch_size, back.batch_size),
        ("tokens of a sequence", request.seq_len, back.seq_len),
        ("precision", request.kind().name, back.kind().name),
        ("mesh", described(ours.step), described(theirs.step)),
    )
    for what, asked, found in pairs:
        if asked != found:
            raise InputError(f"a file of {framework.title} cannot express the {what} {asked}: it reads back as {found}")
    if ours.peak != theirs.peak or not isclose(ours.step.seconds, theirs.step.seconds, rel_tol=1e-9):
        raise InputError(
            f"a file of {framework.title} cannot express the placement {request.place or request.placement}: it means "
            f"{theirs.peak:,} bytes and {theirs.step.seconds:.6g} s, not {ours.peak:,} and {ours.step.seconds:.6g}"
        )
    settings = {**more, **({} if steps else request.sizes), "engine": GRAPH, "on": cluster.name}
    typed = flags_typed({**settings, "tokens": request.tokens})
    command = ("learncost", "run-cost", *filter(None, (model,)), "FILE", *typed)
    return Export(framework.name, text, ours.peak, ours.step.seconds, added, command)


def _wanted(request: Request, framework: Framework, parallel: ParallelConfig) -> FieldValues:
    """Return the fields of the step that a file gives. Raises `InputError` for a plan that no file expresses."""
    names = {name for rule in framework.rules for name in rule.fields or ()}
    plan = {*filter(None, (request.plan or "").split(","))} - {FUSED_ATTENTION}
    if plan - {CHECKPOINTS}:
        raise InputError(f"a file of {framework.title} cannot express the plan {request.plan}, only {CHECKPOINTS}")
    again = CHECKPOINTS in plan or request.procedure == "recompute"
    grid = mesh_of(str(request.mesh))
    clauses = chosen(request.place, request.placement, grid.names)
    cut = {role for clause in clauses if clause.mesh in ("dp", "ep") for role in clause.names}
    zero = 3 if "weights" in cut else 2 if "gradients" in cut else 1 if "states" in cut else 0
    mesh, data = parallel.mesh, parallel.mesh.get("dp", 1) * parallel.mesh.get("ep", 1)
    zero = zero if data > 1 else 0
    kind = request.kind().name
    wanted: dict[str, tuple[Any, ...]] = {
        "precision": (kind, *(name for name, stored in WITHOUT_AUTOCAST.items() if stored == kind)),
        **{axis: (mesh[axis],) if mesh.get(axis, 1) > 1 else (None, 1) for axis in ("tp", "pp", "cp", "ep")},
        "chunks": (parallel.chunks,) if parallel.chunks > 1 else (None, 1),
        "checkpointing": (FULL,) if again else ("none", None),
        "dropout": (request.dropout,) if request.dropout else (None, 0),
        "lora": (request.lora,),
        **dict.fromkeys(("offload", "loss", "teacher", "plan"), (None,)),
        "optimizer": (request.optimizer or "adamw", *(() if request.optimizer else (None,))),
        "optimizer_implementation": ("fused", None),
    }
    if data > 1:
        wanted["zero"] = (zero, None) if not zero else (zero,)
    if mesh.get("tp", 1) > 1:
        wanted["sequence_parallel"] = (any(each.mesh == "tp" and "values" in each.names for each in clauses),)
    if zero > 1 and parallel.microbatches > 1:
        wanted["no_sync"] = (None, False)
    if "devices" in names:
        wanted["devices"] = (parallel.devices,)
    if "shard" in names and ("devices" not in names or parallel.devices > data):
        wanted |= {"shard": (data,), "replicate": (None, 1)} if zero else {"replicate": (data,), "shard": (1, None)}
    if framework.role == STEP:
        wanted["seq_len"] = (request.seq_len,)
    if "micro_batch_size" in names:
        wanted["micro_batch_size"] = (parallel.microbatch,)
        total = {"accumulate": (parallel.microbatches,), "global_batch_size": (request.batch_size,)}
        flag = "accumulate" if "accumulate" in names else "global_batch_size"
        wanted[flag] = total[flag]
    values = {**find(request.model).values, **request.sizes}
    if framework.role != STEP:
        wanted = {name: right for name, right in wanted.items() if name not in LEFT}
    if "model" in names:
        wanted["model"] = (str(request.model), *_of_equal_cost(values))
    else:
        sizes = {name: values.get(name.partition(".")[2]) for name in names if name.startswith("sizes.")}
        wanted |= {name: (value,) for name, value in sizes.items() if value is not None}
    return wanted


def _of_equal_cost(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the presets that differ in nothing that costs."""
    kept = {key: value for key, value in values.items() if key not in EQUAL_COST}
    for known in presets():
        if kept and {key: value for key, value in known.values.items() if key not in EQUAL_COST} == kept:
            yield known.name


def _starting(framework: Framework, devices: int, cluster: Cluster) -> dict[str, Any]:
    """Return the keys that a file has whatever its step is: `[export]` of its framework, with numbers of devices."""
    node = min(devices, cluster.devices)
    numbers = {"$node": node, "$nodes": -(-devices // node)}
    return {key: numbers.get(value, value) for key, value in framework.export.get("keys", {}).items()}


def _inverted(framework: Framework, wanted: FieldValues, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return keys whose values give the wanted step: of each wrong field, the rule whose keys leave the least wrong.

    Raises `InputError` naming the first field that no rule gives.
    """
    rules = [rule for rule in framework.rules if not {*rule.conditions} & {*framework.export.get("without", ())}]
    wrong, score = _judged(framework, wanted, given)
    while wrong:
        for name in wrong:
            tried = [
                (*_judged(framework, wanted, keys), keys)
                for rule in rules
                if name in (rule.fields or {}) and (keys := _holding(framework, rule, wanted, given)) is not None
            ]
            best = min(tried, key=lambda each: each[1], default=None)
            if best and best[1] < score:
                wrong, score, given = best
                break
        else:
            name = wrong[0]
            value = next((each for each in wanted.get(name, ()) if each is not None), "")
            text = f"zero-{value}" if name == "zero" else f"{name.removeprefix('sizes.')} = {value}"
            raise InputError(f"a file of {framework.title} cannot express {text}")
    return given


def _judged(framework: Framework, wanted: FieldValues, given: Mapping[str, Any]) -> tuple[list[str], tuple[int, ...]]:
    """Return the fields that keys leave wrong, and how wrong they are: the less, the better."""
    try:
        reading = joined([(framework, Document(framework.name, given))], alone=True)
    except InputError:
        return [*wanted], (len(wanted) + 1,)
    wrong = [name for name, right in wanted.items() if reading.step.get(name) not in right]
    wrong += ["task"] if reading.step.task != START.task or reading.refused else []
    wrong += [name for name in reading.asks if framework.role == STEP and name not in wrong]
    usual = {key: value for key, (value, _) in framework.defaults.items() if key not in given}
    rules = [rule for rule in framework.rules if {*wrong} & {*(rule.fields or ())} and rule.holds(given, usual)]
    return wrong, (len(wrong), len(rules), len(reading.unsupported) + len(reading.unknown), len(given))


def _holding(
    framework: Framework, rule: KeyRule, wanted: FieldValues, given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return keys with those at which a rule holds and gives what is wanted; None if there are none."""
    keys, usual = dict(given), {key: value for key, (value, _) in framework.defaults.items()}
    for name, value in (rule.fields or {}).items():
        right = next((each for each in wanted.get(name, ()) if each is not None), None)
        if isinstance(value, str) and value[:1] == "$" and " " not in value and right is not None:
            keys[value[1:]] = int(right) if isinstance(right, float) and right == int(right) else right
    for key, values in rule.conditions.items():
        named = [each for each in values if not (isinstance(each, str) and ANY in each)]
        right = {*map(repr, named)} | ({repr(keys.get(key))} if len(named) < len(values) and key in keys else set())
        if named and repr(keys.get(key, usual.get(key))) not in right:
            keys[key] = named[0]
    known = {**usual, **keys}
    return keys if all(key in known for key in (*rule.conditions, *rule.taken)) else None


def _text(framework: Framework, given: Mapping[str, Any]) -> str:
    """Return keys as the text of a file."""
    ending = ENDINGS[framework.name]
    if ending == ".sh":
        own = framework.export["keys"]
        launcher = [word for key in own for word in (f"--{key}", str(given[key]))]
        arguments = [
            f"--{key}" if value is True else f"--{key} {value}" for key, value in given.items() if key not in own
        ]
        return " \\\n    ".join((shlex.join(("torchrun", *launcher, "pretrain_gpt.py")), *arguments)) + "\n"
    if ending == ".toml":
        sections: dict[str, str] = {}
        for key, value in given.items():
            section, _, name = key.partition(".")
            sections[section] = sections.get(section, f"[{section}]\n") + f"{name} = {json.dumps(value)}\n"
        return "\n".join(sections.values())
    tree: dict[str, Any] = {}
    for key, value in given.items():
        *path, last = key.split(".")
        reduce(lambda place, each: place.setdefault(each, {}), path, tree)[last] = value
    return json.dumps(tree, indent=2) + "\n" if ending == ".json" else "".join(_lines(tree))


def _lines(tree: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping in YAML, whose values are those of JSON."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:\n"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}\n"
