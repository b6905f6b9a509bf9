"""Checkpoints that are described instead of bringing a processor: their media as files, beside the same precomputed.

What is sent precomputed is made here, step by step, with the public functions of native preprocessing, from pixels
that Pillow and transformers' own loader read. The contract has no message for the tiles of a clip; where a model takes
these, what is sent are the embeddings that plain transformers makes of them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

import fanlight
from fanlight.v1 import media_pb2
from fanlight_engine.checkpoints.families import PixelForm
from fanlight_engine.inputs.media.native.anyres import anyres_layout
from fanlight_engine.inputs.media.native.dynamic_resolution import PatchBudget, image_grid, video_grid
from fanlight_engine.inputs.media.native.image_processing_config import (
    ImageProcessingConfig,
    find_image_processing_config,
)
from fanlight_engine.inputs.media.native.patches import row_major_patches, square_tiles, tower_patches
from fanlight_engine.inputs.media.native.pixel_statistics import find_pixel_statistics
from fanlight_engine.inputs.media.native.pixels import Normalizer, padded, resized
from fanlight_engine.inputs.media.native.sampling import frame_indices
from fanlight_engine.inputs.media.native.tiling import TilingRule, tile_layout
from tests.e2e.comparison import Compared, compared_answers
from tests.e2e.doors import DOORS, Part, saying
from tests.e2e.made_models import model_path
from tests.e2e.pictures import encoded, picture
from tests.e2e.plain_transformers import plain_model, read_clip, upright
from tests.e2e.serving import Served, serving
from tests.engine.clips import clip
from tests.engine.clips import picture as frame

MODELS = ("native qwen2_5_vl", "native llava", "native llava_next")
SIZES = ((160, 120), (1, 1), (17, 90), (400, 30), (30, 400), (224, 224), (641, 479))
QUESTION = "the cat sees"


@dataclass(frozen=True, slots=True)
class Described:
    """A description, and the checkpoint's name."""

    model: str
    processing: ImageProcessingConfig
    normalize: Normalizer

    @property
    def tile_size(self) -> int:
        """Side of a tile; for descriptions that tile."""
        assert self.processing.tile_size is not None
        return self.processing.tile_size


class Preprocessing(Protocol):
    """Media made by hand, by how they are sent."""

    def images(self, pixels: np.ndarray) -> dict[str, media_pb2.Image]:
        """A picture [height, width, 3]."""
        ...

    def videos(self, frames: np.ndarray) -> dict[str, media_pb2.Video]:
        """The chosen frames of a clip [frames, height, width, 3]; empty where the model takes none."""
        ...


