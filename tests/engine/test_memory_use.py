"""What a model takes is known by part before anything is allocated, and what cannot fit is refused with the numbers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core import build
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.memory_use import MemoryUse, readable_bytes
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.loading import available_memory
from fanlight_engine.model.loading.available_memory import available_bytes
from fanlight_engine.model.loading.loader import load_model
from fanlight_engine.model.loading.memory_estimate import refuse_what_cannot_fit
from fanlight_engine.model.lora.rows import AdaptedLinear
from tests.engine.lora_adapters import make_lora

CPU = torch.device("cpu")
USE = MemoryUse(6 << 20, 2 << 20, 1 << 20, 8 << 20, 4 << 20)
FIXTURES = ("llama_path", "qwen_path", "llava_path")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fixture", FIXTURES)
def test_parts_are_what_the_loaded_model_and_its_caches_take(
    fixture: str, dtype: str, request: pytest.FixtureRequest
) -> None:
    checkpoint = read_checkpoint(request.getfixturevalue(fixture))
    lines: list[str] = []
    engine = build_engine(EngineConfig(dtype=dtype, kv_pages=32), checkpoint, lines.append)
    memory = engine.facts.memory
    model: Any = load_model(checkpoint, CPU, getattr(torch, dtype))
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    ends = {id(one) for module in (decoder.get_input_embeddings(), head) for one in module.parameters()}
    assert memory.embeddings_bytes == bytes_of([one for one in model.parameters() if id(one) in ends])
    assert memory.decoder_bytes == bytes_of([one for one in decoder.parameters() if id(one) not in ends])
    assert memory.weight_bytes == bytes_of(list(model.parameters()))
    cache = engine._runner._cache
    assert memory.key_value_bytes == cache._keys.nbytes + cache._values.nbytes
    assert memory.vision_cache_bytes == (EngineConfig().vision_cache_bytes if checkpoint.takes_images else 0)
    assert any(line.startswith(f"memory on cpu: {memory.in_words()}; ") for line in lines)


def bytes_of(parameters: list[torch.nn.Parameter]) -> int:
    return sum(one.nbytes for one in parameters)


def test_weights_that_are_shared_are_counted_once(tmp_path: Path, llama_path: Path) -> None:
    config = AutoConfig.from_pretrained(llama_path, tie_word_embeddings=True)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "tied")
    checkpoint = read_checkpoint(tmp_path / "tied")
    memory = build_engine(EngineConfig(kv_pages=8), checkpoint).facts.memory
    assert memory.embeddings_bytes == checkpoint.vocab_size * checkpoint.hidden_size * 4


def test_what_fits_exactly_is_not_refused() -> None:
    refuse_what_cannot_fit("tiny", USE, USE.total_bytes, CPU)
    refuse_what_cannot_fit("tiny", USE, None, CPU)


def test_caches_that_do_not_fit_are_the_settings_fault_which_are_named_with_all_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_what_cannot_fit("tiny", USE, USE.total_bytes - 1, CPU)
    assert str(caught.value) == (
        "tiny takes 21.0 MiB on cpu (decoder 6.00 MiB, embeddings and head 2.00 MiB, vision tower 1.00 MiB, KV cache "
        "8.00 MiB, vision cache 4.00 MiB), and 21.0 MiB are available: its weights fit and leave 12.0 MiB for caches; "
        "lower kv_cache_bytes (or context_length, max_running_requests) or vision_cache_bytes"
    )


def test_pages_that_were_chosen_and_do_not_fit_are_named_instead_of_the_bytes() -> None:
    with pytest.raises(ConfigError, match=r"; lower kv_pages \(7\) or vision_cache_bytes$"):
        refuse_what_cannot_fit("tiny", USE, USE.total_bytes - 1, CPU, kv_pages=7)


def test_weights_that_do_not_fit_are_the_checkpoints_fault() -> None:
    with pytest.raises(CheckpointError, match=r"weights alone do not fit; try --dtype bfloat16 or --quantization int8"):
        refuse_what_cannot_fit("tiny", USE, USE.weight_bytes - 1, CPU)


@pytest.mark.parametrize(("available", "error"), [(1000, CheckpointError), (2 << 20, ConfigError)])
def test_nothing_is_loaded_of_what_cannot_fit(
    available: int, error: type[Exception], llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "available_bytes", lambda _: available)
    monkeypatch.setattr(build, "load_planned", None)
    with pytest.raises(error, match=f"and {readable_bytes(available)} are available"):
        build_engine(EngineConfig(), llama)


def test_a_start_names_the_pages_that_were_chosen(llama: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "available_bytes", lambda _: 2 << 20)
    with pytest.raises(ConfigError, match=r"; lower kv_pages \(100000\)$"):
        build_engine(EngineConfig(kv_pages=100_000), llama)


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "0.98 KiB"), (538_090_408, "513 MiB"), (1 << 50, "1024 TiB")],
)
def test_bytes_are_readable(count: int, words: str) -> None:
    assert readable_bytes(count) == words


def test_only_parts_that_there_are_are_told() -> None:
    assert replace(USE, vision_tower_bytes=0, vision_cache_bytes=0).in_words() == (
        "decoder 6.00 MiB, embeddings and head 2.00 MiB, KV cache 8.00 MiB"
    )


def test_a_head_that_config_json_shares_and_the_files_hold_by_itself_is_counted(
    llama_path: Path, tmp_path: Path
) -> None:
    """transformers shares the two only where they are equal."""
    directory = Path(shutil.copytree(llama_path, tmp_path / "copy"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    engine = build_engine(EngineConfig(kv_pages=8), read_checkpoint(directory))
    model: Any = engine._runner._adapter._model
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    assert engine.facts.memory.weight_bytes == bytes_of(list(model.parameters()))


def test_adapters_are_counted(llama_path: Path, llama: Checkpoint, tmp_path: Path) -> None:
    paths = [make_lora(tmp_path / name, llama_path, 1, target_modules=["q_proj", "lm_head"]) for name in ("a", "b")]
    setting = ",".join(f"{path.name}={path}" for path in paths)
    for dtype in ("float32", "bfloat16"):
        engine = build_engine(EngineConfig(kv_pages=8, lora=setting, dtype=dtype), llama)
        adapted = [one for one in engine._runner._adapter._model.modules() if isinstance(one, AdaptedLinear)]
        memory = engine.facts.memory
        assert memory.lora_bytes == sum(one.down.nbytes + one.up.nbytes for one in adapted) > 0
        assert ("LoRA adapters", memory.lora_bytes) in memory.parts()


# What the machine says


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that Linux tells of memory in, with 1000 KiB available and no group of ours."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n")
    (tmp_path / "own").write_text("")
    (tmp_path / "groups").mkdir()
    monkeypatch.setattr(available_memory, "_MEMORY_INFORMATION", tmp_path / "meminfo")
    monkeypatch.setattr(available_memory, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(available_memory, "_GROUPS", tmp_path / "groups")
    return tmp_path


def limit_group(group: Path, limit: str, used: int, cached: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 7\ninactive_file {cached}\n")


def test_this_machine_says_how_much_it_has() -> None:
    available = available_bytes(CPU)
    assert available is not None
    assert 1 << 20 < available < 1 << 50


def test_without_a_limit_it_is_what_the_kernel_could_give(machine: Path) -> None:
    assert available_bytes(CPU) == 1000 * 1024


def test_a_limit_of_our_group_or_of_one_above_it_counts_less_what_is_used_but_not_the_file_cache(machine: Path) -> None:
    (machine / "own").write_text("0::/outer/inner\n")
    limit_group(machine / "groups", "max", 0)
    limit_group(machine / "groups" / "outer", "500000", used=300_000, cached=100_000)
    limit_group(machine / "groups" / "outer" / "inner", "max", 0)
    assert available_bytes(CPU) == 300_000
    limit_group(machine / "groups" / "outer" / "inner", "1000", used=5000)
    assert available_bytes(CPU) == 0


def test_the_first_kind_of_groups_is_read_too(machine: Path) -> None:
    (machine / "own").write_text("7:cpu,memory:/box\n3:pids:/box\n")
    group = machine / "groups" / "memory" / "box"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("5000")
    (group / "memory.usage_in_bytes").write_text("3000")
    (group / "memory.stat").write_text("total_inactive_file 1000")
    assert available_bytes(CPU) == 3000


def test_a_machine_that_says_nothing_refuses_nothing(machine: Path) -> None:
    (machine / "meminfo").unlink()
    assert available_bytes(CPU) is None
    assert available_bytes(torch.device("meta")) is None
