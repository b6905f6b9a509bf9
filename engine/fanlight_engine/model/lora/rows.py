"""Linear modules that add each row's own LoRA adapter, and the rows' choice of them.

All adapters stand beside each other. A row goes through the thin matrices of all, and a mask keeps what belongs to its
own adapter; a row of the checkpoint itself keeps nothing, so that exactly zero is added to it:

                      R = sum of the adapters' ranks
    low    [T, R]  = inputs [T, in] @ down [in, R]
    low    [T, R]  = low where owners [R] == numbers [T], else 0
    output [T, out] = base(inputs) + low @ up [R, out]

Shapes depend on nothing but T, and nothing is read on the host: a decode step can be captured with it. Calls in which
no row takes an adapter skip all of it. Knows no requests and no names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from fanlight_engine.model.lora.files import LoraFiles
from fanlight_engine.model.lora.weights import LowRank, read_low_rank


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How the adapters of a module stand beside each other; modules that look alike share one."""

    owners: torch.Tensor
    """[R] int64: the number of the adapter that each column of `low` belongs to."""

    @classmethod
    def of(cls, ranks: Sequence[tuple[int, int]], device: torch.device) -> Layout:
        """`ranks` are (number, rank) of each adapter in order."""
        owners = [number for number, rank in ranks for _ in range(rank)]
        return cls(torch.tensor(owners, dtype=torch.int64, device=device))


class LoraRows:
    """Which adapter each row of the running call takes; all adapted modules of one model look here."""

    def __init__(self) -> None:
        self._numbers: torch.Tensor | None = None
        self._masks: dict[Layout, torch.Tensor] = {}

    @contextmanager
    def taking(self, numbers: torch.Tensor | None) -> Iterator[None]:
        """Numbers [T] int64 of the adapters of the rows of all calls within, 0 for none; None where no row has one."""
        self._numbers = numbers
        try:
            yield
        finally:
            self._numbers = None
            self._masks.clear()

    @property
    def are_taken(self) -> bool:
        """Whether some row of the running call may take an adapter."""
        return self._numbers is not None

    def mask(self, layout: Layout) -> torch.Tensor | None:
        """[T, R] bool: what each row keeps; None where no row keeps anything."""
        if self._numbers is None:
            return None
        if layout not in self._masks:
            self._masks[layout] = self._numbers[:, None] == layout.owners
        return self._masks[layout]


class AdaptedLinear(torch.nn.Module):
    """A linear module of the checkpoint, and beside it what its adapters add."""

    down: torch.Tensor
    """[in, R]"""
    up: torch.Tensor
    """[R, out]"""

    def __init__(self, base: torch.nn.Linear, parts: Sequence[LowRank], layout: Layout, rows: LoraRows) -> None:
        """`parts` in the order of the layout."""
        super().__init__()
        self.base = base
        self.register_buffer("down", torch.cat([part.down for part in parts], dim=1), persistent=False)
        self.register_buffer("up", torch.cat([part.up for part in parts], dim=0), persistent=False)
        self._layout = layout
        self._rows = rows

    @property
    def weight(self) -> torch.Tensor:
        """The checkpoint's own weights, [out, in]."""
        return self.base.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Rows [..., T, in] -> [..., T, out]."""
        output = self.base(inputs)
        mask = self._rows.mask(self._layout)
        if mask is None:
            return output
        if inputs.shape[-2] != mask.shape[0]:  # not an assertion: with the wrong mask, rows would get others' adapters
            raise RuntimeError("an adapted module got other rows than those of the step")
        low = torch.where(mask, inputs @ self.down, 0.0)
        output.view(-1, output.shape[-1]).addmm_(low.flatten(0, -2), self.up)  # in place: nobody else has seen it
        return output


def add_loras(
    model: PreTrainedModel, adapters: Sequence[LoraFiles], report: Callable[[str], None] = lambda line: None
) -> LoraRows:
    """Replace the linear modules that the adapters add to. Raises CheckpointError naming file and fix."""
    parts: dict[str, dict[int, LowRank]] = {}
    for files in adapters:
        low_ranks = read_low_rank(model, files)
        report(f"adding LoRA adapter {files.lora.name} to {len(low_ranks)} modules, {_megabytes(low_ranks)} MB")
        for path, low_rank in low_ranks.items():
            parts.setdefault(path, {})[files.lora.number] = low_rank
    rows = LoraRows()
    _replace_modules(model, parts, rows)
    return rows


def _replace_modules(model: PreTrainedModel, parts: Mapping[str, Mapping[int, LowRank]], rows: LoraRows) -> None:
    """`parts` are what is added to each module, by its path and by the number of the adapter."""
    layouts: dict[tuple[tuple[int, int], ...], Layout] = {}
    for path, by_number in parts.items():
        ranks = tuple((number, part.rank) for number, part in by_number.items())
        if ranks not in layouts:
            layouts[ranks] = Layout.of(ranks, model.device)
        base = model.get_submodule(path)
        assert isinstance(base, torch.nn.Linear)
        model.set_submodule(path, AdaptedLinear(base, list(by_number.values()), layouts[ranks], rows))


def _megabytes(low_ranks: Mapping[str, LowRank]) -> str:
    total = sum(one.nbytes for low_rank in low_ranks.values() for one in (low_rank.down, low_rank.up))
    return f"{total / 1e6:.1f}"
