"""The kernels as functions of tensors. Knows no modules and no requests.

A kind says by which unit products are computed: VECTOR, fused multiply-adds in single precision, or TILE, AMX. Within
one kind a row's result is the same, bit for bit, however many rows stand beside it, whichever threads compute it, and
wherever its pages lie: every sum is made in an order that depends on the row alone. The two kinds add in different
orders. So whoever needs answers that do not depend on their neighbours keeps to one kind for all rows; else the one
that is faster for so many rows is taken.
"""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import byref, c_int64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import torch

from fanlight_engine.model.attention.interface import LayerAttention
from fanlight_engine.model.cpu.build import CannotBuild, built_library
from fanlight_engine.model.cpu.structures import (
    HANDED_OVER,
    Attention,
    Decoder,
    Linear,
    Matrix,
    PagedLayer,
    Step,
    sizes,
)

MOST_HEAD_DIM = 512
"""The widest head that attention has room for."""
_ROWS_FOR_TILES = 5
"""From so many rows on tiles are as fast as vectors; measured on a processor that has them."""
_DONE, _NEEDS_WORKSPACE, _UNKNOWN_ID = 0, -1, 1


class Kind(IntEnum):
    """By which unit products are computed."""

    VECTOR = 0
    TILE = 1


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys each of Q queries sees. All int32 and contiguous, but for the rows of the page tables."""

    page_tables: torch.Tensor
    """[S, W]."""
    limits: torch.Tensor
    """[Q]: one behind the last key that a query sees."""
    first_keys: torch.Tensor | None = None
    """[Q]: the first key that it sees; None where all see the first."""
    table_rows: torch.Tensor | None = None
    """[Q]: whose pages it sees; None where query i sees those of row i."""


class Kernels:
    """The library for one number type. Not thread-safe: its calls share a workspace."""

    def __init__(self, path: Path, dtype: torch.dtype, target: str) -> None:
        """Raises CannotBuild for a library that does not fit."""
        self.dtype = dtype
        self.target = target
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise CannotBuild(f"{path} cannot be loaded: {error}") from error
        for name in ("step", "linear"):
            getattr(self._library, f"fanlight_{name}").restype = c_int64
        self._refuse_other_sizes()
        self._borrow_threads()
        self.has_tiles = bool(self._library.fanlight_may_use_tiles())
        self.only_kind: Kind | None = None
        """The one kind that products are computed by whatever their rows; None takes the faster one."""
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def kind_for(self, rows: int) -> Kind:
        """The kind that products of so many rows are computed by."""
        if self.only_kind is not None:
            return self.only_kind
        return Kind.TILE if self.has_tiles and rows >= _ROWS_FOR_TILES else Kind.VECTOR

    def step(self, decoder: Decoder, step: Step) -> None:
        """Compute a step of a decoder. Raises IndexError for an id that has no embedding."""
        step.kind, step.threads = self.kind_for(step.rows), torch.get_num_threads()
        step.queries_are_alone = self.only_kind is not None
        outcome = self._with_workspace(self._library.fanlight_step, step, byref(decoder))
        if outcome >= _UNKNOWN_ID:
            raise IndexError(f"row {outcome - _UNKNOWN_ID} has an id outside the {decoder.embedded} embeddings")

    def linear(self, x: torch.Tensor, weights: Matrix) -> torch.Tensor:
        """x [rows, inputs] of the library's number type -> x @ weight.T + bias [rows, outputs] of the same.

        Sums are made in float32 and rounded once.
        """
        y = torch.empty(x.shape[0], weights.outputs, dtype=self.dtype)
        self._linear(x, Linear(weights=weights, y_stride=y.stride(0), y=y.data_ptr()))
        return y

    def logits(self, x: torch.Tensor, weights: Matrix, factor: float, cap: float) -> torch.Tensor:
        """The same in float32, not rounded: times a factor, and bent below a cap where it is not 0."""
        y = torch.empty(x.shape[0], weights.outputs, dtype=torch.float32)
        call = Linear(weights=weights, y_stride=y.stride(0), wide_y=y.data_ptr(), factor=factor, cap=cap)
        self._linear(x, call)
        return y

    def _linear(self, x: torch.Tensor, call: Linear) -> None:
        assert x.dtype == self.dtype
        assert x.shape[1] == call.weights.inputs
        if not x.shape[0]:
            return
        x = x if x.stride(1) == 1 else x.contiguous()
        call.rows, call.x, call.x_stride = x.shape[0], x.data_ptr(), x.stride(0)
        call.kind, call.threads = self.kind_for(x.shape[0]), torch.get_num_threads()
        self._with_workspace(self._library.fanlight_linear, call)

    def attend(
        self, queries: torch.Tensor, pages: tuple[torch.Tensor, torch.Tensor], sight: Sight, layer: LayerAttention
    ) -> torch.Tensor:
        """Queries [Q, heads, head_dim] over keys and values in pages -> outputs of the same shape.

        The window of `layer` does not count: `sight` says what each query sees, at least one key.
        """
        queries = queries.contiguous()
        outputs = torch.empty_like(queries)
        keys, values = pages
        call = Attention(
            layer=PagedLayer(
                keys=keys.data_ptr(),
                values=values.data_ptr(),
                page_size=keys.shape[1],
                kv_heads=keys.shape[2],
                head_dim=keys.shape[3],
                heads=queries.shape[1],
                scale=layer.scale,
                soft_cap=layer.soft_cap or 0.0,
            ),
            count=queries.shape[0],
            threads=torch.get_num_threads(),
            page_table_stride=sight.page_tables.stride(0),
            page_tables=sight.page_tables.data_ptr(),
            table_rows=address(sight.table_rows),
            first_keys=address(sight.first_keys),
            limits=sight.limits.data_ptr(),
            queries=queries.data_ptr(),
            outputs=outputs.data_ptr(),
        )
        self._library.fanlight_attend(byref(call))
        return outputs

    def _with_workspace(self, function: ctypes._NamedFuncPointer, call: Step | Linear, *before: object) -> int:
        """Call with the workspace, and once more where it was too small."""
        call.workspace, call.workspace_bytes = self._workspace.data_ptr(), self._workspace.numel()
        outcome = function(*before, byref(call))
        if outcome == _NEEDS_WORKSPACE:
            self._workspace = torch.empty(call.workspace_bytes * 5 // 4, dtype=torch.uint8)
            call.workspace, call.workspace_bytes = self._workspace.data_ptr(), self._workspace.numel()
            outcome = function(*before, byref(call))
        assert outcome != _NEEDS_WORKSPACE
        return outcome

    def _borrow_threads(self) -> None:
        """Hand over the OpenMP runtime that torch itself computes with, whatever it is called; else one thread."""
        torch_itself = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        with contextlib.suppress(AttributeError):
            self._library.fanlight_borrow_threads(ctypes.cast(torch_itself.GOMP_parallel, c_void_p))

    def _refuse_other_sizes(self) -> None:
        theirs = (c_int64 * len(HANDED_OVER))()
        self._library.fanlight_sizes(theirs)
        if list(theirs) != sizes():
            raise CannotBuild(f"{self.target} kernels have structures of other sizes: {list(theirs)}, not {sizes()}")


def address(values: torch.Tensor | None) -> int | None:
    """Where a tensor lies; None for none."""
    return None if values is None else values.data_ptr()


def matrix(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Matrix:
    """Weights [outputs, inputs], row after row, and a float32 bias [outputs]; whoever passes them keeps them alive."""
    assert weight.is_contiguous()
    outputs, inputs = weight.shape
    return Matrix(weight.data_ptr(), bias.data_ptr() if bias is not None else None, outputs, inputs)


def kernels_for(dtype: torch.dtype, one_kind: bool = False, features: frozenset[str] | None = None) -> Kernels:
    """Kernels for weights of that type, compiled where need be; with `one_kind` they keep to one whatever the rows are.

    `features` as in `built_library`. Raises CannotBuild, which says why there are none.
    """
    path, target = built_library(dtype, features)
    kernels = Kernels(path, dtype, target.name)
    if one_kind:
        kernels.only_kind = Kind.TILE if kernels.has_tiles else Kind.VECTOR
    return kernels
