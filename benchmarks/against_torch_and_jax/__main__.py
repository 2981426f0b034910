"""Runs as `python benchmarks/against_torch_and_jax`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run by its path, Python puts this folder on the path; the package is found from the one above.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from against_torch_and_jax.main import main

    sys.exit(main())
