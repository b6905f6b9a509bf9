"""Parameters of rows, each a tensor at a fixed address: what every kind of them can do. Knows no parameter."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Rows:
    """Fields of a kind are tensors whose first dimension counts rows."""

    def first(self, rows: int) -> Self:
        """Views of the first rows."""
        return type(self)(*(getattr(self, field.name)[:rows] for field in fields(self)))

    def copy_from(self, other: Self) -> None:
        """Overwrite the first rows with all of `other`'s."""
        for field in fields(self):
            source = getattr(other, field.name)
            getattr(self, field.name)[: source.shape[0]].copy_(source, non_blocking=True)
