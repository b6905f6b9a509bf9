"""Settings that cannot hold together: which of them would win, and what to change.

    A contradiction is between two choices of one layer, between choices of which the lower would win, or between a
    choice and what the checkpoint is. A higher layer that wins over a lower one is none: that is what layers are for.

Knows settings by name, and of the checkpoint only what it cannot do; ranges of single values are in `config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fanlight_engine.errors import ConfigError
from fanlight_engine.settings import CHECKPOINT, DEFAULT, FLAG, Setting

Settings = Mapping[str, Setting]

FLASH_PAGE_MULTIPLE = 256
"""What torch's flash attention wants the size of a page to be a multiple of."""
PICTURE_SETTINGS = (
    "image_processing_config",
    "low_detail_tokens",
    "max_image_aspect_ratio",
    "max_image_bytes",
    "max_image_pixels",
    "max_image_side",
    "max_images",
    "max_step_embedding_rows",
    "media_cache_bytes",
    "vision_cache_bytes",
)
"""What is about pictures, and says nothing where a checkpoint takes none."""
CLIP_SETTINGS = (
    "default_video_frames",
    "frame_manifest_root",
    "max_video_bytes",
    "max_video_file_frames",
    "max_video_frames",
    "max_video_pixels",
    "max_video_seconds",
    "max_videos",
    "video_decode_seconds",
)
"""What is about clips, likewise."""


@dataclass(frozen=True, slots=True)
class CheckpointTraits:
    """What a checkpoint is, whatever is chosen.

    `embedding_width` are the numbers of one row that the vision tower gives, `smallest_span` the tokens of a picture
    that are computed in one step (0 where they need not be); `quantization` is how its weights are stored in few bits,
    empty where they are not.
    """

    name: str
    takes_images: bool = False
    takes_videos: bool = False
    embedding_width: int = 0
    smallest_span: int = 0
    quantization: str = ""


def settle_kv_cache(settings: Settings) -> dict[str, Setting]:
    """The settings with kv_pages left to kv_cache_bytes where a higher layer names these: both say the same thing."""
    pages, size = settings["kv_pages"], settings["kv_cache_bytes"]
    if not (pages.is_chosen and pages.value and size.is_chosen and size.outranks(pages)):
        return dict(settings)
    overrode = ((pages.source, pages.value), *(one for one in pages.overrode if one[1] != 0))
    return {**settings, pages.name: Setting(pages.name, 0, size.source, overrode)}


def refuse_contradictions(settings: Settings, traits: CheckpointTraits | None = None) -> None:
    """Raise ConfigError for the first contradiction; those with a checkpoint are looked for where it is known."""
    for told in _contradictions(settings, traits):
        raise ConfigError(told)


def unused_settings(settings: Settings, traits: CheckpointTraits) -> Iterator[Setting]:
    """What somebody chose about media that this checkpoint does not take, in the order of their names."""
    names = (*(() if traits.takes_images else PICTURE_SETTINGS), *(() if traits.takes_videos else CLIP_SETTINGS))
    yield from (settings[name] for name in sorted(names) if settings[name].is_chosen)


def _contradictions(settings: Settings, traits: CheckpointTraits | None) -> Iterator[str]:
    yield from _of_steps(settings)
    yield from _of_the_kv_cache(settings)
    yield from _of_lengths(settings)
    yield from _of_attention(settings)
    yield from _of_media(settings)
    if traits is not None:
        yield from _with_a_checkpoint(settings, traits)


def _of_steps(settings: Settings) -> Iterator[str]:
    budget, running = settings["max_step_tokens"], settings["max_running_requests"]
    if budget.value < running.value:
        yield (
            f"{budget} is below {running}: a step must hold one token of every running request; raise the first or "
            "lower the second"
        )


