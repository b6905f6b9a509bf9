"""`python -m fanlight` is the command `fanlight`."""

import sys

from fanlight.cli import main

if __name__ == "__main__":
    sys.exit(main())
