"""A clip can come as pictures, or, where the operator allows it, as a list of files below one directory."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import ClipFacts, MediaError
from fanlight_engine.inputs.media.video import frames as frames_module
from fanlight_engine.inputs.media.video.frames import clip_of_frames
from fanlight_engine.inputs.media.video.manifest import (
    MANIFEST_MAGICS,
    clip_of_manifest,
    is_manifest,
    manifest_digest,
)
from fanlight_engine.request import FrameOptions, Frames
from tests.engine import clips

CONFIG = EngineConfig()


def encoded(index: int, size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(clips.picture(index, *size)).save(buffer, "PNG", **options)
    return buffer.getvalue()


def all_frames(facts: ClipFacts) -> range:
    return range(facts.frame_count)


def test_pictures_are_frames_with_the_times_of_their_rate():
    source = Frames(tuple(encoded(index) for index in range(5)), fps=2.0)
    got = clip_of_frames(source, lambda _: [0, 3, 4], CONFIG)
    assert got.indices == (0, 3, 4)
    assert got.times == (0.0, 1.5, 2.0)
    assert got.facts.fps == 2.0
    for index, frame in zip(got.indices, got.frames, strict=True):
        np.testing.assert_array_equal(frame, clips.picture(index))


def test_without_a_rate_nobody_knows_the_times():
    got = clip_of_frames(Frames((encoded(0), encoded(1))), all_frames, CONFIG)
    assert not got.times_are_known
    assert got.times == ()
    assert got.facts.frame_count == 2


def test_only_chosen_pictures_are_decoded():
    source = Frames((encoded(0), b"broken", encoded(2)), fps=1.0)
    assert len(clip_of_frames(source, lambda _: [0, 2], CONFIG).frames) == 2
    with pytest.raises(MediaError, match="it is no image") as caught:
        clip_of_frames(source, all_frames, CONFIG)
    assert caught.value.reason is Reason.IMAGE_UNREADABLE


def test_frames_of_another_size_are_scaled_to_the_first():
    got = clip_of_frames(Frames((encoded(0), encoded(1, (128, 96)))), all_frames, CONFIG)
    assert got.size == (64, 48)
    expected = Image.fromarray(clips.picture(1, 128, 96)).resize((64, 48), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(got.frames[1], np.asarray(expected))


def test_frames_are_seen_as_pictures_are():
    turned = Image.Exif()
    turned[0x0112] = 6
    got = clip_of_frames(Frames((encoded(0, exif=turned),)), all_frames, CONFIG)
    np.testing.assert_array_equal(got.frames[0], np.rot90(clips.picture(0), -1))


def test_no_frames_are_no_clip():
    with pytest.raises(MediaError, match="it has no frames"):
        clip_of_frames(Frames(()), all_frames, CONFIG)


def test_frames_that_would_fill_memory_are_refused_at_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames_module, "MOST_BYTES_OF_FRAMES", 20_000)
    source = Frames((encoded(0), b"never read", b"never read"))
    with pytest.raises(MediaError, match="3 frames of 64 x 48 pixels take over"):
        clip_of_frames(source, all_frames, CONFIG)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of frames, beside a file and a directory that are nobody's business."""
    folder = tmp_path / "frames"
    (folder / "clip").mkdir(parents=True)
    for index in range(4):
        (folder / "clip" / f"{index}.png").write_bytes(encoded(index))
    (tmp_path / "secret.png").write_bytes(encoded(9))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.png").write_bytes(encoded(9))
    return folder


def manifest(*paths: str, magic: bytes = MANIFEST_MAGICS[0]) -> bytes:
    return magic + json.dumps({"frame_paths": paths}).encode()


