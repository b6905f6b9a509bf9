"""A Generation -> what the core needs of it: validated, its media prepared, its prompt rendered and expanded.

Cheap checks come first: nothing is fetched or decoded for a request that will be refused anyway. A dry run goes the
same way and stops before the core. Knows nothing of how the core answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from fanlight_engine import sampling
from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.families import Bidirectional, Positions
from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import AddRequest, MediaInput
from fanlight_engine.core.spans import refusal_of_spans, spans_of
from fanlight_engine.dry_run import MediaCount, TokenCount
from fanlight_engine.errors import InvalidRequestError, Reason, UnknownModelError
from fanlight_engine.inputs import expansion
from fanlight_engine.inputs.expansion import ExpandedPrompt
from fanlight_engine.inputs.loading import LoadedInputs
from fanlight_engine.inputs.media.memory_budget import MemoryBudget
from fanlight_engine.inputs.media.pipeline import MediaPipeline, PreparedMedia
from fanlight_engine.inputs.media.preprocessing import MediaPreprocessor, PreparedMedium
from fanlight_engine.inputs.media.sources.resolver import SourceResolver
from fanlight_engine.inputs.prompt import PromptRenderer
from fanlight_engine.inputs.validation import MediaItem, check_media_items, items_of_messages, media_items
from fanlight_engine.inputs.workers import Workers
from fanlight_engine.lora import served_names
from fanlight_engine.request import (
    Conversation,
    Generation,
    MediaPart,
    Message,
    Modality,
    OutputOptions,
    Prompt,
    RawPrompt,
)

_LONGEST_COUNTED = 1 << 20
"""Tokens; texts that must have more are not counted either, since tokenising them takes too long."""


@dataclass(frozen=True, slots=True)
class MediaUse:
    """One medium of a request: what it became, and its number among the core's media, which are in prompt order."""

    field: str
    medium: PreparedMedium
    number: int


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What goes to the core, and what the answer needs to know of it. `media` are in the request's order."""

    request: AddRequest
    image_tokens: int
    media: tuple[MediaUse, ...]
    decode_seconds: float = 0.0
    preprocess_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Draft:
    """A prompt, expanded, with its media in the request's order and their numbers in the prompt's order."""

    prompt: ExpandedPrompt
    media: tuple[MediaUse, ...]
    decode_seconds: float
    preprocess_seconds: float

    @property
    def inputs(self) -> tuple[MediaInput, ...]:
        """For the core, in the prompt's order."""
        return tuple(use.medium.input for use in sorted(self.media, key=lambda use: use.number))


