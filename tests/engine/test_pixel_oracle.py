"""Every kind of picture gives the pixels that a person would see of it; data/pixel_oracle/make.py made the data."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.media import images

ORACLE = Path(__file__).parent / "data" / "pixel_oracle"
EXPECTED = dict(np.load(ORACLE / "expected.npz"))
KINDS = ("exif_", "p", "la.", "l", "1", "i16", "cmyk", "rgba", "animated", "size_2x2", "size_3x1", "size_1x17")


def decoded(data: bytes) -> Image.Image:
    return images.decode(data, EngineConfig())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_picture_is_what_a_person_sees(name: str):
    seen = decoded((ORACLE / name).read_bytes())
    assert seen.mode == "RGB"
    assert np.array_equal(np.asarray(seen), EXPECTED[name])


def test_the_oracle_covers_every_kind_and_every_file_of_it():
    files = {file.name for file in ORACLE.iterdir() if file.suffix in (".jpg", ".png", ".gif", ".webp")}
    assert files == set(EXPECTED)
    assert all(any(name.startswith(kind) for name in files) for kind in KINDS)
    assert {name for name in files if name.startswith("exif_")} >= {f"exif_{turn}.jpg" for turn in range(1, 9)}
    assert len({EXPECTED[f"exif_{turn}.jpg"].tobytes() for turn in range(1, 9)}) == 8


def test_the_oracle_can_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(images, "_TRANSPOSITIONS", {})
    seen = {name: np.asarray(decoded((ORACLE / name).read_bytes())) for name in EXPECTED}
    turned = [name for name in EXPECTED if not np.array_equal(seen[name], EXPECTED[name])]
    assert sorted(turned) == sorted([*(f"exif_{turn}.jpg" for turn in range(2, 9)), "exif_6.png", "exif_7.webp"])


def test_the_modes_that_no_file_has_are_shown_alike():
    palette, indices = np.arange(48, dtype=np.uint8).reshape(16, 3) * 5, np.arange(16, dtype=np.uint8).reshape(4, 4)
    alpha = (indices * 17).astype(np.uint8)
    plain = Image.fromarray(indices)
    plain.putpalette(palette.tobytes())
    with_alpha = plain.convert("PA")
    with_alpha.putalpha(Image.fromarray(alpha))
    share = alpha[..., None] / 255
    wanted = np.rint(palette[indices] * share + 255 * (1 - share))
    assert with_alpha.mode == "PA"
    assert (np.asarray(images.to_rgb(with_alpha)) == wanted).all()
    straight = images.to_rgb(plain.convert("RGBA"))
    assert (np.asarray(straight) == palette[indices]).all()


def test_a_plain_picture_is_not_copied():
    stream = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(stream, "PNG")
    picture = Image.open(io.BytesIO(stream.getvalue()))
    assert images.to_rgb(picture) is picture
