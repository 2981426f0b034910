"""`learncost report`: the page with the documents of models and procedures inside of it, as one file."""

from __future__ import annotations

from html import escape
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, shown
from learncost.layers.layer import Layer
from learncost.models.argument import NamedLayer
from learncost.models.storage import output_path, write_text
from learncost.procedures.procedure import INFERENCE, PROCEDURES, several
from learncost.reports.request import ON_DEVICE, Request, takes_request
from learncost.reports.sheet import Readable, wrapped
from learncost.viz.document import document
from learncost.viz.page import page
from learncost.viz.views import pictures

LARGEST = 6_000_000
"""Bytes of a report at most: what a browser opens from a disk at once."""


@dataclass(frozen=True, repr=False)
class Report(Readable):
    """A written report.

    Attributes
    ----------
    html
        The page.
    path
        The file that it was written to; None where it was not.
    models
        The models in it.
    procedures
        The procedures in it.
    refused
        Why a model is not there under a procedure.

    Examples
    --------
    >>> report = lc.report("distilgpt2", procedure="bp", output=None)
    >>> report.models, report.procedures, report.html.startswith("<!doctype html>")
    (('distilgpt2',), ('bp',), True)
    """

    html: str
    path: Path | None
    models: tuple[str, ...]
    procedures: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts allow-downloads" style="width:100%;height:900px;border:0"'
        return f'<iframe title="{escape(", ".join(self.models))}" {frame} srcdoc="{escape(self.html)}"></iframe>'

    def __str__(self) -> str:
        size = f"{len(self.html.encode()) / 1000:,.0f} kB"
        where = f"{self.path}: {size}" if self.path else size
        about = f"{where}, {', '.join(self.models)} by {', '.join(self.procedures)}. Open it in any browser."
        return "\n".join(map(wrapped, (about, *(f"Left out: {refusal}" for refusal in self.refused))))


@takes_request(
    "procedure on output price_book batch_size seq_len target_len optimizer dropout dtype context precision plan train "
    f"train_layers lora lora_rank lora_alpha dora engine accumulate offload checkpoint_every {ON_DEVICE}"
)
def report(request: Request, *models: str, procedure: str | None = None, output: str | None = "report.html") -> Report:
    """Write one HTML file with the cost of a step by layer and line, its memory, its time, and every formula.

    It opens in any browser, without a network. Its sliders recompute the counts exactly.

    Parameters
    ----------
    models
        Presets, or configuration files. A report of several has a selector.
    procedure
        The learning procedures, comma-separated: {choices}; or prefill or decode for inference. The default is bp,
        recompute, pepita and mempepita if the model supports them.
    on
        The device whose time and energy are predicted (`learncost list devices`), or here.
    output
        The file to write. The default is report.html.
    sizes
        Any size or setting of the models, such as `num_hidden_layers` 4.

    Returns
    -------
    Report
        The page and its path.

    Raises
    ------
    InputError
        As for `lc.cost`; if there is no model, and if the file cannot be written.

    Examples
    --------
    >>> gpt2 = lc.report("gpt2", procedure="bp", output=None, num_hidden_layers=1, seq_len=8)
    >>> gpt2.models, gpt2.procedures, gpt2.html.startswith("<!doctype html>")
    (('gpt2',), ('bp',), True)

    Commands
    --------
    learncost report gpt2 --on A100-SXM-40GB -o gpt2.html
        GPT-2 on a GPU, under four learning procedures.
    learncost report gpt2 gpt2-medium --procedure bp,pepita
        Two models to select from, under two procedures.
    """
    if not models:
        raise InputError("report requires a model, such as gpt2 (see learncost list models)")
    models = tuple(map(_called, models))
    path = None if output is None else output_path(output)
    names = several(procedure) or tuple(dict.fromkeys((request.procedure, *PROCEDURES)))  # a file's own comes first
    learning = [name for name in names if name not in INFERENCE] if procedure else []
    side_by_side = ",".join(learning) if len(learning) > 1 else None
    documents, refused = [], []
    for model in dict.fromkeys(models):
        of_model: list[dict[str, Any]] = []
        refusals: list[InputError] = []
        for name in names:
            try:
                asked = replace(request, model=model, procedure=name)
                of_model.append(document(asked, side_by_side))
                if len(of_model) == 1:  # the others have the same modules, and a program is laid out for one
                    of_model[-1]["views"] = pictures({**asked.given, "model": model, "procedure": name})
            except InputError as error:
                if not procedure and name == names[0]:
                    raise
                refusals.append(error)
                refused.append(f"{model} by {name}: {error.written}")
        if not of_model:
            raise refusals[0]
        documents += of_model
    html = page(documents)
    while len(html.encode()) > LARGEST and len(documents) > 1 and not procedure:
        last = documents.pop()["summary"]
        refused.append(f"{last['model']} by {last['procedure']}: the report would be larger than {LARGEST / 1e6:g} MB")
        html = page(documents)
    if len(html.encode()) > LARGEST:
        raise InputError(
            f"{len(documents)} steps make a report of {len(html.encode()) / 1e6:.1f} MB, "
            f"more than {LARGEST / 1e6:g} MB: give fewer models or procedures"
        )
    if path is not None:
        write_text(path, html)
    procedures = tuple(dict.fromkeys(each["summary"]["procedure"] for each in documents))
    named = dict.fromkeys(each["asked"]["model"] for each in documents)
    return Report(html, path, tuple(named), procedures, tuple(refused))


def _called(model: object) -> str:
    """Return the name or path of a model for the report."""
    if isinstance(model, Layer):
        return NamedLayer(model.name, model)
    if isinstance(model, str | PathLike):
        return fspath(model)
    raise InputError(f"report requires the name of a model, a path or a table, not {shown(model)}")