class Preparation:
    """Prepares the requests of one checkpoint."""

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        inputs: LoadedInputs,
        resolver: SourceResolver,
        workers: Workers,
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._workers = workers
        self._resolver = resolver
        self._served = served_names(checkpoint.name, config.lora)
        self._memory = MemoryBudget(config.media_memory_bytes, config.max_request_media_bytes)
        self.tokenizer: Tokenizer = inputs.tokenizer.backend_tokenizer
        self.guarded = inputs.guarded
        self.media: MediaPipeline | None = None
        if inputs.media is not None:
            self.media = MediaPipeline(config, MediaPreprocessor(config, checkpoint, inputs.media), workers)
        placeholder_ids = {one: self.placeholder_id(one) for one in self.modalities}
        self.renderer = PromptRenderer(checkpoint, inputs.tokenizer, inputs.guarded, inputs.processor, placeholder_ids)

    @property
    def modalities(self) -> frozenset[Modality]:
        """Kinds of media that prompts may hold."""
        return frozenset() if self.media is None else self.media.modalities

    async def prepare(
        self, generation: Generation, request_id: str, arrival: float, facts: CoreFacts
    ) -> PreparedRequest:
        """Raises RequestError naming the field."""
        self._check(generation)
        draft = await self._draft(generation, facts.context_length)
        _refuse_media_that_never_fit(draft.media, facts)
        _refuse_spans_that_never_fit(draft, facts, _prompt_field(generation.prompt))
        parameters = sampling.resolve(
            generation.sampling,
            self._checkpoint,
            len(draft.prompt.ids),
            facts.context_length,
            generation.output.logprobs,
            self._config,
        )
        request = AddRequest(
            request_id,
            draft.prompt.ids,
            parameters,
            draft.inputs,
            draft.prompt.mask_runs,
            cache_salt=_salt_of(generation.principal),
            arrival=arrival,
            lora=self._lora_of(generation.model),
        )
        return PreparedRequest(
            request, draft.prompt.image_tokens, draft.media, draft.decode_seconds, draft.preprocess_seconds
        )

    async def count(self, generation: Generation, facts: CoreFacts) -> TokenCount:
        """What `prepare` would make of it, also of a prompt that is too long. Raises RequestError as it does."""
        self._check(generation)
        draft = await self._draft(generation, max(facts.context_length, _LONGEST_COUNTED), refuses_long=False)
        _refuse_media_that_never_fit(draft.media, facts)
        _refuse_spans_that_never_fit(draft, facts, _prompt_field(generation.prompt))
        tokens, left = len(draft.prompt.ids), max(0, facts.context_length - len(draft.prompt.ids))
        asked = sampling.asked_length(generation.sampling, self._config)
        return TokenCount(
            prompt_tokens=tokens,
            image_tokens=draft.prompt.image_tokens,
            media=tuple(_media_count(use, draft.prompt) for use in draft.media),
            kv_pages=-(-tokens // facts.page_size),
            page_size=facts.page_size,
            context_length=facts.context_length,
            max_new_tokens=left if asked is None else min(asked, left),
            fits=left > 0,
        )

    async def prepare_media(
        self, parts: Sequence[MediaPart], principal: str, facts: CoreFacts
    ) -> tuple[PreparedMedium, ...]:
        """Media without a prompt, each as if it were the only one, for their embeddings. Raises RequestError naming
        `images[i]`."""
        items = [MediaItem(f"images[{index}]", part) for index, part in enumerate(parts)]
        check_media_items(items, self._checkpoint, self.modalities, self._config)
        with self._memory.account() as account:
            resolved = await self._resolver.resolve(items, principal, account)
            media = await self._prepare_media(resolved, principal)
        uses = [MediaUse(item.field, medium, 0) for item, medium in zip(items, media.media, strict=True)]
        _refuse_media_that_never_fit(uses, facts)
        return media.media

    def forget_media(self, media: Sequence[PreparedMedium]) -> None:
        """Keep these no longer; whoever sends them again has them prepared again."""
        if self.media is not None:
            for medium in media:
                self.media.cache.drop(medium.input.digest)

    def close(self) -> None:
        """End the process that renders conversations. Idempotent."""
        self.renderer.close()

    async def resolve_sources(self, messages: Sequence[Message], principal: str) -> tuple[Message, ...]:
        """The messages with uploads and URLs replaced by their bytes. Raises RequestError naming `messages[i]...`."""
        items = list(items_of_messages(messages, "messages"))
        check_media_items(items, self._checkpoint, self.modalities, self._config)
        with self._memory.account() as account:
            resolved = iter(await self._resolver.resolve(items, principal, account))
        return tuple(
            replace(
                message,
                parts=tuple(next(resolved).part if isinstance(part, MediaPart) else part for part in message.parts),
            )
            for message in messages
        )

    def check_model(self, name: str) -> None:
        """Raise UnknownModelError unless the name is empty, the checkpoint's, or that of one of its LoRA adapters."""
        if name and name not in self._served:
            raise UnknownModelError(
                "model",
                f"{name!r} is not served; ask for {' or '.join(map(repr, self._served))}, or leave it out",
                Reason.MODEL_NOT_FOUND,
            )

    def _lora_of(self, name: str) -> str:
        """The adapter that a model's name asks for; empty for the checkpoint itself."""
        return "" if name == self._checkpoint.name else name

    def _check(self, generation: Generation) -> None:
        self.check_model(generation.model)
        _check_output(generation.output)
        sampling.check(generation.sampling, self._checkpoint, self._config)

    async def _draft(self, generation: Generation, longest: int, refuses_long: bool = True) -> _Draft:
        """The expanded prompt. Rendered first, which is cheap, then fetched, judged by headers, decoded."""
        prompt = generation.prompt
        items = media_items(prompt, self._checkpoint, self.modalities, self._config)
        items = self._marked_as_several(items)
        rendered = await self._workers.run_light(self.renderer.render, prompt, longest)
        if refuses_long:
            sampling.refuse_too_long(len(rendered.ids), longest, self._checkpoint.takes_images)
        kinds = [(item.modality, self.placeholder_id(item.modality)) for item in items]
        assigned = expansion.assign(rendered.placeholders, kinds, _prompt_field(prompt))
        with self._memory.account() as account:
            resolved = await self._resolver.resolve(items, generation.principal, account)
            media = await self._prepare_media(resolved, generation.principal)
        replacements = [media.media[number].replacement for _, number in assigned]
        expanded = await self._workers.run_light(self.renderer.expand, rendered, replacements, _prompt_field(prompt))
        if self._checkpoint.family.positions is Positions.MROPE:
            kinds_in_order = [items[number].modality for _, number in assigned]
            expansion.refuse_touching(expanded, kinds_in_order, _prompt_field(prompt))
        order = {number: position for position, (_, number) in enumerate(assigned)}
        uses = tuple(
            MediaUse(item.field, medium, order[number])
            for number, (item, medium) in enumerate(zip(items, media.media, strict=True))
        )
        return _Draft(expanded, uses, media.decode_seconds, media.preprocess_seconds)

    def _marked_as_several(self, items: tuple[MediaItem, ...]) -> tuple[MediaItem, ...]:
        """Where the family splits only a lone picture: pictures of all turns count, as the model sees all of them."""
        pictures = [item for item in items if item.modality is Modality.IMAGE]
        if len(pictures) < 2 or not self._checkpoint.family.splits_only_a_lone_picture:
            return items
        return tuple(replace(item, is_one_of_several=item.modality is Modality.IMAGE) for item in items)

    async def _prepare_media(self, resolved: Sequence[MediaItem], principal: str) -> PreparedMedia:
        if self.media is None or not resolved:
            return PreparedMedia()
        return await self.media.prepare(resolved, await self.media.inspect(resolved, principal))

    def placeholder_id(self, modality: Modality) -> int:
        """The id that stands for a medium before expansion; negative where the tokenizer has no token for it."""
        assert self.media is not None
        return self.media.placeholder_id(modality)


def _salt_of(principal: str) -> bytes:
    """Callers share no pages: what is cached already would tell one what another has asked."""
    return hashlib.sha256(principal.encode()).digest() if principal else b""


def _check_output(output: OutputOptions) -> None:
    if not (output.text or output.token_ids or output.logprobs):
        raise InvalidRequestError("config.output", "nothing is asked for; turn on text, token_ids or logprobs")


def _refuse_media_that_never_fit(media: Sequence[MediaUse], facts: CoreFacts) -> None:
    """A medium's embeddings are held whole while its positions are computed; those of several need not be."""
    for use in media:
        needed = use.medium.input.embedding_rows * facts.embedding_row_bytes
        if needed > facts.vision_cache_bytes:
            is_image = use.medium.input.modality is Modality.IMAGE
            raise InvalidRequestError(
                use.field,
                f"it needs {needed} bytes of embeddings, the vision cache holds {facts.vision_cache_bytes}; send a "
                + ("smaller image" if is_image else "smaller video, or fewer frames of it"),
                Reason.IMAGE_TOO_LARGE if is_image else Reason.VIDEO_TOO_LARGE,
            )


def _refuse_spans_that_never_fit(draft: _Draft, facts: CoreFacts, field: str) -> None:
    """What sees the whole of itself is computed in one step."""
    if facts.bidirectional is Bidirectional.NONE:
        return
    media, length = draft.inputs, len(draft.prompt.ids)
    spans = spans_of(facts.bidirectional, ImageMask(media, draft.prompt.mask_runs, length), length)
    refusal = refusal_of_spans(spans, media, facts)
    if refusal is not None:
        raise InvalidRequestError(field, refusal[1], refusal[0])


def _media_count(use: MediaUse, prompt: ExpandedPrompt) -> MediaCount:
    runs = prompt.ranges[use.number]
    return MediaCount(
        field=use.field,
        modality=use.medium.input.modality,
        decision=use.medium.decision,
        tokens=len(use.medium.replacement.ids),
        embeddings=use.medium.replacement.rows,
        mask_ranges=tuple((run.start, run.length) for run in runs),
    )


def _prompt_field(prompt: Prompt) -> str:
    if isinstance(prompt, Conversation):
        return "conversation"
    return "raw" if isinstance(prompt, RawPrompt) else "tokens.ids"
