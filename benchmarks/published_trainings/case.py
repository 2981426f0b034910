"""A published training's configuration: the model, the placement, the parallel configuration, the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from math import prod
from typing import Any

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.placed_step import StepConfig
from learncost.autoshard.step import ParallelConfig
from learncost.devices.cluster import Cluster, clusters
from learncost.ir.errors import InputError
from learncost.models.argument import preset_names
from learncost.models.configuration import configure, family_of
from learncost.models.model import Model, build, run_sizes
from learncost.sharding.clauses import clauses
from learncost.sharding.mesh import mesh
from published_trainings.frameworks import FRAMEWORKS, ZERO_1


@dataclass(frozen=True)
class Case:
    """A row's configuration: what its account is of, and how it is parallel.

    on             the cluster by name; empty where a row does not say, which time needs
    bandwidth_gbs  of the row's device, where it is not the usual one; and its watts
    network_gbps   gigabits a second between nodes, of a node, where a row tells it
    """

    key: tuple[Any, ...]
    parallel: ParallelConfig
    seq: int
    framework: str
    on: str = ""
    bandwidth_gbs: float | None = None
    watts: float | None = None
    network_gbps: float | None = None

    def account(self) -> MeshAccount:
        return account(self.key)

    def sizes(self) -> dict[str, int]:
        model = self.account().step.model
        return {**model.sizes, **run_sizes(model, 1, self.seq, None)}


@cache
def account(setting: tuple[Any, ...]) -> MeshAccount:
    """The account of a placed step, one for all rows that have it."""
    name, overrides, dropout, inner, text, plan, framework, seq, microbatch = setting
    model = _model(name, overrides, dropout)
    batch = microbatch * prod(size for axis, size in inner if axis in ("dp", "ep"))
    sizes = {**model.sizes, **run_sizes(model, max(1, batch), seq, None)}
    shape = ",".join(f"{axis}={size}" for axis, size in inner) or "dp=1"
    config = StepConfig(clauses(text or ZERO_1), FRAMEWORKS[framework].kind, plan)
    return MeshAccount(model, sizes, mesh(shape), config)


@cache
def _model(name: str, overrides: tuple[tuple[str, Any], ...], dropout: bool) -> Model:
    known = name if name in preset_names() else {"model_type": name}
    return build(configure(known, dict(overrides)), dropout=dropout)


def key_of(
    name: str,
    overrides: Mapping[str, Any],
    dropout: bool,
    parallel: ParallelConfig,
    text: str,
    plan: str,
    framework: str,
    seq: int,
) -> tuple[Any, ...]:
    """What `account` is asked for."""
    inner = tuple((axis, size) for axis, size in parallel.mesh.items() if axis != "pp")
    return name, tuple(overrides.items()), dropout, inner, text, plan, framework, seq, parallel.microbatch


def mesh_of(**axes: int) -> dict[str, int]:
    """The axes of a mesh that have several devices."""
    return {axis: size for axis, size in axes.items() if size > 1}


def integer_of(config: Mapping[str, Any], *keys: str) -> int:
    """The number that a row has by one of these words. Raises `KeyError` with the first where there is none."""
    for key in keys:
        if config.get(key) is not None:
            return int(config[key])
    raise KeyError(keys[0])


def settings_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """All that a row says of its configuration, wherever it stands: beside `config`, in it, or in a table in it."""
    merged: dict[str, Any] = {}
    for table in (row, row.get("config"), row.get("parallel"), row.get("hardware")):
        if isinstance(table, Mapping):
            merged |= {key: value for key, value in table.items() if value is not None}
    for key in ("parallel", "hardware"):
        if isinstance(inner := merged.get(key), Mapping):
            merged |= {name: value for name, value in inner.items() if value is not None}
    return merged


def cluster_of_row(config: Mapping[str, Any]) -> Cluster | None:
    """The cluster of a device that a row names in its own words; None where it names none.

    Raises `InputError` for a device of which no cluster is known.
    """
    devices = " ".join(_words(config.get(key) for key in ("device", "system", "gpu", "hardware")))
    text = devices or str(config.get("source", ""))
    plain = text.upper().replace("_", " ").replace("GB", " GB")
    ops = {op: each for each in clusters().values() for op in each.name.split() if _is_a_model(op)}
    named = [op for op in ops if op.upper() in plain.replace("-", " ").replace("/", " ").split()]
    named = named or [op for op in ops if op.upper() in text.upper()]
    if not named:
        if devices:
            raise InputError(f"no cluster is known of its device, {devices}")
        return None
    return ops[max(named, key=len)]


def network_of_row(config: Mapping[str, Any]) -> float | None:
    """Gigabits a second between nodes, of a node, as a row tells them beside its device: `H100 800Gbps`."""
    if config.get("network_gbps"):
        return float(config["network_gbps"])
    gigabits = _GIGABITS.search(" ".join(_words(config.get(key) for key in ("device", "system", "gpu", "hardware"))))
    return float(gigabits[1]) if gigabits else None


_GIGABITS = re.compile(r"(\d+) ?Gbps")


def _is_a_model(op: str) -> bool:
    """Whether a word names a device, as H100 and GB200 do."""
    return any(map(str.isdigit, op)) and not op[0].isdigit()


def _words(values: Iterator[object] | Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping):
            yield from _words(value.values())
        elif isinstance(value, str) and value:
            yield value


def preset_called(name: str) -> str:
    """The preset that a row means by a name such as Llama2-7B. Raises `InputError` where there is none."""
    squeezed = {_squeeze(known): known for known in preset_names()}
    if (found := squeezed.get(_squeeze(name))) is None:
        raise InputError(f"its model, {name}, is no preset, and its sizes are not told")
    return found


def family_called(name: str) -> str:
    """What the blocks are of the presets whose names begin as this one: decoder, encoder; empty where there is none."""
    letters = "".join(takewhile(str.isalpha, name.lower()))
    identical = [known for known in preset_names().values() if letters and known.name.startswith(letters)]
    return family_of(configure(identical[0].name)).blocks[0] if identical else ""


def _squeeze(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
