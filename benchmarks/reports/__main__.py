"""Runs as `python benchmarks/reports`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run by its path, Python puts this folder on the path; the package is found from the one above.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    try:
        from reports.runner import main
    except ModuleNotFoundError as error:
        sys.exit(f"reports needs torch, transformers and learncost (extra `test`): {error}")
    sys.exit(main())
