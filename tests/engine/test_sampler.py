"""Tokens are drawn from exactly the distribution that was asked for, and from nothing but the seed and the place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlight_engine.model import sampler
from fanlight_engine.model.sampler import SamplingMode, SamplingRows, sample, uniform

CPU = torch.device("cpu")
DRAWS = SamplingMode(draws=True)
FILTERS = SamplingMode(draws=True, filters=True)
VOCABULARY = 40


def rows(count: int, **columns: Sequence[float] | float) -> SamplingRows:
    """Rows with these columns; a single number is meant for all of them."""
    made = SamplingRows.allocate(count, CPU)
    for name, values in columns.items():
        getattr(made, name).copy_(torch.as_tensor(values))
    return made


def many_draws(logits: torch.Tensor, count: int, mode: SamplingMode = FILTERS, **columns: float) -> np.ndarray:
    """`count` independent draws from the same logits [vocab]: one seed, consecutive positions."""
    drawing = rows(count, **{"temperatures": 1.0, "seeds": 11, **columns})
    drawing.positions.copy_(torch.arange(count))
    return sample(logits.expand(count, -1), drawing, mode)[0].numpy()


def random_logits(seed: int, count: int = VOCABULARY) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 2


def kept_by_brute_force(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[np.ndarray, np.ndarray]:
    """Ids that may be drawn, best first, and their probabilities: one token at a time, in float64."""
    scores = logits.astype(np.float64) / temperature
    probabilities = np.exp(scores - scores.max())
    order = np.argsort(-probabilities, kind="stable")[: top_k or len(logits)]
    probabilities = probabilities[order] / probabilities[order].sum()
    kept: list[int] = []
    before = 0.0
    for rank, probability in enumerate(probabilities):
        if (rank == 0 or before < top_p) and probability >= min_p * probabilities[0]:
            kept.append(rank)
        before += probability
    return order[kept], probabilities[kept] / probabilities[kept].sum()


def test_greedy_takes_the_likeliest_token_whatever_the_neighbours_do() -> None:
    logits = torch.stack([random_logits(seed) for seed in range(8)])
    mixed = rows(8, temperatures=[0.0, 1.0] * 4, seeds=3, top_ps=0.9)
    for mode in (DRAWS, FILTERS):
        ids, _ = sample(logits, mixed, mode)
        assert ids[::2].tolist() == logits.argmax(-1)[::2].tolist()
    assert sample(logits, rows(8), SamplingMode())[0].tolist() == logits.argmax(-1).tolist()


def test_equal_seeds_and_places_give_equal_tokens_in_any_batch_and_order() -> None:
    logits = torch.stack([random_logits(seed) for seed in range(16)])
    temperatures = torch.linspace(0.2, 2.0, 16)
    batch = rows(16, seeds=torch.arange(16).tolist(), positions=torch.arange(100, 116).tolist())
    batch.temperatures.copy_(temperatures)
    together, _ = sample(logits, batch, DRAWS)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    shuffled = SamplingRows(*(getattr(batch, name)[order] for name in SamplingRows.__dataclass_fields__))
    assert sample(logits[order], shuffled, DRAWS)[0].tolist() == together[order].tolist()
    for row in range(16):
        alone = SamplingRows(*(getattr(batch, name)[row : row + 1] for name in SamplingRows.__dataclass_fields__))
        assert sample(logits[row : row + 1], alone, DRAWS)[0].item() == together[row].item()


def test_a_neighbours_filters_change_nothing_for_rows_without_any() -> None:
    logits = random_logits(4).expand(500, -1)
    drawing = rows(500, temperatures=1.0, seeds=11)
    drawing.positions.copy_(torch.arange(500))
    alone, _ = sample(logits, drawing, DRAWS)
    drawing.top_ks[::2] = 3
    beside, _ = sample(logits, drawing, FILTERS)
    assert beside[1::2].tolist() == alone[1::2].tolist()
    assert len(set(beside[::2].tolist())) == 3


@pytest.mark.parametrize("changed", [{"seeds": 12}, {"output_indices": 1}])
def test_another_seed_or_output_gives_other_tokens(changed: dict[str, float]) -> None:
    logits = torch.zeros(1000)
    same = (many_draws(logits, 300) == many_draws(logits, 300, FILTERS, **changed)).sum()
    assert same < 5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 10, VOCABULARY]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
def test_only_tokens_that_the_filters_leave_are_ever_drawn_and_each_likely_one_is(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = random_logits(seed)
    kept, probabilities = kept_by_brute_force(logits.numpy(), temperature, top_k, top_p, min_p)
    drawn = many_draws(logits, 400, temperatures=temperature, top_ks=top_k, top_ps=top_p, min_ps=min_p, seeds=seed)
    assert set(drawn.tolist()) <= set(kept.tolist())
    likely = kept[probabilities > 0.05]  # missed by 400 draws with a chance below 2e-9
    assert set(likely.tolist()) <= set(drawn.tolist())


@pytest.mark.parametrize(
    ("mode", "columns"),
    [
        (DRAWS, {}),
        (DRAWS, {"temperatures": 0.6}),
        (FILTERS, {"top_ks": 12}),
        (FILTERS, {"top_ps": 0.8, "temperatures": 1.5}),
        (FILTERS, {"min_ps": 0.1}),
    ],
)
def test_tokens_are_as_frequent_as_the_distribution_says(mode: SamplingMode, columns: dict[str, float]) -> None:
    logits, count = random_logits(2), 20_000
    asked = {"temperatures": 1.0, "top_ks": 0, "top_ps": 1.0, "min_ps": 0.0, **columns}
    kept, probabilities = kept_by_brute_force(
        logits.numpy(), asked["temperatures"], int(asked["top_ks"]), asked["top_ps"], asked["min_ps"]
    )
    frequencies = np.bincount(many_draws(logits, count, mode, **columns), minlength=VOCABULARY)
    expected = probabilities * count
    often = expected > 5
    chi_square = (((frequencies[kept] - expected) ** 2) / expected)[often].sum()
    degrees = int(often.sum()) - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5 + 4
    assert frequencies.sum() == count


def test_a_token_of_probability_zero_is_never_chosen() -> None:
    logits = torch.full((64,), float("-inf"))
    logits[[0, 17, 63]] = torch.tensor([0.0, 1.0, -80.0])
    for mode in (DRAWS, FILTERS):
        assert set(many_draws(logits, 2000, mode).tolist()) <= {0, 17, 63}
    logits[0] = logits[63] = float("-inf")
    assert set(many_draws(logits, 200, DRAWS).tolist()) == {17}


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_not_even_the_smallest_and_largest_random_number_choose_one(
    number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "uniform", lambda rows: torch.full(rows.seeds.shape, number, dtype=torch.float64))
    logits = torch.full((64,), float("-inf"))
    logits[[5, 17, 40]] = torch.tensor([0.3, 1.0, -2.0])
    for mode in (DRAWS, FILTERS):
        assert set(many_draws(logits, 3, mode).tolist()) <= {5, 17, 40}


def test_suppressed_ids_are_never_chosen_and_others_are_untouched() -> None:
    logits = torch.stack([random_logits(1)] * 3)
    best = logits[0].argsort(descending=True).tolist()
    suppressing = rows(3, temperatures=[0.0, 0.0, 1.0], seeds=5)
    suppressing.suppressed_ids[0, :2] = torch.tensor(best[:2])
    suppressing.suppressed_ids[2, :2] = torch.tensor(best[:2])
    mode = SamplingMode(draws=True, suppresses=True, logprobs=True)
    ids, logprobs = sample(logits, suppressing, mode)
    assert ids[:2].tolist() == [best[2], best[0]]
    assert torch.allclose(logprobs, logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]), "of the model's own logits"
    for position in range(300):
        suppressing.positions.fill_(position)
        assert sample(logits, suppressing, mode)[0][2].item() not in best[:2]


@pytest.mark.parametrize("first_is_suppressed", [True, False])
def test_suppression_padding_does_not_touch_id_zero(first_is_suppressed: bool) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    suppressing = rows(1)
    suppressing.suppressed_ids[0, 0] = 0 if first_is_suppressed else 1
    assert sample(logits, suppressing, SamplingMode(suppresses=True))[0].item() == int(first_is_suppressed)


def test_logprobs_are_of_the_models_distribution_before_temperature_and_filters() -> None:
    logits = torch.stack([random_logits(seed) for seed in range(6)])
    asked = rows(6, temperatures=[0.0, 0.5, 1.0, 2.0, 1.0, 1.0], seeds=9, top_ks=[0, 0, 0, 0, 2, 0], min_ps=0.05)
    ids, logprobs = sample(logits, asked, replace(FILTERS, logprobs=True))
    expected = logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]
    assert torch.allclose(logprobs.double(), expected, atol=1e-5)
    assert sample(logits, asked, FILTERS)[1].tolist() == [0.0] * 6, "zeros unless asked"


def test_random_numbers_lie_in_the_unit_interval_and_spread_evenly() -> None:
    count = 50_000
    numbers = uniform(rows(count, seeds=1, positions=torch.arange(count).tolist())).numpy()
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    histogram = np.bincount((numbers * 100).astype(int), minlength=100)
    assert ((histogram - count / 100) ** 2 / (count / 100)).sum() < 99 + 4 * 198**0.5
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02, "neighbouring positions are unrelated"


def test_neighbouring_seeds_are_unrelated() -> None:
    count = 50_000
    numbers = uniform(rows(count, seeds=torch.arange(count).tolist(), positions=1)).numpy()
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_extreme_seeds_and_positions_are_as_good_as_any() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 2**62, 123456789]
    numbers = [uniform(rows(7, seeds=seeds, positions=position)) for position in (0, 1, 2**31, 2**40)]
    values = torch.cat(numbers)
    assert bool(((values >= 0) & (values < 1)).all())
    assert len(set(values.tolist())) == 28


def test_random_numbers_do_not_change_between_versions() -> None:
    pinned = uniform(rows(3, seeds=[0, 42, 2**63 - 1], positions=[0, 7, 1000], output_indices=[0, 1, 2]))
    expected = [_uniform_in_python(0, 0, 0), _uniform_in_python(42, 7, 1), _uniform_in_python(2**63 - 1, 1000, 2)]
    assert pinned.tolist() == expected


def _uniform_in_python(seed: int, position: int, output_index: int) -> float:
    """The same hash in Python's unbounded integers."""
    state = 0
    for value in (seed, position, output_index):
        state = ((state ^ value) + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return (state >> 11) * 2.0**-53
