"""How many pictures one core decodes and preprocesses in a second, against transformers on the same files.

    native    Fanlight's own preprocessing against transformers' image processor; at least as fast
    wrapped   a checkpoint's own processor behind Fanlight's seam against the same processor called directly; all but as
              fast, limits, orientation and plain bytes included

Both sides get encoded files and end with the tensors that a tower takes. Time is that of the processor core, so that
neighbours on the machine count for little.

    python -m benchmarks.media [--rounds N] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import io
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoProcessor, CLIPVisionConfig, LlamaConfig, LlavaNextConfig, LlavaNextImageProcessor

from benchmarks.report import Comparison, Runs, machine_facts, machine_line, one_thread, run_benchmark
from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media import images
from fanlight_engine.inputs.media.native.image_processing_config import ImageProcessingConfig
from fanlight_engine.inputs.media.native.pixel_statistics import find_pixel_statistics
from fanlight_engine.inputs.media.native.processor import NativeProcessor
from fanlight_engine.inputs.media.processing import MediaProcessor
from fanlight_engine.inputs.media.wrapped import WrappedProcessor
from fanlight_engine.request import PixelOptions

NATIVE_BAR, WRAPPED_BAR = 1.0, 0.95
ROUNDS = 7
PASSES = 5
"""Times that a round goes through all files."""
UNIT = "pictures/s"
SIZES = (
    ("JPEG", 640, 480),
    ("JPEG", 1024, 768),
    ("JPEG", 1920, 1080),
    ("JPEG", 2400, 1600),
    ("PNG", 512, 512),
    ("PNG", 1280, 720),
)
"""Format, width and height of the files."""

PATCH, MERGE = 14, 2
MIN_PIXELS, MAX_PIXELS = 4 * (PATCH * MERGE) ** 2, 1280 * (PATCH * MERGE) ** 2
TILE = 336
PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))

_TINY = Path(__file__).parents[1] / "models" / "fanlight-tiny"

Preparation = Callable[[bytes], object]
"""What is measured: an encoded file in, tensors out."""


@dataclass(frozen=True, slots=True)
class MediaBenchmark:
    """What was measured, and where."""

    comparisons: tuple[Comparison, ...]
    machine: dict[str, Any]
    files: tuple[str, ...]
    rounds: int

    def text(self) -> str:
        """The result for people."""
        header = f"{'':36} {'ours':>8} {'theirs':>8}"
        lines = [machine_line(self.machine), f"{self.rounds} rounds of {', '.join(self.files)}", header]
        return "\n".join([*lines, *(comparison.line() for comparison in self.comparisons)])

    def facts(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "machine": self.machine,
            "files": list(self.files),
            "rounds": self.rounds,
            "comparisons": [comparison.facts() for comparison in self.comparisons],
        }


def measure(rounds: int = ROUNDS) -> MediaBenchmark:
    """Measure with one thread; restores torch's number of threads. About a minute."""
    files = tuple(_picture(*size, seed) for seed, size in enumerate(SIZES))
    with one_thread(), tempfile.TemporaryDirectory() as directory:
        grid = _grid_checkpoint(Path(directory) / "grid")
        anyres = _anyres_checkpoint(Path(directory) / "anyres")
        config = EngineConfig()
        processor: Any = AutoProcessor.from_pretrained(grid.path)
        wrapped = WrappedProcessor(config, grid, processor, GuardedTokenizer(processor.tokenizer))
        direct = _directly(processor.image_processor)
        tiler = LlavaNextImageProcessor(
            size={"shortest_edge": TILE},
            crop_size={"height": TILE, "width": TILE},
            image_grid_pinpoints=[list(one) for one in PINPOINTS],
        )
        comparisons = (
            _compared("native, Qwen2.5-VL's patches", NATIVE_BAR, _ours(_native_grid(grid)), direct, files, rounds),
            _compared(
                *("native, LLaVA-NeXT's tiles", NATIVE_BAR, _ours(_native_anyres(anyres)), _directly(tiler)),
                *(files, rounds),
            ),
            _compared("wrapped, Qwen2.5-VL's patches", WRAPPED_BAR, _ours(wrapped), direct, files, rounds),
        )
        machine = machine_facts(("torch", "torchvision", "transformers", "pillow", "numpy"), torch.get_num_threads())
    names = tuple(f"{kind} {width} x {height}" for kind, width, height in SIZES)
    return MediaBenchmark(comparisons, machine, names, rounds)


