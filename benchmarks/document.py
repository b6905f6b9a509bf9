"""Writes docs/performance.md from the results of the benchmarks, which lie beside it as JSON.

    python -m benchmarks.cpu --json docs/performance/cpu.json
    python -m benchmarks.document            writes the page and its pictures
    python -m benchmarks.document --check    exits 1 where the page does not show the results

Measures nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

from benchmarks.report import MAX_SPREAD, Comparison, machine_line, write_svg

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "performance.md"
RESULTS = REPOSITORY / "docs" / "performance"


@dataclass(frozen=True, slots=True)
class Section:
    """A benchmark and what it is called on the page."""

    benchmark: str
    heading: str

    @property
    def module(self) -> Path:
        """Its program, or the package of it."""
        package = REPOSITORY / "benchmarks" / self.benchmark
        return package / "__init__.py" if package.is_dir() else package.with_suffix(".py")

    def introduction(self) -> str:
        """What the program says of itself, up to how it is called."""
        docstring = ast.get_docstring(ast.parse(self.module.read_text(encoding="utf-8"))) or ""
        paragraphs = [one for one in docstring.split("\n\n") if "python -m" not in one]
        return "\n\n".join(indent(one, "    ") if _is_table(one) else one for one in paragraphs)


SECTIONS = (
    Section("cpu", "Tokens per second on a CPU"),
    Section("vlm", "Requests with a picture each"),
    Section("scheduler", "What a step costs the host"),
    Section("serve", "A server under load"),
    Section("grpc_overhead", "What gRPC costs"),
    Section("deterministic", "The setting `deterministic`"),
    Section("gpu", "On a GPU"),
)
BEGINNING = f"""\
# Performance

Made by `python -m benchmarks.document` from what benchmarks wrote into [performance/](performance/); do not edit it.
Figures are ratios in one run on one machine; absolute numbers show where things stood there and then. Ours and theirs
run in turn, each round gives a ratio of its own, the median counts, and none is given where the rounds spread over
{MAX_SPREAD:.0%}. A bar must hold; a goal is printed. `make benchmarks` measures everything again, `make peers` installs
the engines that ours is measured against, and `make show-decode` prints what was promised and whether it holds.
"""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page; `results` are the contents of the files by benchmark."""
    return "\n".join([BEGINNING, *(_section(section, results.get(section.benchmark)) for section in SECTIONS)])


def read_results() -> dict[str, dict[str, Any]]:
    """What lies beside the page."""
    files = {section.benchmark: RESULTS / f"{section.benchmark}.json" for section in SECTIONS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


def comparisons_of(result: Mapping[str, Any]) -> list[Comparison]:
    """All comparisons of a result, also of one that has sections."""
    parts = [result, *result.get("sections", {}).values()]
    return [Comparison.of(facts) for part in parts for facts in part.get("comparisons", ())]


def _is_table(paragraph: str) -> bool:
    """Whether it has columns and is not indented yet, which is how Markdown leaves them alone."""
    return "   " in paragraph and not paragraph.startswith("    ")


def _section(section: Section, result: Mapping[str, Any] | None) -> str:
    lines = [f"## {section.heading}", "", section.introduction(), ""]
    if result is None:
        lines += [f"Not measured yet: `python -m benchmarks.{section.benchmark} --help` says how.", ""]
        return "\n".join(lines)
    lines += [f"Measured on: {_machine(result)}.", ""]
    engines = [f"- {name}: {machine_line(facts)}" for name, facts in result.get("engines", {}).items()]
    lines += [*engines, ""] if engines else []
    comparisons = comparisons_of(result)
    lines += [*_table(comparisons), "", f"![ratios](performance/{section.benchmark}.svg)", ""] if comparisons else []
    lines += [f"- {line}" for line in _further(result)]
    return "\n".join([*lines, ""])


def _machine(result: Mapping[str, Any]) -> str:
    sections = result.get("sections", {}).values()
    machine = result.get("machine") or next((one["machine"] for one in sections if "machine" in one), {})
    return machine_line(machine)


def _table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield "| | ours | theirs | unit | ratio | aimed at | rounds spread |"
    yield "|---|---|---|---|---|---|---|"
    for one in comparisons:
        ratio = "none given" if one.ratio is None else f"{one.ratio:.2f}"
        aim = one.verdict or f"{'bar' if one.gates else 'goal'} {one.bar:.2f}"
        figures = f"{one.ours.median:.4g} | {one.theirs.median:.4g} | {one.unit}"
        yield f"| {one.name} | {figures} | {ratio} | {aim} | {one.spread:.0%} |"


_SHOWN_OTHERWISE = ("machine", "comparisons", "engines", "engine", "rounds", "sections", "missing")


def _further(result: Mapping[str, Any]) -> Iterator[str]:
    """Other figures that a benchmark gives, a line each, and what it could not measure."""
    for name, value in result.items():
        if name not in _SHOWN_OTHERWISE:
            several = isinstance(value, list) and any(isinstance(one, dict) for one in value)
            yield from (f"{_words(name)}: {_shown(one)}" for one in (value if several else [value]))
    yield from (f"not measured: {one}" for one in result.get("missing", ()))


def _shown(value: Any) -> str:
    """A JSON value in words."""
    if isinstance(value, dict):
        return ", ".join(f"{_words(name)} {_shown(one)}" for name, one in value.items())
    if isinstance(value, list):
        return "; ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Writes docs/performance.md from the results beside it.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is another one")
    arguments = parser.parse_args()
    results = read_results()
    wanted = page(results)
    if arguments.check:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    for section in SECTIONS:
        comparisons = comparisons_of(results.get(section.benchmark, {}))
        if comparisons:
            write_svg(RESULTS / f"{section.benchmark}.svg", section.heading.replace("`", ""), comparisons)
    return 0


if __name__ == "__main__":
    sys.exit(main())
