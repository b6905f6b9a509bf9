"""Which graphs are captured, and which steps run by them: with a recorder in the place of CUDA.

Its graphs do the work again when they are replayed, so that answers can be compared, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine, planned_captures
from fanlight_engine.core.messages import AddRequest
from fanlight_engine.model.decode_step import Bucket
from fanlight_engine.model.graphs import KINDS, CapturePlan, DecodeGraphs, page_sizes, row_sizes
from fanlight_engine.model.loading.loader import plan_loading
from fanlight_engine.model.loading.memory_estimate import bound_decode_steps
from fanlight_engine.model.sampler import SamplingMode
from tests.engine.builders import request, words
from tests.engine.driver import Driver
from tests.engine.lora_adapters import make_lora

GREEDY = SamplingMode(logprobs=True)


@dataclass(slots=True)
class Recorder:
    """A capturer whose graphs do their work again."""

    captured: list[Recorded] = field(default_factory=list)
    fails_at: int | None = None
    """The number of the capture that raises; None for none."""

    def capture(self, work: Callable[[], None]) -> Recorded:
        if len(self.captured) == self.fails_at:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        work()
        self.captured.append(Recorded(work))
        return self.captured[-1]

    def reserved_bytes(self) -> int:
        return len(self.captured) << 20


@dataclass(slots=True)
class Recorded:
    work: Callable[[], None]
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        self.work()


class Step:
    """A decode step that notes down what it is told."""

    def __init__(self, max_rows: int, max_pages: int) -> None:
        self.max_rows, self.max_pages = max_rows, max_pages
        self.forwards: list[Bucket] = []
        self.samplings: list[tuple[int, SamplingMode]] = []

    def forward(self, bucket: Bucket) -> None:
        self.forwards.append(bucket)

    def sample(self, bucket: Bucket, mode: SamplingMode) -> None:
        self.samplings.append((bucket.rows, mode))


def graphs_of(plan: CapturePlan, max_rows: int = 32, max_pages: int = 64) -> tuple[DecodeGraphs, Step, Recorder]:
    """Captured graphs of a noting step."""
    step, recorder = Step(max_rows, max_pages), Recorder()
    graphs = DecodeGraphs(step, plan)  # pyright: ignore[reportArgumentType] all of it that graphs know
    graphs.capture(recorder)
    return graphs, step, recorder


class TestLadder:
    """How many rows and columns are worth a graph."""

    @pytest.mark.parametrize("most", [1, 2, 3, 16, 17, 32, 100, 256, 4096])
    def test_of_rows_ends_at_the_most_and_pads_by_less_than_double(self, most: int) -> None:
        sizes = row_sizes(most)
        assert sizes == sorted(set(sizes))
        assert (sizes[0], sizes[-1]) == (1, most)
        assert all(after <= 2 * before for before, after in pairwise(sizes))

    def test_of_rows_is_finer_where_a_padded_row_costs_more(self) -> None:
        assert row_sizes(256) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]

    @pytest.mark.parametrize(("most", "sizes"), [(1, [1]), (3, [1, 3]), (64, [1, 4, 16, 64]), (256, [4, 16, 64, 256])])
    def test_of_columns_has_few_steps(self, most: int, sizes: list[int]) -> None:
        assert page_sizes(most) == sizes


class TestCapture:
    """Everything that is planned, in the order that lets graphs share their memory."""

    def test_begins_with_the_largest_step(self) -> None:
        _, step, _ = graphs_of(CapturePlan(gathers_tables=False))
        rows = [bucket.rows for bucket in step.forwards]
        assert rows == sorted(rows, reverse=True)
        assert rows == row_sizes(32)[::-1]
        assert {bucket.pages for bucket in step.forwards} == {64}, "one width serves all"

    def test_takes_forward_and_every_kind_of_sampling_apart(self) -> None:
        graphs, step, recorder = graphs_of(CapturePlan(gathers_tables=False))
        assert step.samplings == [(bucket.rows, kind) for bucket in step.forwards for kind in KINDS]
        assert len(recorder.captured) == graphs.counters.captured == len(step.forwards) * (1 + len(KINDS))

    def test_repeats_the_forward_but_not_the_sampling_for_every_width_and_for_adapters(self) -> None:
        _, step, _ = graphs_of(CapturePlan(gathers_tables=True, with_loras=True))
        assert len(step.forwards) == len(set(step.forwards)) == len(row_sizes(32)) * len(page_sizes(64)) * 2
        assert len(step.samplings) == len(set(step.samplings)) == len(row_sizes(32)) * len(KINDS)

    def test_has_penalties_where_a_request_that_says_nothing_has_them(self) -> None:
        _, step, _ = graphs_of(planned_captures(EngineConfig(default_repetition_penalty=1.05), gathers_tables=False))
        assert (32, replace(GREEDY, penalises=True)) in step.samplings
        _, step, _ = graphs_of(planned_captures(EngineConfig(), gathers_tables=False))
        assert not any(kind.penalises for _, kind in step.samplings)

    def test_ends_at_the_rows_that_pay(self) -> None:
        graphs, _, _ = graphs_of(CapturePlan(gathers_tables=False, most_rows=5))
        assert graphs.bucket_for(3, 2) == Bucket(4, 64)
        assert graphs.bucket_for(5, 2) == Bucket(5, 2), "runs eagerly in its own shape"

    def test_is_done_within_what_makes_the_forward_capturable_and_only_that(self) -> None:
        inside: list[str] = []

        @contextmanager
        def capturable() -> Iterator[None]:
            inside.append("enter")
            yield
            inside.append("leave")

        graphs, step, _ = graphs_of(CapturePlan(gathers_tables=False, capturable=capturable), max_rows=1)
        assert (inside, len(step.forwards)) == (["enter", "leave"], 1)
        graphs.forward(Bucket(1, 7))
        assert len(inside) == 2

    def test_tells_what_it_does_and_what_it_took(self) -> None:
        lines: list[str] = []
        DecodeGraphs(Step(4, 64), CapturePlan(gathers_tables=False)).capture(Recorder(), lines.append)  # pyright: ignore[reportArgumentType]
        assert lines[0] == "capturing 3 decode steps of up to 4 rows as CUDA graphs"
        assert lines[1:-1] == ["captured 1 of 3", "captured 2 of 3"]
        assert lines[-1].startswith("captured 12 graphs in ")
        assert lines[-1].endswith("; they take 12.0 MiB")

    @pytest.mark.parametrize("fails_at", [0, 1, 6])
    def test_that_fails_leaves_every_step_eager_and_says_so(self, fails_at: int) -> None:
        lines: list[str] = []
        step, graphs = Step(4, 64), DecodeGraphs(Step(4, 64), CapturePlan(gathers_tables=False))  # pyright: ignore[reportArgumentType]
        graphs._step = step  # pyright: ignore[reportAttributeAccessIssue]
        graphs.capture(Recorder(fails_at=fails_at), lines.append)
        assert lines[-1].startswith("decode steps cannot be captured and run eagerly: operation not permitted")
        assert "\n" not in lines[-1]
        assert graphs.bucket_for(3, 5) == Bucket(3, 5)
        graphs.forward(Bucket(3, 5))
        assert (graphs.counters.captured, graphs.counters.replayed, graphs.counters.eager) == (0, 0, 1)


class TestReplay:
    """A step runs by the graph that holds it, padded up to that; else eagerly and unpadded."""

    def test_takes_the_smallest_graph_that_holds_the_step(self) -> None:
        graphs, step, _ = graphs_of(CapturePlan(gathers_tables=True))
        for rows in range(1, 33):
            for pages in (1, 3, 4, 5, 17, 64):
                bucket = graphs.bucket_for(rows, pages)
                assert bucket.rows == min(one for one in row_sizes(32) if one >= rows)
                assert bucket.pages == min(one for one in page_sizes(64) if one >= pages)
        graphs.forward(graphs.bucket_for(9, 2))
        assert step.forwards[-1] == Bucket(16, 4), "what the graph was captured from"

    def test_replays_instead_of_computing(self) -> None:
        step = Step(4, 64)
        graphs = DecodeGraphs(step, CapturePlan(gathers_tables=False))  # pyright: ignore[reportArgumentType]
        recorder = Recorder()
        graphs.capture(recorder)
        bucket = graphs.bucket_for(3, 9)
        graphs.forward(bucket)
        graphs.sample(bucket, SamplingMode())
        replayed = [index for index, one in enumerate(recorder.captured) if one.replays]
        assert replayed == [0, 1], "the largest forward, and the greedy sampling of as many rows"
        assert (graphs.counters.replayed, graphs.counters.replayed_samplings) == (1, 1)
        assert (graphs.counters.eager, graphs.counters.eager_samplings) == (0, 0)

    @pytest.mark.parametrize(
        "mode", [SamplingMode(suppresses=True), SamplingMode(penalises=True), SamplingMode(draws=True, suppresses=True)]
    )
    def test_samples_eagerly_what_no_graph_does(self, mode: SamplingMode) -> None:
        graphs, step, _ = graphs_of(CapturePlan(gathers_tables=False))
        bucket = graphs.bucket_for(9, 3)
        graphs.forward(bucket)
        graphs.sample(bucket, mode)
        assert (graphs.counters.replayed, graphs.counters.eager_samplings) == (1, 1)
        assert step.samplings[-1] == (16, mode), "in the shape of the forward"

    @pytest.mark.parametrize("logprobs", [False, True])
    @pytest.mark.parametrize("kind", KINDS)
    def test_samples_with_logprobs_whether_or_not_they_are_asked(self, kind: SamplingMode, logprobs: bool) -> None:
        graphs, _, _ = graphs_of(CapturePlan(gathers_tables=False))
        graphs.sample(graphs.bucket_for(1, 1), replace(kind, logprobs=logprobs))
        assert graphs.counters.replayed_samplings == 1

    def test_with_adapters_is_eager_where_none_were_captured(self) -> None:
        graphs, step, _ = graphs_of(CapturePlan(gathers_tables=False))
        bucket = graphs.bucket_for(3, 2, has_loras=True)
        assert bucket == Bucket(3, 2, True)
        graphs.forward(bucket)
        assert step.forwards[-1] == bucket
        assert graphs.counters.eager == 1

    def test_gives_page_tables_the_width_that_attention_reads(self) -> None:
        for gathers, columns in ((True, 16), (False, 5)):
            graphs, _, _ = graphs_of(CapturePlan(gathers_tables=gathers))
            assert graphs.columns_for(graphs.bucket_for(2, 5), 5) == columns

    def test_without_any_graph_every_step_has_its_own_shape(self) -> None:
        graphs = DecodeGraphs(Step(32, 64))  # pyright: ignore[reportArgumentType]
        assert graphs.bucket_for(11, 5) == Bucket(11, 5)


class TestRunner:
    """Through a real core: padding and replaying change no answer."""

    def _drivers(self, checkpoint: Checkpoint, gathers_tables: bool, lora: str = "") -> tuple[Driver, Driver]:
        """One with graphs that does not know that it is on a CPU, one without."""
        config = EngineConfig(
            torch_threads=1, context_length=128, max_running_requests=8, attention="reference", lora=lora
        )
        by_graph, eager = Driver(config, checkpoint, runs_ahead=True), Driver(config, checkpoint)
        graphs = by_graph.engine._runner.decode_graphs
        graphs._plan = replace(planned_captures(config, gathers_tables), capturable=graphs._plan.capturable)
        graphs.capture(Recorder())
        return by_graph, eager

    def _compare(self, drivers: tuple[Driver, Driver], asked: list[AddRequest]) -> DecodeGraphs:
        for driver in drivers:
            for one in asked:
                driver.add(one)
            driver.run()
        by_graph, eager = drivers
        for name, answer in eager.answers.items():
            assert by_graph.answers[name].ids == answer.ids
            assert by_graph.answers[name].logprobs == pytest.approx(answer.logprobs, abs=1e-4)
        return by_graph.engine._runner.decode_graphs

    @pytest.mark.parametrize("gathers_tables", [True, False])
    def test_answers_are_those_of_eager_steps(self, gathers_tables: bool, llama: Checkpoint) -> None:
        """The reference backend gathers what it need not as well."""
        asked = [
            request("greedy", words(9), max_new_tokens=9),
            request("logprobs", words(17, seed=1), max_new_tokens=23, logprobs=True),
            request("drawn", words(5, seed=2), max_new_tokens=31, temperature=0.8, seed=4),
            request("filtered", words(40, seed=3), max_new_tokens=12, temperature=0.8, top_k=20, seed=5),
            request("penalised", words(3, seed=4), max_new_tokens=7, repetition_penalty=1.3),
        ]
        graphs = self._compare(self._drivers(llama, gathers_tables), asked)
        counters = graphs.counters
        assert (counters.replayed > 10, counters.eager) == (True, 0)
        assert counters.replayed_samplings > 10
        assert counters.eager_samplings > 0, "while there were penalties"

    @pytest.mark.parametrize("lora", ["red", ""])
    def test_with_adapters_answers_are_those_of_eager_steps(self, lora: str, llama: Checkpoint, tmp_path: Path) -> None:
        red = make_lora(tmp_path / "red", llama.path, seed=1)
        drivers = self._drivers(llama, True, lora=f"red={red}")
        asked = [
            msgspec.structs.replace(request(f"{number}", words(6, seed=number), max_new_tokens=8), lora=lora)
            for number in range(3)
        ]
        asked.append(request("base", words(6), max_new_tokens=5))
        assert self._compare(drivers, asked).counters.eager == 0


def test_a_cpu_captures_nothing(llama: Checkpoint) -> None:
    lines: list[str] = []
    engine = build_engine(EngineConfig(torch_threads=1, kv_pages=8), llama, lines.append)
    assert not any("captur" in line for line in lines)
    assert engine.facts.memory.decode_step_bytes == 0
    assert engine._runner.decode_graphs.counters.captured == 0


class TestMemory:
    """What captured steps take is in the books before anything is allocated."""

    @pytest.fixture
    def bound(self, llama: Checkpoint) -> Callable[..., int]:
        plan = plan_loading(llama, torch.device("cpu"), torch.float32)

        def bounded(rows: int, gathered: int = 0, **captures: bool) -> int:
            return bound_decode_steps(plan, CapturePlan(**captures), rows, 64, gathered)  # pyright: ignore[reportArgumentType]

        return bounded

    def test_grows_with_rows_widths_kinds_and_adapters(self, bound: Callable[..., int], llama: Checkpoint) -> None:
        least = bound(8, gathers_tables=False)
        assert least > 8 * llama.vocab_size * 68, "scores in float64, sorted"
        assert bound(16, gathers_tables=False) > least
        assert bound(8, gathers_tables=True) > least
        assert bound(8, gathers_tables=True, gathered=1 << 20) == bound(8, gathers_tables=True) + 8 * (1 << 20)
        assert bound(8, gathers_tables=False, penalises=True) > least
        assert bound(8, gathers_tables=False, with_loras=True) > least
