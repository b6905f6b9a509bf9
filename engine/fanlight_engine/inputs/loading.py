"""Loads what a checkpoint brings for its inputs: tokenizer, chat template and media processor.

A checkpoint with an ImageProcessingConfig gets the native pipeline, any other its own processor of transformers.
Raises CheckpointError naming the files that are missing or do not fit. Knows nothing of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import AutoProcessor, AutoTokenizer

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.json_files import JsonFileError, read_json_object
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import CheckpointError, in_one_line
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media.native.image_processing_config import find_image_processing_config
from fanlight_engine.inputs.media.native.pixel_statistics import find_pixel_statistics
from fanlight_engine.inputs.media.native.processor import NativeProcessor
from fanlight_engine.inputs.media.processing import MediaProcessor
from fanlight_engine.inputs.media.wrapped import WrappedProcessor, media_marks
from fanlight_engine.packages import require_package


@dataclass(frozen=True, slots=True)
class LoadedInputs:
    """`processor` is the one of transformers, which may have a chat template of its own; None without one.

    `media` is None for text-only checkpoints.
    """

    tokenizer: Any
    guarded: GuardedTokenizer
    processor: Any
    media: MediaProcessor | None


def load_inputs(config: EngineConfig, checkpoint: Checkpoint) -> LoadedInputs:
    """Everything that turns prompts into numbers."""
    inputs = _load(config, checkpoint)
    _refuse_ids_without_embedding(inputs.tokenizer, checkpoint)
    return inputs


def _load(config: EngineConfig, checkpoint: Checkpoint) -> LoadedInputs:
    if not checkpoint.takes_images:
        tokenizer = _load_tokenizer(checkpoint)
        return LoadedInputs(tokenizer, GuardedTokenizer(tokenizer), None, None)
    processing = find_image_processing_config(checkpoint.path, config.image_processing_config)
    if processing is not None:
        tokenizer = _load_tokenizer(checkpoint)
        statistics = find_pixel_statistics(processing, checkpoint.path)
        native = NativeProcessor(config, checkpoint, processing, statistics)
        return LoadedInputs(tokenizer, GuardedTokenizer(tokenizer), None, native)
    processor = _load_processor(checkpoint)
    guarded = GuardedTokenizer(processor.tokenizer, media_marks(processor))
    wrapped = WrappedProcessor(config, checkpoint, processor, guarded)
    wrapped.refuse_misfit()
    return LoadedInputs(processor.tokenizer, guarded, processor, wrapped)


def _refuse_ids_without_embedding(tokenizer: Any, checkpoint: Checkpoint) -> None:
    """Ordinary text would fail in the decoder. Added tokens may be without: Gemma's of text alone knows pictures."""
    backend, rows = tokenizer.backend_tokenizer, checkpoint.vocab_size
    if backend.get_vocab_size(with_added_tokens=True) <= rows:
        return
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    ordinary = [
        token_id for token, token_id in backend.get_vocab(with_added_tokens=False).items() if token not in added
    ]
    if max(ordinary, default=0) >= rows:
        raise CheckpointError(
            f"{checkpoint.path.name}/tokenizer.json has ids up to {max(ordinary)}, by config.json there are embeddings "
            f"for {rows} (vocab_size); take the tokenizer's files and config.json from one checkpoint"
        )


def _load_tokenizer(checkpoint: Checkpoint) -> Any:
    try:
        return AutoTokenizer.from_pretrained(checkpoint.path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # loaders of the many formats raise whatever they meet
        raise CheckpointError(
            f"the tokenizer of {checkpoint.name} cannot be loaded: {_why(error, checkpoint)}; tokenizer.json and "
            "tokenizer_config.json are needed, from where the weights are from"
        ) from error


def require_packages_of(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError where a package that its processor imports is not installed."""
    for module in checkpoint.family.packages if checkpoint.takes_images else ():
        require_package(module, f"the processor of {checkpoint.family.model_type} checkpoints ({checkpoint.name})")


def _load_processor(checkpoint: Checkpoint) -> Any:
    require_packages_of(checkpoint)
    try:
        processor = AutoProcessor.from_pretrained(checkpoint.path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # as above
        raise CheckpointError(
            f"the processor of {checkpoint.name} cannot be loaded: {_why(error, checkpoint)}; "
            "preprocessor_config.json or processor_config.json and the tokenizer's files are needed, from where the "
            "weights are from"
        ) from error
    _refuse_other_processors(processor, checkpoint)
    return processor


_FILES = (
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)


def _why(error: Exception, checkpoint: Checkpoint) -> str:
    """Code of its own is looked for only now: transformers does without it where it has the class itself."""
    for name in _FILES:
        try:
            named = read_json_object(checkpoint.path / name).get("auto_map")
        except JsonFileError:
            continue
        if named:
            return f"{checkpoint.path.name}/{name} asks for code of its own ({_reference(named)}), which is never run"
    return in_one_line(error)


def _reference(auto_map: Any) -> str:
    """The classes that it names, as they are written."""
    values = auto_map.values() if isinstance(auto_map, dict) else [auto_map]
    return ", ".join(str(one) for value in values for one in (value if isinstance(value, list) else [value]) if one)


_NEEDED_OF_IMAGES = ("image_processor", "tokenizer", "image_token")
_NEEDED_OF_VIDEOS = ("video_processor", "video_token")


def _refuse_other_processors(processor: Any, checkpoint: Checkpoint) -> None:
    """A processor of another kind (of text alone, say) would load, and then fail at every picture."""
    needed = _NEEDED_OF_IMAGES + _NEEDED_OF_VIDEOS * checkpoint.family.takes_videos
    for part in needed:
        if getattr(processor, part, None) is None:
            raise CheckpointError(
                f"the processor of {checkpoint.name} ({type(processor).__name__}) has no {part}; "
                f"{checkpoint.path.name}/processor_config.json and preprocessor_config.json must be those of "
                f"{checkpoint.family.model_type} checkpoints: take them from where the weights are from"
            )
