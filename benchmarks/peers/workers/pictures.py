"""What workers that show pictures to a model share: how pictures come in an order, and what goes out."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PictureOrder:
    """Requests that arrive together: an encoded picture each, the same question, and so many tokens for each.

    `at_once` is how many of them go into one call of an engine that answers calls one after another.
    """

    pictures: tuple[bytes, ...]
    question: str
    new_tokens: int
    at_once: int = 1

    @classmethod
    def of(cls, order: dict[str, Any]) -> PictureOrder:
        """Out of a line of JSON."""
        pictures = tuple(base64.b64decode(one) for one in order["pictures"])
        return cls(pictures, order["question"], order["new_tokens"], order["at_once"])

    def order(self) -> dict[str, Any]:
        """As a line of JSON can hold it."""
        pictures = [base64.b64encode(one).decode("ascii") for one in self.pictures]
        return {"do": "run", **asdict(self), "pictures": pictures}


@dataclass(frozen=True, slots=True)
class PictureFigures:
    """Seconds from encoded pictures to texts, and the tokens of all answers."""

    seconds: float
    requests: int
    tokens: int

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds

    def line(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)
