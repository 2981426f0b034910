"""Peaks of training steps that were measured on one GPU, as published, beside those that are predicted here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from learncost.ir.errors import BYTES
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.sheet import WIDTH, Sheet, SheetRow, Shown

OUT = "OOM"


@dataclass(frozen=True)
class Measured:
    """A published peak: what was printed, of which step, who says so, and what was not said and is assumed.

    card    the memory of the GPU
    step    the arguments of `lc.memory`
    not_in  what the prediction leaves out
    """

    name: str
    published: str
    card: str
    source: str
    step: Mapping[str, Any] = field(hash=False)
    assumed: tuple[str, ...]
    not_in: str = ""

    @property
    def bytes(self) -> int | None:
        """The published bytes; None where there was too little memory."""
        return None if self.published == OUT else _bytes(self.published)

    @cached_property
    def predicted(self) -> Memory:
        """The step as it is predicted."""
        settings = dict(self.step)
        prediction = memory(settings.pop("model"), **settings)
        assert isinstance(prediction, Memory)  # one procedure, one engine
        return prediction

    @property
    def predicted_text(self) -> str:
        """The predicted peak in the unit of the published one."""
        unit = self.published.partition(" ")[2] or "GB"
        return f"{self.predicted.peak / BYTES[unit.lower()]:,.{0 if unit == 'MiB' else 1}f} {unit}"

    @property
    def ratio(self) -> float | None:
        """Predicted over published; None where there was too little memory."""
        return None if self.bytes is None else self.predicted.peak / self.bytes

    @property
    def ratio_text(self) -> str:
        """The ratio; of a step for which there was too little memory, whether that is predicted too."""
        if self.ratio is not None:
            return f"{self.ratio:.2f}"
        return "does not fit" if self.predicted.peak > _bytes(self.card) else "fits"

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it."""
        return {
            "name": self.name,
            "published": self.published,
            "published_bytes": self.bytes,
            "predicted_bytes": self.predicted.peak,
            "ratio": self.ratio,
            "engine": self.predicted.engine,
            "card": self.card,
            "step": dict(self.step),
            "assumed": list(self.assumed),
            "not_in": self.not_in,
            "source": self.source,
        }


def _bytes(text: str) -> int:
    """A number with its unit as it is printed: 18.9 GiB."""
    number, unit = text.split()
    return round(float(number) * BYTES[unit.lower()])


@cache
def measured() -> tuple[Measured, ...]:
    """All of them, in the order of the file."""
    text = (files("learncost.reports.memory") / "measured.toml").read_text(encoding="utf-8")
    return tuple(Measured(**{**run, "assumed": tuple(run["assumed"])}) for run in tomllib.loads(text)["run"])


@dataclass(frozen=True, repr=False)
class Peaks(Shown):
    """The published peaks of a model, beside those predicted."""

    model: str
    runs: tuple[Measured, ...]

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it."""
        return {"model": self.model, "measured": [run.to_dict() for run in self.runs]}

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """A row a run; what is assumed of it and what is left out stands below."""
        rows = tuple(SheetRow((run.name, run.published, run.predicted_text, run.ratio_text)) for run in self.runs)
        notes: dict[str, list[str]] = {}
        for run in self.runs:
            left = f" Left out: {run.not_in}." if run.not_in else ""
            notes.setdefault(f"{run.source}. Assumed: {'; '.join(run.assumed)}.{left}", []).append(run.name)
        columns = ("", "published", "predicted", "ratio")
        sentences = tuple(f"{', '.join(names)}: {text}" for text, names in notes.items())
        return (Sheet(f"{self.model}, peak memory of training steps on one GPU", columns, rows, sentences),)


def measured_of(model: str) -> tuple[Measured, ...]:
    """Those of a model as it is, without other sizes."""
    return tuple(run for run in measured() if run.step["model"] == model and "hidden_size" not in run.step)
