"""`python -m tools.show_media [BAR ...]`: measure all bars of media, or those named, and print the table."""

from __future__ import annotations

import sys

from tools.bars.runner import Show

SHOW = Show(
    package="tools.show_media",
    description="Measures the bars of media, from every source of a picture or clip to tokens, and prints a table.",
    module_of_bar={
        1: "preprocessing",
        2: "preprocessing",
        3: "answers",
        4: "uploading",
        5: "fetching",
        6: "encoding",
        7: "hostile",
        8: "answers",
        9: "throughput",
        10: "answers",
        11: "answers",
    },
    packages=("torch", "transformers", "pillow", "av", "grpcio"),
)

if __name__ == "__main__":
    sys.exit(SHOW.main())
