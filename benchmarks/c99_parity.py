"""Programs in C99 against NumPy over many steps in fp64: losses and weights, of models x procedures x optimizers.

    python benchmarks/c99_parity.py [--steps 100] [NAME ...]

A line for each: how far the losses and the weights are off, relative to the largest of each array, and which weights
are left out as their gradient is zero in mathematics. The exit code is 1 where anything is off by more than 1e-10.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from learncost.cli.verified_c99 import NEAR, parity
from test_emit_c99 import CASES, MORE, PLANS, made

SLOWLY = 1e-4
"""The rate of what learns by drawn directions: at 0.01 it diverges, and then rounding is all that is compared."""


def main() -> int:
    """Print the lines; 1 where one is off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; the default is all")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    off = 0
    for name, procedure, optimizer in CASES:
        if arguments.names and name not in arguments.names:
            continue
        learning = {
            "procedure": procedure,
            "optimizer": optimizer,
            "learning_rate": SLOWLY if procedure in MORE else 0.01,
        }
        program = made(name, plan=PLANS[optimizer], **learning)
        found = parity(program, arguments.steps, ("-O1",))
        wrong = max(found.losses, found.weights) > NEAR
        off += wrong
        without = f", without {', '.join(found.nothing)}" if found.nothing else ""
        print(
            f"{'OFF ' if wrong else 'near'} {name} {procedure} {optimizer} [{PLANS[optimizer]}]: "
            f"losses {found.losses:.1e}, weights {found.weights:.1e} ({found.worst}){without}",
            flush=True,
        )
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())
