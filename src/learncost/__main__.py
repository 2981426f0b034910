"""`python -m learncost`: the command."""

import sys

from learncost.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
