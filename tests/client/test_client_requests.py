"""What callers pass becomes the right message; what is wrong is refused with the field's path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanlight import InvalidRequest, assistant, raw_prompt, system, tokens_prompt, user
from fanlight.fields import unfit_value
from fanlight.requests import build_config, build_generation, prepare_request
from fanlight.v1 import generation_pb2, media_pb2


class DrawnImage:
    """Writes itself like a PIL image."""

    def save(self, fp: Any, /, format: str | None = None) -> None:
        fp.write(f"drawn as {format}".encode())


def parts(message: generation_pb2.Message) -> list[str | bytes]:
    return [part.text if part.HasField("text") else part.image.data for part in message.parts]


def test_images_of_any_kind_come_before_the_text(tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"file")
    generation = build_generation("What?", [path, str(path), b"bytes", DrawnImage()], (), "Be brief.", "tiny", {})
    first, second = generation.conversation.messages
    assert (first.role, parts(first)) == (generation_pb2.ROLE_SYSTEM, ["Be brief."])
    assert (second.role, parts(second)) == (
        generation_pb2.ROLE_USER,
        [b"file", b"file", b"bytes", b"drawn as PNG", "What?"],
    )
    assert generation.model == "tiny"


def test_one_image_needs_no_list() -> None:
    generation = build_generation("What?", b"bytes", (), None, None, {})
    assert parts(generation.conversation.messages[0]) == [b"bytes", "What?"]
    assert not generation.HasField("model")


def test_a_missing_file_says_so_as_files_do() -> None:
    with pytest.raises(FileNotFoundError):
        build_generation("What?", ["no such file.jpg"], (), None, None, {})


def test_something_that_is_no_image_is_refused() -> None:
    with pytest.raises(TypeError, match="path, bytes or an object with a save method, not a int"):
        build_generation("What?", [3], (), None, None, {})  # pyright: ignore[reportArgumentType]


def test_messages_alternate_text_and_images() -> None:
    conversation = [system("Be brief."), user("One", b"1", "two", b"2"), assistant("Seen."), user("Which?")]
    generation = build_generation(conversation, (), (), None, None, {})
    assert [parts(each) for each in generation.conversation.messages][1] == ["One", b"1", "two", b"2"]
    assert [each.role for each in generation.conversation.messages] == [1, 2, 3, 2]


def test_media_beside_messages_are_refused() -> None:
    with pytest.raises(TypeError, match="images="):
        build_generation([user("What?")], [b"1"], (), None, None, {})
    with pytest.raises(TypeError, match="video="):
        build_generation([user("What?")], (), b"1", None, None, {})
    with pytest.raises(TypeError, match="system="):
        build_generation(raw_prompt("What?"), (), (), "Be brief.", None, {})


def test_something_that_is_no_message_is_refused_by_its_place() -> None:
    with pytest.raises(TypeError, match=r"prompt\[1\] is a str"):
        build_generation([user("What?"), "again"], (), (), None, None, {})  # pyright: ignore[reportArgumentType]


def test_raw_and_tokenised_prompts() -> None:
    raw = build_generation(raw_prompt("Q: ", b"1", parse_special_tokens=True), (), (), None, None, {}).raw
    assert raw.parse_special_tokens
    assert [part.WhichOneof("kind") for part in raw.parts] == ["text", "image"]
    tokens = build_generation(tokens_prompt([1, 5, 2], images=b"1", video=b"2"), (), (), None, None, {}).tokens
    assert list(tokens.ids) == [1, 5, 2]
    assert (tokens.images[0].data, tokens.videos[0].data) == (b"1", b"2")
    with pytest.raises(InvalidRequest) as refused:
        tokens_prompt([-1])
    assert refused.value.field == "generation.tokens.ids"
    with pytest.raises(TypeError, match="an image is"):
        tokens_prompt([1], images=[3])  # pyright: ignore[reportArgumentType]


def test_options_go_where_the_contract_has_them() -> None:
    config = build_config({"temperature": 0, "top_k": None, "stop": "\n", "stop_token_ids": [2], "logprobs": True})
    assert config is not None
    assert config.sampling.HasField("temperature")
    assert config.sampling.temperature == 0
    assert not config.sampling.HasField("top_k")
    assert list(config.sampling.stop) == ["\n"]
    assert list(config.sampling.stop_token_ids) == [2]
    assert config.output.logprobs
    assert not config.output.HasField("text")


def test_penalties_are_sent_where_they_are_set() -> None:
    config = build_config({"repetition_penalty": 1.25, "presence_penalty": None, "frequency_penalty": 0})
    assert config is not None
    assert config.sampling.repetition_penalty == 1.25
    assert not config.sampling.HasField("presence_penalty")
    assert config.sampling.HasField("frequency_penalty")


def test_no_option_is_no_config() -> None:
    assert build_config({}) is None
    assert build_config({"seed": None}) is None


def test_an_option_that_is_set_to_zero_is_sent() -> None:
    config = build_config({"top_k": 0})
    assert config is not None
    assert config.sampling.HasField("top_k")


def test_an_unknown_option_is_refused_with_the_likely_one() -> None:
    with pytest.raises(TypeError, match="unknown option 'temprature'; did you mean 'temperature'"):
        build_config({"temprature": 1.0})
    with pytest.raises(TypeError, match=r"known options: .*max_new_tokens"):
        build_config({"zzz": 1})
    with pytest.raises(TypeError, match="'request_id' does not go with this call"):
        build_config({"request_id": "mine"})


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("temperature", "hot", "generation.config.sampling.temperature"),
        ("temperature", 10**400, "generation.config.sampling.temperature"),
        ("repetition_penalty", "much", "generation.config.sampling.repetition_penalty"),
        ("max_new_tokens", -1, "generation.config.sampling.max_new_tokens"),
        ("stop", [3], "generation.config.sampling.stop"),
        ("stop", "\ud800", "generation.config.sampling.stop"),
        ("stop_token_ids", [2**40], "generation.config.sampling.stop_token_ids"),
        ("stop_token_ids", 7.5, "generation.config.sampling.stop_token_ids"),
        ("text", "yes", "generation.config.output.text"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_field(name: str, value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        build_config({name: value})
    assert refused.value.field == field
    assert f"got {repr(value).strip('[]')}; takes " in refused.value.message


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max_new_tokens", -3, "got -3; takes whole numbers, 1 and above"),
        ("max_new_tokens", 1.5, "got 1.5; takes whole numbers, 1 and above"),
        ("min_new_tokens", -3, "got -3; takes whole numbers, 0 and above"),
        ("top_k", 2**31, "got 2147483648; takes whole numbers, 0 to 2147483647"),
        ("stop_token_ids", [5, -1], "got -1; takes whole numbers, 0 and above"),
        ("temperature", "hot", "got 'hot'; takes a number"),
        ("text", "yes", "got 'yes'; takes True or False"),
    ],
)
def test_a_refused_value_is_told_with_what_the_field_takes(name: str, value: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        build_config({name: value})
    assert refused.value.violations[0].description == told


def test_every_field_that_callers_set_can_say_what_it_takes() -> None:
    kinds = (generation_pb2.Sampling, generation_pb2.OutputOptions, media_pb2.Image, media_pb2.Video, media_pb2.Frames)
    for kind in kinds:
        for field in kind.DESCRIPTOR.fields:
            if field.message_type is None and field.enum_type is None and field.default_value != b"":
                assert "takes" in unfit_value(kind(), field.name, None, field.name).message


def test_every_request_gets_an_id_of_its_own() -> None:
    first, second = (prepare_request("What?", {}, None, None) for _ in range(2))
    assert first.request_id
    assert first.request_id != second.request_id
    named = prepare_request("What?", {"request_id": "mine", "timeout": 0.0}, "tiny", 5.0)
    assert (named.for_stream().request_id, named.timeout, named.generation.model) == ("mine", 0.0, "tiny")
