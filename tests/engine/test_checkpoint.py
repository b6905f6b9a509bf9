"""A checkpoint directory is read for what it is, or refused with the file and the fix."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.checkpoints.description import describe
from fanlight_engine.checkpoints.families import PixelForm, Positions
from fanlight_engine.config import CheckpointTraits, resolve
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.loading.loader import load_model, resolve_dtype
from tests.engine.parity import MODELS

Edit = Callable[..., Path]


@pytest.fixture
def edited(llama_path: Path, tmp_path: Path) -> Edit:
    """A copy of the Llama checkpoint with changes to one of its JSON files; a value of None deletes the key."""

    def edit(file: str = "config.json", **changes: Any) -> Path:
        directory = tmp_path / "edited"
        if not directory.exists():
            shutil.copytree(llama_path, directory)
        content = {**json.loads((directory / file).read_text()), **changes}
        kept = {key: value for key, value in content.items() if value is not None}
        (directory / file).write_text(json.dumps(kept))
        return directory

    return edit


def test_the_facts_of_a_text_checkpoint_are_read(llama_path: Path) -> None:
    found = read_checkpoint(llama_path)
    config = json.loads((llama_path / "config.json").read_text())
    assert (found.name, found.path) == ("llama", llama_path)
    assert found.context_length == config["max_position_embeddings"]
    assert found.vocab_size == config["vocab_size"]
    assert found.hidden_size == config["hidden_size"]
    assert not found.takes_images
    assert found.image_token_id is None
    assert found.video_token_id is None
    assert not found.takes_videos
    assert read_checkpoint(str(llama_path), name="another").name == "another"


@pytest.mark.parametrize(
    ("fixture", "positions", "pixel_form"),
    [
        ("qwen2_vl_path", Positions.MROPE, PixelForm.GRID),
        ("qwen_path", Positions.MROPE, PixelForm.GRID),
        ("llava_path", Positions.ARANGE, PixelForm.TILES),
        ("llava_next_path", Positions.ARANGE, PixelForm.ANYRES),
        ("tiny_path", Positions.MROPE, PixelForm.GRID),
    ],
)
def test_the_facts_of_a_vision_checkpoint_are_read(
    fixture: str, positions: Positions, pixel_form: PixelForm, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(fixture)
    found = read_checkpoint(path)
    config = json.loads((path / "config.json").read_text())
    assert found.takes_images
    assert found.family.positions is positions
    assert found.family.pixel_form is pixel_form
    assert found.image_token_id in (config.get("image_token_id"), config.get("image_token_index"))
    assert found.image_token_id is not None
    assert found.video_token_id == config.get("video_token_id")
    assert found.takes_videos is (pixel_form is PixelForm.GRID)


def test_end_ids_come_from_the_generation_config_before_the_config(edited: Edit) -> None:
    assert read_checkpoint(edited("generation_config.json", eos_token_id=[5, 6])).end_ids == (5, 6)
    assert read_checkpoint(edited("generation_config.json", eos_token_id=7)).end_ids == (7,)
    edited("generation_config.json", eos_token_id=None)
    assert read_checkpoint(edited("config.json", eos_token_id=8)).end_ids == (8,)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"do_sample": None, "temperature": 0.7}, {}),
        ({"do_sample": False, "temperature": 0.7}, {"default_temperature": 0.0}),
        ({"do_sample": True}, {"default_temperature": 1.0, "default_top_k": 50}),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
            {"default_temperature": 0.6, "default_top_p": 0.9, "default_top_k": 20, "default_min_p": 0.05},
        ),
        ({"do_sample": True, "temperature": 0.0, "top_k": 0}, {"default_temperature": 0.0, "default_top_k": 0}),
        ({"do_sample": None, "repetition_penalty": 1.05}, {"default_repetition_penalty": 1.05}),
        (
            {"do_sample": False, "repetition_penalty": 1.1},
            {"default_temperature": 0.0, "default_repetition_penalty": 1.1},
        ),
        (
            {"do_sample": True, "temperature": 0.5, "top_k": 1, "repetition_penalty": 1},
            {"default_temperature": 0.5, "default_top_k": 1, "default_repetition_penalty": 1.0},
        ),
    ],
)
def test_unset_sampling_means_what_generate_would_do(
    generation: dict[str, Any], expected: dict[str, Any], edited: Edit
) -> None:
    found = read_checkpoint(edited("generation_config.json", **generation))
    assert found.sampling_settings == expected
    assert found.settings == {"context_length": found.context_length, **expected}


def test_a_checkpoint_without_generation_config_says_nothing_of_sampling(edited: Edit) -> None:
    directory = edited(eos_token_id=9)
    (directory / "generation_config.json").unlink()
    found = read_checkpoint(directory)
    assert (found.sampling_settings, found.end_ids, found.suggested_length) == ({}, (9,), None)


def test_the_length_that_generate_would_stop_at_is_told_and_not_a_setting(edited: Edit) -> None:
    found = read_checkpoint(edited("generation_config.json", max_new_tokens=128))
    assert found.suggested_length == 128
    assert "default_max_new_tokens" not in found.settings


@pytest.mark.parametrize("value", ["hot", [1], {"a": 1}])
def test_a_generation_config_without_numbers_where_they_belong_is_refused(value: Any, edited: Edit) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json has a value that is no number"):
        read_checkpoint(edited("generation_config.json", do_sample=True, temperature=value))


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, ""),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"bits": 4}, "unknown"),
        ({"load_in_8bit": True}, "bitsandbytes"),
    ],
)
def test_settings_are_judged_against_what_the_checkpoint_is(
    quantization: dict[str, Any] | None, expected: str, edited: Edit
) -> None:
    traits = read_checkpoint(edited("config.json", quantization_config=quantization)).traits
    assert traits == CheckpointTraits("edited", quantization=expected)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2', which is not supported: .*; supported: .*llama.*qwen2_5_vl"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": ["llama"]}, "not supported"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "code of its own"),
        ({"hidden_size": "many"}, "config.json cannot be read"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "ForSequenceClassification, which generate no text"),
        ({"architectures": ["LlamaForTokenClassification"]}, "give a checkpoint of llama that has a language-model"),
        ({"architectures": ["LlamaModel"]}, "architectures LlamaModel, which generate no text"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "many"}}, r"rotary parameters that are no numbers: .*"),
        ({"architectures": "LlamaModel"}, "architectures LlamaModel, which generate no text"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(changes: dict[str, Any], why: str, edited: Edit) -> None:
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(edited(**changes))


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "config.json is not JSON"), ("[1]", "holds list, a JSON object is needed"), ("\xff", "not JSON")],
)
def test_a_config_that_is_no_json_object_is_refused(content: str, why: str, edited: Edit) -> None:
    directory = edited()
    (directory / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(directory)


@pytest.mark.parametrize("missing", ["directory", "config"])
def test_a_directory_without_a_checkpoint_is_refused_with_what_belongs_there(missing: str, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" if missing == "directory" else tmp_path
    with pytest.raises(CheckpointError, match=r"has no config\.json: give the directory of a Hugging Face checkpoint"):
        read_checkpoint(path)


def test_the_fingerprint_is_of_the_contents_and_not_of_the_place(edited: Edit, llama_path: Path) -> None:
    copy = edited()
    shutil.copy(llama_path / "config.json", copy / "config.json")
    assert read_checkpoint(copy).fingerprint == read_checkpoint(llama_path).fingerprint


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"])
def test_the_fingerprint_changes_when_a_file_changes(file: str, edited: Edit) -> None:
    directory = edited()
    before = read_checkpoint(directory).fingerprint
    content = (directory / file).read_bytes()
    if file == "model.safetensors":
        (directory / file).write_bytes(content + b"\0")
    else:
        (directory / file).write_bytes(content.rstrip()[:-1] + b" }")
    assert read_checkpoint(directory).fingerprint != before


def test_files_that_do_not_matter_leave_the_fingerprint_alone(edited: Edit) -> None:
    directory = edited()
    before = read_checkpoint(directory).fingerprint
    (directory / "README.md").write_text("hello")
    assert read_checkpoint(directory).fingerprint == before


@pytest.mark.parametrize(
    "changes",
    [{"do_sample": True, "temperature": "warm"}, {"eos_token_id": ["two"]}, {"repetition_penalty": "much"}],
)
def test_a_generation_config_with_words_for_numbers_is_refused_by_name(edited: Edit, changes: dict[str, Any]) -> None:
    directory = edited("generation_config.json", **changes)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        read_checkpoint(directory)


def test_what_generate_would_do_and_the_engine_does_not_is_told(edited: Edit, llama: Checkpoint) -> None:
    directory = edited("generation_config.json", typical_p=0.9, no_repeat_ngram_size=0, repetition_penalty=1.05)
    assert read_checkpoint(directory).unapplied_settings == ("typical_p=0.9",)
    assert llama.unapplied_settings == ()


def test_settings_of_generate_are_told_where_they_change_tokens(edited: Edit) -> None:
    asked = {
        "min_new_tokens": 5,
        "guidance_scale": 1.5,
        "stop_strings": ["."],
        "renormalize_logits": True,
        "top_h": 0.4,
    }
    neutral = {"min_length": 0, "penalty_alpha": 0.0, "exponential_decay_length_penalty": None}
    told = read_checkpoint(edited("generation_config.json", **asked, **neutral)).unapplied_settings
    assert sorted(told) == sorted(f"{name}={value}" for name, value in asked.items())


def test_a_tower_that_the_family_does_not_know_is_refused(llava_path: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(llava_path, tmp_path / "llava"))
    content = json.loads((directory / "config.json").read_text())
    content["vision_config"] = {"model_type": "siglip2_vision_model", "hidden_size": 32}
    (directory / "config.json").write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"vision tower of model_type 'siglip2_vision_model'.*clip_vision_model, .*pixtral"
    ):
        read_checkpoint(directory)


@pytest.mark.parametrize("architectures", [None, [], ["VLlama3ForCausalLM"], ["LlamaModel", "LlamaForCausalLM"]])
def test_a_config_that_names_no_class_or_one_that_generates_is_read(
    architectures: list[str] | None, edited: Edit, llama: Checkpoint
) -> None:
    assert read_checkpoint(edited(architectures=architectures)).family == llama.family


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"rope_type": "yarn", "factor": 4.0}, 2048),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "linear", "factor": 4.0}, 512),
        ({"rope_type": "dynamic", "factor": 4.0}, 512),
    ],
)
def test_yarn_reaches_as_far_as_its_factor_says(scaling: dict[str, Any], expected: int, edited: Edit) -> None:
    """Model cards tell to add it and to leave max_position_embeddings as it is."""
    directory = edited(max_position_embeddings=512, rope_scaling=scaling, rope_parameters=None)
    checkpoint = read_checkpoint(directory)
    assert checkpoint.context_length == checkpoint.settings["context_length"] == expected


@pytest.mark.parametrize(
    ("top", "inside", "expected"),
    [
        ("float16", "bfloat16", "float16"),
        (None, "bfloat16", "bfloat16"),
        ("bfloat16", None, "bfloat16"),
        (None, None, ""),
    ],
)
def test_the_number_type_is_that_of_the_top_level_first(
    top: str | None, inside: str | None, expected: str, llava_path: Path, tmp_path: Path
) -> None:
    """As transformers' own "auto" takes it; what is served and what is told are one."""
    directory = Path(shutil.copytree(llava_path, tmp_path / "llava"))
    content = json.loads((directory / "config.json").read_text())
    content["text_config"] = {**content["text_config"], "dtype": inside}
    (directory / "config.json").write_text(json.dumps({**content, "dtype": top}))
    checkpoint = read_checkpoint(directory)
    assert checkpoint.dtype == describe(checkpoint).dtype == expected
    served = resolve_dtype("auto", checkpoint, torch.device("meta"))
    assert served is getattr(torch, expected or "bfloat16")


