"""Processors and tokenizers that do not fit their checkpoint are refused at load, with the file and the fix."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine import packages
from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import CheckpointError
from fanlight_engine.inputs.loading import load_inputs
from fanlight_engine.request import Modality


@pytest.fixture
def copied(checkpoint_of: Callable[[str], Checkpoint], tmp_path: Path) -> Callable[[str], Path]:
    def copy(family: str) -> Path:
        return Path(shutil.copytree(checkpoint_of(family).path, tmp_path / family))

    return copy


def changed(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def refusal(path: Path) -> str:
    checkpoint = read_checkpoint(path)
    with pytest.raises(CheckpointError) as caught:
        load_inputs(EngineConfig(), checkpoint)
    return str(caught.value)


@pytest.mark.parametrize("family", ["smolvlm", "gemma3", "llava_pixtral", "qwen3_vl"])
def test_what_fits_is_loaded(checkpoint_of: Callable[[str], Checkpoint], family: str) -> None:
    inputs = load_inputs(EngineConfig(), checkpoint_of(family))
    assert inputs.media is not None
    assert Modality.IMAGE in inputs.media.modalities
    assert (Modality.VIDEO in inputs.media.modalities) is (family in ("smolvlm", "qwen3_vl"))


def test_a_tokenizer_without_the_image_token_is_refused(copied: Callable[[str], Path]) -> None:
    path = copied("mistral3")

    def forget(content: Any) -> None:
        content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] != "[IMG]"]

    changed(path / "tokenizer.json", forget)
    text = refusal(path)
    assert "mistral3/tokenizer.json has no added token '[IMG]'" in text
    assert "from where the weights are from" in text


def test_a_tokenizer_of_another_checkpoint_is_refused(copied: Callable[[str], Path]) -> None:
    path = copied("mistral3")
    changed(path / "config.json", lambda content: content.update(image_token_index=3))
    text = refusal(path)
    assert "mistral3/config.json says that token 3 takes a medium's embeddings" in text
    assert "tokenizer.json has no added token of that id" in text


def test_an_image_token_that_the_processor_never_writes_is_refused(copied: Callable[[str], Path]) -> None:
    path = copied("idefics3")
    added = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    other = next(one["id"] for one in added if one["content"] == "<end_of_utterance>")
    changed(path / "config.json", lambda content: content.update(image_token_id=other))
    text = refusal(path)
    assert "puts no '<end_of_utterance>' into the prompt for a picture" in text
    assert "config.json from one checkpoint" in text


@pytest.mark.parametrize(
    ("family", "part", "change", "words"),
    [
        ("llava", "image_processor", {"crop_size": {"height": 42, "width": 42}}, "42 x 42 pixels, where"),
        ("internvl", "image_processor", {"size": {"height": 48, "width": 48}}, "image_size is 32 x 32"),
        ("idefics3", "image_processor", {"max_image_size": {"longest_edge": 64}}, "image_size is 32 x 32"),
        ("qwen3_vl", "image_processor", {"patch_size": 16}, "patches of 1536 numbers"),
        ("qwen3_vl", "image_processor", {"merge_size": 1}, "merge_size 1, where vision_config.spatial_merge_size is 2"),
        (
            "mistral3",
            "",
            {"spatial_merge_size": 1},
            "patch_size 8 and spatial_merge_size 1, where the tower has 8 and 2",
        ),
    ],
)
def test_a_processor_that_was_not_made_for_the_tower_is_refused(
    copied: Callable[[str], Path], family: str, part: str, change: dict[str, Any], words: str
) -> None:
    path = copied(family)
    changed(path / "processor_config.json", lambda content: (content[part] if part else content).update(change))
    text = refusal(path)
    assert words in text
    assert "does not fit its config.json" in text
    assert "processor_config.json" in text


def test_a_checkpoint_without_its_processor_is_refused(copied: Callable[[str], Path]) -> None:
    path = copied("llava")
    (path / "processor_config.json").unlink()
    text = refusal(path)
    assert "processor_config.json" in text
    assert "llava" in text


def test_a_processor_of_another_family_is_refused_by_what_it_lacks(copied: Callable[[str], Path]) -> None:
    path = copied("qwen2_5_vl")
    changed(path / "processor_config.json", lambda content: content.update(processor_class="LlavaProcessor"))
    changed(path / "tokenizer_config.json", lambda content: content.update(processor_class="LlavaProcessor"))
    text = refusal(path)
    assert "(LlavaProcessor) has no video_processor" in text
    assert "must be those of qwen2_5_vl checkpoints" in text


def test_a_missing_package_is_named_with_what_installs_it(
    checkpoint_of: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_of("smolvlm")
    monkeypatch.setattr(packages, "is_installed", lambda module: module != "num2words")
    text = refusal(checkpoint.path)
    assert "the processor of smolvlm checkpoints" in text
    assert "needs the package num2words" in text
    assert "pip install" in text


@pytest.mark.parametrize("family", ["internvl", "gemma3", "qwen3_vl", "llava_onevision", "mistral3"])
def test_a_description_of_pictures_is_refused_where_a_prompt_has_more_than_rows(
    copied: Callable[[str], Path], family: str
) -> None:
    path = copied(family)
    description = {
        "patch_dim": 14,
        "tile_size": 56,
        "use_tiling": True,
        "max_num_tiles": 4,
        "vision_model_type": "clip",
    }
    (path / "image_processing_config.json").write_text(json.dumps(description))
    assert "cannot be described by" in refusal(path)
