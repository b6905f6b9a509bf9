"""What stands for a picture or a clip becomes the right source; pixels and embeddings become tensors, bit by bit."""

from __future__ import annotations

import io
import json
import struct
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

import fanlight
from fanlight import EncodedImage, InvalidRequest, Upload, user
from fanlight.media_sources import build_images, build_videos
from fanlight.tensors import build_tensor, little_endian, safetensors_file
from fanlight.v1 import media_pb2

DIGEST = "sha256:" + "0" * 64


def test_each_source_of_an_image_goes_where_the_contract_has_it(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"file")
    pixels = np.zeros((4, 6), np.float32)
    sources: dict[str, Any] = {
        "data": [file, str(file), b"file", bytearray(b"file"), memoryview(b"file")],
        "url": ["http://host/a.png", "https://host/a.png", "HTTPS://host/a.png"],
        "digest": [Upload(DIGEST), DIGEST],
        "embeddings_id": [EncodedImage(DIGEST)],
        "patches": [fanlight.patches(pixels, (2, 2))],
        "tiles": [fanlight.tiles(pixels)],
        "embeddings": [fanlight.embeddings(pixels, "sha256:model")],
    }
    for field, each in sources.items():
        assert [image.WhichOneof("source") for image in build_images(each)] == [field] * len(each)
        assert [image.WhichOneof("source") for image in build_images(each[0])] == [field]
    assert {image.data for image in build_images(sources["data"])} == {b"file"}


def test_each_source_of_a_clip_goes_where_the_contract_has_it() -> None:
    pixels = np.zeros((8, 6), np.float32)
    sources: dict[str, Any] = {
        "data": b"clip",
        "url": "https://host/a.mp4",
        "digest": Upload(DIGEST),
        "embeddings_id": EncodedImage(DIGEST),
        "frames": fanlight.frames([b"1", "https://host/2.png", Upload(DIGEST)], fps=2),
        "patches": fanlight.patches(pixels, (2, 2, 2)),
        "embeddings": fanlight.embeddings(pixels, "sha256:model", grid=(2, 2, 2)),
    }
    for field, source in sources.items():
        assert [video.WhichOneof("source") for video in build_videos(source)] == [field]
    frames = sources["frames"]
    assert [frame.WhichOneof("source") for frame in frames.frames] == ["data", "url", "digest"]
    assert frames.fps == 2
    with pytest.raises(TypeError, match=r"what fanlight.video, frames, patches or embeddings make, not a Tiles"):
        build_videos(fanlight.tiles(pixels))  # pyright: ignore[reportArgumentType]


def test_a_digest_as_a_string_names_an_upload_wherever_a_file_is_expected() -> None:
    digest = "sha256:" + "ab" * 32
    assert build_images(digest.upper())[0].digest == digest
    assert build_videos(digest)[0].digest == digest
    assert fanlight.image(digest, max_tokens=64).digest == digest
    assert fanlight.frames([digest]).frames[0].digest == digest
    with pytest.raises(FileNotFoundError):  # one digit short: as any other name
        build_images(digest[:-1])


@pytest.mark.parametrize("url", ["ftp://host/a.png", "file:///a.png", "data:image/png;base64,AAAA", "S3://bucket/a"])
def test_a_url_that_no_server_fetches_is_refused_and_not_taken_for_a_path(url: str) -> None:
    for make, field in (
        (build_images, "image.url"),
        (build_videos, "video.url"),
        (fanlight.image, "image.url"),
        (fanlight.video, "video.url"),
        (lambda source: fanlight.frames([source]), "frame.url"),
    ):
        with pytest.raises(InvalidRequest, match="only http:// and https:// URLs; or give a path or bytes") as refused:
            make(url)
        assert (refused.value.field, url in refused.value.message) == (field, True)


def test_the_error_for_a_long_data_url_is_short() -> None:
    with pytest.raises(InvalidRequest) as refused:
        build_images("data:image/png;base64," + "A" * 100_000)
    assert len(refused.value.message) < 200


def test_a_path_that_merely_looks_like_a_url_is_still_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a:b.png", "http:a.png", "sha256:a.png"):
        Path(name).write_bytes(b"file")
        assert build_images(name)[0].data == b"file"


@pytest.mark.parametrize("single", ["clip.mp4", b"clip", bytearray(b"clip"), Path("clip.mp4"), Upload(DIGEST)])
def test_frames_of_one_file_are_refused_with_where_that_goes(single: Any) -> None:
    with pytest.raises(TypeError, match="frames takes several pictures; a clip file goes to video="):
        fanlight.frames(single)


