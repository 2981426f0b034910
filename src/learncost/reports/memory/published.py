"""Activation memory by the counting rules of publications, compared with the tables: elements of one sequence.

Peaks of training steps that were measured on one GPU, as published, are compared with predicted ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from learncost.cost_models.formula import FormulaValues, value
from learncost.ir.dataclass import Key, Serializable, attributes, dataclass, field, replace
from learncost.ir.errors import BYTES, InputError
from learncost.ir.polynomial import Polynomial, total
from learncost.liveness import levels
from learncost.models.families import instead
from learncost.models.model import Model
from learncost.procedures.step import step
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.request import Request
from learncost.reports.run import prepare
from learncost.reports.sheet import WIDTH, AtLength, Sheet, SheetRow, TableColumn, TabularAnswer, number, table

PROCEDURES = ("bp", "recompute", "pepita", "mempepita")
LETTERS = ("M", "N", "d", "h", "k", "f", "v")
STACKS = {"n": "n_layer", "E": "n_enc", "D": "n_dec"}
"""The numbers of blocks as the tables call them."""


_COUNTED = "as in gpt2, t5-small or bert-base --architecture BertForMaskedLM"


@dataclass(frozen=True)
class SavedActivations:
    """Saved tensors: as the source counts them, and corrected (`corrected`)."""

    layer: str
    values: str
    elements: str
    corrected: str = ""
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class ActivationConvention:
    """The counting rules of a publication: rows of models with one stack of blocks and with two, and their errors."""

    name: str
    title: str
    source: str
    claim: str
    miscounts: tuple[str, ...]
    saved: Mapping[str, tuple[SavedActivations, ...]]
    moments: Mapping[str, tuple[str, ...]]

    def elements(self, procedure: str, sizes: Mapping[str, int], corrected: bool = False) -> int | None:
        """Elements of one sequence, by the convention's letters; None for a procedure that it does not know.

        sizes   of the letters: M, d, h, k, f, v and n, or M, N, d, h, k, f, v, E and D
        corrected  with the right number where a row says how many there are
        """
        stack = "one" if "n" in sizes else "two"
        if procedure == "mempepita":
            return max(_summed(moment, sizes) for moment in self.moments[stack])
        if procedure not in ("bp", "pepita"):
            return None
        rows = (row for row in self.saved[stack] if not row.only or procedure in row.only)
        return sum(_summed((corrected and row.corrected) or row.elements, sizes) for row in rows)


def _summed(text: str, sizes: Mapping[str, int]) -> int:
    letters = {name: Polynomial.of((name,)) for name in sizes}
    return int(total(value(product, letters) for product in text.split(" + ")).at(sizes))


@cache
def conventions() -> Mapping[str, ActivationConvention]:
    """Return the conventions by name."""
    by_name = {}
    text = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    for name, entry in tomllib.loads(text).items():
        stacks, miscounts = entry.pop("stacks"), tuple(entry.pop("miscounts"))
        arrays = {
            stack: tuple(SavedActivations(**{**row, "only": tuple(row.get("only", ()))}) for row in table["saved"])
            for stack, table in stacks.items()
        }
        moments = {stack: tuple(row["elements"] for row in table["moments"]) for stack, table in stacks.items()}
        by_name[name] = ActivationConvention(name, miscounts=miscounts, saved=arrays, moments=moments, **entry)
    return by_name


@dataclass(frozen=True)
class PublishedActivations:
    """A procedure's activation memory: as published, corrected, and exact."""

    procedure: str
    published: int | None
    corrected: int | None
    exact: int


_CONVENTION = attributes(convention="name", **{name: name for name in ("source", "claim", "miscounts")})


