"""Media that must do no harm: bombs and broken files of every kind, each with the status that it gets.

Pictures, clips, frame sequences, tensors and uploaded tensor files; all are made on the spot. Knows what is sent and
what must come back; sending and measuring is the business of `hostile_media`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc

from fanlight.v1 import generation_pb2, media_pb2
from tests.e2e.bad_input import image
from tests.e2e.bad_pictures import pictures_to_bear, pictures_to_refuse
from tests.e2e.bad_tensors import TowerFacts, bad_embeddings, bad_patches, bad_safetensors
from tests.e2e.pictures import picture
from tests.engine import clips

VIDEO_TOO_LARGE = "VIDEO_TOO_LARGE"
VIDEO_UNDECODABLE = "VIDEO_UNDECODABLE"


@dataclass(frozen=True)
class BadMedia:
    """One medium, and how a request that shows it ends. `uploads` are files that it names by digest.

    It is refused for one of `reasons`; none are those of a medium that is harmless though it looks like a bomb, whose
    request is answered.
    """

    name: str
    part: generation_pb2.Part = field(repr=False)
    reasons: tuple[str, ...]
    uploads: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def code(self) -> grpc.StatusCode:
        """The status of the call."""
        return grpc.StatusCode.INVALID_ARGUMENT if self.reasons else grpc.StatusCode.OK


def bad_media(facts: TowerFacts) -> list[BadMedia]:
    """Every row, for a model that takes pictures, clips and patches, with its facts."""
    return [*_pictures(), *_clips(), *_frame_sequences(), *_tensors(facts), *_tensor_files()]


def _pictures() -> Iterator[BadMedia]:
    for name, (data, reason) in pictures_to_refuse().items():
        yield BadMedia(name, image(data), (reason,))
    for name, data in pictures_to_bear().items():
        yield BadMedia(name, image(data), ())


def _clips() -> Iterator[BadMedia]:
    for name, data in clips.broken_clips().items():
        # Whether a bomb is found too large or damaged depends on how far its file can be read.
        is_bomb = "bomb" in name or "huge" in name
        reasons = (VIDEO_UNDECODABLE, VIDEO_TOO_LARGE) if is_bomb else (VIDEO_UNDECODABLE,)
        yield BadMedia(f"a clip: {name}", video(data), reasons)
    yield BadMedia("a clip: over an hour", video(clips.clip_at([0, 1, 3700])), (VIDEO_TOO_LARGE,))
    yield BadMedia("a clip: nothing", video(b""), (VIDEO_UNDECODABLE,))
    yield BadMedia("a clip: a picture", video(picture(0)), (VIDEO_UNDECODABLE,))


def _frame_sequences() -> Iterator[BadMedia]:
    fine = picture(0)
    bomb = pictures_to_refuse()["a PNG that says 50,000 x 50,000"][0]
    yield BadMedia("129 frames", frames([fine] * 129), (VIDEO_TOO_LARGE,))
    yield BadMedia("a frame that is no picture", frames([fine, b"no picture", fine]), ("IMAGE_UNDECODABLE",))
    yield BadMedia("a frame that is a bomb", frames([fine, bomb]), ("IMAGE_TOO_LARGE",))


def _tensors(facts: TowerFacts) -> Iterator[BadMedia]:
    for name, part, reason in (*bad_patches(facts), *bad_embeddings(facts)):
        yield BadMedia(name, part, (reason,))


def _tensor_files() -> Iterator[BadMedia]:
    grid = media_pb2.Grid(t=1, h=2, w=2)
    files = bad_safetensors()
    for name, data in files.items():
        tensor = media_pb2.Tensor(file=media_pb2.TensorFile(digest=_digest_of(data), name="pixels"))
        shown = media_pb2.Image(patches=media_pb2.Patches(pixels=tensor, grid=grid))
        yield BadMedia(f"a tensor file: {name}", generation_pb2.Part(image=shown), ("TENSOR_INVALID",), (data,))
    overlapping = files["tensors that overlap"]
    shown = media_pb2.Image(embeddings_id=_digest_of(overlapping))
    yield BadMedia(
        "a tensor file: tensors that overlap, as embeddings", generation_pb2.Part(image=shown), ("TENSOR_INVALID",),
        (overlapping,),
    )  # fmt: skip


def _digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def video(data: bytes) -> generation_pb2.Part:
    """A part that is a clip, or claims to be one."""
    return generation_pb2.Part(video=media_pb2.Video(data=data))


def frames(pictures: list[bytes]) -> generation_pb2.Part:
    """A part that is a clip of pictures, or claims to be one."""
    sequence = media_pb2.Frames(frames=[media_pb2.Frame(data=data) for data in pictures])
    return generation_pb2.Part(video=media_pb2.Video(frames=sequence))
