"""Random conversations with pictures and clips in transformers' message format. Knows no checkpoints and no engine."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from transformers.video_utils import load_video

from tests.engine import clips
from tests.engine.checkpoints import corpus

KINDS = (
    "text", "one_image", "image_after_text", "two_images", "three_images", "many_shapes", "multi_turn", "page_border"
)  # fmt: skip
"""What every checkpoint with a tower is asked."""
MEDIA_FIRST_KINDS = ("one_image", "two_images", "three_images", "many_shapes", "image_to_page_border")
"""What checkpoints are asked that take pictures and one text behind them, and nothing without a picture."""
TEXT_KINDS = ("text", "multi_turn", "page_border")
CLIP_KINDS = ("clip", "one_frame_clip", "odd_clip", "clip_file", "two_clips", "clip_and_images")
"""What checkpoints that take clips are asked besides."""

_MEDIA = {
    "one_image": ("image",),
    "image_after_text": ("image",),
    "two_images": ("image", "image"),
    "three_images": ("image", "image", "image"),
    "many_shapes": ("image", "image"),
    "image_to_page_border": ("image",),
    "clip": ("video",),
    "one_frame_clip": ("video",),
    "odd_clip": ("video",),
    "clip_file": ("video",),
    "two_clips": ("video", "video"),
    "clip_and_images": ("image", "video", "image", "video"),
}
_SHAPES = ((40, 160), (160, 40), (56, 56), (112, 56), (60, 190), (200, 61), (113, 111), (57, 150))
"""Width and height of pictures that tiles are laid out for in every way."""


@dataclass(frozen=True, slots=True)
class Film:
    """A clip: all its frames [n, height, width, 3] uint8, their rate, and how many of them are to be shown (None: all).

    `file` is what the frames were decoded from; None where they never were in one.
    """

    frames: np.ndarray
    fps: float
    num_frames: int | None = None
    file: bytes | None = None


Medium = Image.Image | Film


@dataclass(slots=True)
class RandomPrompt:
    """A conversation, and its media in the order of their placeholders."""

    messages: list[dict[str, Any]]
    media: list[Medium]

    @property
    def pictures(self) -> list[Image.Image]:
        """The pictures among the media."""
        return [medium for medium in self.media if isinstance(medium, Image.Image)]

    @property
    def text(self) -> str:
        """All texts of the conversation's only message."""
        (message,) = self.messages
        return "".join(part["text"] for part in message["content"] if part["type"] == "text")

    @property
    def films(self) -> list[Film]:
        """The clips among the media."""
        return [medium for medium in self.media if isinstance(medium, Film)]

    def cut_films_to_one_length(self) -> None:
        """Show as many frames of each clip as of the shortest: some processors stack the clips of a prompt."""
        if len(self.films) > 1:
            shortest = min(film.num_frames or len(film.frames) for film in self.films)
            self.media = [
                replace(one, frames=one.frames[:shortest], num_frames=None) if isinstance(one, Film) else one
                for one in self.media
            ]

    def lengthen(self, rng: random.Random) -> None:
        """One more word at the end of the last message."""
        word = " " + rng.choice(rng.choice(corpus()).split())
        last = self.messages[-1]
        if isinstance(last["content"], str):
            last["content"] += word
        else:
            last["content"].append({"type": "text", "text": word})


def random_prompt(kind: str, rng: random.Random, list_content: bool) -> RandomPrompt:
    """A conversation of a kind; `list_content` is off for templates that take nothing but text."""
    sentences = corpus()
    if kind == "multi_turn":
        first = [{"type": "image"}] * list_content + [{"type": "text", "text": rng.choice(sentences)}]
        media: list[Medium] = [random_picture(rng)] if list_content else []
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": [{"type": "text", "text": rng.choice(sentences)}]},
            {"role": "user", "content": first},
            {"role": "assistant", "content": [{"type": "text", "text": rng.choice(sentences)}]},
            {"role": "user", "content": [{"type": "text", "text": " ".join(rng.sample(sentences, 3))}]},
        ]
    else:
        content: list[dict[str, Any]] = [{"type": "text", "text": rng.choice(sentences)}]
        for medium_type in _MEDIA.get(kind, ()):
            place = len(content) if kind == "image_after_text" else rng.randrange(len(content) + 1)
            content.insert(place, {"type": medium_type})
            content.append({"type": "text", "text": " " + rng.choice(sentences)})
        shown = [part["type"] for part in content if part["type"] != "text"]
        media = [random_film(kind, rng) if one == "video" else random_picture(rng, _size(kind, rng)) for one in shown]
        messages = [{"role": "user", "content": content}]
    if not list_content:
        messages = [
            {"role": one["role"], "content": "".join(part["text"] for part in one["content"])} for one in messages
        ]
    return RandomPrompt(messages, media)


def random_picture(rng: random.Random, size: tuple[int, int] | None = None) -> Image.Image:
    """A picture with a few coloured boxes, of this (width, height) or a random one."""
    size = size or _random_size(rng)
    picture = Image.new("RGB", size, _random_colour(rng))
    draw = ImageDraw.Draw(picture)
    for _ in range(4):
        left, top = rng.randrange(size[0]), rng.randrange(size[1])
        draw.rectangle((left, top, left + rng.randint(4, 60), top + rng.randint(4, 60)), fill=_random_colour(rng))
    return picture


def random_film(kind: str, rng: random.Random) -> Film:
    """A clip as its kind says; half of those with frames to spare show an even number of them only."""
    if kind == "clip_file":
        return film_of_file(_random_file(rng), num_frames=rng.choice((2, 4)))
    count = {"one_frame_clip": 1, "odd_clip": rng.choice((3, 5, 7))}.get(kind, rng.choice((2, 4, 6, 8)))
    size = _random_size(rng)
    frames = np.stack([np.asarray(random_picture(rng, size)) for _ in range(count)])
    is_sampled = kind != "odd_clip" and count > 2 and rng.random() < 0.5
    return Film(
        frames, fps=rng.choice((1.0, 7.5, 24.0, 29.97)), num_frames=2 * rng.randint(1, 2) if is_sampled else None
    )


def film_of_file(data: bytes, num_frames: int | None = None) -> Film:
    """The clip in a file, decoded by transformers' own loader."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        file.write(data)
        file.flush()
        path: Any = file.name
        frames, metadata = load_video(
            path, backend="pyav", sample_indices_fn=lambda metadata, **_: range(metadata.total_num_frames)
        )
    return Film(frames, metadata.fps, num_frames, data)


def _random_file(rng: random.Random) -> bytes:
    """An MP4 file; half of them have frames at uneven times."""
    size = rng.choice(((64, 48), (48, 96), (112, 56)))
    times = [index / 10 for index in range(rng.randint(4, 12))]
    if rng.random() < 0.5:
        times = [round(time + rng.random() / 20, 3) for time in times]
    return clips.clip_at(times, size)


def _size(kind: str, rng: random.Random) -> tuple[int, int] | None:
    return rng.choice(_SHAPES) if kind == "many_shapes" else None


def _random_size(rng: random.Random) -> tuple[int, int]:
    return rng.randint(40, 160), rng.randint(40, 160)


def _random_colour(rng: random.Random) -> tuple[int, int, int]:
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)
