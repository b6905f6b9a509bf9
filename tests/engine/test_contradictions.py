"""Settings that cannot hold together are refused: both are named with their sources, and what to change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine.config import CheckpointTraits, EngineConfig, Setting, resolve
from fanlight_engine.contradictions import CLIP_SETTINGS, PICTURE_SETTINGS, unused_settings
from fanlight_engine.errors import ConfigError

TEXT = CheckpointTraits("a-text-model")
PICTURES = CheckpointTraits("a-picture-model", takes_images=True, embedding_width=1024)


def refusal(**layers: Any) -> str:
    """What is said of these layers; the process's own environment takes no part."""
    with pytest.raises(ConfigError) as caught:
        resolve(**{"environment": {}, **layers})
    return str(caught.value)


def accepted(**layers: Any) -> EngineConfig:
    return resolve(**{"environment": {}, **layers}).config


def file_of(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "fanlight.toml"
    file.write_text(text)
    return file


def test_the_size_of_the_kv_cache_is_said_once(tmp_path: Path) -> None:
    assert refusal(file=file_of(tmp_path, "kv_cache_bytes = 1000000\nkv_pages = 100")) == (
        "kv_pages (100 from file) and kv_cache_bytes (1000000 from file) both say how large the KV cache is; kv_pages "
        "would win: leave one of them out, or set kv_pages to 0"
    )
    file = file_of(tmp_path, "kv_cache_bytes = 1000000")
    assert accepted(flags={"kv_pages": "100"}, file=file).kv_pages == 100, "the higher layer wins"
    assert accepted(flags={"kv_pages": "0"}, file=file).kv_cache_bytes == 1_000_000, "0 leaves it to the bytes"
    assert accepted(flags={"kv_pages": "100"}).kv_pages == 100


def test_bytes_of_a_higher_layer_win_over_pages_of_a_lower_one(tmp_path: Path) -> None:
    file = file_of(tmp_path, "kv_pages = 100")
    resolved = resolve({}, {"FANLIGHT_KV_CACHE_BYTES": "1000000"}, file)
    assert (resolved.config.kv_pages, resolved.config.kv_cache_bytes) == (0, 1_000_000)
    (pages,) = [one for one in resolved.settings if one.name == "kv_pages"]
    assert pages == Setting("kv_pages", 0, "environment", (("file", 100),))
    assert accepted(environment={"FANLIGHT_KV_CACHE_BYTES": "1000000"}, flags={"kv_pages": 7}).kv_pages == 7


def test_what_a_higher_layer_takes_from_a_lower_one_is_no_contradiction(tmp_path: Path) -> None:
    context = {"file": file_of(tmp_path, "context_length = 100")}
    assert accepted(flags={"kv_pages": 4}, **context).kv_pages == 4
    assert accepted(flags={"page_size": 100}, environment={"FANLIGHT_PREFIX_CACHE": "on"}, **context).page_size == 100
    answers = {"file": file_of(tmp_path, "default_max_new_tokens = 5000")}
    assert accepted(flags={"context_length": 64}, checkpoint={"context_length": 4096}, **answers).context_length == 64


def test_what_a_lower_layer_would_take_from_a_higher_one_is_refused(tmp_path: Path) -> None:
    told = refusal(flags={"context_length": 100}, file=file_of(tmp_path, "kv_pages = 4"))
    assert "context_length (100 from flag) asks for more; the pages would win" in told
    told = refusal(flags={"prefix_cache": True}, file=file_of(tmp_path, "page_size = 512\ncontext_length = 512"))
    assert "prefix_cache (true from flag) can keep nothing" in told


def test_a_chosen_context_needs_its_pages() -> None:
    told = refusal(flags={"kv_pages": 4, "context_length": 100})
    assert re.search(r"hold 48 tokens.*context_length \(100 from flag\) asks for more", told)
    assert "raise kv_pages to 8" in told
    assert accepted(flags={"kv_pages": 8, "context_length": 100}).kv_pages == 8
    assert accepted(flags={"kv_pages": 4}, checkpoint={"context_length": 100}).kv_pages == 4, "the model's is lowered"


def test_a_context_beyond_the_checkpoints_is_refused() -> None:
    told = refusal(environment={"FANLIGHT_CONTEXT_LENGTH": "8192"}, checkpoint={"context_length": 4096})
    assert told == (
        "context_length (8192 from environment) is above the 4096 tokens that the checkpoint was made for, which win: "
        "lower it, or leave it out to take 4096"
    )
    assert accepted(flags={"context_length": 0}, checkpoint={"context_length": 4096}).context_length == 0
    assert accepted(flags={"context_length": 4096}, checkpoint={"context_length": 4096}).context_length == 4096


def test_an_answer_longer_than_the_context_is_refused() -> None:
    told = refusal(flags={"default_max_new_tokens": 5000}, checkpoint={"context_length": 4096})
    assert "default_max_new_tokens (5000 from flag) is above context_length (4096 from checkpoint), which wins" in told
    assert accepted(flags={"default_max_new_tokens": 4096}, checkpoint={"context_length": 4096})


def test_a_prefix_cache_that_can_keep_no_page_is_refused_where_it_was_asked_for() -> None:
    sizes = {"page_size": 512, "context_length": 512}
    told = refusal(flags={"prefix_cache": True, **sizes})
    assert "prefix_cache (true from flag) can keep nothing" in told
    assert "page_size (512 from flag) is not below context_length (512 from flag)" in told
    assert accepted(flags=sizes).prefix_cache, "nobody asked for it"


def test_a_step_holds_a_token_of_every_running_request() -> None:
    told = refusal(flags={"max_step_tokens": 8})
    assert "max_step_tokens (8 from flag) is below max_running_requests (32 by default)" in told
    with pytest.raises(ConfigError, match=r"^max_step_tokens \(8\) is below max_running_requests \(32\):"):
        EngineConfig(max_step_tokens=8)


def test_hosts_without_fetching_are_refused_unless_fetching_was_turned_off_on_purpose(tmp_path: Path) -> None:
    hosts = {"media_url_hosts": "example.com"}
    told = refusal(flags=hosts)
    assert "media_url_hosts (example.com from flag) fetches nothing" in told
    assert "allow_media_urls (false by default) wins" in told
    file = file_of(tmp_path, 'allow_media_urls = true\nmedia_url_hosts = "example.com"')
    assert accepted(file=file, flags={"allow_media_urls": False}).media_url_hosts == "example.com"
    assert accepted(flags={**hosts, "allow_media_urls": True}).allow_media_urls


def test_fetching_without_hosts_is_refused() -> None:
    assert "allow_media_urls (true from flag) is on and media_url_hosts is empty" in refusal(
        flags={"allow_media_urls": True}
    )


def test_more_frames_by_default_than_are_allowed_are_refused() -> None:
    told = refusal(flags={"max_video_frames": 8})
    assert "default_video_frames (32 by default) is above max_video_frames (8 from flag)" in told


def test_a_request_may_not_hold_more_media_than_all_requests(tmp_path: Path) -> None:
    told = refusal(flags={"media_memory_bytes": 1000})
    assert "max_request_media_bytes (1073741824 by default) is above media_memory_bytes (1000 from flag)" in told
    assert accepted(flags={"media_memory_bytes": 1000, "max_request_media_bytes": 1000})


def test_a_directory_for_uploads_that_are_turned_off_is_refused(tmp_path: Path) -> None:
    told = refusal(flags={"media_store_directory": "uploads", "media_store_bytes": 0})
    assert "media_store_directory (uploads from flag) keeps nothing" in told
    file = file_of(tmp_path, 'media_store_directory = "uploads"')
    assert accepted(file=file, flags={"media_store_bytes": 0}).media_store_bytes == 0, "a flag may turn it off"


@pytest.mark.parametrize("name", PICTURE_SETTINGS)
def test_a_flag_about_pictures_is_refused_where_the_checkpoint_takes_none(name: str) -> None:
    value = "processing.json" if name == "image_processing_config" else 100
    told = refusal(flags={name: value}, traits=TEXT)
    assert told.startswith(f"{name} ({value} from flag) is about pictures, and a-text-model takes none: leave it out")
    resolve({name: 10**9 if name.endswith("bytes") else value}, {}, traits=PICTURES)


@pytest.mark.parametrize("name", CLIP_SETTINGS)
def test_a_flag_about_clips_is_refused_where_the_checkpoint_takes_none(name: str, tmp_path: Path) -> None:
    value = str(tmp_path) if name == "frame_manifest_root" else 100
    assert f"{name} ({value} from flag) is about clips, and a-picture-model takes none" in refusal(
        flags={name: value}, traits=PICTURES
    )


def test_what_several_servers_share_may_say_more_than_one_of_them_needs(tmp_path: Path) -> None:
    layers: Any = {
        "environment": {"FANLIGHT_MAX_IMAGES": "3"},
        "file": file_of(tmp_path, "max_videos = 2"),
        "traits": TEXT,
    }
    resolved = resolve(**layers)
    unused = unused_settings({one.name: one for one in resolved.settings}, TEXT)
    assert [str(one) for one in unused] == ["max_images (3 from environment)", "max_videos (2 from file)"]


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ({"vision_cache_bytes": 0}, 64 * 1024 * 4),
        ({"vision_cache_bytes": 64 * 1024 * 4 - 1}, 64 * 1024 * 4),
        ({"low_detail_tokens": 1 << 20}, (1 << 20) * 1024 * 4),
        ({"vision_cache_bytes": 64 * 1024 * 2 - 1, "dtype": "bfloat16"}, 64 * 1024 * 2),
    ],
)
def test_a_vision_cache_that_holds_no_picture_is_refused(flags: dict[str, Any], needed: int) -> None:
    told = refusal(flags=flags, traits=PICTURES)
    assert f"which takes {needed} bytes: every picture would be refused; raise vision_cache_bytes" in told


