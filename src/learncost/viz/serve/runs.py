"""The watched trainings and contests of a folder, read from their files.

The folder is named when the server starts; a request names nothing. What grows is read on from where it was read to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from learncost import __version__
from learncost.ir.dataclass import dataclass, field

SEVERAL = 50
"""Trainings and contests that are watched at most, the latest ones."""

LARGEST = 256 * 2**20
"""Bytes of a file that are read at most."""

POINTS = 2_000
"""Points of a curve that are sent at most; of more, the lowest and the highest of neighbours."""

SAMPLE = 4_000
"""Characters of a sample that are shown at most."""

OPTIONS, CONFIG, METRICS, SAMPLES = "training.json", "config.json", "metrics.jsonl", "samples.txt"
"""The files of a training (`learncost.training.folder`)."""

CONTEST = frozenset(("schema", "problem", "budget", "seeds", "results"))
"""The keys that identify the file of a contest."""


@dataclass
class _TrainingCurves:
    """The curves of a training: losses, elapsed seconds, examples per second and memory by step; and validations."""

    step: list[int] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    speed: list[float | None] = field(default_factory=list)
    memory: list[int | None] = field(default_factory=list)
    validation: list[dict[str, float]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        self.step.append(int(row["step"]))
        self.loss.append(_number(row.get("loss")))
        self.seconds.append((self.seconds[-1] if self.seconds else 0.0) + (_number(row.get("seconds")) or 0.0))
        self.speed.append(_number(row.get("tokens_per_second", row.get("examples_per_second"))))
        self.memory.append(row.get("memory"))
        if (value := _number(row.get("validation_loss"))) is not None:
            more = {name: row[name] for name in ("bits_per_byte", "accuracy") if name in row}
            self.validation.append({"step": self.step[-1], "loss": value, **more})
        self.last = dict(row)

    def to_dict(self) -> dict[str, Any]:
        places = thinned(self.loss)
        names = ("step", "loss", "seconds", "speed", "memory")
        curves = {name: [getattr(self, name)[place] for place in places] for name in names}
        return {**curves, "validation": self.validation}


def thinned(values: Sequence[float | None], most: int = POINTS) -> list[int]:
    """Return the indices of at most a number of values: all, or the minimum and maximum of equal intervals."""
    if len(values) <= most:
        return list(range(len(values)))
    size = -(-len(values) // max(1, (most - 1) // 2))  # two of each, and the last
    chosen: set[int] = {len(values) - 1}
    for first in range(0, len(values), size):
        places = [place for place in range(first, min(first + size, len(values))) if values[place] is not None]
        if places:
            chosen |= {
                min(places, key=lambda place: values[place] or 0),
                max(places, key=lambda place: values[place] or 0),
            }
    return sorted(chosen)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


class _TrainingFolder:
    """The folder of a training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read, self.changed = 0, 0
        self.curves = _TrainingCurves()
        self.options: dict[str, Any] = {}
        self.flops: int | None = None

    @property
    def version(self) -> tuple[int, int]:
        return self.read, _size(self.path / SAMPLES)

    def look(self) -> None:
        """Read new records."""
        options = _json(self.path / OPTIONS)
        if options != self.options:
            self.options, self.flops = options, flops_of_step(self.path, options)
        size = _size(self.path / METRICS)
        if size < self.read:  # it was resumed from a checkpoint: what came after that is cut off
            self.read, self.curves = 0, _TrainingCurves()
        if size == self.read:
            return
        try:
            with (self.path / METRICS).open("rb") as file:
                file.seek(self.read)
                content = file.read(min(size - self.read, LARGEST))
        except OSError:
            return
        lines = content[: content.rfind(b"\n") + 1]
        self.read += len(lines)
        for line in lines.splitlines():
            try:
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    self.curves.add(row)
            except ValueError:
                continue

    def to_dict(self) -> dict[str, Any]:
        options, last = self.options, self.curves.last
        done = self.curves.step[-1] if self.curves.step else 0
        steps = options.get("steps") if isinstance(options.get("steps"), int) else None
        return {
            "name": self.path.name,
            "kind": "training",
            "model": _text(options.get("model")),
            "procedure": _text(options.get("procedure")),
            "optimizer": _text(options.get("optimizer")),
            "engine": _text(options.get("engine")),
            "batch_size": options.get("batch_size"),
            "seq_len": options.get("seq_len"),
            "learning_rate": last.get("learning_rate"),
            "steps": steps,
            "done": done,
            "ended": steps is not None and done >= steps,
            "unit": "examples" if "examples_per_second" in last else "tokens",
            "flops_per_step": None if self.flops is None else str(self.flops),
            "predicted": last.get("predicted"),
            "measured": last.get("memory"),
            "process": last.get("process"),
            "sample": _sample(self.path / SAMPLES),
            **self.curves.to_dict(),
        }


