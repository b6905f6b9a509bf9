"""The training loop: a schedule, a resumable state on disk, and a line of figures every fifty steps.

First the vision encoder alone learns to say what each image token shows; then everything learns to answer.
Trained on answers alone, a model this small stays at chance for a long while.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer

from tools.train_tiny.batches import Batch, BatchMaker, Mix
from tools.train_tiny.model import Losses, TinyModel, tiny_config
from tools.train_tiny.tokenizer import train_tokenizer

SECONDS_BETWEEN_CHECKPOINTS = 120
STEPS_BETWEEN_LINES = 50


@dataclass(frozen=True)
class Plan:
    """What a run does; kept beside its checkpoint.

    The first `vision_steps` come before any text, the last `finishing_steps` drill counting. Rates are per step.
    """

    seed: int = 0
    steps: int = 6400
    vision_steps: int = 3000
    finishing_steps: int = 630
    warmup_steps: int = 150
    peak_rate: float = 1.2e-3
    final_rate: float = 4e-5
    weight_decay: float = 0.05
    auxiliary_weight: float = 0.5
    largest_gradient: float = 1.0

    def rate(self, step: int) -> float:
        """Learning rate: linear warm-up, then half a cosine."""
        if step < self.warmup_steps:
            return self.peak_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.final_rate + (self.peak_rate - self.final_rate) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class _Batches(Dataset):
    """Batches by step, made in the loader's worker process."""

    def __init__(self, tokenizer, plan: Plan):
        self._plan = plan
        self._with_text = BatchMaker(tokenizer, plan.seed, Mix())
        self._finishing = BatchMaker(tokenizer, plan.seed, Mix(finishing=True))
        pictures = Mix(one_picture=44, two_pictures=0, small_talk=0, small_pictures_only=True)
        self._pictures = BatchMaker(tokenizer, plan.seed, pictures)

    def __len__(self) -> int:
        return self._plan.steps

    def __getitem__(self, step: int) -> Batch:
        if step < self._plan.vision_steps:
            return self._pictures(step)
        last_stretch = step >= self._plan.steps - self._plan.finishing_steps
        return (self._finishing if last_stretch else self._with_text)(step)


class Run:
    """A training run in a folder: tokenizer, plan, newest checkpoint. Opening it again continues it."""

    def __init__(self, folder: Path, plan: Plan):
        torch.manual_seed(plan.seed)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._plan = folder, plan
        self._tokenizer = open_tokenizer(folder, plan.seed)
        self._model = TinyModel(tiny_config(self._tokenizer))
        self._optimizer = torch.optim.AdamW(_parameter_groups(self._model, plan), lr=plan.peak_rate, betas=(0.9, 0.98))
        self._step, self._seconds = 0, 0.0
        if (folder / "checkpoint.pt").exists():
            self._restore()
        (folder / "plan.json").write_text(json.dumps(asdict(plan), indent=2) + "\n")

    def train(self) -> None:
        """Runs to the plan's last step, checkpointing as it goes."""
        batches = DataLoader(
            _Batches(self._tokenizer, self._plan),
            batch_size=None,
            sampler=range(self._step, self._plan.steps),
            num_workers=1,
            prefetch_factor=4,
        )
        figures, saved, started = Figures(), time.monotonic(), time.monotonic() - self._seconds
        for batch in batches:
            self._learn(batch, figures)
            self._step += 1
            self._seconds = time.monotonic() - started
            if self._step % STEPS_BETWEEN_LINES == 0:
                print(f"step {self._step} {self._seconds / 60:.1f} min {figures.line()}", flush=True)
                figures = Figures()
            if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                self._save()
                saved = time.monotonic()
        self._save()

    def _learn(self, batch: Batch, figures: Figures) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.rate(self._step)
        losses = self._model(batch, with_text=self._step >= self._plan.vision_steps)
        (losses.text + self._plan.auxiliary_weight * (losses.cells + losses.whole)).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._plan.largest_gradient)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        figures.add(batch, losses)

    def _save(self) -> None:
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        fresh = self._folder / "checkpoint.new"
        torch.save({**state, "step": self._step, "seconds": self._seconds}, fresh)
        fresh.replace(self._folder / "checkpoint.pt")

    def _restore(self) -> None:
        state = load_checkpoint(self._folder)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._step, self._seconds = state["step"], state["seconds"]
        print(f"continuing after step {self._step} of {self._plan.steps}", flush=True)


class Figures:
    """Losses, and the share of answers all of whose tokens were predicted, by kind, since the last line."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._steps = 0
        self._right: dict[str, list[bool]] = defaultdict(list)

    def add(self, batch: Batch, losses: Losses) -> None:
        self._steps += 1
        for name in ("text", "cells", "whole"):
            self._sums[name] += float(getattr(losses, name).detach())
        if losses.right.numel():
            answers = [answer for block in batch.blocks for answer in block.answers]
            for (kind, _), right in zip(answers, losses.right.split([length for _, length in answers]), strict=True):
                self._right[kind].append(bool(right.all()))

    def line(self) -> str:
        losses = " ".join(f"{name} {total / self._steps:.3f}" for name, total in self._sums.items())
        exact = " ".join(f"{kind} {sum(right) / len(right):.2f}" for kind, right in sorted(self._right.items()))
        return f"{losses} | {exact}"


def open_tokenizer(folder: Path, seed: int):
    """The run's tokenizer, trained on first use."""
    if not (folder / "tokenizer" / "tokenizer.json").exists():
        train_tokenizer(seed).save_pretrained(folder / "tokenizer")
    return AutoTokenizer.from_pretrained(folder / "tokenizer")


def load_checkpoint(folder: Path) -> dict:
    """Newest state of the run in a folder: model, optimizer, step, seconds."""
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def _parameter_groups(model: TinyModel, plan: Plan) -> list[dict]:
    """Weight decay on matrices only."""
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim >= 2 and "embed_tokens" not in name]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in chosen]
    return [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}]
