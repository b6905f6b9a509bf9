"""The families of checkpoints that are served, as a declared table; knows no weights and no requests.

What transformers tells by itself (decoder, tower, projected image features, head) is not repeated here. A family says
only what cannot be read off its classes. A checkpoint that needs more than a row can say is refused at load.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Positions(StrEnum):
    """How a prompt's position ids come about."""

    ARANGE = "arange"
    """0, 1, 2, ... over the expanded prompt (RoPE)."""
    MROPE = "mrope"
    """Three rows from the model's own `get_rope_index`, which decoding goes on from."""


class Bidirectional(StrEnum):
    """Which prompt positions see positions after themselves."""

    NONE = "none"
    """None: attention is causal everywhere."""
    MEDIA = "media"
    """Every unbroken run of positions that take embeddings sees the whole of itself."""
    PROMPT = "prompt"
    """The whole prompt sees the whole of itself; what is generated is causal."""


class PixelForm(StrEnum):
    """What a vision tower takes of one picture or clip."""

    GRID = "grid"
    """pixel_values [t * h * w, C * T * p * p], a row per patch, those of one merge group beside each other, and
    image_grid_thw [1, 3] with (t, h, w) in patches; T frames make one temporal patch. Clips have tensors of their own.
    """
    TILES = "tiles"
    """pixel_values [tiles, 3, S, S]; the features of a medium's tiles are concatenated."""
    ANYRES = "anyres"
    """pixel_values [1, tiles, 3, S, S], the whole picture first, and image_sizes [1, 2] with its (height, width), from
    which the model knows the layout of the other tiles and what of them is padding."""
    MASKED_TILES = "masked_tiles"
    """pixel_values [1, tiles, 3, H, W] and pixel_attention_mask [1, tiles, H, W], which is 0 on padding; the features
    of a medium's tiles are concatenated."""
    SIZED = "sized"
    """pixel_values [1, 3, H, W] at the picture's own resolution, and image_sizes [1, 2] with (height, width)."""
    FRAMES = "frames"
    """pixel_values_videos [1, frames, 3, S, S] of a clip."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table.

    `vision_tensors` are the processor outputs that go into `get_image_features`, the pixels first, in the form that
    `pixel_form` says; `vision_model_types` are the towers that take just these. `video_form` and `video_tensors` say
    the same of clips: GRID and FRAMES go into `get_video_features`, any other form takes the way of pictures.
    `image_prefix` and `image_suffix` are the special tokens that the family's template writes around an image
    placeholder, `video_prefix` and `video_suffix` those around a video placeholder; raw prompts get the same.
    """

    model_type: str
    vision_model_types: tuple[str, ...] = ()
    positions: Positions = Positions.ARANGE
    first_position: int = 0
    """The position id of a prompt's first token, where positions are ARANGE."""
    bidirectional: Bidirectional = Bidirectional.NONE
    window_bounds_spans: bool = False
    """A position that sees the whole of its span sees no further back in it than a sliding window reaches; otherwise
    the window does not hold inside a span."""
    pixel_form: PixelForm | None = None
    vision_tensors: tuple[str, ...] = ()
    video_form: PixelForm | None = None
    video_tensors: tuple[str, ...] = ()
    image_prefix: str = ""
    image_suffix: str = ""
    video_prefix: str = ""
    video_suffix: str = ""
    reads_seconds_per_grid: bool = False
    """Positions inside a clip depend on its time (M-RoPE)."""
    clip_in_pieces: bool = False
    """A clip's rows are in several runs with text between them, and `get_rope_index` takes each for a grid of t = 1."""
    adds_features_to_layers: bool = False
    """The tower has features for the first decoder layers besides those that are injected (DeepStack)."""
    splits_only_a_lone_picture: bool = False
    """A picture is cut into tiles where it is the only one of its prompt; one of several is shown as a whole."""
    leaves_out_logit_scale: bool = False
    """The family's own forward does not scale logits, though its decoder's causal LM does."""
    text_after_media: bool = False
    """All media stand before the text, which the beginning-of-sequence token opens and a newline closes; the family has
    no chat template."""
    packages: tuple[str, ...] = ()
    """Optional packages that the family's processor imports."""

    @property
    def takes_images(self) -> bool:
        """Whether checkpoints of this family have a vision tower."""
        return bool(self.vision_tensors)

    @property
    def clips_are_pictures(self) -> bool:
        """Whether the frames of a clip take the tower's way of pictures, and their embeddings the place of such."""
        return self.takes_videos and self.video_tensors == self.vision_tensors

    @property
    def takes_videos(self) -> bool:
        """Whether that tower has a way of its own for clips."""
        return bool(self.video_tensors)


_QWEN_VISION = {
    "positions": Positions.MROPE,
    "pixel_form": PixelForm.GRID,
    "vision_tensors": ("pixel_values", "image_grid_thw"),
    "video_form": PixelForm.GRID,
    "video_tensors": ("pixel_values_videos", "video_grid_thw"),
    "image_prefix": "<|vision_start|>",
    "image_suffix": "<|vision_end|>",
    "video_prefix": "<|vision_start|>",
    "video_suffix": "<|vision_end|>",
}
_MASKED_TILES = {"pixel_form": PixelForm.MASKED_TILES, "vision_tensors": ("pixel_values", "pixel_attention_mask")}
_SIGLIP = ("siglip_vision_model",)

