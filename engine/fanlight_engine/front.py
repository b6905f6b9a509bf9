"""Front: the half of the engine that callers talk to. Requests in, events out; the core is behind EngineClient.

    generate = prepare (validate, media, prompt, expansion, sampling) -> submit -> events, and an abort on every way out

One per server; runs on one event loop. Knows nothing of gRPC, and of the core only its messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import EngineClient
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import EMBEDDINGS, EncodeRequest, FromCore
from fanlight_engine.dry_run import EncodedMedia, TextToken, TokenCount
from fanlight_engine.errors import DuplicateRequestError, EngineStoppedError, InvalidRequestError, OverloadedError
from fanlight_engine.events import Event
from fanlight_engine.inputs import tokenization
from fanlight_engine.inputs.loading import load_inputs
from fanlight_engine.inputs.media.preprocessing import PreparedMedium
from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from fanlight_engine.inputs.media.sources.resolver import FINGERPRINT_KEY, GRID_KEY, SourceResolver, all_or_first_error
from fanlight_engine.inputs.media.sources.safetensors_file import write_embeddings
from fanlight_engine.inputs.media.sources.store import MediaStore
from fanlight_engine.inputs.media.tensors import embeddings_by_name
from fanlight_engine.inputs.preparation import Preparation, PreparedRequest
from fanlight_engine.inputs.workers import Workers
from fanlight_engine.outputs.answer import Answer, end_before_submission
from fanlight_engine.outputs.assembly import OutputAssembler
from fanlight_engine.outputs.detokenizer import Detokenizers
from fanlight_engine.outputs.stop_strings import StopMatcher
from fanlight_engine.outputs.transcript import Transcript
from fanlight_engine.probe import MediaProbe
from fanlight_engine.request import FinishReason, Generation, ImagePart, Message, Modality
from fanlight_engine.tensor_data import TensorData

_RETRY_AFTER = 1.0
"""Seconds; a request ends about as often."""


@dataclass(slots=True)
class _Running:
    """A generation under way; `cancelled` is set by `cancel`, `preparing` while nothing was submitted yet."""

    cancelled: FinishReason | None = None
    preparing: asyncio.Task[PreparedRequest] | None = None


class Front:
    """See the module. `start` before anything else; `stop` is idempotent."""

    def __init__(
        self, config: EngineConfig, checkpoint: Checkpoint, client: EngineClient, fetcher: UrlFetcher | None = None
    ) -> None:
        """`fetcher` None is one that judges addresses as it should; tests bring one that reaches a local server."""
        self.config = config
        self.checkpoint = checkpoint
        self.client = client
        self.store = MediaStore(config)
        self._fetcher = fetcher or UrlFetcher(config)
        self._workers = Workers(config.media_workers)
        self._preparation: Preparation | None = None
        self._detokenizers: Detokenizers | None = None
        self._running: dict[str, _Running] = {}
        self._side_jobs = 0
        self._stopped = False

    async def start(self) -> None:
        """Load tokenizer and processor, open the store, start the core. Raises StartupError."""
        inputs = await asyncio.to_thread(load_inputs, self.config, self.checkpoint)
        resolver = SourceResolver(self.config, self.store, self._fetcher, self._workers)
        self._preparation = Preparation(self.config, self.checkpoint, inputs, resolver, self._workers)
        self._detokenizers = Detokenizers(self._preparation.tokenizer)
        await self.store.start()
        await self.client.start()

    async def stop(self) -> None:
        """Stop the core and the workers; generations still running raise EngineStoppedError."""
        self._stopped = True
        await self.client.stop()
        await asyncio.to_thread(self._workers.close)
        if self._preparation is not None:
            self._preparation.close()
        self._fetcher.close()
        await self.store.stop()

    async def probe(self) -> None:
        """Try whether pictures and clips fit together with the model; once started. Raises CheckpointError."""
        await MediaProbe(self.config, self.checkpoint, self._started()[0], self.client, self.generate).run()

    @property
    def running_ids(self) -> frozenset[str]:
        """Ids of the generations under way."""
        return frozenset(self._running)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be answered."""
        return self._started()[0].renderer.has_chat_template

    @property
    def modalities(self) -> frozenset[Modality]:
        """Kinds of media that prompts may hold; known once started."""
        return self._started()[0].modalities

    @property
    def placeholder_ids(self) -> dict[Modality, int]:
        """The ids that stand for one medium of a kind in a token prompt; clips of some families have none."""
        preparation, _ = self._started()
        ids = {kind: preparation.placeholder_id(kind) for kind in preparation.modalities}
        return {kind: token_id for kind, token_id in ids.items() if token_id >= 0}

    async def count_tokens(self, generation: Generation) -> TokenCount:
        """A dry run: what a generation would come to, without the core. Raises as `generate` does."""
        with self._side_job():
            return await self._started()[0].count(generation, self.client.facts)

    async def tokenize(self, model: str, text: str, parse_special_tokens: bool = False) -> tuple[TextToken, ...]:
        """The tokens of a text. Raises RequestError."""
        preparation, detokenizers = self._started()
        preparation.check_model(model)
        with self._side_job():
            return await self._workers.run_light(
                tokenization.tokenize, text, parse_special_tokens, preparation.guarded, detokenizers
            )

    async def detokenize(self, model: str, ids: Sequence[int], spell_special_tokens: bool = False) -> str:
        """The text of tokens. Raises RequestError."""
        preparation, detokenizers = self._started()
        preparation.check_model(model)
        with self._side_job():
            return await self._workers.run_light(
                tokenization.detokenize, ids, spell_special_tokens, self.checkpoint.vocab_size, detokenizers
            )

    async def encode_media(
        self, model: str, parts: Sequence[ImagePart], principal: str = ""
    ) -> tuple[EncodedMedia, ...]:
        """Run the vision tower and keep the embeddings in the store. Raises RequestError naming `images[i]`."""
        preparation, _ = self._started()
        preparation.check_model(model)
        with self._side_job():
            media = await preparation.prepare_media(parts, principal, self.client.facts)
            jobs = [self._encode_one(medium, principal, f"images[{number}]") for number, medium in enumerate(media)]
            return tuple(await all_or_first_error(jobs))

    async def resolve_sources(self, messages: Sequence[Message], principal: str = "") -> tuple[Message, ...]:
        """The messages with uploads and URLs replaced by their bytes. Raises RequestError naming `messages[i]...`."""
        preparation, _ = self._started()
        with self._side_job():
            return await preparation.resolve_sources(messages, principal)

    def generate(self, generation: Generation, request_id: str) -> AsyncGenerator[Event, None]:
        """The events of one request, in the order of `events`. Closing the generator early aborts the request.

        Raises RequestError (a field is at fault), DuplicateRequestError, OverloadedError, EngineStoppedError,
        CoreFailureError. Cancelled before it was accepted, it yields Finished and Usage without Accepted.
        """
        return self._generate(generation, request_id, time.monotonic())

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> bool:
        """End a running generation with Finished(reason) and Usage. False when the id is not running here."""
        running = self._running.get(request_id)
        if running is None:
            return False
        if running.cancelled is None:
            running.cancelled = reason
            if running.preparing is not None:
                running.preparing.cancel()
            else:
                self.client.abort(request_id)
        return True

    def transcript(self, skip_special_tokens: bool = True) -> Transcript:
        """Collects an answer as history for a later turn; the request must ask for text and token ids."""
        return Transcript(self._started()[1], skip_special_tokens)

    async def _generate(self, generation: Generation, request_id: str, arrival: float) -> AsyncGenerator[Event, None]:
        if request_id in self._running:
            raise DuplicateRequestError(f"request id {request_id!r} is already running; choose another one")
        self._refuse_beyond_capacity()
        running = self._running[request_id] = _Running()
        answer: Answer | None = None
        try:
            prepared = await self._prepare(generation, request_id, arrival, running)
            if prepared is None:
                for event in end_before_submission(running.cancelled or FinishReason.CANCELLED, arrival):
                    yield event
                return
            answer = self._new_answer(generation, prepared)
            async for batch in self.client.submit(prepared.request):
                for event in self._consume(answer, batch, request_id):
                    yield event
                if answer.ended:
                    return
            # The stream of an aborted request ends without a terminal message.
            if running.cancelled is None:
                raise EngineStoppedError("the core ended the request without an answer; try again")
            for event in answer.end(running.cancelled):
                yield event
        finally:
            del self._running[request_id]
            if answer is not None and not answer.core_ended:
                self.client.abort(request_id)

    async def _prepare(
        self, generation: Generation, request_id: str, arrival: float, running: _Running
    ) -> PreparedRequest | None:
        """The prepared request; None when `cancel` came first."""
        preparation, _ = self._started()
        running.preparing = asyncio.ensure_future(
            preparation.prepare(generation, request_id, arrival, self.client.facts)
        )
        try:
            prepared = await running.preparing
            return prepared if running.cancelled is None else None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if running.cancelled is not None:
                return None
            raise EngineStoppedError("the engine is stopping; nothing new is accepted") from None
        finally:
            running.preparing = None

    async def _encode_one(self, medium: PreparedMedium, principal: str, field: str) -> EncodedMedia:
        """Embeddings leave the core as a tensor, and stay in the store as a safetensors file."""
        try:
            encoded = await self.client.encode(EncodeRequest(f"encode-{uuid4().hex}", medium.input))
        except InvalidRequestError as error:  # the core does not know how the caller names the picture
            raise InvalidRequestError(field, error.violations[0].description, error.reason) from error
        fingerprint, grid = f"sha256:{self.checkpoint.fingerprint}", medium.input.grid
        metadata = {FINGERPRINT_KEY: fingerprint, **({GRID_KEY: ",".join(map(str, grid))} if grid else {})}
        wide = encoded.tensors[EMBEDDINGS]
        file = await self._workers.run_light(_embeddings_file, wide, self.checkpoint, metadata)
        stored = await self.store.put(principal, file)
        rows, hidden_size = wide.shape[0], self.checkpoint.hidden_size
        return EncodedMedia(
            stored.digest, medium.input.modality, rows, hidden_size, grid, fingerprint, stored.size, encoded.was_cached
        )

    @contextmanager
    def _side_job(self) -> Iterator[None]:
        """Work that generates nothing holds media in memory all the same, and counts towards the capacity."""
        self._refuse_beyond_capacity()
        self._side_jobs += 1
        try:
            yield
        finally:
            self._side_jobs -= 1

    def _refuse_beyond_capacity(self) -> None:
        """Before anything is decoded: what the core could not even queue would only fill memory here."""
        most = self.config.max_running_requests + self.config.max_waiting_requests
        if len(self._running) + self._side_jobs >= most:
            raise OverloadedError(f"{most} requests run or wait, which is the limit; try again later", _RETRY_AFTER)

    def _consume(self, answer: Answer, batch: list[FromCore], request_id: str) -> list[Event]:
        """The batch's events. What the core no longer needs to compute is aborted before anybody reads them."""
        events = answer.consume(batch)
        if answer.ended and not answer.core_ended:
            self.client.abort(request_id)
            answer.core_ended = True
        return events

    def _new_answer(self, generation: Generation, prepared: PreparedRequest) -> Answer:
        options, parameters = generation.sampling, prepared.request.sampling
        _, detokenizers = self._started()
        assembler = OutputAssembler(
            index=0,
            detokenizer=detokenizers.start(generation.output.skip_special_tokens),
            matcher=StopMatcher(options.stop, options.include_stop),
            options=generation.output,
            min_new_tokens=parameters.min_new_tokens,
        )
        return Answer(prepared, assembler)

    def _started(self) -> tuple[Preparation, Detokenizers]:
        if self._stopped or self._preparation is None or self._detokenizers is None:
            raise EngineStoppedError("the engine is not running; start it first")
        return self._preparation, self._detokenizers


def _embeddings_file(wide: TensorData, checkpoint: Checkpoint, metadata: Mapping[str, str]) -> bytes:
    """What the core gave for one medium, as the safetensors file that requests can name."""
    return write_embeddings(embeddings_by_name(wide, checkpoint), metadata)
