"""How `fanlight` commands end on checkpoints that they must refuse.

`outcome_of` starts the real command; `outcomes_in_process` runs many in one other process, through the command's own
`main`, since importing takes longer than being refused. Knows no checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

EXIT_CHECKPOINT = 4
MOST_SECONDS = 60.0
"""For the whole command on a busy machine, imports included; only a hang takes longer."""
MOST_BYTES = 2 << 30
"""What the process may have had in memory; torch and transformers alone take half a gigabyte."""

_LEAKS = ("Traceback", "site-packages", "object at 0x")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended. `peak_bytes` and `left_behind` are known of a process of its own only."""

    exit_code: int
    output: str
    errors: str
    seconds: float
    peak_bytes: int = 0
    left_behind: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """What the command said last."""
        lines = [line for line in self.errors.splitlines() if line.startswith("fanlight ")]
        return lines[-1] if lines else self.errors[-500:]

    def mismatches(self, told: Sequence[str]) -> list[str]:
        """What is not as it must be of a refusal that tells these parts, in words."""
        wrong = []
        if self.exit_code != EXIT_CHECKPOINT:
            wrong.append(f"exit code {self.exit_code}")
        wrong += [f"{part!r} is not told" for part in told if part not in self.message]
        wrong += [f"{leak!r} is told" for leak in _LEAKS if leak in self.errors]
        if self.output:
            wrong.append(f"it printed {self.output[:60]!r}")
        if self.seconds > MOST_SECONDS:
            wrong.append(f"it took {self.seconds:.0f} s")
        if self.peak_bytes > MOST_BYTES:
            wrong.append(f"it took {self.peak_bytes >> 20} MiB")
        wrong += [f"{one} still runs" for one in self.left_behind]
        return [f"{one} ({self.message})" for one in wrong]


def outcome_of(command: str, arguments: Sequence[str]) -> Outcome:
    """`fanlight COMMAND ARGUMENTS`, as a user types it."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        marker, environment = _marked_environment()
        process = subprocess.Popen(
            [sys.executable, "-m", "fanlight", command, *arguments], stdout=output, stderr=errors, env=environment
        )
        hang = threading.Timer(2 * MOST_SECONDS, process.kill)
        hang.start()
        _, status, usage = os.wait4(process.pid, 0)
        hang.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begun
        for file in (output, errors):
            file.seek(0)
        return Outcome(
            process.returncode,
            output.read(),
            errors.read(),
            seconds,
            usage.ru_maxrss * 1024,
            tuple(_still_running(marker)),
        )


def outcomes_in_process(commands: Sequence[tuple[str, Sequence[str]]], timeout: float) -> list[Outcome]:
    """How `fanlight COMMAND ARGUMENTS` ends for each, in one process of its own, which leaves none behind."""
    marker, environment = _marked_environment()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.refused_starts"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        printed, errors = process.communicate(json.dumps(commands), timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, errors = process.communicate()
    outcomes = [Outcome(**json.loads(line)) for line in printed.splitlines()]
    assert len(outcomes) == len(commands), f"{commands[len(outcomes)]} hung or ended the process: {errors[-2000:]}"
    assert not list(_still_running(marker))
    return outcomes


def _marked_environment() -> tuple[str, dict[str, str]]:
    """A folder that is nowhere, and an environment that looks for commands in it: so does whatever it starts."""
    marker = f"/nowhere/{uuid4().hex}"
    return marker, {**os.environ, "PATH": f"{os.environ.get('PATH', '')}{os.pathsep}{marker}"}


def _still_running(marker: str) -> Iterator[str]:
    """The commands of processes with this marker."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (folder / "environ").read_bytes():
                yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


def _run_commands() -> None:
    """The other process: a line of JSON for each command on standard input.

    A checkpoint that is served after all is stopped by a signal, as an operator would, and so ends with exit code 0.
    """
    from fanlight_server.cli.config import main as config
    from fanlight_server.cli.serve import main as serve

    mains = {"config": config, "serve": serve}
    for command, arguments in json.load(sys.stdin):
        output, errors = io.StringIO(), io.StringIO()
        begun = time.monotonic()
        stop = threading.Timer(MOST_SECONDS / 2, os.kill, (os.getpid(), signal.SIGTERM))
        stop.start()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                code = mains[command](arguments)
            except SystemExit as stopped:
                code = stopped.code if isinstance(stopped.code, int) else 1
            except Exception:  # as the interpreter would show it
                traceback.print_exc()
                code = 1
        stop.cancel()
        outcome = Outcome(code, output.getvalue(), errors.getvalue(), time.monotonic() - begun)
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    _run_commands()
