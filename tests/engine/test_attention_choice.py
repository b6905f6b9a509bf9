"""The attention backend is the one asked for or the fastest that runs; another is refused with what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import ConfigError
from fanlight_engine.model.attention import choice
from fanlight_engine.model.attention.choice import AttentionNeeds, choose_attention, refuse_attention
from fanlight_engine.model.attention.interface import AttentionBackend
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.attention.trial import CHUNK, ROWS, Timing, usual_steps
from fanlight_engine.model.kv_cache import KeyValueShape
from fanlight_engine.preflight import refuse_what_would_not_start

SHAPE = KeyValueShape(layers=2, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
CPU = AttentionNeeds(torch.device("cpu"), SHAPE, heads=8, page_size=16, longest_context=4096)
GPU = replace(CPU, device=torch.device("cuda"), page_size=256)


class Named(ReferenceAttention):
    """A backend that only has a name."""

    def __init__(self, name: str) -> None:
        self.name = name


class Device:
    """A GPU as far as choosing goes: what it is, and how fast backends are on it."""

    def __init__(self) -> None:
        self.capability: tuple[int, int] = (9, 0)
        self.milliseconds = {"triton": 1.0, "flash": 2.0}
        self.measured: list[str] = []

    def measure(self, backend: AttentionBackend, *others: object) -> Timing:
        self.measured.append(backend.name)
        if backend.name not in self.milliseconds:
            raise RuntimeError("no such instruction")
        return Timing(decode=self.milliseconds[backend.name], chunk=0.5)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: device.capability)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(choice, "find_spec", lambda name: name)
    monkeypatch.setattr(choice, "torch_knows_pages", lambda: True)
    monkeypatch.setattr(choice, "measure", device.measure)
    makers: dict[str, Any] = {name: lambda needs, name=name: Named(name) for name in ("cpu", "triton", "flash")}
    monkeypatch.setattr(choice, "_MAKERS", {**choice._MAKERS, **makers})
    return device


@pytest.fixture
def cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Sets why there are no kernels for this CPU, None where there are."""

    def set_reason(why: str | None) -> None:
        monkeypatch.setattr(choice, "_REFUSALS", {**choice._REFUSALS, "cpu": lambda needs: why})
        monkeypatch.setattr(choice, "_MAKERS", {**choice._MAKERS, "cpu": lambda needs: Named("cpu")})

    return set_reason


def chosen(name: str, needs: AttentionNeeds) -> tuple[str, str]:
    """The chosen backend's name, and what was reported."""
    reported: list[str] = []
    backend = choose_attention(name, needs, reported.append)
    (line,) = reported
    return backend.name, line


def test_auto_takes_the_faster_one_of_those_that_run_and_says_the_figures(gpu: Device) -> None:
    name, line = chosen("auto", GPU)
    assert (name, gpu.measured) == ("triton", ["triton", "flash"])
    assert "triton 1.000 ms for 16 decodes, 0.500 ms for a chunk of 512; flash 2.000 ms" in line
    gpu.milliseconds["flash"] = 0.5
    assert chosen("auto", GPU)[0] == "flash"


def test_auto_tells_why_one_was_not_measured(gpu: Device) -> None:
    name, line = chosen("auto", replace(GPU, page_size=16))
    assert (name, gpu.measured) == ("triton", ["triton"])
    assert "not flash: it needs pages of a multiple of 256 tokens, and page_size is 16" in line


def test_auto_leaves_out_what_fails_its_trial(gpu: Device) -> None:
    del gpu.milliseconds["triton"]
    name, line = chosen("auto", GPU)
    assert name == "flash"
    assert "not triton: its trial failed (RuntimeError, see the log)" in line
    gpu.milliseconds.clear()
    assert chosen("auto", GPU)[0] == "reference"


def test_answers_that_must_be_the_same_after_a_restart_are_not_left_to_a_measurement(gpu: Device) -> None:
    gpu.milliseconds["flash"] = 0.1
    assert chosen("auto", replace(GPU, deterministic=True))[0] == "triton"
    assert not gpu.measured


def test_a_name_is_honoured_without_a_measurement(gpu: Device) -> None:
    assert chosen("flash", GPU) == ("flash", "attention: flash, as configured")
    assert chosen("reference", GPU)[0] == "reference"
    assert not gpu.measured


def test_a_cpu_has_our_kernels_where_they_can_be_had_else_the_reference(
    cpu_kernels: Callable[[str | None], None],
) -> None:
    cpu_kernels(None)
    assert chosen("auto", CPU) == ("cpu", "attention: cpu")
    cpu_kernels("there is no compiler")
    assert chosen("auto", CPU) == ("reference", "attention: reference; not cpu: there is no compiler")


