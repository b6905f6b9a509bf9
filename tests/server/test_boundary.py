"""What the boundary decides before a method is begun."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from fanlight_server.rpc.boundary import _answer
from fanlight_server.status import ErrorReason, ServiceError


class LateContext:
    """A call whose deadline had passed when it arrived."""

    def time_remaining(self) -> float:
        return 0.0


async def test_a_call_whose_deadline_passed_before_it_came_is_not_begun() -> None:
    begun: list[Any] = []

    async def method(request: Any, context: Any) -> None:
        begun.append(request)

    late: Any = LateContext()
    with pytest.raises(ServiceError) as refused:
        await _answer(grpc.unary_unary_rpc_method_handler(method), b"", late)
    assert refused.value.refusal.reason is ErrorReason.DEADLINE_EXCEEDED
    assert begun == []
