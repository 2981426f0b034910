"""What every family is good for, by doing it: costs, memory of every runner, emitted steps, trainings, verification.

    python benchmarks/support.py                     says which fields differ from those that are kept
    python benchmarks/support.py --write             keeps today's, in src/learncost/cli/support.json
    python benchmarks/support.py --families t5,vit   only these
    python benchmarks/support.py --fields cost       only what begins so

Every field is done with a small model of the family, and what a step makes is compared with what NumPy makes of the
lines of its table. Two processes, some fifteen minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from multiprocessing import Pool
from typing import Any

from learncost.cli.support import FILE, checksum, fields, reason, stored_support
from learncost.models.families import FAMILIES


def _family(name: str, begins: str) -> tuple[str, dict[str, Any]]:
    reasons = dict(stored_support()[name]["reasons"]) if begins else {}
    for field in fields():
        if not field.startswith(begins):
            continue
        try:
            reasons[field] = reason(name, field)
        except Exception as error:  # every field is to be answered for, whatever another one did
            reasons[field] = f"wrong: {type(error).__name__}: {error}"
    return name, {"table": checksum(name), "reasons": reasons}


def main() -> int:
    """What the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what is found")
    parser.add_argument("--families", default=",".join(FAMILIES), help="with commas between")
    parser.add_argument("--fields", default="", help="how the fields begin that are done; the others stay")
    given = parser.parse_args()
    with Pool(2, maxtasksperchild=4) as pool:
        found = {}
        for name, one in pool.imap_unordered(
            partial(_family, begins=given.fields), given.families.split(","), chunksize=1
        ):
            found[name] = one
            wrong = [f"{field}: {text}" for field, text in one["reasons"].items() if text]
            print(f"{name}: {len(fields()) - len(wrong)} of {len(fields())}", *wrong, sep="\n  ", flush=True)
    before = stored_support() if FILE.exists() else {}
    if given.write:
        merged = {name: found.get(name, before.get(name)) for name in FAMILIES}
        FILE.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    wrong = any(text.startswith("wrong") for one in found.values() for text in one["reasons"].values())
    return int(wrong or (not given.write and any(before.get(name) != one for name, one in found.items())))


if __name__ == "__main__":
    sys.exit(main())
