"""Peers in processes of their own: what they answer counts, what they print does not, and failures are told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers import catalog
from benchmarks.peers.catalog import INSTALLABLE, PEERS_VARIABLE, VLLM, Peer
from benchmarks.peers.install import main as install
from benchmarks.peers.process import Batch, PeerError, PeerProcess
from benchmarks.peers.workers.pictures import PictureOrder
from benchmarks.peers.workers.serving import TokenTimes

ECHO = Peer("Echo", "tests.benchmarks.echo_worker")


@pytest.fixture
def process() -> Iterator[PeerProcess]:
    with PeerProcess(ECHO, Path("any"), threads=2) as made:
        yield made


def batch(*new_tokens: int) -> Batch:
    return Batch(((1, 2),) * len(new_tokens), new_tokens)


def test_figures_come_back_whatever_the_peer_prints(process: PeerProcess):
    assert process.facts == {"checkpoint": "any", "threads": 2}
    figures = process.run(batch(4, 6))
    assert figures.tokens == 10
    assert figures.rate == 10 / figures.seconds
    assert process.run(batch(2)).tokens == 2


def test_a_peer_that_fails_on_a_batch_says_why_and_answers_the_next(process: PeerProcess):
    with pytest.raises(PeerError, match="thirteen tokens bring bad luck"):
        process.run(batch(13))
    assert process.run(batch(5)).tokens == 5


def test_a_peer_that_ends_is_reported_with_what_it_printed_last(process: PeerProcess):
    with pytest.raises(PeerError, match="the engine crashed"):
        process.run(batch(666))


def test_a_peer_that_cannot_load_leaves_no_process_behind():
    with pytest.raises(PeerError, match="no such checkpoint"):
        PeerProcess(ECHO, Path("broken"), threads=2)


def test_a_peer_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(PEERS_VARIABLE, str(tmp_path))
    for peer in INSTALLABLE:
        assert "make peers" in peer.missing
        with pytest.raises(PeerError, match="make peers"):
            PeerProcess(peer, Path("any"), threads=2)


def test_environments_are_looked_for_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(PEERS_VARIABLE, str(tmp_path))
    programs = tmp_path / VLLM.directory / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    assert VLLM.missing == ""
    assert VLLM.python == programs / "python"


def test_only_libraries_that_are_there_are_loaded_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(PEERS_VARIABLE, str(tmp_path))
    peer = replace(VLLM, preloaded=("one.so", "other.so"))
    library = tmp_path / peer.directory / "lib" / "other.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert peer.variables()["LD_PRELOAD"] == str(library)


def test_peers_that_are_there_are_not_installed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(PEERS_VARIABLE, str(tmp_path))
    for peer in INSTALLABLE:
        (tmp_path / peer.directory / "bin").mkdir(parents=True)
        (tmp_path / peer.directory / "bin" / "python").touch()
    monkeypatch.setattr(sys, "argv", ["install"])
    assert install() == 0
    assert capsys.readouterr().out.count(" is in ") == len(INSTALLABLE)


def test_a_peer_that_does_not_exist_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["install", "fastest"])
    with pytest.raises(SystemExit):
        install()
    assert "fastest: no such peer; they are openvino, vllm" in capsys.readouterr().err


def test_decoding_is_the_time_in_which_all_requests_decode_at_once():
    times = TokenTimes(2)
    times.times = [[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0]]
    figures = times.figures([4, 5])
    assert figures["first_token_seconds"] == 2.0
    assert figures["decode_seconds"] == 2.0
    assert figures["decode_tokens"] == 4
    assert figures["seconds"] == 6.0
    assert figures["tokens"] == 9


def test_an_engine_that_gives_fewer_tokens_than_asked_for_has_no_figures():
    times = TokenTimes(1)
    times.came([3])
    with pytest.raises(ValueError, match=r"asked for \[4\] tokens, got \[3\]"):
        times.figures([4])


def test_pictures_come_out_of_an_order_as_they_went_in():
    order = PictureOrder((b"\x00\xff", b"jpeg"), "what is it", 8, at_once=2)
    assert PictureOrder.of(order.order()) == order


def test_every_worker_of_the_catalog_exists():
    for peer in vars(catalog).values():
        if isinstance(peer, Peer):
            assert (catalog.REPOSITORY / Path(*peer.worker.split("."))).with_suffix(".py").is_file(), peer.worker
