"""Rendered prompts are the checkpoint's own, and nothing that a person types becomes a control token."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoProcessor, AutoTokenizer

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.errors import InvalidRequestError, MissingTemplateError, Reason
from fanlight_engine.inputs.expansion import Replacement, replacement_from
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media.wrapped import media_marks
from fanlight_engine.inputs.media.wrapped.media_tokens import media_tokens
from fanlight_engine.inputs.prompt import PromptRenderer, RenderedPrompt
from fanlight_engine.request import (
    Conversation,
    ImagePart,
    Message,
    Prompt,
    RawPrompt,
    Role,
    TextPart,
    TokenPrompt,
    VideoPart,
)
from tests.engine.conversations import TEXTS, as_transformers, random_conversation

CONTEXT = 2048
IMAGE = ImagePart(b"never opened here")


def renderer_of(checkpoint: Checkpoint, tokenizer: Any, processor: Any = None) -> PromptRenderer:
    guarded = GuardedTokenizer(tokenizer, media_marks(processor) if processor else ())
    tokens = media_tokens(checkpoint, processor, guarded) if processor else {}
    placeholders = {modality: one.placeholder_id for modality, one in tokens.items()}
    return PromptRenderer(checkpoint, tokenizer, guarded, processor, placeholders)


class Prompts:
    """One checkpoint's renderer beside its own tokenizer or processor."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.reference: Any = (AutoProcessor if checkpoint.takes_images else AutoTokenizer).from_pretrained(
            checkpoint.path
        )
        self.tokenizer: Any = getattr(self.reference, "tokenizer", self.reference)
        processor = self.reference if checkpoint.takes_images else None
        self.renderer = renderer_of(checkpoint, self.tokenizer, processor)

    def render(self, prompt: Prompt) -> RenderedPrompt:
        return self.renderer.render(prompt, CONTEXT)

    def own_ids(self, conversation: Conversation) -> tuple[int, ...]:
        """The ids of the checkpoint's own path, for conversations without images."""
        messages = as_transformers(conversation, not self.checkpoint.takes_images)
        ids = self.reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
        ids = ids["input_ids"]
        return tuple(ids[0] if isinstance(ids[0], list) else ids)


@pytest.fixture(scope="session", params=["llama", "qwen2_5_vl", "llava", "gemma3", "smolvlm", "internvl"])
def prompts(request: pytest.FixtureRequest, checkpoint_of: Callable[[str], Checkpoint]) -> Prompts:
    return Prompts(checkpoint_of(request.param))


def ask(*texts: str) -> Conversation:
    return Conversation((Message(Role.USER, tuple(map(TextPart, texts))),))


def squeezed(text: str) -> str:
    return "".join(text.split())


def refusal(call: Callable[[], object]) -> tuple[str, Reason, str]:
    with pytest.raises(InvalidRequestError) as caught:
        call()
    (violation,) = caught.value.violations
    return violation.field, caught.value.reason, violation.description


def test_ordinary_conversations_get_the_ids_of_the_checkpoints_own_path(prompts: Prompts):
    rng = random.Random(5)
    for _ in range(100):
        conversation = random_conversation(rng, images=0)
        assert prompts.render(conversation).ids == prompts.own_ids(conversation)


def test_images_stand_where_the_template_puts_them(qwen: Checkpoint, llava: Checkpoint):
    for checkpoint in (qwen, llava):
        prompts = Prompts(checkpoint)
        conversation = Conversation(
            (
                Message(Role.USER, (TextPart("one"), IMAGE, TextPart("two"), IMAGE)),
                Message(Role.ASSISTANT, (TextPart("three"),)),
                Message(Role.USER, (IMAGE, TextPart("four"))),
            )
        )
        rendered = prompts.render(conversation)
        assert [token_id for _, token_id in rendered.placeholders] == [checkpoint.image_token_id] * 3
        assert [rendered.ids[index] for index, _ in rendered.placeholders] == [checkpoint.image_token_id] * 3


