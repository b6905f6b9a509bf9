"""The network: transformers' Qwen2.5-VL in small, the auxiliary heads it is taught with, and a fast batched forward.

The forward here computes what `Qwen2_5_VLForConditionalGeneration` does, for batches of equally large pictures at once
instead of one by one; `evaluate` and the tests use transformers' own. The heads are dropped at export.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from tools.train_tiny.batches import CLASSES, IGNORED, Batch, PictureGroup
from tools.train_tiny.scenes import COLOURS, LARGEST_COUNT, REGIONS, SHAPES
from tools.train_tiny.tokenizer import (
    END_OF_TEXT,
    IMAGE_PAD,
    LONGEST_PROMPT,
    TURN_END,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
)

PATCH, MERGE, FRAMES = 8, 2, 2
VISION_WIDTH, VISION_HEADS = 128, 4
TEXT_WIDTH, TEXT_HEADS, TEXT_KEY_HEADS = 192, 6, 2
CELL_CLASSES = (len(CLASSES), len(COLOURS), 10, len(REGIONS), LARGEST_COUNT)
WHOLE_CLASSES = (len(SHAPES), len(COLOURS), LARGEST_COUNT, len(REGIONS), 10)


class Losses(NamedTuple):
    """Scalars; `right` [answer tokens] tells where the most likely token is the wanted one, in the blocks' order."""

    text: Tensor
    cells: Tensor
    whole: Tensor
    right: Tensor


def tiny_config(tokenizer) -> Qwen2_5_VLConfig:
    """Qwen2.5-VL with about three million parameters."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens}
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "max_window_layers": 4,
            "num_attention_heads": TEXT_HEADS,
            "num_key_value_heads": TEXT_KEY_HEADS,
            "max_position_embeddings": LONGEST_PROMPT,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": None,
            "eos_token_id": ids[TURN_END],
            "pad_token_id": ids[END_OF_TEXT],
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 4,
            "hidden_size": VISION_WIDTH,
            "intermediate_size": 320,
            "num_heads": VISION_HEADS,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": FRAMES,
            "out_hidden_size": TEXT_WIDTH,
            "window_size": 8 * PATCH,
            "fullatt_block_indexes": [0, 1, 2, 3],
        },
        image_token_id=ids[IMAGE_PAD],
        video_token_id=ids[VIDEO_PAD],
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
        tie_word_embeddings=True,
    )


class AuxiliaryHeads(nn.Module):
    """Reads what each image token and the picture as a whole show straight from the image embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.Linear(TEXT_WIDTH, sum(CELL_CLASSES))
        self.whole = nn.Linear(2 * TEXT_WIDTH, sum(WHOLE_CLASSES))

    def forward(self, embeddings: Tensor, group: PictureGroup) -> tuple[Tensor, Tensor]:
        """Losses of cells and whole for embeddings [n, tokens, width]. The sum beside the mean lets it count."""
        targets = torch.from_numpy(group.cells)
        per_cell = self.cells(embeddings).split(CELL_CLASSES, dim=-1)
        cells = (
            _per_thing(per_cell[0], targets[:, 0])
            + sum(_cross_entropy(per_cell[at], targets[:, at]) for at in (1, 2, 4))
            + 0.3 * _cross_entropy(per_cell[3], targets[:, 3])
        )
        pooled = torch.cat((embeddings.mean(1), embeddings.sum(1) / 16), dim=-1)
        whole_targets = torch.from_numpy(group.whole)
        per_whole = self.whole(pooled).split(WHOLE_CLASSES, dim=-1)
        whole = sum(_cross_entropy(logits, whole_targets[:, at]) for at, logits in enumerate(per_whole))
        assert isinstance(whole, Tensor)
        return cells, whole


