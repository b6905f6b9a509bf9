"""What tests ask of a driver's core, and what they expect it to say."""

from __future__ import annotations

from collections.abc import Callable

from fanlight_engine.core.messages import AddRequest, Admitted, Completed, FromCore, Prefilled, Rejected
from fanlight_engine.errors import Reason
from tests.engine.driver import Driver

MakeDriver = Callable[..., Driver]
"""(checkpoint, runs_ahead=None, **settings) -> a driver for them; see conftest."""


def answer(driver: Driver, asked: AddRequest) -> list[int]:
    """The ids of one request, computed to its end."""
    assert isinstance(driver.add(asked), Admitted)
    driver.run()
    assert isinstance(driver.answers[asked.request_id].end, Completed), driver.answers[asked.request_id].end
    return driver.answers[asked.request_id].ids


def prefill_of(driver: Driver, request_id: str) -> Prefilled:
    """What computing the prompt of a request took."""
    prefilled = driver.answers[request_id].prefilled
    assert prefilled is not None, "the prompt was not computed"
    return prefilled


def end_of(driver: Driver, request_id: str) -> Completed:
    end = driver.answers[request_id].end
    assert isinstance(end, Completed), end
    return end


def assert_rejected(message: FromCore | None, reason: Reason, field: str = "prompt") -> Rejected:
    assert isinstance(message, Rejected)
    assert (message.reason, message.field) == (reason, field)
    assert message.description
    return message
