"""A figure of panels, and the files that hold it: with sources and conventions, whole or not at all."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from learncost import __version__
from learncost.ir.errors import InputError, imported, shown
from learncost.models.storage import write_text, written
from learncost.reports.sheet import csv_of
from learncost.viz.figures import figure_row
from learncost.viz.figures.panel import Panel
from learncost.viz.figures.style import RC, WIDTHS

ENDINGS = (".pdf", ".svg", ".png")
"""The file endings of figures."""

GAP, MARGIN = 0.16, 0.04
"""Inches between panels, and around all of them."""

DPI = 300


def needs_matplotlib() -> None:
    """Raises `InputError` where matplotlib is not installed."""
    imported("matplotlib", "a figure needs matplotlib", "figures")


def plotted(kind: str, data: Sequence[Any], columns: int = 1, serif: bool = False) -> Any:
    """Return a matplotlib Figure of a kind, with a panel for each of the data; a notebook shows it.

    columns  of a page that it takes, 1 or 2
    serif    whether its letters have serifs
    Raises `InputError` where matplotlib is not installed.
    """
    needs_matplotlib()
    from matplotlib import rc_context

    from learncost.viz.figures.shown import Plot

    if columns not in WIDTHS:
        raise InputError(f"columns must be 1 or 2, not {shown(columns)}")
    width, style = WIDTHS[columns], RC | ({"font.family": "serif"} if serif else {})
    with rc_context(style):
        charts = [figure_row(kind).chart(each) for each in data]
        heights = [chart.height(columns) for chart in charts]
        height = sum(heights) + GAP * (len(heights) - 1) + 2 * MARGIN
        figure = Plot(figsize=(width, height), facecolor="white")
        bottom = height - MARGIN
        for chart, high in zip(charts, heights, strict=True):
            bottom -= high
            chart.draw(Panel(figure, MARGIN, bottom, width - 2 * MARGIN, high, columns))
            bottom -= GAP
        figure.rests_on = {"Title": finding_of(data), "Sentences": sentences(kind, data)}
        figure.style = style
    return figure


def finding_of(data: Sequence[Any]) -> str:
    """Return the findings of all panels; equal ones once, with the models that they are of."""
    if len(data) == 1:
        return str(data[0].finding)
    models: dict[str, list[str]] = {}
    for each in data:
        models.setdefault(each.finding, []).append(each.model)
    return "; ".join(f"{', '.join(dict.fromkeys(names))}: {finding}" for finding, names in models.items())


def of_answer(kind: str, answer: Any, columns: int = 1) -> Any:
    """Return a Figure of one answer. Raises `InputError` if the answer does not have the data of the kind."""
    if kind not in answer._figures:
        raise InputError(f"{type(answer).__name__} has the figures {', '.join(answer._figures)}, not {shown(kind)}")
    return plotted(kind, tuple(map(figure_row(kind).of, answer._panels)), columns)


def as_html(kind: str, answer: Any) -> str:
    """Return the picture for a notebook, as wide as its page; empty if matplotlib or the data are missing."""
    try:
        figure = of_answer(kind, answer, 2)
    except InputError:
        return ""
    image = base64.b64encode(figure._repr_png_()).decode()
    return f'<img alt="{escape(figure.rests_on["Title"])}" style="max-width:100%" src="data:image/png;base64,{image}"/>'


def sentences(kind: str, data: Iterable[Any]) -> str:
    """Return the conventions and sources of a figure."""
    texts = dict.fromkeys(text for each in data for text in figure_row(kind).notes(each) if text)
    return ". ".join(text.rstrip(".") for text in texts) + "."


def save(figure: Any, path: Path, command: str) -> None:
    """Write a figure that `plotted` made, with what it rests on in the file's metadata. Raises `InputError`."""
    from matplotlib import rc_context

    title, basis = figure.rests_on["Title"], figure.rests_on["Sentences"]
    creator = f"learncost {__version__}"
    facts: Mapping[str, Mapping[str, Any]] = {
        ".pdf": {"Title": title, "Subject": basis, "Keywords": command, "Creator": creator, "CreationDate": None},
        ".png": {"Title": title, "Description": basis, "Source": command, "Software": creator},
        ".svg": {"Title": title, "Description": basis, "Source": command, "Creator": creator, "Date": None},
    }
    with rc_context(figure.style), written(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=DPI, metadata=dict(facts[path.suffix]))


def _data_paths(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(".csv"), path.with_suffix(".json")


def check_data(path: Path) -> None:
    """Refuse to write over files that are not the figure's numbers. Raises `InputError`."""
    table_path, data_path = _data_paths(path)
    try:
        content = json.loads(data_path.read_text(encoding="utf-8"))
        is_own = isinstance(content, dict) and {"figure", "made_by", "panels"} <= content.keys()
    except (OSError, ValueError):
        is_own = False
    others = [] if is_own else [other.name for other in (table_path, data_path) if other.exists()]
    if others:
        there = f"{' and '.join(others)} {'are' if len(others) > 1 else 'is'}"
        raise InputError(f"{there} there already and not written by a figure: give -o another name, or remove --data")


def check_no_path(models: Sequence[object], path: Path) -> None:
    """Refuse a path where --data takes none: it would be read as a model. Raises `InputError`."""
    data_files = _data_paths(path)
    for model in models:
        name = Path(model) if isinstance(model, str) else None
        if name and (name.suffix == ".csv" or name in data_files or (name.suffix == ".json" and not name.exists())):
            written_to = " and ".join(other.name for other in data_files)
            raise InputError(
                f"--data takes no path, so {name} would be a model: the numbers are written to {written_to}"
            )


def save_data(kind: str, data: Sequence[Any], path: Path, command: str) -> tuple[Path, Path]:
    """Write the numbers of a figure: a table as .csv, everything as .json. Raises `InputError`."""
    text = csv_of(row for each in data for row in each.rows())
    everything = {
        "schema": 1,
        "figure": kind,
        "made_by": f"learncost {__version__}",
        "command": command,
        "conventions": sentences(kind, data),
        "panels": [each.to_dict() | {"finding": each.finding} for each in data],
    }
    table_path, data_path = _data_paths(path)
    for target, content in ((table_path, text), (data_path, json.dumps(everything, indent=2) + "\n")):
        write_text(target, content)
    return table_path, data_path
