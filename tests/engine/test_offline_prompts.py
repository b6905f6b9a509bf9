"""Whatever an offline caller writes becomes the prompt that it means, or an error that says where and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fanlight_engine.errors import InvalidRequestError, UnsupportedRequestError
from fanlight_engine.offline.prompts import as_batch
from fanlight_engine.request import (
    AudioPart,
    Conversation,
    ImagePart,
    MediaUrl,
    Message,
    PixelOptions,
    RawPrompt,
    Role,
    TextPart,
    TokenPrompt,
    VideoPart,
)

FILE = b"an encoded file"
HELLO = TextPart("Hello")


def user(*parts: Any) -> Conversation:
    return Conversation((Message(Role.USER, parts),))


@pytest.mark.parametrize(
    ("prompt", "media", "expected"),
    [
        ("Hello", None, user(HELLO)),
        ("Hello", {}, user(HELLO)),
        ("Hello", {"image": FILE}, user(ImagePart(FILE), HELLO)),
        (
            "Hello",
            {"video": FILE, "image": [FILE, b"2"]},
            user(ImagePart(FILE), ImagePart(b"2"), VideoPart(FILE), HELLO),
        ),
        ([1, 2, 3], None, TokenPrompt((1, 2, 3))),
        ([1, 2, 3], {"image": FILE, "video": b"c"}, TokenPrompt((1, 2, 3), (ImagePart(FILE),), (VideoPart(b"c"),))),
        ([{"role": "user", "content": "Hello"}], None, user(HELLO)),
        ([Message(Role.USER, (HELLO,))], None, user(HELLO)),
        (
            [{"role": "user", "content": [{"type": "image"}, "Hello", {"type": "image"}, {"type": "video"}]}],
            {"image": [FILE, b"2"], "video": b"c"},
            user(ImagePart(FILE), HELLO, ImagePart(b"2"), VideoPart(b"c")),
        ),
        (
            [{"role": "user", "content": [{"type": "image", "image": FILE}, {"type": "text", "text": "Hello"}]}],
            None,
            user(ImagePart(FILE), HELLO),
        ),
        ([{"role": "user", "content": [{"type": "audio"}, HELLO]}], None, user(AudioPart(), HELLO)),
        (RawPrompt((HELLO,)), None, RawPrompt((HELLO,))),
        (TokenPrompt((1,)), None, TokenPrompt((1,))),
        (user(HELLO), None, user(HELLO)),
    ],
)
def test_one_prompt(prompt: Any, media: Any, expected: Any) -> None:
    assert as_batch(prompt, media) == ([expected], True)


def test_a_list_is_a_batch_of_whatever_prompts_it_holds() -> None:
    prompts = ["Hello", [1, 2], [{"role": "user", "content": "Hello"}], RawPrompt((HELLO,))]
    read, is_one = as_batch(prompts, [{"image": FILE}, None, None, None])
    assert not is_one
    assert read == [user(ImagePart(FILE), HELLO), TokenPrompt((1, 2)), user(HELLO), RawPrompt((HELLO,))]
    assert as_batch([], None) == ([], False)
    assert as_batch([[1, 2], [3]], None) == ([TokenPrompt((1, 2)), TokenPrompt((3,))], False)


def test_media_come_from_paths_urls_image_objects_and_engine_parts(tmp_path: Path) -> None:
    file = tmp_path / "one.bin"
    file.write_bytes(FILE)
    part = ImagePart(b"5", PixelOptions(max_tokens=4))
    sources = [file, str(file), "HTTPS://example.com/a.png", Image.new("RGB", (3, 2)), part]
    ((conversation,), _) = as_batch("Hello", {"image": sources})
    assert isinstance(conversation, Conversation)
    first, second, third, fourth, fifth, _ = conversation.messages[0].parts
    assert first == second == ImagePart(FILE)
    assert third == ImagePart(MediaUrl("HTTPS://example.com/a.png"))
    assert isinstance(fourth, ImagePart)
    assert isinstance(fourth.source, bytes)
    assert fourth.source.startswith(b"\x89PNG")
    assert fifth is part


@pytest.mark.parametrize(
    ("prompts", "media", "error", "says"),
    [
        (7, None, TypeError, "a prompt is a string, .* got int"),
        (None, None, TypeError, "got NoneType"),
        (b"Hello", None, TypeError, "got bytes"),
        (["Hello", 7], None, TypeError, r"prompts\[1\] is a int"),
        (["Hello", [1, "a"]], None, TypeError, r"prompts\[1\] is a list of int and str"),
        ([[1, True]], None, TypeError, r"prompts\[0\] is a list of bool and int"),
        ("Hello", [FILE], TypeError, "media of one prompt are a mapping or None, got list"),
        (["a", "b"], {"image": FILE}, TypeError, "media of a batch are a list .* got dict"),
        (["a", "b"], [None], ValueError, "got media for 1 prompts, there are 2"),
        (["a"], [FILE], TypeError, r"media\[0\] is a bytes, a mapping or None is needed"),
        ("a", {"picture": FILE}, ValueError, "media has 'picture'; known are 'image' and 'video'"),
        ("a", {"audio": FILE}, UnsupportedRequestError, "audio, which is not served"),
        ("a", {"image": 7}, TypeError, "an image is a path, .*got a int"),
        ("a", {"video": 7}, TypeError, "a video is a path"),
        ("a", {"image": "nowhere/to/be.png"}, OSError, r"nowhere/to/be\.png"),
        (user(HELLO), {"image": FILE}, TypeError, "prompt is a Conversation, which brings its media itself"),
        ([{"role": "user"}], None, ValueError, r"prompt\[0\] has the keys \['role'\]; a message has role and content"),
        ([{"role": "user", "content": "a", "name": "b"}], None, ValueError, "a message has role and content"),
        ([{"role": "robot", "content": "a"}], None, ValueError, "role 'robot'; known are system, user, assistant"),
        ([{"role": "user", "content": 7}], None, TypeError, "content of type int"),
        ([{"role": "user", "content": [{"type": "smell"}]}], None, TypeError, r"content\[0\] is no part"),
        ([{"role": "user", "content": [{"type": "image"}]}], None, InvalidRequestError, "media has no more of them"),
        ([{"role": "user", "content": "a"}], {"image": FILE}, InvalidRequestError, "media has 1 images and 0 videos"),
    ],
)
def test_what_is_no_prompt_is_refused(prompts: Any, media: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        as_batch(prompts, media)
