"""LLM: the engine in this process for ordinary code, without a server and without asyncio.

    with LLM("path/to/checkpoint") as llm:
        short = SamplingOptions(max_new_tokens=256)
        answers = llm.generate(["What is it?", "Hello"], short, media=[{"image": "cat.jpg"}, None])
        for piece in llm.stream("Hello", short):
            print(piece, end="")

An AsyncLLM on an event loop of its own, in a thread; methods may be called from several threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import ResolvedConfig
from fanlight_engine.core.build import Report
from fanlight_engine.dry_run import TextToken, TokenCount
from fanlight_engine.errors import EngineStoppedError
from fanlight_engine.events import Event
from fanlight_engine.offline.async_llm import AsyncLLM
from fanlight_engine.request import OutputOptions, SamplingOptions

Result = TypeVar("Result")
_CLOSED = "this LLM was closed; make a new one"


class LLM:
    """One model, loaded by the constructor and freed by `close` or at the end of `with`."""

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        config_file: str | Path | None = None,
        report: Report = lambda line: None,
        **settings: Any,
    ) -> None:
        """Loads the model. Arguments as for AsyncLLM. Raises StartupError."""
        self._llm = AsyncLLM(model, name=name, config_file=config_file, report=report, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fanlight-offline", daemon=True)
        self._thread.start()
        try:
            self._wait_for(self._llm.start())
        except BaseException:
            self.close()
            raise

    @property
    def checkpoint(self) -> Checkpoint:
        """What is loaded."""
        return self._llm.checkpoint

    @property
    def settings(self) -> ResolvedConfig:
        """The settings, each with its source."""
        return self._llm.settings

    def close(self) -> None:
        """Free everything; what still runs in other threads raises EngineStoppedError. Idempotent."""
        if self._loop.is_closed():
            return
        self._wait_for(self._llm.stop())
        self._wait_for(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self,
        prompts: Any,
        sampling: SamplingOptions | Sequence[SamplingOptions] | None = None,
        media: Any = None,
        *,
        output: OutputOptions | None = None,
        model: str | Sequence[str] = "",
        return_errors: bool = False,
    ) -> list[Any]:
        """A list with the Completion of each prompt, in order, also for a single prompt; see AsyncLLM.generate."""
        answers = self._wait_for(
            self._llm.generate(prompts, sampling, media, output=output, model=model, return_errors=return_errors)
        )
        return answers if isinstance(answers, list) else [answers]

    def stream(
        self,
        prompt: Any,
        sampling: SamplingOptions | None = None,
        media: Any = None,
        *,
        output: OutputOptions | None = None,
        model: str = "",
    ) -> Iterator[str]:
        """The answer to one prompt, piece by piece as it comes; see AsyncLLM.stream."""
        return self._drain(self._llm.stream(prompt, sampling, media, output=output, model=model))

    def events(
        self,
        prompt: Any,
        sampling: SamplingOptions | None = None,
        media: Any = None,
        *,
        output: OutputOptions | None = None,
        model: str = "",
    ) -> Iterator[Event]:
        """Every event of one prompt's request; see AsyncLLM.events."""
        return self._drain(self._llm.events(prompt, sampling, media, output=output, model=model))

    def count_tokens(self, prompt: Any, media: Any = None, *, model: str = "") -> TokenCount:
        """What one prompt would come to, without computing it."""
        return self._wait_for(self._llm.count_tokens(prompt, media, model=model))

    def tokenize(self, text: str, parse_special_tokens: bool = False) -> tuple[TextToken, ...]:
        """The tokens of a text."""
        return self._wait_for(self._llm.tokenize(text, parse_special_tokens))

    def detokenize(self, ids: Sequence[int], spell_special_tokens: bool = False) -> str:
        """The text of tokens."""
        return self._wait_for(self._llm.detokenize(ids, spell_special_tokens))

    def _drain(self, items: AsyncIterator[Result]) -> Iterator[Result]:
        """What comes out of an asynchronous generator; leaving early closes it, which aborts its request."""
        try:
            while True:
                try:
                    item = self._wait_for(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if not self._loop.is_closed():
                self._wait_for(items.aclose())  # pyright: ignore[reportAttributeAccessIssue] both are generators

    def _wait_for(self, job: Coroutine[Any, Any, Result]) -> Result:
        """Run the job on the loop; interrupted (Ctrl-C), it is cancelled there, and with it its requests."""
        if self._loop.is_closed():
            job.close()
            raise EngineStoppedError(_CLOSED)
        if threading.current_thread() is self._thread:
            job.close()
            raise RuntimeError("called on its own event loop, which it would block; use AsyncLLM in asynchronous code")
        try:
            future = asyncio.run_coroutine_threadsafe(job, self._loop)
        except RuntimeError as error:  # closed by another thread just now
            job.close()
            raise EngineStoppedError(_CLOSED) from error
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:  # nobody cancels but `close`
            raise EngineStoppedError(_CLOSED) from error
        except BaseException:
            future.cancel()
            raise


async def _next(items: AsyncIterator[Result]) -> Result:
    return await anext(items)
