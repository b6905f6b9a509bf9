"""A slow load says how far it is, a line per tenth; a quick one says nothing, and no bar is ever drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.model.loading import progress as loading_progress
from fanlight_engine.model.loading.loader import load_planned, plan_loading
from fanlight_engine.model.loading.progress import reported


class Clock:
    """Time passes by as much as each look at it costs."""

    def __init__(self, seconds_per_look: float) -> None:
        self._seconds_per_look = seconds_per_look
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += self._seconds_per_look
        return self._now


def lines_of_loading(path: Path, seconds_per_weight: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(loading_progress, "time", Clock(seconds_per_weight))
    load_planned(plan_loading(read_checkpoint(path), torch.device("cpu"), torch.float32), lines.append)
    return lines


def test_a_slow_load_has_a_line_per_tenth(
    llama_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of_loading(llama_path, 1.0, monkeypatch)
    assert lines == [f"loading weights of llama: {percent} %" for percent in range(10, 101, 10)]
    assert capfd.readouterr().err == ""


def test_tenths_that_take_no_time_have_no_line(llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of_loading(llama_path, 0.001, monkeypatch) == []


def test_bars_are_transformers_own_again_afterwards() -> None:
    lines: list[str] = []
    with pytest.raises(ZeroDivisionError), reported(lines.append, "loading"):
        raise ZeroDivisionError
    with reported(lines.append, "loading"):
        hook = transformers_logging.set_tqdm_hook(None)
        assert hook is not None
    assert transformers_logging.set_tqdm_hook(None) is None


def test_a_bar_counts_what_is_iterated_and_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_progress, "time", Clock(1.0))
    lines: list[str] = []
    bar = loading_progress.bars_of(lines.append, "reading")
    assert list(bar(range(4), desc="whatever")) == [0, 1, 2, 3]
    assert lines == [f"reading: {percent} %" for percent in (20, 50, 70, 100)]
    with bar(total=2) as two:
        two.set_postfix(rate=3)
        two.update(2)
        two.close()
    assert lines[-1] == "reading: 100 %"
    with bar(iter("ab")) as unknown:
        assert list(unknown) == ["a", "b"]
    assert len(lines) == 5
