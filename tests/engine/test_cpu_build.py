"""Kernels are compiled once, kept where nobody else can write, made again when damaged, and missed without harm."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.gguf.cache import CACHE_VARIABLE
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.messages import AddRequest, SamplingParams
from fanlight_engine.model.cpu.build import CannotBuild, built_library, is_whole
from fanlight_engine.model.cpu.library import Kernels
from fanlight_engine.model.cpu.processor import processor_features, targets_of
from tests.engine.driver import Driver

AVX2 = frozenset({"avx2", "fma"})
COMPILER = """#!{python}
import pathlib, sys
if "--version" in sys.argv:
    print("a compiler")
    raise SystemExit
calls = pathlib.Path({calls!r})
calls.write_text(calls.read_text() + "x")
if {refused!r} in sys.argv:
    print("error: unknown option", file=sys.stderr)
    raise SystemExit(1)
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(b"compiled")
"""


class FakeCompiler:
    """A `cc` that is the only program on the PATH; it makes files that are no libraries, and counts how many."""

    def __init__(self, directory: Path, refused: str = "none") -> None:
        self._calls = directory / "calls"
        self._calls.write_text("")
        program = directory / "cc"
        program.write_text(COMPILER.format(python=sys.executable, calls=str(self._calls), refused=refused))
        program.chmod(0o755)

    @property
    def calls(self) -> int:
        return len(self._calls.read_text())


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another test of this process found counts for none of these."""
    monkeypatch.setattr("fanlight_engine.model.cpu.library.built_library", built_library.__wrapped__)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return FakeCompiler(directory)


def build(directory: Path, features: frozenset[str] = AVX2, dtype: torch.dtype = torch.float32) -> Path:
    return built_library.__wrapped__(dtype, features, directory)[0]


def test_a_library_is_compiled_once_and_found_again(tmp_path: Path, compiler: FakeCompiler) -> None:
    library = build(tmp_path / "cache")
    assert is_whole(library)
    assert build(tmp_path / "cache") == library
    assert compiler.calls == 1
    assert stat.S_IMODE(library.stat().st_mode) & 0o077 == 0
    assert [one.name for one in library.parent.iterdir()] == [library.name]


def test_each_number_type_and_target_has_its_own_library(tmp_path: Path, compiler: FakeCompiler) -> None:
    everything = frozenset(
        feature for one in targets_of(processor_features(), torch.bfloat16) for feature in one.features
    )
    libraries = {
        build(tmp_path, features, dtype)
        for features in (AVX2, everything | AVX2)
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert len(libraries) >= 2
    assert compiler.calls == len(libraries)


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: b"", lambda content: b"X" + content[1:]]
)
def test_a_damaged_library_is_made_again(tmp_path: Path, compiler: FakeCompiler, damage) -> None:
    library = build(tmp_path)
    whole = library.read_bytes()
    library.write_bytes(damage(whole))
    assert not is_whole(library)
    assert build(tmp_path).read_bytes() == whole
    assert compiler.calls == 2


def test_several_that_build_at_once_leave_one_whole_library(tmp_path: Path, compiler: FakeCompiler) -> None:
    with ThreadPoolExecutor(4) as pool:
        libraries = set(pool.map(lambda _: build(tmp_path), range(4)))
    assert len(libraries) == 1
    assert is_whole(libraries.pop())
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_what_others_could_have_written_is_not_loaded(tmp_path: Path, compiler: FakeCompiler) -> None:
    library = build(tmp_path / "cache")
    library.chmod(0o722)
    assert not is_whole(library)
    library.parent.chmod(0o777)
    with pytest.raises(CannotBuild, match="others may write into it; chmod go-w it"):
        build(tmp_path / "cache")


def test_a_compiler_that_knows_only_older_processors_is_asked_for_those(tmp_path: Path, compiler: FakeCompiler) -> None:
    FakeCompiler(tmp_path / "bin", refused="-mavx512f")
    features = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    assert build(tmp_path / "cache", features).name.startswith("avx2-")
    assert compiler.calls == 2


def test_why_there_are_no_kernels_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: FakeCompiler
) -> None:
    with pytest.raises(CannotBuild, match="neither AVX-512 nor AVX2"):
        build(tmp_path, frozenset({"sse2"}))
    with pytest.raises(CannotBuild, match="there are none for float16"):
        build(tmp_path, AVX2, torch.float16)
    FakeCompiler(tmp_path / "bin", refused="-mavx2")
    with pytest.raises(CannotBuild, match=r"AVX2: .*cc fails: error: unknown option"):
        build(tmp_path / "cache")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(CannotBuild, match="cannot be made"):
        build(file / "cache")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(CannotBuild, match=r"no C compiler \(cc, gcc, clang\) on the PATH"):
        build(tmp_path)


def test_a_file_that_is_no_library_is_not_loaded(tmp_path: Path, compiler: FakeCompiler) -> None:
    with pytest.raises(CannotBuild, match="cannot be loaded"):
        Kernels(build(tmp_path), torch.float32, "AVX2")


def reports_of(checkpoint: Checkpoint, **settings: object) -> list[str]:
    lines: list[str] = []
    config: dict[str, object] = {"torch_threads": 1, "context_length": 64, **settings}
    build_engine(EngineConfig(**config), checkpoint, lines.append)  # pyright: ignore[reportArgumentType]
    return lines


def test_without_a_compiler_an_engine_says_so_and_answers_the_same(
    llama: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(torch_threads=1, context_length=64)
    request = AddRequest("r", tuple(range(30, 50)), SamplingParams(8))
    with_kernels = Driver(config, llama)
    with_kernels.add(request)
    with_kernels.run()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    without = Driver(config, llama)
    without.add(request)
    without.run()
    assert without.answers["r"].ids == with_kernels.answers["r"].ids
    lines = [line for line in reports_of(llama) if "no kernels for this CPU" in line]
    if targets_of(processor_features(), torch.float32):
        assert lines == ["no kernels for this CPU: there is no C compiler (cc, gcc, clang) on the PATH"]
    else:
        assert len(lines) == 1


def test_a_setting_turns_them_off(llama: Checkpoint) -> None:
    assert not [line for line in reports_of(llama, cpu_kernels=False) if "kernels for" in line]


def test_a_library_that_was_built_is_loaded_by_another_process(tmp_path: Path) -> None:
    """In a process of its own, so that nothing of this one's helps it."""
    if not targets_of(processor_features(), torch.float32):
        pytest.skip("no kernels for this processor")
    program = (
        "import torch; from fanlight_engine.model.cpu.library import kernels_for, matrix\n"
        "kernels, one = kernels_for(torch.float32), torch.ones(2, 3)\n"
        "print(kernels.linear(one, matrix(one)).tolist())"
    )
    environment = {**os.environ, CACHE_VARIABLE: str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
        if "no C compiler" in done.stderr:
            pytest.skip("no C compiler on this machine")
        assert done.stdout == "[[3.0, 3.0], [3.0, 3.0]]\n", done.stderr
    assert len(list((tmp_path / "kernels").glob("*.so"))) == 1
