"""Chat templates give what they give in transformers, and whatever else they try is ended or refused."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.errors import CheckpointError, InvalidRequestError, Reason
from fanlight_engine.inputs.templates import renderer as rendering
from fanlight_engine.inputs.templates.files import file_of_template
from fanlight_engine.inputs.templates.renderer import Fault, TemplateProblem, TemplateRenderer, TextTooLongError
from fanlight_engine.request import Conversation, ImagePart, Message, RawPrompt, Role, TextPart, VideoPart
from tests.engine.test_prompt import CONTEXT, Prompts, ask, refusal, renderer_of

MESSAGES = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "wer <is> «das»?\n"}]},
    {"role": "assistant", "content": "hello"},
]
VARIABLES = {"messages": MESSAGES, "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>"}
MEMORY = rendering.MOST_MEMORY


@contextmanager
def rendering_of(*sources: str) -> Iterator[TemplateRenderer]:
    renderer = TemplateRenderer(sources)
    try:
        yield renderer
    finally:
        renderer.close()


def outcome(source: str, variables: dict[str, Any] | None = None) -> tuple[Fault, str]:
    """What becomes of a template that gives no text."""
    with pytest.raises(TemplateProblem) as caught, rendering_of(source) as renderer:
        renderer.render(0, variables or VARIABLES, 100)
    return caught.value.fault, caught.value.detail


SAME_AS_IN_TRANSFORMERS = {
    "blocks are trimmed": "  {% if tools is none %}\n  a\n  {% endif %}\nb {{ bos_token }}\n",
    "loops can be left": "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}"
    "{% endif %}{{ i }}{{ loop.index0 }}{{ loop.last }}{% endfor %}",
    "marks of generation vanish": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "JSON is not escaped for HTML": "{{ messages | tojson }}{{ messages | tojson(indent=2, sort_keys=true) }}"
    "{{ messages | tojson(ensure_ascii=true, separators=(',', ':')) }}",
    "namespaces": "{% set ns = namespace(n=1, d=dict(a=2)) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}{{ ns.d }}{{ dict.fromkeys(['k']) }}",
    "the year": "{{ strftime_now('%Y') }}",
    "undefined values are empty": "[{{ nothing }}{{ messages[0].nothing }}{{ messages[9] is defined }}]",
    "filters and methods": "{{ messages[0].content[1].text.split('<')[0].strip() | upper | trim | replace('W', 'w') }}"
    "{{ messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'equalto', 'user') | list }}",
    "macros": "{% macro m(x, y='z') -%} {{ x ~ y }} {%- endmacro %}{{ m(1) }}{{ m(y=2, x=messages | length) }}",
    "format strings": "{{ '%s-%d' % ('a', 3) }}{{ '{:>5}|{!r}'.format(1, 'x') }}",
    "escapes": "{{ '\\n\\u00e9\\x41' }}{{ 'a' 'b' }}",
}


@pytest.mark.parametrize("source", SAME_AS_IN_TRANSFORMERS.values(), ids=SAME_AS_IN_TRANSFORMERS)
def test_what_a_template_gives_is_what_it_gives_in_transformers(source: str):
    (own,), _ = render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>")
    with rendering_of(source) as renderer:
        assert renderer.render(0, VARIABLES, 100) == own


def test_text_comes_through_unchanged_whatever_it_is_made_of():
    odd = '\x00\ud800\U000f0000\ue000 "quoted" \\n\n</script>' + "x" * 100_000
    with rendering_of("{{ messages[0].content }}", "second: {{ messages[0].content }}") as renderer:
        for number, before in enumerate(("", "second: ")):
            assert renderer.render(number, {"messages": [{"content": odd}]}, len(odd)) == before + odd


LOOPS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "one power": "{{ (9 ** (9 ** 9 + messages | length)) > 1 }}",
    "one power that is constant": "{{ (10 ** 9) ** (10 ** 8) > 1 }}",
    "a list that grows": "{% set ns = namespace(l=[0]) %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% set ns.l = (ns.l + ns.l)[:50000] %}{% endfor %}{% endfor %}",
    "macros that call macros": "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}"
    "{{ a(90) }}",
}


@pytest.mark.parametrize("source", LOOPS.values(), ids=LOOPS)
def test_a_template_that_takes_long_is_ended(source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendering, "MOST_SECONDS", 0.3)
    assert outcome(source) == (Fault.TAKES_TOO_MUCH, "it takes longer than 0.3 seconds")


LARGE = {
    "a constant": "{{ 'a' * 10 ** 10 }}",
    "a product": "{{ messages[0].role * 10 ** 10 }}",
    "doubling": "{% set ns = namespace(a='x' * 999) %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "a filter": "{{ messages[0].role | center(10 ** 9) }}",
    "a method": "{{ messages[0].role.rjust(10 ** 9) }}",
    "a format": "{{ '%1000000000d' % messages | length }}",
    "a format string": "{{ '{:>9999999999}'.format(messages | length) }}",
    "bytes": "{{ (messages | length).to_bytes(10 ** 10, 'big') }}",
    "a list": "{{ ([1] * 10 ** 9) | length }}",
    "filling up": "{{ [1] | batch(10 ** 9, 2) | list | length }}",
    "replacing": "{{ ('a' * 10 ** 5).replace('', 'b' * 10 ** 5) }}",
    "much output": "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
}


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_a_template_that_wants_much_memory_does_not_get_it(source: str):
    assert outcome(source) == (Fault.TAKES_TOO_MUCH, f"it takes more than {MEMORY >> 20} MiB of memory")


READS = {
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "it reads __class__, __mro__, __subclasses__",
    "{{ ''['__class__'] }}": "it reads __class__",
    "{{ '' | attr('__class__') }}": "it reads __class__",
    "{% if false %}{{ messages.__init__.__globals__ }}{% endif %}": "it reads __globals__, __init__",
    "{{ raise_exception.__globals__ }}{{ strftime_now.__globals__ }}": "it reads __globals__",
    "{{ messages | map(attribute='role.__class__') | list }}": "it reads __class__",
    "{{ ''['__cla' ~ 'ss__'] }}": "it reads __class__ of a str",
    "{{ '{0.__class__}'.format('') }}": "it reads __class__ of a str",
    "{{ '{a.__init__}'.format_map({'a': messages}) }}": "it reads __init__ of a list",
    "{{ cycler['__in' ~ 'it__'] }}": "it reads __init__ of a type",
    "{{ nothing['__cla' ~ 'ss__'] }}": "'nothing' is undefined",
    "{{ self['_TemplateReference__context'] }}": "it reads _TemplateReference__context of a TemplateReference",
    "{{ joiner.mro() }}": "it reads mro of a type",
    "{{ messages.append(1) }}": "append",
    "{{ messages[0].update(role='system') }}": "update",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}": "__class__",
}


@pytest.mark.parametrize(("source", "told"), READS.items())
def test_a_template_that_reads_what_it_has_no_business_with_is_told_what_it_tried(source: str, told: str):
    fault, detail = outcome(source)
    assert fault is (Fault.FAILS if "undefined" in told else Fault.UNSAFE)
    assert told in detail


FAILURES = {
    "{% for i in range(10 ** 9) %}{% endfor %}": "OverflowError: Range too big",
    "{% for m in messages %}{{ m.role }}\n{% endfr %}": "TemplateSyntaxError: line 2",
    "{{ " + "(" * 99_999 + ")" * 99_999 + " }}": "RecursionError",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "RecursionError",
    "{% include '/etc/passwd' %}": "no loader",
    "{{ messages.nothing.further }}": "UndefinedError",
    "{{ 10 ** 9999 }}": "ValueError",
}


@pytest.mark.parametrize(("source", "told"), FAILURES.items(), ids=FAILURES.values())
def test_a_template_that_fails_says_with_what(source: str, told: str):
    fault, detail = outcome(source)
    assert fault is Fault.FAILS
    assert told in detail


def test_a_template_cannot_open_files():
    """Neither what it includes, nor what its process would import."""
    with rendering_of("{{ messages }}") as renderer:
        process = renderer._process
        assert process is not None
        limits = Path(f"/proc/{process.pid}/limits").read_text()
    assert [line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files")] == [["0", "0"]]


def test_after_a_bomb_the_next_conversation_is_rendered_as_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendering, "MOST_SECONDS", 0.3)
    bombs = (
        "{% if messages == 'long' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        "{% elif messages == 'large' %}{{ messages * 10 ** 10 }}{% endif %}{{ messages }}"
    )
    with rendering_of(bombs) as renderer:
        for bomb in ("long", "large", "long"):
            with pytest.raises(TemplateProblem) as caught:
                renderer.render(0, {"messages": bomb}, 1)
            assert caught.value.fault is Fault.TAKES_TOO_MUCH
            assert renderer.render(0, {"messages": "hello"}, 5) == "hello"


def test_a_process_that_is_gone_is_started_again():
    with rendering_of("{{ messages }}") as renderer:
        assert renderer._process is not None
        renderer._process.kill()
        with pytest.raises(TemplateProblem, match="broke down"):
            renderer.render(0, {"messages": "hello"}, 5)
        assert renderer.render(0, {"messages": "hello"}, 5) == "hello"


def test_long_conversations_have_room_and_too_long_ones_are_told():
    text = "ä " * 4_000_000
    source = "{% for m in messages %}{{ m | trim }}|{{ m.split(' ') | length }}{% endfor %}"
    with rendering_of(source) as renderer:
        assert renderer.render(0, {"messages": [text]}, len(text)).endswith("|4000001")
        with pytest.raises(TextTooLongError, match="bytes"):
            renderer.render(0, {"messages": ["\x01" * 12_000_000]}, 12_000_000)
        assert renderer.render(0, {"messages": ["a b"]}, 3) == "a b|2"


def test_threads_may_ask_at_the_same_time():
    texts: dict[int, str] = {}
    with rendering_of("{{ messages * 3 }}") as renderer:

        def ask_often(number: int) -> None:
            texts[number] = "".join(renderer.render(0, {"messages": str(number)}, 1) for _ in range(50))

        threads = [threading.Thread(target=ask_often, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == {number: str(number) * 150 for number in range(4)}


@pytest.mark.parametrize("closes", [True, False])
def test_no_process_is_left(closes: bool):
    renderer = TemplateRenderer(["{{ messages }}"])
    assert renderer._process is not None
    pid = renderer._process.pid
    if closes:
        renderer.close()
        renderer.close()
        with pytest.raises(RuntimeError, match="closed"):
            renderer.render(0, {"messages": "hello"}, 5)
    del renderer
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


BROKEN = {
    "a bomb": ("{{ 'a' * 10 ** 10 }}", "it takes more than 128 MiB of memory"),
    "what fails on any conversation": ("{{ messages.nothing.further }}", "UndefinedError: 'list object' has no"),
    "what spies": ("{{ ''['__cla' ~ 'ss__'] }}", "asked for a user's one word, it reads __class__ of a str"),
}


@pytest.mark.parametrize(("source", "told"), BROKEN.values(), ids=BROKEN)
def test_a_checkpoint_whose_template_cannot_be_used_is_refused_with_the_file_and_the_fix(
    llama: Checkpoint, source: str, told: str
):
    prompts = Prompts(llama)
    prompts.tokenizer.chat_template = source
    with pytest.raises(CheckpointError, match="the chat template in llama") as refused:
        renderer_of(llama, prompts.tokenizer)
    assert told in str(refused.value)
    assert "take the template from where the weights are from, or remove it" in str(refused.value)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{% for m in messages %}{{ m.content[-1].text }}{% endfor %}", "it writes 0 placeholders of images"),
        (
            "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}"
            "{{ raise_exception('no pictures') }}{% endif %}{{ p.text }}{% endfor %}{% endfor %}",
            "no pictures",
        ),
    ],
)
def test_a_template_that_loses_pictures_is_refused(llava: Checkpoint, source: str, told: str):
    prompts = Prompts(llava)
    prompts.reference.chat_template = source
    with pytest.raises(CheckpointError) as refused:
        renderer_of(llava, prompts.tokenizer, prompts.reference)
    assert "asked for a user's image and a question" in str(refused.value)
    assert told in str(refused.value)


def test_a_bomb_that_waits_for_a_word_is_the_requests_error(llama: Checkpoint):
    prompts = Prompts(llama)
    prompts.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% if m.content == 'boom' %}{{ m.content * 10 ** 10 }}{% endif %}"
        "{% endfor %}"
    )
    renderer = renderer_of(llama, prompts.tokenizer)
    field, reason, text = refusal(lambda: renderer.render(ask("boom"), CONTEXT))
    assert (field, reason) == ("conversation", Reason.CHAT_TEMPLATE_FAILED)
    assert "more than 128 MiB" in text
    assert renderer.render(ask("hello"), CONTEXT).ids


def test_more_text_than_can_be_rendered_is_a_prompt_too_long(llama: Checkpoint):
    conversation = Conversation((Message(Role.USER, (TextPart("\x01" * 12_000_000),)),))
    with pytest.raises(InvalidRequestError) as refused:
        Prompts(llama).renderer.render(conversation, CONTEXT)
    assert refused.value.reason is Reason.PROMPT_TOO_LONG


def test_the_file_is_named_wherever_the_template_came_from(tmp_path: Path):
    directory = tmp_path / "model"
    directory.mkdir()
    assert file_of_template(directory, "t") == "model"
    (directory / "tokenizer_config.json").write_text('{"chat_template": [{"name": "default", "template": "t"}]}')
    assert file_of_template(directory, "t") == "model/tokenizer_config.json"
    (directory / "chat_template.json").write_text('{"chat_template": "t"}')
    assert file_of_template(directory, "t") == "model/chat_template.json"
    (directory / "chat_template.jinja").write_text("t\n")
    assert file_of_template(directory, "t") == "model/chat_template.jinja"


ONLY_PICTURES = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<|image_pad|>{% endif %}{{ p.text }}"
    "{% endfor %}{% endfor %}"
)
ONLY_PICTURES_AND_SAYS_SO = (
    "{{ raise_exception('no clips') if messages[0].content[0].type == 'video' }}" + ONLY_PICTURES
)


@pytest.mark.parametrize(
    ("source", "why"), [(ONLY_PICTURES, "it writes 0 placeholders of videos"), (ONLY_PICTURES_AND_SAYS_SO, "no clips")]
)
def test_a_template_that_knows_no_clips_is_told_and_only_conversations_with_one_are_refused(
    qwen: Checkpoint, caplog: pytest.LogCaptureFixture, source: str, why: str
):
    prompts = Prompts(qwen)
    prompts.reference.chat_template = source
    renderer = renderer_of(qwen, prompts.tokenizer, prompts.reference)
    assert f"the chat template of {qwen.name} shows no clips: asked for a user's video" in caplog.text
    assert why in caplog.text
    clip = VideoPart(b"never opened here")
    asked = Conversation((Message(Role.USER, (clip, TextPart("What is it?"))),))
    field, reason, told = refusal(lambda: renderer.render(asked, CONTEXT))
    assert (field, reason) == ("conversation", Reason.CHAT_TEMPLATE_FAILED)
    assert why in told
    assert "send them in a raw prompt" in told
    raw = renderer.render(RawPrompt((clip, TextPart("What is it?"))), CONTEXT)
    assert [token_id for _, token_id in raw.placeholders] == [qwen.video_token_id]
    picture = Conversation((Message(Role.USER, (ImagePart(b""), TextPart("What is it?"))),))
    assert [token_id for _, token_id in renderer.render(picture, CONTEXT).placeholders] == [qwen.image_token_id]


def test_a_template_that_spies_where_a_clip_is_shown_is_refused(qwen: Checkpoint):
    prompts = Prompts(qwen)
    prompts.reference.chat_template = (
        "{{ ''['__cla' ~ 'ss__'] if messages[0].content[0].type == 'video' }}" + ONLY_PICTURES
    )
    with pytest.raises(CheckpointError, match=r"asked for a user's video and a question, .* it reads __class__"):
        renderer_of(qwen, prompts.tokenizer, prompts.reference)
