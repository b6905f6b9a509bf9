"""Runs OpenVINO GenAI's continuous batching. The checkpoint is exported once, beside itself, with optimum-intel."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # pyright: ignore[reportMissingImports] installed where this runs
import openvino_genai as genai  # pyright: ignore[reportMissingImports] installed where this runs

from benchmarks.peers.workers.serving import TokenTimes, serve

CACHE_GIBIBYTES = 1
MOST_STEP_TOKENS = 2048
"""All prompts of a batch fit into one step."""


class OpenVino:
    """A pipeline that is stepped by hand, as a server does."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        self._properties = properties(threads)
        exported = export(Path(checkpoint), "text-generation-with-past")
        self._pipeline = genai.ContinuousBatchingPipeline(str(exported), scheduler(), "CPU", self._properties)
        self._number = 0

    def facts(self) -> dict[str, Any]:
        """Versions and settings."""
        return {"openvino-genai": version("openvino-genai"), **self._properties}

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Step until all are answered."""
        prompts, new_tokens = order["prompts"], order["new_tokens"]
        times = TokenTimes(len(prompts))
        handles = [self._add(ids, count) for ids, count in zip(prompts, new_tokens, strict=True)]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            times.came([_tokens_read(handle) for handle in handles])
        return times.figures(new_tokens)

    def _add(self, ids: list[int], count: int) -> Any:
        config = genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        self._number += 1
        return self._pipeline.add_request(self._number, openvino.Tensor(np.array([ids], np.int64)), config)


def scheduler() -> Any:
    """Its settings of batching."""
    config = genai.SchedulerConfig()
    config.cache_size = CACHE_GIBIBYTES
    config.max_num_batched_tokens = MOST_STEP_TOKENS
    config.enable_prefix_caching = False
    return config


def properties(threads: int) -> dict[str, Any]:
    """Its settings of computing."""
    return {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}


def export(checkpoint: Path, task: str) -> Path:
    """The directory of the exported checkpoint, its weights in bfloat16 as they are."""
    exported = checkpoint.with_name(f"{checkpoint.name}-openvino-{version('openvino')}")
    if not (exported / "openvino_tokenizer.xml").is_file():
        program = (sys.executable, "-m", "optimum.commands.optimum_cli")
        command = (*program, "export", "openvino", "--model", checkpoint, "--task", task, exported)
        subprocess.run(command, check=True, stdout=sys.stderr)
    return exported


def _tokens_read(handle: Any) -> int:
    if not handle.can_read():
        return 0
    return sum(len(output.generated_ids) for output in handle.read().values())


if __name__ == "__main__":
    serve(OpenVino)
