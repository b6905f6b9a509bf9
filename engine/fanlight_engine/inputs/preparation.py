"""A Generation -> what the core needs of it: validated, its images prepared, its prompt rendered and expanded.

Cheap checks come first: nothing is decoded for a request that will be refused anyway. Loads the checkpoint's tokenizer
and processor. Knows nothing of how the core answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoProcessor, AutoTokenizer

from fanlight_engine import sampling
from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest, ImageInput
from fanlight_engine.errors import CheckpointError, InvalidRequestError, Reason, UnknownModelError
from fanlight_engine.inputs import expansion
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media import ImagePreprocessor, MediaPipeline, PreparedMedia
from fanlight_engine.inputs.prompt import PromptRenderer
from fanlight_engine.inputs.validation import ImageSource, image_sources
from fanlight_engine.inputs.workers import Workers
from fanlight_engine.model.checkpoint import Checkpoint
from fanlight_engine.request import Conversation, Generation, OutputOptions, Prompt, RawPrompt


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What goes to the core, and what the answer needs to know of it."""

    request: AddRequest
    image_tokens: int
    media: PreparedMedia


class Preparation:
    """Prepares the requests of one checkpoint. Construction loads its files; raises CheckpointError."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, workers: Workers) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._workers = workers
        processor = _load_processor(checkpoint) if checkpoint.takes_images else None
        tokenizer = _load_tokenizer(checkpoint) if processor is None else processor.tokenizer
        guarded = GuardedTokenizer(tokenizer)
        self.tokenizer: Tokenizer = tokenizer.backend_tokenizer
        self.renderer = PromptRenderer(checkpoint, tokenizer, guarded, processor)
        self.media: MediaPipeline | None = None
        if processor is not None:
            self.media = MediaPipeline(config, ImagePreprocessor(config, checkpoint, processor, guarded), workers)

    async def prepare(
        self, generation: Generation, request_id: str, arrival: float, facts: CoreFacts
    ) -> PreparedRequest:
        """Raises RequestError naming the field."""
        self._check_model(generation.model)
        _check_output(generation.output)
        sampling.check(generation.sampling, self._checkpoint, self._config)
        sources = image_sources(generation.prompt, self._checkpoint, self._config)
        digests = await self.media.inspect(sources) if self.media is not None else ()
        rendered = await self._workers.run_light(
            self.renderer.render, generation.prompt, len(sources), facts.context_length
        )
        sampling.refuse_too_long(len(rendered.ids), facts.context_length)
        media = await self.media.prepare(sources, digests) if self.media is not None and sources else PreparedMedia()
        images = tuple(image.input for image in media.images)
        _refuse_images_that_never_fit(images, sources, facts)
        expanded = expansion.expand(
            rendered.ids,
            rendered.placeholders if sources else (),
            [image.replacement for image in media.images],
            [image.embedding_rows for image in images],
            _prompt_field(generation.prompt),
        )
        parameters = sampling.resolve(
            generation.sampling,
            self._checkpoint,
            len(expanded.ids),
            facts.context_length,
            generation.output.logprobs,
            self._config,
        )
        request = AddRequest(
            request_id, expanded.ids, parameters, images, expanded.mask_runs, cache_salt=b"", arrival=arrival
        )
        return PreparedRequest(request, expanded.image_tokens, media)

    def _check_model(self, name: str) -> None:
        if name not in ("", self._checkpoint.name):
            raise UnknownModelError(
                "model",
                f"{name!r} is not served; ask for {self._checkpoint.name!r} or leave it out",
                Reason.MODEL_NOT_FOUND,
            )


def _check_output(output: OutputOptions) -> None:
    if not (output.text or output.token_ids or output.logprobs):
        raise InvalidRequestError("config.output", "nothing is asked for; turn on text, token_ids or logprobs")


def _refuse_images_that_never_fit(
    images: Sequence[ImageInput], sources: Sequence[ImageSource], facts: CoreFacts
) -> None:
    """An image's embeddings are held whole while its positions are computed; those of several images need not be."""
    for image, source in zip(images, sources, strict=True):
        needed = image.embedding_rows * facts.embedding_row_bytes
        if needed > facts.vision_cache_bytes:
            raise InvalidRequestError(
                source.field,
                f"it needs {needed} bytes of embeddings, the vision cache holds {facts.vision_cache_bytes}; send a "
                "smaller image",
                Reason.IMAGE_TOO_LARGE,
            )


def _prompt_field(prompt: Prompt) -> str:
    if isinstance(prompt, Conversation):
        return "conversation"
    return "raw" if isinstance(prompt, RawPrompt) else "tokens.ids"


def _load_tokenizer(checkpoint: Checkpoint) -> Any:
    try:
        return AutoTokenizer.from_pretrained(checkpoint.path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # loaders of the many formats raise whatever they meet
        raise CheckpointError(
            f"the tokenizer of {checkpoint.name} cannot be loaded: {error}; tokenizer.json and tokenizer_config.json "
            "are needed"
        ) from error


def _load_processor(checkpoint: Checkpoint) -> Any:
    try:
        processor = AutoProcessor.from_pretrained(checkpoint.path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # as above
        raise CheckpointError(
            f"the processor of {checkpoint.name} cannot be loaded: {error}; preprocessor_config.json or "
            "processor_config.json and the tokenizer's files are needed"
        ) from error
    for part in ("image_processor", "tokenizer", "replace_image_token"):
        if getattr(processor, part, None) is None:
            raise CheckpointError(
                f"the processor of {checkpoint.name} ({type(processor).__name__}) has no {part}; a processor of images "
                "and text is needed"
            )
    return processor
