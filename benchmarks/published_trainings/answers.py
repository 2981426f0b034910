"""Rows answered: memory, time and what is printed, as learncost has them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learncost.autoshard.step import sizes_of
from learncost.ir.errors import InputError
from learncost.reports.memory.types import RESERVED
from published_trainings.case import settings_of
from published_trainings.memory import activations, at_the_peak, by_eager, held, in_mode
from published_trainings.printed import PRINTED, SMALL
from published_trainings.sources import case_of, korthikanti
from published_trainings.times import UNITS, measured, step_takes

BYTES = {"GiB": 2**30, "memory_gb": 2**30, "memory_gib": 2**30, "MiB": 2**20, "memory_mib": 2**20, "GB": 1e9}
"""Bytes of a unit; gigabytes in tables of trainings are those of nvidia-smi, where a row does not say GB itself."""


TOO_MUCH = "out of memory"


@dataclass(frozen=True)
class Answer:
    """What a row says, and what is predicted; or why it is not answered.

    kind  memory, reserved, out of memory (what is published is then the device's), time or printed
    """

    name: str
    kind: str
    published: float = 0.0
    predicted: float = 0.0
    unit: str = ""
    why: str = ""

    @property
    def off(self) -> float:
        return self.predicted / self.published - 1


def answer(row: Mapping[str, Any]) -> Answer:
    """One row answered; or why it is not."""
    name = row["id"]
    if row.get("unit") in PRINTED:
        try:
            return Answer(name, "printed", *PRINTED[row["unit"]](row), row["unit"])
        except (InputError, KeyError) as error:
            return Answer(name, "", why=f"what is printed is not known here: {error}")
    if not isinstance(row.get("config"), dict):
        return Answer(name, "", why="its configuration is not in parts")
    try:
        return _answered(row)
    except KeyError as error:
        return Answer(name, "", why=f"its configuration lacks {error}")
    except InputError as error:
        return Answer(name, "", why=f"{error}")


def _answered(row: Mapping[str, Any]) -> Answer:
    name, quantity, unit = row["id"], row.get("quantity", ""), row.get("unit", "")
    is_memory = unit in BYTES or quantity.startswith(("activations", "parameters and"))
    if not is_memory and _in_fp8(row):
        raise InputError("computes in FP8")
    case = case_of(row)
    if why := case.account().sizes.divides(sizes_of(case.account(), case.parallel, case.sizes())):
        raise InputError(why)
    if not is_memory:
        published, unit = measured(row)
        return Answer(name, "time", published, UNITS[unit](case, step_takes(case), row), unit)
    published = row["value"]
    if not isinstance(published, int | float):
        raise InputError("its value is no number")
    if "percent" in quantity:
        alone = korthikanti(in_mode(row, "TP, no recomputation"))
        return Answer(name, "memory", published, 100 * activations(case) / activations(alone), "%")
    if quantity.startswith("activations"):
        return Answer(name, "memory", published, activations(case) / BYTES[unit], unit)
    if quantity.startswith("parameters"):
        return Answer(name, "memory", published, held(case) / BYTES[unit], unit)
    kind = TOO_MUCH if quantity == TOO_MUCH else "memory" if "allocated" in quantity else "reserved"
    predicted = at_the_peak(case) if kind == "memory" else by_eager(case)
    return Answer(name, kind, published, predicted / BYTES[unit], unit)


def _in_fp8(row: Mapping[str, Any]) -> bool:
    settings = settings_of(row)
    return (
        "fp8"
        in json.dumps({key: settings[key] for key in settings if key not in ("source", "notes", "metrics")}).lower()
    )


def summary(several: list[Answer]) -> str:
    """How far the answers are off, in words."""
    lines = []
    for kind, title in (("memory", "allocated memory"), ("time", "time without FP8")):
        off = sorted(abs(each.off) for each in several if each.kind == kind)
        if off:
            lines.append(
                f"{title}: {len(off)} rows, {100 * statistics.median(off):.1f} % off in the median, "
                f"{100 * off[-1]:.1f} % at worst"
            )
    if formulas := [each for each in several if each.kind == "printed"]:
        unlike = [each.name for each in formulas if abs(each.off) > SMALL]
        lines.append(f"printed formulas: {len(formulas)} rows, {len(unlike)} unlike {', '.join(unlike)}".rstrip())
    reserved = [each for each in several if each.kind == "reserved"]
    if reserved:
        above = [each.name for each in reserved if each.off > 0]
        lines.append(
            f"reserved or rounded memory: {len(reserved)} rows, {len(above)} predicted above what was published"
            + (f": {', '.join(above)}" if above else "")
        )
        least, most = RESERVED["eager"]
        held = [each for each in reserved if least <= each.published / each.predicted <= most]
        lines.append(f"of these {len(held)} reserve {least} to {most} times what is predicted")
        without = [each.published / each.predicted for each in several if each.kind == TOO_MUCH]
        lines.append(
            f"out of memory: {len(without)} rows; of {sum(each <= 1 for each in without)} what is allocated does not "
            f"fit, of {sum(each < least for each in without)} the least that is reserved, and of "
            f"{sum(each < most for each in without)} the most"
        )
    return "\n".join(lines)
