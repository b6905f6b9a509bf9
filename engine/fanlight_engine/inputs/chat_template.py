"""Renders a conversation with the checkpoint's own chat template, so that typed text cannot pose as control tokens.

The template runs in a process of its own (`templates`), with the variables that transformers would give it; clients
never send templates. What comes out is prepared text for GuardedTokenizer.encode and the exact ids of earlier answers,
to be spliced in. Knows nothing of pixels or of how many positions an image takes.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from fanlight_engine.errors import CheckpointError, InvalidRequestError, MissingTemplateError, Reason
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer, unused_characters
from fanlight_engine.inputs.templates.files import file_of_template
from fanlight_engine.inputs.templates.renderer import Fault, TemplateProblem, TemplateRenderer, TextTooLongError
from fanlight_engine.request import Conversation, Message, Modality, Part, TextPart, VideoPart

logger = logging.getLogger(__name__)

_LONGEST_TEMPLATE_MESSAGE = 300
_PROBE = "fanlightprobe"
_FIX = "take the template from where the weights are from, or remove it and send raw prompts"


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

    `owner` of the template is the checkpoint's processor, or its tokenizer where it has none: whichever the reference
    path uses (and whichever template that picks: SmolVLM's processor has one of its own for conversations with clips).
    `media_texts` are what media look like in text; `video_type` is the type of the part that stands for a clip, which
    families without video tokens show as an image. `splice_forbidden_ids` are ids (of images, say) that must never be
    taken from an earlier answer. `instead` is what to do where there is no template.
    """

    def __init__(
        self,
        owner: Any,
        tokenizer: PreTrainedTokenizerBase,
        directory: Path,
        guarded: GuardedTokenizer,
        media_texts: Mapping[Modality, str],
        video_type: str,
        splice_forbidden_ids: frozenset[int],
        end_ids: tuple[int, ...],
        instead: str,
    ) -> None:
        """Raises CheckpointError for a template that cannot be used, naming its file."""
        self._guarded = guarded
        self._media_texts = media_texts
        self._video_type = video_type
        self._forbidden = splice_forbidden_ids
        self._end_ids = frozenset(end_ids)
        self._instead = instead
        self._bos = str(tokenizer.bos_token or "")
        self._tokens = json.loads(json.dumps(tokenizer.special_tokens_map, default=str))
        self._is_processor = owner is not tokenizer
        self.source: str | None = _template_source(owner)
        self._source_for_clips = _template_for_clips(owner)
        self._renderer: TemplateRenderer | None = None
        self._form = ContentForm.TEXT
        if self.source is not None:
            self._file = file_of_template(directory, self.source)
            self._renderer = self._started_renderer(self.source)
            self._form = self._probe_form(takes_images=bool(media_texts))

    def render(self, conversation: Conversation) -> RenderedConversation:
        """Raises MissingTemplateError, and InvalidRequestError with what the template itself objects to."""
        if self.source is None:
            raise MissingTemplateError(
                "conversation",
                f"this checkpoint has no chat template; {self._instead}",
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

    def close(self) -> None:
        """End the process that renders. Idempotent."""
        if self._renderer is not None:
            self._renderer.close()

    def refuse(self, why: str) -> CheckpointError:
        """The error that the template cannot be used, found on a conversation that it should render."""
        return CheckpointError(f"the chat template in {self._file} cannot be used: {why}; {_FIX}")

    def _apply(self, messages: list[dict[str, Any]], private: tuple[str, ...]) -> str:
        try:
            return self._render_text(messages)
        except TextTooLongError as error:
            raise InvalidRequestError(
                "conversation", f"it has more text than any context holds: {error}; shorten it", Reason.PROMPT_TOO_LONG
            ) from error
        except TemplateProblem as problem:
            raise self._failure(problem, private) from problem

    def _render_text(self, messages: list[dict[str, Any]]) -> str:
        """Raises TemplateProblem and TextTooLongError."""
        assert self._renderer is not None
        variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        number = 1 if self._source_for_clips and _has_clip(messages) else 0
        return self._renderer.render(number, {**variables, **self._tokens}, _characters_in(messages))

    def _failure(self, problem: TemplateProblem, private: tuple[str, ...]) -> InvalidRequestError:
        why = problem.why
        for character in private:
            why = why.replace(character, "")
        return InvalidRequestError(
            "conversation",
            f"the checkpoint's chat template refuses it: {why[:_LONGEST_TEMPLATE_MESSAGE]}; check the order of roles "
            "and the kinds of parts",
            Reason.CHAT_TEMPLATE_FAILED,
        )

    def _started_renderer(self, source: str) -> TemplateRenderer:
        try:
            return TemplateRenderer([source, *([self._source_for_clips] if self._source_for_clips else [])])
        except TemplateProblem as problem:
            raise self.refuse(problem.detail) from problem

    def _probe_form(self, takes_images: bool) -> ContentForm:
        """The form in which a user's text comes through; templates of text-only checkpoints mostly take strings.

        Raises CheckpointError where the template fails on both, or goes beyond what any template may do on one.
        """
        first, second = ContentForm.PARTS, ContentForm.TEXT
        if not takes_images:
            first, second = second, first
        problems: list[TemplateProblem] = []
        for form in (first, second):
            try:
                if self._text_comes_through(form):
                    return form
            except TemplateProblem as problem:
                if problem.fault in (Fault.UNSAFE, Fault.TAKES_TOO_MUCH):
                    raise self.refuse(f"asked for a user's one word, {problem.detail}") from problem
                problems.append(problem)
        if len(problems) == 2 and all(problem.fault is Fault.FAILS for problem in problems):
            raise self.refuse(f"asked for a user's one word, {problems[0].detail}") from problems[0]
        logger.warning("the chat template shows a user's text in neither form of content; assuming a %s", first.value)
        return first

    def _text_comes_through(self, form: ContentForm) -> bool:
        content = _PROBE if form is ContentForm.TEXT else [{"type": "text", "text": _PROBE}]
        rendered = self._render_text([{"role": "user", "content": content}])
        # A template that takes strings prints a list as Python does, quotes and all.
        return _PROBE in rendered and f"'{_PROBE}'" not in rendered


def _template_source(owner: Any) -> str | None:
    """The template as one string; a checkpoint with several has a default one."""
    template = getattr(owner, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template or None


def _template_for_clips(owner: Any) -> str | None:
    """The template that a processor takes for conversations with clips, whatever the checkpoint brings."""
    return getattr(sys.modules[type(owner).__module__], "DEFAULT_CHAT_TEMPLATE", None)


def _has_clip(messages: list[dict[str, Any]]) -> bool:
    return any(part["type"] == "video" for message in messages for part in _parts_of(message))


def _parts_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message["content"] if isinstance(message["content"], list) else []


def _characters_in(messages: list[dict[str, Any]]) -> int:
    """Of all texts."""
    plain = sum(len(message["content"]) for message in messages if isinstance(message["content"], str))
    return plain + sum(len(part.get("text", "")) for message in messages for part in _parts_of(message))


def _texts(conversation: Conversation) -> Iterator[str]:
    for message in conversation.messages:
        for part in message.parts:
            if isinstance(part, TextPart):
                yield part.text