@dataclass(frozen=True, repr=False)
class PublishedMemory(AtLength):
    """The activation memory of one sequence under every procedure, in elements: a publication's and the exact one."""

    model: str
    seq_len: int
    target_len: int | None
    convention: ActivationConvention = field(metadata=Key(form=_CONVENTION, inline=True).field)
    rows: tuple[PublishedActivations, ...] = field(metadata=Key("elements").field)

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the table with a row for each procedure; shares are relative to backpropagation."""
        names = ("published", "corrected", "exact")
        base = {name: getattr(self.rows[0], name) for name in names}
        rows = []
        for row in self.rows:
            cells = [row.procedure]
            for name in names:
                elements = getattr(row, name)
                cells += ["-", ""] if elements is None else [number(elements), f"{100 * elements / base[name]:.1f} %"]
            rows.append(SheetRow(tuple(cells)))
        sides = "" if self.target_len is None else f" and {self.target_len:,}"
        sequence = f"one sequence of {self.seq_len:,}{sides} tokens{self._length_note}"
        title = f"{self.model}, memory for activations of {sequence}, in elements"
        columns = ("", "as published", "of bp", "corrected", "of bp", "exactly", "of bp")
        return (Sheet(title, columns, tuple(rows), self._notes()),)

    def _notes(self) -> tuple[str, ...]:
        convention = self.convention
        return (
            f"As published: {convention.source}. Their claim: {convention.claim}.",
            f"What it miscounts: {'; '.join(convention.miscounts)}. "
            "Corrected: with the right number of probabilities of both.",
            "Exactly: the most that grows with the batch at any line of the step, as in learncost memory.",
        )


def published_memory(request: Request, convention: str = "pau-aymone") -> PublishedMemory:
    """Compare a publication's activation memory of one sequence with the exact one.

    Raises `InputError` for a model that the convention does not speak of.
    """
    counting = conventions()[convention]
    request = replace(request, batch_size=1)
    run = prepare(request)
    letters = _letters(run.model, run.axes)  # what the convention does not speak of is said before what cannot learn
    prepare(request, PROCEDURES)
    rows = []
    for name in PROCEDURES:
        counted = counting.elements(name, letters), counting.elements(name, letters, corrected=True)
        rows.append(PublishedActivations(name, *counted, exact(run.model, name, run.axes)))
    axes, two_sided = run.axes, run.model.two_sided
    first, second = (axes["N"], axes["M"]) if two_sided else (axes["M"], None)
    return PublishedMemory(
        run.model.configuration.name, first, second, counting, tuple(rows), _length_note=run.length_note
    )


def exact(model: Model, procedure: str, axes: Mapping[str, int]) -> int:
    """Return the largest number of live elements of one sequence, over all arrays that grow with the batch."""
    others = {name: size for name, size in axes.items() if name != "B"}
    polynomials = levels(step(model, procedure, "sgd"), others, "int8")
    return max(int(level.terms.get(("B",), 0)) for level in polynomials)


def _letters(model: Model, axes: Mapping[str, int]) -> dict[str, int]:
    """Return the convention's letters for a model that they describe."""
    stacks = {letter: axes[count] for letter, count in STACKS.items() if count in axes}
    name = model.configuration.name
    if model.trained is not None:
        raise InputError(
            f"{name} has frozen weights, but the convention counts only fully trainable models, {_COUNTED}"
        )
    if not model.learns or set(stacks) not in ({"n"}, {"E", "D"}) or not {"d", "h", "k", "f", "v"} <= set(axes):
        other = "" if model.learns or "v" not in axes else instead(model.configuration.family)
        raise InputError(
            f"{name} is not covered by the convention, which counts stacks of equal blocks and a head, "
            f"{_COUNTED}{other}"
        )
    attentions = sum(stacks.values()) + stacks.get("D", 0)
    matrices = axes["d"] * axes["h"] * axes["k"] * 4 * attentions
    network = 2 * axes["d"] * axes["f"] * sum(stacks.values())
    reading = FormulaValues(model)
    counts = [reading.matrices(attention=on).at(axes) for on in (True, False)]
    if counts != [matrices, network] or axes["d"] != axes["h"] * axes["k"]:
        raise InputError(
            f"{name} has different blocks than the convention's, which have four matrices of d x d and two of d "
            f"x f, {_COUNTED}"
        )
    return {letter: axes[letter] for letter in LETTERS if letter in axes} | stacks


OUT_OF_MEMORY = "OOM"


@dataclass(frozen=True)
class PublishedPeak(Serializable):
    """A published peak, with its step, its source, and assumptions for what is not published.

    card    the memory of the GPU
    step    the arguments of `lc.memory`
    not_in  what the prediction leaves out
    """

    name: str
    published: str
    card: str
    source: str = field(metadata=Key(after="not_in").field)
    step: Mapping[str, Any] = field(hash=False)
    assumed: tuple[str, ...]
    not_in: str = ""

    @property
    @Key("published_bytes", after="published")
    def bytes(self) -> int | None:
        """The published bytes; None for an out-of-memory error."""
        return None if self.published == OUT_OF_MEMORY else _bytes(self.published)

    @cached_property
    @Key(form=attributes(predicted_bytes="peak"), inline=True, after="published")
    def predicted(self) -> Memory:
        """The predicted memory of the step."""
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
    @Key(after="published")
    def ratio(self) -> float | None:
        """The ratio of predicted to published; None for an out-of-memory error."""
        return None if self.bytes is None else self.predicted.peak / self.bytes

    @property
    @Key(after="published")
    def engine(self) -> str:
        """Return the engine that predicts."""
        return self.predicted.engine

    @property
    def ratio_text(self) -> str:
        """The ratio as text; for an out-of-memory error whether it is predicted."""
        if self.ratio is not None:
            return f"{self.ratio:.2f}"
        return "does not fit" if self.predicted.peak > _bytes(self.card) else "fits"


def _bytes(text: str) -> int:
    """Return the bytes of a printed text such as 18.9 GiB."""
    number, unit = text.split()
    return round(float(number) * BYTES[unit.lower()])


@cache
def measured() -> tuple[PublishedPeak, ...]:
    """Return all published peaks, in the order of the file."""
    text = Path(__file__).with_name("measured.toml").read_text(encoding="utf-8")
    return tuple(PublishedPeak(**{**run, "assumed": tuple(run["assumed"])}) for run in tomllib.loads(text)["run"])


@dataclass(frozen=True, repr=False)
class Peaks(TabularAnswer):
    """Return the published peaks of a model, compared with predicted ones."""

    model: str
    runs: tuple[PublishedPeak, ...] = field(metadata=Key("measured").field)

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the table with a row for each run; assumptions and omissions are notes."""
        notes: dict[str, list[str]] = {}
        for run in self.runs:
            left = f" Not included: {run.not_in}." if run.not_in else ""
            notes.setdefault(f"{run.source}. Assumed: {'; '.join(run.assumed)}.{left}", []).append(run.name)
        columns = (
            TableColumn("", attrgetter("name"), words=True),
            TableColumn("published", attrgetter("published")),
            TableColumn("predicted", attrgetter("predicted_text")),
            TableColumn("ratio", attrgetter("ratio_text")),
        )
        sentences = tuple(f"{', '.join(names)}: {text}" for text, names in notes.items())
        return (table(f"{self.model}, peak memory of training steps on one GPU", columns, self.runs, sentences),)


def measured_of(model: str) -> tuple[PublishedPeak, ...]:
    """Return the published peaks of a model with its own sizes."""
    return tuple(run for run in measured() if run.step["model"] == model and "hidden_size" not in run.step)
