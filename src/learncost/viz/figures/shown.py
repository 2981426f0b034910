"""A matplotlib Figure that a notebook shows by itself, whatever its settings are."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure


class Plot(Figure):
    """A figure; `rests_on` is its title and what it rests on, as its file says, `style` matplotlib's settings."""

    rests_on: dict[str, str]
    style: Any

    def _repr_png_(self) -> bytes:
        with rc_context(self.style):
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=160)
        return file.getvalue()
