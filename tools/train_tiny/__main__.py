"""`python -m tools.train_tiny`: trains the embedded model, or continues training, and exports it.

`--export` only exports the newest checkpoint. `python -m tools.train_tiny.evaluate` measures an export.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import torch

from tools.train_tiny.export import export
from tools.train_tiny.training import Plan, Run

REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.train_tiny", description=__doc__)
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build/train_tiny", help="where checkpoints are kept")
    parser.add_argument("--model", type=Path, default=REPOSITORY / "models/fanlight-tiny", help="where to export to")
    parser.add_argument("--steps", type=int, default=Plan.steps, help="steps in all, those already done included")
    parser.add_argument("--vision-steps", type=int, default=Plan.vision_steps, help="steps before any text")
    parser.add_argument("--peak-rate", type=float, default=Plan.peak_rate, help="learning rate after the warm-up")
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export", action="store_true", help="only export the newest checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.export:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # lets the worker process end, too
        plan = Plan(arguments.seed, arguments.steps, arguments.vision_steps, peak_rate=arguments.peak_rate)
        Run(arguments.work, plan).train()
    step = export(arguments.work, arguments.model)
    print(f"exported step {step} to {arguments.model}")


if __name__ == "__main__":
    main()
