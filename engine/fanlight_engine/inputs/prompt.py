"""Prompts of all three forms -> token ids with one placeholder per image.

Conversations go through the checkpoint's chat template, raw prompts are joined as they are, token prompts are checked.
For ordinary text the ids are those of the checkpoint's own processor; control tokens typed by a person stay text.
Knows nothing of pixels, nor of how many positions an image takes. Runs in a worker thread; changes nothing shared.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from fanlight_engine.errors import CheckpointError, InvalidRequestError, Reason
from fanlight_engine.inputs.chat_template import ChatTemplate
from fanlight_engine.inputs.expansion import refuse_count_mismatch
from fanlight_engine.inputs.guarded_tokenizer import SPLICE, GuardedTokenizer
from fanlight_engine.model.checkpoint import Checkpoint
from fanlight_engine.request import Conversation, Prompt, RawPrompt, TextPart, TokenPrompt

_MEDIA_ID_ATTRIBUTES = ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id")


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Ids before expansion; `placeholders` are the indices of the image tokens, in order."""

    ids: tuple[int, ...]
    placeholders: tuple[int, ...]


class PromptRenderer:
    """Renders the prompts of one checkpoint. `processor` is None for text-only checkpoints."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: PreTrainedTokenizerBase,
        guarded: GuardedTokenizer,
        processor: object | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._guarded = guarded
        self._bos_id = tokenizer.bos_token_id
        self._image_text = _image_text(checkpoint, tokenizer)
        has_own_template = bool(getattr(processor, "chat_template", None))
        self._template = ChatTemplate(
            renderer=processor if has_own_template else tokenizer,
            tokenizer=tokenizer,
            guarded=guarded,
            image_text=self._image_text,
            splice_forbidden_ids=_media_ids(checkpoint),
            end_ids=checkpoint.end_ids,
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return self._template.source is not None

    def render(self, prompt: Prompt, images: int, context_length: int) -> RenderedPrompt:
        """Ids and placeholders. Raises InvalidRequestError unless there is one placeholder for each of the `images`."""
        if isinstance(prompt, TokenPrompt):
            field, ids = "tokens.ids", list(prompt.ids)
            self._check_ids(prompt.ids)
        elif isinstance(prompt, RawPrompt):
            field, ids = "raw", self._raw_ids(prompt, context_length)
        else:
            field, ids = "conversation", self._conversation_ids(prompt, context_length)
        if not ids:
            raise InvalidRequestError(field, "it has no tokens; send at least one", Reason.EMPTY_PROMPT)
        image_token_id = self._checkpoint.image_token_id
        placeholders = tuple(index for index, token_id in enumerate(ids) if token_id == image_token_id)
        if self._checkpoint.takes_images:
            refuse_count_mismatch(len(placeholders), images, field)
        return RenderedPrompt(tuple(ids), placeholders)

    def _check_ids(self, ids: tuple[int, ...]) -> None:
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < self._checkpoint.vocab_size:
                raise InvalidRequestError(
                    f"tokens.ids[{index}]",
                    f"got {token_id}, the vocabulary has ids 0 to {self._checkpoint.vocab_size - 1}",
                    Reason.TOKEN_OUT_OF_RANGE,
                )

    def _conversation_ids(self, conversation: Conversation, context_length: int) -> list[int]:
        rendered = self._template.render(conversation)
        ids = self._encode(rendered.prepared, context_length)
        splices = iter(rendered.splices)
        spliced = [one for token_id in ids for one in (next(splices) if token_id == SPLICE else (token_id,))]
        if not rendered.adds_affixes:
            return spliced
        return [*self._guarded.prefix_ids, *spliced, *self._guarded.suffix_ids]

    def _raw_ids(self, prompt: RawPrompt, context_length: int) -> list[int]:
        image = self._guarded.replace_control_tokens(self._image_text)
        prepared = "".join(
            self._prepared_text(part.text, prompt.parse_special_tokens) if isinstance(part, TextPart) else image
            for part in prompt.parts
        )
        ids = self._encode(prepared, context_length)
        if not ids or ids[0] == self._bos_id:
            return ids
        return [*self._guarded.prefix_ids, *ids]

    def _prepared_text(self, text: str, parse_special_tokens: bool) -> str:
        return self._guarded.replace_control_tokens(text) if parse_special_tokens else text

    def _encode(self, prepared: str, context_length: int) -> list[int]:
        """Text that cannot fit however well it tokenises is refused before time is spent on it."""
        fewest = len(prepared) // self._guarded.longest_token
        if fewest >= context_length:
            raise InvalidRequestError(
                "prompt",
                f"it has {len(prepared)} characters, so at least {fewest} tokens, the context holds {context_length} "
                "for prompt and answer; shorten it",
                Reason.PROMPT_TOO_LONG,
            )
        return self._guarded.encode(prepared)


def _image_text(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase) -> str:
    """How an image is written in text: the placeholder between the family's marks; empty for text checkpoints."""
    if checkpoint.image_token_id is None:
        return ""
    image_token = tokenizer.convert_ids_to_tokens(checkpoint.image_token_id)
    if not isinstance(image_token, str):
        raise CheckpointError(
            f"config.json names {checkpoint.image_token_id} as image token, which the tokenizer does not have"
        )
    return f"{checkpoint.family.image_prefix}{image_token}{checkpoint.family.image_suffix}"


def _media_ids(checkpoint: Checkpoint) -> frozenset[int]:
    """Ids that mean media to the model; a model can also generate them, which must not make an image of history."""
    values = (getattr(checkpoint.config, attribute, None) for attribute in _MEDIA_ID_ATTRIBUTES)
    return frozenset(value for value in values if isinstance(value, int))