def _compared(
    name: str, bar: float, ours: Preparation, theirs: Preparation, files: tuple[bytes, ...], rounds: int
) -> Comparison:
    """Picture by picture, turn about; the first round warms up and is dropped.

    In a round each picture counts at the best of its passes: what else the machine does only ever adds time.
    """
    figures: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        best = [[math.inf, math.inf] for _ in files]
        for turn in range(PASSES):
            for index, data in enumerate(files):
                for which in (0, 1) if (number + turn + index) % 2 else (1, 0):
                    best[index][which] = min(best[index][which], _core_seconds((ours, theirs)[which], data))
        if number:
            for which in (0, 1):
                figures[which].append(len(files) / sum(seconds[which] for seconds in best))
    return Comparison(name, UNIT, bar, Runs("Fanlight", tuple(figures[0])), Runs("transformers", tuple(figures[1])))


def _core_seconds(prepare: Preparation, data: bytes) -> float:
    started = time.process_time()
    prepare(data)
    return time.process_time() - started


def _ours(processor: MediaProcessor) -> Preparation:
    config, options = EngineConfig(), PixelOptions()
    return lambda data: processor.process_image(images.decode(data, config), options)


def _directly(image_processor: Any) -> Preparation:
    return lambda data: image_processor(images=[Image.open(io.BytesIO(data))], return_tensors="pt")


def _native_grid(checkpoint: Checkpoint) -> NativeProcessor:
    processing = ImageProcessingConfig(
        patch_dim=PATCH,
        dynamic_resolution=True,
        spatial_merge_size=MERGE,
        temporal_patch_size=2,
        min_patches=MIN_PIXELS // PATCH**2,
        max_patches=MAX_PIXELS // PATCH**2,
    )
    return _native(checkpoint, processing)


def _native_anyres(checkpoint: Checkpoint) -> NativeProcessor:
    processing = ImageProcessingConfig(
        patch_dim=PATCH, grid_pinpoints=PINPOINTS, tile_size=TILE, vision_model_type="clip"
    )
    return _native(checkpoint, processing)


def _native(checkpoint: Checkpoint, processing: ImageProcessingConfig) -> NativeProcessor:
    return NativeProcessor(EngineConfig(), checkpoint, processing, find_pixel_statistics(processing, checkpoint.path))


def _grid_checkpoint(directory: Path) -> Checkpoint:
    """The embedded checkpoint without its weights, at the sizes that a Qwen2.5-VL has."""
    shutil.copytree(_TINY, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config["vision_config"] |= {"patch_size": PATCH, "window_size": 4 * PATCH * MERGE}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    processor = json.loads((directory / "processor_config.json").read_text(encoding="utf-8"))
    for part in ("image_processor", "video_processor"):
        processor[part] |= {"patch_size": PATCH, "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}}
    (directory / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return read_checkpoint(directory)


def _anyres_checkpoint(directory: Path) -> Checkpoint:
    """A LLaVA-NeXT of ordinary picture sizes, without weights."""
    vision = CLIPVisionConfig(image_size=TILE, patch_size=PATCH)
    pinpoints: Any = [list(one) for one in PINPOINTS]
    LlavaNextConfig(vision_config=vision, text_config=LlamaConfig(), image_grid_pinpoints=pinpoints).save_pretrained(
        directory
    )
    return read_checkpoint(directory)


def _picture(kind: str, width: int, height: int, seed: int) -> bytes:
    """A file as large as those of photographs: soft shapes with a little grain."""
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (height // 24 + 1, width // 24 + 1, 3), np.uint8))
    soft = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = rng.normal(0, 3, (height, width, 1)).astype(np.int16)
    stream = io.BytesIO()
    options: dict[str, Any] = {"quality": 90} if kind == "JPEG" else {}
    Image.fromarray((soft + grain).clip(0, 255).astype(np.uint8)).save(stream, kind, **options)
    return stream.getvalue()


if __name__ == "__main__":
    run_benchmark(
        "Pictures per second of one core, against transformers.",
        "Pictures decoded and preprocessed by one core",
        ROUNDS,
        measure,
    )
