"""Random requests over every kind of medium that a served model takes, in all three forms of a prompt; seeded.

Pixels and embeddings that come ready-made are random numbers of the right shape: what is asked here is how many
positions a medium takes, not what is seen in it. Knows nothing of answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

import fanlight
from fanlight.v1 import generation_pb2, media_pb2, model_pb2
from fanlight_engine.checkpoints.families import PixelForm
from fanlight_engine.inputs.media.native.image_processing_config import find_image_processing_config
from fanlight_engine.request import Modality
from tests.e2e.pictures import encoded
from tests.e2e.serving import Served
from tests.engine.clips import clip, clip_at
from tests.engine.conversations import TEXTS

PICTURE_MODES = ("RGB", "L", "RGBA", "P", "LA", "1", "CMYK")
PICTURES = 24
CLIPS = 6
MOST_MEDIA = 3

Medium = media_pb2.Image | media_pb2.Video
Draw = Callable[[], Medium]


@dataclass(frozen=True, slots=True)
class RandomRequest:
    """A request for one token, and the kinds that it is made of: the form of its prompt, and its media."""

    generation: generation_pb2.Generation
    kinds: tuple[str, ...]


class RandomMedia:
    """Media of one served model, by kind. Files are drawn once, and shown again and again."""

    def __init__(self, served: Served, model: model_pb2.Model, rng: random.Random) -> None:
        self._rng = rng
        self._numbers = np.random.default_rng(rng.randrange(1 << 32))
        self._fingerprint = model.fingerprint
        self._checkpoint = served.front.checkpoint
        self._form = self._checkpoint.family.pixel_form
        self._pictures = [self._random_picture() for _ in range(PICTURES)]
        self._takes_clips = Modality.VIDEO in served.front.modalities
        self._clips = [self._random_clip() for _ in range(CLIPS)] if self._takes_clips else []
        self._uploads: list[str] = []
        self._clip_uploads: list[str] = []
        self._handles: list[str] = []

    async def upload(self, served: Served) -> None:
        """Bring some of the files to the server, for requests that name them by digest or handle."""
        for data in self._pictures[:4]:
            self._uploads.append((await served.client.upload(data)).digest)
        for data in self._clips[:2]:
            self._clip_uploads.append((await served.client.upload(data)).digest)
        encoded_images = await served.client.encode_images(self._pictures[2:6])
        self._handles = [one.embeddings_id for one in encoded_images]

    def kinds(self) -> dict[str, Draw]:
        """How a medium of each kind is drawn."""
        pixels = "patches" if self._form is PixelForm.GRID else "tiles"
        pictures: dict[str, Draw] = {
            "picture": lambda: media_pb2.Image(data=self._pick(self._pictures)),
            "picture by digest": lambda: media_pb2.Image(digest=self._pick(self._uploads)),
            f"picture as {pixels}": lambda: self._picture_as_patches() if pixels == "patches" else self._as_tiles(),
            "picture as embeddings": lambda: media_pb2.Image(embeddings=self._embeddings(1)),
            "picture by handle": lambda: media_pb2.Image(embeddings_id=self._pick(self._handles)),
            "picture with options": lambda: self._with_options(media_pb2.Image(data=self._pick(self._pictures))),
        }
        if not self._takes_clips:
            return pictures
        clips: dict[str, Draw] = {
            "clip": lambda: media_pb2.Video(data=self._pick(self._clips)),
            "clip by digest": lambda: media_pb2.Video(digest=self._pick(self._clip_uploads)),
            "clip with num_frames": lambda: self._clip(num_frames=self._rng.randint(2, 6)),
            "clip with fps": lambda: self._clip(fps=self._rng.choice((1.0, 2.0, 4.5, 10.0))),
            "clip with start and end": lambda: self._clip(
                start=self._rng.random() * 0.3, end=0.35 + self._rng.random()
            ),
            "clip with options": lambda: self._with_options(self._clip()),
            "frames": lambda: media_pb2.Video(frames=self._frames(None)),
            "frames with a rate": lambda: media_pb2.Video(frames=self._frames(self._rng.choice((1.0, 8.0, 29.97)))),
            "clip as embeddings": lambda: media_pb2.Video(embeddings=self._embeddings(self._rng.randint(1, 4))),
        }
        if self._form is PixelForm.GRID:
            clips["clip as patches"] = lambda: media_pb2.Video(patches=self._patches(self._rng.randint(1, 4)))
        return pictures | clips

    def _pick(self, choices: list[Any]) -> Any:
        return self._rng.choice(choices)

    def _random_picture(self) -> bytes:
        rng = self._rng
        size = (
            (rng.randint(1, 240), rng.randint(1, 240))
            if rng.random() < 0.9
            else rng.choice(((1, 1), (1, 150), (640, 9)))
        )
        mode = rng.choice(PICTURE_MODES)
        noise = self._numbers.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        image = Image.fromarray(noise).convert("L") if mode in ("LA", "1") else Image.fromarray(noise)
        file_format = "JPEG" if mode == "CMYK" else "PNG" if mode in ("LA", "1", "P") else rng.choice(("PNG", "WebP"))
        return encoded(image.convert(mode), file_format)

    def _random_clip(self) -> bytes:
        rng = self._rng
        size = rng.choice(((64, 48), (48, 64), (96, 32), (32, 32)))
        count = rng.randint(5, 14)
        if rng.random() < 0.5:
            return clip(count, size, fps=rng.choice((4, 10, 24, 29.97)))
        times = [0.0]
        for _ in range(count - 1):
            times.append(round(times[-1] + rng.choice((0.04, 0.1, 0.25)), 3))
        return clip_at(times, size)

    def _clip(self, **options: Any) -> media_pb2.Video:
        return media_pb2.Video(data=self._pick(self._clips), **options)

    def _frames(self, fps: float | None) -> media_pb2.Frames:
        size = self._rng.choice(((40, 30), (30, 40), (57, 57)))
        noise = self._numbers.integers(0, 256, (self._rng.randint(1, 7), size[1], size[0], 3), dtype=np.uint8)
        return fanlight.frames([encoded(Image.fromarray(one)) for one in noise], fps)

    def _with_options(self, medium: Any) -> Any:
        """A random wish; wishes in pixels only where the model scales pictures to a grid."""
        wishes = ["detail", "max_tokens"]
        if self._form is PixelForm.GRID:
            wishes += ["min_pixels", "max_pixels"]
        match self._rng.choice(wishes):
            case "detail":
                medium.detail = self._rng.choice((media_pb2.DETAIL_LOW, media_pb2.DETAIL_AUTO, media_pb2.DETAIL_HIGH))
            case "max_tokens":
                medium.max_tokens = self._rng.randint(60, 400)
            case "min_pixels":
                medium.min_pixels = self._rng.randint(1, 9000)
            case _:
                medium.max_pixels = self._rng.randint(4000, 60_000)
        return medium

    def _picture_as_patches(self) -> media_pb2.Image:
        return media_pb2.Image(patches=self._patches(1))

    def _patches(self, steps: int) -> media_pb2.Patches:
        vision = self._checkpoint.config.vision_config
        h, w = 2 * self._rng.randint(1, 3), 2 * self._rng.randint(1, 3)
        numbers = 3 * vision.temporal_patch_size * vision.patch_size**2
        return fanlight.patches(self._normal(steps * h * w, numbers), (steps, h, w))

    def _as_tiles(self) -> media_pb2.Image:
        side = int(self._checkpoint.config.vision_config.image_size)
        if self._form is PixelForm.ANYRES:
            width, height = self._rng.randint(20, 300), self._rng.randint(20, 300)
            count = 1 + self._anyres_tiles(width, height, side)
            return media_pb2.Image(tiles=fanlight.tiles(self._normal(count, 3, side, side), (width, height)))
        processing = find_image_processing_config(self._checkpoint.path, "")
        most = 1 if processing is None else processing.max_num_tiles
        return media_pb2.Image(tiles=fanlight.tiles(self._normal(self._rng.randint(1, most), 3, side, side)))

    def _anyres_tiles(self, width: int, height: int, side: int) -> int:
        from transformers.image_processing_utils import select_best_resolution

        rows, columns = select_best_resolution((height, width), self._checkpoint.config.image_grid_pinpoints)
        return (rows // side) * (columns // side)

    def _embeddings(self, steps: int) -> media_pb2.Embeddings:
        h, w = self._rng.randint(1, 4), self._rng.randint(1, 4)
        grid = (steps, 2 * h, 2 * w) if self._form is PixelForm.GRID else None
        rows = self._normal(steps * h * w, self._checkpoint.hidden_size)
        return fanlight.embeddings(rows, self._fingerprint, grid)

    def _normal(self, *shape: int) -> np.ndarray:
        return self._numbers.standard_normal(shape, dtype=np.float32)


class RandomRequests:
    """Requests to one model about its random media."""

    def __init__(self, media: RandomMedia, model: model_pb2.Model, rng: random.Random) -> None:
        self._rng = rng
        self._media = media.kinds()
        self._special = model.special_tokens
        self._vocabulary = model.vocabulary_size

    def draw(self) -> RandomRequest:
        """The next one."""
        kinds = [self._rng.choice(list(self._media)) for _ in range(self._rng.choice((0, 1, 1, 1, 2, MOST_MEDIA)))]
        media = [self._media[kind]() for kind in kinds]
        forms = {"conversation": self._conversation, "raw prompt": self._raw, "token ids": self._tokens}
        form = self._rng.choice(list(forms))
        generation = forms[form](media)
        generation.config.sampling.max_new_tokens = 1
        return RandomRequest(generation, (form, *(kinds or ["text only"])))

    def _text(self) -> generation_pb2.Part:
        return generation_pb2.Part(text=self._rng.choice(TEXTS))

    def _parts(self, media: list[Medium]) -> list[generation_pb2.Part]:
        """Media in order, with texts before, between and after them."""
        parts = [self._text()]
        for medium in media:
            is_image = isinstance(medium, media_pb2.Image)
            parts.append(generation_pb2.Part(image=medium) if is_image else generation_pb2.Part(video=medium))
            if self._rng.random() < 0.7:
                parts.append(self._text())
        return parts if len(parts) == 1 or self._rng.random() < 0.5 else parts[1:]

    def _conversation(self, media: list[Medium]) -> generation_pb2.Generation:
        turns = self._rng.randint(1, 3)
        shares: list[list[Medium]] = [[] for _ in range(turns)]
        for medium in media:
            shares[self._rng.randrange(turns)].append(medium)
        messages = []
        if self._rng.random() < 0.3:
            messages.append(generation_pb2.Message(role=generation_pb2.ROLE_SYSTEM, parts=[self._text()]))
        for turn, share in enumerate(shares):
            if turn:
                messages.append(generation_pb2.Message(role=generation_pb2.ROLE_ASSISTANT, parts=[self._text()]))
            messages.append(generation_pb2.Message(role=generation_pb2.ROLE_USER, parts=self._parts(share)))
        return generation_pb2.Generation(conversation=generation_pb2.Conversation(messages=messages))

    def _raw(self, media: list[Medium]) -> generation_pb2.Generation:
        prompt = generation_pb2.RawPrompt(parts=self._parts(media))
        if self._rng.random() < 0.3:
            prompt.parse_special_tokens = True
        return generation_pb2.Generation(raw=prompt)

    def _tokens(self, media: list[Medium]) -> generation_pb2.Generation:
        prompt = generation_pb2.TokensPrompt(ids=self._ordinary_ids())
        for medium in media:
            if isinstance(medium, media_pb2.Image):
                prompt.images.append(medium)
                placeholder = self._special.image_token_id
            else:
                prompt.videos.append(medium)
                has_own = self._special.HasField("video_token_id")
                placeholder = self._special.video_token_id if has_own else self._special.image_token_id
            prompt.ids.extend([placeholder, *self._ordinary_ids()])
        return generation_pb2.Generation(tokens=prompt)

    def _ordinary_ids(self) -> list[int]:
        """Ids of ordinary words, which are the first of a vocabulary; at least one, so that no two media touch."""
        return [self._rng.randrange(50, 250) for _ in range(self._rng.randint(1, 30))]
