"""Runs as `python benchmarks/conformance`, or as `python -m conformance` with benchmarks on the path."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run by its path, Python puts this folder on the path; the package is found from the one above.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    try:
        from conformance.runner import main
    except ModuleNotFoundError as error:
        sys.exit(f"conformance needs torch and learncost (extra `torch`): {error}")
    sys.exit(main())