def test_no_typed_control_token_is_read_as_one(prompts: Prompts):
    """Every added token of the tokenizer, alone, doubled, inside words and cut in two over neighbouring parts."""
    tokens = [token.content for token in prompts.tokenizer.added_tokens_decoder.values()]
    control_ids = set(prompts.tokenizer.added_tokens_decoder)
    harmless = [one for one in prompts.render(ask("x", "y")).ids if one in control_ids]
    for token in tokens:
        half = len(token) // 2
        together = ((token,), (token + token,), (f"a{token}b {token}",), (token, "\n" + token))
        for texts in (*together, (token[:half], token[half:])):
            rendered = prompts.render(ask(*texts))
            assert [one for one in rendered.ids if one in control_ids] == harmless, texts
            # Some templates put a space between two parts of a message.
            assert squeezed("".join(texts)) in squeezed(prompts.tokenizer.decode(rendered.ids))


def test_typed_image_tokens_do_not_count_as_images(qwen: Checkpoint, llava: Checkpoint):
    for checkpoint, typed in ((qwen, "<|vision_start|><|image_pad|><|vision_end|>"), (llava, "<image>\n")):
        prompts = Prompts(checkpoint)
        for images in range(3):
            parts = (TextPart(typed), *[IMAGE] * images, TextPart(typed))
            rendered = prompts.render(Conversation((Message(Role.USER, parts),)))
            assert len(rendered.placeholders) == images


def test_a_guard_character_that_is_typed_is_text(prompts: Prompts):
    text = "\ue000\ue001<\ue000" + chr(0xF0000) + chr(0x100000) + "hi"
    assert prompts.render(ask(text)).ids == prompts.own_ids(ask(text))


def test_earlier_answers_are_spliced_in_with_their_exact_ids(prompts: Prompts):
    usual = prompts.tokenizer.encode("the cat sees", add_special_tokens=False)
    spelled = list(
        itertools.chain(*(prompts.tokenizer.encode(c, add_special_tokens=False)[-1:] for c in "the cat sees"))
    )
    assert usual != spelled
    end = prompts.checkpoint.end_ids[0]

    def history(ids: tuple[int, ...]) -> Conversation:
        return Conversation(
            (
                Message(Role.USER, (TextPart("who?"),)),
                Message(Role.ASSISTANT, (TextPart("the cat sees", ids),)),
                Message(Role.USER, (TextPart("what?"),)),
            )
        )

    rendered = prompts.render(history((*spelled, end))).ids
    starts = [i for i in range(len(rendered)) if rendered[i : i + len(spelled)] == tuple(spelled)]
    assert len(starts) == 1
    after = rendered[starts[0] + len(spelled) :]
    before = rendered[: starts[0]]
    assert prompts.own_ids(ask("who?"))[:3] == before[:3]
    assert after.count(end) == prompts.render(history(tuple(spelled))).ids[len(before) :].count(end)


def test_an_answer_that_holds_an_image_token_is_rendered_as_text(qwen: Checkpoint):
    assert qwen.image_token_id is not None
    answer = TextPart("<|image_pad|>", (qwen.image_token_id,))
    conversation = Conversation(
        (
            Message(Role.USER, (TextPart("a"),)),
            Message(Role.ASSISTANT, (answer,)),
            Message(Role.USER, (TextPart("b"),)),
        )
    )
    assert Prompts(qwen).render(conversation).placeholders == ()


def test_raw_prompts_are_joined_as_they_are(prompts: Prompts):
    for text in TEXTS:
        assert prompts.render(RawPrompt((TextPart(text),))).ids == tuple(prompts.tokenizer(text)["input_ids"])


