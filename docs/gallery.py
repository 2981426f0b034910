"""The gallery: every kind of figure, drawn when the pages are written, with its command and what it shows."""

from __future__ import annotations

import shlex
from pathlib import Path

from learncost.pictures.figures import FIGURES, module_of
from learncost.pictures.figures.make import plotted, save, sentences

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

TYPED = {"procedures": "procedure", "price_book": "price-book"}


def page(folder: Path) -> str:
    """The page; its figures are written into a folder beside it, those that did not change left as they are."""
    images = folder / "generated" / "figures"
    images.mkdir(parents=True, exist_ok=True)
    return "\n\n".join(_section(kind, images) for kind in GALLERY) + "\n"


def _section(kind: str, images: Path) -> str:
    models, flags = GALLERY[kind]
    module = module_of(kind)
    data = module.ask(models, flags)
    words = ["learncost", "figure", kind, *models]
    for name, value in flags.items():
        words += [f"--{TYPED.get(name, name)}", value]
    command = shlex.join([*words, "--columns", "2", "-o", f"{kind}.svg"])
    path, new = images / f"{kind}.svg", images / "new.svg"
    save(plotted(kind, data, 2), new, command)
    if path.exists() and path.read_bytes() == new.read_bytes():
        new.unlink()
    else:
        new.replace(path)
    finding = "; ".join(each.finding for each in data)
    about = FIGURES[kind].removesuffix(".")
    return (
        f"## {finding}\n\n`{kind}`: {about[0].lower()}{about[1:]}.\n\n```sh\n{command}\n```\n\n"
        f"![{finding}](generated/figures/{kind}.svg)\n\n{sentences(kind, data)}"
    )
