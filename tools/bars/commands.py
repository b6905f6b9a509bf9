"""Commands run in the repository, with their time and their output."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tools.check_structure import REPOSITORY

MOST_COMMAND_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    exit_code: int
    seconds: float
    output: str

    @property
    def last_lines(self) -> str:
        """The end of what a failed command said."""
        return "" if self.exit_code == 0 else " | ".join(self.output.strip().splitlines()[-8:])


def run(*command: str, environment: Mapping[str, str] | None = None) -> Done:
    """Run a command in the repository; its output is kept, and shown when it fails. `environment` None is our own."""
    print(f"  {' '.join(command)}", file=sys.stderr, flush=True)
    begun = time.monotonic()
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MOST_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return Done(done.returncode, time.monotonic() - begun, done.stdout)
