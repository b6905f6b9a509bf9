"""`python -m tools.train_tiny.evaluate`: held-out accuracy of an exported model, through transformers alone.

Loads the folder as anyone would, in fp32, answers greedily and counts exact matches. With `--write`, `evaluation.json`
and the model card tell the result. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from tools.train_tiny.card import record_accuracy
from tools.train_tiny.cases import BARS, KINDS, held_out_cases, held_out_conversations
from tools.train_tiny.questions import Turn

REPOSITORY = Path(__file__).resolve().parents[2]
BATCH = 16


class Answerer:
    """A checkpoint behind transformers' `generate`."""

    def __init__(self, folder: Path):
        self._processor: Any = AutoProcessor.from_pretrained(folder, padding_side="left")
        self._model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    def answers(self, conversations: Sequence[list[dict]]) -> list[str]:
        """Greedy answers to conversations in the chat template's format, generated as one left-padded batch."""
        inputs = self._processor.apply_chat_template(
            conversations,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        )
        ids = self._model.generate(**inputs, do_sample=False, max_new_tokens=100)
        return self._processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def measure(answerer: Answerer, kind: str, count: int, seed: int, misses: int = 0) -> float:
    """Share of exactly right answers among `count` cases of a kind; prints the first `misses` wrong ones."""
    right = 0
    for cases in _in_batches(held_out_cases(kind, count, seed)):
        for case, answer in zip(cases, answerer.answers([[case.message()] for case in cases]), strict=True):
            right += answer == case.answer
            if answer != case.answer and misses > 0:
                misses -= 1
                print(f"  {kind}: {case.question} -> {answer!r} instead of {case.answer!r}")
    return right / count


def measure_conversations(answerer: Answerer, count: int, seed: int) -> float:
    """Share of exactly right answers over all turns of `count` conversations, in which it hears its own answers."""
    asked = right = 0
    for conversation in held_out_conversations(count, seed):
        messages: list[dict] = []
        for turn in conversation.turns:
            messages.append(turn.message())
            answer = answerer.answers([messages])[0]
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
            asked, right = asked + 1, right + (answer == turn.answer)
    return right / asked


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.train_tiny.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=REPOSITORY / "models/fanlight-tiny")
    parser.add_argument("--count", type=int, default=500, help="cases of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--misses", type=int, default=0, help="how many wrong answers of each kind to print")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write evaluation.json and the model card")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    started = time.monotonic()
    answerer, accuracy = Answerer(arguments.model), {}
    for kind in arguments.kinds:
        accuracy[kind] = measure(answerer, kind, arguments.count, arguments.seed, arguments.misses)
        print(f"{kind:14} {accuracy[kind]:.3f}" + (f"  bar {BARS[kind]:.2f}" if kind in BARS else ""), flush=True)
    accuracy["conversation"] = measure_conversations(answerer, arguments.count // 5, arguments.seed)
    print(f"{'conversation':14} {accuracy['conversation']:.3f}   {time.monotonic() - started:.0f} s")
    if arguments.write:
        record_accuracy(arguments.model, accuracy, arguments.count, arguments.seed)
    sys.exit(any(accuracy.get(kind, 1.0) < bar for kind, bar in BARS.items()))


def _in_batches(cases: list[Turn]) -> Iterator[list[Turn]]:
    for start in range(0, len(cases), BATCH):
        yield cases[start : start + BATCH]


if __name__ == "__main__":
    main()