def test_a_promise_that_no_backend_here_keeps_is_refused(cpu_kernels: Callable[[str | None], None]) -> None:
    promised = replace(CPU, deterministic=True)
    cpu_kernels(None)
    assert chosen("auto", promised)[0] == "cpu"
    with pytest.raises(ConfigError, match="attention is reference, which cannot run here: its sums may depend"):
        refuse_attention("reference", promised)
    cpu_kernels("there is no compiler")
    with pytest.raises(ConfigError, match=r"deterministic is on, and no .* here; not cpu: there is no compiler; turn"):
        choose_attention("auto", promised)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("cpu", {}, "it computes on a CPU, and device is cuda"),
        (
            "triton",
            {"device": torch.device("cpu")},
            "it needs a GPU of NVIDIA or AMD, and device is cpu; set device to",
        ),
        ("triton", {"shape": replace(SHAPE, dtype=torch.float64)}, "dtype is float64; choose one"),
        ("flash", {"page_size": 16}, "page_size is 16; set page_size to 256"),
        ("flash", {"shape": replace(SHAPE, dtype=torch.float32)}, "float16 or bfloat16, and dtype is float32"),
        ("flash", {"shape": replace(SHAPE, head_dim=12)}, "heads of this checkpoint are 12 wide"),
        ("flash", {"shape": replace(SHAPE, head_dim=512)}, "multiples of 8 up to 256; choose triton"),
    ],
)
def test_a_backend_that_cannot_run_is_refused_with_what_to_change(
    gpu: Device, name: str, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"attention is {name}, which cannot run here: ") as caught:
        refuse_attention(name, replace(GPU, **changes))
    assert why in str(caught.value)
    with pytest.raises(ConfigError):
        choose_attention(name, replace(GPU, **changes))
    refuse_attention("auto", replace(GPU, **changes))


@pytest.mark.parametrize("name", ["triton", "flash"])
def test_an_old_gpu_is_refused_by_its_capability(gpu: Device, name: str) -> None:
    gpu.capability = (7, 5)
    with pytest.raises(ConfigError, match=r"compute capability 8\.0 or higher, and cuda has 7\.5"):
        refuse_attention(name, GPU)


def test_an_amd_gpu_has_triton_and_no_flash(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    refuse_attention("triton", GPU)
    with pytest.raises(ConfigError, match="it needs a GPU of NVIDIA, and cuda is none; choose triton"):
        refuse_attention("flash", GPU)


def test_missing_packages_are_named(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "torch_knows_pages", lambda: False)
    with pytest.raises(ConfigError, match=r"it needs torch 2\.12 or higher"):
        refuse_attention("flash", GPU)
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="the package triton is not installed; pip install triton"):
        refuse_attention("triton", GPU)


def test_kernels_that_are_turned_off_or_too_narrow_are_refused() -> None:
    with pytest.raises(ConfigError, match="cpu_kernels is off"):
        refuse_attention("cpu", replace(CPU, cpu_kernels=False))
    with pytest.raises(ConfigError, match="heads of this checkpoint are 1024 wide"):
        refuse_attention("cpu", replace(CPU, shape=replace(SHAPE, head_dim=1024)))


def test_what_is_needed_follows_from_checkpoint_and_settings(llama: Checkpoint) -> None:
    decoder = llama.config.get_text_config()
    config = EngineConfig(page_size=32, deterministic=True, cpu_kernels=False)
    needs = AttentionNeeds.of(config, llama, torch.device("cpu"), torch.float32)
    assert (needs.heads, needs.shape.kv_heads) == (decoder.num_attention_heads, decoder.num_key_value_heads)
    assert (needs.page_size, needs.longest_context) == (32, llama.context_length)
    assert (needs.deterministic, needs.cpu_kernels) == (True, False)


def test_a_backend_that_would_not_start_is_told_before_anything_is_loaded(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_REFUSALS", {**choice._REFUSALS, "cpu": lambda needs: "there is no compiler"})
    with pytest.raises(ConfigError, match="attention is cpu, which cannot run here: there is no compiler"):
        refuse_what_would_not_start(EngineConfig(attention="cpu"), llama)


@pytest.mark.parametrize("page_size", [16, 256])
def test_the_steps_that_are_measured_are_steps_that_a_backend_can_run(page_size: int) -> None:
    shape = KeyValueShape(1, 2, 8, torch.float32)
    decode, chunk = usual_steps(ReferenceAttention(), shape, 4, page_size, torch.device("cpu"))
    assert (decode.run().shape, chunk.run().shape) == ((ROWS, 4, 8), (CHUNK, 4, 8))
    assert bool(chunk.run().isfinite().all())
