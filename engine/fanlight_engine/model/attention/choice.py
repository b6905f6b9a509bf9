"""Chooses the attention backend: the one that was asked for, or the fastest that device, number type and pages allow.

    cpu         our C kernels, where they can be compiled
    triton      our Triton kernels, on NVIDIA and AMD
    flash       torch's flash kernels, on NVIDIA from compute capability 8.0 on, over pages of 256 tokens
    reference   everywhere, and slow

Backends are imported when they are asked about: their packages need not be there.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.contradictions import FLASH_PAGE_MULTIPLE
from fanlight_engine.errors import ConfigError
from fanlight_engine.model.attention.interface import AttentionBackend
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.attention.trial import measure
from fanlight_engine.model.kv_cache import KeyValueShape

if TYPE_CHECKING:
    from fanlight_engine.model.attention.triton_backend import TritonAttention

_log = logging.getLogger(__name__)
_GPU_NUMBER_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_HALF_TYPES = (torch.float16, torch.bfloat16)
_TENSOR_CORES_FOR_ALL = (8, 0)
"""The compute capability from which on NVIDIA devices multiply bfloat16 and copy to shared memory beside computing."""
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a backend must do, and where."""

    device: torch.device
    shape: KeyValueShape
    heads: int
    page_size: int
    longest_context: int
    deterministic: bool = False
    cpu_kernels: bool = True

    @classmethod
    def of(
        cls, config: EngineConfig, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
    ) -> AttentionNeeds:
        """Of a checkpoint's decoder under a configuration, with device and number type as they were resolved."""
        decoder = checkpoint.config.get_text_config()
        return cls(
            device=device,
            shape=KeyValueShape.of(decoder, dtype),
            heads=decoder.num_attention_heads,
            page_size=config.page_size,
            longest_context=config.context_length or checkpoint.context_length,
            deterministic=config.deterministic,
            cpu_kernels=config.cpu_kernels,
        )


def choose_attention(name: str, needs: AttentionNeeds, report: Report = lambda line: None) -> AttentionBackend:
    """The backend of that name, or with auto the fastest that runs; `report` is told which, and why.

    Raises ConfigError where it cannot run here, or none can.
    """
    refuse_attention(name, needs)
    if name != "auto":
        report(f"attention: {name}, as configured")
        return _MAKERS[name](needs)
    refused = _refused(needs)
    runnable = [one for one in _candidates(needs) if one not in refused]
    if needs.device.type == "cuda" and runnable and not needs.deterministic:
        return _fastest(runnable, needs, _in_words(refused), report)
    # What is measured may come out otherwise at the next start, and other kernels give other last bits.
    chosen = runnable[0] if runnable else "reference"
    report(f"attention: {chosen}{_in_words(refused)}")
    return _MAKERS[chosen](needs)


def refuse_attention(name: str, needs: AttentionNeeds) -> None:
    """Raise ConfigError where the backend of that name cannot run, or with auto none can."""
    if name != "auto":
        why = _REFUSALS[name](needs)
        if why is not None:
            raise ConfigError(f"attention is {name}, which cannot run here: {why}; or choose auto")
    elif needs.deterministic:  # else there is the reference
        refused = _refused(needs)
        if len(refused) == len(_candidates(needs)):
            raise ConfigError(
                f"deterministic is on, and no attention backend that keeps its promise runs here{_in_words(refused)}; "
                "turn deterministic off"
            )


def _candidates(needs: AttentionNeeds) -> tuple[str, ...]:
    """What auto chooses from before it falls back to the reference, the most likely first."""
    return ("cpu",) if needs.device.type == "cpu" else ("triton", "flash")


def _refused(needs: AttentionNeeds) -> dict[str, str]:
    """Those of the candidates that cannot run, and why."""
    return {name: why for name in _candidates(needs) if (why := _REFUSALS[name](needs)) is not None}


def _in_words(refused: dict[str, str]) -> str:
    return "".join(f"; not {name}: {why}" for name, why in refused.items())


def _fastest(names: list[str], needs: AttentionNeeds, asides: str, report: Report) -> AttentionBackend:
    """The one whose usual step takes least; one that fails is left out, whatever the reason."""
    found = []
    for name in names:
        try:
            backend = _MAKERS[name](needs)
            timing = measure(backend, needs.shape, needs.heads, needs.page_size, needs.device)
        except Exception as error:  # a compiler and a driver that we do not know
            _log.exception("attention backend %s failed its trial", name)
            asides += f"; not {name}: its trial failed ({type(error).__name__}, see the log)"
        else:
            found.append((timing.total, backend, timing))
    if not found:
        report(f"attention: reference{asides}")
        return ReferenceAttention()
    found.sort(key=lambda one: one[0])
    measured = "; ".join(f"{backend.name} {timing}" for _, backend, timing in found)
    report(f"attention: {found[0][1].name}, by measurement of one layer: {measured}{asides}")
    return found[0][1]


