"""Products and attention of the CPU kernels equal exact arithmetic, and no row depends on the rows beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.cpu import CpuAttention
from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch, Segment
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.cpu.library import Kernels, Kind, matrix
from fanlight_engine.model.cpu.linear import KernelLinear, use_kernels_in_linears
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache
from fanlight_engine.model.loading.loader import load_model
from tests.engine.builders import llava_picture
from tests.engine.cpu_kernels import IDS, WAYS, kernels_of, torch_threads

SHAPES = 60
SCALE = 0.3


@pytest.fixture(params=WAYS, ids=IDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(*request.param)


def draw(seed: int, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator).to(dtype)


def random_shape(rng: random.Random) -> tuple[int, int, int]:
    """Rows, outputs, inputs: many of them odd, some of whole blocks."""
    inputs = rng.choice((rng.randint(1, 300), 32 * rng.randint(1, 12)))
    return rng.randint(1, 34), rng.randint(1, 200), inputs


@pytest.mark.parametrize("threads", [1, 3])
def test_products_equal_exact_arithmetic_for_any_shape(kernels: Kernels, threads: int) -> None:
    rng = random.Random(threads)
    with torch_threads(threads):
        for number in range(SHAPES):
            (rows, outputs, inputs), make = random_shape(rng), draw(number, kernels.dtype)
            x, weight, bias = make(rows, inputs), make(outputs, inputs), make(outputs).float()
            exact = x.double() @ weight.double().T + bias.double()
            wide = kernels.logits(x, matrix(weight, bias), 1.0, 0.0)
            assert torch.allclose(wide.double(), exact, rtol=1e-5, atol=1e-5 * inputs**0.5), (rows, outputs, inputs)
            assert torch.equal(kernels.linear(x, matrix(weight, bias)), wide.to(kernels.dtype))


@pytest.mark.parametrize("rows", [65, 256])
def test_products_of_many_rows_equal_exact_arithmetic(kernels: Kernels, rows: int) -> None:
    make = draw(rows, kernels.dtype)
    x, weight = make(rows, 96), make(70, 96)
    wide = kernels.logits(x, matrix(weight), 1.0, 0.0)
    assert torch.allclose(wide.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-4)


def test_a_row_of_products_is_the_same_alone_in_any_company_and_on_any_threads(kernels: Kernels) -> None:
    rng = random.Random(9)
    for number in range(SHAPES // 2):
        (rows, outputs, inputs), make = random_shape(rng), draw(number, kernels.dtype)
        x, weight = make(rows, inputs), make(outputs, inputs)
        with torch_threads(3):
            together = kernels.logits(x, matrix(weight), 1.0, 0.0)
        row, last = rng.randrange(rows), rng.randint(1, rows)
        assert torch.equal(kernels.logits(x[row : row + 1], matrix(weight), 1.0, 0.0)[0], together[row])
        assert torch.equal(kernels.logits(x[:last], matrix(weight), 1.0, 0.0), together[:last])


def test_rows_may_lie_apart_and_none_is_no_row(kernels: Kernels) -> None:
    make = draw(1, kernels.dtype)
    x, weight = make(5, 80)[:, 8:72], make(9, 64)
    assert torch.equal(kernels.linear(x, matrix(weight)), kernels.linear(x.contiguous(), matrix(weight)))
    assert kernels.linear(x[:0], matrix(weight)).shape == (0, 9)


def test_logits_are_scaled_and_capped(kernels: Kernels) -> None:
    make = draw(2, kernels.dtype)
    x, weight = make(3, 64), make(50, 64)
    plain = kernels.logits(x, matrix(weight), 1.0, 0.0)
    expected = torch.tanh(plain * 0.5 / 3.0) * 3.0
    assert torch.allclose(kernels.logits(x, matrix(weight), 0.5, 3.0), expected, rtol=1e-6, atol=1e-6)


def test_linear_modules_give_what_they_gave(kernels: Kernels) -> None:
    make = draw(3, kernels.dtype)
    module = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.SiLU(), torch.nn.Linear(48, 7, bias=False))
    module.to(kernels.dtype).requires_grad_(False)
    inputs = make(2, 3, 64)
    before = module(inputs)
    assert use_kernels_in_linears(module, kernels) == 2
    tolerance = 8 * torch.finfo(kernels.dtype).eps
    assert torch.allclose(module(inputs), before, rtol=tolerance, atol=tolerance)
    many = make(400, 64)
    assert torch.allclose(module(many), module[:2](many) @ module[2].weight.T, rtol=tolerance, atol=tolerance)


@dataclass
class Asked:
    """A random step for attention, and what one of its layers asks."""

    queries: torch.Tensor
    batch: PagedBatch
    layer: LayerAttention

    @classmethod
    def draw(cls, seed: int, dtype: torch.dtype, longest: int = 70) -> Asked:
        """Decode rows, then chunks, some with spans, over shuffled pages full of other numbers."""
        rng, make = random.Random(seed), draw(seed, dtype)
        kv_heads, head_dim = rng.choice((1, 2, 3)), rng.choice((8, 16, 40, 64, 80, 128, 256))
        page_size, decodes = rng.choice((1, 16, 256)), rng.randint(0, 4)
        contexts = [rng.randint(1, longest) for _ in range(decodes + rng.randint(decodes == 0, 2))]
        lengths = [1] * decodes + [rng.randint(1, context) for context in contexts[decodes:]]
        columns = -(-longest // page_size)
        shape = KeyValueShape(2, kv_heads, head_dim, dtype)
        cache = PagedKeyValueCache(shape, 1 + len(contexts) * columns, page_size, torch.device("cpu"))
        for side in cache.sides:
            side.copy_(make(*side.shape))
        pages = rng.sample(range(1, cache.pages), len(contexts) * columns)
        segments = []
        for row in range(decodes, len(contexts)):
            start = contexts[row] - lengths[row] + rng.randint(0, lengths[row] - 1)
            spans = ((start, rng.randint(start + 1, contexts[row])),) if rng.random() < 0.5 else ()
            segments.append(Segment(sum(lengths[:row]), lengths[row], contexts[row], spans))
        batch = PagedBatch(
            cache=cache,
            backend=ReferenceAttention(),
            slots=torch.zeros(0, dtype=torch.int64),
            page_tables=torch.tensor(pages, dtype=torch.int32).view(len(contexts), columns),
            context_lengths=torch.tensor(contexts, dtype=torch.int32),
            decode_rows=decodes,
            prefill_segments=tuple(segments),
            window_bounds_spans=rng.random() < 0.5,
        )
        layer = LayerAttention(1, SCALE, rng.choice((None, 1, 9, 300)), rng.choice((None, None, 2.0)))
        return cls(make(sum(lengths), kv_heads * rng.choice((1, 2, 3, 5)), head_dim), batch, layer)


@pytest.mark.parametrize("each_query_alone", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_attention_equals_the_reference(kernels: Kernels, threads: int, each_query_alone: bool) -> None:
    if kernels.only_kind is Kind.TILE:
        pytest.skip("attention has no kinds")
    backend = CpuAttention(kernels, each_query_alone)
    with torch_threads(threads):
        for seed in range(40):
            asked = Asked.draw(seed, kernels.dtype, longest=70 if seed % 4 else 900)
            exact = ReferenceAttention().attend(asked.queries, asked.batch, asked.layer).float()
            ours = backend.attend(asked.queries, asked.batch, asked.layer).float()
            assert torch.allclose(ours, exact, atol=1e-5 if kernels.dtype is torch.float32 else 0.04), seed


def test_a_query_alone_is_the_same_query_in_a_batch(kernels: Kernels) -> None:
    backend = CpuAttention(kernels, each_query_alone=True)
    for seed in range(20):
        asked = Asked.draw(seed, kernels.dtype, longest=600)
        with torch_threads(3):
            together = backend.attend(asked.queries, asked.batch, asked.layer)
        for row in range(asked.batch.decode_rows):
            alone = PagedBatch(
                cache=asked.batch.cache,
                backend=asked.batch.backend,
                slots=asked.batch.slots,
                page_tables=asked.batch.page_tables[row : row + 1],
                context_lengths=asked.batch.context_lengths[row : row + 1],
                decode_rows=1,
            )
            single = backend.attend(asked.queries[row : row + 1], alone, asked.layer)
            assert torch.equal(single[0], together[row]), seed


def test_a_vision_tower_by_kernels_gives_what_torch_gives(llava: Checkpoint) -> None:
    """Linear modules outside the decoder take the kernels too, and its own stay as they are."""
    kernels_of("AMX", torch.bfloat16, Kind.TILE)  # skips where there are none
    model = load_model(llava, torch.device("cpu"), torch.bfloat16)
    adapter = ModelAdapter(model, llava)
    media = [llava_picture("first"), llava_picture("second")]
    before = adapter.encode(media)
    adapter.use_cpu_kernels()
    inside = {id(one) for one in model.get_decoder().modules()}
    changed = [one for one in model.modules() if isinstance(one, KernelLinear)]
    assert changed
    assert not any(id(one) in inside for one in changed)
    for ours, theirs in zip(adapter.encode(media), before, strict=True):
        assert (ours - theirs).float().norm() < 0.02 * theirs.float().norm()
