"""The gallery: every kind of figure, drawn when the pages are written, with its command and what it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import learncost as lc
from learncost.training.contest.contest import ContestDesign, contest
from learncost.training.contest.entrant import Setting, budget, entrants
from learncost.training.contest.problem import mlp
from learncost.viz.figures import FIGURES, figure_row
from learncost.viz.figures.make import plotted, save, sentences

GALLERY = {
    "procedures": (["gpt2"], {"procedures": "bp,recompute,pepita,mempepita"}),
    "crossover": (["gpt2"], {"procedures": "bp,recompute,pepita,mempepita"}),
    "memory": (["gpt2"], {"procedures": "bp"}),
    "roofline": (["gpt2"], {"on": "A100-SXM-40GB"}),
    "conventions": (["gpt2"], {"price_book": "paper"}),
    "scaling": (["gpt2", "bert-base"], {}),
    "macro-operations": (["gpt2", "bert-base", "t5-small", "vit-base-patch16-224", "whisper-tiny"], {}),
}
"""The models and the flags of each figure."""

ANSWERS: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "fit": ('lc.fit("gpt2", "2.2GB", seq_len=512)', lambda: lc.fit("gpt2", "2.2GB", seq_len=512)),
    "sweep": (
        'lc.sweep("gpt2", seq_len=[64, 256, 1024], n_layer=[6, 12], procedures="bp,pepita")',
        lambda: lc.sweep("gpt2", seq_len=[64, 256, 1024], n_layer=[6, 12], procedures="bp,pepita"),
    ),
    "complexity": (
        "lc.complexity(hidden_size=768, kernel_size=3, window=128)",
        lambda: lc.complexity(hidden_size=768, kernel_size=3, window=128),
    ),
    "contest": (
        'contest(Setting(mlp((64,)), "momentum"), '
        'ContestDesign(entrants("bp,pepita", "stable"), budget("steps:100"), rates=(0.1,)))',
        lambda: contest(
            Setting(mlp((64,)), "momentum"),
            ContestDesign(entrants("bp,pepita", "stable"), budget("steps:100"), rates=(0.1,)),
        ),
    ),
}
"""The answers that have a figure of their own, as Python asks for them."""

TYPED = {"procedures": "procedure", "price_book": "price-book"}


def page(folder: Path) -> str:
    """The page; its figures are written into a folder beside it, those that did not change left as they are."""
    images = folder / "generated" / "figures"
    images.mkdir(parents=True, exist_ok=True)
    sections = [*(_section(kind, images) for kind in GALLERY), *(_answer(kind, images) for kind in ANSWERS)]
    return "\n\n".join(sections) + "\n"


def pictures(page: str) -> str:
    """The first figures of the gallery's page, for the first page of the documentation."""
    found = re.findall(r"!\[(.+)\]\((.+)\)", page)[:4]
    each = [f"[![{finding}]({path})](figures.md)\n{finding}." for finding, path in found]
    return "\n".join(["```{container} pictures", *(f"{text}\n" for text in each), "```", ""])


def _answer(kind: str, images: Path) -> str:
    """An answer with its picture, and the call that makes it."""
    call, ask = ANSWERS[kind]
    figure = ask().plot(columns=2)
    _saved(figure, images / f"{kind}.svg", call)
    finding, basis = figure.rests_on["Title"], figure.rests_on["Sentences"]
    return (
        f"## {finding}\n\n```python\n{call}.plot(columns=2)\n```\n\n"
        f"![{finding}](generated/figures/{kind}.svg)\n\n{basis}"
    )


def _saved(figure: Any, path: Path, command: str) -> None:
    """Written where it is not there already as it is."""
    new = path.with_name("new.svg")
    save(figure, new, command)
    if path.exists() and path.read_bytes() == new.read_bytes():
        new.unlink()
    else:
        new.replace(path)


def _section(kind: str, images: Path) -> str:
    models, flags = GALLERY[kind]
    module = figure_row(kind)
    data = module.ask(models, flags)
    words = ["learncost", "figure", kind, *models]
    for name, value in flags.items():
        words += [f"--{TYPED.get(name, name)}", value]
    command = shlex.join([*words, "--columns", "2", "-o", f"{kind}.svg"])
    _saved(plotted(kind, data, 2), images / f"{kind}.svg", command)
    finding = "; ".join(each.finding for each in data)
    about = FIGURES[kind].removesuffix(".")
    return (
        f"## {finding}\n\n`{kind}`: {about[0].lower()}{about[1:]}.\n\n```sh\n{command}\n```\n\n"
        f"![{finding}](generated/figures/{kind}.svg)\n\n{sentences(kind, data)}"
    )
