"""Parameters of published decoders: the presets and tests/published/decoders.json, each row with its source."""

import json
from pathlib import Path

import pytest

from hugging_face import check_parameters, read
from learncost.layers.active import parameters
from learncost.models.argument import presets
from learncost.models.configuration import configure
from learncost.models.model import build
from test_families_decoders import DRAWN

ROWS = json.loads(Path(__file__).with_name("published").joinpath("decoders.json").read_text(encoding="utf-8"))
OWN = {preset.name: preset for preset in presets() if preset.family in DRAWN}
NAMES = {name: preset for preset in OWN.values() for name in (preset.name, *preset.aliases)}


def count(configuration):
    model = build(configuration)
    return parameters(model.table).at(model.sizes)


def convention(row):
    """What the source of a row leaves out: the two rows of positions that OPT never reads, as keras-hub has it."""
    return -2 * row["config"]["hidden_size"] if row["what"].startswith("keras counts 2048 position rows") else 0


@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_published_numbers_of_parameters(row):
    assert count(read(row["config"])) + convention(row) == row["value"], row["source"]
    preset = NAMES[row["model"]]
    assert count(configure(preset.name)) + convention(row) == row["value"], preset.source


def test_which_rows_have_a_convention_of_their_own():
    assert [row["model"] for row in ROWS if convention(row)] == ["opt-125m", "opt-1.3b"]


COUNTED = {row["model"] for row in ROWS}
OTHERS = [name for name, preset in OWN.items() if not COUNTED & {name, *preset.aliases}]


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("name", OTHERS)
def test_presets_without_a_published_number_are_as_large_as_transformers_makes_them(name):
    check_parameters(OWN[name].values)


def test_every_type_has_a_preset_that_says_its_source():
    assert {preset.family for preset in OWN.values()} == set(DRAWN)
    assert all("config.json" in preset.source or preset.name == "opt-175b" for preset in OWN.values())
