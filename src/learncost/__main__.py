"""The command: `learncost`, or `python -m learncost`."""

import gc
import sys


def main() -> int:
    """Run the command line and return its exit code.

    Such a process makes many objects and few cycles: with Python's thresholds, and a collection at its end, the
    collector took a twentieth of what `learncost cost gpt2` takes.
    """
    gc.set_threshold(50_000, 20, 100)
    from learncost.cli.command import main as command

    code = command()
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(main())
