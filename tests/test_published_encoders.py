"""Numbers of parameters that were published for encoders, encoder-decoders and ViT, to the unit.

Where a source counts other things than transformers' model has, the difference is a formula in the model's sizes.
"""

import json
from pathlib import Path

import pytest

from learncost.layers.active import parameters
from learncost.models.argument import preset, presets
from learncost.models.configuration import configure
from learncost.models.model import build

ROWS = json.loads((Path(__file__).parent / "published" / "encoders.json").read_text(encoding="utf-8"))

DIFFERENCES = {
    # Rows 0 and 1 of the positions, which are never read; the row of the only token type; the pooler.
    "keras backbone: 512 positions, no token-type row, no pooler": lambda d, v, n: -2 * d - d - (d * d + d),
    "keras: 1024 position rows; HF 1026 per side": lambda d, v, n: -2 * 2 * d,
    "without the encoder's sines": lambda d, v, n: -n * d,
    "no head": lambda d, v, n: -v * d,
    "keras backbone: with a pooler, no head": lambda d, v, n: d * d + d,
}


@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_published_to_the_unit(row):
    overrides = {}
    if row["what"].startswith("keras backbone: with a pooler"):
        overrides["architecture"] = "ElectraModel"
    model = build(configure(row.get("config") or row["preset"], overrides))
    sizes = model.configuration.sizes
    sizes_key = (sizes["hidden_size"], sizes.get("vocab_size", 0), sizes.get("max_source_positions", 0))
    difference = DIFFERENCES.get(row["what"], lambda *_: 0)(*sizes_key)
    assert parameters(model.table).at(model.sizes) + difference == row["value"]


@pytest.mark.parametrize("row", [row for row in ROWS if "config" in row], ids=lambda row: row["model"])
def test_presets_are_the_published_models(row):
    """Under the published name, with the same parameters as the row's own configuration; XLM-R's type is its own."""
    preset_found = preset(row["model"].lower())
    assert preset_found is not None
    ours = [build(configure(argument)) for argument in (preset_found.name, row["config"])]
    assert len({parameters(model.table).at(model.sizes) for model in ours}) == 1


KINDS = [
    "albert",
    "bart",
    "bert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "roberta",
    "t5",
    "vit",
    "whisper",
    "xlm-roberta",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_preset_names_its_source(kind):
    presets_found = [preset for preset in presets() if preset.family == kind]
    assert presets_found
    assert all("config.json" in entry.source or "table" in entry.source for entry in presets_found)
