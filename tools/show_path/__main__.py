"""`python -m tools.show_path [BAR ...]`: measure all bars of the whole path, or those named, and print the table."""

from __future__ import annotations

import sys

from tools.bars.runner import Show

SHOW = Show(
    package="tools.show_path",
    description="Measures the bars of the whole path, from a picture to tokens, and prints them as a table.",
    module_of_bar={
        1: "commands",
        2: "parity",
        3: "accuracy",
        4: "load",
        5: "load",
        6: "flow",
        7: "hostile",
        8: "newcomer",
        9: "commands",
    },
)

if __name__ == "__main__":
    sys.exit(SHOW.main())