class _ContestFile:
    """The file of a contest."""

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, (0, 0)
        self.content: dict[str, Any] = {}

    def look(self) -> None:
        """Read the file again if it has changed."""
        try:
            status = self.path.stat()
        except OSError:
            return
        if self.version != (status.st_size, status.st_mtime_ns):
            self.version, self.content = (status.st_size, status.st_mtime_ns), _json(self.path)

    def curves(self) -> Iterator[dict[str, Any]]:
        """Return a curve for each training of each entrant."""
        for result in self.content.get("results", ()):
            for training in result.get("trainings", ()):
                curves, losses = _TrainingCurves(), training.get("losses", [])
                each = (training.get("seconds") or 0.0) / max(1, len(losses))
                for number, loss in enumerate(losses, 1):
                    curves.add({"step": number, "loss": loss, "seconds": each})
                after = training.get("after") or {}
                if "loss" in after:
                    curves.validation.append({"step": len(losses), **after})
                mode, procedure = result.get("mode"), _text(result.get("procedure"))
                yield {
                    "name": f"{self.path.stem}: {procedure}{f' {mode}' if mode else ''}, seed {training.get('seed')}",
                    "kind": "contest",
                    "model": _text(self.content.get("problem")),
                    "procedure": procedure,
                    "optimizer": _text(self.content.get("optimizer")),
                    "engine": "numpy",
                    "batch_size": result.get("batch_size"),
                    "seq_len": None,
                    "learning_rate": training.get("learning_rate"),
                    "steps": result.get("steps"),
                    "done": len(losses),
                    "ended": True,
                    "unit": "examples",
                    "flops_per_step": str(result.get("flops_per_step")) if result.get("flops_per_step") else None,
                    "predicted": result.get("predicted_peak_bytes"),
                    "measured": result.get("measured_peak_bytes"),
                    "process": None,
                    "sample": None,
                    **curves.to_dict(),
                }


class Runs:
    """The trainings and contests of a folder: the folder of one training, or all inside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.known: dict[Path, _TrainingFolder | _ContestFile] = {}

    def _find(self) -> None:
        try:
            inside = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        except OSError:
            inside = []
        trainings = [path for path in (self.folder, *inside) if (path / OPTIONS).is_file()]
        contests = [
            path
            for path in inside
            if path.suffix == ".json" and path.name not in (OPTIONS, CONFIG) and _size(path) <= LARGEST // 4
        ]
        latest = sorted([*trainings, *contests], key=_time)[-SEVERAL:]
        for path in [gone for gone in self.known if gone not in latest]:
            del self.known[path]
        for path in latest:
            if path not in self.known:
                self.known[path] = _TrainingFolder(path) if path in trainings else _ContestFile(path)

    def state(self, since: str = "") -> dict[str, Any]:
        """Return the state of all runs; only the version if it equals `since`."""
        self._find()
        for file in self.known.values():
            file.look()
        versions = [(str(path), file.version) for path, file in sorted(self.known.items())]
        version = blake2b(repr(versions).encode(), digest_size=8).hexdigest()
        if version == since:
            return {"version": version, "same": True}
        runs: list[dict[str, Any]] = []
        for path, file in sorted(self.known.items()):
            if isinstance(file, _TrainingFolder):
                runs.append({**file.to_dict(), "changed": _time(path)})
            elif file.content.keys() >= CONTEST:
                runs += ({**curve, "changed": _time(path)} for curve in file.curves())
        return {"version": version, "folder": self.folder.name, "runs": runs}


def flops_of_step(path: Path, options: Mapping[str, Any]) -> int | None:
    """Return the FLOPs of a training's step as `learncost cost` counts them; None if unknown."""
    from learncost.engines.options import LEARNS, from_dict
    from learncost.ir.errors import InputError
    from learncost.reports.cost import cost

    try:
        from_dict(options, str(path))
    except InputError:  # damaged, or of another version
        return None
    names = ("procedure", "optimizer", "dropout", "plan", *LEARNS)
    keywords: dict[str, Any] = {name: options[name] for name in names if options.get(name) is not None}
    batch = (options.get("batch_size") or 1) * (options.get("accumulate") or 1)
    lengths: dict[str, Any] = {name: options.get(name) for name in ("seq_len", "target_len")}
    fewer: tuple[dict[str, Any], ...] = (lengths, {"seq_len": lengths["seq_len"]}, {})
    for some in fewer:  # what is fixed, or not there, may not be given
        try:
            return int(cost(str(path / CONFIG), batch_size=batch, **keywords, **some).total.flops)
        except (InputError, TypeError):
            continue
    return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _time(path: Path) -> float:
    try:
        return (path / METRICS if path.is_dir() and (path / METRICS).exists() else path).stat().st_mtime
    except OSError:
        return 0.0


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty if it is missing or incomplete."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _sample(path: Path) -> dict[str, Any] | None:
    """Return the last sample of a training, and its step."""
    size = _size(path)
    if not size:
        return None
    try:
        with path.open("rb") as file:
            file.seek(max(0, size - 8 * SAMPLE))
            text = file.read(8 * SAMPLE).decode("utf-8", "replace")
    except OSError:
        return None
    _, marker, last = text.rpartition("--- step ")
    number, _, sample = last.partition("\n")
    if not marker or not number.strip().isdecimal():
        return None
    return {"step": int(number), "text": sample.strip("\n")[:SAMPLE]}


def run_page(nonce: str) -> str:
    """Return the page of the watched runs as self-contained HTML."""
    page = Path(__file__).parents[1] / "page"

    def part(name: str) -> str:
        return (page / name).read_text(encoding="utf-8")

    parts = {
        "version": __version__,
        "nonce": f' nonce="{nonce}"',
        "style": part("style.css") + part("uplot/uPlot.min.css") + part("run/run.css"),
        "script": part("uplot/uPlot.iife.min.js") + "\n" + part("numbers.js") + part("run/run.js"),
    }
    html = part("run/run.html")
    for name, text in parts.items():
        html = html.replace("{{" + name + "}}", text)
    return html
