"""How media stand in prompts of a checkpoint with a processor of transformers: what a template writes, what takes rows.

The two may differ: a template writes a beginning of image, and positions between it and an end take the rows; or a clip
has a word of its own that is no token, and becomes frames that look like pictures.
Knows processors and tokenizers; knows no pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.errors import CheckpointError
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.request import Modality


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """Of one kind of media. `placeholder` stands for one medium before expansion, `row` at each position that takes a
    row of its embeddings afterwards; a placeholder that is no token of the vocabulary has a pseudo id."""

    placeholder: str
    placeholder_id: int
    row: str
    row_id: int


def media_marks(processor: Any) -> tuple[str, ...]:
    """What templates may write for a clip; for the GuardedTokenizer, since it need not be a token."""
    token = getattr(processor, "video_token", None)
    return () if token is None or getattr(processor, "video_processor", None) is None else (str(token),)


def media_tokens(checkpoint: Checkpoint, processor: Any, guarded: GuardedTokenizer) -> dict[Modality, MediaTokens]:
    """Of the kinds of media that family and processor take. Raises CheckpointError naming the file at fault.

    `guarded` must know `media_marks`.
    """
    image_id = checkpoint.image_token_id
    if image_id is None:
        raise CheckpointError(
            f"{checkpoint.path.name}/config.json has a vision tower but no image_token_id; give a complete checkpoint"
        )
    tokens = {Modality.IMAGE: _tokens(checkpoint, str(processor.image_token), image_id, guarded)}
    if checkpoint.family.takes_videos and media_marks(processor):
        video_id = image_id if checkpoint.family.clips_are_pictures else checkpoint.video_token_id
        if video_id is not None:
            tokens[Modality.VIDEO] = _tokens(checkpoint, str(processor.video_token), video_id, guarded)
    return tokens


def _tokens(checkpoint: Checkpoint, placeholder: str, row_id: int, guarded: GuardedTokenizer) -> MediaTokens:
    placeholder_id, row, where = guarded.id_of(placeholder), guarded.spelling_of(row_id), checkpoint.path.name
    if placeholder_id is None:
        raise CheckpointError(
            f"{where}/tokenizer.json has no added token {placeholder!r}, which stands for media in this checkpoint's "
            "prompts; take the tokenizer's files from where the weights are from"
        )
    if row is None:
        raise CheckpointError(
            f"{where}/config.json says that token {row_id} takes a medium's embeddings, and {where}/tokenizer.json has "
            "no added token of that id; take both files from one checkpoint"
        )
    return MediaTokens(placeholder, placeholder_id, row, row_id)
