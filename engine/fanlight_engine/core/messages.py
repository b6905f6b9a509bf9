"""Everything that crosses the seam between the front half and the core, as frozen plain data.

Ids, bytes, shapes and numbers only: no tensors, no images, no callables. Each message survives `encode`/`decode`
(msgpack), so that the core can live in another process; the tests run every message through both.
Counts and offsets are of the expanded prompt. Durations are seconds.
"""

from __future__ import annotations

import msgspec

from fanlight_engine.request import FinishReason, Modality
from fanlight_engine.tensor_data import TensorData


class MediaInput(msgspec.Struct, frozen=True):
    """One preprocessed picture or clip.

    `digest` is SHA-256 over encoded bytes, processing configuration and model fingerprint. `embedding_rows` is how many
    prompt positions take a row of its embedding. `tensors` are the vision tower's keyword arguments for this one medium
    (for example `pixel_values` and `image_grid_thw`), each with the medium (or its patches) on the first axis; where
    `is_embedded`, they are the embeddings themselves, and no tower runs. `grid` (t, h, w) counts patches before merging
    and `seconds_per_grid` is the time between two steps of t: families with M-RoPE positions need them.
    """

    digest: bytes
    embedding_rows: int
    tensors: dict[str, TensorData]
    modality: Modality = Modality.IMAGE
    is_embedded: bool = False
    grid: tuple[int, int, int] | None = None
    seconds_per_grid: float = 1.0

    @property
    def noun(self) -> str:
        """What error texts call it."""
        return "clip" if self.modality is Modality.VIDEO else "picture"


EMBEDDINGS = "embeddings"
"""Name of the one tensor of a MediaInput that is embedded, and of an Encoded: [rows, embedding width], where a row is
the hidden state and, for models that add features to layers, the features of the first layers behind it."""


class MaskRun(msgspec.Struct, frozen=True):
    """Prompt positions [start, start + length) take rows [row, row + length) of the request's media embeddings."""

    start: int
    row: int
    length: int


class SamplingParams(msgspec.Struct, frozen=True):
    """Resolved sampling of one output; every range was checked by `sampling.resolve`.

    `temperature` 0 is greedy; `top_p` 1, `top_k` 0, `min_p` 0, `repetition_penalty` 1, `presence_penalty` 0 and
    `frequency_penalty` 0 are off. `end_ids` are the end-of-sequence ids that
    end this output (empty with ignore_eos); `stop_token_ids` end it as well. `context_limited` says that
    max_new_tokens is the clamped rest of the context.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    end_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: bool = False
    context_limited: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether tokens of the request count when the next one is chosen."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """Front to core: queue this request. `arrival` is time.monotonic() of the front when the request came in.

    `lora` is the name of the adapter that answers; empty is the checkpoint itself.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    media: tuple[MediaInput, ...] = ()
    mask_runs: tuple[MaskRun, ...] = ()
    cache_salt: bytes = b""
    arrival: float = 0.0
    lora: str = ""


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """Front to core: free this request wherever it is. Unknown ids are ignored; nothing is answered."""

    request_id: str


class EncodeRequest(msgspec.Struct, frozen=True, tag=True):
    """Front to core: encode this picture or clip and send its embeddings back; no tokens are generated."""

    request_id: str
    media: MediaInput


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """Core to front: the request is queued behind `queue_position` others.

    `cached_tokens` of the prompt are in the prefix cache right now.
    """

    request_id: str
    cached_tokens: int
    queue_position: int


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """Core to front: the request was refused or failed; terminal. `reason` is a name of errors.Reason."""

    request_id: str
    reason: str
    field: str
    description: str
    retry_after: float = 0.0


class Progressed(msgspec.Struct, frozen=True, tag=True):
    """Core to front: where the request stands before its first token."""

    request_id: str
    queue_position: int
    media_encoded: int
    prefill_tokens_done: int


class Generated(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Core to front: new tokens; `logprobs` has as many entries, or none unless asked."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


class CoreTimings(msgspec.Struct, frozen=True):
    """Seconds spent: waiting for the first step, encoding images, from first step to first token."""

    queue: float = 0.0
    encode_images: float = 0.0
    prefill: float = 0.0


class Prefilled(msgspec.Struct, frozen=True, tag=True):
    """Core to front: the prompt is computed; what that took. Comes once, just before the first Generated.

    `encoded_media` are the numbers of the media that the vision tower ran for on this request's behalf; the embeddings,
    or the computed pages, of the others were known.

    Not part of Completed, because a front that ends an answer itself (a stop string, a cancel) hears nothing after it.
    """

    request_id: str
    cached_tokens: int
    encoded_media: tuple[int, ...]
    timings: CoreTimings


class Encoded(msgspec.Struct, frozen=True, tag=True):
    """Core to front: the embeddings that an EncodeRequest asked for; terminal. `was_cached` when no tower ran."""

    request_id: str
    tensors: dict[str, TensorData]
    was_cached: bool


class Completed(msgspec.Struct, frozen=True, tag=True):
    """Core to front: the request ended by itself; terminal, after its last Generated."""

    request_id: str
    reason: FinishReason
    preemptions: int


ToCore = AddRequest | AbortRequest | EncodeRequest
FromCore = Admitted | Rejected | Progressed | Prefilled | Generated | Completed | Encoded

_encoder = msgspec.msgpack.Encoder()
_to_core_decoder = msgspec.msgpack.Decoder(ToCore)
_from_core_decoder = msgspec.msgpack.Decoder(FromCore)


def encode(message: ToCore | FromCore) -> bytes:
    """The message as msgpack bytes."""
    return _encoder.encode(message)


def decode_to_core(data: bytes) -> ToCore:
    """The front's message from its bytes; raises msgspec.DecodeError."""
    return _to_core_decoder.decode(data)


def decode_from_core(data: bytes) -> FromCore:
    """The core's message from its bytes; raises msgspec.DecodeError."""
    return _from_core_decoder.decode(data)