@pytest.mark.parametrize("model_type", ["idefics3", "smolvlm"])
def test_towers_are_known_by_their_published_names(model_type: str, tmp_path: Path) -> None:
    """config.json of Idefics3-8B and of the first SmolVLM give the tower the model_type of the whole."""
    directory = MODELS[model_type](tmp_path / model_type)
    as_saved = read_checkpoint(directory)
    content = json.loads((directory / "config.json").read_text())
    content["vision_config"]["model_type"] = model_type
    (directory / "config.json").write_text(json.dumps(content))
    checkpoint = read_checkpoint(directory)
    assert checkpoint.config.vision_config.model_type == model_type
    assert checkpoint.family == as_saved.family
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    weights = load_model(as_saved, torch.device("cpu"), torch.float32).state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


def test_the_step_holds_a_picture_whose_embeddings_see_each_other_without_a_choice(gemma: Checkpoint) -> None:
    """Beside as much text and as many other requests as a step holds otherwise."""
    assert "max_step_tokens" not in replaced(gemma, mm_tokens_per_image=256).settings
    large = replaced(gemma, mm_tokens_per_image=1024)
    resolved = resolve({}, {}, None, large.settings, large.traits)
    (step,) = (one for one in resolved.settings if one.name == "max_step_tokens")
    assert (step.value, step.source, step.overrode) == (1536, "checkpoint", (("default", 512),))
    with pytest.raises(ConfigError, match=r"max_step_tokens \(700 from flag\) is too small .* 1024 tokens of one step"):
        resolve({"max_step_tokens": 700}, {}, None, large.settings, large.traits)
    with pytest.raises(ConfigError, match=r"max_step_tokens \(1536 from checkpoint\) is too small"):
        resolve({"max_running_requests": 600}, {}, None, large.settings, large.traits)


