"""Prompts of all three forms -> token ids with one placeholder per picture and per clip.

Conversations go through the checkpoint's chat template, raw prompts are joined as they are, token prompts are checked.
For ordinary text the ids are those of the checkpoint's own processor; control tokens typed by a person stay text.
Knows nothing of pixels, nor of how many positions a medium takes. Runs in a worker thread; changes nothing shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from fanlight_engine.errors import CheckpointError, InvalidRequestError, Reason
from fanlight_engine.inputs.chat_template import ChatTemplate
from fanlight_engine.inputs.guarded_tokenizer import SPLICE, GuardedTokenizer
from fanlight_engine.model.checkpoint import Checkpoint
from fanlight_engine.request import (
    AudioPart,
    Conversation,
    ImagePart,
    Modality,
    Part,
    Prompt,
    RawPrompt,
    TextPart,
    TokenPrompt,
)

_MEDIA_ID_ATTRIBUTES = ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id")


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Ids before expansion; `placeholders` are (index, id) of the ids that stand for media, in order."""

    ids: tuple[int, ...]
    placeholders: tuple[tuple[int, int], ...]


class PromptRenderer:
    """Renders the prompts of one checkpoint.

    `processor` is None for checkpoints without one. `placeholder_ids` are the kinds of media that the model takes, and
    the id that stands for one of each.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: PreTrainedTokenizerBase,
        guarded: GuardedTokenizer,
        processor: object | None,
        placeholder_ids: Mapping[Modality, int],
    ) -> None:
        self._checkpoint = checkpoint
        self._guarded = guarded
        self._bos_id = tokenizer.bos_token_id
        self._placeholder_ids = frozenset(placeholder_ids.values())
        self._media_texts = {
            modality: _media_text(checkpoint, tokenizer, modality, token_id)
            for modality, token_id in placeholder_ids.items()
        }
        has_own_template = bool(getattr(processor, "chat_template", None))
        self._template = ChatTemplate(
            renderer=processor if has_own_template else tokenizer,
            tokenizer=tokenizer,
            guarded=guarded,
            media_texts=self._media_texts,
            video_type="video" if checkpoint.video_token_id in self._placeholder_ids else "image",
            splice_forbidden_ids=_media_ids(checkpoint),
            end_ids=checkpoint.end_ids,
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return self._template.source is not None

    def render(self, prompt: Prompt, longest: int) -> RenderedPrompt:
        """Ids and placeholders. Raises InvalidRequestError, for texts of certainly more than `longest` tokens too."""
        if isinstance(prompt, TokenPrompt):
            field, ids = "tokens.ids", list(prompt.ids)
            self._check_ids(prompt.ids)
        elif isinstance(prompt, RawPrompt):
            field, ids = "raw", self._raw_ids(prompt, longest)
        else:
            field, ids = "conversation", self._conversation_ids(prompt, longest)
        if not ids:
            raise InvalidRequestError(field, "it has no tokens; send at least one", Reason.EMPTY_PROMPT)
        known = self._placeholder_ids
        placeholders = tuple((index, token_id) for index, token_id in enumerate(ids) if token_id in known)
        return RenderedPrompt(tuple(ids), placeholders)

    def _check_ids(self, ids: tuple[int, ...]) -> None:
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < self._checkpoint.vocab_size:
                raise InvalidRequestError(
                    f"tokens.ids[{index}]",
                    f"got {token_id}, the vocabulary has ids 0 to {self._checkpoint.vocab_size - 1}",
                    Reason.TOKEN_OUT_OF_RANGE,
                )

    def _conversation_ids(self, conversation: Conversation, longest: int) -> list[int]:
        rendered = self._template.render(conversation)
        ids = self._encode(rendered.prepared, longest)
        splices = iter(rendered.splices)
        spliced = [one for token_id in ids for one in (next(splices) if token_id == SPLICE else (token_id,))]
        if not rendered.adds_affixes:
            return spliced
        return [*self._guarded.prefix_ids, *spliced, *self._guarded.suffix_ids]

    def _raw_ids(self, prompt: RawPrompt, longest: int) -> list[int]:
        prepared = "".join(self._prepared_part(part, prompt.parse_special_tokens) for part in prompt.parts)
        ids = self._encode(prepared, longest)
        if not ids or ids[0] == self._bos_id:
            return ids
        return [*self._guarded.prefix_ids, *ids]

    def _prepared_part(self, part: Part, parse_special_tokens: bool) -> str:
        if isinstance(part, TextPart):
            return self._guarded.replace_control_tokens(part.text) if parse_special_tokens else part.text
        assert not isinstance(part, AudioPart), "refused by validation"
        modality = Modality.IMAGE if isinstance(part, ImagePart) else Modality.VIDEO
        return self._guarded.replace_control_tokens(self._media_texts[modality])

    def _encode(self, prepared: str, longest: int) -> list[int]:
        """Text that cannot fit however well it tokenises is refused before time is spent on it."""
        fewest = len(prepared) // self._guarded.longest_token
        if fewest >= longest:
            raise InvalidRequestError(
                "prompt",
                f"it has {len(prepared)} characters, so at least {fewest} tokens, the context holds {longest} "
                "for prompt and answer; shorten it",
                Reason.PROMPT_TOO_LONG,
            )
        return self._guarded.encode(prepared)


def _media_text(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase, modality: Modality, token_id: int) -> str:
    """How a medium is written in text: its placeholder between the family's marks."""
    token = tokenizer.convert_ids_to_tokens(token_id)
    if not isinstance(token, str):
        raise CheckpointError(f"config.json names {token_id} as {modality} token, which the tokenizer does not have")
    family = checkpoint.family
    if modality is Modality.VIDEO and token_id == checkpoint.video_token_id:
        return f"{family.video_prefix}{token}{family.video_suffix}"
    return f"{family.image_prefix}{token}{family.image_suffix}"


def _media_ids(checkpoint: Checkpoint) -> frozenset[int]:
    """Ids that mean media to the model; a model can also generate them, which must not make an image of history."""
    values = (getattr(checkpoint.config, attribute, None) for attribute in _MEDIA_ID_ATTRIBUTES)
    return frozenset(value for value in values if isinstance(value, int))
