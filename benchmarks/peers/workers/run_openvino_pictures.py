"""Runs OpenVINO GenAI's continuous batching on pictures."""

from __future__ import annotations

import io
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # pyright: ignore[reportMissingImports] installed where this runs
import openvino_genai as genai  # pyright: ignore[reportMissingImports] installed where this runs
from PIL import Image

from benchmarks.peers.workers.pictures import PictureFigures, PictureOrder
from benchmarks.peers.workers.run_openvino import export, properties, scheduler
from benchmarks.peers.workers.serving import serve

IMAGE_PROCESSOR = "preprocessor_config.json"
"""Read by this engine and no longer written by the exporter."""


class OpenVinoPictures:
    """A pipeline for tower and decoder."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        self._properties = properties(threads)
        exported = export(Path(checkpoint), "image-text-to-text")
        shutil.copyfile(Path(checkpoint) / IMAGE_PROCESSOR, exported / IMAGE_PROCESSOR)
        self._pipeline = genai.ContinuousBatchingPipeline(str(exported), scheduler(), "CPU", self._properties)
        self._number = 0

    def facts(self) -> dict[str, Any]:
        """Versions and settings."""
        return {"openvino-genai": version("openvino-genai"), **self._properties}

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """All requests at once."""
        asked = PictureOrder.of(order)
        begun = time.perf_counter()
        handles = [self._add(picture, asked) for picture in asked.pictures]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        answers = [handle.read_all()[0].generated_ids for handle in handles]
        self._pipeline.get_tokenizer().decode(answers)
        seconds = time.perf_counter() - begun
        return PictureFigures(seconds, len(answers), sum(map(len, answers))).line()

    def _add(self, picture: bytes, asked: PictureOrder) -> Any:
        config = genai.GenerationConfig(max_new_tokens=asked.new_tokens, ignore_eos=True, do_sample=False)
        self._number += 1
        return self._pipeline.add_request(self._number, asked.question, [_decoded(picture)], config)


def _decoded(picture: bytes) -> Any:
    """[1, height, width, 3] of bytes."""
    return openvino.Tensor(np.array(Image.open(io.BytesIO(picture)).convert("RGB"))[None])


if __name__ == "__main__":
    serve(OpenVinoPictures)
