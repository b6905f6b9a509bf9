"""Every Triton kernel compiles ahead of time for NVIDIA's sm_80 and sm_90 and AMD's gfx942, and fits their memories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs the package triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fanlight_engine.model.attention import triton_kernels, triton_sizes
from fanlight_engine.model.attention.triton_sizes import Heads, Launch, Processors, decode_launch, prefill_launch

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90": 227 << 10, "gfx942": 64 << 10}
"""Bytes that one program may have at most."""
MATRIX_INSTRUCTIONS = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "gfx942": "v_mfma"}
ITEM_SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Variant:
    """One way through the attention kernel."""

    is_decode: bool
    has_window: bool
    has_cap: bool
    is_split: bool
    dtype: str
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int

    @property
    def launch(self) -> Launch:
        """Its sizes, as a step of an 8B model has them on a large device."""
        heads, processors = self.tile, Processors(132)
        if self.is_decode:
            return decode_launch(heads, 1 if self.is_split else 256, 4096 if self.is_split else 1024, processors)
        return prefill_launch(heads, 64 if self.is_split else 2048, 1, 4096 if self.is_split else 1024, processors)

    @property
    def tile(self) -> Heads:
        return Heads(self.heads, self.kv_heads, self.head_dim, ITEM_SIZES[self.dtype])


VARIANTS = (
    # decode, window, cap, split: any three of them in every combination
    Variant(True, False, False, True, "bf16", 32, 8, 128, 16),
    Variant(True, False, True, False, "fp16", 28, 4, 128, 256),
    Variant(True, True, False, False, "bf16", 16, 8, 256, 16),
    Variant(True, True, True, True, "fp32", 15, 5, 80, 64),
    Variant(False, False, False, False, "bf16", 32, 8, 128, 16),
    Variant(False, False, True, True, "fp32", 8, 8, 64, 256),
    Variant(False, True, False, True, "fp16", 28, 4, 128, 12),
    Variant(False, True, True, False, "bf16", 16, 8, 256, 16),
)


def compiled(kernel: Any, target: str, types: dict[str, str], constants: dict[str, Any], **options: int) -> Any:
    """The kernel for a target; parameters that have no type are constants, and tensors stand on 16 bytes."""
    names = kernel.arg_names
    assert set(names) == {*types, *constants}
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in types.items() if kind.startswith("*")}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    return triton.compile(source, target=TARGETS[target], options=options)


@pytest.fixture(
    autouse=True, params=["sm_90", *(pytest.param(one, marks=pytest.mark.kernels) for one in ("sm_80", "gfx942"))]
)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(triton_sizes, "_IS_AMD", TARGETS[request.param].backend == "hip")
    return request.param


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_attention_kernel_compiles_and_fits(target: str, variant: Variant) -> None:
    launch, heads = variant.launch, variant.tile
    assert (launch.splits > 1) == variant.is_split
    pointer, partial = f"*{variant.dtype}", "*fp32" if variant.is_split else f"*{variant.dtype}"
    types = {
        **dict.fromkeys(("queries", "keys", "values", "outputs"), pointer),
        **dict.fromkeys(("partial_sums", "partial_scalars"), partial),
        **dict.fromkeys(("page_tables", "context_lengths", "starts", "intervals"), "*i32"),
        **dict.fromkeys(("score_scale", "cap_scale"), "fp32"),
        **dict.fromkeys(("table_stride", "decode_rows", "prefill_queries", "segments"), "i32"),
        **dict.fromkeys(("splits", "shortest_split", "window"), "i32"),
    }
    constants = {
        "HEADS": variant.heads,
        "KV_HEADS": variant.kv_heads,
        "HEAD_DIM": variant.head_dim,
        "PAGE_SIZE": variant.page_size,
        "BLOCK_M": launch.block_m,
        "BLOCK_N": heads.block_n,
        "BLOCK_D": heads.block_d,
        "IS_DECODE": variant.is_decode,
        "HAS_WINDOW": variant.has_window,
        "HAS_CAP": variant.has_cap,
        "IS_SPLIT": variant.is_split,
        "PRECISION": "ieee",
    }
    made = compiled(
        triton_kernels.attend_pages, target, types, constants, num_warps=launch.warps, num_stages=launch.stages
    )
    assert 0 < made.metadata.shared <= SHARED_MEMORY[target]
    code = made.asm["amdgcn" if target == "gfx942" else "ptx"]
    if variant.dtype != "fp32":
        on_hopper_only_chunks = "mma.sync" if variant.is_decode and target == "sm_90" else MATRIX_INSTRUCTIONS[target]
        assert on_hopper_only_chunks in code, "matrix units multiply half precision"
    if target != "gfx942" and variant.dtype != "fp32":
        assert "cp.async" in code, "keys and values are on their way while others are computed"


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_the_kernel_that_joins_splits_compiles(target: str, dtype: str) -> None:
    types = {
        **dict.fromkeys(("partial_sums", "partial_scalars"), "*fp32"),
        "outputs": f"*{dtype}",
        **dict.fromkeys(("rows", "first_row", "splits"), "i32"),
    }
    constants = {"HEAD_DIM": 80, "BLOCK_D": 128, "BLOCK_S": 16}
    assert compiled(triton_kernels.join_splits, target, types, constants, num_warps=4).asm


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_the_kernel_that_writes_pages_compiles(target: str, dtype: str) -> None:
    types = {
        **dict.fromkeys(("keys", "values", "key_pages", "value_pages"), f"*{dtype}"),
        "slots": "*i64",
        **dict.fromkeys(
            ("key_token_stride", "key_head_stride", "value_token_stride", "value_head_stride"),
            "i32",
        ),
    }
    constants = {"KV_HEADS": 5, "HEAD_DIM": 80, "BLOCK": 512}
    assert compiled(triton_kernels.write_pages, target, types, constants, num_warps=4).asm
