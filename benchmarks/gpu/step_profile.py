"""What a profiler saw of a few decode steps, as text and figures: kernels by time, the gaps between them, waiting.

torch's profiler writes a trace; here it is read. A gap is time in which the device did nothing, named by what it had
done before and did next. Host time is what is left of a step when waiting for the device is taken away; the profiler
slows the host, so it is an upper bound.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.cores import Core
from benchmarks.gpu.workbench import Workbench

PROFILE_FILE = "profile.txt"
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
SHOWN = 25
_NAME_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Span:
    """One event of a trace; microseconds."""

    name: str
    begin: float
    length: float

    @property
    def end(self) -> float:
        """When it was over."""
        return self.begin + self.length


@dataclass(frozen=True, slots=True)
class Gap:
    """The device did nothing between two events; microseconds."""

    before: str
    after: str
    length: float


def profile_steps(workbench: Workbench, core: Core, title: str, steps: int) -> None:
    """Profile steps of the requests that run, append the text to the profile file, and record the figures."""
    plain = core.round(steps)
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (torch.device(workbench.device).type == "cuda")]
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.json"
        with profile(activities=activities):  # a profiler's first start takes long
            core.round(1)
        with profile(activities=activities) as profiler:
            begun = time.perf_counter()
            core.round(steps)
            seconds = time.perf_counter() - begun
        profiler.export_chrome_trace(str(trace))
        events: list[dict[str, Any]] = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    figures, text = summarise(events, steps, seconds)
    figures = {"step_ms": round(plain * 1000, 3), **figures}
    workbench.record(**{f"profile of {title}": figures})
    with (workbench.out / PROFILE_FILE).open("a", encoding="utf-8") as file:
        file.write(f"== {title}: {steps} steps\n{json.dumps(figures)}\n{text}\n\n")


def summarise(events: Sequence[dict[str, Any]], steps: int, seconds: float) -> tuple[dict[str, float], str]:
    """Figures of one step in milliseconds, and the tables as text, from the events of a trace over `seconds`."""
    on_device = spans(events, ON_DEVICE)
    on_host = spans(events, ("cpu_op",)) if not on_device else []
    waited = sum(span.length for span in spans(events, ("cuda_runtime",)) if span.name in WAITS)
    between = gaps(on_device)
    figures = {
        "profiled_step_ms": round(seconds * 1e3 / steps, 3),
        "device_busy_ms": round(_covered(on_device) / 1e3 / steps, 3),
        "device_events": round(len(on_device) / steps, 1),
        "gaps_ms": round(sum(gap.length for gap in between) / 1e3 / steps, 3),
        "host_waits_ms": round(waited / 1e3 / steps, 3),
        "host_ms": round((seconds * 1e6 - waited) / 1e3 / steps, 3),
    }
    title = "device work" if on_device else "host operators (no device events in the trace)"
    tables = [_by_name(title, on_device or on_host, steps)]
    tables += [_by_gap(between, steps)] if on_device else []
    tables += [_by_name("calls of the runtime", spans(events, ("cuda_runtime", "cuda_driver")), steps)]
    return figures, "\n".join(tables)


def spans(events: Sequence[dict[str, Any]], categories: Sequence[str]) -> list[Span]:
    """Complete events of these categories, in order of their beginning."""
    found = [
        Span(str(event["name"]), float(event["ts"]), float(event["dur"]))
        for event in events
        if event.get("ph") == "X" and event.get("cat") in categories
    ]
    return sorted(found, key=lambda span: span.begin)


def gaps(ordered: Sequence[Span]) -> list[Gap]:
    """Where no event ran between the first and the last, events of several streams taken together."""
    found: list[Gap] = []
    latest: Span | None = None
    for span in ordered:
        if latest is not None and span.begin > latest.end:
            found.append(Gap(latest.name, span.name, span.begin - latest.end))
        if latest is None or span.end > latest.end:
            latest = span
    return found


def _covered(ordered: Sequence[Span]) -> float:
    """Microseconds in which some event ran."""
    if not ordered:
        return 0.0
    whole = max(span.end for span in ordered) - ordered[0].begin
    return whole - sum(gap.length for gap in gaps(ordered))


def _by_name(title: str, found: Sequence[Span], steps: int) -> str:
    total = sum(span.length for span in found) or 1.0
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for span in found:
        times[span.name] += span.length  # pyright: ignore[reportArgumentType] a Counter adds floats as well
        counts[span.name] += 1
    lines = [f"-- {title}, by time: microseconds of a step, share, calls of a step"]
    lines += [
        f"{time_ / steps:10.1f} {time_ / total:6.1%} {counts[name] / steps:8.1f}  {name[:_NAME_WIDTH]}"
        for name, time_ in times.most_common(SHOWN)
    ]
    return "\n".join(lines)


def _by_gap(found: Sequence[Gap], steps: int) -> str:
    """The same pair of neighbours once, with the time of all its gaps."""
    times: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for gap in found:
        times[gap.before, gap.after] += gap.length  # pyright: ignore[reportArgumentType] a Counter adds floats as well
        counts[gap.before, gap.after] += 1
    lines = ["-- gaps, by time: microseconds of a step, gaps of a step, between"]
    lines += [
        f"{time_ / steps:10.1f} {counts[pair] / steps:8.1f}  {' | '.join(name[: _NAME_WIDTH // 2] for name in pair)}"
        for pair, time_ in times.most_common(SHOWN)
    ]
    return "\n".join(lines)
