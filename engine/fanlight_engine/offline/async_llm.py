"""AsyncLLM: the engine in this process for asyncio code, without a server.

    async with AsyncLLM("path/to/checkpoint", max_running_requests=16) as llm:
        answer = await llm.generate("What is it?", SamplingOptions(max_new_tokens=256), {"image": "cat.jpg"})
        async for piece in llm.stream("Hello", SamplingOptions(max_new_tokens=256)):
            print(piece, end="")

Prompts are described in `offline.prompts`. Validation, limits and errors are the server's: both talk to one Front.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client_in_process import InProcessClient
from fanlight_engine.config import ResolvedConfig
from fanlight_engine.core.build import Report
from fanlight_engine.dry_run import TextToken, TokenCount
from fanlight_engine.errors import RequestError
from fanlight_engine.events import Delta, Event
from fanlight_engine.front import Front
from fanlight_engine.offline.naming import WrittenPrompt
from fanlight_engine.offline.opening import open_model
from fanlight_engine.offline.prompts import as_batch
from fanlight_engine.offline.results import Completion, collect
from fanlight_engine.request import Generation, OutputOptions, SamplingOptions

Option = TypeVar("Option")


class AsyncLLM:
    """One model, loaded by `start` (or `async with`) and freed by `stop`; belongs to the event loop that started it."""

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        config_file: str | Path | None = None,
        report: Report = lambda line: None,
        **settings: Any,
    ) -> None:
        """Reads the small files of the checkpoint; weights are loaded by `start`.

        model        what `fanlight serve` takes: the directory of a checkpoint, a GGUF file, or a known name
        name         what requests may call it; None: the name of its directory
        config_file  TOML file with settings; None: the one that FANLIGHT_CONFIG names, if any
        report       called with a line per stage of loading, from another thread
        settings     settings of the engine by name, as flags of `fanlight serve`; the environment counts as well

        Raises CheckpointError and ConfigError.
        """
        self._checkpoint, self._resolved = open_model(model, name, config_file, settings, report)
        client = InProcessClient(self._resolved.config, self._checkpoint, report=report)
        self._front = Front(self._resolved.config, self._checkpoint, client)
        config = self._resolved.config
        # As many as may wait between two steps, even if none of them has begun to run.
        self._room = asyncio.Semaphore(min(config.max_running_requests, config.max_waiting_requests))

    @property
    def checkpoint(self) -> Checkpoint:
        """What is loaded."""
        return self._checkpoint

    @property
    def settings(self) -> ResolvedConfig:
        """The settings, each with its source."""
        return self._resolved

    async def start(self) -> None:
        """Load everything. Raises StartupError."""
        await self._front.start()
        await self._front.probe()

    async def stop(self) -> None:
        """Free everything; what still runs raises EngineStoppedError. Idempotent."""
        await self._front.stop()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def generate(
        self,
        prompts: Any,
        sampling: SamplingOptions | Sequence[SamplingOptions] | None = None,
        media: Any = None,
        *,
        output: OutputOptions | None = None,
        model: str | Sequence[str] = "",
        return_errors: bool = False,
    ) -> Any:
        """The Completion of one prompt, or a list of them, in order, for a list of prompts.

        prompts        one prompt or a list of prompts; see `offline.prompts`
        sampling       for all prompts, or a list with one for each
        media          of one prompt, or a list with those of each prompt or None
        output         what answers hold; None: text
        model          "" or the name of a LoRA adapter that is loaded, for all prompts; or a list with one for each
        return_errors  put the RequestError of a refused prompt in its place instead of raising it

        All prompts of a list are computed together. Raises what the server would refuse a request with (RequestError),
        naming what was written here (`media[1].image`), also where a file cannot be read; TypeError and ValueError for
        arguments that are none. The other prompts of the list are cancelled then.
        """
        batch, is_one = as_batch(prompts, media)
        options = _one_each("sampling", SamplingOptions, sampling or SamplingOptions(), len(batch))
        models = _one_each("model", str, model, len(batch))
        if not return_errors:
            _raise_first(batch)
        answers = await _all_or_cancel(
            [
                self._complete(written, one, output or OutputOptions(), name, return_errors)
                for written, one, name in zip(batch, options, models, strict=True)
            ]
        )
        return answers[0] if is_one else answers

    def events(
        self,
        prompt: Any,
        sampling: SamplingOptions | None = None,
        media: Any = None,
        *,
        output: OutputOptions | None = None,
        model: str = "",
    ) -> AsyncGenerator[Event, None]:
        """Every event of one prompt's request: Accepted, (Progress | Delta)*, Finished, Usage; see `generate`.

        Closing the generator early aborts the request.
        """
        return self._events(_only(prompt, media), sampling or SamplingOptions(), output or OutputOptions(), model)

    async def stream(
        self,
        prompt: Any,
        sampling: SamplingOptions | None = None,
        media: Any = None,
        *,
        output: OutputOptions | None = None,
        model: str = "",
    ) -> AsyncIterator[str]:
        """The answer to one prompt, piece by piece as it comes; see `generate`."""
        events = self.events(prompt, sampling, media, output=output, model=model)
        try:
            async for event in events:
                if isinstance(event, Delta) and event.text:
                    yield event.text
        finally:
            await events.aclose()

    async def count_tokens(self, prompt: Any, media: Any = None, *, model: str = "") -> TokenCount:
        """What one prompt would come to, without computing it; raises as `generate` does."""
        written = _only(prompt, media)
        try:
            return await self._front.count_tokens(Generation(written.prompt, model=model))
        except RequestError as error:
            raise written.in_callers_terms(error) from None

    async def tokenize(self, text: str, parse_special_tokens: bool = False) -> tuple[TextToken, ...]:
        """The tokens of a text."""
        return await self._front.tokenize("", text, parse_special_tokens)

    async def detokenize(self, ids: Sequence[int], spell_special_tokens: bool = False) -> str:
        """The text of tokens."""
        return await self._front.detokenize("", ids, spell_special_tokens)

    async def _complete(
        self,
        written: WrittenPrompt | RequestError,
        sampling: SamplingOptions,
        output: OutputOptions,
        model: str,
        return_errors: bool,
    ) -> Completion | RequestError:
        if isinstance(written, RequestError):
            return written
        async with self._room:  # more at once would only wait, and be refused when the queue is full
            try:
                return await collect(self._events(written, sampling, output, model))
            except RequestError as error:
                if return_errors:
                    return error
                raise

    async def _events(
        self, written: WrittenPrompt, sampling: SamplingOptions, output: OutputOptions, model: str
    ) -> AsyncGenerator[Event, None]:
        generation = Generation(written.prompt, sampling, output, model)
        try:
            async with aclosing(self._front.generate(generation, _new_id())) as events:
                async for event in events:
                    yield event
        except RequestError as error:
            raise written.in_callers_terms(error) from None


def _only(prompt: Any, media: Any) -> WrittenPrompt:
    batch, is_one = as_batch(prompt, media)
    if not is_one:
        raise TypeError("one prompt is needed, got a list of prompts; generate takes those")
    (written,) = batch
    if isinstance(written, RequestError):
        raise written
    return written


def _raise_first(batch: Sequence[WrittenPrompt | RequestError]) -> None:
    for one in batch:
        if isinstance(one, RequestError):
            raise one


def _one_each(name: str, kind: type[Option], given: Any, count: int) -> Sequence[Option]:
    """What each of `count` prompts gets of an argument that is one for all, or a list with one for each."""
    if isinstance(given, kind):
        return [given] * count
    if not isinstance(given, Sequence) or not all(isinstance(one, kind) for one in given):
        raise TypeError(f"{name} is {kind.__name__} or a list of them, got {type(given).__name__}")
    if len(given) != count:
        raise ValueError(f"got {name} for {len(given)} prompts, there are {count}; give one for all, or one each")
    return given


async def _all_or_cancel(jobs: Sequence[Any]) -> list[Any]:
    """Results in order; the first error cancels the jobs that still run, and is raised when they have ended."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _new_id() -> str:
    return f"offline-{uuid4().hex}"
