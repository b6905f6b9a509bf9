"""Seconds of device work, medians over rounds. Knows nothing of what is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

WARM_UPS = 3


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def round_seconds(call: Callable[[], object], device: torch.device, rounds: int, calls: int = 1) -> tuple[float, ...]:
    """Seconds of one call, round by round; a round is `calls` of them in a row. Host time counts where it is longer."""
    for _ in range(WARM_UPS):
        call()
    return tuple(_timed(call, device, calls) for _ in range(rounds))


def replayed_seconds(
    calls: Sequence[Callable[[], object]], device: torch.device, rounds: int
) -> tuple[tuple[float, ...], bool]:
    """Seconds of one call, round by round, where the calls are captured as one CUDA graph: no host time in it.

    The calls do the same work on different memory, so that no round finds its data in the cache of the last one. Where
    they cannot be captured, or the device has no graphs, they run one by one: the second value says whether they were.
    """
    if device.type == "cuda":
        graph = _captured(calls)
        if graph is not None:
            graph.replay()
            return tuple(_timed(graph.replay, device, 1) / len(calls) for _ in range(rounds)), True

    def all_calls() -> None:
        for call in calls:
            call()

    all_calls()
    return tuple(_timed(all_calls, device, 1) / len(calls) for _ in range(rounds)), False


def _captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph | None:
    """None where something in the calls cannot be captured; a kernel that reads on the host, for one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


def _timed(call: Callable[[], object], device: torch.device, calls: int) -> float:
    """Device events where there are any: they exclude what the host does before and after."""
    if device.type != "cuda":
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begun) / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1000 / calls