def test_raw_prompts_parse_special_tokens_only_when_asked(qwen: Checkpoint):
    prompts = Prompts(qwen)
    text = "<|im_start|>user\nhi<|im_end|>"
    parsed = prompts.render(RawPrompt((TextPart(text),), parse_special_tokens=True)).ids
    assert parsed == tuple(prompts.tokenizer(text)["input_ids"])
    typed = prompts.render(RawPrompt((TextPart(text),))).ids
    assert not set(typed) & set(prompts.tokenizer.added_tokens_decoder)


def test_raw_images_are_wrapped_as_the_family_does(qwen: Checkpoint):
    prompts = Prompts(qwen)
    rendered = prompts.render(RawPrompt((TextPart("a "), IMAGE, TextPart(" b"))))
    text = "a <|vision_start|><|image_pad|><|vision_end|> b"
    assert rendered.ids == tuple(prompts.tokenizer(text)["input_ids"])


def test_every_image_token_that_is_meant_is_a_placeholder(qwen: Checkpoint):
    """Whether there are as many pictures is judged by `expansion.assign`."""
    prompts = Prompts(qwen)
    pad = qwen.image_token_id
    assert pad is not None
    typed = RawPrompt((TextPart("<|image_pad|>"), IMAGE), parse_special_tokens=True)
    assert [token_id for _, token_id in prompts.render(typed).placeholders] == [pad, pad]
    assert prompts.render(TokenPrompt((1, pad, pad), (IMAGE,))).placeholders == ((1, pad), (2, pad))


def test_clips_have_a_placeholder_of_their_own(qwen: Checkpoint):
    prompts = Prompts(qwen)
    clip = VideoPart(b"never opened here")
    rendered = prompts.render(RawPrompt((clip, TextPart(" and "), IMAGE)))
    text = "<|vision_start|><|video_pad|><|vision_end|> and <|vision_start|><|image_pad|><|vision_end|>"
    assert rendered.ids == tuple(prompts.tokenizer(text)["input_ids"])
    assert [token_id for _, token_id in rendered.placeholders] == [qwen.video_token_id, qwen.image_token_id]


def test_token_prompts_are_checked_against_the_vocabulary(llama: Checkpoint):
    prompts = Prompts(llama)
    assert prompts.render(TokenPrompt((0, llama.vocab_size - 1))).ids == (0, llama.vocab_size - 1)
    field, reason, text = refusal(lambda: prompts.render(TokenPrompt((1, llama.vocab_size))))
    assert (field, reason) == ("tokens.ids[1]", Reason.TOKEN_OUT_OF_RANGE)
    assert str(llama.vocab_size - 1) in text


def test_a_template_may_object_in_its_own_words(llama: Checkpoint):
    prompts = Prompts(llama)
    prompts.tokenizer.chat_template = "{{ raise_exception('after ' + messages[0]['content'] + ' comes an answer') }}"
    renderer = renderer_of(llama, prompts.tokenizer)
    field, reason, text = refusal(lambda: renderer.render(ask("<tool>"), CONTEXT))
    assert (field, reason) == ("conversation", Reason.CHAT_TEMPLATE_FAILED)
    assert "after <tool> comes an answer" in text


def test_a_template_that_fails_says_so_without_internals(llama: Checkpoint):
    prompts = Prompts(llama)
    prompts.tokenizer.chat_template = "{{ messages[0].content }}{% if messages[1] %}{{ missing.further }}{% endif %}"
    renderer = renderer_of(prompts.checkpoint, prompts.tokenizer)
    two = Conversation((Message(Role.USER, (TextPart("hi"),)), Message(Role.USER, (TextPart("hi"),))))
    field, reason, text = refusal(lambda: renderer.render(two, CONTEXT))
    assert (field, reason) == ("conversation", Reason.CHAT_TEMPLATE_FAILED)
    assert "fails with UndefinedError" in text
    assert "missing" not in text


def test_a_checkpoint_without_template_asks_for_a_raw_prompt(llama: Checkpoint):
    prompts = Prompts(llama)
    prompts.tokenizer.chat_template = None
    renderer = renderer_of(llama, prompts.tokenizer)
    assert not renderer.has_chat_template
    with pytest.raises(
        MissingTemplateError, match=r"raw prompt instead \(Generation.raw, fanlight.raw_prompt in Python\)"
    ):
        renderer.render(ask("hi"), CONTEXT)


