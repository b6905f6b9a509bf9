"""Bar 6: what a step costs the host at 256 running requests, and what our server costs beyond gRPC."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import grpc_overhead, scheduler
from tools.bars.ratios import measure_ratios
from tools.bars.table import Figure


def measure_bar_6() -> Iterator[Figure]:
    """Steps per second of host time against the limit, then messages per second against a bare stream."""
    yield from measure_ratios(6, lambda: scheduler.measure().comparisons)
    yield from measure_ratios(6, lambda: grpc_overhead.measure().comparisons)
