"""Read, validate and write calibrations: JSON files with a machine's measured rates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import asdict, dataclass
from learncost.ir.errors import InputError, shown
from learncost.models.files import read_path
from learncost.models.storage import cannot_write, write_text
from learncost.timing.rates import ORIENTATIONS, MatmulGrid, RateCurve, Rates

SCHEMA = 1
ENGINES = ("operators", "kernels")
"""The two ways to execute a step: operator by operator, as PyTorch's autograd does, or by learncost's engine."""

MOST = 64
"""The largest number of sizes of a grid and of points of a curve."""


@dataclass(frozen=True)
class Calibration:
    """A machine: its name, when and with what it was measured, and its rates by engine and data type."""

    name: str
    measured: str
    library: str
    rates: Mapping[str, Mapping[str, Rates]]
    threads: int = 1


def calibration_path() -> Path:
    """Return the path of this machine's calibration, in $XDG_DATA_HOME/learncost or ~/.local/share/learncost."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "learncost" / "device.json"


def check_place(path: Path) -> None:
    """Refuse a path that cannot be written, before measuring. Raises `InputError`."""
    nearest = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "cannot be written to" if nearest.is_dir() else "is no folder"
        raise InputError(f"{shown(str(path))} cannot be written: {shown(str(nearest))} {why}")


def save(calibration: Calibration, path: Path) -> None:
    """Write a file atomically. Raises `InputError` where it cannot be written."""
    save_text(json.dumps({"learncost_calibration": SCHEMA, **asdict(calibration)}), path)


def save_text(text: str, path: Path) -> None:
    """Write a text to a file atomically, and its folders. Raises `InputError` where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    write_text(path, text + "\n")


def load(path: Path) -> Calibration:
    """Read a calibration from its file. Raises `InputError` with the error and its position."""
    return calibration(read_path(str(path)), shown(str(path)))


def is_calibration(row: Mapping[str, Any]) -> bool:
    """Return whether a file claims to be a calibration."""
    return "learncost_calibration" in row


def calibration(row: Mapping[str, Any], where: str) -> Calibration:
    """Return the calibration of a file's data; every value is validated."""
    if row.get("learncost_calibration") != SCHEMA:
        raise InputError(f"{where} is not a calibration of this version: run `learncost calibrate`")
    texts = {key: _text(row.get(key), key, where) for key in ("name", "measured", "library")}
    threads = _whole(row.get("threads"), "threads", where)
    source = f"measured on {texts['measured']} with {texts['library']}, {threads} thread{'s' if threads > 1 else ''}"
    engines = {}
    for engine, types in _table(row, "rates", where).items():
        if engine not in ENGINES:
            raise InputError(f"{where}: rates must be of {' or '.join(ENGINES)}, not {shown(engine)}")
        engine_rates = _table(row["rates"], engine, where)
        engines[engine] = {
            dtype: _rates(_table(engine_rates, dtype, where), where, texts["name"], dtype, source) for dtype in types
        }
    if "operators" not in engines or not engines["operators"]:
        raise InputError(f"{where} has no rates of operators: run `learncost calibrate`")
    return Calibration(**texts, rates=engines, threads=threads)


def _rates(row: Mapping[str, Any], where: str, name: str, dtype: str, source: str) -> Rates:
    products = {orientation: _grid(_table(row, "products", where), orientation, where) for orientation in ORIENTATIONS}
    ops = {
        _text(op, "ops", where): _number(value, f"ops.{op}", where, 0.0)
        for op, value in _table(row, "ops", where).items()
    }
    bandwidth = _table(row, "bandwidth", where)
    places, values = (_several(bandwidth, key, where) for key in ("places", "values"))
    if len(places) != len(values) or len(places) > MOST or sorted(set(places)) != list(places):
        raise InputError(f"{where}: bandwidth needs one value per size, with sizes in rising order")
    small = {
        key: _number(row.get(key), key, where, 0.0)
        for key in ("launch", "launch_backward", "optimizer", "fresh", "step", "low", "high")
    }
    if not 0 < small["low"] <= small["high"]:
        raise InputError(f"{where}: low must be above 0 and at most high")
    for key, value in (("operators", row.get("operators")), ("queues", row.get("queues", False))):
        if not isinstance(value, bool):
            raise InputError(f"{where}: {key} must be true or false, not {shown(value)}")
    return Rates(
        products,
        _grid(row, "inner", where),
        RateCurve(places, values),
        ops,
        threads=_whole(row.get("threads"), "threads", where),
        operators=row["operators"],
        queues=row.get("queues", False),
        name=name,
        dtype=dtype,
        source=source,
        launch=small["launch"],
        launch_backward=small["launch_backward"],
        optimizer=small["optimizer"],
        fresh=small["fresh"],
        step=small["step"],
        low=small["low"],
        high=small["high"],
    )


def _grid(row: Mapping[str, Any], name: str, where: str) -> MatmulGrid:
    table = _table(row, name, where)
    sizes = tuple(int(size) for size in _several(table, "sizes", where))
    rates = _several(table, "rates", where)
    if not 2 <= len(sizes) <= MOST or sorted(set(sizes)) != list(sizes) or len(rates) != len(sizes) ** 3:
        raise InputError(f"{where}: {name} needs sizes in rising order, and a rate for every three of them")
    return MatmulGrid(sizes, rates)


def _table(row: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = row.get(key)
    if not isinstance(value, dict):
        raise InputError(f"{where}: {shown(key)} must be an object, not {shown(value)}")
    return value


def _several(row: Mapping[str, Any], key: str, where: str) -> tuple[float, ...]:
    value = row.get(key)
    if not isinstance(value, list) or not 1 <= len(value) <= MOST**3:
        raise InputError(f"{where}: {key} must be a list of numbers")
    return tuple(_number(value, key, where, 1e-300) for value in value)


def _number(value: object, key: str, where: str, least: float) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not least <= value <= 1e30:  # type: ignore[operator]  # a number, where it fits
        bound = "from 0" if least == 0 else "above 0"
        raise InputError(f"{where}: {shown(key)} must be a number {bound}, not {shown(value)}")
    return float(value)  # type: ignore[arg-type]


def _whole(value: object, key: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**6:
        raise InputError(f"{where}: {key} must be a whole number from 1, not {shown(value)}")
    return value


def _text(value: object, key: str, where: str) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 300:
        raise InputError(f"{where}: {key} must be one line of text, not {shown(value)}")
    return value