@dataclass(frozen=True, slots=True)
class GridByHand:
    """Dynamic resolution: patches, in both orders."""

    described: Described

    def images(self, pixels: np.ndarray) -> dict[str, media_pb2.Image]:
        """A still picture stands for all frames of its temporal patch."""
        one = self.described.processing
        grid = image_grid(pixels.shape[1], pixels.shape[0], one.patch_dim, self._budget)
        small = self._resized(pixels, grid)
        by_frame = self._numbers(tower_patches(small[None], one.patch_dim, one.merge))[:, :, None]
        in_tower = np.repeat(by_frame, one.temporal_patch_size, axis=2).reshape(len(by_frame), -1)
        in_rows = self._numbers(row_major_patches(small, one.patch_dim)).reshape(len(by_frame), -1)
        return {
            "patches": media_pb2.Image(patches=fanlight.patches(in_tower, grid)),
            "patches in rows": media_pb2.Image(patches=fanlight.patches(in_rows, grid, layout="row_major")),
        }

    def videos(self, frames: np.ndarray) -> dict[str, media_pb2.Video]:
        """All frames on one grid; the last fills up a temporal patch."""
        one = self.described.processing
        grid = video_grid(frames.shape[2], frames.shape[1], self._budget, one.video_maintain_aspect_ratio)
        small = [self._resized(pixels, grid) for pixels in frames]
        small += [small[-1]] * (-len(small) % one.temporal_patch_size)
        steps = np.stack(small).reshape(-1, one.temporal_patch_size, *small[0].shape)
        in_tower = np.concatenate([self._numbers(tower_patches(step, one.patch_dim, one.merge)) for step in steps])
        in_rows = np.concatenate([self._numbers(row_major_patches(pixels, one.patch_dim)) for pixels in small])
        shape = (len(steps), *grid)
        return {
            "patches": media_pb2.Video(patches=fanlight.patches(in_tower.reshape(len(in_tower), -1), shape)),
            "patches in rows": media_pb2.Video(
                patches=fanlight.patches(in_rows.reshape(len(in_rows), -1), shape, layout="row_major")
            ),
        }

    @property
    def _budget(self) -> PatchBudget:
        one = self.described.processing
        return PatchBudget(one.min_patches, one.max_patches, one.merge)

    def _resized(self, pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
        patch = self.described.processing.patch_dim
        return resized(pixels, grid[0] * patch, grid[1] * patch)

    def _numbers(self, pixels: np.ndarray) -> np.ndarray:
        return self.described.normalize(pixels)


@dataclass(frozen=True, slots=True)
class TilesByHand:
    """Static tiling: tiles and a thumbnail. Frames are a tile each, and are sent as embeddings."""

    described: Described

    def images(self, pixels: np.ndarray) -> dict[str, media_pb2.Image]:
        """Cut as the rule says."""
        one, side = self.described.processing, self.described.tile_size
        rule = TilingRule(
            side, one.min_num_tiles, one.max_num_tiles, one.use_thumbnail, one.use_area_weighted_aspect_ratio
        )
        layout = tile_layout(pixels.shape[1], pixels.shape[0], rule)
        tiles = square_tiles(resized(pixels, layout.rows * side, layout.columns * side), side)
        if layout.has_thumbnail:
            tiles = np.concatenate((tiles, square_tiles(resized(pixels, side, side), side)))
        return {"tiles": media_pb2.Image(tiles=fanlight.tiles(_as_squares(self.described, tiles)))}

    def videos(self, frames: np.ndarray) -> dict[str, media_pb2.Video]:
        """Through plain transformers' tower."""
        side, plain = self.described.tile_size, plain_model(self.described.model)
        tiles = np.concatenate([square_tiles(resized(pixels, side, side), side) for pixels in frames])
        features = plain.features({"pixel_values": _as_squares(self.described, tiles)})
        return {"embeddings": media_pb2.Video(embeddings=fanlight.embeddings(features, ""))}


@dataclass(frozen=True, slots=True)
class AnyresByHand:
    """LLaVA-NeXT's layout: the whole picture, then its tiles with padding."""

    described: Described

    def images(self, pixels: np.ndarray) -> dict[str, media_pb2.Image]:
        """The model cuts the padding off by the size of the picture."""
        one, side = self.described.processing, self.described.tile_size
        height, width, _ = pixels.shape
        layout = anyres_layout((height, width), one.grid_pinpoints)
        canvas = padded(resized(pixels, *layout.resized), *layout.resolution, *layout.padding)
        tiles = np.concatenate((square_tiles(resized(pixels, side, side), side), square_tiles(canvas, side)))
        return {"tiles": media_pb2.Image(tiles=fanlight.tiles(_as_squares(self.described, tiles), (width, height)))}

    def videos(self, frames: np.ndarray) -> dict[str, media_pb2.Video]:
        """The family has no layout for clips."""
        return {}


def _as_squares(described: Described, tiles: np.ndarray) -> np.ndarray:
    """[tiles, 3, side * side] uint8 -> normalised, [tiles, 3, side, side]."""
    side = described.tile_size
    return described.normalize(tiles).reshape(len(tiles), 3, side, side)


WAYS: Mapping[PixelForm, type[GridByHand | TilesByHand | AnyresByHand]] = {
    PixelForm.GRID: GridByHand,
    PixelForm.TILES: TilesByHand,
    PixelForm.ANYRES: AnyresByHand,
}


@dataclass(frozen=True, slots=True)
class Native:
    """A server of a described checkpoint, and its preprocessing by hand."""

    served: Served
    name: str
    processing: ImageProcessingConfig
    by_hand: Preprocessing
    fingerprint: str

    def images(self, data: bytes) -> dict[str, media_pb2.Image]:
        """The picture of a file, precomputed."""
        return self.by_hand.images(np.array(upright(data)))

    def videos(self, frames: np.ndarray) -> dict[str, media_pb2.Video]:
        """Frames, precomputed; embeddings get the fingerprint that the server wants to see."""
        made = self.by_hand.videos(frames)
        for video in made.values():
            if video.HasField("embeddings"):
                video.embeddings.model_fingerprint = self.fingerprint
        return made


async def compare_native(pictures: int = len(SIZES), clips: int = 5, models: Sequence[str] = MODELS) -> list[Compared]:
    """A row for every picture and clip of every described model, and every way of sending it precomputed."""
    rows = []
    for model in models:
        async with serving(model_path(model), prefix_cache=False) as served:
            native = await native_of(served, model)
            for number, data in enumerate(some_pictures(pictures)):
                size = " x ".join(map(str, upright(data).size))
                ways = await asyncio.to_thread(native.images, data)
                rows += await _compare(native, f"picture {number}, {size}", media_pb2.Image(data=data), ways)
            for name, video, frames in await asyncio.to_thread(some_clips, native.processing, clips):
                ways = await asyncio.to_thread(native.videos, frames)
                rows += await _compare(native, name, video, ways) if ways else []
            rows += await _compare_mixed(native)
    return rows


async def native_of(served: Served, name: str) -> Native:
    """The description that a server's checkpoint has."""
    checkpoint = served.front.checkpoint
    processing = find_image_processing_config(checkpoint.path, "")
    assert processing is not None
    assert checkpoint.family.pixel_form is not None
    normalize = Normalizer(find_pixel_statistics(processing, checkpoint.path))
    by_hand = WAYS[checkpoint.family.pixel_form](Described(name, processing, normalize))
    return Native(served, name, processing, by_hand, (await served.client.model()).fingerprint)


async def _compare(native: Native, name: str, file: Part, ways: Mapping[str, Part]) -> list[Compared]:
    """The answer about a file, against those about the same precomputed, through one door after the other."""
    doors = list(DOORS.items())
    expected = await DOORS["Generate"](native.served.client, [saying(file, QUESTION)])
    rows = []
    for number, (way, precomputed) in enumerate(ways.items()):
        door, ask = doors[number % len(doors)]
        answer = await ask(native.served.client, [saying(precomputed, QUESTION)])
        rows.append(compared_answers(f"{native.name}: {name}, {way}, {door}", expected, answer))
    return rows


async def _compare_mixed(native: Native) -> list[Compared]:
    """Picture, clip, picture; all as files, then all precomputed."""
    first, last = picture(2400), picture(2401)
    (_, video, frames), *_ = await asyncio.to_thread(some_clips, native.processing, 1)
    images = [next(iter(native.images(data).values())) for data in (first, last)]
    videos = list((await asyncio.to_thread(native.videos, frames)).values())[:1]
    files: list[Part] = [media_pb2.Image(data=first), *([video] if videos else []), media_pb2.Image(data=last)]
    precomputed = [images[0], *videos, images[1]]
    ask, client = DOORS["Chat"], native.served.client
    expected, got = [
        await ask(client, [saying(*(piece for part in parts for piece in (part, " then ")), QUESTION)])
        for parts in (files, precomputed)
    ]
    return [compared_answers(f"{native.name}: a mixed prompt, all precomputed, Chat", expected, got)]


def some_pictures(count: int) -> list[bytes]:
    """Files of noise in the sizes above, and then again in others."""
    found = []
    for number in range(count):
        width, height = SIZES[number % len(SIZES)]
        scale = 1 + number // len(SIZES)
        noise = np.random.default_rng(number).integers(0, 256, (height * scale, width * scale, 3), dtype=np.uint8)
        found.append(encoded(Image.fromarray(noise)))
    return found


def some_clips(processing: ImageProcessingConfig, count: int) -> list[tuple[str, media_pb2.Video, np.ndarray]]:
    """Clips as they are sent, and the frames of them that are shown.

    Patches come without times, and a step of their grid counts as a second: so it is in these clips, which show a frame
    every half a second, two of which make a step.
    """
    files = [encoded(Image.fromarray(frame(number, 60, 90))) for number in range(4)]
    found = [
        ("a clip", media_pb2.Video(data=clip(4, fps=2)), None),
        ("some frames of a clip", media_pb2.Video(data=clip(7, (48, 64), fps=4), num_frames=4), 4),
        ("a clip of one frame", media_pb2.Video(data=clip(1, (96, 32))), None),
        ("a frame list with a rate", media_pb2.Video(frames=fanlight.frames(files, fps=2.0), num_frames=4), 4),
        ("a frame list without a rate", media_pb2.Video(frames=fanlight.frames(files)), None),
    ]
    return [
        (name, video, _shown_frames(video, asked or processing.num_frames, processing.temporal_patch_size))
        for name, video, asked in found[:count]
    ]


def _shown_frames(video: media_pb2.Video, asked: int, temporal_patch_size: int) -> np.ndarray:
    """Read by transformers' own loader, or by Pillow; which ones, says the rule of native preprocessing."""
    if video.HasField("frames"):
        frames = np.stack([np.asarray(upright(one.data)) for one in video.frames.frames])
        return frames[list(frame_indices(asked, len(frames), temporal_patch_size))]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "clip.mp4"
        file.write_bytes(video.data)
        frames = read_clip(file).frames
    return frames[list(frame_indices(asked, len(frames), temporal_patch_size))]
