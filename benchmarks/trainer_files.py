"""Translate the trainers' files of a folder into steps, and print by framework what became of them.

python benchmarks/trainer_files.py FOLDER

What files ask for is given: eight devices, 512 tokens, a vocabulary of 50,304. Files of no known trainer are one line.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from learncost.ir.errors import InputError
from learncost.reports.trainer_step import keywords_of, read_step
from learncost.trainer_files.documents import SUFFIXES
from learncost.trainer_files.reading import is_trainer_file

GIVEN = {"devices": {"mesh": "dp=8"}, "seq_len": {"seq_len": 512}, "vocab_size": {"vocab_size": 50_304}}
"""What is given in place of what files do not say."""

UNKNOWN = ("is no known preset", "describes a kind of model")
"""Texts of the errors about unknown models."""


def outcome(path: str) -> tuple[str, str]:
    """Return the framework of a file, and what became of it."""
    try:
        reading, _ = read_step([path])
    except InputError:
        return "none", "refused"
    name = reading.frameworks[0].name
    if reading.refused:
        return name, "another task"
    given = {key: value for ask in reading.asks for key, value in GIVEN.get(ask, {}).items()}
    try:
        keywords_of(reading, **given)
    except InputError as error:
        return name, "unknown model" if any(text in str(error) for text in UNKNOWN) else "refused"
    whole = "complete but for named keys" if reading.unsupported or reading.unknown else "complete"
    return name, f"{whole}, asked" if reading.asks else whole


def main(folder: str) -> None:
    """Print the counts of a folder."""
    paths = sorted(str(path) for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES)
    found = Counter(outcome(path) for path in paths if is_trainer_file(path))
    for (name, what), count in sorted(found.items()):
        print(f"{name:16} {what:36} {count:6,}")


if __name__ == "__main__":
    main(sys.argv[1])