def _of_the_kv_cache(settings: Settings) -> Iterator[str]:
    pages, size, page = settings["kv_pages"], settings["kv_cache_bytes"], settings["page_size"]
    context, prefix_cache = settings["context_length"], settings["prefix_cache"]
    if pages.is_chosen and pages.value and size.is_chosen and pages.source == size.source:
        yield (
            f"{pages} and {size} both say how large the KV cache is; {pages.name} would win: leave one of them out, or "
            f"set {pages.name} to 0"
        )
    held = (pages.value - 1) * page.value
    if (
        pages.is_chosen
        and pages.value > 1
        and context.is_chosen
        and context.value > held
        and not pages.outranks(context)
    ):
        needed = -(-context.value // page.value) + 1
        yield (
            f"{pages} of {page} tokens hold {held} tokens beside the page for padding, and {context} asks for more; "
            f"the pages would win: raise {pages.name} to {needed}, or lower {context.name}"
        )
    is_overruled = page.outranks(prefix_cache) or context.outranks(prefix_cache)
    if prefix_cache.is_chosen and prefix_cache.value and 0 < context.value <= page.value and not is_overruled:
        yield (
            f"{prefix_cache} can keep nothing: it shares whole pages, and {page} is not below {context}; lower "
            f"{page.name}, or turn {prefix_cache.name} off"
        )


def _of_lengths(settings: Settings) -> Iterator[str]:
    context, answer = settings["context_length"], settings["default_max_new_tokens"]
    made_for = dict(context.overrode).get(CHECKPOINT)
    if made_for is not None and context.value > made_for:
        yield (
            f"{context} is above the {made_for} tokens that the checkpoint was made for, which win: lower it, or leave "
            f"it out to take {made_for}"
        )
    if answer.is_chosen and 0 < context.value < answer.value and not context.outranks(answer):
        yield (f"{answer} is above {context}, which wins: lower the first, or set it to 0 for the rest of the context")


def _of_attention(settings: Settings) -> Iterator[str]:
    attention, device, page = settings["attention"], settings["device"], settings["page_size"]
    kind = device.value.partition(":")[0]
    if attention.value in ("triton", "flash") and kind != "cuda":
        yield f"{attention} needs a GPU (NVIDIA, AMD), and {device} is none: set {device.name} to cuda, or choose auto"
    if attention.value == "cpu" and kind != "cpu":
        yield f"{attention} computes on a CPU, and {device} is none: set {device.name} to cpu, or choose auto"
    if attention.value == "flash" and page.value % FLASH_PAGE_MULTIPLE:
        yield (
            f"{attention} needs pages of a multiple of {FLASH_PAGE_MULTIPLE} tokens, and {page} is none: "
            f"set {page.name} to {FLASH_PAGE_MULTIPLE}, or choose triton"
        )


def _of_media(settings: Settings) -> Iterator[str]:
    shown, most = settings["default_video_frames"], settings["max_video_frames"]
    if shown.value > most.value:
        yield f"{shown} is above {most}; lower the first or raise the second"
    request, total = settings["max_request_media_bytes"], settings["media_memory_bytes"]
    if request.value > total.value and (request.is_chosen or total.is_chosen):
        yield (
            f"{request} is above {total}, which holds the media of all requests and wins: the largest request would be "
            "refused for ever; lower the first or raise the second"
        )
    yield from _of_urls(settings)
    directory, room = settings["media_store_directory"], settings["media_store_bytes"]
    if directory.value and not room.value and directory.is_chosen and directory.source == room.source:
        yield (
            f"{directory} keeps nothing, because {room} turns uploads off and wins: raise {room.name}, or leave "
            f"{directory.name} out"
        )


def _of_urls(settings: Settings) -> Iterator[str]:
    allowed, hosts = settings["allow_media_urls"], settings["media_url_hosts"]
    if allowed.value and not hosts.value:
        yield f"{allowed} is on and {hosts.name} is empty, so that no URL could be fetched; name the hosts"
    if hosts.is_chosen and hosts.value and allowed.source == DEFAULT:
        yield (
            f"{hosts} fetches nothing, because {allowed} wins: turn {allowed.name} on as well, or leave {hosts.name} "
            f"out (turned off on purpose, {allowed.name} says so itself)"
        )


def _with_a_checkpoint(settings: Settings, traits: CheckpointTraits) -> Iterator[str]:
    for setting in unused_settings(settings, traits):
        if setting.source == FLAG:  # a file or an environment may be shared with servers of other checkpoints
            is_of_pictures = setting.name in PICTURE_SETTINGS
            yield (
                f"{setting} is about {'pictures' if is_of_pictures else 'clips'}, and {traits.name} takes none: leave "
                f"it out, or serve a checkpoint that takes {'pictures' if is_of_pictures else 'clips'}"
            )
    if traits.takes_images:
        yield from _of_the_vision_cache(settings, traits)
    budget, running = settings["max_step_tokens"], settings["max_running_requests"]
    needed = traits.smallest_span + running.value
    if traits.smallest_span and budget.value < needed and (budget.is_chosen or running.is_chosen):
        yield (
            f"{budget} is too small for {traits.name}, whose pictures take {traits.smallest_span} tokens of one step, "
            f"beside one of each of {running}: raise the first to {needed}, or lower the second"
        )
    chosen = settings["quantization"]
    if chosen.is_chosen and chosen.value and traits.quantization:
        yield (
            f"{chosen} is chosen, and the weights of {traits.name} are quantised already ({traits.quantization}), "
            f"which wins: leave {chosen.name} out, or serve the checkpoint with full weights"
        )


def _of_the_vision_cache(settings: Settings, traits: CheckpointTraits) -> Iterator[str]:
    """A medium's embeddings are held whole while its positions are computed, so that no cache means no pictures."""
    cache, rows = settings["vision_cache_bytes"], settings["low_detail_tokens"]
    needed = rows.value * traits.embedding_width * _smallest_number_bytes(settings)
    if cache.value < needed and (cache.is_chosen or rows.is_chosen):
        yield (
            f"{cache} cannot hold one picture of {rows}, which takes {needed} bytes: every picture would be refused; "
            f"raise {cache.name}, or lower {rows.name}"
        )


def _smallest_number_bytes(settings: Settings) -> int:
    """Bytes of one number at least: half precision, unless float32 is certain."""
    dtype, device = settings["dtype"].value, settings["device"].value
    return 4 if dtype == "float32" or (dtype == "auto" and device.startswith("cpu")) else 2
