"""Prompts with pictures and clips, as a checkpoint's own processor of transformers prepares them.

Knows the processors' calls and where they cannot take all media of a prompt at once; knows no models and no engine.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from transformers.video_utils import VideoMetadata

from fanlight_engine.checkpoints.families import Family
from tests.engine.random_prompts import Film, Medium


def processed(processor: Any, family: Family, text: str, media: Sequence[Medium], add_special_tokens: bool) -> Any:
    """What generating takes: ids of the text with its placeholders expanded, and the tensors of the media in order.

    Processors of families whose clips go the way of pictures put both under one name, where the clips win, and take
    clips of one length only. Theirs are prepared one by one.
    """
    has_clips = any(isinstance(medium, Film) for medium in media)
    if has_clips and len(media) > 1 and family.video_tensors == family.vision_tensors:
        return _processed_one_by_one(processor, family, text, media, add_special_tokens)
    return _processed_at_once(processor, text, media, add_special_tokens)


def processed_alone(processor: Any, medium: Medium) -> Any:
    """What the processor makes of a prompt of nothing but this medium's placeholder."""
    return _processed_at_once(processor, _placeholder(processor, medium), [medium], False)


def _processed_at_once(processor: Any, text: str, media: Sequence[Medium], add_special_tokens: bool) -> Any:
    films = [medium for medium in media if isinstance(medium, Film)]
    pictures = [medium for medium in media if isinstance(medium, Image.Image)]
    arguments: dict[str, Any] = {"text_kwargs": {"add_special_tokens": add_special_tokens}}
    if pictures:
        arguments["images"] = [pictures]  # those of one conversation, as apply_chat_template passes them
        arguments["images_kwargs"] = _own_pan_and_scan(processor.image_processor)
    if films:
        sampled = [_sampled(processor.video_processor, film) for film in films]
        arguments["videos"] = [frames for frames, _ in sampled]
        arguments["videos_kwargs"] = {
            "video_metadata": [metadata for _, metadata in sampled],
            "input_data_format": "channels_last",
            "do_sample_frames": False,
        }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # PaliGemma's copies a tensor
        return processor(text=text, return_tensors="pt", **arguments)


def _processed_one_by_one(
    processor: Any, family: Family, text: str, media: Sequence[Medium], add_special_tokens: bool
) -> Any:
    """Every placeholder becomes the text that its medium alone becomes; media of fewer tiles are filled up with zeros,
    as the processor itself does it with pictures."""
    alone = [processed_alone(processor, medium) for medium in media]
    texts = iter([processor.tokenizer.decode(one["input_ids"][0]) for one in alone])
    placeholders = "|".join(re.escape(_placeholder(processor, medium)) for medium in media)
    expanded = re.sub(placeholders, lambda _: next(texts), text)
    inputs = processor.tokenizer(expanded, add_special_tokens=add_special_tokens, return_tensors="pt")
    return {**inputs, **{name: _filled_up([one[name] for one in alone]) for name in family.vision_tensors}}


def _filled_up(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Joined on the first axis, as long on the second as the longest."""
    most = max(one.shape[1] for one in tensors)
    return torch.cat(
        [torch.nn.functional.pad(one, (0, 0) * (one.ndim - 2) + (0, most - one.shape[1])) for one in tensors]
    )


def _own_pan_and_scan(image_processor: Any) -> dict[str, Any]:
    """What the checkpoint says of pan-and-scan; the one processor that has it turns it off unless it is passed."""
    names = (
        "do_pan_and_scan",
        "pan_and_scan_min_crop_size",
        "pan_and_scan_max_num_crops",
        "pan_and_scan_min_ratio_to_activate",
    )
    return {name: getattr(image_processor, name) for name in names if getattr(image_processor, name, None) is not None}


def _placeholder(processor: Any, medium: Medium) -> str:
    return processor.video_token if isinstance(medium, Film) else processor.image_token


def _sampled(video_processor: Any, film: Film) -> tuple[Any, VideoMetadata]:
    """Frames to show by the processor's own rule, and the metadata that it then has of them."""
    count, height, width, _ = film.frames.shape
    metadata = VideoMetadata(
        total_num_frames=count,
        fps=film.fps,
        width=width,
        height=height,
        duration=count / film.fps,
        frames_indices=list(range(count)),
    )
    if film.num_frames is not None:
        metadata.frames_indices = video_processor.sample_frames(metadata, num_frames=film.num_frames).tolist()
    return film.frames[metadata.frames_indices], metadata