def allowing(root: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(frame_manifest_root=str(root), **settings)


FOUR = [f"clip/{index}.png" for index in range(4)]


@pytest.mark.parametrize("magic", MANIFEST_MAGICS)
def test_a_manifest_is_the_clip_of_its_files(root: Path, magic: bytes):
    data = manifest(*FOUR, magic=magic)
    assert is_manifest(data, allowing(root))
    got = clip_of_manifest(data, FrameOptions(), allowing(root))
    assert got.indices == (0, 1, 2, 3)
    assert not got.times_are_known
    np.testing.assert_array_equal(np.stack(got.frames), np.stack([clips.picture(index) for index in range(4)]))


def test_manifests_are_off_by_default():
    with pytest.raises(MediaError, match="a list of frame files, which this server does not read") as caught:
        is_manifest(manifest(*FOUR), CONFIG)
    assert caught.value.reason is Reason.VIDEO_UNREADABLE


def test_a_clip_is_no_manifest(root: Path):
    assert not is_manifest(clips.clip(1), allowing(root))
    assert not is_manifest(json.dumps({"frame_paths": FOUR}).encode(), allowing(root))


def test_an_absolute_path_below_the_root_is_fine(root: Path):
    got = clip_of_manifest(manifest(str(root / "clip" / "2.png")), FrameOptions(), allowing(root))
    np.testing.assert_array_equal(got.frames[0], clips.picture(2))


def test_a_link_that_stays_below_the_root_is_fine(root: Path):
    (root / "newest").symlink_to(root / "clip")
    got = clip_of_manifest(manifest("newest/1.png"), FrameOptions(), allowing(root))
    np.testing.assert_array_equal(got.frames[0], clips.picture(1))


def outside(root: Path, way: str) -> str:
    """A path that leads to no frame below the root."""
    match way:
        case "parent":
            return "../secret.png"
        case "parent and back":
            return "clip/../../secret.png"
        case "absolute":
            return str(root.parent / "secret.png")
        case "sibling with the root's name in front":
            (root.parent / "frames-of-others").mkdir()
            (root.parent / "frames-of-others" / "secret.png").write_bytes(encoded(9))
            return "../frames-of-others/secret.png"
        case "link to a file":
            (root / "link.png").symlink_to(root.parent / "secret.png")
            return "link.png"
        case "link to a directory":
            (root / "elsewhere").symlink_to(root.parent / "elsewhere")
            return "elsewhere/secret.png"
        case "circle of links":
            (root / "round.png").symlink_to(root / "round.png")
            return "round.png"
        case "named pipe":
            os.mkfifo(root / "pipe.png")
            return "pipe.png"
        case "directory":
            return "clip"
        case "the root itself":
            return "."
        case "missing":
            return "clip/99.png"
        case "file as directory":
            return "clip/0.png/1.png"
        case "home":
            return "~/secret.png"
        case "zero byte":
            return "clip/0.png\0.jpg"
        case "too long":
            return "a" * 5000
    raise AssertionError(way)


@pytest.mark.parametrize(
    "way",
    [
        *("parent", "parent and back", "absolute", "sibling with the root's name in front", "link to a file"),
        *("link to a directory", "circle of links", "named pipe", "directory", "the root itself", "missing"),
        *("file as directory", "home", "zero byte", "too long"),
    ],
)
def test_nothing_but_files_below_the_root_is_read_and_one_text_is_all_that_is_told(root: Path, way: str):
    with pytest.raises(MediaError) as caught:
        clip_of_manifest(manifest("clip/0.png", outside(root, way)), FrameOptions(), allowing(root))
    assert caught.value.description == "frame_paths[1] is no file below the server's directory of frames"
    assert caught.value.reason is Reason.VIDEO_UNREADABLE


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "is not JSON in UTF-8"),
        (b'{"frame_paths": ["\xff"]}', "is not JSON in UTF-8"),
        (b"[" * 100_000, "is not JSON in UTF-8"),
        (b"[]", "must be"),
        (b"{}", "must be"),
        (b'{"frame_paths": []}', "at least one path"),
        (b'{"frame_paths": "clip/0.png"}', "must be"),
        (b'{"frame_paths": ["clip/0.png", ""]}', "none of them empty"),
        (b'{"frame_paths": ["clip/0.png", 7]}', "must be"),
    ],
)
def test_a_manifest_of_another_form_is_refused(root: Path, body: bytes, text: str):
    with pytest.raises(MediaError) as caught:
        clip_of_manifest(MANIFEST_MAGICS[0] + body, FrameOptions(), allowing(root))
    assert text in caught.value.description
    assert caught.value.reason is Reason.VIDEO_UNREADABLE


@pytest.mark.parametrize(
    ("sampling", "text"),
    [
        (FrameOptions(num_frames=3), "num_frames is 3, the manifest names 4 frames"),
        (FrameOptions(fps=1.0), "fps cannot be used"),
        (FrameOptions(start=0.5), "start cannot be used"),
        (FrameOptions(end=0.5), "end cannot be used"),
    ],
)
def test_frames_of_a_manifest_are_shown_as_they_are(root: Path, sampling: FrameOptions, text: str):
    assert len(clip_of_manifest(manifest(*FOUR), FrameOptions(num_frames=4), allowing(root)).frames) == 4
    with pytest.raises(MediaError) as caught:
        clip_of_manifest(manifest(*FOUR), sampling, allowing(root))
    assert text in caught.value.description
    assert caught.value.reason is Reason.VIDEO_OPTION_INVALID


def test_limits_hold_for_manifests(root: Path):
    few = allowing(root, max_video_frames=3, default_video_frames=3)
    with pytest.raises(MediaError, match="the manifest names 4 frames, at most 3 are shown"):
        clip_of_manifest(manifest(*FOUR), FrameOptions(), few)
    size = (root / "clip" / "0.png").stat().st_size
    with pytest.raises(MediaError, match=rf"frame_paths\[0\] has {size} bytes, at most {size - 1} are allowed"):
        clip_of_manifest(manifest(*FOUR), FrameOptions(), allowing(root, max_image_bytes=size - 1))
    with pytest.raises(MediaError, match=r"frame_paths\[0\]: it has 64 x 48 pixels"):
        clip_of_manifest(manifest(*FOUR), FrameOptions(), allowing(root, max_image_pixels=3071))


def test_the_digest_of_a_manifest_changes_with_its_files(root: Path):
    data = manifest(*FOUR)
    before = manifest_digest(data, allowing(root))
    assert manifest_digest(data, allowing(root)) == before
    (root / "clip" / "3.png").write_bytes(encoded(7))
    assert manifest_digest(data, allowing(root)) != before
