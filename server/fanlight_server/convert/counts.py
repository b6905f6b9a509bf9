"""ModelService's questions about prompts and texts -> plain arguments, and the engine's answers -> messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fanlight.v1 import model_pb2
from fanlight_engine.request import Modality
from fanlight_server.convert.requests import below_generation
from fanlight_server.convert.values import MAX_MESSAGE_BYTES, MODALITIES, grid_of, refuse_oversized, size_of
from fanlight_server.status import field_error, missing_field

if TYPE_CHECKING:
    from fanlight_engine.dry_run import MediaCount, TextToken, TokenCount
    from fanlight_engine.inputs.media.processing import MediaDecision

MAX_DETOKENIZED_IDS = 1 << 20
_IN_PIECES = "send the text in pieces"


def text_to_tokenize(message: model_pb2.TokenizeRequest) -> str:
    """The text. Raises ServiceError when there is none, or when its tokens could never fit into the answer."""
    if not message.text:
        raise missing_field("text", "is empty; send the text to split")
    size = len(message.text.encode())
    if size > MAX_MESSAGE_BYTES:
        raise field_error("text", f"has {size} bytes, at most {MAX_MESSAGE_BYTES} fit into the answer; {_IN_PIECES}")
    return message.text


def ids_to_join(message: model_pb2.DetokenizeRequest) -> Sequence[int]:
    """The ids. Raises ServiceError when there are none or too many."""
    if not message.ids:
        raise missing_field("ids", "is empty; send the ids to join")
    if len(message.ids) > MAX_DETOKENIZED_IDS:
        raise field_error(
            "ids", f"has {len(message.ids)} ids, at most {MAX_DETOKENIZED_IDS} are allowed; send them in pieces"
        )
    return tuple(message.ids)


def count_tokens_response(count: TokenCount) -> model_pb2.CountTokensResponse:
    """A prompt, counted."""
    response = model_pb2.CountTokensResponse(
        prompt_tokens=count.prompt_tokens,
        image_tokens=count.image_tokens,
        media=[_media_count(one) for one in count.media],
        kv_blocks=count.kv_pages,
        kv_block_size=count.page_size,
        context_length=count.context_length,
        max_new_tokens=count.max_new_tokens,
        fits=count.fits,
    )
    return refuse_oversized(response, "count fewer images and videos at once")


def tokenize_response(tokens: Sequence[TextToken]) -> model_pb2.TokenizeResponse:
    """The tokens of a text."""
    made = [model_pb2.TextToken(id=token.id, data=token.data, offset=token.offset) for token in tokens]
    return refuse_oversized(model_pb2.TokenizeResponse(tokens=made), _IN_PIECES)


def detokenize_response(text: str) -> model_pb2.DetokenizeResponse:
    """The text of tokens."""
    return refuse_oversized(model_pb2.DetokenizeResponse(text=text), "send the ids in pieces")


def _media_count(one: MediaCount) -> model_pb2.MediaCount:
    decision, is_video = one.decision, one.modality is Modality.VIDEO
    return model_pb2.MediaCount(
        field=below_generation(one.field),
        modality=MODALITIES[one.modality],
        tokens=one.tokens,
        embeddings=one.embeddings,
        mask_ranges=[model_pb2.PositionRange(start=start, length=length) for start, length in one.mask_ranges],
        original_size=size_of(decision.original_size),
        resized_size=size_of(decision.resized_size),
        grid=grid_of(decision.grid),
        tiles=_tile_grid(decision),
        frames=decision.frames if is_video else None,
        frame_times=decision.frame_times if is_video else (),
    )


def _tile_grid(decision: MediaDecision) -> model_pb2.TileGrid | None:
    if decision.tiles is None:
        return None
    columns, rows = decision.tiles
    return model_pb2.TileGrid(columns=columns, rows=rows, has_thumbnail=decision.has_thumbnail)
