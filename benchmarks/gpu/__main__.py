"""The command line: runs the sections, prints what they found, writes it as JSON, text and picture.

    python -m benchmarks.gpu --tests --out DIR [--device cuda] [--seconds 510] [--sections decode-1b,switches] [--tiny]

Writes results.json (at every figure), report.txt, results.svg (with matplotlib), profile.txt, tests.jsonl and log.txt.
Exits 1 where a section failed or a bar is not reached.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.gpu.record import Results
from benchmarks.gpu.sections import SECTIONS, Conditions, Section, run_sections
from benchmarks.gpu.summary import everything_holds, text_of, write_picture

SECONDS = 510
"""Ends well inside ten minutes."""
WRITTEN = ("results.json", "report.txt", "results.svg", "profile.txt", "tests.jsonl", "log.txt")


def main() -> int:
    """Run what was asked for."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in WRITTEN:
        (arguments.out / name).unlink(missing_ok=True)  # what an earlier run left is not ours
    results = Results(arguments.out.resolve() / "results.json")
    results.set(
        begun=time.strftime("%Y-%m-%d %H:%M:%S"),
        device=arguments.device,
        tiny=arguments.tiny,
        seconds=arguments.seconds,
    )
    conditions = Conditions(results, arguments.device, arguments.tiny, arguments.seconds)
    run_sections(_asked_sections(arguments.sections, arguments.tests), conditions)
    content = results.read()
    text = text_of(content)
    (arguments.out / "report.txt").write_text(text + "\n", encoding="utf-8")
    write_picture(arguments.out / "results.svg", content)
    print(text)
    return 0 if everything_holds(content) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="What a GPU gives, and what we reach."
    )
    parser.add_argument("--out", type=Path, required=True, help="directory that the results are written to")
    parser.add_argument("--device", default="cuda", help="torch device to measure; cpu only together with --tiny")
    parser.add_argument("--tiny", action="store_true", help="tiny models, a few steps: shows that it runs, no figures")
    parser.add_argument("--tests", action="store_true", help="run tests/gpu as well")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the most that all sections take together")
    parser.add_argument("--sections", default="", help="names of sections, separated by commas; all if empty")
    arguments = parser.parse_args()
    if arguments.device == "cpu" and not arguments.tiny:
        parser.error("--device cpu computes models of billions for hours; give --tiny as well")
    known = {section.name for section in SECTIONS}
    unknown = [name for name in filter(None, arguments.sections.split(",")) if name not in known]
    if unknown:
        parser.error(f"--sections names {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return arguments


def _asked_sections(names: str, with_tests: bool) -> list[Section]:
    chosen = set(filter(None, names.split(",")))
    return [
        section for section in SECTIONS if (section.name in chosen if chosen else section.name != "tests" or with_tests)
    ]


if __name__ == "__main__":
    sys.exit(main())
