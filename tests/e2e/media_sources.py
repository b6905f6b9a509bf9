"""One picture through every source and every door: what the model answers must be the same to the last bit.

Patches, tiles and embeddings are what plain transformers makes of the picture, so that equal answers also say that the
server prepares pictures as the checkpoint means it. The prefix cache is off here: a prompt that is computed in other
chunks may differ in the last bit of a logprob, whatever its picture came from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
from PIL import Image

import fanlight
from fanlight.v1 import media_pb2, media_service_pb2
from fanlight.v1.media_service_pb2_grpc import MediaServiceStub
from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from tests.e2e.comparison import Compared, compared_answers
from tests.e2e.doors import DOORS, Part, saying
from tests.e2e.made_models import EMBEDDED
from tests.e2e.made_models import model_path as path_of
from tests.e2e.pictures import encoded, scene
from tests.e2e.plain_transformers import PlainModel, plain_model, upright
from tests.e2e.serving import Served, serving
from tests.engine.url_server import LOOPBACK, MadeUpNames, UrlServer, file, serve_urls, trusting

HOST = "pictures.test"
MODELS = (EMBEDDED, "llava_next")
QUESTION = "What is in the picture?"


@dataclass(frozen=True, slots=True)
class Place:
    """Where pictures are brought to: a server, an HTTP server that it fetches from, and the model as it should be."""

    served: Served
    urls: UrlServer
    plain: PlainModel


@asynccontextmanager
async def place_for(model: str) -> AsyncIterator[Place]:
    """A server of a model that may fetch from one made-up host."""
    async with serve_urls({}) as urls:
        settings = {"allow_media_urls": True, "media_url_hosts": HOST, "media_url_ports": str(urls.port)}
        async with serving(path_of(model), fetcher=_local_fetcher, prefix_cache=False, **settings) as served:
            yield Place(served, urls, await asyncio.to_thread(plain_model, model))


def _local_fetcher(config: object) -> UrlFetcher:
    names = MadeUpNames({HOST: [LOOPBACK]})
    return UrlFetcher(config, resolver=names, judge=trusting(LOOPBACK))  # pyright: ignore[reportArgumentType]


async def compare_sources(pictures: int = 2, models: Sequence[str] = MODELS) -> list[Compared]:
    """A row for every model, picture, source and door, against the encoded bytes through Generate."""
    rows: list[Compared] = []
    for model in models:
        async with place_for(model) as place:
            for number, data in enumerate(some_pictures(pictures)):
                rows += [*(await compare_one(place, data, f"{model}, picture {number}"))]
    return rows


def some_pictures(count: int) -> list[bytes]:
    """Files of pictures: in turn JPEG that says it is to be turned, PNG, and WebP."""
    turned = Image.Exif()
    turned[0x0112] = 6
    forms = (
        lambda image: encoded(image, "JPEG", exif=turned),
        lambda image: encoded(image),
        lambda image: encoded(image, "WebP"),
    )
    return [forms[number % len(forms)](scene(2100 + number).image) for number in range(count)]


async def compare_one(place: Place, data: bytes, title: str) -> list[Compared]:
    """Every source of one picture, through every door."""
    sources = await sources_of(place, data)
    messages = {name: [saying("Look:", image, QUESTION)] for name, image in sources.items()}
    expected = await DOORS["Generate"](place.served.client, messages["bytes"])
    rows = []
    for name, message in messages.items():
        for door, ask in DOORS.items():
            answer = await ask(place.served.client, message)
            rows.append(compared_answers(f"{title}: {name}, {door}", expected, answer))
    return rows


async def sources_of(place: Place, data: bytes) -> dict[str, media_pb2.Image]:
    """The picture of a file in every way that the model takes."""
    client, path = place.served.client, f"/{len(place.urls.replies)}"
    place.urls.replies[path] = file(data)
    (handle,) = await client.encode_images([data])
    uploaded = await client.upload(data)
    found = {
        "bytes": media_pb2.Image(data=data),
        "upload digest": media_pb2.Image(digest=uploaded.digest),
        "URL": media_pb2.Image(url=place.urls.url(HOST, path)),
        "handle": media_pb2.Image(embeddings_id=handle.embeddings_id),
    }
    found |= await _pixels_of(place, data)
    return found | await _embeddings_of(place, data, handle)


async def _pixels_of(place: Place, data: bytes) -> dict[str, media_pb2.Image]:
    """Patches or tiles from the checkpoint's own image processor: in the message, and as an uploaded file."""
    picture = upright(data)
    pixels = await asyncio.to_thread(place.plain.pixels, picture)
    array = pixels["pixel_values"]
    uploaded = await _uploaded_tensor(place, array[0] if array.ndim == 5 else array)
    if "image_grid_thw" not in pixels:
        tiles = array[0] if array.ndim == 5 else array
        return {
            "tiles": media_pb2.Image(tiles=fanlight.tiles(tiles, picture.size)),
            "tiles of a file": media_pb2.Image(tiles=fanlight.tiles(uploaded, picture.size)),
        }
    grid = tuple(pixels["image_grid_thw"][0].tolist())
    in_rows = row_major(array, grid, place.plain.merge_size)
    return {
        "patches": media_pb2.Image(patches=fanlight.patches(array, grid)),
        "patches in rows": media_pb2.Image(patches=fanlight.patches(in_rows, grid, layout="row_major")),
        "patches of a file": media_pb2.Image(patches=fanlight.patches(uploaded, grid)),
    }


