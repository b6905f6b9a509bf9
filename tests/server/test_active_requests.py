"""Ids of requests: unique while they run, remembered for a while, and never anybody else's."""

from __future__ import annotations

import pytest

from fanlight_server import active_requests
from fanlight_server.active_requests import ActiveRequests, CancelOutcome, new_request_id
from fanlight_server.status import ServiceError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def never() -> bool:
    raise AssertionError("must not be stopped")


def test_an_early_cancel_is_remembered_for_ten_seconds_and_used_once() -> None:
    clock = Clock()
    requests = ActiveRequests(clock)
    assert requests.cancel("", "a") is CancelOutcome.UNKNOWN
    clock.now += 9.9
    with requests.running("", "a", never) as wanted:
        assert not wanted
    with requests.running("", "a", never) as wanted:
        assert wanted
    requests.cancel("", "b")
    clock.now += 10.1
    with requests.running("", "b", never) as wanted:
        assert wanted


def test_a_running_request_is_stopped_and_an_ended_one_is_known() -> None:
    clock = Clock()
    requests = ActiveRequests(clock)
    still_running = [True]
    with requests.running("", "a", lambda: still_running[0]):
        assert requests.cancel("", "a") is CancelOutcome.CANCELLED
        still_running[0] = False
        assert requests.cancel("", "a") is CancelOutcome.FINISHED
        with pytest.raises(ServiceError), requests.running("", "a", never):
            pass
    assert requests.cancel("", "a") is CancelOutcome.FINISHED
    clock.now += 61
    assert requests.cancel("", "a") is CancelOutcome.UNKNOWN


def test_principals_do_not_reach_each_other() -> None:
    requests = ActiveRequests()
    with requests.running("alice", "a", never), requests.running("bob", "a", lambda: True):
        assert requests.cancel("mallory", "a") is CancelOutcome.UNKNOWN
        assert requests.cancel("bob", "a") is CancelOutcome.CANCELLED


def test_ten_thousand_cancels_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_requests, "REMEMBERED_IDS", 50)
    requests = ActiveRequests()
    for number in range(10_000):
        requests.cancel("", str(number))
    assert len(requests._cancelled_early._expiry) == 50
    with requests.running("", "9999", never) as wanted:
        assert not wanted


def test_made_ids_are_short_and_differ() -> None:
    ids = {new_request_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {len(one) for one in ids} == {16}