def test_a_vision_cache_that_holds_one_picture_is_enough() -> None:
    assert accepted(flags={"vision_cache_bytes": 64 * 1024 * 4}, traits=PICTURES)
    assert accepted(flags={"vision_cache_bytes": 64 * 1024 * 2, "dtype": "float16"}, traits=PICTURES)


def test_a_step_holds_a_picture_whose_tokens_see_each_other() -> None:
    traits = CheckpointTraits("gemma", takes_images=True, embedding_width=8, smallest_span=256)
    told = refusal(flags={"max_step_tokens": 280}, traits=traits)
    assert "max_step_tokens (280 from flag) is too small for gemma" in told
    assert "max_running_requests (32 by default): raise the first to 288" in told
    assert accepted(flags={"max_step_tokens": 288}, traits=traits)


def test_weights_are_quantised_once() -> None:
    quantised = CheckpointTraits("a-small-model", quantization="gptq")
    told = refusal(flags={"quantization": "int8"}, traits=quantised)
    assert told.startswith(
        "quantization (int8 from flag) is chosen, and the weights of a-small-model are quantised already (gptq)"
    )
    assert accepted(flags={"quantization": "int8"}, traits=TEXT).quantization == "int8"
    assert accepted(flags={"quantization": ""}, traits=quantised).quantization == ""


