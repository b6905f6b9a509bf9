"""`python -m tools.show_decode [BAR ...]`: measure all bars of decoding, or those named, and print the table."""

from __future__ import annotations

import sys

from tools.bars.runner import Show

SHOW = Show(
    package="tools.show_decode",
    description="Measures the bars of decoding, on a CPU, without a GPU and on one where there is one.",
    module_of_bar={
        1: "cpu",
        2: "pictures",
        3: "first_token",
        4: "capture",
        5: "gpu",
        6: "host_time",
        7: "deterministic",
    },
    packages=("torch", "transformers", "triton", "grpcio"),
)

if __name__ == "__main__":
    sys.exit(SHOW.main())
