"""Bar 8: README's commands, run as printed against a server that was just started, and a patient client's pings."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.e2e import readme
from tests.e2e.keepalive import lives_through_pings
from tests.e2e.serving import server_process
from tools.bars.table import Figure, judged

SILENCE_SECONDS = 30.0


def measure_bar_8() -> Iterator[Figure]:
    """A row per command."""
    commands = readme.commands()
    with server_process() as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        readme.draw_cat(folder)
        for name in readme.COMMANDS:
            ran = readme.run(commands[name], server.address, folder)
            complaint = ran.complaint(name)
            yield judged(
                8, f"README's {name}", ran.gist if complaint is None else "no answer", "an answer", complaint is None,
                complaint or "",
            )  # fmt: skip
        lives = asyncio.run(lives_through_pings(server.address, SILENCE_SECONDS))
        what = f"a call silent for {SILENCE_SECONDS:.0f} s with a ping every second"
        yield judged(8, what, "open" if lives else "hung up", "open", lives)
