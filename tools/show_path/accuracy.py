"""Bar 3: the embedded model's held-out accuracy through a running server, and whether its model card tells the same."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fanlight import AsyncClient
from fanlight_server.default_model import default_model_path
from tests.e2e.serving import server_process
from tools.bars.table import Figure, judged, not_measurable
from tools.train_tiny.cases import BARS, held_out_cases
from tools.train_tiny.questions import Turn

AT_ONCE = 16
LEAST_CASES = 200
MAX_NEW_TOKENS = 100


def measure_bar_3() -> Iterator[Figure]:
    """A row per kind against its bar, and a row per kind against the card."""
    card = _evaluation(default_model_path())
    cases, seed = int(card.get("cases_per_kind", LEAST_CASES)), int(card.get("seed", 0))
    with server_process("--torch-threads", "1") as server:
        measured = asyncio.run(_accuracies(server.address, max(cases, LEAST_CASES), seed))
    for kind, bar in BARS.items():
        right, asked = measured[kind]
        yield judged(
            3, f"{kind}: exact matches through the server", f"{100 * right / asked:.1f} % of {asked}",
            f"at least {100 * bar:.0f} %", right / asked >= bar,
        )  # fmt: skip
    yield from _against_card(card, default_model_path() / "README.md", measured)


def _against_card(card: dict[str, Any], readme: Path, measured: dict[str, tuple[int, int]]) -> Iterator[Figure]:
    told = card.get("accuracy", {})
    if not told or not readme.is_file():
        yield judged(3, "model card with its measured accuracy", "missing", "equal figures", False)
        return
    if card["cases_per_kind"] < LEAST_CASES:
        yield not_measurable(3, "equality with the card", "equal figures", "the card was made from fewer cases")
        return
    printed = dict(re.findall(r"^\| (\w+) \|.*?\| ([\d.]+) % \|", readme.read_text(encoding="utf-8"), re.M))
    for kind in BARS:
        right, asked = measured[kind]
        here = f"{100 * right / asked:.1f}"
        same = right / asked == told.get(kind) and printed.get(kind) == here
        yield judged(
            3, f"{kind}: the model card's figure", f"server {here} %, card {printed.get(kind)} %", "equal", same
        )  # fmt: skip


async def _accuracies(address: str, count: int, seed: int) -> dict[str, tuple[int, int]]:
    """Right answers and questions asked, by kind."""
    async with AsyncClient(address) as client:
        return {kind: (await _right_answers(client, kind, count, seed), count) for kind in BARS}


async def _right_answers(client: AsyncClient, kind: str, count: int, seed: int) -> int:
    places = asyncio.Semaphore(AT_ONCE)

    async def is_right(case: Turn) -> bool:
        async with places:
            answer = await client.generate(
                case.question, images=list(case.images), temperature=0.0, max_new_tokens=MAX_NEW_TOKENS
            )
        return answer.text == case.answer

    return sum(await asyncio.gather(*map(is_right, held_out_cases(kind, count, seed))))


def _evaluation(model: Path) -> dict[str, Any]:
    file = model / "evaluation.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