def test_the_vision_cache_holds_4096_embeddings_of_a_wide_decoder_without_a_choice(qwen3_vl: Checkpoint) -> None:
    assert "vision_cache_bytes" not in qwen3_vl.settings
    wide = replace(qwen3_vl, hidden_size=4096)
    assert wide.embedding_width > 4096, "its layers get features of their own"
    resolved = resolve({}, {}, None, wide.settings, wide.traits)
    (cache,) = (one for one in resolved.settings if one.name == "vision_cache_bytes")
    assert (cache.value, cache.source) == (4096 * wide.embedding_width * 4, "checkpoint")
    chosen = resolve({"vision_cache_bytes": 1 << 26}, {}, None, wide.settings, wide.traits)
    assert chosen.config.vision_cache_bytes == 1 << 26


def test_a_text_checkpoint_asks_for_nothing_about_pictures(llama: Checkpoint) -> None:
    assert set(replace(llama, hidden_size=65536).settings) == set(llama.settings)


def replaced(checkpoint: Checkpoint, **values: Any) -> Checkpoint:
    """With other values in a copy of its configuration."""
    config = copy.deepcopy(checkpoint.config)
    for name, value in values.items():
        setattr(config, name, value)
    return replace(checkpoint, config=config)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(MODELS["gemma3"](tmp_path_factory.mktemp("gemma") / "gemma3"))


def test_reading_it_prints_no_notices_of_transformers(edited: Edit, caplog: pytest.LogCaptureFixture) -> None:
    """It warns of rotary parameters that it does not know, say."""
    scaling = {"rope_type": "yarn", "factor": 0.5, "of_our_own": 1, "rope_theta": 10_000.0}
    directory = edited(rope_parameters=scaling, rope_scaling=None)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        AutoConfig.from_pretrained(directory)
        assert "of_our_own" in caplog.text
        caplog.clear()
        read_checkpoint(directory)
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.text == ""