def test_an_adapter_has_a_name_of_its_own() -> None:
    assert "'a-text-model'" in refusal(flags={"lora": "a-text-model=somewhere"}, traits=TEXT)
    assert "two adapters 'a'" in refusal(environment={"FANLIGHT_LORA": "a=one,a=two"})


@pytest.mark.parametrize("attention", ["triton", "flash"])
def test_attention_of_gpus_needs_a_gpu(attention: str) -> None:
    assert refusal(flags={"attention": attention, "page_size": 256}) == (
        f"attention ({attention} from flag) needs a GPU (NVIDIA, AMD), and device (cpu by default) is none: set device "
        "to cuda, or choose auto"
    )
    assert accepted(flags={"attention": attention, "page_size": 256, "device": "cuda:1"}).attention == attention


def test_attention_of_cpus_needs_a_cpu() -> None:
    assert refusal(flags={"attention": "cpu", "device": "cuda"}) == (
        "attention (cpu from flag) computes on a CPU, and device (cuda from flag) is none: set device to cpu, or "
        "choose auto"
    )
    assert accepted(flags={"attention": "cpu"}).attention == "cpu"


def test_flash_attention_needs_large_pages() -> None:
    chosen = {"attention": "flash", "device": "cuda"}
    assert refusal(flags=chosen) == (
        "attention (flash from flag) needs pages of a multiple of 256 tokens, and page_size (16 by default) is none: "
        "set page_size to 256, or choose triton"
    )
    assert accepted(flags={**chosen, "page_size": 512}).page_size == 512
