"""Runs transformers' generate on a static batch, padded on the left where prompts differ in length."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from benchmarks.peers.workers.serving import TokenTimes, serve

PADDING_ID = 0


class Generate:
    """A model in bfloat16."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)

    def facts(self) -> dict[str, Any]:
        """Versions and settings."""
        return {
            **{name: version(name) for name in ("transformers", "torch")},
            "attention": self._model.config._attn_implementation,
            "threads": torch.get_num_threads(),
        }

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """One call for all; it lasts as long as the longest answer, of which only what was asked for counts."""
        prompts, new_tokens = order["prompts"], order["new_tokens"]
        ids, mask = padded(prompts)
        watch = Watch(new_tokens)
        self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(new_tokens),
            min_new_tokens=max(new_tokens),
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([watch]),
        )
        return watch.figures()


class Watch(StoppingCriteria):
    """Notes when each token comes, and never stops anything."""

    def __init__(self, new_tokens: list[int]) -> None:
        self._new_tokens = new_tokens
        self._times = TokenTimes(len(new_tokens))
        self._steps = 0
        self._seconds = 0.0

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> Any:
        """Called after each step."""
        self._steps += 1
        self._times.came([self._steps <= count for count in self._new_tokens])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    def figures(self) -> dict[str, Any]:
        """Of the requests; the call ends with the longest."""
        return self._times.figures(self._new_tokens)


def padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask [requests, longest], padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[PADDING_ID] * (longest - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    return ids, mask


if __name__ == "__main__":
    serve(Generate)
