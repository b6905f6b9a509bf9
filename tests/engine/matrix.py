"""The table of families x cases in docs/models.md, made from what the parity tests compared. Knows no engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
UPDATE_VARIABLE = "FANLIGHT_UPDATE_DOCS"
"""Set, a run writes its table into the document; else it demands that the document has it."""
BEGIN, END = "<!-- begin: families x cases -->\n", "<!-- end: families x cases -->\n"

KIND_HEADINGS = {
    "text": "text",
    "one_image": "1 image",
    "image_after_text": "image after text",
    "two_images": "2 images",
    "three_images": "3 images",
    "many_shapes": "all shapes",
    "multi_turn": "turns",
    "page_border": "long",
    "clip": "clip",
    "one_frame_clip": "1 frame",
    "odd_clip": "odd frames",
    "clip_file": "file",
    "two_clips": "2 clips",
    "clip_and_images": "mixed",
}
ARRANGEMENT_HEADINGS = {
    "alone": "alone",
    "in_random_batches": "batched",
    "in_chunks_inside_images": "chunked",
    "under_kv_pressure": "preempted",
    "again_from_the_prefix_cache": "cached",
}

Compared = Mapping[str, Mapping[str, frozenset[str]]]
"""By model and arrangement: the kinds of prompts whose answers were all equal to transformers'."""


def table(compared: Compared) -> str:
    """A row per model: the kinds equal in every arrangement, and the arrangements equal for every kind of the model."""
    headings = ["checkpoint", *KIND_HEADINGS.values(), *ARRANGEMENT_HEADINGS.values()]
    lines = [_row(headings), _row(["---"] * len(headings))]
    for model, arrangements in sorted(compared.items()):
        kinds = frozenset().union(*arrangements.values())
        everywhere = frozenset.intersection(*arrangements.values()) if arrangements else frozenset()
        cells = ["=" if kind in everywhere else "differs" if kind in kinds else "" for kind in KIND_HEADINGS]
        cells += ["=" if arrangements.get(one) == kinds else "differs" for one in ARRANGEMENT_HEADINGS]
        lines.append(_row([f"`{model}`", *cells]))
    return "\n".join(lines) + "\n"


def check_or_update(compared: Compared) -> None:
    """Write the table into the document where that was asked for; else raise AssertionError unless it stands there."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{table(compared)}{END}{after}"
    if os.environ.get(UPDATE_VARIABLE):
        DOCUMENT.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        raise AssertionError(f"{DOCUMENT.name} does not show what was compared; run with {UPDATE_VARIABLE}=1")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
