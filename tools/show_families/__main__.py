"""`python -m tools.show_families [BAR ...]`: measure all bars of families, or those named, and print the table."""

from __future__ import annotations

import sys

from tools.bars.runner import Show

SHOW = Show(
    package="tools.show_families",
    description="Measures the bars of families, from the checkpoint's files to its answers, and prints a table.",
    module_of_bar={
        1: "answers",
        2: "answers",
        3: "configuration",
        4: "hostile",
        5: "adapters",
        6: "adding",
    },
    packages=("torch", "transformers", "tokenizers", "peft"),
)

if __name__ == "__main__":
    sys.exit(SHOW.main())
