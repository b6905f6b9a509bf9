"""Whatever an offline caller writes becomes the prompt that it means, or an error that says where and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fanlight_engine.errors import InvalidRequestError, RequestError, UnsupportedRequestError
from fanlight_engine.offline import prompts as offline
from fanlight_engine.offline.naming import WrittenPrompt
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


def as_batch(prompts: Any, media: Any) -> tuple[list[Any], bool]:
    """The prompts as the engine gets them; raises the first error that stands in the place of one."""
    batch, is_one = offline.as_batch(prompts, media)
    for one in batch:
        if isinstance(one, RequestError):
            raise one
    return [one.prompt for one in batch if isinstance(one, WrittenPrompt)], is_one


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
        ("a", {"image": 7}, InvalidRequestError, r"^media\.image: an image is a path, .*got a int"),
        ("a", {"video": [b"c", 7]}, InvalidRequestError, r"^media\.video\[1\]: a video is a path"),
        ("a", {"image": "to/be.png"}, InvalidRequestError, r"^media\.image: the file 'to/be\.png' cannot be read: No"),
        ("a", {"image": "a\0b"}, InvalidRequestError, r"^media\.image: the file .* cannot be read: embedded null"),
        (
            ["a", "b"],
            [None, {"image": "."}],
            InvalidRequestError,
            r"^media\[1\]\.image: the file '\.' cannot be read: Is",
        ),
        (
            [{"role": "user", "content": [{"type": "image", "image": "to/be.png"}]}],
            None,
            InvalidRequestError,
            r"^prompt\[0\]\.content\[0\]\.image: the file",
        ),
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


def test_the_prompts_beside_one_whose_media_cannot_be_read_are_read() -> None:
    (first, second, third), _ = offline.as_batch(
        ["a", "b", [{"role": "user", "content": [{"type": "video"}]}]], [{"image": "to/be.png"}, {"image": FILE}, None]
    )
    assert isinstance(first, InvalidRequestError)
    assert isinstance(second, WrittenPrompt)
    assert isinstance(third, InvalidRequestError)
    assert third.violations[0].field == "prompts[2][0].content[0]"


def test_an_image_object_that_is_no_picture_file_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"^media\.image: the image object cannot be written as PNG: .*HSV"):
        as_batch("a", {"image": Image.new("HSV", (2, 2))})


PICTURE_AND_CLIP = {"image": [FILE, b"2"], "video": b"c"}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": ["Is", {"type": "image"}, {"type": "image", "image": FILE}, {"type": "video"}]},
    Message(Role.USER, (HELLO,)),
]


@pytest.mark.parametrize(
    ("prompt", "media", "path", "named"),
    [
        ("a", PICTURE_AND_CLIP, "conversation.messages[0].parts[1].image", "media[0].image[1]"),
        ("a", PICTURE_AND_CLIP, "conversation.messages[0].parts[2].video.fps", "media[0].video.fps"),
        ("a", PICTURE_AND_CLIP, "conversation.messages[0].parts[3]", "prompts[0]"),
        ("a", None, "conversation", "prompts[0]"),
        ([1, 2], PICTURE_AND_CLIP, "tokens.ids[1]", "prompts[0][1]"),
        ([1, 2], PICTURE_AND_CLIP, "tokens.images[0]", "media[0].image[0]"),
        ([1, 2], PICTURE_AND_CLIP, "tokens.videos[0]", "media[0].video"),
        (MESSAGES, {"image": FILE, "video": b"c"}, "conversation.messages[0].parts[0]", "prompts[0][0].content"),
        (MESSAGES, {"image": FILE, "video": b"c"}, "conversation.messages[1].parts[1].image", "media[0].image"),
        (
            MESSAGES,
            {"image": FILE, "video": b"c"},
            "conversation.messages[1].parts[2].image",
            "prompts[0][1].content[2]",
        ),
        (MESSAGES, {"image": FILE, "video": b"c"}, "conversation.messages[2].parts[0]", "prompts[0][2].parts[0]"),
        ("a", None, "config.sampling.top_p", "prompts[0]: config.sampling.top_p"),
        (RawPrompt((HELLO,)), None, "raw.parts[0]", "prompts[0]: raw.parts[0]"),
    ],
)
def test_an_error_names_what_was_written(prompt: Any, media: Any, path: str, named: str) -> None:
    ((written,), _) = offline.as_batch([prompt], [media])
    assert isinstance(written, WrittenPrompt)
    error = written.in_callers_terms(InvalidRequestError(path, "it is wrong"))
    assert str(error) == f"{named}: it is wrong"
    assert error.violations[0].field == named


def test_an_error_of_the_only_prompt_need_not_tell_which() -> None:
    ((written,), _) = offline.as_batch("a", {"image": FILE})
    assert isinstance(written, WrittenPrompt)
    for path, named in (
        ("config.sampling.top_p", "config.sampling.top_p"),
        ("conversation.messages[0].parts[0].image", "media.image"),
    ):
        assert written.in_callers_terms(InvalidRequestError(path, "")).violations[0].field == named
