"""Bar 7: every bad input with the status and field that it got, beside a neighbour that must not notice."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc

from fanlight.errors import FanlightError
from tests.e2e.asking import long_ask
from tests.e2e.bad_bytes import bad_bytes, refusal_of_bytes
from tests.e2e.bad_input import FIRST_IMAGE, BadInput, asking, bad_inputs, image, mismatches, refusal_of
from tests.e2e.neighbours import Neighbours
from tests.e2e.pictures import picture
from tests.e2e.serving import Served, serving
from tests.e2e.special_tokens import special_tokens, type_token
from tests.engine.checkpoints import make_llama
from tools.bars.commands import run
from tools.bars.table import Figure, judged

NEIGHBOUR = long_ask(0, picture(1200), 24)


def measure_bar_7() -> Iterator[Figure]:
    """A row per bad input, then what held for all of them."""
    yield from asyncio.run(_measure())
    yield _count_mismatch("python", ())
    yield _count_mismatch("python -O", ("-O",))


async def _measure() -> list[Figure]:
    figures: list[Figure] = []
    neighbours = Neighbours(NEIGHBOUR)
    async with serving() as served:
        model = await served.client.model()
        await neighbours.learn(served.client)
        rows = bad_inputs(model.special_tokens.image_token_id, model.vocabulary_size, model.context_length)
        for bad in rows:
            async with neighbours.beside(served.client):
                refused = await refusal_of(served.channel, bad.request)
            figures.append(_refusal(bad, refused))
        for broken in bad_bytes():
            async with neighbours.beside(served.client):
                refused = await refusal_of_bytes(served.address, broken)
            holds = (refused.code, refused.reason) == (broken.code, broken.reason)
            note = "" if holds else f"{refused.reason}: {refused}"
            figures.append(judged(7, broken.name, refused.code.name, broken.code.name, holds, note))
        figures.append(await _typed_tokens(served))
    figures.append(await _image_for_text_only())
    answered = f"{neighbours.unchanged} unchanged of {neighbours.count}"
    figures.append(judged(7, "neighbour streams beside them", answered, "all unchanged", neighbours.all_unchanged))
    next_ones = f"{neighbours.next_answered} of {neighbours.count}"
    figures.append(
        judged(7, "next requests answered", next_ones, "all", neighbours.next_answered == neighbours.count)
    )  # fmt: skip
    return figures


def _refusal(bad: BadInput, refused: FanlightError) -> Figure:
    """Code, whole field path, reason and text are judged; the row shows the code, and the end of the path."""
    wrong = mismatches(bad, refused)
    place = ".".join((bad.field or "").split(".")[-2:])
    return judged(7, f"{bad.name}, at {place}", refused.code.name, bad.code.name, not wrong, "; ".join(wrong))


async def _typed_tokens(served: Served) -> Figure:
    tokens = special_tokens(served)
    typed = [await type_token(served, token, images) for images in (0, 1, 2) for token in tokens]
    as_text = sum(one.is_text for one in typed)
    return judged(
        7, f"{len(tokens)} special tokens typed beside 0, 1 and 2 images", f"{as_text} of {len(typed)} are text",
        "OK, all as text", as_text == len(typed),
    )  # fmt: skip


async def _image_for_text_only() -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        async with serving(make_llama(Path(folder) / "llama")) as llama:
            bad = BadInput(
                "an image for a text-only checkpoint", asking(image(picture(0))), grpc.StatusCode.INVALID_ARGUMENT,
                FIRST_IMAGE, "MODALITY_UNSUPPORTED", ("llama",),
            )  # fmt: skip
            refused = await refusal_of(llama.channel, bad.request)
            await llama.client.generate("Hello", max_new_tokens=1)
            return _refusal(bad, refused)


COUNT_MISMATCH = """
from fanlight_engine.core.image_mask import ImageMask, MaskMismatchError
from fanlight_engine.core.messages import MediaInput, MaskRun
try:
    ImageMask((MediaInput(b"digest", 4, {}),), (MaskRun(2, 0, 3),), 10)
except MaskMismatchError as error:
    print("raises:", error)
else:
    raise SystemExit("nothing was raised")
"""


def _count_mismatch(name: str, flags: tuple[str, ...]) -> Figure:
    """4 embeddings for 3 positions, in an interpreter of its own."""
    done = run(sys.executable, *flags, "-c", COUNT_MISMATCH)
    measured = done.output.strip().splitlines()[-1].partition(":")[0] if done.output else "nothing"
    return judged(7, f"4 embeddings for 3 image positions under {name}", measured, "raises", done.exit_code == 0)
