"""One server over the real engine and the embedded model for all promises, and one process of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

pytest.register_assert_rewrite(
    "tests.e2e.asking", "tests.e2e.caching", "tests.e2e.crowd", "tests.e2e.readme", "tests.e2e.serving"
)

from tests.e2e.serving import Served, ServerProcess, server_process, serving  # noqa: E402


@pytest_asyncio.fixture(scope="session")
async def served() -> AsyncIterator[Served]:
    async with serving() as one:
        yield one


@pytest_asyncio.fixture(autouse=True)
async def balanced_books(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Whatever a test does to the shared server, nothing is held afterwards."""
    yield
    if "served" in request.fixturenames:
        served: Served = request.getfixturevalue("served")
        after = await served.books()
        assert after.requests_in_core == after.pinned_embeddings == after.open_calls == after.tasks == 0, after


@pytest.fixture(scope="session")
def process() -> Iterator[ServerProcess]:
    with server_process("--torch-threads", "1") as one:
        yield one