async def _uploaded_tensor(place: Place, array: np.ndarray) -> media_pb2.Tensor:
    """A tensor that stays in an uploaded safetensors file."""
    from safetensors.numpy import save

    uploaded = await place.served.client.upload(save({"pixels": np.ascontiguousarray(array)}))
    return media_pb2.Tensor(file=media_pb2.TensorFile(digest=uploaded.digest, name="pixels"))


async def _embeddings_of(place: Place, data: bytes, handle: fanlight.EncodedImage) -> dict[str, media_pb2.Image]:
    """What plain transformers' tower gives, and what the server's own gave and sent back."""
    from safetensors.numpy import load

    features = await asyncio.to_thread(lambda: place.plain.features(place.plain.pixels(upright(data))))
    downloaded = await download(place.served, handle.embeddings_id)
    again = await place.served.client.upload(downloaded)
    fingerprint, grid = handle.model_fingerprint, handle.grid
    kept = load(downloaded)["embeddings"]
    return {
        "embeddings of transformers": media_pb2.Image(embeddings=fanlight.embeddings(features, fingerprint, grid)),
        "embeddings sent back": media_pb2.Image(embeddings=fanlight.embeddings(kept, fingerprint, grid)),
        "embeddings of an uploaded file": media_pb2.Image(embeddings_id=again.digest),
    }


async def download(served: Served, digest: str) -> bytes:
    """What the server holds under a digest."""
    call = MediaServiceStub(served.channel).DownloadMedia(media_service_pb2.DownloadMediaRequest(digest=digest))
    return b"".join([message.data async for message in call])


def row_major(patches: np.ndarray, grid: Sequence[int], merge: int) -> np.ndarray:
    """Patches of one picture in the tower's order -> from the top left, each (channel, y, x).

    The tower's rows stand merge group by merge group, and each holds the picture twice, once per step in time.
    """
    _, height, width = grid
    side = round((patches.shape[1] // (3 * 2)) ** 0.5)
    groups = patches.reshape(height // merge, width // merge, merge, merge, 3, 2, side, side)[:, :, :, :, :, 0]
    return np.ascontiguousarray(groups.transpose(0, 2, 1, 3, 4, 5, 6).reshape(height * width, 3 * side * side))


@dataclass(frozen=True, slots=True)
class Seen:
    """What one answer's usage says of its only picture."""

    embeddings: int
    encoder: str


async def seen_of(served: Served, *parts: Part) -> list[Seen]:
    """Ask for one token about media, and tell what its usage says of each."""
    answer = await served.client.generate([saying(*parts)], max_new_tokens=1, temperature=0.0)
    assert answer.usage is not None
    return [Seen(medium.embeddings, str(medium.encoder)) for medium in answer.usage.media]
