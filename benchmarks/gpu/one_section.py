"""The process of one section: imports it, lets it measure, and records how it ended, traceback included.

    python -m benchmarks.gpu.one_section NAME MODULE:FUNCTION RESULTS DEVICE SECONDS [--tiny]

A section is a function that takes a Workbench. What it imports is imported here, in its own process, so that a device
fault, a hang or a killed process is the end of one section and of no other.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu.record import Results
from benchmarks.gpu.workbench import NotMeasurableError, Workbench, traceback_text


def measure_section(workbench: Workbench, measure: Callable[[Workbench], None]) -> None:
    """Run the section and record its status; nothing that it raises goes further."""
    try:
        measure(workbench)
    except NotMeasurableError as error:
        workbench.results.set_section(workbench.name, status="not measurable", why=str(error))
    except Exception as error:  # a section runs everything there is on a device; the others must still be measured
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        told = traceback_text() + workbench.logged.taken()
        workbench.results.set_section(workbench.name, status="failed", why=why, error=told)
        print(traceback.format_exc(), flush=True)
    else:
        failed = workbench.results.section(workbench.name).get("failed_parts", 0)
        facts = {"status": "failed", "why": f"{failed} of its parts failed, see notes"} if failed else {"status": "ok"}
        workbench.results.set_section(workbench.name, **facts)


def function_named(name: str) -> Callable[[Workbench], None]:
    """`package.module:function`."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def main() -> None:
    """The command line; see above."""
    parser = argparse.ArgumentParser(description="Measures one section; benchmarks.gpu starts this.")
    parser.add_argument("name")
    parser.add_argument("measure")
    parser.add_argument("results", type=Path)
    parser.add_argument("device")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    workbench = Workbench(
        arguments.name, Results(arguments.results), arguments.device, arguments.tiny, arguments.seconds
    )
    logging.basicConfig(handlers=[logging.StreamHandler(), workbench.logged])
    measure_section(workbench, lambda bench: _measure_on_device(bench, arguments.measure))


def _measure_on_device(workbench: Workbench, measure: str) -> None:
    if workbench.device.startswith("cuda"):
        import torch  # not for sections of tests, which need none

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device here; --device cpu --tiny shows whether the script runs")
    function_named(measure)(workbench)


if __name__ == "__main__":
    main()
