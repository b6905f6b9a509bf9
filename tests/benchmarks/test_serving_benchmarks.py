"""Benchmarks of the host, of the server and of what a load meets run through, and measure what they say they do."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from benchmarks import grpc_overhead, scheduler, serve
from benchmarks.http2_reader import read_streams
from benchmarks.report import machine_facts
from benchmarks.server_process import Answer, ServerError, generation_of, running_server
from benchmarks.short_requests import Wait, measure_short_requests
from fanlight_server.default_model import default_model_path
from tests.engine.checkpoints import make_llama


def test_the_scheduler_benchmark_tells_every_part_of_a_step() -> None:
    found = scheduler.measure(rounds=5, running=6, prompts=(4, 40))
    assert [comparison.name for comparison in found.comparisons] == [
        "limit, prompts of 4 tokens",
        "limit, prompts of 40 tokens",
        "flat, prompts of 40 tokens",
    ]
    for one in found.parts:
        assert {name for name, _ in one.parts} >= {"schedule", "pack", "sampling rows", "load", "read", "postprocess"}
        assert all(milliseconds >= 0 for _, milliseconds in one.parts)
    assert "% of the limit" in found.text()
    assert found.facts()["running"] == 6


async def test_the_overhead_benchmark_compares_as_many_messages_of_the_same_sizes() -> None:
    found = await grpc_overhead.measure_here(rounds=5, streams=2, tokens=6)
    by_clock, by_processor = found.comparisons
    assert by_clock.gates
    assert not by_processor.gates
    assert len(by_clock.ours.figures) == len(by_clock.theirs.figures) == 5
    assert found.coalescing.tokens_per_message >= 1
    assert "processor time per message" in found.text()
    assert found.facts()["streams"] == 2


async def test_the_echo_writes_what_ours_wrote() -> None:
    sizes = [3, 40, 0, 7]
    async with grpc_overhead._reader() as read, grpc_overhead._echoing(sizes) as address:
        found = await read(address, grpc_overhead.ECHO_METHOD, b"", 3)
    assert found["sizes"] == sizes
    assert (found["messages"], found["bytes"]) == (12, 150)


def test_a_load_is_offered_whatever_the_server_does_and_judged_by_the_service_level() -> None:
    level = serve.ServiceLevel(first_token=0.5, between_tokens=0.1)
    assert level.holds(Answer(10.0, (10.4, 10.45)))
    assert not level.holds(Answer(10.0, (10.6, 10.65))), "the first token came late"
    assert not level.holds(Answer(10.0, (10.1, 10.3))), "and here the second"
    assert not level.holds(Answer(10.0, (10.1,), "UNAVAILABLE"))
    assert not level.holds(Answer(10.0, ()))
    rounds = [[Answer(0.0, (0.1, 0.2)), Answer(1.0, (1.9, 2.0))], [Answer(0.0, (0.1,), "INTERNAL")]]
    load = serve._load(2.0, rounds, 2.0, level)
    assert load.offered.figures == (1.0, 0.5)
    assert load.good.figures == (0.5, 0.0)
    assert (load.answers, load.refused) == (3, 1)
    assert load.first_token[0] == pytest.approx(0.5)


def test_arrivals_are_a_poisson_process_and_pictures_are_mixed_in() -> None:
    wanted = serve._schedule(random.Random(1), rate=20.0, seconds=10.0, pictures=0.5)
    times = [at for at, _ in wanted]
    assert times == sorted(times)
    assert 150 < len(wanted) < 250
    with_picture = sum(len(one.conversation.messages[0].parts) == 2 for _, one in wanted)
    assert 0.3 < with_picture / len(wanted) < 0.7


def test_a_served_load_is_measured_end_to_end() -> None:
    with running_server(str(default_model_path()), "--torch-threads", "1") as address:
        loads = serve.measure_load(address, (8.0,), 0.5, 5, 0.5, serve.ServiceLevel(30.0, 30.0))
    (load,) = loads
    assert load.refused == 0
    assert load.good.figures == load.offered.figures, "everything is in time here"
    assert load.first_token[0] > 0
    found = serve.ServeBenchmark(serve.ServiceLevel(), machine_facts((), 0), 5, "tiny", loads)
    assert "first token / between tokens" in found.text()
    assert found.facts()["loads"][0]["answers"] == load.answers


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(ServerError, match="ended with"), running_server("no/such/model"):
        pass


def test_short_requests_are_told_in_chunks_and_decode_steps(tmp_path: Path) -> None:
    found = measure_short_requests(
        make_llama(tmp_path / "llama"), 5, 1, "float32", long_prompt=1_100, ids=range(10, 90)
    )
    assert [wait.place for wait in found.waits] == [0, 1, 0, 1, 0]
    assert all(wait.first_token > wait.chunk for wait in found.waits)
    assert "decode steps" in found.text()
    wait = Wait(first_token=0.35, decode_step=0.1, chunk=0.2, place=0)
    assert wait.limit == pytest.approx(0.5)
    assert wait.decode_steps_beside_the_chunk == pytest.approx(1.5)


def test_the_share_of_grpc_is_measured_on_the_same_requests(tmp_path: Path) -> None:
    share = serve.measure_grpc_share(
        make_llama(tmp_path / "llama"), streams=2, rounds=5, threads=1, new_tokens=4, ids=range(10, 90)
    )
    assert share.comparison.ours.name == "through gRPC"
    assert len(share.comparison.ratios) == 5
    assert min(share.comparison.ours.figures) > 0
    assert share.with_python_client.theirs == share.comparison.theirs
    assert not share.with_python_client.gates


async def test_the_lightest_client_reads_what_a_server_of_grpc_sends() -> None:
    sizes = [1, 5000, 0, 300_000, 3]
    async with grpc_overhead._echoing(sizes) as address:
        answers, seconds = await asyncio.to_thread(read_streams, address, grpc_overhead.ECHO_METHOD, [b"", b"x" * 20])
    assert [[len(message) for message in answer] for answer in answers] == [sizes, sizes]
    assert seconds > 0


def test_a_request_of_the_benchmark_is_greedy_and_goes_to_the_end() -> None:
    by_ids, by_words = generation_of(5, prompt_ids=[1, 2]), generation_of(5, question="what?", picture=b"png")
    assert list(by_ids.tokens.ids) == [1, 2]
    assert [part.WhichOneof("kind") for part in by_words.conversation.messages[0].parts] == ["image", "text"]
    assert by_ids.config.sampling.ignore_eos
    assert by_ids.config.sampling.temperature == 0
