"""What the front tells of media without generating, and what an answer tells of them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import CoreFacts
from fanlight_engine.core.messages import EMBEDDINGS
from fanlight_engine.errors import InvalidRequestError, OverloadedError, Reason, RequestError, UnknownMediaError
from fanlight_engine.events import EncoderUse, MediaUsage, Usage
from fanlight_engine.inputs.media.sources.safetensors_file import read_all, write_embeddings
from fanlight_engine.inputs.media.tensors import embeddings_by_name
from fanlight_engine.request import (
    Conversation,
    Embeddings,
    Frames,
    Generation,
    ImagePart,
    Message,
    Modality,
    RawPrompt,
    Role,
    SamplingOptions,
    StoredEmbeddings,
    StoredMedia,
    Tensor,
    TextPart,
    TokenPrompt,
    VideoPart,
)
from fanlight_engine.tensor_data import array_of, tensor_data_of
from tests.engine.conversations import png
from tests.engine.scripted_client import saying
from tests.engine.test_front import HELLO, PICTURE, collect, running, user

CLIP = VideoPart(Frames((png(60, 40), png(60, 40, seed=1), png(60, 40, seed=2)), fps=2.0))


async def test_counting_equals_what_the_core_gets(qwen: Checkpoint):
    async with running(qwen, saying([1])) as (front, client):
        assert qwen.image_token_id is not None
        assert qwen.video_token_id is not None
        tokens = TokenPrompt((1, qwen.video_token_id, 2, qwen.image_token_id), (PICTURE,), (CLIP,))
        for prompt in (user(PICTURE, HELLO, CLIP), RawPrompt((CLIP, HELLO, PICTURE)), tokens):
            counted = await front.count_tokens(Generation(prompt))
            assert client.received == []
            await collect(front.generate(Generation(prompt), "r"))
            request = client.added[0]
            client.received.clear()
            assert counted.prompt_tokens == len(request.prompt_ids)
            assert counted.image_tokens == sum(run.length for run in request.mask_runs)
            assert counted.max_new_tokens == request.sampling.max_new_tokens
            assert counted.kv_pages == -(-counted.prompt_tokens // client.facts.page_size)
            assert counted.fits
            ranges = sorted(range_ for medium in counted.media for range_ in medium.mask_ranges)
            assert ranges == [(run.start, run.length) for run in request.mask_runs]
            assert {one.modality: one.embeddings for one in counted.media} == {
                medium.modality: medium.embedding_rows for medium in request.media
            }


async def test_counting_tells_what_was_decided(qwen: Checkpoint):
    async with running(qwen) as (front, _):
        counted = await front.count_tokens(Generation(user(HELLO, PICTURE, CLIP)))
        picture, clip = counted.media
        assert picture.field == "conversation.messages[0].parts[1].image"
        assert picture.decision.original_size == (100, 80)
        assert picture.decision.grid is not None
        t, h, w = picture.decision.grid
        assert picture.decision.resized_size == (w * 14, h * 14)
        assert picture.embeddings == t * h * w // 4 == picture.tokens
        assert clip.field == "conversation.messages[0].parts[2].video"
        assert clip.decision.frames == 3
        assert clip.decision.frame_times == (0.0, 0.5, 1.0)


async def test_a_prompt_that_is_too_long_is_counted_and_does_not_fit(qwen: Checkpoint):
    facts = CoreFacts(context_length=60, page_size=16, pages=64, vision_cache_bytes=1 << 20, embedding_row_bytes=64)
    async with running(qwen, facts=facts) as (front, _):
        counted = await front.count_tokens(Generation(user(PICTURE, TextPart("a b " * 500)), SamplingOptions(seed=1)))
        assert counted.prompt_tokens > 1000
        assert (counted.fits, counted.max_new_tokens) == (False, 0)
        with pytest.raises(InvalidRequestError) as caught:
            await front.count_tokens(Generation(user(ImagePart(b"no picture"))))
        assert caught.value.reason is Reason.IMAGE_UNREADABLE


async def test_usage_says_of_each_medium_whether_the_tower_ran(qwen: Checkpoint):
    hidden = qwen.hidden_size
    given = Embeddings(
        {EMBEDDINGS: tensor_data_of(np.ones((4, hidden), np.float32))}, f"sha256:{qwen.fingerprint}", (1, 4, 4)
    )
    async with running(qwen, saying([1])) as (front, client):
        generation = Generation(RawPrompt((ImagePart(given), HELLO, PICTURE)))
        usage = (await collect(front.generate(generation, "r")))[-1]
        assert isinstance(usage, Usage)
        rows = client.added[0].media[1].embedding_rows
        assert usage.media == (
            MediaUsage(Modality.IMAGE, 4, 4, EncoderUse.PROVIDED),
            MediaUsage(Modality.IMAGE, rows, rows, EncoderUse.CACHED),
        )
        assert usage.encoder_cache_hits == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_fingerprint": "sha256:0"}, "encode the image with this model"),
        ({"grid": None}, "no grid"),
        ({"grid": (1, 4, 6)}, "1 x 4 x 6 patches for 4 embeddings"),
        ({"tensors": {}}, "exactly one named"),
        ({"tensors": {EMBEDDINGS: tensor_data_of(np.ones((4, 63), np.float32))}}, "[4, 63]"),
        ({"tensors": {EMBEDDINGS: tensor_data_of(np.full((4, 64), np.inf, np.float32))}}, "not finite"),
    ],
)
async def test_embeddings_that_do_not_fit_the_model_are_refused_in_words(
    qwen: Checkpoint, change: dict[str, object], words: str
):
    fitting = {
        "tensors": {EMBEDDINGS: tensor_data_of(np.ones((4, 64), np.float32))},
        "model_fingerprint": f"sha256:{qwen.fingerprint}",
        "grid": (1, 4, 4),
    }
    async with running(qwen, saying([1])) as (front, client):
        part = ImagePart(Embeddings(**{**fitting, **change}))  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidRequestError) as caught:
            await collect(front.generate(Generation(user(part)), "r"))
        assert caught.value.reason in (Reason.EMBEDDINGS_MISMATCH, Reason.TENSOR_INVALID)
        assert words in str(caught.value)
        assert client.received == []


async def test_encoded_pictures_are_kept_as_files_that_requests_can_name(qwen: Checkpoint):
    async with running(qwen, saying([1])) as (front, client):
        (encoded,) = await front.encode_media("", (PICTURE,), "me")
        file = await front.store.read("me", encoded.id)
        tensors, metadata = read_all(file)
        assert tensors[EMBEDDINGS].shape == (encoded.embeddings, encoded.hidden_size)
        assert metadata["model_fingerprint"] == encoded.model_fingerprint == f"sha256:{qwen.fingerprint}"
        by_id = Generation(user(ImagePart(StoredEmbeddings(encoded.id))), principal="me")
        await collect(front.generate(by_id, "r"))
        (medium,) = client.added[0].media
        assert medium.is_embedded
        assert medium.tensors[EMBEDDINGS] == tensors[EMBEDDINGS]
        assert medium.grid == encoded.grid
        with pytest.raises(UnknownMediaError):
            await collect(front.generate(Generation(user(ImagePart(StoredEmbeddings(encoded.id)))), "other"))


class TestLayerFeatures:
    """Embeddings of a model that adds features to its first layers have a tensor for each of these."""

    NAMES = (EMBEDDINGS, "layer_0", "layer_1")

    async def test_are_kept_in_files_that_requests_can_name(self, qwen3_vl: Checkpoint):
        row_bytes = 4 * qwen3_vl.embedding_width
        facts = CoreFacts(2048, 16, 256, vision_cache_bytes=1 << 24, embedding_row_bytes=row_bytes)
        async with running(qwen3_vl, saying([1]), facts=facts) as (front, client):
            (encoded,) = await front.encode_media("", (PICTURE,))
            tensors, _ = read_all(await front.store.read("", encoded.id))
            assert sorted(tensors) == sorted(self.NAMES)
            assert {tensor.shape for tensor in tensors.values()} == {(encoded.embeddings, qwen3_vl.hidden_size)}
            assert encoded.hidden_size == qwen3_vl.hidden_size
            await collect(front.generate(Generation(user(ImagePart(StoredEmbeddings(encoded.id)))), "r"))
            (medium,) = client.added[0].media
            assert medium.tensors[EMBEDDINGS].shape == (encoded.embeddings, qwen3_vl.embedding_width)

    async def test_lie_behind_the_embeddings_in_the_order_of_the_layers(self, qwen3_vl: Checkpoint):
        numbers = {name: np.full((4, 64), number, np.float16) for number, name in enumerate(self.NAMES)}
        given = embeddings_of(qwen3_vl, {name: numbers[name] for name in reversed(self.NAMES)})
        async with running(qwen3_vl, saying([1])) as (front, client):
            await collect(front.generate(Generation(user(ImagePart(given))), "r"))
            wide = client.added[0].media[0].tensors[EMBEDDINGS]
        assert array_of(wide)[:, ::64].tolist() == [[0, 1, 2]] * 4
        named = embeddings_by_name(wide, qwen3_vl)
        for name in self.NAMES:
            np.testing.assert_array_equal(array_of(named[name]), numbers[name])

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"layer_1": None}, "named embeddings, layer_0, exactly 'embeddings', 'layer_0', 'layer_1' are needed"),
            ({"layer_2": np.ones((4, 64))}, "exactly 'embeddings', 'layer_0', 'layer_1' are needed"),
            ({"layer_0": np.ones((5, 64))}, "layer_0 has 5 rows where embeddings has 4"),
            ({EMBEDDINGS: np.ones((4, 192))}, "embeddings has shape [4, 192], [rows, 64] is needed"),
            ({"layer_1": np.full((4, 64), np.nan)}, "layer_1 holds a number that is not finite"),
        ],
    )
    async def test_that_do_not_fit_are_refused_by_name(
        self, qwen3_vl: Checkpoint, change: dict[str, np.ndarray | None], words: str
    ):
        arrays = {**{name: np.ones((4, 64)) for name in self.NAMES}, **change}
        given = embeddings_of(qwen3_vl, {name: array for name, array in arrays.items() if array is not None})
        async with running(qwen3_vl, saying([1])) as (front, client):
            with pytest.raises(InvalidRequestError) as caught:
                await collect(front.generate(Generation(user(ImagePart(given))), "r"))
            assert words in str(caught.value)
            assert client.received == []


def embeddings_of(checkpoint: Checkpoint, arrays: dict[str, np.ndarray]) -> Embeddings:
    """Embeddings of a picture of four rows; doubles become float32."""
    tensors: dict[str, Tensor] = {
        name: tensor_data_of(array.astype(np.float32) if array.dtype == np.float64 else array)
        for name, array in arrays.items()
    }
    return Embeddings(tensors, f"sha256:{checkpoint.fingerprint}", (1, 4, 4))


async def test_what_cannot_be_encoded_is_named_by_its_number(qwen: Checkpoint):
    async with running(qwen) as (front, _):
        with pytest.raises(RequestError, match=r"^images\[1\]: "):
            await front.encode_media("", (PICTURE, ImagePart(b"no picture")))
        with pytest.raises(RequestError, match=r"^model: "):
            await front.encode_media("other", (PICTURE,))


async def test_an_uploaded_file_that_is_no_embeddings_is_refused(qwen: Checkpoint):
    async with running(qwen, saying([1])) as (front, _):
        stored = await front.store.put("", write_embeddings({"x": tensor_data_of(np.ones(3, np.float32))}, {}))
        with pytest.raises(InvalidRequestError) as caught:
            await collect(front.generate(Generation(user(ImagePart(StoredEmbeddings(stored.digest)))), "r"))
        assert caught.value.reason is Reason.EMBEDDINGS_MISMATCH


async def test_a_chats_sources_become_bytes_that_outlive_the_upload(qwen: Checkpoint):
    async with running(qwen) as (front, _):
        data = png(20, 20)
        stored = await front.store.put("me", data)
        said = (Message(Role.USER, (HELLO, ImagePart(StoredMedia(stored.digest)))),)
        resolved = await front.resolve_sources(said, "me")
        assert resolved == (Message(Role.USER, (HELLO, ImagePart(data))),)
        assert await front.store.delete("me", stored.digest)
        with pytest.raises(UnknownMediaError, match=r"^messages\[0\]\.parts\[1\]\.image: "):
            await front.resolve_sources(said, "me")


async def test_the_same_picture_has_one_digest_whatever_its_source(qwen: Checkpoint):
    async with running(qwen, saying([1])) as (front, client):
        assert isinstance(PICTURE.source, bytes)
        stored = await front.store.put("", PICTURE.source)
        for number, source in enumerate((PICTURE.source, StoredMedia(stored.digest))):
            await collect(front.generate(Generation(user(ImagePart(source))), f"r{number}"))
        first, second = (request.media[0].digest for request in client.added)
        assert first == second


async def test_pictures_of_all_turns_decide_whether_one_is_split(checkpoint_of: Callable[[str], Checkpoint]):
    """And no cache may take the one for the other."""
    async with running(checkpoint_of("llava_onevision"), saying([1])) as (front, client):
        other = ImagePart(png(30, 90))
        answer = Message(Role.ASSISTANT, (HELLO,))
        two_turns = Conversation((*user(PICTURE, HELLO).messages, answer, *user(other).messages))
        for number, prompt in enumerate((user(PICTURE, HELLO), two_turns, user(PICTURE, CLIP))):
            await collect(front.generate(Generation(prompt), f"r{number}"))
        (alone,), (first, second), (beside_a_clip, _) = (request.media for request in client.added)
        assert alone == beside_a_clip
        assert alone.digest != first.digest
        assert first.tensors["pixel_values"].shape[1] == second.tensors["pixel_values"].shape[1] == 1
        assert alone.tensors["pixel_values"].shape[1] > 1
        (encoded,) = await front.encode_media("", (PICTURE,))
        assert encoded.embeddings == alone.embedding_rows


async def test_a_picture_among_others_is_the_same_medium_where_the_family_does_not_care(qwen: Checkpoint):
    async with running(qwen, saying([1])) as (front, client):
        for number, prompt in enumerate((user(PICTURE), user(PICTURE, HELLO, ImagePart(png(30, 90))))):
            await collect(front.generate(Generation(prompt), f"r{number}"))
        first, second = client.added
        assert first.media[0] == second.media[0]


@pytest.mark.parametrize("family", ["gemma3", "idefics3", "mistral3", "internvl"])
async def test_embeddings_take_the_place_of_the_picture_that_they_are_of(
    checkpoint_of: Callable[[str], Checkpoint], family: str
):
    async with running(checkpoint_of(family), saying([1])) as (front, client):
        (encoded,) = await front.encode_media("", (PICTURE,))
        for number, source in enumerate((PICTURE.source, StoredEmbeddings(encoded.id))):
            await collect(front.generate(Generation(user(HELLO, ImagePart(source), HELLO)), f"r{number}"))
        shown, embedded = client.added
        assert (embedded.prompt_ids, embedded.mask_runs) == (shown.prompt_ids, shown.mask_runs)


async def test_ids_put_a_replacement_as_it_is_tokenised_for_itself(checkpoint_of: Callable[[str], Checkpoint]):
    checkpoint = checkpoint_of("gemma3")
    async with running(checkpoint, saying([1])) as (front, client):
        assert front._preparation is not None
        placeholder = front._preparation.guarded.id_of("<start_of_image>")
        assert placeholder not in (None, checkpoint.image_token_id)
        await collect(front.generate(Generation(TokenPrompt((7, placeholder, 8), (PICTURE,))), "r"))
        (request,) = client.added
        text = "\n\n<start_of_image>" + "<image_soft_token>" * 9 + "<end_of_image>\n\n"
        assert request.prompt_ids == (7, *front._preparation.guarded.encode_trusted(text), 8)
        assert sum(run.length for run in request.mask_runs) == 9


async def test_a_text_model_counts_text(llama: Checkpoint):
    async with running(llama) as (front, _):
        counted = await front.count_tokens(Generation(RawPrompt((TextPart("the cat"),))))
        assert counted.prompt_tokens == len(await front.tokenize("", "the cat")) + 1  # its tokenizer adds BOS
        assert front.modalities == frozenset()
        assert await front.detokenize("", [token.id for token in await front.tokenize("", "the cat")]) == "the cat"
        with pytest.raises(InvalidRequestError) as caught:
            await front.count_tokens(Generation(user(PICTURE)))
        assert caught.value.reason is Reason.MODALITY_UNSUPPORTED


async def test_work_beside_generating_counts_towards_the_capacity(qwen: Checkpoint):
    async with running(qwen, max_running_requests=1, max_waiting_requests=1) as (front, _):
        gate = asyncio.Event()
        held = front.store.read

        async def slow_read(principal: str, digest: str) -> bytes:
            await gate.wait()
            return await held(principal, digest)

        front.store.read = slow_read  # type: ignore[method-assign]
        stored = await front.store.put("", png(9, 9))
        picture = Generation(user(ImagePart(StoredMedia(stored.digest))))
        jobs = [asyncio.ensure_future(front.count_tokens(picture)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await front.encode_media("", (PICTURE,))
        with pytest.raises(OverloadedError):
            await collect(front.generate(picture, "r"))
        gate.set()
        first, second = await asyncio.gather(*jobs)
        assert first == second
        assert await front.encode_media("", (PICTURE,))