def _why_no_reference(needs: AttentionNeeds) -> str | None:
    if needs.deterministic:
        return "its sums may depend on what is computed beside a request, and deterministic is on; turn it off"
    return None


def _why_no_cpu(needs: AttentionNeeds) -> str | None:
    if needs.device.type != "cpu":
        return f"it computes on a CPU, and device is {needs.device}"
    if not needs.cpu_kernels:
        return "cpu_kernels is off, which turns it off as well; turn cpu_kernels on"
    from fanlight_engine.model.cpu.build import CannotBuild
    from fanlight_engine.model.cpu.library import MOST_HEAD_DIM, kernels_for

    if needs.shape.head_dim > MOST_HEAD_DIM:
        return f"heads of this checkpoint are {needs.shape.head_dim} wide, and it has room for {MOST_HEAD_DIM}"
    try:
        kernels_for(needs.shape.dtype)
    except CannotBuild as error:
        return f"its kernels cannot be had: {error}"
    return None


def _why_no_triton(needs: AttentionNeeds) -> str | None:
    if needs.device.type != "cuda":
        return f"it needs a GPU of NVIDIA or AMD, and device is {needs.device}; set device to cuda"
    if find_spec("triton") is None:
        return "the package triton is not installed; pip install triton"
    if needs.shape.dtype not in _GPU_NUMBER_TYPES:
        return f"it computes in {_names(_GPU_NUMBER_TYPES)}, and dtype is {_name(needs.shape.dtype)}; choose one"
    if not _has_tensor_cores_for_all(needs.device):
        return f"it needs compute capability 8.0 or higher, and {needs.device} has {_capability(needs.device)}"
    return None


def _why_no_flash(needs: AttentionNeeds) -> str | None:
    why = _why_no_triton(needs)  # which it leaves some layers to
    if why is not None:
        return why
    if torch.version.hip is not None:
        return f"it needs a GPU of NVIDIA, and {needs.device} is none; choose triton"
    if needs.shape.dtype not in _HALF_TYPES:
        return f"it computes in {_names(_HALF_TYPES)}, and dtype is {_name(needs.shape.dtype)}; choose one"
    if not torch_knows_pages():
        return f"it needs torch 2.12 or higher, for flash attention over pages, and this is {torch.__version__}"
    from fanlight_engine.model.attention.flash import LARGEST_HEAD_DIM

    if needs.page_size % FLASH_PAGE_MULTIPLE:
        return (
            f"it needs pages of a multiple of {FLASH_PAGE_MULTIPLE} tokens, and page_size is {needs.page_size}; set "
            f"page_size to {FLASH_PAGE_MULTIPLE}"
        )
    if needs.shape.head_dim % 8 or needs.shape.head_dim > LARGEST_HEAD_DIM:
        return (
            f"heads of this checkpoint are {needs.shape.head_dim} wide, and it takes multiples of 8 up to "
            f"{LARGEST_HEAD_DIM}; choose triton"
        )
    return None


def _has_tensor_cores_for_all(device: torch.device) -> bool:
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= _TENSOR_CORES_FOR_ALL


def _capability(device: torch.device) -> str:
    return ".".join(map(str, torch.cuda.get_device_capability(device)))


def torch_knows_pages() -> bool:
    """Whether torch has flash attention over pages, whose arguments came one by one."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return {"block_table", "seqused_k", "num_splits"} <= inspect.signature(varlen_attn).parameters.keys()


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(map(_name, dtypes))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _make_cpu(needs: AttentionNeeds) -> AttentionBackend:
    from fanlight_engine.model.attention.cpu import CpuAttention
    from fanlight_engine.model.cpu.library import kernels_for

    return CpuAttention(kernels_for(needs.shape.dtype), each_query_alone=needs.deterministic)


def _make_triton(needs: AttentionNeeds) -> TritonAttention:
    from fanlight_engine.model.attention.triton_backend import TritonAttention
    from fanlight_engine.model.attention.triton_sizes import Processors

    count = torch.cuda.get_device_properties(needs.device).multi_processor_count
    if needs.deterministic:
        return TritonAttention(Processors.with_fixed_splits(count, needs.longest_context))
    return TritonAttention(Processors(count))


def _make_flash(needs: AttentionNeeds) -> AttentionBackend:
    from fanlight_engine.model.attention.flash import FlashAttention

    return FlashAttention(_make_triton(needs), needs.device, needs.deterministic)


_REFUSALS: dict[str, Callable[[AttentionNeeds], str | None]] = {
    "reference": _why_no_reference,
    "cpu": _why_no_cpu,
    "triton": _why_no_triton,
    "flash": _why_no_flash,
}
"""Why a backend cannot run, and what to change; None where it can."""
_MAKERS: dict[str, Callable[[AttentionNeeds], AttentionBackend]] = {
    "reference": lambda needs: ReferenceAttention(),
    "cpu": _make_cpu,
    "triton": _make_triton,
    "flash": _make_flash,
}
