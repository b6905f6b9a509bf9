"""The benchmark on a CPU compares what it says, with the same prompts for everybody."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import cpu
from benchmarks.checkpoints import LANGUAGE_MODEL
from benchmarks.cpu import BARS, CASES, DECODE, END_TO_END, MEMORY, MIXED_ANSWERS, MIXED_PROMPTS, SHARE
from benchmarks.peers.catalog import FANLIGHT, OPENVINO, TRANSFORMERS, VLLM
from benchmarks.peers.result import AgainstPeers
from benchmarks.report import Runs
from benchmarks.rounds import Figures


def figures(*names: str) -> dict[str, Figures]:
    """Rounds in which everybody named gives 100 tokens a second, in all cases."""
    one: Figures = {(name, figure): (100.0,) * 5 for name in names for figure in (DECODE, END_TO_END)}
    return {case.name: {**one, (MEMORY, MEMORY): (25.0,) * 5} for case in CASES}


def test_everybody_gets_the_same_prompts_and_each_time_others():
    for case in CASES:
        ours, theirs = (list(islice(case.batches(), 3)) for _ in range(2))
        assert ours == theirs
        assert len(set(ours)) == 3


def test_mixed_batches_hold_the_shortest_and_the_longest():
    for batch in islice(cpu.mixed_batches(), 20):
        assert len(batch.prompts) == len(batch.new_tokens) == 16
        lengths = [len(prompt) for prompt in batch.prompts]
        assert (min(lengths), max(lengths)) == MIXED_PROMPTS
        assert (min(batch.new_tokens), max(batch.new_tokens)) == MIXED_ANSWERS


def test_every_bar_is_compared_where_all_peers_are_there():
    compared = list(cpu._compared(figures(*(peer.name for peer in (FANLIGHT, VLLM, OPENVINO, TRANSFORMERS)))))
    assert [one.name for one in compared] == [bar.title for bar in BARS]
    assert all(one.ratio == 1.0 for one in compared)


def test_bars_against_a_peer_that_is_missing_are_left_out():
    compared = list(cpu._compared(figures(FANLIGHT.name, TRANSFORMERS.name)))
    assert {one.theirs.name for one in compared} == {TRANSFORMERS.name}


def test_only_cases_whose_comparisons_gave_no_ratio_are_measured_again():
    compared = list(cpu._compared(figures(FANLIGHT.name, TRANSFORMERS.name)))
    assert cpu.cases_of([one for one in compared if "mixed" in one.name]) == ["mixed"]
    assert cpu.cases_of([]) == []


def test_the_share_of_the_bandwidth_counts_each_weight_once(tmp_path: Path):
    header = json.dumps({"a": {}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(100_000_000))
    assert cpu.weight_bytes(tmp_path) == 100_000_000
    (share,) = cpu._share_of_bandwidth(figures(FANLIGHT.name), tmp_path)
    assert share.ratio == pytest.approx(100 * 0.1 / 25)
    assert cpu.cases_of([share]) == ["1 request"]
    assert share.name == SHARE


def test_the_reference_case_has_a_hundred_million_parameters():
    hidden, inner, layers = (LANGUAGE_MODEL[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    attention = (
        2 * hidden * hidden * (1 + LANGUAGE_MODEL["num_key_value_heads"] / LANGUAGE_MODEL["num_attention_heads"])
    )
    total = LANGUAGE_MODEL["vocab_size"] * hidden + layers * (attention + 3 * hidden * inner)
    assert total == pytest.approx(100e6, rel=0.01)


def test_cases_that_were_not_measured_again_are_kept_as_they_were():
    before = list(cpu._compared(figures(FANLIGHT.name, TRANSFORMERS.name)))
    earlier = AgainstPeers("1 request, mixed", tuple(before), {"load": 9}, 5, ("vLLM CPU",), {"old": 1}).facts()
    slower = replace(before[1], ours=Runs(FANLIGHT.name, (50.0,) * 5))
    now = AgainstPeers("mixed", (slower,), {"load": 0}, 5, (), {"new": 2})
    both = cpu.with_other_cases(now, earlier)
    assert both.comparisons == (before[0], slower)
    assert both.case == "1 request, mixed"
    assert both.engines == {"old": 1, "new": 2}
    assert both.machine == {"load": 0}
    assert both.missing == ("vLLM CPU",)
