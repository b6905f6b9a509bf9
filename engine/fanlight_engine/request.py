"""What a caller asks for: prompts, sampling and output options, as plain frozen data.

The server's convert module fills these from protobuf; the offline callers fill them by hand. Nothing here knows
tensors, tokenizers or the wire. `None` in `SamplingOptions` means "not asked", which is not the same as any value:
`sampling.resolve` turns it into the checkpoint's default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fanlight_engine.tensor_data import TensorData


class Role(StrEnum):
    """Who speaks in a conversation."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text that is never read as special tokens.

    `token_ids` is filled only for answers this engine generated: the exact ids, so that history rendered for a later
    turn is the same token for token and finds its pages in the prefix cache.
    """

    text: str
    token_ids: tuple[int, ...] | None = None


class Modality(StrEnum):
    """Kinds of media that a prompt can show."""

    IMAGE = "image"
    VIDEO = "video"


@dataclass(frozen=True, slots=True)
class StoredMedia:
    """An uploaded file by its digest, `sha256:<64 hexadecimal digits>`."""

    digest: str


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """A file to be fetched; refused unless the server allows URLs and the host."""

    url: str


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of an uploaded safetensors file."""

    digest: str
    name: str


Tensor = TensorData | StoredTensor


class PatchLayout(StrEnum):
    """How the rows of a patch tensor are ordered."""

    TOWER = "tower"
    """As the vision tower takes them: what the checkpoint's own image processor gives as pixel_values."""
    ROW_MAJOR = "row_major"
    """Rows of patches from the top left, frame after frame; each patch flattened as (channel, y, x)."""


@dataclass(frozen=True, slots=True)
class Patches:
    """Preprocessed pixels as patches, [t * h * w, numbers of a patch], with the grid (t, h, w) counted in patches.

    `seconds_per_step` is the time between two steps of t in a clip; families that do not read it ignore it.
    """

    pixels: Tensor
    grid: tuple[int, int, int]
    layout: PatchLayout = PatchLayout.TOWER
    seconds_per_step: float | None = None


@dataclass(frozen=True, slots=True)
class Tiles:
    """Preprocessed pixels as square tiles, [tiles, 3, side, side].

    `original_size` (width, height) is that of the picture before it was tiled; families that cut padding off need it.
    """

    pixels: Tensor
    original_size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What the vision tower would give, [rows, hidden], for a model of this `model_fingerprint` (sha256:<hex>).

    `tensors` are named: "embeddings", and where media add features to the first decoder layers (Qwen3-VL) "layer_0",
    "layer_1" and so on. `grid` (t, h, w) counts patches before merging; families with M-RoPE positions need it.
    """

    tensors: dict[str, Tensor]
    model_fingerprint: str
    grid: tuple[int, int, int] | None = None
    seconds_per_step: float | None = None


@dataclass(frozen=True, slots=True)
class StoredEmbeddings:
    """Embeddings made by EncodeImages, or uploaded as a safetensors file, by their id."""

    id: str


class Detail(StrEnum):
    """How much of a picture the model is to see; a wish, which encoders of a fixed size cannot grant."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class PixelOptions:
    """Bounds of one picture, or of one frame of a clip, after resizing. None is the checkpoint's own."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    max_tokens: int | None = None
    detail: Detail = Detail.AUTO


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """Which frames of a clip are shown. Times are seconds from its beginning; `fps` and `num_frames` exclude each
    other. None is the checkpoint's own way."""

    num_frames: int | None = None
    fps: float | None = None
    start: float | None = None
    end: float | None = None


ImageSource = bytes | StoredMedia | MediaUrl | Patches | Tiles | Embeddings | StoredEmbeddings
"""Where a picture comes from; bytes are an encoded file (JPEG, PNG, WebP or GIF)."""


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture."""

    source: ImageSource
    options: PixelOptions = PixelOptions()


FrameSource = bytes | StoredMedia | MediaUrl


@dataclass(frozen=True, slots=True)
class Frames:
    """A clip as pictures in order. `fps` is how many of them make a second; None when nobody knows."""

    frames: tuple[FrameSource, ...]
    fps: float | None = None


VideoSource = bytes | StoredMedia | MediaUrl | Frames | Patches | Embeddings | StoredEmbeddings
"""Where a clip comes from; bytes are an encoded file (MP4, WebM, ...)."""


@dataclass(frozen=True, slots=True)
class VideoPart:
    """A clip, without its sound."""

    source: VideoSource
    options: PixelOptions = PixelOptions()
    sampling: FrameOptions = FrameOptions()


@dataclass(frozen=True, slots=True)
class AudioPart:
    """Declared so that it can be refused by name instead of ignored."""


MediaPart = ImagePart | VideoPart
Part = TextPart | MediaPart | AudioPart


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; parts keep their order."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to be rendered with the checkpoint's chat template."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """Parts in order, without a template. Text is tokenised with special tokens off unless asked otherwise."""

    parts: tuple[Part, ...]
    parse_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids with one placeholder id per picture and per clip, and these in order of their placeholders."""

    ids: tuple[int, ...]
    images: tuple[ImagePart, ...] = ()
    videos: tuple[VideoPart, ...] = ()


Prompt = Conversation | RawPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling as asked for; every `None` takes the checkpoint's default. Ranges are checked by `sampling.resolve`."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Which parts of the answer are wanted."""

    text: bool = True
    token_ids: bool = False
    logprobs: bool = False
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Generation:
    """One request: a prompt, how to sample, what to return.

    `model` names the checkpoint or one of its LoRA adapters; empty is the checkpoint.
    `principal` is who asks: uploads are visible to nobody else.
    """

    prompt: Prompt
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    model: str = ""
    principal: str = ""


class FinishReason(StrEnum):
    """Why an output ended."""

    STOP = "stop"
    """The model ended its turn (an end-of-sequence id or a stop token id)."""
    STOP_SEQUENCE = "stop_sequence"
    """A stop string was matched."""
    LENGTH = "length"
    """max_new_tokens was reached."""
    CONTEXT_FULL = "context_full"
    """The model's context ended, or the clamped rest of it was used up."""
    CANCELLED = "cancelled"
    """Cancelled by id or by a lost stream."""
    INTERRUPTED = "interrupted"
    """The turn was interrupted; what was said so far is kept."""
    ERROR = "error"
    """This output failed; its neighbours were not touched."""