def test_frames_of_one_image_object_are_refused_too() -> None:
    with pytest.raises(TypeError, match=r"got a Image: frames takes several pictures.*is \[picture\]"):
        fanlight.frames(PillowImage.new("RGB", (2, 2)))  # pyright: ignore[reportArgumentType]


def test_options_of_an_image_are_set_and_others_are_not() -> None:
    image = fanlight.image(b"1", min_pixels=10, max_pixels=1000, max_tokens=64, detail="low")
    assert (image.min_pixels, image.max_pixels, image.max_tokens) == (10, 1000, 64)
    assert image.detail == media_pb2.DETAIL_LOW
    plain = fanlight.image(b"1")
    assert [field.name for field, _ in plain.ListFields()] == ["data"]
    again = fanlight.image(image, max_tokens=32)
    assert (again.max_tokens, image.max_tokens, again.min_pixels) == (32, 64, 10)


def test_options_of_a_clip_are_set() -> None:
    video = fanlight.video(b"1", fps=0.5, start=1, end=2.5, max_tokens=64, detail="high")
    assert (video.fps, video.start, video.end, video.max_tokens) == (0.5, 1, 2.5, 64)
    assert video.detail == media_pb2.DETAIL_HIGH
    assert not video.HasField("num_frames")
    assert fanlight.video(fanlight.frames([b"1"]), num_frames=1).frames.frames[0].data == b"1"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: fanlight.image(b"1", detail="max"), "image.detail"),  # pyright: ignore[reportArgumentType]
        (lambda: fanlight.image(b"1", min_pixels=-1), "image.min_pixels"),
        (lambda: fanlight.video(b"1", fps="fast"), "video.fps"),  # pyright: ignore[reportArgumentType]
        (lambda: fanlight.patches(np.zeros((1, 1), np.float32), (1, 0)), "grid"),
        (lambda: fanlight.patches(np.zeros((1, 1), np.float32), (1, 1), "column_major"), "patches.layout"),
        (lambda: fanlight.tiles(np.zeros((1, 3, 4, 4), np.float64)), "tensor.dtype"),
        (lambda: fanlight.tiles(np.zeros((1, 3, 4, 4), ">f4")), "tensor.dtype"),
        (lambda: fanlight.tiles(torch.zeros((1, 3, 4, 4), dtype=torch.int32)), "tensor.dtype"),
    ],
)
def test_a_wrong_option_is_refused_by_field(make: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make()
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: fanlight.image(b"1", max_tokens=-3), "image.max_tokens: got -3; takes whole numbers, 1 and above"),
        (lambda: fanlight.video(b"1", num_frames=-1), "video.num_frames: got -1; takes whole numbers, 1 and above"),
        (lambda: fanlight.frames([b"1"], fps="2"), "frames.fps: got '2'; takes a number"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_refused_option_is_told_with_what_it_takes(make: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make()
    assert refused.value.message == told


def test_parts_alternate_and_clips_are_told_from_images() -> None:
    message = user(
        "One",
        fanlight.image("https://host/a.png", max_tokens=64),
        "two",
        fanlight.video(b"clip"),
        fanlight.frames([b"1"]),
        Upload(DIGEST, content_type="video/mp4"),
        Upload(DIGEST, content_type="image/png"),
        Path(__file__),
    )
    kinds = ["text", "image", "text", "video", "video", "video", "image", "image"]
    assert [part.WhichOneof("kind") for part in message.parts] == kinds
    assert message.parts[1].image.max_tokens == 64


def test_a_plain_string_in_a_message_is_text_even_if_it_looks_like_a_url() -> None:
    assert user("https://host/a.png").parts[0].text == "https://host/a.png"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I;16"])
def test_a_pillow_image_of_any_mode_becomes_a_png_of_the_same_picture(mode: str) -> None:
    picture = PillowImage.new("RGBA" if mode == "PA" else "RGB", (3, 2), (200, 100, 50)).convert(mode)
    (image,) = build_images(picture)
    with PillowImage.open(io.BytesIO(image.data)) as decoded:
        assert decoded.format == "PNG"
        assert list(decoded.convert("RGBA").get_flattened_data()) == list(picture.convert("RGBA").get_flattened_data())


def test_an_array_where_an_image_is_expected_says_what_makes_one() -> None:
    with pytest.raises(TypeError, match=r"fanlight.patches or fanlight.tiles; for an ordinary picture: PIL.Image"):
        build_images([np.zeros((2, 2))])  # pyright: ignore[reportArgumentType]


def test_a_picture_of_bytes_where_preprocessed_pixels_are_expected_says_where_it_goes() -> None:
    with pytest.raises(InvalidRequest, match=r"got uint8; .*; for an ordinary picture: PIL.Image.fromarray\(array\)"):
        fanlight.tiles(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(InvalidRequest, match=r"bfloat16 are taken$"):
        fanlight.tiles(np.zeros((1, 3, 4, 4), np.float64))


class OnlyInterface:
    """An array that numpy can read and Python's buffers cannot."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers
        self.__array_interface__ = numbers.__array_interface__


NUMBERS = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


@pytest.mark.parametrize(
    "numbers",
    [
        NUMBERS,
        np.asfortranarray(NUMBERS),
        np.repeat(NUMBERS, 2, axis=1)[:, ::2],
        memoryview(NUMBERS),  # pyright: ignore[reportArgumentType] - buffers of Python 3.11 cannot be told by type
        memoryview(array("f", NUMBERS.ravel().tolist())).cast("B").cast("f", (3, 4)),
        OnlyInterface(NUMBERS),
        torch.from_numpy(NUMBERS.copy()),
        torch.from_numpy(NUMBERS.copy()).requires_grad_(),
        torch.from_numpy(NUMBERS.T.copy()).T,
    ],
)
def test_an_array_of_any_library_and_layout_is_sent_row_by_row(numbers: Any) -> None:
    tensor = build_tensor(numbers)
    assert tensor.dtype == media_pb2.DATA_TYPE_FLOAT32
    assert list(tensor.shape) == [3, 4]
    assert tensor.data == NUMBERS.tobytes()


def test_half_precision_numbers_stay_as_they_are() -> None:
    half = build_tensor(NUMBERS.astype(np.float16))
    assert (half.dtype, half.data) == (media_pb2.DATA_TYPE_FLOAT16, NUMBERS.astype(np.float16).tobytes())
    bfloat16 = build_tensor(torch.from_numpy(NUMBERS.copy()).to(torch.bfloat16).T)
    assert bfloat16.dtype == media_pb2.DATA_TYPE_BFLOAT16
    assert list(bfloat16.shape) == [4, 3]
    restored = torch.frombuffer(bytearray(bfloat16.data), dtype=torch.bfloat16).reshape(4, 3)
    assert torch.equal(restored, torch.from_numpy(NUMBERS.copy()).to(torch.bfloat16).T)


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(TypeError, match="arrays or torch tensors, not a list"):
        fanlight.tiles([1.0, 2.0])


def test_numbers_of_a_big_endian_machine_are_turned_round() -> None:
    assert little_endian(struct.pack(">2f", 1, 2), 4, "big") == struct.pack("<2f", 1, 2)
    assert little_endian(struct.pack(">2e", 1, 2), 2, "big") == struct.pack("<2e", 1, 2)


def test_patches_and_embeddings_say_what_they_are() -> None:
    patches = fanlight.patches(NUMBERS, (1, 3, 1), "row_major")
    assert (patches.grid.t, patches.grid.h, patches.grid.w) == (1, 3, 1)
    assert patches.layout == media_pb2.PATCH_LAYOUT_ROW_MAJOR
    assert fanlight.tiles(NUMBERS, original_size=(640, 480)).original_size == media_pb2.Size(width=640, height=480)
    layers = fanlight.embeddings(
        {"embeddings": NUMBERS, "layer_5": NUMBERS}, "sha256:model", grid=fanlight.Grid(1, 3, 1)
    )
    assert [each.name for each in layers.tensors] == ["embeddings", "layer_5"]
    assert (layers.model_fingerprint, layers.grid.h) == ("sha256:model", 3)


def test_a_safetensors_file_is_read_back_by_the_library_itself() -> None:
    from safetensors.torch import load

    numbers = torch.from_numpy(NUMBERS.copy()).to(torch.bfloat16)
    file = safetensors_file(build_tensor(numbers), "tensor")
    assert torch.equal(load(file)["tensor"], numbers)
    length = struct.unpack("<Q", file[:8])[0]
    assert length % 8 == 0
    assert json.loads(file[8 : 8 + length])["tensor"]["data_offsets"] == [0, 24]
