"""Clusters: devices in nodes, links within a node and the network between nodes, from clusters.toml or a file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from learncost.devices.device import LARGEST, Device, device, inherited, positive_number
from learncost.ir.dataclass import HIDDEN, Key, Serializable, dataclass, field, fields
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError, nearest, shown
from learncost.models.files import looks_like_path, read_path
from learncost.timing.rates import Rates

FILE = Path(__file__).with_name("clusters.toml")

TOPOLOGIES = ("switch", "full", "torus", "network")


@dataclass(frozen=True)
class Reduces(Displayed):
    """In-network reduction of a switch: the busbw of an all_reduce as a share of the link's speed, and the smallest
    number of devices that it is used for."""

    share: float
    devices: int


@dataclass(frozen=True)
class Link(Displayed, Serializable):
    """A link between devices.

    Attributes
    ----------
    name
        Its name.
    gbs
        10^9 bytes a second of one link, one way.
    links
        The number of links per device.
    latency_us
        Microseconds of one step of a collective.
    topology
        switch, full, torus or network.
    dimensions
        The dimensions of a torus.
    attained
        The share of its published speed that large collectives attain.
    reduces
        The in-network reduction of the switch, if it has one.
    sources
        The source of each number.
    """

    name: str
    gbs: float
    links: int = 1
    latency_us: float = 0.0
    topology: str = "switch"
    dimensions: int = 1
    attained: float = 1.0
    reduces: Reduces | None = field(default=None, metadata=Key(optional=True, after="sources").field)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """Return the bytes per second that a device sends over all its links, as data sheets state it."""
        return self.gbs * 1e9 * self.links

    def speed(self, devices: int) -> float:
        """Return the attained bytes per second that a device sends to its neighbours in a ring of devices.

        In a full mesh, a device has one link to every other device. In a torus, a mesh axis uses one dimension, with
        one link in each direction.
        """
        peak = self.bandwidth
        if self.topology == "full":
            peak = self.gbs * 1e9 * min(self.links, max(1, devices - 1))
        elif self.topology == "torus":
            peak = self.bandwidth / self.dimensions
        return self.attained * peak


COMMUNICATING = 20 / 132
"""The share of a GPU's multiprocessors that run communication kernels: 20 of the 132 of an H800 saturate its links
(DeepSeek-AI 2024, DeepSeek-V3, arXiv 2412.19437, section 3.5.1). TPUs send without their cores."""


@dataclass(frozen=True)
class Cluster(Displayed, Serializable):
    """A cluster: devices in nodes with the links between them.

    Attributes
    ----------
    name
        Its name.
    device
        The type of all devices.
    devices
        The number of devices per node.
    inside
        The link within a node.
    between
        The link between nodes; None for a single node.
    source
        The source.
    names
        Other names of the cluster.
    note
        A remark.

    Examples
    --------
    >>> found = lc.cluster("DGX H100")
    >>> found.devices, found.inside.bandwidth, found.between.bandwidth
    (8, 450000000000.0, 50000000000.0)
    """

    name: str
    device: Device = field(metadata=Key(form=attrgetter("name")).field)
    devices: int
    inside: Link
    between: Link | None = None
    source: str = ""
    names: tuple[str, ...] = field(default=(), metadata=Key(after="name").field)
    note: str = field(default="", metadata=HIDDEN)

    @property
    def shared(self) -> float:
        """Return the share of a device's multiprocessors that overlapping collectives take from compute."""
        return 0.0 if self.device.family == "TPU" else COMMUNICATING


@cache
def links() -> Mapping[str, Link]:
    """Return the published links by name."""
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["link"]
    return {name: _link(row, FILE.name) for name, row in inherited({row["name"]: row for row in rows}).items()}


@cache
def clusters() -> Mapping[str, Cluster]:
    """Return the published clusters by name, in the order of the file."""
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["cluster"]
    return {row["name"]: _cluster(row, FILE.name) for row in rows}


def cluster(name: object) -> Cluster:
    """Return a published cluster by its name, or the cluster of a file.

    Parameters
    ----------
    name
        A name (`learncost list clusters`), or the path of a TOML or JSON file. The name of a device means the first
        published cluster of such devices.

    Returns
    -------
    Cluster
        Its devices and links.

    Raises
    ------
    InputError
        For an unknown name (the message suggests the nearest), for a wrong key of a file, and for a device that no
        published cluster has.

    Examples
    --------
    >>> lc.cluster("GB200 NVL72").devices
    72
    """
    if isinstance(name, Rates):
        raise InputError(f"{name.name} has no links: give --on a cluster (learncost list clusters)")
    return cluster_of(name) or cluster_with(device(name))


def known_cluster(name: str) -> Cluster | None:
    """Return the published cluster of a name, ignoring case and separators; None if there is none."""
    squeezed = {_squeeze(spelling): each for each in clusters().values() for spelling in (*each.names[::-1], each.name)}
    return squeezed.get(_squeeze(name))


