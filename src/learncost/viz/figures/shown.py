"""A matplotlib Figure that a notebook shows by itself, whatever its settings are."""

from __future__ import annotations

import io

from matplotlib import rc_context
from matplotlib.figure import Figure

from learncost.viz.figures.style import RC


class Plot(Figure):
    """A figure; `rests_on` is its title and what it rests on, as its file says."""

    rests_on: dict[str, str]

    def _repr_png_(self) -> bytes:
        with rc_context(RC):
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=160)
        return file.getvalue()
