"""A clip that comes as a list of files on the server: off by default, and never outside one directory.

    magic line, then {"frame_paths": ["clip7/0001.jpg", ...]} in UTF-8

Paths are relative to `frame_manifest_root`, or absolute below it. What a path leads to after every symbolic link must
be a regular file below that directory; whether others exist is not told.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import NoReturn

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import Clip, MediaError
from fanlight_engine.inputs.media.video.frames import clip_of_pictures
from fanlight_engine.request import FrameOptions

MANIFEST_MAGICS = (b"FANLIGHT_VIDEO_FRAMES_V1\n", b"NEMO_RL_CACHED_VIDEO_FRAMES_V1\n")
"""First lines of a manifest: our own, and the one that trainers which cache frames already write."""

_MOST_BYTES = 1 << 20


def is_manifest(data: bytes, config: EngineConfig) -> bool:
    """Whether the bytes are a manifest. Raises MediaError where they are, and the server reads none."""
    if not data.startswith(MANIFEST_MAGICS):
        return False
    if not config.frame_manifest_root:
        raise MediaError(
            Reason.VIDEO_UNREADABLE, "it is a list of frame files, which this server does not read; send the frames"
        )
    return True


def clip_of_manifest(data: bytes, sampling: FrameOptions, config: EngineConfig) -> Clip:
    """All frames of a manifest, in order; `num_frames` must be their number. Raises MediaError."""
    paths = _frame_paths(data, config)
    _refuse_sampling(len(paths), sampling)
    root = _root(config)

    def read(index: int) -> bytes:
        return _read(root, paths[index], index, config)

    def name(index: int, error: MediaError) -> MediaError:
        return MediaError(error.reason, f"frame_paths[{index}]: {error.description}")

    return clip_of_pictures(len(paths), read, None, lambda _: range(len(paths)), config, name)


def manifest_digest(data: bytes, config: EngineConfig) -> bytes:
    """A digest of the list and the content of its files, which may change while the list stays. Raises MediaError."""
    root = _root(config)
    digest = hashlib.sha256(data)
    for index, path in enumerate(_frame_paths(data, config)):
        digest.update(hashlib.sha256(_read(root, path, index, config)).digest())
    return digest.digest()


def _frame_paths(data: bytes, config: EngineConfig) -> list[str]:
    if len(data) > _MOST_BYTES:
        _refuse(f"the manifest has {len(data)} bytes, at most {_MOST_BYTES} are allowed", Reason.VIDEO_TOO_LARGE)
    magic = next(magic for magic in MANIFEST_MAGICS if data.startswith(magic))
    try:
        content = json.loads(data[len(magic) :].decode("utf-8"))
    except (ValueError, RecursionError):  # not UTF-8, or not JSON
        _refuse("what follows the first line of the manifest is not JSON in UTF-8")
    paths = content.get("frame_paths") if isinstance(content, dict) else None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        _refuse('the manifest must be {"frame_paths": [...]} with at least one path, none of them empty')
    if len(paths) > config.max_video_frames:
        _refuse(
            f"the manifest names {len(paths)} frames, at most {config.max_video_frames} are shown; name fewer",
            Reason.VIDEO_TOO_LARGE,
        )
    return paths


def _refuse_sampling(count: int, sampling: FrameOptions) -> None:
    if sampling.num_frames not in (None, count):
        _refuse(
            f"num_frames is {sampling.num_frames}, the manifest names {count} frames, which are shown as they are; "
            "leave it out or name as many",
            Reason.VIDEO_OPTION_INVALID,
        )
    for name in ("fps", "start", "end"):
        if getattr(sampling, name) is not None:
            _refuse(f"{name} cannot be used: frames of a manifest have no times", Reason.VIDEO_OPTION_INVALID)


def _root(config: EngineConfig) -> Path:
    return Path(config.frame_manifest_root).resolve()


def _read(root: Path, path: str, index: int, config: EngineConfig) -> bytes:
    """The file's bytes. One text for whatever is wrong with the path, so that the server tells nothing of its disk."""
    try:
        descriptor = _open_below(root, path)
    except (OSError, ValueError, RuntimeError):  # missing, forbidden, a NUL in the path, a circle of links
        _refuse(f"frame_paths[{index}] is no file below the server's directory of frames")
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > config.max_image_bytes:
            _refuse(
                f"frame_paths[{index}] has {size} bytes, at most {config.max_image_bytes} are allowed; scale it down",
                Reason.VIDEO_TOO_LARGE,
            )
        return file.read(config.max_image_bytes)


def _open_below(root: Path, path: str) -> int:
    """A descriptor of a regular file. Raises OSError or ValueError for all else.

    The resolved path is walked from the root without following links, so that one which is put in between after it was
    resolved leads nowhere.
    """
    *folders, name = (root / path).resolve(strict=True).relative_to(root).parts or ("",)
    place = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        # Not blocking: opening a named pipe would wait for its other end.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError
    return descriptor


def _refuse(description: str, reason: Reason = Reason.VIDEO_UNREADABLE) -> NoReturn:
    raise MediaError(reason, description)
