"""Penalties do to logits what transformers and OpenAI define, and marks are what the sequences' tokens say."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.penalties import PenaltyRows, TokenMarks, penalise
from fanlight_engine.model.sampler import SamplingMode, SamplingRows, sample
from tests.engine import builders

CPU = torch.device("cpu")
VOCABULARY = 30


def sequence(name: str, prompt: SequenceOf[int], answer: SequenceOf[int] = (), **sampling: Any) -> Sequence:
    """A sequence that has generated `answer` already."""
    made = builders.sequence(name, prompt, **sampling)
    made.tokens.extend(answer)
    return made


def random_logits(seed: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def expected_marks(one: Sequence) -> list[int]:
    """Counted from the tokens, one at a time."""
    marks = [0] * VOCABULARY
    for token in one.request.prompt_ids:
        if token < VOCABULARY:
            marks[token] = 1
    for token in one.tokens[one.prompt_length :]:
        marks[token] += 2
    return marks


def marks_of(marks: TokenMarks, rows: PenaltyRows, row: int) -> list[int]:
    return marks.tensor[rows.slots[row]].tolist()


def rows_of(marks: TokenMarks, *sequences: Sequence) -> PenaltyRows:
    rows = marks.rows_of(sequences)
    assert rows is not None
    return rows


def by_definition(logits: np.ndarray, one: Sequence) -> np.ndarray:
    """The repetition penalty as transformers applies it, then the other two, token after token, in float64."""
    sampling = one.request.sampling
    repetition = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
    ids = torch.tensor([one.tokens])
    scores = repetition(ids, torch.from_numpy(logits)[None].double())[0].numpy()  # pyright: ignore[reportArgumentType]
    answer = one.tokens[one.prompt_length :]
    for token in set(answer):
        scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * answer.count(token)
    return scores


tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
penalties = st.tuples(
    st.sampled_from([0.0625, 0.9, 1.0, 1.05, 1.3, 16.0]),
    st.sampled_from([-2.0, 0.0, 0.5, 2.0]),
    st.sampled_from([-2.0, 0.0, 0.1, 2.0]),
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), asked=st.lists(st.tuples(tokens.filter(bool), tokens, penalties), min_size=1))
def test_logits_become_what_the_definitions_say(seed: int, asked: list[Any]) -> None:
    sequences = [
        sequence(f"{number}", prompt, answer, repetition_penalty=one, presence_penalty=two, frequency_penalty=three)
        for number, (prompt, answer, (one, two, three)) in enumerate(asked)
    ]
    logits = random_logits(seed, len(sequences))
    marks = TokenMarks(len(sequences), VOCABULARY, CPU)
    rows = marks.rows_of(sequences)
    if rows is None:
        assert not any(one.request.sampling.has_penalties for one in sequences)
        return
    scores = penalise(logits, rows, marks.tensor)
    for row, one in enumerate(sequences):
        np.testing.assert_allclose(scores[row].numpy(), by_definition(logits[row].numpy(), one), rtol=1e-5, atol=1e-5)


def test_rows_without_penalties_keep_every_bit_of_their_logits() -> None:
    plain, penalised = sequence("plain", [1, 2], [3]), sequence("penalised", [1, 2], [3, 3], repetition_penalty=1.3)
    logits = random_logits(1, 2)
    logits[:, 5] = -torch.inf
    marks = TokenMarks(2, VOCABULARY, CPU)
    rows = rows_of(marks, plain, penalised)
    scores = penalise(logits, rows, marks.tensor)
    assert torch.equal(scores[0], logits[0])
    assert not torch.equal(scores[1], logits[1])


def test_what_cannot_be_chosen_stays_so() -> None:
    one = sequence("one", [4], [5, 5], repetition_penalty=0.5, presence_penalty=-2.0, frequency_penalty=-2.0)
    marks = TokenMarks(1, VOCABULARY, CPU)
    rows = rows_of(marks, one)
    logits = torch.full((1, VOCABULARY), -torch.inf)
    assert torch.equal(penalise(logits, rows, marks.tensor), logits)


def test_choices_are_penalised_and_logprobs_are_the_models_own() -> None:
    logits = random_logits(3, 1)
    best, second = logits[0].argsort(descending=True)[:2].tolist()
    one = sequence("one", [1], [best], presence_penalty=2.0, frequency_penalty=2.0)
    logits[0, second] = logits[0, best] - 1.0
    marks = TokenMarks(1, VOCABULARY, CPU)
    scores = penalise(logits, rows_of(marks, one), marks.tensor)
    mode = SamplingMode(logprobs=True, penalises=True)
    ids, logprobs = sample(logits, SamplingRows.allocate(1, CPU), mode, scores)
    assert ids.tolist() == [second]
    assert logprobs[0].item() == pytest.approx(logits[0].log_softmax(-1)[second].item(), abs=1e-6)


def test_suppression_comes_on_top_of_penalties() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    suppressing = SamplingRows.allocate(1, CPU)
    suppressing.suppressed_ids[0, 0] = 1
    mode = SamplingMode(suppresses=True, penalises=True)
    penalised = torch.tensor([[0.5, 2.0, 1.0]])
    assert sample(logits, suppressing, mode, penalised)[0].tolist() == [2]


def test_marks_say_what_the_prompt_has_and_how_often_a_token_was_generated() -> None:
    marks = TokenMarks(1, VOCABULARY, CPU)
    one = sequence("one", [7, 7, 3], [3, 4, 4], repetition_penalty=1.1)
    rows = rows_of(marks, one)
    told = marks_of(marks, rows, 0)
    assert {token: mark for token, mark in enumerate(told) if mark} == {7: 1, 3: 3, 4: 4}
    assert told == expected_marks(one)


def test_placeholders_that_the_vocabulary_does_not_have_are_left_out() -> None:
    marks = TokenMarks(1, VOCABULARY, CPU)
    one = sequence("one", [VOCABULARY, VOCABULARY + 7, 2], repetition_penalty=1.1)
    assert marks_of(marks, rows_of(marks, one), 0) == expected_marks(one)


def test_a_step_marks_only_what_is_new() -> None:
    marks = TokenMarks(2, VOCABULARY, CPU)
    one = sequence("one", [1, 2], repetition_penalty=1.1)
    slot = int(rows_of(marks, one).slots[0])
    marks.tensor[slot, 20] = 9  # a trace that only marking anew would wipe out
    one.tokens.append(5)
    rows = rows_of(marks, one)
    assert marks_of(marks, rows, 0)[5] == 2
    assert marks_of(marks, rows, 0)[20] == 9


def test_a_step_that_is_computed_again_counts_nothing_twice() -> None:
    marks = TokenMarks(1, VOCABULARY, CPU)
    one = sequence("one", [1, 2], [5], frequency_penalty=1.0)
    for _ in range(3):
        assert marks_of(marks, rows_of(marks, one), 0) == expected_marks(one)


def test_marks_are_made_anew_after_an_update_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = TokenMarks(2, VOCABULARY, CPU)
    one, other = (sequence(name, [1, 2], [5], frequency_penalty=1.0) for name in ("one", "other"))
    rows_of(marks, one, other)
    one.tokens.append(6)
    other.tokens.append(7)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "full_like", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            marks.rows_of([one, other])
    rows = rows_of(marks, one, other)
    assert [marks_of(marks, rows, row) for row in (0, 1)] == [expected_marks(one), expected_marks(other)]


def test_without_penalties_nothing_is_allocated() -> None:
    marks = TokenMarks(2, VOCABULARY, CPU)
    assert marks.rows_of([sequence("plain", [1, 2], [3])]) is None
    assert marks._tensor is None


def test_marks_stay_at_one_address() -> None:
    marks = TokenMarks(2, VOCABULARY, CPU)
    rows_of(marks, sequence("one", [1], repetition_penalty=1.1))
    address = marks.tensor.data_ptr()
    rows_of(marks, sequence("other", [2], repetition_penalty=1.1))
    assert marks.tensor.data_ptr() == address


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_sequences_in_any_order_of_steps_have_marks_of_their_own(data: st.DataObject) -> None:
    """More sequences than slots take turns, end, and come back under an old id."""
    marks = TokenMarks(3, VOCABULARY, CPU)
    known = {
        name: sequence(name, data.draw(tokens.filter(bool)), frequency_penalty=0.5 * (name != "plain"))
        for name in ("a", "b", "c", "d", "e", "plain")
    }
    for _ in range(data.draw(st.integers(1, 12))):
        names = data.draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=3, unique=True))
        chosen = [known[name] for name in names]
        rows = marks.rows_of(chosen)
        for row, one in enumerate(chosen):
            if one.request.sampling.has_penalties:
                assert rows is not None
                assert marks_of(marks, rows, row) == expected_marks(one)
            one.tokens.append(data.draw(st.integers(0, VOCABULARY - 1)))
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(known)))
            marks.forget(name)
            known[name] = sequence(name, data.draw(tokens.filter(bool)), frequency_penalty=0.5 * (name != "plain"))
