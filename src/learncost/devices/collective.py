"""Compute the traffic and time of a collective by its algorithm, from latency and bytes over a link."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from math import ceil, log2
from pathlib import Path

from learncost.devices.cluster import Cluster, Link
from learncost.ir.dataclass import dataclass
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError, named_one
from learncost.ir.polynomial import Polynomial

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""The kinds of communication that algorithms are defined for."""

KINDS = {
    "all_reduce_max": "all_reduce",
    "all_max": "all_reduce",
    "dispatch": "all_to_all",
    "combine": "all_to_all",
    "pass_on": "send",
    "shard": "",
}
"""The kind of communication with the same traffic, for each other op of sharded tables; `shard` is a free slice."""

CALL, COMPILED = 23.6e-6, 5e-6
"""The seconds to start a collective: of NCCL (MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json, the mean
fixed_latency_us of all_reduce, all_gather and reduce_scatter, measured), and in a program compiled for a TPU, as of any
kernel (devices/rates.py)."""

DEFAULT_ALGORITHM = "ring"


@dataclass(frozen=True)
class Algorithm(Displayed):
    """A collective algorithm: for each op, the share of the payload that a device sends (times the number of devices
    p), and the number of steps."""

    name: str
    title: str
    source: str
    sent_by_op: Mapping[str, Polynomial]
    steps_by_op: Mapping[str, Polynomial]

    def sent(self, op: str, devices: int) -> Fraction:
        """Return the share of the payload that one device sends."""
        kind = kind_of(op)
        if devices == 1 or not kind:
            return Fraction(0)
        return Fraction(self.sent_by_op[kind].at(_sizes(devices)), devices)

    def steps(self, op: str, devices: int) -> int:
        """Return the number of sequential steps, in each of which a device waits for another."""
        kind = kind_of(op)
        return 0 if devices == 1 or not kind else int(self.steps_by_op[kind].at(_sizes(devices)))


def _sizes(devices: int) -> dict[str, int]:
    return {"p": devices, "log2p": ceil(log2(devices))}


def kind_of(op: str) -> str:
    """Return the kind of communication of an op; empty if it moves no data."""
    kind = KINDS.get(op, op)
    if kind and kind not in COLLECTIVES:
        raise InputError(f"no collective is called {op!r} (there are {', '.join((*COLLECTIVES, *KINDS))})")
    return kind


@cache
def algorithms() -> Mapping[str, Algorithm]:
    """Return the algorithms by name."""
    rows = tomllib.loads(Path(__file__).with_name("collectives.toml").read_text(encoding="utf-8"))
    return {
        name: Algorithm(
            name,
            row["title"],
            row["source"],
            {op: Polynomial.parse(row[op]["sent"]) for op in COLLECTIVES},
            {op: Polynomial.parse(row[op]["steps"]) for op in COLLECTIVES},
        )
        for name, row in rows.items()
    }


def algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name. Raises `InputError`."""
    return named_one("algorithm", name, algorithms())


@dataclass(frozen=True)
class MeshGroup(Displayed):
    """A communication group of one mesh axis: its number of devices, and how many share a node."""

    devices: int
    inside: int

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.inside)


def groups(mesh: Mapping[str, int], node: int) -> dict[str, MeshGroup]:
    """Return the group of every mesh axis; the last axis is innermost.

    node  the number of devices in a node
    """
    result, stride = {}, 1
    for axis, size in reversed(list(mesh.items())):
        result[axis] = MeshGroup(size, max(1, min(size, node // stride)))
        stride *= size
    return {axis: result[axis] for axis in mesh}


@dataclass(frozen=True)
class Transfer(Displayed):
    """The time of a collective on a cluster: bytes sent per device, the limiting link, the algorithm, seconds."""

    op: str
    group: MeshGroup
    payload: float
    sent: float
    link: str
    algorithm: str
    latency: float
    moving: float

    @property
    def seconds(self) -> float:
        return self.latency + self.moving

    @property
    def busbw(self) -> float:
        """Return 10^9 bytes per second, as nccl-tests prints it."""
        ring = algorithm("ring").sent(self.op, self.group.devices)
        return float(ring) * self.payload / self.seconds / 1e9 if self.seconds else 0.0


def transfer(op: str, payload: float, group: MeshGroup, cluster: Cluster, name: str = "", copies: int = 0) -> Transfer:
    """Return the time of one collective on a mesh axis of a cluster.

    payload  bytes of the global array, as `collectives.toml` counts them
    group    the devices of the mesh axis
    name     the algorithm; by default in-network reduction if it is faster, else a ring. Between nodes, a ring
             enters and leaves a node through the network adapters of all its devices in the group.
    copies   the number of devices that each row of an all_to_all is sent to, uniformly at random, if a row is sent once
             to each node and forwarded inside the node

    Raises `InputError` for an axis beyond the node of a cluster without a network.
    """
    kind = kind_of(op)
    if group.devices == 1 or not kind:
        return Transfer(op, group, payload, 0.0, "", "", 0.0, 0.0)
    link, speed = _bounding(kind, group, cluster, copies)
    reduces = link.reduces
    by_switch = kind == "all_reduce" and group.nodes == 1 and reduces is not None and group.devices >= reduces.devices
    chosen = algorithm(name or ("switch" if by_switch else DEFAULT_ALGORITHM))
    sent = float(chosen.sent(op, group.devices)) * payload
    called = COMPILED if link.topology == "torus" else CALL
    latency = called + chosen.steps(op, group.devices) * link.latency_us * 1e-6
    moving = sent / speed
    if by_switch and not name and reduces is not None:  # the measured busbw is defined by the bytes of a ring
        moving = float(algorithm("ring").sent(op, group.devices)) * payload / (reduces.share * link.bandwidth)
    return Transfer(op, group, payload, sent, link.name, chosen.name, latency, moving)


def _bounding(kind: str, group: MeshGroup, cluster: Cluster, copies: int = 0) -> tuple[Link, float]:
    """Return the link that limits a collective, and the bytes per second that a device sends over it."""
    inside = cluster.inside.speed(group.inside)
    if group.nodes == 1:
        return cluster.inside, inside
    if cluster.between is None:
        raise InputError(
            f"{cluster.name} has {cluster.devices} devices and no network between nodes: a mesh axis cannot have "
            f"{group.devices} devices"
        )
    between = cluster.between.speed(group.nodes)
    if kind == "send":
        return cluster.between, between
    if kind == "all_to_all":  # traffic out of the node uses the device's network adapter
        leaving = (group.devices - group.inside) / (group.devices - 1)
        if copies:  # a row is sent to the nodes with one of its copies
            leaving *= group.nodes * (1 - (1 - 1 / group.nodes) ** copies) / copies
        return cluster.between, min(inside, between / leaving)
    return (cluster.between, group.inside * between) if group.inside * between < inside else (cluster.inside, inside)
