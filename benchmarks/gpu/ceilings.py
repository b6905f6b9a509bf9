"""What the card gives, measured in the same run: the limits that every other figure is a share of.

Copies count bytes read and bytes written. Data is random (zeros run faster) and several times larger than any cache.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from benchmarks.gpu.timing import round_seconds
from benchmarks.gpu.workbench import Workbench

COPIED_BYTES, TINY_COPIED_BYTES = 4 << 30, 16 << 20
SIDE, TINY_SIDE = 8192, 256
ROUNDS = 9
PACKAGES = ("torch", "triton", "transformers", "numpy", "msgspec")
_ASKED_OF_THE_DRIVER = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit,temperature.gpu"


def measure(workbench: Workbench) -> None:
    """The section: who is measured, and both ceilings."""
    workbench.record(machine=machine_facts(workbench.device))
    device = torch.device(workbench.device)
    workbench.record(bandwidth_gb_per_s=round(bandwidth(device, workbench.is_tiny) / 1e9, 1))
    workbench.record(read_gb_per_s=round(read_bandwidth(device, workbench.is_tiny) / 1e9, 1))
    workbench.record(matrix_tflops=round(matrix_rate(device, workbench.is_tiny) / 1e12, 1))


def bandwidth(device: torch.device, is_tiny: bool = False) -> float:
    """Bytes per second of a large copy on the device, read and written."""
    source = torch.rand((TINY_COPIED_BYTES if is_tiny else COPIED_BYTES) // 4, device=device)
    target = torch.empty_like(source)
    seconds = statistics.median(round_seconds(lambda: target.copy_(source), device, ROUNDS))
    return 2 * source.numel() * source.element_size() / seconds


def read_bandwidth(device: torch.device, is_tiny: bool = False) -> float:
    """Bytes per second of a large sum: what a step that only reads may hope for."""
    source = torch.rand((TINY_COPIED_BYTES if is_tiny else COPIED_BYTES) // 4, device=device)
    seconds = statistics.median(round_seconds(source.sum, device, ROUNDS))
    return source.numel() * source.element_size() / seconds


def matrix_rate(device: torch.device, is_tiny: bool = False) -> float:
    """Operations per second of a large bfloat16 product, a multiplication and an addition counting as two."""
    side = TINY_SIDE if is_tiny else SIDE
    left, right = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    return 2 * side**3 / statistics.median(round_seconds(lambda: left @ right, device, ROUNDS))


def machine_facts(device: str) -> dict[str, Any]:
    """Card, driver, versions and processor: without them a figure means nothing."""
    facts: dict[str, Any] = {
        "device": device,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": [round(one, 2) for one in os.getloadavg()],
        **{name: _version(name) for name in PACKAGES},
    }
    if not torch.cuda.is_available():
        return {**facts, "card": "none"}
    properties = torch.cuda.get_device_properties(torch.device(device) if device != "cpu" else 0)
    return {
        **facts,
        "card": properties.name,
        "memory_gib": round(properties.total_memory / (1 << 30), 1),
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "driver_says": _driver_facts(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _driver_facts() -> str:
    """Name, driver, memory, clocks, power limit and temperature, as nvidia-smi says them."""
    command = ["nvidia-smi", f"--query-gpu={_ASKED_OF_THE_DRIVER}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi says nothing: {type(error).__name__}"
