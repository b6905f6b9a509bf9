"""Prompts with clips and with tiled pictures through the server, beside transformers' own `generate` of the same.

Files are written to disk for transformers, whose own loader reads them; the checkpoint's own video processor samples.
A clip is a real MP4 file, made on the spot, or a list of pictures.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from PIL import Image

import fanlight
from fanlight.v1 import generation_pb2, media_pb2
from tests.e2e.comparison import Compared
from tests.e2e.doors import DOORS, GREEDY, NEW_TOKENS, saying
from tests.e2e.made_models import EMBEDDED, model_path
from tests.e2e.pictures import encoded, picture
from tests.e2e.plain_transformers import (
    PlainClip,
    PlainModel,
    PlainPrompt,
    clip_of_pictures,
    compared_with_plain,
    plain_model,
    upright,
)
from tests.e2e.serving import Served, serving
from tests.engine.clips import clip, clip_at
from tests.engine.clips import picture as frame
from tests.engine.random_prompts import random_picture

MODELS = (EMBEDDED, "qwen2_vl")
TILING_MODEL = "llava_next"
UNEVEN_TIMES = (0.0, 0.04, 0.3, 0.35, 0.9, 1.4, 1.44, 2.0, 2.6)
SIZES = ((64, 48), (48, 64), (96, 32), (120, 90))
QUESTION = "What happens?"


@dataclass(frozen=True, slots=True)
class FileClip:
    """A clip as a file, and how its frames are sampled."""

    data: bytes
    num_frames: int | None = None
    fps: float | None = None

    def message(self) -> media_pb2.Video:
        """For the server."""
        return fanlight.video(self.data, num_frames=self.num_frames, fps=self.fps)

    def plain(self, model: PlainModel, file: Path) -> PlainClip:
        """For transformers, by way of a file."""
        file.write_bytes(self.data)
        return model.clip_from_file(file, self.num_frames, self.fps)


@dataclass(frozen=True, slots=True)
class FrameClip:
    """A clip as pictures, and how many of them make a second."""

    files: tuple[bytes, ...]
    rate: float | None = None

    def message(self) -> media_pb2.Video:
        """For the server."""
        return fanlight.video(fanlight.frames(self.files, self.rate))

    def plain(self, model: PlainModel, file: Path) -> PlainClip:
        """For transformers."""
        return clip_of_pictures(self.files, self.rate)


Shown = bytes | FileClip | FrameClip | str
"""A piece of a message: a picture's file, a clip, or text."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages of user, assistant, user, ... in turn."""

    name: str
    messages: tuple[tuple[Shown, ...], ...]

    def for_server(self) -> list[generation_pb2.Message]:
        """As the contract has it."""
        roles = generation_pb2.ROLE_USER, generation_pb2.ROLE_ASSISTANT
        return [saying(*map(_part, shown), role=roles[number % 2]) for number, shown in enumerate(self.messages)]

    def for_transformers(self, model: PlainModel, directory: Path) -> PlainPrompt:
        """As transformers has it."""
        prompt = PlainPrompt([])
        for number, shown in enumerate(self.messages):
            content: list[dict[str, Any]] = []
            for piece in shown:
                if isinstance(piece, str):
                    content.append({"type": "text", "text": piece})
                elif isinstance(piece, bytes):
                    content.append({"type": "image"})
                    prompt.pictures.append(upright(piece))
                else:
                    content.append({"type": "video"})
                    prompt.clips.append(piece.plain(model, directory / f"{len(prompt.clips)}.mp4"))
            prompt.messages.append({"role": ("user", "assistant")[number % 2], "content": content})
        return prompt


def _part(piece: Shown) -> str | media_pb2.Image | media_pb2.Video:
    if isinstance(piece, str):
        return piece
    return media_pb2.Image(data=piece) if isinstance(piece, bytes) else piece.message()


async def compare_videos(prompts: int = 14, pictures: int = 12, models: Sequence[str] = MODELS) -> list[Compared]:
    """A row for each of so many prompts with clips for every model, a chat's turns, and tiled pictures."""
    rows = []
    for model in models:
        async with serving(model_path(model)) as served:
            rows += await _compare_all(served, model, islice(clip_prompts(), prompts))
            if model == EMBEDDED:
                rows += await compare_chat(served, model)
    async with serving(model_path(TILING_MODEL)) as served:
        rows += await _compare_all(served, TILING_MODEL, islice(tiled_prompts(), pictures))
    return rows


async def _compare_all(served: Served, model: str, prompts: Iterator[Prompt]) -> list[Compared]:
    plain, doors, rows = await asyncio.to_thread(plain_model, model), list(DOORS.items()), []
    for number, prompt in enumerate(prompts):
        door, ask = doors[number % len(doors)]
        theirs = await asyncio.to_thread(_plain_answer, plain, prompt)
        ours = await ask(served.client, prompt.for_server())
        rows.append(compared_with_plain(f"{model}: {prompt.name}, {door}", theirs, ours))
    return rows


def _plain_answer(plain: PlainModel, prompt: Prompt) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        return plain.answer(prompt.for_transformers(plain, Path(directory)), NEW_TOKENS)


