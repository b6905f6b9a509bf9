"""Text splits into tokens whose bytes join to the text, and back; ids that there are not are named."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.inputs import tokenization
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.outputs.detokenizer import Detokenizers
from tests.engine.conversations import TEXTS


class Tokens:
    """Both directions over one checkpoint's tokenizer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint.path)
        self.guarded = GuardedTokenizer(self.tokenizer)
        self.detokenizers = Detokenizers(self.tokenizer.backend_tokenizer)

    def split(self, text: str, parse: bool = False):
        return tokenization.tokenize(text, parse, self.guarded, self.detokenizers)

    def join(self, ids: list[int], spell: bool = False) -> str:
        return tokenization.detokenize(ids, spell, self.checkpoint.vocab_size, self.detokenizers)


@pytest.fixture(scope="module", params=["llama", "qwen", "llava"])
def tokens(request: pytest.FixtureRequest) -> Tokens:
    return Tokens(request.getfixturevalue(request.param))


def test_ids_are_the_tokenizers_own_without_its_affixes(tokens: Tokens):
    for text in TEXTS:
        if not set(tokens.tokenizer.all_special_tokens) & set(text.split()):
            own = tokens.tokenizer(text, add_special_tokens=False)["input_ids"]
            assert [token.id for token in tokens.split(text)] == own


def test_bytes_join_to_the_decoded_text_and_offsets_follow_them(tokens: Tokens):
    for text in (*TEXTS, "häßlich 猫 🐈 x"):
        split = tokens.split(text)
        joined = b"".join(token.data for token in split)
        assert joined.decode() == tokens.join([token.id for token in split], spell=True)
        assert [token.offset for token in split] == [
            sum(len(before.data) for before in split[:index]) for index in range(len(split))
        ]


def test_byte_level_tokens_are_exact_bytes_of_the_text(qwen: Checkpoint):
    text = "naïve 猫🐈"
    assert b"".join(token.data for token in Tokens(qwen).split(text)) == text.encode()


def test_special_tokens_are_parsed_only_when_asked_and_spelled_only_when_asked(qwen: Checkpoint):
    tokens = Tokens(qwen)
    end = tokens.tokenizer.convert_tokens_to_ids("<|im_end|>")
    typed = [token.id for token in tokens.split("hi<|im_end|>")]
    parsed = [token.id for token in tokens.split("hi<|im_end|>", parse=True)]
    assert end not in typed
    assert parsed[-1] == end
    assert tokens.join(parsed) == "hi"
    assert tokens.join(parsed, spell=True) == "hi<|im_end|>"


def test_what_is_too_long_or_unknown_is_refused_by_field(qwen: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    tokens = Tokens(qwen)
    with pytest.raises(InvalidRequestError, match=rf"ids\[1\]: got {qwen.vocab_size}") as caught:
        tokens.join([1, qwen.vocab_size])
    assert caught.value.reason is Reason.TOKEN_OUT_OF_RANGE
    monkeypatch.setattr(tokenization, "MOST_TEXT_CHARACTERS", 4)
    with pytest.raises(InvalidRequestError, match="text: it has 5 characters, at most 4"):
        tokens.split("hello")
    monkeypatch.setattr(tokenization, "MOST_IDS", 1)
    with pytest.raises(InvalidRequestError, match="got 2 ids, at most 1"):
        tokens.join([1, 2])
