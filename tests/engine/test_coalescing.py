"""A reader that is slower than the core gets fewer and larger batches, each one delta, and every token once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.grpc_overhead import NullEngine
from fanlight_engine.client import CoreFacts
from fanlight_engine.client_in_process import InProcessClient
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import Completed, FromCore, Generated
from fanlight_engine.outputs.assembly import OutputAssembler
from fanlight_engine.outputs.detokenizer import Detokenizers
from fanlight_engine.outputs.stop_strings import StopMatcher
from fanlight_engine.request import OutputOptions
from tests.engine.builders import request

STEPS = 5


class CountedEngine(NullEngine):
    """Says when it has made some steps."""

    def __init__(self) -> None:
        super().__init__(CoreFacts(1 << 20, 16, 64, 1 << 20, 64))
        self.steps = 0
        self.has_made_steps = threading.Event()

    def step(self) -> list[FromCore]:
        messages = super().step()
        self.steps += 1
        return messages

    @property
    def has_work(self) -> bool:
        if self.steps >= STEPS:  # asked between two steps, when what the last one said has been handed over
            self.has_made_steps.set()
        return super().has_work


async def test_what_came_while_nobody_read_is_one_batch() -> None:
    engine: Any = CountedEngine()
    checkpoint: Any = None
    client = InProcessClient(EngineConfig(), checkpoint, build=lambda *_: engine)
    await client.start()
    stream = aiter(client.submit(request("one", [1, 2, 3], max_new_tokens=40)))
    assert engine.has_made_steps.wait(30), "the event loop stands still meanwhile, as it does when it is overloaded"
    first = await anext(stream)
    assert sum(isinstance(message, Generated) for message in first) >= STEPS
    said = [*first, *[message async for batch in stream for message in batch]]
    assert sum(isinstance(message, Generated) for message in said) == 40
    assert isinstance(said[-1], Completed)
    await client.stop()


def test_tokens_of_a_batch_leave_as_one_delta(tiny_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_path / "tokenizer.json"))
    detokenizer = Detokenizers(tokenizer).start(True)
    assembler = OutputAssembler(0, detokenizer, StopMatcher((), False), OutputOptions(token_ids=True), 0)
    ids = tokenizer.encode("a red circle 圆 and a blue square", add_special_tokens=False).ids
    for token_id in ids:
        assembler.push(token_id, None)
    delta = assembler.take()
    assert delta is not None
    assert delta.text == "a red circle 圆 and a blue square"
    assert [token.id for token in delta.tokens] == ids
    assert assembler.take() is None
