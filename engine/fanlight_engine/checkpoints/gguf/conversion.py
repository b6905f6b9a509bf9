"""A GGUF file becomes an ordinary checkpoint directory: configuration, weights, tokenizer and chat template.

transformers reads the file; what it leaves out (end ids, sizes, rotary scaling) is put back, and what would go wrong
without a word is refused. Converted once: afterwards it is a checkpoint like any other.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fanlight_engine.checkpoints.families import families_of, served_model_types
from fanlight_engine.checkpoints.gguf.cache import ConvertedCheckpoints, default_cache_directory
from fanlight_engine.checkpoints.gguf.header import GgufHeader, read_header
from fanlight_engine.checkpoints.quiet import without_notices
from fanlight_engine.core.memory_use import readable_bytes
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.loading.progress import Report, bars_of, reported
from fanlight_engine.packages import require_package

FORMAT_VERSION = 1
"""Goes into the key: raised whenever a conversion writes something else than before."""

_MOST_EXACT_BYTES = 4 << 30
_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_SPLIT_KEY = "tokenizer.ggml.pre"
_SPLITS_LIKE_GPT2 = ("default", "gpt-2", "smollm")
"""Rules that give GPT-2's pieces; SmolLM's cuts digits apart before, and has no token of several."""
_NEEDED_OF_MODEL = ("context_length", "block_count", "embedding_length")
_SAMPLES = ("The cat counts 1234 birds, isn't it?\n\n  Ja: äöü 你好 🙂", " two  spaces\tand a tab", "")


def converted_checkpoint(file: Path, name: str, cache_directory: str | Path, report: Report) -> Path:
    """The directory of the checkpoint that `file` converts to; written now unless it was before.

    `name` is for the reader of the cache; `report` gets a line per stage. Raises CheckpointError.
    """
    cache = ConvertedCheckpoints(Path(cache_directory).expanduser() if cache_directory else default_cache_directory())
    key = f"{name}-{_digest(file)[:32]}"
    found = cache.find(key)
    if found is not None:
        report(f"using {found}, which was converted from {file.name}")
        return found
    header = read_header(file)
    _refuse_parts(header)
    _refuse_without_weights(header)
    require_package("gguf", f"reading {file.name}")
    require_package("accelerate", f"reading {file.name}")
    _refuse_cut_off(header)
    number_type = _number_type(header, report)
    expected_bytes = header.elements * {"float32": 4}.get(number_type, 2)
    _refuse_without_memory(header, expected_bytes)
    report(f"converting {file.name} ({header.architecture}, {header.elements:,} weights) once, as {number_type}")
    place = cache.store(key, lambda directory: _convert(header, directory, number_type, report), expected_bytes)
    report(f"converted; kept in {place}")
    return place


def _digest(file: Path) -> str:
    """Of all that decides what a conversion gives."""
    try:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    parts = (file.name, str(file.stat().st_size), content, importlib.metadata.version("transformers"))
    return hashlib.sha256("\0".join((*parts, str(FORMAT_VERSION))).encode()).hexdigest()


def _refuse_parts(header: GgufHeader) -> None:
    """What transformers would read as if the rest were not missing, or would fill with a family's defaults."""
    if int(header.values.get("split.count", 1)) > 1:
        raise CheckpointError(
            f"{header.file} is one of {header.values['split.count']} parts; merge them (llama-gguf-split --merge)"
        )
    missing = [key for key in _NEEDED_OF_MODEL if header.of_model(key) is None]
    if missing:
        raise CheckpointError(
            f"{header.file} does not say {', '.join(f'{header.architecture}.{key}' for key in missing)}; it is no text "
            "model, or was written by a program that is too old; convert it again"
        )


def _refuse_without_weights(header: GgufHeader) -> None:
    if not header.tensors:
        raise CheckpointError(
            f"{header.file} holds no weights, as files of a vocabulary alone do; give the file with the model in it"
        )


