"""What published trainings used of their devices: of the peak (utilization.csv), and of electric power (drawn.csv)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from learncost.devices.device import Device, devices
from learncost.devices.evidence import Observation

HERE = Path(__file__).parent

LARGE = 8
"""Devices of one server: more are a cluster."""

ALL = "all that are known"


def _rows(name: str) -> Iterator[dict[str, str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    yield from csv.DictReader(line for line in lines if not line.startswith("#"))


def groups(family: str, kind: str) -> tuple[str, ...]:
    """The groups of a training, the narrowest first: of its family of devices and kind, of either, of all."""
    of_family = (f"{kind} on {family}", f"all on {family}") if family else ()
    return (*of_family, kind, ALL)


def kind_of(row: dict[str, str]) -> str:
    """The kind of a published training."""
    if row["work"] != "pretraining":
        return "fine-tuning"
    if row["of"] == "hours":
        return "whole runs"
    return "steps of clusters" if not row["devices"] or int(row["devices"]) > LARGE else "steps of one server"


@cache
def utilizations() -> tuple[Observation, ...]:
    """Shares of the peak."""
    return tuple(
        Observation(row["source"], float(row["mfu"]), groups(devices()[row["device"]].family, kind_of(row)))
        for row in _rows("utilization.csv")
    )


def power_groups(device: Device) -> tuple[str, ...]:
    """The groups of a device whose power is asked for: its own, its family's, its kind's, all."""
    kind = "TPUs" if device.family == "TPU" else "GPUs"
    return (device.name, *([device.family] if device.family else []), kind, ALL)


@cache
def powers() -> tuple[Observation, ...]:
    """Watts with the host over the thermal design power of the device alone."""
    return tuple(
        Observation(row["source"], float(row["watts"]) / float(row["tdp_w"]), power_groups(devices()[row["device"]]))
        for row in _rows("drawn.csv")
    )
