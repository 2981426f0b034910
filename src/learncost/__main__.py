"""`python -m learncost`: the command."""

import sys

from learncost.faces.command import main

if __name__ == "__main__":
    sys.exit(main())
