"""`learncost figure KIND MODEL...`: a figure for a paper, with its numbers in another file where they are wanted."""

from __future__ import annotations

import shlex
from typing import Any

from learncost.ir.dataclass import Key, dataclass, field
from learncost.ir.errors import InputError, counted, named_one, shown
from learncost.models.storage import path_of
from learncost.reports.cost import cost
from learncost.reports.question import flags_typed, question
from learncost.reports.sheet import Sheet, TabularAnswer
from learncost.viz.figures import FIGURES, figure_row
from learncost.viz.figures.make import (
    ENDINGS,
    check_data,
    check_no_path,
    finding_of,
    needs_matplotlib,
    plotted,
    save,
    save_data,
    sentences,
)


@dataclass(frozen=True, repr=False)
class SavedFigure(TabularAnswer):
    """A figure that was written: where, what it shows, and what it rests on."""

    kind: str = field(metadata=Key("figure").field)
    files: tuple[str, ...]
    finding: str
    conventions: str

    def sheets(self, width: int = 0) -> tuple[Sheet, ...]:
        """Return the finding, the files, the conventions."""
        return (Sheet(f"{self.finding}.", (), (), (f"In {', '.join(self.files)}.", self.conventions)),)


@question(
    cost,
    "price_book batch_size seq_len target_len optimizer dropout dtype train train_layers lora lora_rank "
    "lora_alpha dora plan on precision",
)
def figure(
    kind: str,
    *models: str,
    output: str,
    columns: int | str = 1,
    data: bool = False,
    serif: bool = False,
    procedures: str | None = None,
    engine: str | None = None,
    along: str | None = None,
    against: str | None = None,
    **given: Any,
) -> SavedFigure:
    """Draw a figure for a paper: vector or pixels, one or two columns wide, legible in grey.

    The kinds are macro-operations, scaling, crossover, memory, roofline, procedures and conventions. The file's
    metadata has the price book and the sources. Requires matplotlib: pip install 'learncost[figures]'.

    Parameters
    ----------
    kind
        The kind of figure: macro-operations, scaling, crossover, memory, roofline, procedures or conventions.
    models
        Presets, paths of a config.json, or the generic encoder, decoder, encoder-decoder with all sizes as flags.
    output
        The output file, .pdf, .svg or .png.
    columns
        Width in page columns: 1 (88 mm) or 2 (180 mm).
    data
        Also write the figure's numbers as .csv and .json.
    serif
        Letters with serifs, as in papers: STIX, which looks like Times.
    procedures
        The learning procedures, comma-separated: {choices} (`learncost list procedures`).
    engine
        The engine of the memory figure: graph or eager, which have memory by line. The default is
        that of `learncost memory`.
    along
        The dimensions of the scaling figure, comma-separated: length, batch, depth, width. The default is all.
    against
        The price book that conventions start from, to explain the difference to `price_book`. The default is matmul.
    given
        Any size or setting of the models.

    Commands
    --------
    learncost figure crossover gpt2 -o crossover.pdf
        The sequence lengths at which forward learning is cheaper than backpropagation.
    learncost figure memory gpt2 bert-base --columns 2 --data -o memory.svg
        The memory over a step of two models, with the numbers as CSV and JSON.
    learncost figure roofline gpt2 --on A100-SXM-80GB -o roofline.png
        The bound of every line of a step on a device.
    """
    named_one("figure", kind, FIGURES)
    if not models:
        raise InputError("figure requires MODEL; see its --help")
    path, wide = path_of("figure", ENDINGS, output), counted(columns)
    if wide not in (1, 2):
        raise InputError(f"columns must be 1 or 2, not {shown(columns)}")
    if data:
        check_no_path(models, path)
        check_data(path)
    needs_matplotlib()
    drawing = {"procedures": procedures, "engine": engine, "along": along, "against": against}
    arguments = given | {name: value for name, value in drawing.items() if value is not None}
    ask = figure_row(kind).ask
    assert ask is not None
    panels = ask(models, arguments)
    switches = ["--data"] * data + ["--serif"] * serif
    named = ["--columns", str(wide), *switches, "-o", output]
    command = shlex.join(["learncost", "figure", kind, *models, *flags_typed(arguments), *named])
    save(plotted(kind, panels, wide, serif), path, command)
    files = (path, *(save_data(kind, panels, path, command) if data else ()))
    return SavedFigure(kind, tuple(map(str, files)), finding_of(panels), sentences(kind, panels))
