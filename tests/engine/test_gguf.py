"""A GGUF file is served like the checkpoint it was made from; it is converted once, whole or not at all."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Phi3Config

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.checkpoints.gguf import conversion
from fanlight_engine.checkpoints.gguf.cache import ConvertedCheckpoints, default_cache_directory
from fanlight_engine.checkpoints.gguf.header import GgufHeader, read_header
from fanlight_engine.checkpoints.gguf.sizes import restore_sizes
from fanlight_engine.checkpoints.sources import ModelSource, resolve_model
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.loading import available_memory
from tests.engine.checkpoints import QWEN_TEMPLATE, corpus
from tests.engine.driver import Driver, compare, request_for
from tests.engine.gguf_files import write_gguf
from tests.engine.reference import Reference
from tests.engine.text_checkpoints import make_qwen2, make_qwen3

NEW_TOKENS = 16


@pytest.fixture(scope="module")
def gguf_file(llama_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' Llama in float32."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", llama_path)


@pytest.fixture(scope="module")
def source(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """It, converted."""
    return resolve_model(gguf_file, tmp_path_factory.mktemp("cache"))


def test_weights_end_ids_and_context_are_those_of_the_checkpoint_it_was_made_from(
    source: ModelSource, llama_path: Path
) -> None:
    converted, original = read_checkpoint(source.directory), read_checkpoint(llama_path)
    weights = load_file(source.directory / "model.safetensors")
    assert {name: weight.tolist() for name, weight in weights.items()} == {
        name: weight.tolist() for name, weight in load_file(llama_path / "model.safetensors").items()
    }
    assert set(converted.end_ids) == set(original.end_ids)
    assert converted.context_length == original.context_length
    assert converted.config.rope_parameters == original.config.rope_parameters
    assert not (source.directory / "config.json").read_text().count("quantization_config")


def test_text_and_conversations_become_the_ids_that_they_are_in_that_checkpoint(
    source: ModelSource, llama_path: Path
) -> None:
    converted, original = (AutoTokenizer.from_pretrained(path) for path in (source.directory, llama_path))
    turns = [{"role": "user", "content": text} for text in corpus(20)]
    assert converted(corpus(50))["input_ids"] == original(corpus(50))["input_ids"]
    assert converted.apply_chat_template(turns, tokenize=False) == original.apply_chat_template(turns, tokenize=False)


def test_answers_are_those_of_transformers_reading_the_file_itself(source: ModelSource, gguf_file: Path) -> None:
    checkpoint = read_checkpoint(source.directory, source.name)
    reference = Reference(source.directory)
    cases = [one for one in reference.cases(8, NEW_TOKENS) if not one.min_new_tokens]
    own: Any = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    for case in cases:
        ids = torch.tensor([case.prompt_ids])
        theirs = own.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=list(checkpoint.end_ids))
        assert theirs[0, ids.shape[1] :].tolist() == list(case.answer)
    driver = Driver(EngineConfig(), checkpoint)
    requests = [request_for(case, number, checkpoint, NEW_TOKENS) for number, case in enumerate(cases)]
    for request in requests:
        driver.add(request)
    driver.run()
    assert compare([driver.answers[one.request_id] for one in requests], cases).compared == len(cases)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (GGMLQuantizationType.Q8_0, torch.float32),
        (GGMLQuantizationType.F16, torch.float16),
        (GGMLQuantizationType.BF16, torch.bfloat16),
    ],
)
def test_plain_numbers_keep_their_type_and_quantised_ones_become_exact(
    stored: GGMLQuantizationType, expected: torch.dtype, llama_path: Path, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_path, tensor_type=stored)
    lines: list[str] = []
    directory = resolve_model(file, tmp_path / "cache", lines.append).directory
    weights = load_file(directory / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {expected}
    assert any("float32 holds their values exactly" in line for line in lines) == (expected is torch.float32)
    own = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=expected).state_dict()
    assert all(torch.equal(weights[name], own[name]) for name in weights)


def test_large_quantised_files_are_kept_in_half_the_size(
    llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_MOST_EXACT_BYTES", 1000)
    file = write_gguf(tmp_path / "tiny.gguf", llama_path, tensor_type=GGMLQuantizationType.Q8_0)
    lines: list[str] = []
    directory = resolve_model(file, tmp_path / "cache", lines.append).directory
    assert {one.dtype for one in load_file(directory / "model.safetensors").values()} == {torch.bfloat16}
    assert any("bfloat16, since float32 would take" in line for line in lines)


@pytest.mark.parametrize("make", [make_qwen2, make_qwen3])
def test_other_families_are_converted_alike(make: Callable[[Path], Path], tmp_path: Path) -> None:
    original = make(tmp_path / "original")
    file = write_gguf(tmp_path / "tiny.gguf", original, template=QWEN_TEMPLATE)
    converted = resolve_model(file, tmp_path / "cache").directory
    ours, theirs = load_file(converted / "model.safetensors"), load_file(original / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (converted, original)]
    texts = [*corpus(30), "<|im_start|>user\n<tool_call>1234</tool_call><|im_end|>"]
    assert tokenizers[0](texts)["input_ids"] == tokenizers[1](texts)["input_ids"]
    engine = build_engine(EngineConfig(kv_pages=8), read_checkpoint(converted))
    assert engine.facts.context_length == 7 * engine.facts.page_size


# What a GGUF says and transformers does not read


def test_rotary_divisors_become_the_type_that_they_come_from(llama_path: Path, tmp_path: Path) -> None:
    """As Llama 3.1 and later have them; any others are refused."""
    file = write_gguf(tmp_path / "tiny.gguf", llama_path, more_tensors={"rope_freqs.weight": llama3_divisors()})
    config = read_checkpoint(resolve_model(file, tmp_path / "cache").directory).config
    assert config.rope_parameters == {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    other = llama3_divisors() * np.float32(1.1)
    file = write_gguf(tmp_path / "other.gguf", llama_path, more_tensors={"rope_freqs.weight": other})
    with pytest.raises(CheckpointError, match=r"rotary divisors \(rope_freqs.weight\) that are not those of the type"):
        resolve_model(file, tmp_path / "cache")


def llama3_divisors() -> np.ndarray:
    """For heads of 16 numbers and a factor of 32: 1 for short waves, 32 for long ones, between them in between."""
    wavelengths = 2 * np.pi * 10_000.0 ** (np.arange(0, 16, 2) / 16)
    share = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    return (1 / ((1 - share) / 32 + share)).astype(np.float32)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rotary_scaling_is_put_back(kind: str, llama_path: Path, tmp_path: Path) -> None:
    def scaled(writer: GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", kind)
        writer.add_float32("llama.rope.scaling.factor", 4.0)
        writer.add_uint32("llama.rope.scaling.original_context_length", 512)

    directory = resolve_model(write_gguf(tmp_path / "t.gguf", llama_path, change=scaled), tmp_path / "c").directory
    parameters = read_checkpoint(directory).config.rope_parameters
    assert parameters["rope_type"] == kind
    assert parameters["factor"] == 4.0
    assert parameters["rope_theta"] == 10_000.0


def test_a_window_that_transformers_leaves_out_is_put_back() -> None:
    """As files of Phi-3 have it; a family without windows is left alone."""
    values = {"general.architecture": "phi3", "phi3.attention.sliding_window": 2047, "phi3.attention.key_length": 96}
    header = GgufHeader(Path("phi.gguf"), values, {})
    phi, llama = Phi3Config(), LlamaConfig()
    for config in (phi, llama):
        restore_sizes(header, config)
    assert phi.sliding_window == 2047
    assert not hasattr(llama, "sliding_window")
    assert llama.head_dim == 96


# What is refused


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("split.count", 3, "is one of 3 parts; merge them"),
        ("llama.rope.scaling.type", "longrope", "rotary positions of type 'longrope'"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(
    key: str, value: int | str, said: str, llama_path: Path, tmp_path: Path
) -> None:
    def changed(writer: GGUFWriter) -> None:
        writer.add_float32("llama.rope.scaling.factor", 4.0)
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint16(key, value)

    file = write_gguf(tmp_path / "tiny.gguf", llama_path, change=changed)
    with pytest.raises(CheckpointError, match=said):
        resolve_model(file, tmp_path / "cache")


@pytest.mark.parametrize("architecture", ["falcon", "rwkv6"])
def test_an_architecture_that_is_not_served_is_named(architecture: str, llama_path: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_path, architecture=architecture)
    with pytest.raises(CheckpointError, match=rf"tiny.gguf has architecture '{architecture}'"):
        resolve_model(file, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_tokenizer_that_cannot_be_had_is_said(llama_path: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_path, tokenizer_model="rwkv")
    with pytest.raises(CheckpointError, match=r"the tokenizer of .*tiny.gguf cannot be had from it: .*'rwkv'"):
        resolve_model(file, tmp_path / "cache")


def test_a_file_without_a_template_is_served_and_says_what_that_means(llama_path: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    resolve_model(write_gguf(tmp_path / "tiny.gguf", llama_path, template=""), tmp_path / "cache", lines.append)
    assert any("no chat template: raw prompts are answered, conversations are refused" in line for line in lines)


@pytest.mark.parametrize(("rule", "warns"), [("qwen2", False), ("smollm", False), ("deepseek-llm", True)])
def test_a_rule_of_words_that_transformers_does_not_know_is_said(
    rule: str, warns: bool, llama_path: Path, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_path, split=rule)
    lines: list[str] = []
    resolve_model(file, tmp_path / "cache", lines.append)
    assert any(f"cuts text by the rule '{rule}', which transformers does not know" in line for line in lines) == warns


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"no GGUF at all",
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"a", 99),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"a", 9, 9, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    ],
)
def test_a_file_that_is_no_gguf_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"broken.gguf is no complete GGUF file \(.*\); fetch or convert it again"
    ):
        resolve_model(file, tmp_path / "cache")


def test_a_file_that_was_cut_off_is_refused_and_leaves_nothing(gguf_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(gguf_file.read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match=r"tiny.gguf is cut off: its last weight ends at"):
        resolve_model(file, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_nothing_is_converted_that_memory_does_not_hold(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available_memory, "available_bytes", lambda _: 1000)
    with pytest.raises(CheckpointError, match=r"weights, which take 4\d\d KiB .* and 0.98 KiB are available"):
        resolve_model(gguf_file, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


# The cache


def test_a_second_start_reads_nothing_but_the_cache(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve_model(gguf_file, tmp_path)
    monkeypatch.setattr(conversion, "_convert", None)
    lines: list[str] = []
    assert resolve_model(gguf_file, tmp_path, lines.append) == first
    assert lines == [f"using {first.directory}, which was converted from tiny.gguf"]


@pytest.mark.parametrize("damage", ["cut", "removed", "added", "manifest"])
def test_a_torn_checkpoint_is_not_used_but_written_again(damage: str, gguf_file: Path, tmp_path: Path) -> None:
    directory = resolve_model(gguf_file, tmp_path).directory
    weights = directory / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "cut":
        weights.write_bytes(whole[:-1])
    elif damage == "removed":
        (directory / "tokenizer.json").unlink()
    elif damage == "added":
        (directory / "adapter_config.json").write_text("{}")
    else:
        (directory / "fanlight-conversion.json").write_text("{")
    assert resolve_model(gguf_file, tmp_path).directory == directory
    assert weights.read_bytes() == whole
    assert sorted(one.name for one in tmp_path.iterdir()) == [directory.name]


def test_another_content_under_the_same_name_is_another_checkpoint(
    gguf_file: Path, llama_path: Path, tmp_path: Path
) -> None:
    first = resolve_model(gguf_file, tmp_path).directory
    other = tmp_path / "other" / gguf_file.name
    other.parent.mkdir()
    write_gguf(other, llama_path, template="{{ messages[0]['content'] }}")
    assert resolve_model(other, tmp_path).directory != first


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fails(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half of it")
        raise CheckpointError("something is wrong")

    with pytest.raises(CheckpointError, match="something is wrong"):
        ConvertedCheckpoints(tmp_path).store("key", fails, 0)
    assert not list(tmp_path.iterdir())


def test_what_a_crash_left_is_not_used_and_removed_when_it_is_old(tmp_path: Path) -> None:
    cache = ConvertedCheckpoints(tmp_path)
    old, running = tmp_path / ".unfinished-old", tmp_path / ".unfinished-running"
    for one in (old, running):
        one.mkdir()
        (one / "config.json").write_text("{}")
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    assert cache.find("key") is None
    cache.store("key", lambda directory: (directory / "config.json").touch(), 0)
    assert not old.exists()
    assert running.exists()


def test_two_at_once_both_get_a_whole_checkpoint(tmp_path: Path) -> None:
    cache = ConvertedCheckpoints(tmp_path)
    both_write = threading.Barrier(2)
    places: list[Path] = []

    def write(directory: Path) -> None:
        (directory / "config.json").write_text(json.dumps({"by": threading.get_ident()}))
        both_write.wait()

    threads = [threading.Thread(target=lambda: places.append(cache.store("key", write, 0))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert places == [tmp_path / "key"] * 2
    assert cache.find("key") == tmp_path / "key"
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


def test_a_cache_without_room_or_that_cannot_be_written_says_where_another_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"needs .* TiB and .* has room for .*FANLIGHT_CACHE_DIR"):
        ConvertedCheckpoints(tmp_path).store("key", lambda _: None, 1 << 60)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be kept in .*FANLIGHT_CACHE_DIR"):
        ConvertedCheckpoints(tmp_path / "file" / "below").store("key", lambda _: None, 0)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FANLIGHT_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_directory() == Path.home() / ".cache" / "fanlight"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_directory() == tmp_path / "fanlight"
    monkeypatch.setenv("FANLIGHT_CACHE_DIR", str(tmp_path / "own"))
    assert default_cache_directory() == tmp_path / "own"


def test_a_header_is_read_without_its_arrays(gguf_file: Path) -> None:
    header = read_header(gguf_file)
    assert header.architecture == "llama"
    assert header.plain_type == "float32"
    assert header.values["tokenizer.ggml.tokens"] == header.of_model("vocab_size")