FAMILIES: tuple[Family, ...] = (
    # Text.
    Family("llama"),
    Family("mistral"),
    Family("qwen2"),
    Family("qwen3"),
    Family("gemma"),
    Family("gemma2"),
    Family("gemma3_text"),
    Family("phi3"),
    Family("qwen3_moe"),
    Family("mixtral"),
    Family("smollm3"),
    Family("granite"),
    Family("olmo2"),
    Family("glm4"),
    Family("cohere2"),
    Family("ministral3"),
    # Vision and text.
    Family("qwen2_vl", vision_model_types=("qwen2_vl", "qwen2_vl_vision"), **_QWEN_VISION),
    Family(
        "qwen2_5_vl",
        vision_model_types=("qwen2_5_vl", "qwen2_5_vl_vision"),
        reads_seconds_per_grid=True,
        **_QWEN_VISION,
    ),
    Family(
        "qwen3_vl",
        vision_model_types=("qwen3_vl", "qwen3_vl_vision"),
        clip_in_pieces=True,
        adds_features_to_layers=True,
        **_QWEN_VISION,
    ),
    Family(
        "qwen3_vl_moe",
        vision_model_types=("qwen3_vl_moe", "qwen3_vl_moe_vision"),
        clip_in_pieces=True,
        adds_features_to_layers=True,
        **_QWEN_VISION,
    ),
    Family(
        "llava",
        vision_model_types=("clip_vision_model", *_SIGLIP),
        pixel_form=PixelForm.TILES,
        vision_tensors=("pixel_values",),
    ),
    Family(
        "llava",
        vision_model_types=("pixtral",),
        pixel_form=PixelForm.SIZED,
        vision_tensors=("pixel_values", "image_sizes"),
    ),
    Family(
        "vipllava",
        vision_model_types=("clip_vision_model",),
        pixel_form=PixelForm.TILES,
        vision_tensors=("pixel_values",),
    ),
    Family(
        "llava_next",
        vision_model_types=("clip_vision_model", *_SIGLIP),
        pixel_form=PixelForm.ANYRES,
        vision_tensors=("pixel_values", "image_sizes"),
        leaves_out_logit_scale=True,
    ),
    Family(
        "llava_onevision",
        vision_model_types=_SIGLIP,
        pixel_form=PixelForm.ANYRES,
        vision_tensors=("pixel_values", "image_sizes"),
        video_form=PixelForm.FRAMES,
        video_tensors=("pixel_values_videos",),
        splits_only_a_lone_picture=True,
    ),
    Family("idefics3", vision_model_types=("idefics3", "idefics3_vision"), **_MASKED_TILES),
    Family(
        "smolvlm",
        vision_model_types=("smolvlm", "smolvlm_vision"),
        video_form=PixelForm.MASKED_TILES,
        video_tensors=("pixel_values", "pixel_attention_mask"),
        packages=("num2words",),
        **_MASKED_TILES,
    ),
    Family(
        "internvl",
        vision_model_types=("internvl_vision",),
        pixel_form=PixelForm.TILES,
        vision_tensors=("pixel_values",),
        video_form=PixelForm.TILES,
        video_tensors=("pixel_values",),
    ),
    Family(
        "gemma3",
        vision_model_types=_SIGLIP,
        bidirectional=Bidirectional.MEDIA,
        window_bounds_spans=True,
        pixel_form=PixelForm.TILES,
        vision_tensors=("pixel_values",),
    ),
    Family(
        "aya_vision",
        vision_model_types=_SIGLIP,
        pixel_form=PixelForm.TILES,
        vision_tensors=("pixel_values",),
        leaves_out_logit_scale=True,
    ),
    Family(
        "mistral3",
        vision_model_types=("pixtral",),
        pixel_form=PixelForm.SIZED,
        vision_tensors=("pixel_values", "image_sizes"),
    ),
    Family(
        "paligemma",
        vision_model_types=_SIGLIP,
        first_position=1,
        bidirectional=Bidirectional.PROMPT,
        pixel_form=PixelForm.TILES,
        vision_tensors=("pixel_values",),
        text_after_media=True,
    ),
)

DECODERS: frozenset[str] = frozenset(
    {family.model_type for family in FAMILIES if not family.takes_images}
    | {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}
)
"""The model_types of text configurations whose decoders run: those of the text families, and some that only occur
below a vision family."""


def families_of(model_type: str) -> tuple[Family, ...]:
    """The rows of a model_type; several where its towers take different tensors, none where it is not served."""
    return tuple(family for family in FAMILIES if family.model_type == model_type)


def served_model_types() -> tuple[str, ...]:
    """Every model_type that has a row, each once, in alphabetical order."""
    return tuple(sorted({family.model_type for family in FAMILIES}))
