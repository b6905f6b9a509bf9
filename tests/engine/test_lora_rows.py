"""Rows of one call take their own adapters; to one without, exactly nothing is added, whatever its neighbours take."""

from __future__ import annotations

import pytest
import torch

from fanlight_engine.model.lora.rows import AdaptedLinear, Layout, LoraRows
from fanlight_engine.model.lora.weights import LowRank

IN, OUT = 6, 5
NONE, RED, BLUE = 0, 1, 2
RANKS = ((RED, 2), (BLUE, 3))


@pytest.fixture
def rows() -> LoraRows:
    return LoraRows()


def adapted(rows: LoraRows, red_scale: float = 1.0) -> AdaptedLinear:
    generator = torch.Generator().manual_seed(3)
    parts = [
        LowRank(torch.randn(IN, rank, generator=generator), torch.randn(rank, OUT, generator=generator))
        for _, rank in RANKS
    ]
    parts[0].down.mul_(red_scale)
    return AdaptedLinear(torch.nn.Linear(IN, OUT), parts, Layout.of(RANKS, torch.device("cpu")), rows)


def inputs(count: int) -> torch.Tensor:
    return torch.randn(count, IN, generator=torch.Generator().manual_seed(8))


@torch.inference_mode()
def test_each_row_gets_what_its_own_adapter_adds(rows: LoraRows) -> None:
    module, packed = adapted(rows), inputs(4)
    numbers = torch.tensor([BLUE, NONE, RED, BLUE])
    with rows.taking(numbers):
        together = module(packed[None])[0]
    for row, number in enumerate(numbers.tolist()):
        with rows.taking(torch.tensor([number])):
            torch.testing.assert_close(together[row], module(packed[row : row + 1])[0])
    columns = slice(2, 5)  # those of BLUE
    added = packed[0] @ module.down[:, columns] @ module.up[columns]
    torch.testing.assert_close(together[0], module.base(packed)[0] + added)


@torch.inference_mode()
def test_rows_of_the_checkpoint_itself_stay_as_they_are_to_the_last_bit(rows: LoraRows) -> None:
    module, packed = adapted(rows), inputs(3)
    with rows.taking(torch.tensor([NONE, RED, NONE])):
        together = module(packed)
    assert together[0].equal(module.base(packed)[0])
    assert together[2].equal(module.base(packed)[2])
    assert not together[1].equal(module.base(packed)[1])


@torch.inference_mode()
def test_an_adapter_whose_numbers_overflow_spoils_no_neighbour(rows: LoraRows) -> None:
    module, packed = adapted(rows, red_scale=3e38), inputs(3)
    with rows.taking(torch.tensor([NONE, RED, BLUE])):
        together = module(packed)
    assert not together[1].isfinite().all()
    assert together[0].equal(module.base(packed)[0])
    assert together[2].isfinite().all()


@torch.inference_mode()
def test_calls_without_adapters_do_none_of_the_work(rows: LoraRows, monkeypatch: pytest.MonkeyPatch) -> None:
    module, packed = adapted(rows), inputs(3)
    monkeypatch.setattr(torch, "where", None)
    with rows.taking(None):
        assert module(packed).equal(module.base(packed))
    assert module(packed).equal(module.base(packed))
    with rows.taking(torch.tensor([NONE, NONE, RED])), pytest.raises(TypeError):
        module(packed)


@torch.inference_mode()
def test_a_choice_ends_with_its_call(rows: LoraRows) -> None:
    """Also with one that fails: the next call has other rows."""
    module, packed = adapted(rows), inputs(2)

    def fail() -> None:
        with rows.taking(torch.tensor([RED, RED])):
            module(packed)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert module(packed).equal(module.base(packed))
    with rows.taking(torch.tensor([NONE, BLUE, BLUE])):
        assert not module(inputs(3))[1:].equal(module.base(inputs(3))[1:])


@torch.inference_mode()
def test_a_module_that_gets_other_rows_than_the_step_has_is_noticed(rows: LoraRows) -> None:
    with rows.taking(torch.tensor([RED, NONE])), pytest.raises(RuntimeError, match="other rows"):
        adapted(rows)(inputs(1))
