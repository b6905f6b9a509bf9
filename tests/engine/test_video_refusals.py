"""Broken, hostile and oversized clips are refused in words, quickly, and without filling memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import ClipFacts, MediaError
from fanlight_engine.inputs.media.video import frames as chosen_frames_module
from fanlight_engine.inputs.media.video.decode import decode_clip, inspect_clip
from fanlight_engine.inputs.media.video.formats import sniff_clip
from tests.engine import clips

CONFIG = EngineConfig()

# Runs in a process that is small itself: what a process is charged for its children includes its own size.
_REFUSE_ALL = """
import json, resource, sys, time
from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.video.decode import decode_clip
from tests.engine.clips import broken_clips

def spent():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

results = {}
files = broken_clips()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, data in files.items():
    started, spent_before = time.monotonic(), spent()
    try:
        decode_clip(data, lambda facts: range(facts.frame_count), EngineConfig())
        reason, text = "accepted", ""
    except MediaError as error:
        reason, text = str(error.reason), error.description
    results[name] = {
        "reason": reason,
        "text": text,
        "wall_seconds": time.monotonic() - started,
        "processor_seconds": spent() - spent_before,
        "peak_kilobytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        "grown_kilobytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
    }
json.dump(results, sys.stdout)
"""


@pytest.fixture(scope="module")
def refusals() -> dict[str, dict[str, Any]]:
    """What became of every broken clip, and what it cost."""
    environment = {"PYTHONPATH": ":".join(folder or "." for folder in sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _REFUSE_ALL], capture_output=True, env=environment, check=True, timeout=300
    )
    return json.loads(done.stdout)


def test_every_broken_clip_is_refused(refusals: dict[str, dict[str, Any]]):
    assert len(refusals) >= 30
    assert {name: found["reason"] for name, found in refusals.items() if found["reason"] not in _REASONS} == {}


def test_refusals_say_what_is_wrong_and_quote_neither_library_nor_address(refusals: dict[str, dict[str, Any]]):
    for name, found in refusals.items():
        text = found["text"]
        assert 20 < len(text) < 300, name
        assert not any(word in text for word in ("0x", "av.", "FFmpeg", "Errno", "Invalid data", "/")), (name, text)


def test_a_refusal_takes_less_than_two_seconds(refusals: dict[str, dict[str, Any]]):
    """Of processor time, which does not depend on who else uses the machine; waiting adds nothing to it."""
    assert {name: found for name, found in refusals.items() if found["processor_seconds"] > 2} == {}
    assert {name: found for name, found in refusals.items() if found["wall_seconds"] > 20} == {}


def test_a_refusal_takes_less_than_200_megabytes(refusals: dict[str, dict[str, Any]]):
    assert {name: found for name, found in refusals.items() if found["peak_kilobytes"] > 200_000} == {}
    assert {name: found for name, found in refusals.items() if found["grown_kilobytes"] > 20_000} == {}


_REASONS = (Reason.VIDEO_UNREADABLE, Reason.VIDEO_TOO_LARGE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sound only", "it has no stream of pictures"),
        ("cover art only", "it has no stream of pictures"),
        ("no frames", "it has no frames"),
        ("playlist", "it is an HLS playlist, which only names files"),
        ("concat list", "it is a list of files"),
        ("still picture", "it is a picture; send it as one"),
        ("cut in half, index first", "damaged or cut short"),
        ("pictures overwritten", "damaged or cut short"),
        ("random bytes", "it is no clip; send the bytes of one file of MP4"),
    ],
)
def test_a_refusal_names_what_was_found(refusals: dict[str, dict[str, Any]], name: str, text: str):
    assert text in refusals[name]["text"]


def refused(data: bytes, **settings: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        inspect_clip(data, EngineConfig(**settings))
    return caught.value


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_video_bytes": 1000}, "encoded bytes, at most 1000 are allowed"),
        ({"max_video_file_frames": 11}, "it has over 11 frames"),
        ({"max_video_seconds": 1}, "it lasts over 1 seconds"),
        ({"max_video_pixels": 3071}, "its frames have 64 x 48 pixels, 3071 pixels in all are allowed"),
        ({"max_image_side": 63}, "its frames have 64 x 48 pixels, a side may have 63"),
    ],
)
def test_a_clip_above_a_limit_is_refused_with_both_numbers(settings: dict[str, int], text: str):
    error = refused(clips.clip(12), **settings)
    assert text in error.description
    assert error.reason is Reason.VIDEO_TOO_LARGE


def test_a_clip_at_every_limit_passes():
    data = clips.clip(12)
    limits = EngineConfig(
        max_video_bytes=len(data),
        max_video_file_frames=12,
        max_video_seconds=2,
        max_video_pixels=3072,
        max_image_side=64,
    )
    assert len(decode_clip(data, lambda facts: range(facts.frame_count), limits).frames) == 12


def test_frames_that_grow_above_the_limit_midway_are_refused():
    data = clips.size_changes_midway((64, 48), (96, 64))
    limits = EngineConfig(max_video_pixels=5000)
    assert len(decode_clip(data, lambda _: [0, 1, 2], limits).frames) == 3
    with pytest.raises(MediaError, match="its frames have 96 x 64 pixels, 5000") as caught:
        decode_clip(data, lambda _: [0, 4], limits)
    assert caught.value.reason is Reason.VIDEO_TOO_LARGE


def test_a_gap_of_hours_between_two_frames_is_a_clip_of_hours():
    error = refused(clips.clip_at([0, 0.1, 5000]))
    assert "it lasts over 3600 seconds" in error.description


def test_chosen_frames_that_would_fill_memory_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chosen_frames_module, "MOST_BYTES_OF_FRAMES", 1 << 20)

    def choose(facts: ClipFacts) -> range:
        return range(facts.frame_count)

    data = clips.clip(12, (256, 192))
    assert len(decode_clip(data, lambda _: range(7), CONFIG).frames) == 7
    with pytest.raises(MediaError, match="12 frames of 256 x 192 pixels take over 1 MiB; ask for fewer") as caught:
        decode_clip(data, choose, CONFIG)
    assert caught.value.reason is Reason.VIDEO_TOO_LARGE


def test_codecs_that_are_not_allowed_are_refused_with_those_that_are():
    error = refused(clips.clip(2, container="matroska", codec="ffv1"))
    assert "only H.264, HEVC, AV1" in error.description


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"\x47" + bytes(187) + b"\x47", "an MPEG transport stream"),
        (b"\0\0\x01\xba" + bytes(20), "an MPEG program stream"),
        (b"FLV\x01" + bytes(20), "Flash video"),
        (b"OggS" + bytes(20), "Ogg"),
        (b"GIF89a" + bytes(20), "a GIF; send it as a picture"),
        (b"RIFF\0\0\0\0WAVE", "a RIFF file without a clip"),
        (b"\0\0\0\x18ftypheic", "a picture (AVIF or HEIC)"),
        (b"", "it is no clip"),
    ],
)
def test_other_files_are_called_by_their_name(head: bytes, text: str):
    with pytest.raises(MediaError) as caught:
        sniff_clip(head)
    assert text in caught.value.description


@pytest.mark.parametrize("container", ["mp4", "webm", "avi"])
def test_a_clip_with_some_wrong_bytes_is_shown_or_refused_and_nothing_else(container: str):
    random = np.random.default_rng(3)
    good = clips.clip(12, container=container)
    reasons, shown = [], []
    for _ in range(6):
        damaged = bytearray(good)
        for place in random.integers(0, len(good), 6):
            damaged[place] ^= int(random.integers(1, 256))
        try:
            shown.append(decode_clip(bytes(damaged), lambda facts: range(min(facts.frame_count, 12)), CONFIG))
        except MediaError as error:
            reasons.append(error.reason)
    assert len(reasons) + len(shown) == 6
    assert set(reasons) <= set(_REASONS)
    assert all(1 <= len(clip.frames) <= 12 for clip in shown)
