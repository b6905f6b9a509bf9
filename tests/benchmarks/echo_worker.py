"""A worker whose engine answers at once and makes mistakes on demand: what a peer's process is tested with."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.workers.serving import TokenTimes, serve


class Echo:
    """Gives every request all its tokens, two at a time."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        if checkpoint == "broken":
            raise OSError("no such checkpoint")
        self._facts = {"checkpoint": checkpoint, "threads": threads}
        print("a library that prints while it loads")

    def facts(self) -> dict[str, Any]:
        return self._facts

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        os.write(1, b"a library in C that prints past Python\n")
        new_tokens = order["new_tokens"]
        if 13 in new_tokens:
            raise ValueError("thirteen tokens bring bad luck")
        if 666 in new_tokens:
            os.write(2, b"the engine crashed\n")
            os._exit(3)
        times = TokenTimes(len(new_tokens))
        got = [0] * len(new_tokens)
        while got != new_tokens:
            counts = [min(2, wanted - had) for wanted, had in zip(new_tokens, got, strict=True)]
            got = [had + count for had, count in zip(got, counts, strict=True)]
            times.came(counts)
        return times.figures(new_tokens)


if __name__ == "__main__":
    serve(Echo)