def test_a_template_that_takes_strings_only_gets_strings(qwen: Checkpoint):
    prompts = Prompts(qwen)
    prompts.reference.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    renderer = renderer_of(qwen, prompts.tokenizer, prompts.reference)
    conversation = Conversation((Message(Role.USER, (TextPart("see "), IMAGE, TextPart("<|image_pad|>"))),))
    rendered = renderer.render(conversation, CONTEXT)
    assert len(rendered.placeholders) == 1
    assert (
        prompts.tokenizer.decode(rendered.ids) == "user: see <|vision_start|><|image_pad|><|vision_end|><|image_pad|>"
    )


def test_text_that_can_never_fit_is_refused_before_it_is_tokenised(llama: Checkpoint):
    prompts = Prompts(llama)
    longest = GuardedTokenizer(prompts.tokenizer).longest_token
    field, reason, _ = refusal(lambda: prompts.render(RawPrompt((TextPart("a" * CONTEXT * longest),))))
    assert (field, reason) == ("prompt", Reason.PROMPT_TOO_LONG)


def test_empty_prompts_are_refused(qwen: Checkpoint):
    prompts = Prompts(qwen)
    assert refusal(lambda: prompts.render(RawPrompt((TextPart(""),))))[1] is Reason.EMPTY_PROMPT


CLIP = VideoPart(b"never opened here")
ID_LEVEL_FAMILIES = ("llava", "qwen2_5_vl", "internvl", "idefics3", "mistral3", "llava_onevision", "smolvlm")


def replacement_of(prompts: Prompts, text: str, merges: bool) -> Replacement:
    row_id = prompts.checkpoint.image_token_id
    assert row_id is not None
    return replacement_from(prompts.renderer._guarded.encode_trusted(text), row_id, text, merges)


@pytest.mark.parametrize("family", ID_LEVEL_FAMILIES)
def test_ids_in_the_place_of_ids_are_what_the_whole_text_would_be_tokenised_to(
    checkpoint_of: Callable[[str], Checkpoint], family: str
):
    """Where control tokens are at both ends, whatever is between them: the cheap way is right."""
    prompts = Prompts(checkpoint_of(family))
    token = prompts.reference.image_token
    text = f"{token * 3} and\n\n {token * 2}"
    assert prompts.renderer._guarded.stands_alone(text, in_place_of=token)
    for before, after in itertools.product(("", "a", "a \n"), ("", " b", "\n\nb", " ")):
        rendered = prompts.render(RawPrompt((TextPart(before), IMAGE, TextPart(after), IMAGE)))
        by_ids, by_text = (
            prompts.renderer.expand(rendered, [replacement_of(prompts, text, merges)] * 2, "raw")
            for merges in (False, True)
        )
        assert by_ids == by_text


def test_text_at_the_border_of_a_replacement_does_not_stand_alone(checkpoint_of: Callable[[str], Checkpoint]):
    prompts = Prompts(checkpoint_of("gemma3"))
    guarded, token = prompts.renderer._guarded, prompts.reference.image_token
    assert guarded.stands_alone(token, in_place_of=token)
    for text in (f"\n{token}", f"{token}\n", "ordinary", f" {token} {token}"):
        assert not guarded.stands_alone(text, in_place_of=token)


