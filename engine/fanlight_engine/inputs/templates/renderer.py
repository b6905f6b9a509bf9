"""This side of rendering: a process that runs a checkpoint's templates, asked one conversation after the other.

Why a process: a template is somebody's program. Inside this one, a single operation of it (`10 ** 10 ** 9`, a text of
gigabytes, a search that backtracks) would hold the interpreter's lock for as long as it likes, and no counter of loops
or list of forbidden filters sees it coming. The system's limits hold for whatever a template is made of. Asking costs
0.05 milliseconds more than rendering here, and 15 more for a million characters.

May be used from several threads. Knows nothing of conversations, checkpoints or requests.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from fanlight_engine.inputs.channel import LONGEST_MESSAGE, Channel
from fanlight_engine.inputs.confinement import start_confined

MOST_SECONDS = 2.0
"""Processor time that compiling a template, or rendering one conversation, may take; long texts are given more."""
MOST_MEMORY = 128 << 20
"""Bytes that it may take; long texts are given more."""

_PROCESS = "fanlight_engine.inputs.templates.renderer_process"
_SECONDS_TO_START = 60.0
_SECONDS_TO_END = 5.0
_WALL_SECONDS_PER_SECOND = 30.0
"""How much longer than its processor time a render may take: others want the processors, too."""
_CHARACTERS_PER_SECOND = 4 << 20
_MEMORY_PER_CHARACTER = 24
"""A text as it comes, in its parts, and put together, at up to 4 bytes a character; a few times over."""


class Fault(Enum):
    """Why a template gave no text."""

    OBJECTS = "it objects to what it was given"
    FAILS = "it fails"
    UNSAFE = "it tries what templates may not do"
    TAKES_TOO_MUCH = "it takes too much time or memory"


class TemplateProblem(Exception):
    """`why` is half a sentence, or what the template itself says where it OBJECTS; `detail` is for whoever runs it."""

    def __init__(self, fault: Fault, why: str, detail: str = "") -> None:
        super().__init__(why)
        self.fault = fault
        self.why = why
        self.detail = f"{why}: {detail}" if detail else why


class TextTooLongError(Exception):
    """The variables are more than can be passed on."""


class TemplateRenderer:
    """Renders the templates of one checkpoint, by number. The process ends with `close`, or with this object."""

    def __init__(self, sources: Sequence[str]) -> None:
        """Starts the process and compiles the templates. Raises TemplateProblem."""
        self._sources = tuple(sources)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._closed = False
        with self._lock:
            self._start()

    def render(self, number: int, variables: Mapping[str, Any], characters: int) -> str:
        """The text that a template makes of its variables, which have about so many `characters`.

        Raises TemplateProblem, after which the next call is none the worse, and TextTooLongError.
        """
        with self._lock:
            if self._end is None:
                self._start()
            return self._ask("render", characters, number=number, variables=variables)["text"]

    def close(self) -> None:
        """End the process. Idempotent."""
        with self._lock:
            self._closed = True
            self._stop()

    def _start(self) -> None:
        if self._closed:
            raise RuntimeError("the renderer was closed")
        ours, theirs = socket.socketpair()
        with theirs:
            process = start_confined(_PROCESS, [str(theirs.fileno())], (theirs.fileno(),))
        self._process, self._end = process, ours
        self._finalizer = weakref.finalize(self, _end_process, process, ours)
        try:
            Channel(ours, time.monotonic() + _SECONDS_TO_START).receive()
        except (EOFError, OSError) as error:
            self._stop()
            raise RuntimeError("the process that renders chat templates did not start") from error
        for source in self._sources:
            self._ask("compile", len(source), source=source)

    def _ask(self, kind: str, characters: int, **content: Any) -> dict[str, Any]:
        """The answer. Whatever may have left the process unwell ends it; the next call starts another."""
        assert self._end is not None
        seconds = MOST_SECONDS + characters / _CHARACTERS_PER_SECOND
        memory = MOST_MEMORY + characters * _MEMORY_PER_CHARACTER
        channel = Channel(self._end, time.monotonic() + seconds * _WALL_SECONDS_PER_SECOND)
        try:
            channel.send(kind, seconds=seconds, memory=memory, **content)
            answer = channel.receive()
        except OverflowError as error:
            raise TextTooLongError(f"at most {LONGEST_MESSAGE} bytes are rendered") from error
        except TimeoutError:
            self._stop()
            raise TemplateProblem(Fault.TAKES_TOO_MUCH, _too_slow(seconds)) from None
        except (EOFError, OSError, ValueError):
            raise self._problem_of_a_process_that_ended(seconds) from None
        except BaseException:
            self._stop()
            raise
        if answer["kind"] in ("compiled", "rendered"):
            return answer
        raise self._problem_of(answer, memory)

    def _problem_of(self, answer: Mapping[str, Any], memory: int) -> TemplateProblem:
        if answer["kind"] == "refused":
            return TemplateProblem(Fault.OBJECTS, answer["why"])
        if answer["kind"] == "unsafe":
            return TemplateProblem(Fault.UNSAFE, answer["why"])
        if answer["is_too_large"]:
            self._stop()
            return TemplateProblem(Fault.TAKES_TOO_MUCH, f"it takes more than {memory >> 20} MiB of memory")
        return TemplateProblem(Fault.FAILS, f"it fails with {answer['why']}", answer["detail"])

    def _problem_of_a_process_that_ended(self, seconds: float) -> TemplateProblem:
        assert self._process is not None
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_SECONDS_TO_END)
        self._stop()
        if code == -signal.SIGPROF:
            return TemplateProblem(Fault.TAKES_TOO_MUCH, _too_slow(seconds))
        return TemplateProblem(Fault.TAKES_TOO_MUCH, "the process that runs it broke down over it")

    def _stop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._end = self._finalizer = None


def _too_slow(seconds: float) -> str:
    return f"it takes longer than {seconds:.1f} seconds"


def _end_process(process: subprocess.Popen[bytes], end: socket.socket) -> None:
    end.close()
    process.kill()
    process.wait()
