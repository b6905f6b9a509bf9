"""Bar 1: tokens per second on a CPU against other engines, the limit of its memory, and what gRPC leaves of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import cpu
from benchmarks.checkpoints import language_model
from benchmarks.grpc_share import measure_grpc_share
from benchmarks.peers.catalog import OPENVINO, VLLM
from benchmarks.report import Comparison
from tools.bars.ratios import measure_ratios
from tools.bars.table import Figure, not_measurable


def measure_bar_1() -> Iterator[Figure]:
    """In process first, then through gRPC; peers that are not installed are named."""
    yield from measure_ratios(1, lambda: cpu.measure().comparisons, _cases_again)
    for peer in (VLLM, OPENVINO):
        if peer.missing:
            yield not_measurable(1, f"everything against {peer.name}", "at least 1.00", peer.missing)
    yield from measure_ratios(1, _through_grpc)


def _through_grpc() -> Sequence[Comparison]:
    share = measure_grpc_share(language_model())
    return share.comparison, share.with_python_client


def _cases_again(refused: Sequence[Comparison]) -> Sequence[Comparison]:
    """Only the cases that these comparisons come from."""
    return cpu.measure(cases=cpu.cases_of(refused)).comparisons
