"""The result of a benchmark against peers: comparisons, the machine, which engines ran and which are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bandwidth import ReadBandwidth, busy_notice
from benchmarks.peers.catalog import Peer
from benchmarks.peers.process import PeerProcess
from benchmarks.report import Comparison, machine_facts, machine_line


@dataclass(frozen=True, slots=True)
class AgainstPeers:
    """What was measured, and where. `case` says of what."""

    case: str
    comparisons: tuple[Comparison, ...]
    machine: dict[str, Any]
    rounds: int
    missing: tuple[str, ...]
    engines: Mapping[str, Any]

    def text(self) -> str:
        """The result for people."""
        engines = [f"{name}: {machine_line(facts)}" for name, facts in self.engines.items()]
        missing = [f"not measured: {one}" for one in self.missing]
        lines = [comparison.line() for comparison in self.comparisons]
        notice = busy_notice(self.machine["read_gigabytes_per_second"])
        header = f"{self.rounds} rounds of {self.case}\n{'':36} {'ours':>8} {'theirs':>8}"
        return "\n".join([machine_line(self.machine), *notice, *engines, header, *lines, *missing])

    def facts(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "case": self.case,
            "machine": self.machine,
            "rounds": self.rounds,
            "engines": dict(self.engines),
            "missing": list(self.missing),
            "comparisons": [comparison.facts() for comparison in self.comparisons],
        }


@contextmanager
def running(peers: Sequence[Peer], checkpoint: Path, threads: int) -> Iterator[dict[str, PeerProcess]]:
    """Those of the peers that are installed, loaded one after another, by name. Raises PeerError."""
    with ExitStack() as stack:
        yield {
            peer.name: stack.enter_context(PeerProcess(peer, checkpoint, threads)) for peer in peers if not peer.missing
        }


def missing_of(peers: Sequence[Peer]) -> tuple[str, ...]:
    """How to install each that is not."""
    return tuple(peer.missing for peer in peers if peer.missing)


def machine_of(memory: ReadBandwidth, threads: int) -> dict[str, Any]:
    """The machine before anything is measured, and how fast its memory is read; versions are told by the engines."""
    return {
        **machine_facts((), threads),
        "read_gigabytes_per_second": round(memory.gigabytes_per_second(), 1),
    }
