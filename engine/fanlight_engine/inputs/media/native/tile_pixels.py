"""Pictures and clips for towers that see one square size: static tiling (LLaVA), and LLaVA-NeXT's anyres.

Knows layouts and features of tiles; knows no requests, digests or threads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image

from fanlight_engine.errors import CheckpointError, Reason
from fanlight_engine.inputs.media.native.anyres import anyres_features, anyres_layout, best_resolution
from fanlight_engine.inputs.media.native.image_processing_config import ResizeMode
from fanlight_engine.inputs.media.native.patches import square_tiles
from fanlight_engine.inputs.media.native.pixels import float_tensor, padded, pixels_of, resized
from fanlight_engine.inputs.media.native.tiling import TilingRule, tile_layout
from fanlight_engine.inputs.media.native.tower import Tower, placeholders_of, repeated_placeholder
from fanlight_engine.inputs.media.pixel_bounds import refuse_pixel_options, refuse_too_many_rows
from fanlight_engine.inputs.media.processing import Clip, MediaDecision, MediaError, ProcessedMedia
from fanlight_engine.inputs.media.tensors import checked_floats, refuse_shape
from fanlight_engine.request import Detail, Modality, Patches, PixelOptions, Tiles
from fanlight_engine.tensor_data import tensor_data_of

_ONE_SIZE = "this model sees every picture at one size"
_OWN_SIZES = "this model sees pictures at the resolutions of its grid_pinpoints"


class TilePixels:
    """Media of a tower that takes square tiles. Raises CheckpointError for a description that does not fit it."""

    def __init__(self, tower: Tower) -> None:
        tower.refuse_other_modes(ResizeMode.TILING)
        processing = tower.processing
        self._tower = tower
        self._side = _checked_side(tower)
        self._features = tower.features_of_tile()
        self._rule = TilingRule(
            tile_size=self._side,
            min_tiles=processing.min_num_tiles,
            max_tiles=processing.max_num_tiles,
            use_thumbnail=processing.use_thumbnail,
            area_weighted=processing.use_area_weighted_aspect_ratio,
        )
        self.placeholders = placeholders_of(tower, tuple(Modality))

    def image(self, picture: Image.Image, options: PixelOptions) -> ProcessedMedia:
        """One picture, cut into tiles, with its thumbnail last."""
        layout = tile_layout(picture.width, picture.height, self._narrowed(options))
        size = layout.columns * self._side, layout.rows * self._side
        pixels = pixels_of(picture)
        tiles = square_tiles(resized(pixels, size[1], size[0]), self._side)
        if layout.has_thumbnail:
            tiles = np.concatenate((tiles, square_tiles(resized(pixels, self._side, self._side), self._side)))
        decision = MediaDecision(
            picture.size, size, tiles=(layout.columns, layout.rows), has_thumbnail=layout.has_thumbnail
        )
        processed = self._processed(self._tower.normalize(tiles), Modality.IMAGE, decision)
        refuse_too_many_rows(processed.replacement.rows, options)
        return processed

    def video(self, clip: Clip, options: PixelOptions) -> ProcessedMedia:
        """The frames of one clip, a tile each."""
        refuse_pixel_options(options, "this model sees every frame at one size")
        tiles = [square_tiles(resized(frame, self._side, self._side), self._side) for frame in clip.frames]
        decision = MediaDecision(
            clip.size, (self._side, self._side), frames=len(clip.frames), frame_times=tuple(clip.times)
        )
        processed = self._processed(self._tower.normalize(np.concatenate(tiles)), Modality.VIDEO, decision)
        refuse_too_many_rows(processed.replacement.rows, options)
        return processed

    def tensors(self, pixels: Patches | Tiles, modality: Modality) -> ProcessedMedia:
        """Tiles that were made elsewhere; any number that a picture or a clip can have."""
        if isinstance(pixels, Patches):
            raise MediaError(Reason.TENSOR_INVALID, "this model takes square tiles; send tiles, not patches")
        array = checked_floats(pixels.pixels, "tiles.pixels")
        most = self._rule.max_tiles + (self._rule.use_thumbnail and self._rule.max_tiles > 1)
        if modality is Modality.VIDEO:
            most = self._tower.config.max_video_frames
        wanted = (min(len(array), most), 3, self._side, self._side)
        refuse_shape(array, wanted, "tiles.pixels", f"up to {most} tiles of the side that the vision tower takes")
        frames = len(array) if modality is Modality.VIDEO else 1
        return self._processed(
            array, modality, MediaDecision(pixels.original_size, (self._side, self._side), frames=frames)
        )

    def _narrowed(self, options: PixelOptions) -> TilingRule:
        """The rule, with as few or many tiles as were asked for. Raises MediaError where that cannot be."""
        rule, area = self._rule, self._side**2
        if rule.max_tiles == 1:
            refuse_pixel_options(options, _ONE_SIZE)
            return rule
        most, fewest = rule.max_tiles, rule.min_tiles
        if options.max_pixels is not None:
            most = min(most, options.max_pixels // area)
        if options.max_tokens is not None:
            most = min(most, self._tiles_within(options.max_tokens))
        if options.min_pixels is not None:
            fewest = max(fewest, -(-options.min_pixels // area))
        if fewest > most:
            raise MediaError(
                Reason.IMAGE_OPTION_INVALID,
                f"at least {fewest} tiles of {area} pixels and {self._features} embeddings each are needed, at most "
                f"{most} allowed; raise max_pixels or max_tokens, or lower min_pixels",
            )
        if options.detail is Detail.LOW:
            most = max(min(most, self._tiles_within(self._tower.config.low_detail_tokens)), fewest)
        return replace(rule, min_tiles=fewest, max_tiles=most, prefer_more=options.detail is Detail.HIGH)

    def _tiles_within(self, rows: int) -> int:
        """Most tiles, the thumbnail not counted, that take at most so many embeddings."""
        tiles = rows // self._features
        return tiles if tiles < 2 else tiles - self._rule.use_thumbnail

    def _processed(self, tiles: np.ndarray, modality: Modality, decision: MediaDecision) -> ProcessedMedia:
        (pixel_name,) = self._tower.checkpoint.family.vision_tensors
        rows = len(tiles) * self._features
        return ProcessedMedia(
            tensors={pixel_name: float_tensor(tiles, (len(tiles), 3, self._side, self._side))},
            replacement=repeated_placeholder(self.placeholders[modality], rows),
            decision=decision,
        )


class AnyresPixels:
    """Pictures of LLaVA-NeXT's tower; clips are refused. Raises CheckpointError where the description does not fit."""

    def __init__(self, tower: Tower) -> None:
        tower.refuse_other_modes(ResizeMode.ANYRES)
        self._tower = tower
        self._side = _checked_side(tower)
        self._pinpoints = tower.processing.grid_pinpoints
        wanted = tuple((height, width) for height, width in tower.checkpoint.config.image_grid_pinpoints)
        tower.refuse_differences((("grid_pinpoints", self._pinpoints, "image_grid_pinpoints", wanted),))
        self._patches_per_side = self._side // tower.processing.patch_dim
        if tower.features_of_tile() != self._patches_per_side**2:
            raise CheckpointError(
                "config.json selects features that are no patches (vision_feature_select_strategy "
                f"{tower.checkpoint.config.vision_feature_select_strategy!r}); they cannot be laid out as a picture"
            )
        self.placeholders = placeholders_of(tower, (Modality.IMAGE,))

    def image(self, picture: Image.Image, options: PixelOptions) -> ProcessedMedia:
        """One picture: the whole of it, then its tiles."""
        refuse_pixel_options(options, _OWN_SIZES)
        pixels, side = pixels_of(picture), self._side
        layout = anyres_layout((picture.height, picture.width), self._pinpoints)
        canvas = padded(resized(pixels, *layout.resized), *layout.resolution, *layout.padding)
        whole = square_tiles(resized(pixels, side, side), side)
        tiles = np.concatenate((whole, square_tiles(canvas, side)))
        processed = self._processed(self._tower.normalize(tiles), picture.size)
        refuse_too_many_rows(processed.replacement.rows, options)
        return processed

    def video(self, clip: Clip, options: PixelOptions) -> ProcessedMedia:
        """Refused: the family has no layout for clips."""
        raise MediaError(
            Reason.MODALITY_UNSUPPORTED, "this model takes no clips; send the frames that matter as pictures"
        )

    def tensors(self, pixels: Patches | Tiles, modality: Modality) -> ProcessedMedia:
        """Tiles that were made elsewhere from a picture of known size, the whole of it first."""
        if isinstance(pixels, Patches):
            raise MediaError(Reason.TENSOR_INVALID, "this model takes square tiles; send tiles, not patches")
        size, most = pixels.original_size, self._tower.config.max_image_side
        if size is None:
            raise MediaError(Reason.TENSOR_INVALID, "tiles.original_size is not set; this model cuts padding off by it")
        if not 1 <= min(size) <= max(size) <= most:
            raise MediaError(
                Reason.TENSOR_INVALID, f"tiles.original_size is {size[0]} x {size[1]}, a side may be 1 to {most}"
            )
        array = checked_floats(pixels.pixels, "tiles.pixels")
        rows, columns = self._tiles(size)
        why = f"{columns} x {rows} tiles and the whole picture before them, for this original_size"
        refuse_shape(array, (columns * rows + 1, 3, self._side, self._side), "tiles.pixels", why)
        return self._processed(array, size)

    def _tiles(self, size: tuple[int, int]) -> tuple[int, int]:
        """(rows, columns) of the tiles of a picture of (width, height)."""
        height, width = best_resolution((size[1], size[0]), self._pinpoints)
        return height // self._side, width // self._side

    def _processed(self, tiles: np.ndarray, size: tuple[int, int]) -> ProcessedMedia:
        pixel_name, size_name = self._tower.checkpoint.family.vision_tensors
        (width, height), (rows, columns) = size, self._tiles(size)
        features = anyres_features((height, width), self._pinpoints, self._side, self._patches_per_side)
        return ProcessedMedia(
            tensors={
                pixel_name: float_tensor(tiles, (1, len(tiles), 3, self._side, self._side)),
                size_name: tensor_data_of(np.array([[height, width]], np.int64)),
            },
            replacement=repeated_placeholder(self.placeholders[Modality.IMAGE], features),
            decision=MediaDecision(
                *(size, (columns * self._side, rows * self._side)), tiles=(columns, rows), has_thumbnail=True
            ),
        )


def _checked_side(tower: Tower) -> int:
    """Side of the pictures that the tower takes. Raises CheckpointError where the description has another."""
    processing, vision = tower.processing, tower.vision
    tower.refuse_differences(
        (
            ("tile_size", processing.tile_size, "vision_config.image_size", vision.image_size),
            ("patch_dim", processing.patch_dim, "vision_config.patch_size", vision.patch_size),
            ("a merge factor of", processing.merge, "a projector that merges", 1),
        )
    )
    return int(vision.image_size)