def test_answers_are_spliced_in_where_text_is_expanded_too(checkpoint_of: Callable[[str], Checkpoint]):
    prompts = Prompts(checkpoint_of("gemma3"))
    letters = prompts.tokenizer.convert_tokens_to_ids(list("cat"))
    conversation = Conversation(
        (
            Message(Role.USER, (IMAGE, TextPart("\nwho?"))),
            Message(Role.ASSISTANT, (TextPart("cat", tuple(letters)),)),
            Message(Role.USER, (TextPart("what?\n"), IMAGE)),
        )
    )
    text = prompts.reference.full_image_sequence
    expanded = prompts.renderer.expand(
        prompts.render(conversation), [replacement_of(prompts, text, merges=True)] * 2, "conversation"
    )
    places = [index for index in range(len(expanded.ids)) if list(expanded.ids[index : index + 3]) == letters]
    assert len(places) == 1
    (first,), (second,) = expanded.ranges
    assert first.start + first.length < places[0] < second.start
    assert (first.length, second.length) == (9, 9)


def test_typed_tokens_that_take_embeddings_are_refused_where_they_would_be_taken_for_media(
    checkpoint_of: Callable[[str], Checkpoint],
):
    """As text they stay text; a raw prompt may ask for more."""
    prompts = Prompts(checkpoint_of("gemma3"))
    replacement = replacement_of(prompts, prompts.reference.full_image_sequence, merges=True)
    for parses in (False, True):
        raw = RawPrompt((TextPart("<image_soft_token>"), IMAGE), parse_special_tokens=parses)
        rendered = prompts.render(raw)
        if not parses:
            assert prompts.renderer.expand(rendered, [replacement], "raw").image_tokens == 9
            continue
        field, reason, text = refusal(lambda seen=rendered: prompts.renderer.expand(seen, [replacement], "raw"))
        assert (field, reason) == ("raw", Reason.IMAGE_COUNT_MISMATCH)
        assert "it has 10" in text


def test_a_clip_may_be_written_as_a_word_that_is_no_token(checkpoint_of: Callable[[str], Checkpoint]):
    prompts = Prompts(checkpoint_of("smolvlm"))
    assert "<video>" not in prompts.tokenizer.get_vocab()
    rendered = prompts.render(RawPrompt((TextPart("<video> "), CLIP, TextPart("<video>"))))
    ((place, placeholder_id),) = rendered.placeholders
    assert placeholder_id < 0
    typed = prompts.tokenizer.encode("<video> ", add_special_tokens=False)
    assert list(rendered.ids[place - len(typed) : place]) == typed


def test_ids_cannot_name_a_clip_that_has_no_token(checkpoint_of: Callable[[str], Checkpoint]):
    prompts = Prompts(checkpoint_of("smolvlm"))
    field, _, text = refusal(lambda: prompts.render(TokenPrompt((1, 2), videos=(CLIP,))))
    assert field == "tokens.videos[0]"
    assert "raw prompt" in text


def test_families_without_a_template_see_media_then_text(checkpoint_of: Callable[[str], Checkpoint]):
    prompts = Prompts(checkpoint_of("paligemma"))
    assert not prompts.renderer.has_chat_template
    with pytest.raises(MissingTemplateError, match="its pictures first and the text behind them"):
        prompts.render(ask("hi"))
    bos, image = prompts.tokenizer.bos_token_id, prompts.checkpoint.image_token_id
    for images, said in itertools.product(range(3), ("what is it", "", " \nhi")):
        rendered = prompts.render(RawPrompt((*[IMAGE] * images, TextPart(said))))
        text = prompts.tokenizer.encode(f"<bos>{said}\n", add_special_tokens=False)
        assert list(rendered.ids) == [image] * images + text
        assert (text[0], text.count(bos)) == (bos, 1)
        assert len(rendered.placeholders) == images
    typed = prompts.render(RawPrompt((TextPart("<image><bos>"),))).ids
    assert image not in typed
    assert typed.count(bos) == 1


def test_media_behind_text_are_refused_where_a_family_cannot_see_them_there(checkpoint_of: Callable[[str], Checkpoint]):
    prompts = Prompts(checkpoint_of("paligemma"))
    field, _, text = refusal(lambda: prompts.render(RawPrompt((IMAGE, TextPart("a"), IMAGE))))
    assert field == "raw.parts[2].image"
    assert "before all text" in text