def cluster_of(on: object) -> Cluster | None:
    """Return the cluster of a name or a file; None if it is a device or unknown. Raises `InputError` for a folder."""
    if isinstance(on, Cluster):
        return on
    if not isinstance(on, str) or not on.strip():
        return None
    if known := known_cluster(on):
        return known
    if looks_like_path(on) and on.lower().endswith((".toml", ".json")) and Path(on).is_file():
        row = read_path(on)
        if "inside" in row or "device" in row:
            return _cluster({"name": Path(on).stem, "source": f"the file {Path(on).name}", **row}, shown(on))
    return None


def cluster_with(device: Device) -> Cluster:
    """Return the first published cluster of a device. Raises `InputError` where there is none."""
    for each in clusters().values():
        if each.device.name == device.name:
            return each
    raise InputError(
        f"the links of {device.name} are not known: give a cluster with --on (see `learncost list clusters`), or "
        f"a file that describes one"
    )


def _squeeze(name: str) -> str:
    return "".join(re.findall(r"[a-z0-9]+", name.lower()))


def _link(row: object, where: str) -> Link:
    """Return the link that an entry of a file describes: the name of a published link, the path of a file that
    `learncost calibrate --processes` wrote, or a table. Every key is validated."""
    if isinstance(row, str):
        if row in links():
            return links()[row]
        if looks_like_path(row) and Path(row).is_file():
            return _link(read_path(row), shown(row))
        raise InputError(
            f"{where}: no link is called {shown(row)}{nearest(row, links())} (there are {_names(links())})"
        )
    checked = _checked(row, Link, where, "link")
    for key in ("gbs", "latency_us", "attained"):
        if key in checked:
            checked[key] = positive_number(key, checked[key], where)
    for key in ("links", "dimensions"):
        if key in checked:
            checked[key] = _whole(key, checked[key], where)
    if checked.get("attained", 1) > 1:
        raise InputError(f"{where}: attained must be above 0 and at most 1, not {shown(checked['attained'])}")
    if checked.get("topology", "switch") not in TOPOLOGIES:
        kinds = ", ".join(TOPOLOGIES)
        raise InputError(f"{where}: topology must be one of {kinds}, not {shown(checked['topology'])}")
    if "reduces" in checked:
        pair = _checked(checked["reduces"], Reduces, where, "reduces")
        share, devices = positive_number("share", pair["share"], where), _whole("devices", pair["devices"], where)
        checked["reduces"] = Reduces(share, devices)
    sources = checked.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise InputError(f"{where}: sources must be a table with one line of text per number")
    _checked({"name": "", "gbs": 1, **sources}, Link, where, "link")
    return Link(**checked)


def _cluster(row: Mapping[str, Any], where: str) -> Cluster:
    """Return the cluster of a file's data; every key is validated."""
    checked = _checked(row, Cluster, where, "cluster")
    for key in ("source", "note"):
        if key in checked and (not isinstance(checked[key], str) or not checked[key].isprintable()):
            raise InputError(f"{where}: {key} must be one line of text, not {shown(checked[key])}")
    names = checked.get("names", [])
    if not isinstance(names, list) or not all(isinstance(text, str) and text.isprintable() for text in names):
        raise InputError(f"{where}: names must be a list of lines of text, not {shown(names)}")
    checked["names"] = tuple(names)
    checked["device"] = device(checked["device"])
    checked["devices"] = _whole("devices", checked["devices"], where)
    checked["inside"] = _link(checked["inside"], where)
    if checked.get("between") is not None:
        checked["between"] = _link(checked["between"], where)
    return Cluster(**checked)


def _checked(row: object, kind: type, where: str, called: str) -> dict[str, Any]:
    """Return the keys of a table. Raises `InputError` for unknown and missing ones."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: a {called} must be a name or a table, not {shown(row)}")
    options = {option.name: option for option in fields(kind)}
    for key in row:
        if key not in options:
            raise InputError(
                f"{where}: a {called} has no {shown(key)}{nearest(str(key), options)} (it has {_names(options)})"
            )
    needed = ("name", "device", "devices", "inside") if kind is Cluster else ("share", "devices")
    for key in ("name", "gbs") if kind is Link else needed:
        if key not in row:
            raise InputError(f"{where}: a {called} needs {key}")
    name = row.get("name", "")
    if not isinstance(name, str) or not name.isprintable():
        raise InputError(f"{where}: name must be one line of text, not {shown(name)}")
    return dict(row)


def _names(known: Mapping[str, Any]) -> str:
    return ", ".join(known)


def _whole(key: str, value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST:
        raise InputError(f"{where}: {key} must be a whole number above 0 and at most 10^9, not {shown(value)}")
    return value
