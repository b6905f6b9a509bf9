"""Tiles of pictures: static tiling by the reference's rule with its order defined, and LLaVA-NeXT's anyres."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPVisionConfig, LlamaConfig, LlavaNextConfig, LlavaNextImageProcessor, LlavaNextProcessor
from transformers.models.llava_next.modeling_llava_next import LlavaNextModel, image_size_to_num_patches

from fanlight_engine.inputs.media.native.anyres import anyres_features, anyres_layout
from fanlight_engine.inputs.media.native.patches import square_tiles
from fanlight_engine.inputs.media.native.pixel_statistics import CLIP, PixelStatistics
from fanlight_engine.inputs.media.native.pixels import Normalizer, padded, resized
from fanlight_engine.inputs.media.native.tiling import TileLayout, TilingRule, tile_layout
from tests.engine.native_sizes import SIZES, sampled_sizes

SIDE = 448
RULES = (
    TilingRule(SIDE, 1, 1, use_thumbnail=True),
    TilingRule(SIDE, 1, 6, use_thumbnail=True),
    TilingRule(SIDE, 1, 12, use_thumbnail=True),
    TilingRule(336, 4, 9),
    TilingRule(SIDE, 1, 12, area_weighted=True),
    TilingRule(512, 2, 2, use_thumbnail=True),
)


def tiles(width: int, height: int, rule: TilingRule) -> tuple[int, int]:
    layout = tile_layout(width, height, rule)
    return layout.columns, layout.rows


def reference_tiles(width: int, height: int, rule: TilingRule) -> tuple[int, int]:
    """The rule as the reference's facts state it, with candidates ordered by (product, columns)."""
    pairs = {(i, j) for i in range(1, 13) for j in range(1, 13) if rule.min_tiles <= i * j <= rule.max_tiles}
    best, best_score, ratio = (1, 1), None, width / height
    for i, j in sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[0])):
        if rule.area_weighted:
            size = min(i * j * rule.tile_size**2 / (width * height), 0.6)
            score = size * min((i / j) / ratio, ratio / (i / j))
            better = best_score is None or score > best_score
        else:
            score = abs(ratio - i / j)
            better = best_score is None or score < best_score
            if score == best_score and width * height > 0.5 * rule.tile_size**2 * i * j:
                better = True
        if better:
            best, best_score = (i, j), score
    return best


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_picture_gets_the_references_tiles_within_the_limits(rule: TilingRule):
    for size in sampled_sizes(SIZES if rule is RULES[1] else SIZES // 10):
        layout = tile_layout(*size, rule)
        assert rule.min_tiles <= layout.columns * layout.rows <= rule.max_tiles
        assert (layout.columns, layout.rows) == reference_tiles(*size, rule), size
        assert layout.has_thumbnail == (rule.use_thumbnail and layout.columns * layout.rows > 1)
        assert layout.tiles == layout.columns * layout.rows + layout.has_thumbnail


def test_of_one_aspect_ratio_a_small_picture_gets_few_tiles_and_a_large_one_many():
    rule = TilingRule(SIDE, 1, 4)
    assert tiles(400, 400, rule) == (1, 1)
    # Half of the area of 2 x 2 tiles is the limit, and it does not suffice itself.
    assert tiles(633, 633, rule) == (1, 1)
    assert tiles(634, 634, rule) == (2, 2)
    assert tiles(633, 633, TilingRule(SIDE, 1, 4, prefer_more=True)) == (2, 2)


def test_equal_candidates_are_taken_in_a_defined_order():
    # An aspect ratio of 1.25 is as far from 1 : 2 as from 2 : 1, and both are two tiles; fewer columns come first.
    assert tiles(500, 400, TilingRule(SIDE, 2, 2)) == (1, 2)
    assert tiles(1250, 1000, TilingRule(SIDE, 2, 2)) == (2, 1)


def test_by_area_more_tiles_count_until_they_cover_a_share_that_is_enough():
    rule = TilingRule(SIDE, 1, 6, area_weighted=True)
    assert tiles(SIDE, SIDE, rule) == (1, 1)
    assert tiles(4000, 2000, rule) == (3, 2)
    assert tiles(3 * SIDE, 2 * SIDE, rule) == (3, 2)


def test_a_thumbnail_comes_with_several_tiles_only():
    rule = TilingRule(SIDE, 1, 6, use_thumbnail=True)
    assert tile_layout(400, 400, rule) == TileLayout(1, 1, has_thumbnail=False)
    assert tile_layout(1344, 896, rule) == TileLayout(3, 2, has_thumbnail=True)
    assert tile_layout(1344, 896, rule).tiles == 7


def test_tiles_are_cut_row_by_row():
    picture = np.zeros((4, 6, 3), np.uint8)
    for row in range(2):
        for column in range(3):
            picture[row * 2 : row * 2 + 2, column * 2 : column * 2 + 2] = row * 3 + column
    cut = square_tiles(picture, 2)
    assert cut.shape == (6, 3, 4)
    assert [int(tile[0, 0]) for tile in cut] == list(range(6))
    assert all((tile == tile[0, 0]).all() for tile in cut)


# LLaVA-NeXT

TILE, PATCH = 28, 7
PINPOINTS = ((28, 56), (56, 28), (56, 56), (84, 28), (28, 84))
REAL_PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


def test_as_many_features_as_transformers_counts():
    processor = LlavaNextProcessor.__new__(LlavaNextProcessor)
    processor.image_processor = LlavaNextImageProcessor(image_grid_pinpoints=[list(one) for one in REAL_PINPOINTS])
    processor.patch_size, processor.num_additional_image_tokens = 14, 1
    for width, height in sampled_sizes(4000):
        counted = processor._get_number_of_features(height, width, 336, 336) - 1
        assert anyres_features((height, width), REAL_PINPOINTS, 336, 24) == counted, (width, height)


def test_as_many_features_as_the_model_packs():
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=7
        ),
        text_config=LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        ),
        image_grid_pinpoints=[list(one) for one in PINPOINTS],
    )
    model = LlavaNextModel(config)
    newline = torch.zeros(8)
    for width, height in sampled_sizes(1000):
        count = image_size_to_num_patches([height, width], [list(one) for one in PINPOINTS], TILE)
        features, _ = model.pack_image_features(
            [torch.zeros(count, 16, 8)],
            torch.tensor([[height, width]]),
            vision_feature_select_strategy="default",
            image_newline=newline,
        )
        assert anyres_features((height, width), PINPOINTS, TILE, 4) == len(features[0]), (width, height)


@pytest.mark.parametrize(
    "size", [(1, 1), (28, 28), (30, 60), (60, 30), (200, 90), (17, 400), (400, 17), (83, 29), (3, 500), (123, 456)]
)
def test_the_same_tiles_as_transformers_cuts(size: tuple[int, int]):
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    processor = LlavaNextImageProcessor(
        size={"shortest_edge": TILE},
        crop_size={"height": TILE, "width": TILE},
        image_grid_pinpoints=[list(one) for one in PINPOINTS],
    )
    wanted = processor(images=[Image.fromarray(pixels)], return_tensors="np")["pixel_values"][0]
    layout = anyres_layout((size[1], size[0]), PINPOINTS)
    canvas = padded(resized(pixels, *layout.resized), *layout.resolution, *layout.padding)
    cut = np.concatenate((square_tiles(resized(pixels, TILE, TILE), TILE), square_tiles(canvas, TILE)))
    normalize = Normalizer(PixelStatistics(*CLIP, "test"))
    assert np.array_equal(normalize(cut).reshape(wanted.shape), wanted)
