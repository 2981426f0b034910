"""Published memory and time of trainings on many devices, beside what learncost predicts from the tables.

    python benchmarks/clusters.py [ROWS.json] [--only TEXT] [--format table|json]

ROWS.json has the form of benchmarks/clusters.json, which is taken by default: `rows`, each with id, config, quantity,
value and unit. A row is answered where its configuration is complete; the others are listed with what is missing.
One of another source says in config: device, model or a GPT's sizes (hidden, heads, layers, vocab), seq, tp, pp, dp or
gpus, micro_batch, global_batch; and what is not the usual: recompute (full, selective, minimal, layer, op, norm, act;
several with commas between), zero, fsdp, interleave, schedule, stages (blocks of each), flash, sequence_parallel,
framework, compile, network_gbps, ep and etp; gated, tied and kv_heads of models that are no GPT.
Its unit is one of published_trainings/times.py, or of bytes. clusters_later.json, clusters_fresh.json and
clusters_others.json have rows that were tried later.
Nothing is fitted to a row: what is assumed of a device is in src/learncost/devices (devices.toml, sustained.toml,
clusters.toml), and what frameworks do is said once for each of them (published_trainings/frameworks.py).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from published_trainings.answers import answer, summary


def main() -> None:
    """Print all rows and how far they are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", default=str(Path(__file__).with_name("clusters.json")))
    parser.add_argument("--only", default="", help="rows with this in their id")
    parser.add_argument("--format", default="table", choices=("table", "json"))
    arguments = parser.parse_args()
    content = json.loads(Path(arguments.rows).read_text(encoding="utf-8"))
    rows = [row for row in content["rows"] if arguments.only in row["id"]]
    if arguments.format == "json":
        print(json.dumps([answer(row).__dict__ for row in rows], indent=1))
        return
    several = []
    for row in rows:
        several.append(each := answer(row))
        if each.kind:
            print(
                f"{each.name:<62} {each.kind:<8} {each.published:>10,.2f} {each.predicted:>10,.2f} {each.unit:<8} "
                f"{100 * each.off:+6.1f} %",
                flush=True,
            )
        else:
            print(f"{each.name:<62} not answered: {each.why}", flush=True)
    print()
    print(summary(several))
    print(f"not answered: {sum(not each.kind for each in several)} of {len(several)}")


if __name__ == "__main__":
    main()
