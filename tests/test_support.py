"""The matrix of what families are good for: fields of it are done again, and it must be of the tables of today."""

import os
import random
from pathlib import Path

import pytest
from support import checksum, fields, reason

from learncost.cli.command import main
from learncost.cli.lists.models import UNTRIED, stored_support
from learncost.ir.errors import InputError
from learncost.models.families import FAMILIES
from learncost.procedures.procedure import LEARNING, procedure

SLOW = ("jax", "verify")
"""Fields that take seconds: one of a sample at most."""


def sample() -> list[tuple[str, str]]:
    """Three fields of all, others at every run, of which one is slow."""
    seed = int(os.environ.get("LEARNCOST_TEST_SEED") or random.SystemRandom().randrange(10**9))
    print(f"the same three again: LEARNCOST_TEST_SEED={seed} pytest tests/test_support.py")
    draw = random.Random(seed)
    every = [(family, field) for family in FAMILIES for field in fields()]
    slow = [field for field in every if any(op in field[1] for op in SLOW)]
    return [*draw.sample([field for field in every if field not in slow], 2), draw.choice(slow)]


def test_the_matrix_is_of_the_tables_of_today() -> None:
    """After a change of tables: python benchmarks/support.py --write."""
    for name, family in stored_support().items():
        assert family["reasons"].keys() == fields().keys()
        assert family["table"] in ("", checksum(name)), name


def test_a_procedure_of_a_file_is_asked_of_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('schedule = ["forward", "backward", "update"]\n')
    assert procedure(str(file)).moves.keys() == procedure("bp").moves.keys()
    assert not [name for name in (*LEARNING, *fields()) if "mine" in name]
    file.write_text('schedule = ["forward", "update"]\n')
    with pytest.raises(InputError, match="has changed since it was read"):
        procedure(str(file))


def test_three_fields_are_as_they_were_found() -> None:
    for family, field in sample():
        before, now = stored_support()[family]["reasons"][field], reason(family, field)
        assert now == before or (before == UNTRIED and not now.startswith("wrong")), (family, field)


def test_no_other_field_is_wrong_and_every_family_trains_on_every_engine() -> None:
    for family, entry in stored_support().items():
        assert not [field for field, text in entry["reasons"].items() if text.startswith("wrong")], family
        trained = [text for field, text in entry["reasons"].items() if field.startswith("train ")]
        assert not any(text for text in trained if text != UNTRIED), family


def test_the_screen_counts_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "families", "--support", "--like", "vit"]) == 0
    out = capsys.readouterr().out
    assert "vit" in out
    assert "no decoder to sample from" in " ".join(out.split())
    assert main(["list", "models", "--support"]) == 2
    assert "--support applies to families" in capsys.readouterr().err