def _refuse_cut_off(header: GgufHeader) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    size, end = header.file.stat().st_size, 0
    for name, tensor in header.tensors.items():
        try:
            block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type_number)]
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{header.file} has {name} in type {tensor.type_number}, which is not known; a newer version of the "
                "package gguf may read it"
            ) from error
        end = max(end, tensor.offset + tensor.elements // block_elements * block_bytes)
    if end > size:
        raise CheckpointError(
            f"{header.file} is cut off: its last weight ends at byte {end}, and it has {size}; fetch it again"
        )


def _refuse_without_memory(header: GgufHeader, needed: int) -> None:
    import torch

    from fanlight_engine.model.loading.available_memory import available_bytes

    available = available_bytes(torch.device("cpu"))
    if available is not None and needed > available:
        raise CheckpointError(
            f"{header.file.name} has {header.elements:,} weights, which take {readable_bytes(needed)} while they are "
            f"converted, and {readable_bytes(available)} are available; serve a smaller model"
        )


def _number_type(header: GgufHeader, report: Report) -> str:
    """Plain numbers stay what they are. Quantised ones are exact in float32 only, which large models cannot afford."""
    if header.plain_type is not None:
        return header.plain_type
    if header.elements * 4 <= _MOST_EXACT_BYTES:
        report("its weights are quantised: float32 holds their values exactly")
        return "float32"
    report(
        f"its weights are quantised: bfloat16, since float32 would take {readable_bytes(header.elements * 4)}; that "
        "rounds about as much as eight bits do, and less than fewer bits did"
    )
    return "bfloat16"


def _convert(header: GgufHeader, directory: Path, number_type: str, report: Report) -> None:
    report(f"reading configuration and tokenizer of {header.file.name}")
    from fanlight_engine.checkpoints.gguf.completeness import refuse_incomplete

    config = _read_config(header)
    refuse_incomplete(header, config)
    _save_tokenizer(header, directory, report)
    model = _read_model(header, config, number_type, report)
    model.generation_config.eos_token_id = _end_ids(header, config)
    with reported(report, "writing weights"):
        model.save_pretrained(directory)


def _read_config(header: GgufHeader) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(header.file.parent, gguf_file=header.file.name, local_files_only=True)
    except Exception as error:  # transformers' reader raises whatever it meets
        raise CheckpointError(
            f"{header.file} has architecture {header.architecture!r}, which cannot be read: {error}"
        ) from error
    text_model_types = [one for one in served_model_types() if not families_of(one)[0].takes_images]
    if config.model_type not in text_model_types:
        raise CheckpointError(
            f"{header.file} has architecture {header.architecture!r} (model_type {config.model_type!r}), which is not "
            f"supported; supported of text models: {', '.join(text_model_types)}"
        )
    from fanlight_engine.checkpoints.gguf.rotary import restore_rotary
    from fanlight_engine.checkpoints.gguf.sizes import restore_sizes

    restore_sizes(header, config)
    restore_rotary(header, config)
    return config


def _save_tokenizer(header: GgufHeader, directory: Path, report: Report) -> None:
    """The tokenizer with its template, checked to cut text alike when it is read back."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(header.file.parent, gguf_file=header.file.name, local_files_only=True)
        tokenizer.save_pretrained(directory)
        again = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # as above
        raise CheckpointError(
            f"the tokenizer of {header.file} cannot be had from it: {error}; use the safetensors checkpoint that it "
            "was made from"
        ) from error
    if any(tokenizer(text)["input_ids"] != again(text)["input_ids"] for text in _SAMPLES):
        raise CheckpointError(
            f"the tokenizer of {header.file} cuts text differently after it was saved; use the safetensors checkpoint "
            "that it was made from"
        )
    if not _is_known_split(header):
        report(
            f"warning: {header.file.name} cuts text by the rule {header.values[_SPLIT_KEY]!r}, which transformers does "
            "not know and takes for GPT-2's: tokens may differ from those that the model was trained with"
        )
    if not tokenizer.chat_template:
        report(f"warning: {header.file.name} has no chat template: raw prompts are answered, conversations are refused")


def _is_known_split(header: GgufHeader) -> bool:
    """Whether text is cut into words as the file says; only byte-level vocabularies say it."""
    if header.values.get("tokenizer.ggml.model") != "gpt2":
        return True
    tables: Any = importlib.import_module("transformers.integrations.gguf.gguf_tokenizer_mapping")
    known = getattr(tables, "GGUF_PRE_TOKENIZER_SPLITS", {})
    return header.values.get(_SPLIT_KEY, "default") in (*known, *_SPLITS_LIKE_GPT2)


def _read_model(header: GgufHeader, config: Any, number_type: str, report: Report) -> Any:
    """The model with all its weights, as if it had never been quantised."""
    import torch
    from transformers import AutoModelForCausalLM

    what = f"reading {header.file.name}"
    try:
        with reported(report, what), _dequantising_reported(report, what), without_notices():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                header.file.parent,
                config=config,
                gguf_file=header.file.name,
                dtype=getattr(torch, number_type),
                attn_implementation="sdpa",
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # as above
        raise CheckpointError(f"the weights of {header.file} cannot be read: {error}; fetch it again") from error
    model, info = loaded
    missing = sorted(map(str, info["missing_keys"]))
    if missing:
        raise CheckpointError(f"{header.file} lacks {len(missing)} weights, the first is {missing[0]}; fetch it again")
    del model.config.quantization_config
    model.hf_quantizer = None
    return model


@contextmanager
def _dequantising_reported(report: Report, what: str) -> Iterator[None]:
    """transformers' reader of GGUF draws a bar of tqdm's own, past the hook for all its other ones."""
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    drawn = getattr(reader, "tqdm", None)
    reader.tqdm = bars_of(report, what)
    try:
        yield
    finally:
        reader.tqdm = drawn


def _end_ids(header: GgufHeader, config: Any) -> list[int] | int | None:
    """All tokens that end an answer: transformers takes the first kind only, and chats end with the others."""
    ids = list(dict.fromkeys(int(header.values[key]) for key in _END_KEYS if key in header.values))
    return ids or config.eos_token_id
