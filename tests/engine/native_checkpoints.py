"""Random-weight checkpoints that are described by an image_processing_config.json and ship no processor.

Models, tokenizers and templates are those of tests/engine/checkpoints.py and vision_checkpoints.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fanlight_engine.inputs.media.native.image_processing_config import FILE_NAME
from tests.engine.checkpoints import make_llava, make_qwen2_5_vl
from tests.engine.vision_checkpoints import TILE_LAYOUTS, make_llava_next

PATCH = 14
DYNAMIC = {
    "patch_dim": PATCH,
    "dynamic_resolution": True,
    "spatial_merge_size": 2,
    "min_patches": 16,
    "max_patches": 128,
    "temporal_patch_size": 2,
    "num_frames": 4,
    "vision_model_type": "qwen-vl",
    "pixel_mean": [0.48145466, 0.4578275, 0.40821073],
    "pixel_std": [0.26862954, 0.26130258, 0.27577711],
}
"""A picture takes 4 to 32 embeddings, a clip up to 64."""
TILED = {
    "patch_dim": PATCH,
    "use_tiling": True,
    "tile_size": 4 * PATCH,
    "max_num_tiles": 4,
    "use_thumbnail": True,
    "num_frames": 3,
    "vision_model_type": "clip",
}
"""A picture takes 16 embeddings as one tile, 48 to 80 as several with their thumbnail; a clip takes 16 a frame."""
ANYRES = {
    "patch_dim": PATCH,
    "grid_pinpoints": TILE_LAYOUTS,
    "tile_size": 4 * PATCH,
    "vision_model_type": "clip",
}
"""A picture takes the features of its whole, those of two to four tiles without their padding, and newlines."""

LLAVA_TEMPLATE = """\
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'][0]['text'] + ' ' }}
    {%- else %}
        {{- message['role'] | upper + ': ' }}
        {%- for part in message['content'] if part['type'] != 'text' %}
            {{- '<image>\\n' }}
        {%- endfor %}
        {%- for part in message['content'] if part['type'] == 'text' %}
            {{- part['text'] + (' ' if message['role'] == 'user' else '</s>') }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'ASSISTANT:' }}
{%- endif %}
"""
"""As that of tests/engine/checkpoints.py, with the same token for clips: the family has no other."""

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")


def make_native_qwen2_5_vl(directory: Path) -> Path:
    """A Qwen2.5-VL whose pictures are resized dynamically, and whose clips have a grid of their own."""
    return _described(make_qwen2_5_vl(directory, PATCH), DYNAMIC)


def make_native_llava(directory: Path) -> Path:
    """A LLaVA whose pictures are cut into tiles, and which sees clips as a tile for each frame."""
    made = _described(make_llava(directory), TILED)
    (made / "chat_template.jinja").write_text(LLAVA_TEMPLATE, encoding="utf-8")
    return made


def make_native_llava_next(directory: Path) -> Path:
    """A LLaVA-NeXT whose pictures are laid out as its model does it."""
    return _described(make_llava_next(directory), ANYRES)


def _described(directory: Path, description: dict[str, Any]) -> Path:
    """Take out what transformers' processors are loaded from; the description takes its place."""
    for name in _PROCESSOR_FILES:
        (directory / name).unlink(missing_ok=True)
    (directory / FILE_NAME).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return directory