async def compare_chat(served: Served, model: str) -> list[Compared]:
    """A chat whose second turn shows a clip and whose third asks on: each turn against the whole conversation."""
    plain = await asyncio.to_thread(plain_model, model)
    turns: list[tuple[Shown, ...]] = [
        (picture(2300), "What is it?"),
        ("And now?", FileClip(clip(7, fps=1)), QUESTION),
        ("What colour is it?",),
    ]
    said: list[tuple[Shown, ...]] = []
    rows = []
    options: dict[str, Any] = {**GREEDY, "ignore_eos": False}
    async with served.client.chat(**options) as chat:
        for number, shown in enumerate(turns):
            prompt = Prompt(f"turn {number + 1} of a chat", (*said, shown))
            theirs = await asyncio.to_thread(_plain_answer, plain, prompt)
            turn = chat.send(prompt.for_server()[-1:])
            async for _ in turn:
                pass
            rows.append(compared_with_plain(f"{model}: {prompt.name}", theirs.until(plain.end_ids), turn.answer))
            said += [shown, (turn.answer.text,)]
    return rows


def clip_prompts() -> Iterator[Prompt]:
    """The forms that clips come in, each once, then random ones without end; always the same."""
    yield from _chosen_prompts()
    rng = random.Random("clips")
    for number in count():
        yield _random_prompt(rng, number)


def _chosen_prompts() -> Iterator[Prompt]:
    files = tuple(encoded(Image.fromarray(frame(number, 60, 44))) for number in range(5))
    shown: dict[str, tuple[Shown, ...]] = {
        "a clip": (FileClip(clip(8)), QUESTION),
        "an odd number of frames": (FileClip(clip(7, (48, 64))), QUESTION),
        "variable frame rate": (FileClip(clip_at(UNEVEN_TIMES)), QUESTION),
        "one frame": (FileClip(clip(1)), QUESTION),
        "some of many frames": (FileClip(clip(23), num_frames=6), QUESTION),
        "frames by rate": (FileClip(clip(30, fps=10), fps=2.0), QUESTION),
        "some frames at variable rate": (FileClip(clip_at(UNEVEN_TIMES), num_frames=4), QUESTION),
        "a frame list": (FrameClip(files), QUESTION),
        "a frame list with a rate": (FrameClip(files[:4], 2.0), QUESTION),
        "a slow clip, whose time runs ahead of the text after it": (FileClip(clip(7, fps=1)), "?"),
        "a list of one frame": (FrameClip(files[:1]), QUESTION),
        "picture, clip, picture": (picture(2301), FileClip(clip(5)), "then", picture(2302), QUESTION),
        "two clips": ("First", FileClip(clip(4)), "and", FileClip(clip_at(UNEVEN_TIMES[:5], (96, 32))), QUESTION),
    }
    for name, pieces in shown.items():
        yield Prompt(name, (pieces,))
    earlier = (picture(2303), "What is it?"), ("A circle.",)
    yield Prompt("a clip in a later message", (*earlier, (FileClip(clip(6)), QUESTION)))


def _random_prompt(rng: random.Random, number: int) -> Prompt:
    """One to three media in any order, text between them."""
    pieces: list[Shown] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        pieces.append(encoded(random_picture(rng)) if pieces and rng.random() < 0.3 else _random_clip(rng))
        pieces.append(rng.choice((" and then ", "\n", "This is a clip.", QUESTION)))
    return Prompt(f"random clips {number}", (tuple(pieces),))


def _random_clip(rng: random.Random) -> FileClip | FrameClip:
    frames, size = rng.randint(1, 16), rng.choice(SIZES)
    if rng.random() < 0.25:
        pictures = [encoded(Image.fromarray(frame(rng.randrange(50), *size))) for _ in range(min(frames, 6))]
        return FrameClip(tuple(pictures), rng.choice((None, 1.0, 3.0)))
    if rng.random() < 0.5:
        times = [0.0]
        for _ in range(frames - 1):
            times.append(round(times[-1] + rng.choice((0.04, 0.12, 0.2, 0.5)), 3))
        data = clip_at(times, size)
    else:
        data = clip(frames, size, fps=rng.choice((5, 10, 25, 29.97)))
    even = frames // 2 * 2
    return FileClip(data, num_frames=rng.randrange(2, even + 1, 2) if even and rng.random() < 0.4 else None)


def tiled_prompts() -> Iterator[Prompt]:
    """Pictures of every kind of aspect ratio for a model that tiles, then random ones without end."""
    rng = random.Random("tiles")
    for width, height in ((56, 56), (200, 40), (40, 200), (112, 113), (300, 110), (31, 97), (500, 333), (1, 60)):
        yield Prompt(f"{width} x {height}", ((_drawn(rng, width, height), "the cat sees"),))
    for number in count():
        shown = [_drawn(rng, rng.randint(8, 400), rng.randint(8, 400)) for _ in range(rng.choice((1, 1, 2, 3)))]
        yield Prompt(f"random tiles {number}", ((*shown, "seven birds"),))


def _drawn(rng: random.Random, width: int, height: int) -> bytes:
    return encoded(random_picture(rng).resize((width, height)))
