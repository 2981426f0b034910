"""The style of figures: colours of passes, font sizes, number formats, measured text.

The colours were searched for: the smallest distance of any two is large for every kind of colour vision, and their
lightness is at least 9.8 of L* apart, so that they stay apart on a grey printer. Recomputation is hatched besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.reports.sheet import significant

INK, MUTED, FAINT, LINK, GRID, EDGE = "#16191D", "#4A525C", "#646D77", "#0B57B0", "#DEE2E6", "#C3C9D0"
LIGHT, MIDDLE, DARK = "#E3E6EA", "#CDD2D8", "#B4BBC4"
"""Of what no pass made."""

WIDTHS: Mapping[int, float] = {1: 3.46, 2: 7.09}
"""Inches of one and of two columns: 88 and 180 mm, as most journals have them."""

NORMAL, SMALL = 7.0, 6.0
"""Points of text, and of the smallest text."""

RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.serif": ["STIXGeneral", "DejaVu Serif"],
    "font.size": NORMAL,
    "text.color": INK,
    "axes.edgecolor": EDGE,
    "axes.linewidth": 0.6,
    "axes.labelcolor": FAINT,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 2.0,
    "ytick.major.size": 0.0,
    "xtick.major.width": 0.5,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "hatch.linewidth": 0.7,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "learncost",
}
"""Settings of matplotlib; text stays text in the files."""


@dataclass(frozen=True)
class FillStyle:
    """A fill, what is written on it, and its hatch."""

    fill: str
    text: str = INK
    hatch: str = ""


PASSES: Mapping[str, FillStyle] = {
    "forward": FillStyle("#1250B3", "#FFFFFF"),
    "recomputation": FillStyle("#90B8D8", hatch="////"),
    "backward": FillStyle("#E57500"),
    "error projection": FillStyle("#AD4E63", "#FFFFFF"),
    "weight update": FillStyle("#FCD068"),
    "optimizer step": FillStyle("#2A2F46", "#FFFFFF"),
}

KINDS: Mapping[str, FillStyle] = {
    "weights": FillStyle(MIDDLE),
    "fixed matrices": FillStyle(LIGHT, hatch="...."),
    "master weights": FillStyle(LIGHT),
    "optimizer state": FillStyle(DARK),
    "batch": FillStyle(LIGHT),
    "gradients": FillStyle("#FCD068", hatch="...."),
    **PASSES,
}
"""Of arrays: those that passes made have the passes' colours."""

LINES: Mapping[str, tuple[str, object]] = {
    "bp": (INK, "-"),
    "recompute": (INK, (0, (5, 1.6))),
    "pepita": (LINK, "-"),
    "mempepita": (LINK, (0, (1.2, 1.2))),
}
"""Colour and dashes of procedures."""

OTHERS: tuple[tuple[str, object], ...] = (
    (MUTED, (0, (4, 1.4, 1, 1.4))),
    (LINK, (0, (6, 1.5, 1, 1.5))),
    (MUTED, (0, (2, 2))),
    (INK, (0, (8, 2))),
    (LINK, (0, (8, 2, 2, 2))),
)
"""Those of other procedures, and of several models."""


def line_of(name: str, place: int) -> tuple[str, object]:
    """Colour and dashes of a procedure, or of the line at a place."""
    return LINES.get(name) or OTHERS[place % len(OTHERS)]


_LETTERS = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")


def short(value: float, unit: str = "", written: Callable[[float], str] = significant) -> str:
    """Return three significant digits and a letter, such as 881 G."""
    power = 0
    while abs(value) >= 999.5 and power < len(_LETTERS) - 1:
        value, power = value / 1000, power + 1
    digits = f"{value:.0f}" if power == 0 and value == int(value) else written(value)
    return f"{digits} {_LETTERS[power]}{unit}".strip()


def signed(value: int) -> str:
    """Return a difference with its sign, and a true minus."""
    return f"+{short(value)}" if value > 0 else f"−{short(-value)}" if value < 0 else "0"


tick = partial(short, written="{:.3g}".format)
"""A number on an axis, with no more digits than it has."""


def place_of(value: float) -> str:
    """Return a length on an axis: 512, 2 k, 128 k of 1,024 each if it is a power of two."""
    size = int(value)
    if size >= 8192 and size % 1024 == 0 and size < 2**20:
        return f"{size // 1024} k"
    if size >= 2**20 and size % 2**20 == 0:
        return f"{size // 2**20} M"
    return f"{size:,}"


def width_of(text: str, size: float = NORMAL, bold: bool = False) -> float:
    """Return the width of a text in points, in the font of the figure."""
    from matplotlib import rcParams

    return _width(text, size, bold, rcParams["font.family"][0]) if text.strip() else 0.0


@lru_cache(maxsize=4096)
def _width(text: str, size: float, bold: bool, family: str) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family=RC[f"font.{family}"], weight="bold" if bold else "normal")
    return float(TextPath((0, 0), text, size=size, prop=font).get_extents().width)
