"""Devices: published properties from devices.toml or a user's file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Any

from learncost.ir.dataclass import dataclass, field, fields, replace
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError, nearest, shown
from learncost.ir.precision import BYTES, PRODUCTS_ALONE
from learncost.models.files import looks_like_path, read_path
from learncost.program.arena import Region


def regions_of(value: object, where: str) -> tuple[Region, ...]:
    """Return the memory regions of a file. Raises `InputError` for an invalid key or value."""
    if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
        raise InputError(f'{where}: regions must be a list of {{ name = "SRAM", bytes = 131072 }}, not {shown(value)}')
    regions: list[Region] = []
    for row in value:
        if unknown := [key for key in row if key not in ("name", "bytes", "begin", "note")]:
            raise InputError(f"{where}: a region has no {shown(unknown[0])} (it has name, bytes, begin, note)")
        name, size, note = row.get("name"), row.get("bytes"), row.get("note", "")
        if (
            not isinstance(name, str)
            or not re.fullmatch(r"[A-Za-z]\w*", name)
            or name in ("FLASH", *(region.name for region in regions))
        ):
            raise InputError(f"{where}: a region's name must be a unique word, not {shown(name)}")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < 2**32 or size % 8:
            raise InputError(f"{where}: the bytes of region {name} must be a multiple of 8, not {shown(size)}")
        if not isinstance(note, str) or not note.isprintable() or "*/" in note:
            raise InputError(f"{where}: the note of region {name} must be one line of text, not {shown(note)}")
        begin = None if "begin" not in row else address(f"begin of region {name}", row["begin"], where)
        regions.append(Region(name, size, begin, note))
    return tuple(regions)


def address(key: str, value: object, where: str) -> int:
    """Return a 32-bit address. Raises `InputError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32 or value % 8:
        raise InputError(f"{where}: {key} must be an address of 32 bits and a multiple of 8, not {shown(value)}")
    return value


FILES = tuple(Path(__file__).with_name(name) for name in ("devices.toml", "microcontrollers.toml"))

SMALLEST, LARGEST = 1e-12, 1e9  # of any device property, in its unit: quotients of two are finite
RATES = (*BYTES, "tf32", *PRODUCTS_ALONE)  # data types of rates

TRAINED_IN = ("bf16", "fp16", "fp32")
"""The default data types of training; the first with a published peak of the device is used."""

STACK = 4096
"""Bytes of RAM that are reserved for the stack of a microcontroller, also by its linker script: emitted steps used less
than 700 in QEMU (docs/microcontrollers.md)."""

_MAKERS = ("nvidia", "tesla", "geforce", "amd", "instinct", "intel", "google", "apple")
"""Prefixes of names that may be left out, as some versions of drivers do."""


@dataclass(frozen=True)
class Device(Displayed):
    """The published properties of one device; unknown ones are empty or None.

    Attributes
    ----------
    name
        Its name.
    source
        The publication of these numbers.
    confidence
        How reliable the source is.
    peak_tflops
        10^12 FLOP/s of dense matrix products, by data type.
    measured_tflops
        The best matrix product measured by the source, in the same unit, by data type.
    memory_gb
        The memory of each variant, in 10^9 bytes.
    flash_gb
        The flash of a microcontroller, in 10^9 bytes.
    regions
        The RAM regions of a microcontroller for a program's data; the first holds the stack.
    flash_begin
        The first address of its flash, where a linker script needs it.
    bandwidth_gbs
        10^9 bytes per second to and from memory, for every variant.
    host_gbs
        10^9 bytes per second to the memory of the host, and as many from it.
    tdp_w
        Thermal design power of the device without host, in watts.
    system_power_w
        Watts per device in training runs, with its share of the host.
    system_power_source
        The source of these runs.
    interconnect
        The link between devices.
    names
        Other names, such as the one that `torch.cuda.get_device_name()` returns.
    family
        The family whose published runs give its MFU and power.
    note
        A note.
    torch
        The device type of PyTorch: cuda of a GPU that runs PyTorch's kernels for GPUs, else empty.
    core
        The core of a microcontroller, whose cycles per MACC are published or assumed (`microcontrollers.toml`).
    clock_mhz
        The highest clock of the core, in MHz.
    ua_per_mhz
        The current of the running core, in microamperes per MHz.
    volts
        The supply voltage of that current.

    Examples
    --------
    >>> found = lc.device("A100-SXM-80GB")
    >>> found.tdp_w, found.bandwidth_gbs
    (400.0, (2039.0,))
    """

    name: str
    source: str
    confidence: str = ""
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    measured_tflops: Mapping[str, float] = field(default_factory=dict)
    memory_gb: tuple[float, ...] = ()
    flash_gb: float | None = None
    regions: tuple[Region, ...] = ()
    flash_begin: int | None = None
    bandwidth_gbs: tuple[float, ...] = ()
    host_gbs: float | None = None
    tdp_w: float | None = None
    system_power_w: tuple[float, ...] = ()
    system_power_source: str = ""
    interconnect: str = ""
    names: tuple[str, ...] = ()
    family: str = ""
    note: str = ""
    torch: str = ""
    core: str = ""
    clock_mhz: float | None = None
    ua_per_mhz: float | None = None
    volts: float | None = None

    @property
    def trained_in(self) -> str:
        """Return the default data type of training: the first of `TRAINED_IN` with a published peak, otherwise fp32."""
        return next((dtype for dtype in TRAINED_IN if dtype in self.peak_tflops), TRAINED_IN[-1])

    @property
    def ram(self) -> int:
        """Return the bytes of memory of the smallest variant; 0 if unknown."""
        return round(min(self.memory_gb, default=0) * 1e9)

    @property
    def data(self) -> int:
        """Return the bytes of RAM for a program's data and stack; 0 if unknown."""
        return sum(region.bytes for region in self.regions) or self.ram

    @property
    def free(self) -> tuple[Region, ...]:
        """Return the bytes of memory for a program's arrays: the RAM of a microcontroller without the stack, or the
        memory of a larger device."""
        first, *others = self.regions or (Region("RAM", self.ram),)
        stack = STACK if self.core else 0
        return replace(first, bytes=max(first.bytes - stack, 0)), *others

    @property
    def flash(self) -> int | None:
        """Return the bytes of on-chip flash; None if unknown or external."""
        return None if self.flash_gb is None else round(self.flash_gb * 1e9)

    @property
    def cited(self) -> str:
        """Return the source with its confidence."""
        return f"{self.source} - {self.confidence}" if self.confidence else self.source


@cache
def devices() -> Mapping[str, Device]:
    """Return the published devices by name, in the order of the file."""
    return {
        row["name"]: _device(row, file.name)
        for file in FILES
        for row in tomllib.loads(file.read_text(encoding="utf-8"))["device"]
    }


def device(name: object) -> Device:
    """Return a published device by its name, or the device of a file.

    Parameters
    ----------
    name
        A name (`learncost list devices`), a unique part of one, or the path of a TOML or JSON file. The name of a
        cluster means its device.

    Returns
    -------
    Device
        Its published properties.

    Raises
    ------
    InputError
        For an unknown name (the message suggests the nearest) and for a wrong key of a file.

    Examples
    --------
    >>> lc.device("A100-SXM-80GB").peak_tflops["bf16"]
    312.0
    """
    from learncost.devices.cluster import Cluster, cluster_of, clusters  # is built on this module

    if isinstance(name, Device):
        return name
    if not isinstance(name, str | Cluster) or not str(name).strip():
        raise InputError(f"no device or cluster is called {shown(name)}: see `learncost list devices`")
    if isinstance(name, str) and (full_name := known_device(name)):
        return full_name
    if group := cluster_of(name):
        return group.device
    assert isinstance(name, str)
    if looks_like_path(name) and (name.lower().endswith((".toml", ".json")) or Path(name).exists()):
        return _from_file(name)
    if name.strip().lower() == "here":
        raise InputError("here has the times of `learncost calibrate`: give its memory, as in --budget 16GB")
    if several := re.fullmatch(r"(\d+) ?[x*] ?(\D.*)|(.*\S)(?: [x*] ?|:)(\d+)", name.strip()):
        many, one = several[1] or several[4], several[2] or several[3]
        how = f"--on {quote(one)} with --devices {many}, or over --mesh dp={many}"
        raise InputError(f"no device is called {shown(name)}: give {how}")
    known = [*(spelling for _, spelling in _spellings()), *clusters()]
    hint = nearest(name, known) or nearest(" ".join(_words(name)), known) or _near_words(name)
    more = ": see `learncost list devices` and `learncost list clusters`, or give a TOML or JSON file that describes it"
    raise InputError(f"no device or cluster is called {shown(name)}{hint or more}")


def known_device(name: str) -> Device | None:
    """Return the published device of a name or a unique part of one, without opening files; None if there is none.

    Raises `InputError` if several match.
    """
    words_asked = set(_words(name))
    if full_name := _squeezed().get(_squeeze(name)):
        return _variant(devices()[full_name], words_asked)
    several = sorted(
        {full_name for full_name, spelling in _spellings() if words_asked and words_asked <= set(_words(spelling))},
        key=list(devices()).index,
    )
    if len(several) > 1:
        from learncost.devices.cluster import clusters  # is built on this module

        several += [group for group in clusters() if words_asked <= set(_words(group))]
        raise InputError(f"{shown(name)} matches {', '.join(several)}: give one of these")
    return _variant(devices()[several[0]], words_asked) if several else None


def _variant(device_found: Device, words: set[str]) -> Device:
    """Return the device with the memory that its name states, as V100-32GB does, where it is sold with several."""
    sizes = device_found.memory_gb
    stated = [place for place, size in enumerate(sizes) if f"{size:g}gb" in words]
    if len(sizes) == 1 or not stated:
        return device_found
    speeds = device_found.bandwidth_gbs
    speeds = speeds if len(speeds) < len(sizes) else (speeds[stated[0]],)
    return replace(device_found, memory_gb=(sizes[stated[0]],), bandwidth_gbs=speeds)


def _near_words(name: str) -> str:
    """Return the names of devices with a model number similar to the name, such as H100 for H10."""
    words = {word: full_name for full_name in devices() for word in full_name.split() if any(map(str.isdigit, word))}
    return nearest(name, words)


@cache
def _spellings() -> tuple[tuple[str, str], ...]:
    """Return every device with the spellings of its names, its own name first."""
    return tuple(
        (full_name, spelling)
        for full_name, device_found in devices().items()
        for spelling in (full_name, *device_found.names)
    )


@cache
def _squeezed() -> Mapping[str, str]:
    return {_squeeze(spelling): full_name for full_name, spelling in _spellings()}


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case, without the maker."""
    return [word for word in short_name(name).lower().split("-") if word]


def short_name(name: str) -> str:
    """Return the name of a device or cluster without its maker as one word, such as A100-SXM-80GB."""
    words = re.findall(r"[A-Za-z0-9.]+", name)
    return "-".join([word for word in words if word.lower() not in _MAKERS] or words)


def _squeeze(name: str) -> str:
    """Return a name in lower case without maker and separators, so that RTX4090 matches NVIDIA GeForce RTX 4090."""
    joined = "".join(re.findall(r"[a-z0-9]+", name.lower()))
    while maker_found := next((maker for maker in _MAKERS if joined.startswith(maker) and joined != maker), ""):
        joined = joined.removeprefix(maker_found)
    return joined


def _from_file(name: str) -> Device:
    if Path(name).is_dir():
        raise InputError(f"{shown(name)} is a folder: give a TOML or JSON file that describes the device")
    return _device({"name": Path(name).stem, "source": f"the file {Path(name).name}", **read_path(name)}, shown(name))


def _device(row: Mapping[str, Any], where: str) -> Device:
    """Return the device of a file's data; every key is validated."""
    keys = [option.name for option in fields(Device)]
    checked: dict[str, Any] = {}
    for key, value in row.items():
        if key not in keys:
            raise InputError(f"{where}: a device has no {shown(key)}{nearest(key, keys)} (it has {', '.join(keys)})")
        if key in ("peak_tflops", "measured_tflops"):
            checked[key] = _rates(key, value, where)
        elif key in ("memory_gb", "bandwidth_gbs", "system_power_w"):
            several = value if isinstance(value, list) else [value]
            if not several:
                raise InputError(f"{where}: {key} has no number")
            checked[key] = tuple(positive_number(key, each, where) for each in several)
        elif key in ("tdp_w", "host_gbs", "flash_gb", "clock_mhz", "ua_per_mhz", "volts"):
            checked[key] = positive_number(key, value, where)
        elif key == "regions":
            checked[key] = regions_of(value, where)
        elif key == "flash_begin":
            checked[key] = address("flash_begin", value, where)
        elif key == "names":
            if not isinstance(value, list) or not all(isinstance(text, str) and text.isprintable() for text in value):
                raise InputError(f"{where}: names must be a list of lines of text, not {shown(value)}")
            checked[key] = tuple(value)
        elif not isinstance(value, str) or not value.isprintable():
            raise InputError(f"{where}: {key} must be one line of text, not {shown(value)}")
        elif key == "torch" and value != "cuda":
            raise InputError(f"{where}: torch must be cuda, or left out, not {shown(value)}")
        else:
            checked[key] = value
    found = Device(**checked)
    _check_addresses(found, where)
    return found


def _check_addresses(found: Device, where: str) -> None:
    """Raise `InputError` if two memories of a device share an address, or one goes beyond the last one."""
    flash = () if found.flash_begin is None else (Region("flash", found.flash or 0, found.flash_begin),)
    lying = sorted(
        (each.begin, each.begin + each.bytes, each.name) for each in (*found.regions, *flash) if each.begin is not None
    )
    for (_, end, name), (begin, _, other) in pairwise([*lying, (2**32, 2**32, "")]):
        if end > begin:
            raise InputError(f"{where}: {name} ends at {end:#x}, {f'within {other}' if other else 'beyond 32 bits'}")


def _rates(key: str, value: object, where: str) -> Mapping[str, float]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} must be a table such as {{ bf16 = 312 }}, not {shown(value)}")
    for name in value:
        if name not in RATES:
            raise InputError(
                f"{where}: {key} has the data types {', '.join(RATES)}, not {shown(name)}{nearest(name, RATES)}"
            )
    return {name: positive_number(f"{key}.{name}", rate, where) for name, rate in value.items()}


def positive_number(key: str, value: object, where: str) -> float:
    """Return a positive number from a file. Raises `InputError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not SMALLEST <= value <= LARGEST:
        raise InputError(f"{where}: {key} must be a number from 10^-12 to 10^9, not {shown(value)}")
    return float(value)


def inherited(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by name, each with what it has not from the row before that its `like` names."""
    result: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        usual = result.get(row.get("like", ""), {})
        tables = {key: {**usual.get(key, {}), **each} for key, each in row.items() if isinstance(each, Mapping)}
        result[name] = {key: each for key, each in {**usual, **row, **tables}.items() if key != "like"}
    return result
