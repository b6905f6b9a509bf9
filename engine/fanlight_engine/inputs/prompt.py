"""Prompts of all three forms -> token ids with one placeholder per picture and per clip, and later the expanded prompt.

Conversations go through the checkpoint's chat template, raw prompts are joined as they are (or laid out as the family
wants it), token prompts are checked. For ordinary text the ids are those of the checkpoint's own processor; control
tokens typed by a person stay text.

Processors expand placeholders in the text, and tokenise it afterwards. Where a medium's replacement begins or ends with
ordinary text, that text is tokenised together with what stands beside it, so the prepared text is kept and expanded,
too. Where replacements begin and end with control tokens, or nobody has the text (token prompts), ids are put in the
place of ids; in a token prompt a replacement is tokenised for itself. Knows nothing of pixels. Runs in a worker thread;
changes nothing shared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.errors import CheckpointError, InvalidRequestError, Reason
from fanlight_engine.inputs.chat_template import ChatTemplate
from fanlight_engine.inputs.expansion import ExpandedPrompt, Replacement, expand, rows_of_expanded
from fanlight_engine.inputs.guarded_tokenizer import SPLICE, GuardedTokenizer
from fanlight_engine.inputs.templates.renderer import Fault, TemplateProblem
from fanlight_engine.request import (
    AudioPart,
    Conversation,
    ImagePart,
    Message,
    Modality,
    Part,
    Prompt,
    RawPrompt,
    Role,
    TextPart,
    TokenPrompt,
    VideoPart,
)

_log = logging.getLogger(__name__)

_RAW_INSTEAD = "send the text as a raw prompt instead (Generation.raw, fanlight.raw_prompt in Python)"
_RAW_INSTEAD_MEDIA_FIRST = (
    "send a raw prompt instead (Generation.raw, fanlight.raw_prompt in Python), its pictures first and the text behind "
    "them"
)
_LONGEST_PROBE = 1 << 20
"""Tokens; templates may write long system prompts."""
_MEDIA_ID_ATTRIBUTES = ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id")


@dataclass(frozen=True, slots=True)
class PreparedText:
    """`text` for GuardedTokenizer.encode. Its n-th splice mark stands for `splices[n]`; `prefix_ids` and `suffix_ids`
    go around it."""

    text: str
    splices: tuple[tuple[int, ...], ...] = ()
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Ids before expansion; `placeholders` are (index, id) of the ids that stand for media, in order.

    `prepared` is what the ids were made of; None for token prompts.
    """

    ids: tuple[int, ...]
    placeholders: tuple[tuple[int, int], ...]
    prepared: PreparedText | None = None


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
        self._bos = str(tokenizer.bos_token or "")
        self._placeholder_ids = frozenset(placeholder_ids.values())
        self._clips_have_no_token = placeholder_ids.get(Modality.VIDEO, 0) < 0
        clips_have_their_own = placeholder_ids.get(Modality.VIDEO) not in (None, placeholder_ids.get(Modality.IMAGE))
        kinds = {modality: modality if clips_have_their_own else Modality.IMAGE for modality in placeholder_ids}
        self._media_texts = {
            modality: _media_text(checkpoint, guarded, kinds[modality], token_id)
            for modality, token_id in placeholder_ids.items()
        }
        has_own_template = bool(getattr(processor, "chat_template", None))
        self._template = ChatTemplate(
            owner=processor if has_own_template else tokenizer,
            tokenizer=tokenizer,
            directory=checkpoint.path,
            guarded=guarded,
            media_texts=self._media_texts,
            video_type="video" if clips_have_their_own else "image",
            splice_forbidden_ids=_media_ids(checkpoint) | self._placeholder_ids,
            end_ids=checkpoint.end_ids,
            instead=_RAW_INSTEAD_MEDIA_FIRST if checkpoint.family.text_after_media else _RAW_INSTEAD,
        )
        self._why_no_clips = ""
        if self.has_chat_template:
            for modality, token_id in placeholder_ids.items():
                self._judge_template(modality, token_id)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return self._template.source is not None

    def close(self) -> None:
        """End the process that renders conversations. Idempotent."""
        self._template.close()

    def _judge_template(self, modality: Modality, token_id: int) -> None:
        """Raise CheckpointError for a template that loses pictures: all conversations with one would be refused.

        Some templates are older than what their model can do, and know no clips: that is a warning.
        """
        medium = ImagePart(b"") if modality is Modality.IMAGE else VideoPart(b"")
        conversation = Conversation((Message(Role.USER, (medium, TextPart("What is it?"))),))
        asked = f"asked for a user's {modality} and a question"
        cause: InvalidRequestError | None = None
        try:
            placeholders = self.render(conversation, _LONGEST_PROBE).placeholders
        except InvalidRequestError as error:
            cause, why, knows_none = error, error.violations[0].description, _is_of_words(error)
        else:
            found = sum(one == token_id for _, one in placeholders)
            if found == 1:
                return
            why, knows_none = f"it writes {found} placeholders of {modality}s, one is needed", found == 0
        if modality is Modality.IMAGE or not knows_none:
            raise self._template.refuse(f"{asked}, {why}") from cause
        self._why_no_clips = why
        _log.warning(
            "the chat template of %s shows no clips: %s, %s; conversations with one are refused, raw prompts take it",
            self._checkpoint.name,
            asked,
            why,
        )

    def render(self, prompt: Prompt, longest: int) -> RenderedPrompt:
        """Ids and placeholders. Raises InvalidRequestError, for texts of certainly more than `longest` tokens too."""
        prepared: PreparedText | None = None
        if isinstance(prompt, TokenPrompt):
            field, ids = "tokens.ids", list(prompt.ids)
            self._check_ids(prompt)
        elif isinstance(prompt, RawPrompt):
            field, (prepared, ids) = "raw", self._raw(prompt, longest)
        else:
            field, (prepared, ids) = "conversation", self._conversation(prompt, longest)
        if not ids:
            raise InvalidRequestError(field, "it has no tokens; send at least one", Reason.EMPTY_PROMPT)
        known = self._placeholder_ids
        placeholders = tuple((index, token_id) for index, token_id in enumerate(ids) if token_id in known)
        return RenderedPrompt(tuple(ids), placeholders, prepared)

    def expand(self, rendered: RenderedPrompt, replacements: Sequence[Replacement], field: str) -> ExpandedPrompt:
        """The prompt with `replacements[i]` in the place of its i-th placeholder. Raises InvalidRequestError."""
        if rendered.prepared is None or not any(replacement.merges for replacement in replacements):
            return expand(rendered.ids, [place for place, _ in rendered.placeholders], replacements)
        texts = (replacement.text for replacement in replacements)
        text = self._guarded.substitute(rendered.prepared.text, self._placeholder_ids, texts)
        return rows_of_expanded(self._ids_of(replace(rendered.prepared, text=text)), replacements, field)

    def _check_ids(self, prompt: TokenPrompt) -> None:
        if prompt.videos and self._clips_have_no_token:
            raise InvalidRequestError(
                "tokens.videos[0]",
                "this model has no token that stands for a clip; send it in a conversation or in a raw prompt",
                Reason.IMAGE_COUNT_MISMATCH,
            )
        for index, token_id in enumerate(prompt.ids):
            if not 0 <= token_id < self._checkpoint.vocab_size:
                raise InvalidRequestError(
                    f"tokens.ids[{index}]",
                    f"got {token_id}, the vocabulary has ids 0 to {self._checkpoint.vocab_size - 1}",
                    Reason.TOKEN_OUT_OF_RANGE,
                )

    def _conversation(self, conversation: Conversation, longest: int) -> tuple[PreparedText, list[int]]:
        has_clips = any(isinstance(part, VideoPart) for message in conversation.messages for part in message.parts)
        if has_clips and self._why_no_clips:
            raise InvalidRequestError(
                "conversation",
                f"the checkpoint's chat template shows no clips ({self._why_no_clips}); send them in a raw prompt",
                Reason.CHAT_TEMPLATE_FAILED,
            )
        rendered = self._template.render(conversation)
        prepared = PreparedText(rendered.prepared, rendered.splices)
        if rendered.adds_affixes:
            affixes = tuple(self._guarded.prefix_ids), tuple(self._guarded.suffix_ids)
            prepared = PreparedText(rendered.prepared, rendered.splices, *affixes)
        self._refuse_much_text(prepared.text, longest)
        return prepared, self._ids_of(prepared)

    def _raw(self, prompt: RawPrompt, longest: int) -> tuple[PreparedText, list[int]]:
        parts = [self._prepared_part(part, prompt.parse_special_tokens) for part in prompt.parts]
        if self._checkpoint.family.text_after_media:
            parts = list(self._media_first(prompt, parts))
        prepared = PreparedText("".join(parts))
        self._refuse_much_text(prepared.text, longest)
        ids = self._ids_of(prepared)
        if not ids or self._bos_id in ids[:1] or self._checkpoint.family.text_after_media:
            return prepared, ids
        prefix_ids = tuple(self._guarded.prefix_ids)
        return replace(prepared, prefix_ids=prefix_ids), [*prefix_ids, *ids]

    def _media_first(self, prompt: RawPrompt, parts: Sequence[str]) -> Iterator[str]:
        """As the processors of such families lay it out: media, beginning of sequence, text, a newline. Without media,
        which these processors refuse, it is what is left of that."""
        first_text = next((i for i, part in enumerate(prompt.parts) if isinstance(part, TextPart)), len(parts))
        for index, part in enumerate(prompt.parts[first_text:], first_text):
            if not isinstance(part, TextPart):
                raise InvalidRequestError(
                    f"raw.parts[{index}].{'image' if isinstance(part, ImagePart) else 'video'}",
                    "it stands behind text, and this model sees all media before all text; put it first",
                )
        yield from parts[:first_text]
        yield self._guarded.replace_control_tokens(self._bos)
        yield from parts[first_text:]
        yield "\n"

    def _ids_of(self, prepared: PreparedText) -> list[int]:
        splices = iter(prepared.splices)
        ids = self._guarded.encode(prepared.text)
        spliced = [one for token_id in ids for one in (next(splices) if token_id == SPLICE else (token_id,))]
        return [*prepared.prefix_ids, *spliced, *prepared.suffix_ids]

    def _prepared_part(self, part: Part, parse_special_tokens: bool) -> str:
        if isinstance(part, TextPart):
            return self._guarded.replace_control_tokens(part.text) if parse_special_tokens else part.text
        assert not isinstance(part, AudioPart), "refused by validation"
        modality = Modality.IMAGE if isinstance(part, ImagePart) else Modality.VIDEO
        return self._guarded.replace_control_tokens(self._media_texts[modality])

    def _refuse_much_text(self, prepared: str, longest: int) -> None:
        """Text that cannot fit however well it tokenises is refused before time is spent on it."""
        fewest = len(prepared) // self._guarded.longest_token
        if fewest >= longest:
            raise InvalidRequestError(
                "prompt",
                f"it has {len(prepared)} characters, so at least {fewest} tokens, the context holds {longest} "
                "for prompt and answer; shorten it",
                Reason.PROMPT_TOO_LONG,
            )


def _is_of_words(error: InvalidRequestError) -> bool:
    """Whether a template had no words for what it was given, rather than doing what no template may do."""
    cause = error.__cause__
    return isinstance(cause, TemplateProblem) and cause.fault in (Fault.OBJECTS, Fault.FAILS)


def _media_text(checkpoint: Checkpoint, guarded: GuardedTokenizer, modality: Modality, token_id: int) -> str:
    """How a medium is written in text: its placeholder between the family's marks."""
    token = guarded.spelling_of(token_id)
    if token is None:
        raise CheckpointError(
            f"{checkpoint.name} has {token_id} as the token of a {modality}, which is no added token of its "
            "tokenizer.json; take config.json and the tokenizer's files from one checkpoint"
        )
    family = checkpoint.family
    if modality is Modality.VIDEO:
        return f"{family.video_prefix}{token}{family.video_suffix}"
    return f"{family.image_prefix}{token}{family.image_suffix}"


def _media_ids(checkpoint: Checkpoint) -> frozenset[int]:
    """Ids that mean media to the model; a model can also generate them, which must not make an image of history."""
    values = (getattr(checkpoint.config, attribute, None) for attribute in _MEDIA_ID_ATTRIBUTES)
    return frozenset(value for value in values if isinstance(value, int))
