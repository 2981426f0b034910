"""What holds of every answer, whatever it is about: numbers are numbers, totals are sums, and a screen fits."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

WIDTH = 80
SIGNED = ("difference", "relative_error", "error_parts", "amount", "share", "maccs", "flops", "reasons", "ratio")
"""Keys under which a number may be negative where it is a difference: in `conventions`, `rules` and `errata`."""
WITH_DIFFERENCES = ("conventions", "rules", "errata")
NOT_A_NUMBER = re.compile(r"(?<![\w-])-?(nan|inf|infinity|None)(?![\w-])")


def faults(line: str, out: str, screens: bool = True) -> list[str]:
    """What is wrong with an answer; `screens`: no line of a table is wider than the terminal."""
    words = shlex.split(line)
    command, format = words[0], format_of(words)
    if format == "json":
        try:
            data = json.loads(out, parse_constant=_no_constant)
        except ValueError as error:
            return [f"no JSON: {error}"]
        return [*_numbers(data, command), *_SUMS.get(command, _nothing)(data)]
    problems = [f"{word!r} among numbers" for word in _odd(command, out)]
    if command == "emit":
        ast.parse(out)
    elif command == "sweep" or format == "csv":
        lengths = {len(row) for row in csv.reader(io.StringIO(out))}
        problems += [f"rows of {sorted(lengths)} cells"] if len(lengths) > 1 and command in ("sweep", "cost") else []
    elif format == "table" and screens:
        widest = max(out.splitlines(), key=len)
        problems += [f"a line of {len(widest)} columns: {widest.strip()!r}"] if len(widest) > WIDTH else []
    return problems


def format_of(words: list[str]) -> str:
    """What a command line asks for: table, json, csv, ..."""
    if "--json" in words:
        return "json"
    format_name = words[words.index("--format") + 1] if "--format" in words else "table"
    return {"text": "table"}.get(format_name, format_name)


def _odd(command: str, out: str) -> list[str]:
    """Words where a number should be; sources, layers and programs (which `memory` shows lines of) have words."""
    prose = ("emit", "explain", "formulas", "list", "errata", "memory")
    return [] if command in prose else sorted({match.group() for match in NOT_A_NUMBER.finditer(out)})[:3]


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _numbers(data: Any, command: str) -> list[str]:
    result = []
    for path, number in _leaves(data):
        signed = command in WITH_DIFFERENCES and any(key in path for key in SIGNED)
        if not math.isfinite(number) or (number < 0 and not signed):
            result.append(f"{path} is {number}")
    return result[:3]


def _leaves(data: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(data, bool):
        return
    if isinstance(data, int | float):
        yield path, data
    elif isinstance(data, Mapping):
        if "publication's total leaves" in str(data.get("line")):  # an erratum: a line of its own takes it off again
            return
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}")
    elif isinstance(data, list):
        for value in data:
            yield from _leaves(value, path)


def _nothing(data: Any) -> list[str]:
    return []


def _equal(what: str, one: float, two: float) -> list[str]:
    if isinstance(one, int) and isinstance(two, int):
        return [] if one == two else [f"{what}: {one:,} is not {two:,}"]
    return [] if math.isclose(one, two, rel_tol=1e-9) else [f"{what}: {one!r} is not {two!r}"]


def _between(what: str, data: Mapping[str, Any], value: float) -> list[str]:
    low, high = data.get("low"), data.get("high")
    if low is None or high is None:
        return []
    return [] if low <= value <= high else [f"{what}: {value!r} is not in its interval, {low!r} to {high!r}"]


def _phases(what: str, data: Mapping[str, Any]) -> list[str]:
    phases = data["macro_operations"].values()
    problems = [
        _equal(f"{what}, {q} of macro-operations", sum(m[q] for m in phases), data["total"][q]) for q in _COUNTS
    ]
    return [fault for problem in problems for fault in problem]


_COUNTS = ("maccs", "flops")


def _cost(data: Mapping[str, Any]) -> list[str]:
    result = _phases("cost", data)
    for quantity in _COUNTS:
        result += _equal(f"rows' {quantity}", sum(row[quantity] for row in data["rows"]), data["total"][quantity])
    if data["total"]["flops"] < data["total"]["maccs"]:
        result.append("fewer FLOPs than MACCs")
    if (time := data.get("time")) is not None:
        rows = sum(row.get("seconds") or 0 for row in data["rows"])
        result += _equal("rows' seconds", rows + time["seconds_beside_lines"], time["seconds"])
        result += _between("seconds", time, time["seconds"])
        if (energy := time.get("energy")) is not None:
            result += _between("joules", energy, energy["joules"])
    return result


def _compare(data: Mapping[str, Any]) -> list[str]:
    return [
        fault
        for book, procedures in data["price_books"].items()
        for procedure, phases in procedures.items()
        for fault in _phases(f"{procedure} under {book}", phases)
    ]


def _conventions(data: Mapping[str, Any]) -> list[str]:
    if "price_books" not in data:
        return []
    by_name = {book["price_book"]: book for book in data["price_books"]}
    return [
        f"run has fewer MACCs than matmul, {part}"
        for part in ("forward", "forward_and_backward")
        if {"run", "matmul"} <= set(by_name)
        and by_name["run"][part] is not None
        and by_name["run"][part]["maccs"] < by_name["matmul"][part]["maccs"]
    ]


def _memory(data: Mapping[str, Any]) -> list[str]:
    result = _equal("the parts of the peak", sum(data["split"].values()), data["peak"])
    highest = max((point["bytes"] for point in data["curve"]), default=data["peak"])
    return result + _equal("the highest of the curve", highest, data["peak"])


def _fit(data: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['procedure']} {row['plan']}: fits is {row['fits']} at {row['ram']:,} of {data['ram']:,} bytes"
        for row in data["rows"]
        if row["ram"] is not None and row["fits"] and row["ram"] > data["budget"]
    ]


def _run_cost(data: Mapping[str, Any]) -> list[str]:
    figures = data["figures"].items()
    return [fault for name, figure in figures for fault in _between(name, figure, figure["value"])]


_SUMS: Mapping[str, Callable[[Any], list[str]]] = {
    "cost": _cost,
    "compare": _compare,
    "conventions": _conventions,
    "memory": _memory,
    "fit": _fit,
    "run-cost": _run_cost,
}
