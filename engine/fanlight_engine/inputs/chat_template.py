"""Renders a conversation with the checkpoint's own chat template, so that typed text cannot pose as control tokens.

transformers compiles and runs the template (Jinja's immutable sandbox); clients never send templates. What comes out is
prepared text for GuardedTokenizer.encode and the exact ids of earlier answers, to be spliced in. Knows nothing of
pixels or of how many positions an image takes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from fanlight_engine.errors import InvalidRequestError, MissingTemplateError, Reason
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer, unused_characters
from fanlight_engine.request import Conversation, Message, Modality, Part, TextPart, VideoPart

logger = logging.getLogger(__name__)

_LONGEST_TEMPLATE_MESSAGE = 300
_PROBE = "fanlightprobe"


class ContentForm(Enum):
    """What a template expects a message's content to be."""

    PARTS = "list of typed parts"
    TEXT = "plain string"


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """`prepared` for the tokenizer; its n-th splice mark stands for `splices[n]`."""

    prepared: str
    splices: tuple[tuple[int, ...], ...]
    adds_affixes: bool
    """Whether the checkpoint's own path would put the tokenizer's default BOS and EOS around it."""


class ChatTemplate:
    """One checkpoint's template.

    `renderer` is the checkpoint's processor, or its tokenizer where it has none: whichever the reference path uses.
    `media_texts` are what media look like in text; `video_type` is the type of the part that stands for a clip, which
    families without video tokens show as an image. `splice_forbidden_ids` are ids (of images, say) that must never be
    taken from an earlier answer.
    """

    def __init__(
        self,
        renderer: Any,
        tokenizer: PreTrainedTokenizerBase,
        guarded: GuardedTokenizer,
        media_texts: Mapping[Modality, str],
        video_type: str,
        splice_forbidden_ids: frozenset[int],
        end_ids: tuple[int, ...],
    ) -> None:
        self._renderer = renderer
        self._guarded = guarded
        self._media_texts = media_texts
        self._video_type = video_type
        self._forbidden = splice_forbidden_ids
        self._end_ids = frozenset(end_ids)
        self._bos = str(tokenizer.bos_token or "")
        self._is_processor = renderer is not tokenizer
        self.source: str | None = _template_source(renderer)
        takes_images = bool(media_texts)
        self._form = self._probe_form(takes_images) if self.source is not None else ContentForm.TEXT

    def render(self, conversation: Conversation) -> RenderedConversation:
        """Raises MissingTemplateError, and InvalidRequestError with what the template itself objects to."""
        if self.source is None:
            raise MissingTemplateError(
                "conversation",
                "this checkpoint has no chat template; send the text as a raw prompt instead",
                Reason.CHAT_TEMPLATE_MISSING,
            )
        guard, mark = unused_characters([self.source, *_texts(conversation)], 2)
        splices: list[tuple[int, ...]] = []

        def text_of(part: TextPart) -> str:
            ids = self._spliceable_ids(part)
            if ids is None:
                return self._guarded.guard(part.text, guard)
            splices.append(ids)
            return f"{mark}{len(splices) - 1}{mark}"

        messages = [self._template_message(message, text_of) for message in conversation.messages]
        rendered = self._apply(messages, (guard, mark))
        # The reference path's own rule: a processor adds BOS unless the template wrote it, a bare tokenizer never does.
        adds_affixes = self._is_processor and not (self._bos and rendered.startswith(self._bos))
        prepared = self._guarded.replace_control_tokens(rendered, guard)
        marks = re.compile(f"{mark}(\\d+){mark}")
        order = tuple(splices[int(number)] for number in marks.findall(prepared))
        return RenderedConversation(marks.sub(self._guarded.splice_mark, prepared), order, adds_affixes)

    def _spliceable_ids(self, part: TextPart) -> tuple[int, ...] | None:
        """The ids to splice in for an answer; the end id is cut off, since the template writes it."""
        ids = part.token_ids
        if ids is None or not self._forbidden.isdisjoint(ids):
            return None
        while ids and ids[-1] in self._end_ids:
            ids = ids[:-1]
        return ids

    def _template_message(self, message: Message, text_of: Callable[[TextPart], str]) -> dict[str, Any]:
        if self._form is ContentForm.TEXT:
            texts = [
                text_of(part) if isinstance(part, TextPart) else self._text_of_media(part) for part in message.parts
            ]
            return {"role": message.role.value, "content": "".join(texts)}
        content = [
            {"type": "text", "text": text_of(part)} if isinstance(part, TextPart) else {"type": self._type_of(part)}
            for part in message.parts
        ]
        return {"role": message.role.value, "content": content}

    def _text_of_media(self, part: Part) -> str:
        return self._media_texts[Modality.VIDEO if isinstance(part, VideoPart) else Modality.IMAGE]

    def _type_of(self, part: Part) -> str:
        return self._video_type if isinstance(part, VideoPart) else "image"

    def _apply(self, messages: list[dict[str, Any]], private: tuple[str, ...]) -> str:
        try:
            return self._renderer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            # Exactly TemplateError is what the template's own raise_exception raises; subclasses are its mistakes.
            own = str(error) if type(error) is jinja2.TemplateError else f"it fails with {type(error).__name__}"
            raise self._failure(own, private) from error
        except Exception as error:  # a template is a program: it can fail in any way
            raise self._failure(f"it fails with {type(error).__name__}", private) from error

    def _failure(self, what: str, private: tuple[str, ...]) -> InvalidRequestError:
        for character in private:
            what = what.replace(character, "")
        return InvalidRequestError(
            "conversation",
            f"the checkpoint's chat template refuses it: {what[:_LONGEST_TEMPLATE_MESSAGE]}; check the order of roles "
            "and the kinds of parts",
            Reason.CHAT_TEMPLATE_FAILED,
        )

    def _probe_form(self, takes_images: bool) -> ContentForm:
        """The form in which a user's text comes through; templates of text-only checkpoints mostly take strings."""
        first, second = ContentForm.PARTS, ContentForm.TEXT
        if not takes_images:
            first, second = second, first
        for form in (first, second):
            if self._text_comes_through(form):
                return form
        logger.warning("the chat template shows a user's text in neither form of content; assuming a %s", first.value)
        return first

    def _text_comes_through(self, form: ContentForm) -> bool:
        content = _PROBE if form is ContentForm.TEXT else [{"type": "text", "text": _PROBE}]
        try:
            rendered = self._apply([{"role": "user", "content": content}], ())
        except InvalidRequestError:
            return False
        # A template that takes strings prints a list as Python does, quotes and all.
        return _PROBE in rendered and f"'{_PROBE}'" not in rendered


def _template_source(renderer: Any) -> str | None:
    """The template as one string; a checkpoint with several has a default one."""
    template = getattr(renderer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template or None


def _texts(conversation: Conversation) -> Iterator[str]:
    for message in conversation.messages:
        for part in message.parts:
            if isinstance(part, TextPart):
                yield part.text
