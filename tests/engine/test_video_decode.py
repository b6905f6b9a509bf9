"""Frames are those of the file, as every PyAV reader gets them, upright, with the times at which they are shown."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from transformers.video_utils import load_video

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.abandonment import Abandonment
from fanlight_engine.inputs.media.processing import ClipFacts, MediaError
from fanlight_engine.inputs.media.video import decode, reader
from fanlight_engine.inputs.media.video.container import ClipMeasures, measure, open_clip, times_from_first
from fanlight_engine.inputs.media.video.decode import decode_clip, inspect_clip
from fanlight_engine.inputs.media.video.formats import sniff_clip
from fanlight_engine.inputs.media.video.protocol import ClipLimits, ClipRefused
from fanlight_engine.inputs.media.video.reader import ClipReader
from tests.engine import clips

CONFIG = EngineConfig()
LIMITS = ClipLimits(frames=10_000, seconds=3600, pixels=16_000_000, side=16_384, decode_seconds=60)


def all_frames(facts: ClipFacts) -> range:
    return range(facts.frame_count)


@pytest.mark.parametrize(
    ("container", "codec", "pixel_format", "size", "options"),
    [
        ("mp4", "libx264", "yuv420p", (64, 48), {}),
        ("mp4", "libx264", "yuv420p", (322, 242), {"bf": "3", "g": "8"}),
        ("mp4", "libx264", "yuv420p10le", (98, 74), {}),
        ("mp4", "libx264", "yuv444p", (63, 47), {}),
        ("mp4", "libx264", "yuv420p", (64, 48), {"flags": "+ildct+ilme"}),
        ("mp4", "mpeg4", "yuv420p", (64, 48), {}),
        ("mp4", "libsvtav1", "yuv420p", (66, 64), {}),
        ("webm", "libvpx-vp9", "yuv420p", (63, 47), {}),
        ("webm", "libvpx", "yuv420p", (64, 48), {}),
        ("avi", "mpeg4", "yuv420p", (64, 48), {}),
    ],
)
def test_frames_and_rate_are_those_of_transformers(
    container: str, codec: str, pixel_format: str, size: tuple[int, int], options: dict[str, str], tmp_path: Path
):
    data = clips.clip(20, size, 10, container, codec, pixel_format, options)
    path = tmp_path / "clip"
    path.write_bytes(data)
    video: Any = str(path)
    wanted = [0, 3, 7, 8, 19]
    expected, metadata = load_video(video, backend="pyav", sample_indices_fn=lambda metadata, **_: np.array(wanted))
    got = decode_clip(data, lambda _: wanted, CONFIG)
    np.testing.assert_array_equal(np.stack(got.frames), expected)
    assert got.facts.fps == metadata.fps
    assert got.indices == tuple(wanted)
    assert got.facts.frame_count == 20


def test_a_clip_is_known_by_its_packets_before_any_frame_is_decoded():
    facts = inspect_clip(clips.clip(12, (96, 64), 25), CONFIG)
    assert facts.size == (96, 64)
    assert facts.codec == "h264"
    assert facts.content_type == "video/mp4"
    assert facts.declared_frames == 12
    assert facts.frame_times == pytest.approx([index / 25 for index in range(12)])
    assert facts.fps == 25


@pytest.mark.parametrize("container", ["mp4", "webm"])
def test_frames_of_a_variable_rate_keep_their_own_times(container: str):
    times = [0, 0.1, 0.15, 0.9, 2.0]
    got = decode_clip(clips.clip_at(times, container=container), lambda _: [1, 3, 4], CONFIG)
    assert got.facts.frame_times == pytest.approx(times, abs=1e-3)
    assert got.times == pytest.approx([0.1, 0.9, 2.0], abs=1e-3)


@pytest.mark.parametrize("container", ["mp4", "webm", "avi"])
def test_one_frame_is_a_clip(container: str):
    got = decode_clip(clips.clip(1, container=container), all_frames, CONFIG)
    assert len(got.frames) == 1
    assert got.times == (0.0,)
    assert got.facts.fps > 0


def test_sound_beside_the_pictures_is_left_out():
    got = decode_clip(clips.clip_with_sound(6), all_frames, CONFIG)
    assert len(got.frames) == 6


def test_frames_can_be_written_to_and_are_rows_of_rgb():
    frame = decode_clip(clips.clip(2), all_frames, CONFIG).frames[0]
    assert frame.dtype == np.uint8
    assert frame.shape == (48, 64, 3)
    assert frame.flags.writeable
    assert frame.flags.c_contiguous
    assert np.abs(frame.astype(int) - clips.picture(0)).mean() < 12


@pytest.mark.parametrize(("degrees", "quarter_turns"), [(0, 0), (90, -1), (180, 2), (270, 1)])
def test_frames_are_turned_as_the_display_matrix_says(degrees: int, quarter_turns: int):
    lying = decode_clip(clips.clip(3), all_frames, CONFIG)
    upright = decode_clip(clips.turned_clip(degrees), all_frames, CONFIG)
    for before, after in zip(lying.frames, upright.frames, strict=True):
        np.testing.assert_array_equal(after, np.rot90(before, quarter_turns))
    assert upright.size == (lying.size if degrees in (0, 180) else lying.size[::-1])


@pytest.mark.parametrize(("matrix", "axis"), [((-1, 0, 0, 1), 1), ((1, 0, 0, -1), 0)])
def test_frames_are_mirrored_as_the_display_matrix_says(matrix: tuple[int, int, int, int], axis: int):
    plain = decode_clip(clips.clip(3), lambda _: [1], CONFIG)
    mirrored = decode_clip(clips.clip_with_matrix(matrix), lambda _: [1], CONFIG)
    np.testing.assert_array_equal(mirrored.frames[0], np.flip(plain.frames[0], axis))


def test_frames_of_another_size_are_scaled_to_the_first_chosen_one():
    data = clips.size_changes_midway((64, 48), (96, 64))
    assert {frame.shape for frame in decode_clip(data, all_frames, CONFIG).frames} == {(48, 64, 3)}
    assert {frame.shape for frame in decode_clip(data, lambda _: [3, 5], CONFIG).frames} == {(64, 96, 3)}


@pytest.mark.parametrize("declared", [1, 500])
def test_a_declared_length_is_not_believed(declared: int):
    got = decode_clip(clips.with_declared_seconds(clips.clip(12), declared), all_frames, CONFIG)
    assert len(got.frames) == 12
    assert got.facts.frame_times[-1] == pytest.approx(1.1)


def test_a_declared_number_of_frames_is_not_believed():
    data = clips.with_declared_frames(clips.clip(12), 11)
    assert inspect_clip(data, CONFIG).declared_frames == 12
    assert len(decode_clip(data, all_frames, CONFIG).frames) == 11


def test_frames_are_chosen_again_where_decoding_gives_fewer_than_the_packets_promised():
    data = clips.with_hidden_frames(12, hidden=3)
    asked: list[int] = []

    def choose(facts: ClipFacts) -> list[int]:
        asked.append(facts.frame_count)
        return [0, facts.frame_count - 1]

    got = decode_clip(data, choose, CONFIG)
    assert asked == [12, 9]
    assert got.indices == (0, 8)
    assert got.times == pytest.approx([0, 0.8])
    shown = decode_clip(
        clips.clip(12, container="webm", options={"g": "1", "keyint_min": "1"}), lambda _: [0, 8], CONFIG
    )
    np.testing.assert_array_equal(np.stack(got.frames), np.stack(shown.frames))


def test_a_file_whose_frames_are_all_hidden_is_refused():
    with pytest.raises(MediaError, match="cannot be decoded") as caught:
        decode_clip(clips.with_hidden_frames(3, hidden=3), all_frames, CONFIG)
    assert caught.value.reason is Reason.VIDEO_UNREADABLE


def test_clips_are_decoded_by_several_threads_at_once():
    files = [clips.clip(6, size) for size in ((64, 48), (96, 64), (48, 64))]
    alone = [decode_clip(data, all_frames, CONFIG) for data in files]
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(lambda data: decode_clip(data, all_frames, CONFIG), files))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(np.stack(one.frames), np.stack(other.frames))


@pytest.mark.parametrize(
    ("container", "content_type"),
    [("mp4", "video/mp4"), ("mov", "video/quicktime"), ("webm", "video/webm"), ("matroska", "video/x-matroska"),
     ("avi", "video/x-msvideo"), ("3gp", "video/3gpp")],
)  # fmt: skip
def test_containers_are_told_by_their_first_bytes(container: str, content_type: str):
    assert (
        sniff_clip(clips.clip(1, container=container, codec="mpeg4" if container != "webm" else None)) == content_type
    )


def test_a_file_can_start_as_old_quicktime_files_do():
    assert sniff_clip(b"\0\0\0\x08wide\0\0\0\0mdat") == "video/quicktime"


def opened(data: bytes, tmp_path: Path) -> io.FileIO:
    path = tmp_path / "clip"
    path.write_bytes(data)
    return io.FileIO(path, "rb")


def measured(file: io.FileIO) -> ClipMeasures:
    with open_clip(file, "mov", LIMITS) as (container, stream):
        return measure(container, stream, LIMITS)


def pixels(frames: Any) -> list[np.ndarray]:
    return [frame.to_ndarray(format="rgb24") for _, frame in frames]


def test_jumping_to_key_frames_gives_the_frames_that_counting_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = [0, 1, 34, 35, 61, 99, 119]
    with opened(clips.clip(120, options={"bf": "2", "g": "12", "sc_threshold": "0"}), tmp_path) as file:
        measures = measured(file)
        assert len(measures.key_frames) == 10
        counted = pixels(ClipReader(file, "mov", LIMITS, measures).frames(wanted))
        monkeypatch.setattr(reader, "FRAMES_WORTH_JUMPING", 0)
        monkeypatch.delattr(ClipReader, "_by_counting")
        jumped = pixels(ClipReader(file, "mov", LIMITS, measures).frames(wanted))
    np.testing.assert_array_equal(np.stack(counted), np.stack(jumped))


def test_a_jump_that_leads_astray_is_given_up_and_the_rest_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = [3, 20, 39]
    with opened(clips.clip(40, options={"g": "8"}), tmp_path) as file:
        measures = measured(file)
        counted = pixels(ClipReader(file, "mov", LIMITS, measures).frames(wanted))
        monkeypatch.setattr(reader, "FRAMES_WORTH_JUMPING", 0)
        wrong = (*measures.stamps[:10], *(stamp + 1 for stamp in measures.stamps[10:]))
        astray = pixels(ClipReader(file, "mov", LIMITS, replace(measures, stamps=wrong)).frames(wanted))
    np.testing.assert_array_equal(np.stack(counted), np.stack(astray))


def test_decoding_stops_when_its_time_is_over(tmp_path: Path):
    with opened(clips.clip(3), tmp_path) as file:
        late = ClipReader(file, "mov", replace(LIMITS, decode_seconds=-1), measured(file))
        with pytest.raises(ClipRefused, match="takes longer than") as caught:
            list(late.frames([0]))
    assert caught.value.reason is Reason.VIDEO_TOO_LARGE


@pytest.mark.parametrize(
    ("stamps", "times"),
    [
        ([0, 512, 256], (0.0, 0.25, 0.5)),
        ([-1024, 0, -512], (0.0, 0.5, 1.0)),
        ([7, 7, 519], (0.0, 0.0, 0.5)),
        ([2**62, 2**62 + 1024], (0.0, 1.0)),
        ([0, None, 512], (0.0, 0.1, 0.2)),
        ([None], (0.0,)),
        ([], ()),
    ],
)
def test_times_count_from_the_first_frame_whatever_the_stamps_are(stamps: list[int | None], times: tuple[float, ...]):
    assert times_from_first(stamps, 1 / 1024, 10.0) == pytest.approx(times)


def test_a_crash_while_decoding_is_a_refused_clip(monkeypatch: pytest.MonkeyPatch):
    started: list[subprocess.Popen[bytes]] = []
    start = decode._start
    monkeypatch.setattr(decode, "_start", lambda *arguments: started.append(start(*arguments)) or started[-1])

    def crash(facts: ClipFacts) -> range:
        os.kill(started[-1].pid, signal.SIGSEGV)
        started[-1].wait()
        return all_frames(facts)

    with pytest.raises(MediaError, match="damaged or cut short") as caught:
        decode_clip(clips.clip(3), crash, CONFIG)
    assert caught.value.reason is Reason.VIDEO_UNREADABLE


def test_a_process_that_does_not_start_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decode, "_PROCESS", "fanlight_engine.no_such_module")
    with pytest.raises(RuntimeError, match="did not start"):
        decode_clip(clips.clip(1), all_frames, CONFIG)


def test_no_process_outlives_its_clip(monkeypatch: pytest.MonkeyPatch):
    started: list[subprocess.Popen[bytes]] = []
    start = decode._start
    monkeypatch.setattr(decode, "_start", lambda *arguments: started.append(start(*arguments)) or started[-1])

    def fail(facts: ClipFacts) -> range:
        raise ZeroDivisionError

    inspect_clip(clips.clip(1), CONFIG)
    with pytest.raises(ZeroDivisionError):
        decode_clip(clips.clip(1), fail, CONFIG)
    assert [process.returncode for process in started] == [-signal.SIGKILL, -signal.SIGKILL]


def test_the_wheel_of_pyav_has_the_decoders_that_are_allowed():
    from fanlight_engine.inputs.media.video.container import DECODERS

    assert [name for name in DECODERS if not av.Codec(name, "r").is_decoder] == []


def test_a_decode_that_nobody_waits_for_ends_at_once():
    """Its process is gone before a frame of it was sent."""
    abandonment = Abandonment()

    def leave(facts: ClipFacts) -> range:
        abandonment.abandon()
        return range(facts.frame_count)

    with pytest.raises(MediaError):
        decode_clip(clips.clip(20, (64, 48), 10), leave, CONFIG, abandonment)
    with pytest.raises((MediaError, RuntimeError)):
        decode_clip(clips.clip(20, (64, 48), 10), lambda facts: range(facts.frame_count), CONFIG, abandonment)
