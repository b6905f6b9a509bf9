"""A GGUF that lacks weights is told by its header, before any weight is read; the names are those of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.checkpoints.gguf import completeness, conversion
from fanlight_engine.checkpoints.sources import resolve_model
from fanlight_engine.errors import CheckpointError
from tests.engine.gguf_files import write_gguf


def test_a_file_of_a_vocabulary_alone_is_told_before_anything_is_read(llama_path: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    file = write_gguf(tmp_path / "vocab.gguf", llama_path, keeps=lambda name: False)
    with pytest.raises(CheckpointError, match=r"vocab.gguf holds no weights"):
        resolve_model(file, tmp_path / "cache", lines.append)
    assert not lines
    assert not (tmp_path / "cache").exists()


def test_weights_that_are_missing_are_named_as_the_file_calls_them_and_none_is_read(
    llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conversion, "_read_model", None)
    lost = ("blk.1.ffn_up.weight", "output_norm.weight")
    file = write_gguf(tmp_path / "tiny.gguf", llama_path, keeps=lambda name: name not in lost)
    with pytest.raises(CheckpointError, match=rf"tiny.gguf lacks 2 of the weights .*: {', '.join(lost)}; fetch it"):
        resolve_model(file, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_a_file_whose_head_is_its_embeddings_lacks_nothing(llama_path: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tied.gguf", llama_path, keeps=lambda name: name != "output.weight")
    assert read_checkpoint(resolve_model(file, tmp_path / "cache").directory).config.tie_word_embeddings


def test_what_only_the_reader_finds_missing_is_said_once_and_without_its_report(
    llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completeness, "refuse_incomplete", lambda *_: None)
    file = write_gguf(tmp_path / "tiny.gguf", llama_path, keeps=lambda name: name != "output_norm.weight")
    with pytest.raises(CheckpointError, match=r"tiny.gguf lacks 1 weights, the first is model.norm.weight"):
        resolve_model(file, tmp_path / "cache")
    assert "LOAD REPORT" not in "".join(capfd.readouterr())
