"""A MODEL argument means a directory, a GGUF file, a directory that holds one, or a model by name; else it says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fanlight_engine.checkpoints import sources
from fanlight_engine.checkpoints.sources import ModelSource, resolve_model
from fanlight_engine.errors import CheckpointError
from tests.engine.gguf_files import write_gguf


@pytest.fixture(scope="module")
def gguf_file(llama_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "Tiny-Q4.gguf", llama_path)


def test_a_checkpoint_directory_is_itself(llama_path: Path) -> None:
    assert resolve_model(llama_path) == ModelSource(llama_path, "llama")
    assert resolve_model(str(llama_path)) == ModelSource(llama_path, "llama")


def test_the_name_is_the_directorys_own_however_it_is_written(
    llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(llama_path)
    assert resolve_model(".").name == "llama"


def test_a_gguf_file_is_converted_and_named_after_itself(gguf_file: Path, tmp_path: Path) -> None:
    source = resolve_model(gguf_file, tmp_path)
    assert source.name == "Tiny-Q4"
    assert source.gguf_file == gguf_file
    assert source.directory.parent == tmp_path
    assert (source.directory / "config.json").is_file()


def test_a_directory_with_one_gguf_means_that_file(gguf_file: Path, tmp_path: Path) -> None:
    assert resolve_model(gguf_file.parent, tmp_path) == resolve_model(gguf_file, tmp_path)


def test_a_directory_with_a_configuration_is_a_checkpoint_whatever_lies_beside_it(
    llama_path: Path, gguf_file: Path, tmp_path: Path
) -> None:
    both = Path(shutil.copytree(llama_path, tmp_path / "both"))
    shutil.copy(gguf_file, both)
    assert resolve_model(both) == ModelSource(both, "both")


def test_several_ggufs_in_a_directory_are_a_question(gguf_file: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.GGUF"):
        shutil.copy(gguf_file, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"2 GGUF files \(a.gguf, b.GGUF\): name one of them"):
        resolve_model(tmp_path)


def test_an_adapter_is_no_model_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds a LoRA adapter.*--lora NAME="):
        resolve_model(tmp_path)


def test_a_directory_with_nothing_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config.json and no GGUF file: give the directory of a Hugging Face"):
        resolve_model(tmp_path)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is a file, but no .gguf"):
        resolve_model(file)


@pytest.mark.parametrize("argument", ["./nowhere", "/nowhere/at/all", ""])
def test_what_is_nowhere_says_what_was_looked_for(
    argument: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"is no directory, no GGUF file and no model .* by name \(smollm2\)$"):
        resolve_model(argument or "nothing")


@pytest.mark.parametrize("argument", ["smollm", "SmolLM2", "smollm-2"])
def test_a_name_that_is_almost_one_is_told_which(
    argument: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"by name \(smollm2\); did you mean smollm2\?$"):
        resolve_model(argument)


def test_a_gguf_file_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nofile.gguf does not exist; give the path of a GGUF file$"):
        resolve_model(tmp_path / "nofile.gguf")


def test_a_name_of_the_hub_is_told_that_nothing_is_downloaded() -> None:
    with pytest.raises(CheckpointError, match=r"nothing is downloaded, so fetch it first and give its directory$"):
        resolve_model("Qwen/Qwen3-0.6B")


def test_a_model_by_name_is_the_file_inside_its_package_and_nothing_of_that_package_runs(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "some_tiny_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('it was imported')")
    shutil.copy(gguf_file, package / "inside.gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setitem(sources.PACKAGED_MODELS, "tiny", "some_tiny_model")
    source = resolve_model("tiny", tmp_path / "cache")
    assert source.name == "tiny"
    assert source.gguf_file == package / "inside.gguf"
    (package / "inside.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"some_tiny_model holds 0 GGUF files, one is needed .* reinstall it"):
        resolve_model("tiny", tmp_path / "cache")
