"""Training batches: conversations as arrays of token ids, M-RoPE positions, pixels and targets.

A batch is a function of the seed and the step alone, which makes a resumed run see what an undisturbed one would have.
Knows token layout and targets; does not know the model. NumPy only: batches are made in a worker process.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from tools.train_tiny.conversations import Conversation, about_one_picture, about_two_pictures, without_pictures
from tools.train_tiny.scenes import COLOURS, DIGIT, REGIONS, SHAPES, Scene, Size
from tools.train_tiny.tokenizer import IMAGE_PAD, TURN_END, TURN_START, VISION_END, VISION_START

CELL = 16  # pixels per side that one image token covers: patches of 8, merged 2 by 2
IGNORED = -100
CLASSES = (None, *SHAPES, DIGIT)
BLOCKS = 4  # of text in a batch
_COLOUR_NAMES = tuple(COLOURS)


@dataclass(frozen=True)
class Mix:
    """How many conversations of each sort a batch holds."""

    one_picture: int = 27
    two_pictures: int = 3
    small_talk: int = 3
    small_pictures_only: bool = False
    finishing: bool = False


@dataclass
class PictureGroup:
    """Pictures of one size with their auxiliary targets; `slots` tells where their tokens go.

    pixels [n, height, width, 3] uint8; slots [n, tokens] index the tokens of all blocks, flattened and joined;
    cells [n, 5, tokens]: class, colour, digit, region, count; whole [n, 5]: shape, colour, count, region, digit.
    """

    pixels: np.ndarray
    slots: np.ndarray
    cells: np.ndarray
    whole: np.ndarray


@dataclass
class TextBlock:
    """Conversations of similar length. ids and labels [rows, length], positions [3, rows, length].

    `answers` lists the kind and the number of tokens of each answer, in the order in which labels are set.
    """

    ids: np.ndarray
    labels: np.ndarray
    positions: np.ndarray
    answers: list[tuple[str, int]]


@dataclass
class Batch:
    """Text in blocks, which saves most of the padding, and the pictures in it by size."""

    blocks: list[TextBlock]
    groups: list[PictureGroup]


@dataclass
class Row:
    """One conversation as tokens. `pictures` pairs each scene with the index of its first image token."""

    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    pictures: list[tuple[Scene, int]] = field(default_factory=list)
    answers: list[tuple[str, int]] = field(default_factory=list)


class BatchMaker:
    """Makes the batch of a step. `encode` turns text with special tokens into ids."""

    def __init__(self, tokenizer, seed: int, mix: Mix):
        self._tokenizer = tokenizer
        self._seed = seed
        self._mix = mix
        self._image_pad = tokenizer.convert_tokens_to_ids(IMAGE_PAD)
        self._known: dict[str, list[int]] = {}

    def __call__(self, step: int) -> Batch:
        rng = random.Random(f"train/{self._seed}/{step}")
        grids = [_random_grid(rng, self._mix.small_pictures_only) for _ in range(2)]
        conversations = [
            about_one_picture(rng, _size_for(rng, rng.choice(grids)), finishing=self._mix.finishing)
            for _ in range(self._mix.one_picture)
        ]
        for _ in range(self._mix.two_pictures):
            sizes = (_size_for(rng, rng.choice(grids)), _size_for(rng, rng.choice(grids)))
            conversations.append(about_two_pictures(rng, sizes))
        conversations += [without_pictures(rng) for _ in range(self._mix.small_talk)]
        return self.collate(conversations)

    def collate(self, conversations: Sequence[Conversation]) -> Batch:
        rows = sorted((self._row(conversation) for conversation in conversations), key=lambda row: len(row.ids))
        per_block = -(-len(rows) // min(BLOCKS, len(rows)))
        blocks = [rows[at : at + per_block] for at in range(0, len(rows), per_block)]
        return Batch([_text_block(block) for block in blocks], _picture_groups(blocks))

    def _row(self, conversation: Conversation) -> Row:
        row, scenes = Row(), iter(conversation.scenes)
        if conversation.system is not None:
            self._add(row, f"{TURN_START}system\n{conversation.system}{TURN_END}\n")
        for turn in conversation.turns:
            opening = f"{TURN_START}user\n" + (turn.question if turn.text_first else "")
            for _ in turn.images:
                self._add(row, opening + VISION_START)
                scene = next(scenes)
                row.pictures.append((scene, len(row.ids)))
                height, width = token_grid(scene.image.size)
                row.ids += [self._image_pad] * (height * width)
                row.labels += [IGNORED] * (height * width)
                opening = VISION_END
            closing = "" if turn.text_first else turn.question
            self._add(row, f"{opening}{closing}{TURN_END}\n{TURN_START}assistant\n")
            start = len(row.ids)
            self._add(row, turn.answer + TURN_END, learned=True)
            row.answers.append((turn.kind, len(row.ids) - start))
            self._add(row, "\n")
        return row

    def _add(self, row: Row, text: str, *, learned: bool = False) -> None:
        ids = self._known.get(text)
        if ids is None:
            ids = self._known[text] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        row.ids += ids
        row.labels += ids if learned else [IGNORED] * len(ids)


def token_grid(size: Size) -> tuple[int, int]:
    """Rows and columns of image tokens for a picture of SHORTEST_SIDE to LONGEST_SIDE pixels per side."""
    return round(size[1] / CELL), round(size[0] / CELL)


def _random_grid(rng: random.Random, small: bool) -> tuple[int, int]:
    """Rows and columns of image tokens; the small grids that are cheap to learn from come more often."""
    while True:
        rows, columns = (rng.choices(range(3, 11), weights=(4, 5, 5, 3, 2, 1.5, 1, 1))[0] for _ in range(2))
        if max(rows, columns) <= 2.5 * min(rows, columns) and not (small and rows * columns > 20):
            return rows, columns


def _size_for(rng: random.Random, grid: tuple[int, int]) -> Size:
    """A picture size in pixels that the image processor rounds to the grid."""
    height, width = (rng.randint(max(48, CELL * cells - 7), min(160, CELL * cells + 7)) for cells in grid)
    return width, height


def _positions(row: Row) -> np.ndarray:
    """M-RoPE positions [3, tokens]: text counts on in all three; an image spreads over height and width."""
    positions = np.zeros((3, len(row.ids)), dtype=np.int64)
    at, index = 0, 0
    for scene, start in row.pictures:
        positions[:, index:start] = np.arange(at, at + start - index)
        at += start - index
        height, width = token_grid(scene.image.size)
        index = start + height * width
        positions[0, start:index] = at
        positions[1, start:index] = at + np.repeat(np.arange(height), width)
        positions[2, start:index] = at + np.tile(np.arange(width), height)
        at += max(height, width)
    positions[:, index:] = np.arange(at, at + len(row.ids) - index)
    return positions


def _text_block(rows: list[Row]) -> TextBlock:
    length = len(rows[-1].ids)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    labels = np.full((len(rows), length), IGNORED, dtype=np.int64)
    positions = np.zeros((3, len(rows), length), dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
        labels[index, : len(row.ids)] = row.labels
        positions[:, index, : len(row.ids)] = _positions(row)
    return TextBlock(ids, labels, positions, [answer for row in rows for answer in row.answers])


def _picture_groups(blocks: list[list[Row]]) -> list[PictureGroup]:
    by_grid: dict[tuple[int, int], list[tuple[Scene, int]]] = {}
    row_start = 0
    for rows in blocks:
        for row in rows:
            for scene, start in row.pictures:
                by_grid.setdefault(token_grid(scene.image.size), []).append((scene, row_start + start))
            row_start += len(rows[-1].ids)
    return [_picture_group(grid, pictures) for grid, pictures in by_grid.items()]


def _picture_group(grid: tuple[int, int], pictures: list[tuple[Scene, int]]) -> PictureGroup:
    height, width = grid
    size = (width * CELL, height * CELL)
    pixels = np.stack([np.asarray(scene.image.resize(size, Image.Resampling.BICUBIC)) for scene, _ in pictures])
    slots = np.stack([start + np.arange(height * width) for _, start in pictures])
    cells = np.stack([_cell_targets(scene, grid) for scene, _ in pictures])
    return PictureGroup(pixels, slots, cells, np.array([_whole_targets(scene) for scene, _ in pictures]))


def _cell_targets(scene: Scene, grid: tuple[int, int]) -> np.ndarray:
    """[5, tokens]: class, colour, digit and region of the thing whose centre lies in the cell, and how many there are.

    Cells without one have class 0 and their own region.
    """
    height, width = grid
    targets = np.full((5, height, width), IGNORED, dtype=np.int64)
    targets[0] = 0
    rows, columns = ((2 * np.arange(cells) + 1) * 3 // (2 * cells) for cells in grid)
    targets[3] = 3 * rows[:, None] + columns[None, :]
    for thing in scene.things:
        column = min(width - 1, int(thing.centre[0] / scene.image.size[0] * width))
        row = min(height - 1, int(thing.centre[1] / scene.image.size[1] * height))
        digit = IGNORED if thing.digit is None else thing.digit
        looks = CLASSES.index(thing.shape), _COLOUR_NAMES.index(thing.colour), digit
        targets[:, row, column] = (*looks, REGIONS.index(thing.region), len(scene.things) - 1)
    return targets.reshape(len(targets), -1)


def _whole_targets(scene: Scene) -> tuple[int, int, int, int, int]:
    """Shape, colour, count, region and digit of the picture, where it has exactly one."""
    first, alike = scene.things[0], scene.layout in ("single", "count")
    return (
        SHAPES.index(first.shape) if alike else IGNORED,
        _COLOUR_NAMES.index(first.colour) if scene.layout != "pair" else IGNORED,
        len(scene.things) - 1 if scene.layout != "digit" else IGNORED,
        REGIONS.index(first.region) if scene.layout == "single" else IGNORED,
        IGNORED if first.digit is None else first.digit,
    )
