"""Sweeps as files: Parquet by polars, and CSV by polars if installed, else by the standard library."""

from __future__ import annotations

import csv
import io
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from learncost.ir.errors import InputError, imported, to_install
from learncost.models.storage import path_of, written

if TYPE_CHECKING:
    from learncost.reports.sweep import Sweep

SUFFIXES = (".csv", ".parquet")
_BLOCK = 2**16  # rows that are written at a time
_INTEGERS = 2.0**63  # a 64-bit integer holds the counts below


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return the output path after checking its suffix, folder and library, before anything is computed."""
    target = path_of("sweep", SUFFIXES, path)
    if target.suffix.lower() == ".parquet" and find_spec("polars") is None:
        raise InputError(f"Parquet needs polars: {to_install('sweep')}; or write a .csv")
    return target


def write(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """Write a sweep to a .csv or .parquet file. An existing one is replaced only by a complete one."""
    with written(check_path(path)) as partial:
        try:
            if str(path).lower().endswith(".parquet"):
                frame(sweep).write_parquet(partial)
            else:
                with partial.open("w", encoding="utf-8", newline="") as stream:
                    write_csv(sweep, stream)
        except Exception as error:
            if not type(error).__module__.startswith("polars"):
                raise
            raise OSError(" ".join(str(error).split())) from None  # by which polars reports a full disk


def frame(sweep: Sweep) -> Any:
    """Return a polars DataFrame of all rows; columns of sizes share memory between the series."""
    polars = imported("polars", "a frame needs polars", "sweep")
    return polars.concat([_part(polars, part, sweep.configurations) for part in sweep.parts()], rechunk=False)


def _part(polars: Any, part: dict[str, Any], count: int) -> Any:
    columns = []
    for name, value in part.items():
        if isinstance(value, str):
            columns.append(polars.repeat(value, count, dtype=polars.Categorical, eager=True).alias(name))
        else:
            columns.append(polars.Series(name, np.ascontiguousarray(value)))
    return polars.DataFrame(columns)


def write_csv(sweep: Sweep, stream: IO[str]) -> None:
    """Write comma-separated values with a heading; counts are integers."""
    polars: Any = import_module("polars") if find_spec("polars") else None
    header = True
    for part in sweep.parts():
        if polars is None:
            part |= {name: np.where(part[name], "true", "false") for name in ("exact", "fits") if name in part}
        part = {name: value if name == "seconds" else _whole(value) for name, value in part.items()}
        if polars is not None:
            rows = _part(polars, part, sweep.configurations)
            if isinstance(stream, io.TextIOWrapper) and stream.seekable():
                stream.flush()
                rows.write_csv(stream.buffer, include_header=header)
            else:
                # A pipe may close early, which polars does not say in Python's way; so Python writes here itself.
                for start in range(0, sweep.configurations, _BLOCK):
                    stream.write(rows[start : start + _BLOCK].write_csv(include_header=header and start == 0))
        else:
            writer = csv.writer(stream, lineterminator="\n")
            if header:
                writer.writerow(part)
            for start in range(0, sweep.configurations, _BLOCK):
                stop = min(start + _BLOCK, sweep.configurations)
                cells = [
                    [value] * (stop - start) if isinstance(value, str) else value[start:stop].tolist()
                    for value in part.values()
                ]
                writer.writerows(zip(*cells, strict=True))
        header = False


def _whole(value: Any) -> Any:
    """Return counts as integers if all of a column fit, else as digits."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or np.isnan(value).any():
        return value
    return (
        value.astype(np.int64) if value.max() < _INTEGERS else np.array([str(int(count)) for count in value.tolist()])
    )