class TinyModel(nn.Module):
    """The checkpoint's network together with its auxiliary heads."""

    def __init__(self, config: Qwen2_5_VLConfig):
        super().__init__()
        self.network = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.float32)
        self.heads = AuxiliaryHeads()

    def forward(self, batch: Batch, *, with_text: bool) -> Losses:
        nothing = torch.zeros(())
        pictures = [(group, self.image_embeddings(group.pixels)) for group in batch.groups]
        share = [len(group.pixels) / sum(len(each.pixels) for each in batch.groups) for group in batch.groups]
        losses = [self.heads(embeddings, group) for group, embeddings in pictures]
        cells = sum((part * loss[0] for part, loss in zip(share, losses, strict=True)), nothing)
        whole = sum((part * loss[1] for part, loss in zip(share, losses, strict=True)), nothing)
        if not with_text:
            return Losses(nothing, cells, whole, torch.zeros(0, dtype=torch.bool))
        hidden, wanted = self._answer_states(batch, pictures)
        logits = self.network.lm_head(hidden)
        return Losses(F.cross_entropy(logits.float(), wanted), cells, whole, logits.argmax(-1) == wanted)

    def image_embeddings(self, pixels) -> Tensor:
        """pixels [n, height, width, 3] uint8 -> [n, tokens, TEXT_WIDTH], tokens in row order."""
        visual: Any = self.network.model.visual
        patches, positions = _patches(torch.from_numpy(pixels))
        weight = visual.patch_embed.proj.weight.sum(2).flatten(1)  # both frames of a still picture are the same
        hidden = F.linear(patches, weight)
        cos, sin = visual.rotary_pos_emb(hidden, positions)
        for block in visual.blocks:
            hidden = hidden + _vision_attention(block.attn, block.norm1(hidden), cos, sin)
            hidden = hidden + block.mlp(block.norm2(hidden))
        return visual.merger(hidden).view(len(pixels), -1, TEXT_WIDTH)

    def _answer_states(self, batch: Batch, pictures: list[tuple[PictureGroup, Tensor]]) -> tuple[Tensor, Tensor]:
        """Last hidden states [answer tokens, width] that predict the answers, and the ids they should predict."""
        states, wanted = [], []
        for block, hidden in zip(batch.blocks, self.hidden_states(batch, pictures), strict=True):
            labels = torch.from_numpy(block.labels)[:, 1:]
            states.append(hidden[:, :-1][labels != IGNORED])
            wanted.append(labels[labels != IGNORED])
        return torch.cat(states), torch.cat(wanted)

    def hidden_states(self, batch: Batch, pictures: list[tuple[PictureGroup, Tensor]]) -> list[Tensor]:
        """The decoder's last hidden states [rows, length, width] of each block of text."""
        model = self.network.model
        ids = torch.cat([torch.from_numpy(block.ids).flatten() for block in batch.blocks])
        embedded = model.get_input_embeddings()(ids)
        for group, embeddings in pictures:
            embedded = embedded.index_copy(0, torch.from_numpy(group.slots).flatten(), embeddings.flatten(0, 1))
        return [
            model.language_model(
                inputs_embeds=part.view(*block.ids.shape, -1),
                position_ids=torch.from_numpy(block.positions),
                use_cache=False,
            ).last_hidden_state
            for block, part in zip(batch.blocks, embedded.split([b.ids.size for b in batch.blocks]), strict=True)
        ]


def _patches(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Patches [n, patches, 3 * 8 * 8] scaled to -1..1, in the processor's order (2 by 2 blocks).

    With them their rows and columns [patches, 2].
    """
    count, height, width, _ = pixels.shape
    rows, columns = height // PATCH // MERGE, width // PATCH // MERGE
    blocks = pixels.view(count, rows, MERGE, PATCH, columns, MERGE, PATCH, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    patches = blocks.reshape(count, -1, 3 * PATCH * PATCH).float() / 127.5 - 1.0
    at = torch.stack(torch.meshgrid(torch.arange(rows * MERGE), torch.arange(columns * MERGE), indexing="ij"))
    at = at.view(2, rows, MERGE, columns, MERGE).permute(0, 1, 3, 2, 4)
    return patches, at.reshape(2, -1).T


def _vision_attention(attention, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Attention of every patch of a picture [n, patches, width] to every other of the same picture."""
    count, patches, width = hidden.shape
    query, key, value = attention.qkv(hidden).view(count, patches, 3, VISION_HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
    query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
    mixed = F.scaled_dot_product_attention(query, key, value)
    return attention.proj(mixed.transpose(1, 2).reshape(count, patches, width))


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the targets that are set; zero when none is."""
    loss = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return loss / (targets != IGNORED).sum().clamp(min=1)


def _per_thing(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all cells, for each cell that holds a thing.

    Not the mean: most cells are empty, and neighbours that pass for another centre spoil the count.
    """
    loss = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="sum")
    return loss / (targets > 0).sum().clamp(min=1)
