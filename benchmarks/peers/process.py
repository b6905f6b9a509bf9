"""An engine at work in a process of its own: loaded once, then given batches one at a time. Knows no engine's code."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.peers.catalog import REPOSITORY, Peer

_LINES_SHOWN = 12
_SECONDS_TO_QUIT = 10.0


class PeerError(Exception):
    """A peer did not load, or failed on a batch; the text says which and shows the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that arrive together: ids of each prompt, and how many tokens each is to get."""

    prompts: tuple[tuple[int, ...], ...]
    new_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """What answering a batch took. `decode` is the time in which all its requests decoded at once."""

    seconds: float
    tokens: int
    first_token_seconds: float
    decode_seconds: float
    decode_tokens: int

    @property
    def rate(self) -> float:
        """Tokens per second end to end, prompts included."""
        return self.tokens / self.seconds

    @property
    def decode_rate(self) -> float:
        """Tokens per second while all requests decode; 0 where they never did at once."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


class PeerProcess:
    """A peer with a checkpoint loaded. It computes only while a batch runs."""

    def __init__(self, peer: Peer, checkpoint: Path, threads: int) -> None:
        """Starts it and waits until it has loaded, which compiles or converts what it needs. Raises PeerError."""
        if peer.missing:
            raise PeerError(peer.missing)
        self.peer = peer
        self._printed = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 close() closes
        self._process = subprocess.Popen(
            [str(peer.python), "-W", "ignore", "-m", peer.worker],
            cwd=REPOSITORY,
            env=peer.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            text=True,
        )
        try:
            self.facts: dict[str, Any] = self.ask({"do": "load", "checkpoint": str(checkpoint), "threads": threads})
        except BaseException:
            self.close()
            raise

    def run(self, batch: Batch) -> BatchFigures:
        """Answer the batch. Raises PeerError."""
        return BatchFigures(**self.ask({"do": "run", "prompts": batch.prompts, "new_tokens": batch.new_tokens}))

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order and wait for what comes of it. Raises PeerError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "a pipe"
        assert stdout is not None, "a pipe"
        try:
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise PeerError(f"{self.peer.name} ended when told to {order['do']}:\n{self._last_lines()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.peer.name} failed to {order['do']}: {answer['error']}\n{self._last_lines()}")
        return answer["ok"]

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._printed.closed:
            return
        try:
            self._process.communicate('{"do": "quit"}\n', timeout=_SECONDS_TO_QUIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._printed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _last_lines(self) -> str:
        self._printed.seek(0)
        return "\n".join(_without_blank(self._printed.read().splitlines())[-_LINES_SHOWN:])


def _without_blank(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.strip()]
