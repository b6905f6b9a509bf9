"""Text comes piece by piece and is, joined, the tokenizer's decode of all ids; no piece holds a partial character."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer

from fanlight_engine.events import Delta, Finished, Token
from fanlight_engine.outputs.assembly import OutputAssembler
from fanlight_engine.outputs.detokenizer import Detokenizers
from fanlight_engine.outputs.stop_strings import StopMatcher
from fanlight_engine.outputs.transcript import Transcript
from fanlight_engine.request import FinishReason, OutputOptions, TextPart
from tests.engine.conversations import TEXTS

LONG_TEXT = unicodedata.normalize("NFC", "".join(TEXTS)) + "日本語テスト 🎉🎊 \u200d ÿ ÿ \x00\x7f"


class Decoding:
    """A checkpoint's tokenizer, and the detokenizers made from it."""

    def __init__(self, path: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.detokenizers = Detokenizers(self.tokenizer.backend_tokenizer)

    def pieces(self, ids: list[int], skip: bool) -> list[str]:
        detokenizer = self.detokenizers.start(skip)
        pieces = [detokenizer.push(token_id) for token_id in ids]
        return [*pieces, detokenizer.flush()]


@pytest.fixture(scope="session", params=["llama_path", "qwen_path", "llava_path"])
def decoding(request: pytest.FixtureRequest) -> Decoding:
    return Decoding(request.getfixturevalue(request.param))


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_decode_as_a_whole(decoding: Decoding, skip: bool):
    """Random ids are mostly invalid bytes; some are special, and some the vocabulary does not even have."""
    rng = random.Random(11)
    for _ in range(400):
        ids = [rng.randrange(len(decoding.tokenizer) + 4) for _ in range(rng.randint(0, 40))]
        assert "".join(decoding.pieces(ids, skip)) == decoding.tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("skip", [True, False])
def test_text_decodes_as_a_whole_without_partial_characters(decoding: Decoding, skip: bool):
    ids = decoding.tokenizer.encode(LONG_TEXT)
    pieces = decoding.pieces(ids, skip)
    assert "".join(pieces) == decoding.tokenizer.decode(ids, skip_special_tokens=skip)
    assert LONG_TEXT in "".join(pieces)
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(map(bool, pieces)) > len(ids) / 4


def test_special_tokens_between_words_do_not_eat_spaces(decoding: Decoding):
    words = [
        decoding.tokenizer.encode(text, add_special_tokens=False) for text in ("the cat", " the river", "  the city")
    ]
    ids = [decoding.tokenizer.eos_token_id, *words[0], decoding.tokenizer.eos_token_id, *words[1], *words[2]]
    assert "".join(decoding.pieces(ids, True)) == decoding.tokenizer.decode(ids, skip_special_tokens=True)


def test_bytes_that_never_become_a_character_are_replaced_at_the_end(decoding: Decoding):
    ids = decoding.tokenizer.encode("a 你", add_special_tokens=False)[:-1]
    *pieces, last = decoding.pieces(ids, True)
    assert "\ufffd" not in "".join(pieces)
    assert set(last) == {"\ufffd"}


def test_an_endless_run_of_invalid_bytes_costs_no_more_than_its_length(qwen_path: Path):
    decoding = Decoding(qwen_path)
    invalid = decoding.tokenizer.backend_tokenizer.token_to_id("Ģ")  # how a byte-level vocabulary writes byte 0x80
    pieces = decoding.pieces([invalid] * 20_000, True)
    assert "".join(pieces) == "\ufffd" * 20_000
    assert not decoding.detokenizers.start(True).flush()


def word_decoding() -> Detokenizers:
    """One token per character, so that tests can say what token brings what text."""
    tokenizer = Tokenizer(models.WordLevel({chr(code): code for code in range(128)}, unk_token="\0"))
    tokenizer.decoder = decoders.Fuse()
    return Detokenizers(tokenizer)


def assemble(
    answer: str, stops: tuple[str, ...] = (), include: bool = False, min_new_tokens: int = 0, **options: bool
) -> tuple[list[Delta], OutputAssembler]:
    detokenizers = word_decoding()
    output = OutputOptions(**({"token_ids": True} | options))
    assembler = OutputAssembler(0, detokenizers.start(True), StopMatcher(stops, include), output, min_new_tokens)
    deltas = []
    for character in answer:
        stopped = assembler.push(ord(character), -0.5)
        if stopped:
            assembler.finish()
        delta = assembler.take()
        if delta is not None:
            deltas.append(delta)
        if stopped:
            return deltas, assembler
    assembler.finish()
    return [*deltas, *filter(None, [assembler.take()])], assembler


def said(deltas: list[Delta]) -> tuple[str, str]:
    return "".join(d.text for d in deltas), "".join(chr(token.id) for d in deltas for token in d.tokens)


def test_a_token_leaves_with_its_text():
    deltas, _ = assemble("ab<ec<end>zz", ("<end>",))
    assert said(deltas) == ("ab<ec", "ab<ec")
    assert [d.text for d in deltas] == ["a", "b", "<ec"]
    assert [[chr(token.id) for token in d.tokens] for d in deltas] == [["a"], ["b"], ["<", "e", "c"]]


def test_tokens_of_a_trimmed_stop_are_counted_and_never_sent():
    deltas, assembler = assemble("ab<end>zz", ("<end>",))
    assert said(deltas) == ("ab", "ab")
    assert assembler.completion_tokens == 7
    assert assembler.stop == "<end>"


def test_an_included_stop_is_sent_with_its_tokens():
    deltas, assembler = assemble("ab<end>zz", ("<end>",), include=True)
    assert said(deltas) == ("ab<end>", "ab<end>")
    assert assembler.completion_tokens == 7


def test_what_did_not_become_a_stop_is_sent_at_the_end():
    deltas, assembler = assemble("ab<en", ("<end>",))
    assert said(deltas) == ("ab<en", "ab<en")
    assert assembler.stop is None


def test_the_first_tokens_asked_for_are_not_searched_for_stops():
    deltas, assembler = assemble("ab-cd-ef", ("-",), min_new_tokens=3)
    assert said(deltas) == ("ab-cd", "ab-cd")
    assert assembler.completion_tokens == 6


def test_only_what_was_asked_for_is_sent():
    deltas, _ = assemble("ab", token_ids=False)
    assert deltas == [Delta(0, "a"), Delta(0, "b")]
    deltas, _ = assemble("ab", token_ids=True, text=False)
    assert deltas == [Delta(0, "", (Token(97),)), Delta(0, "", (Token(98),))]
    deltas, _ = assemble("a", token_ids=False, logprobs=True)
    assert deltas == [Delta(0, "a", (Token(97, -0.5),))]


def test_a_token_waits_for_the_rest_of_its_character(qwen_path: Path):
    decoding = Decoding(qwen_path)
    ids = decoding.tokenizer.encode("你", add_special_tokens=False)
    assert len(ids) == 3
    assembler = OutputAssembler(
        0, decoding.detokenizers.start(True), StopMatcher((), False), OutputOptions(token_ids=True), min_new_tokens=0
    )
    deltas = []
    for token_id in ids:
        assembler.push(token_id, None)
        deltas.append(assembler.take())
    assert deltas == [None, None, Delta(0, "你", tuple(map(Token, ids)))]


def test_a_transcript_keeps_ids_only_where_they_say_the_text():
    detokenizers = word_decoding()
    whole, cut = Transcript(detokenizers), Transcript(detokenizers)
    for event in (Delta(0, "a", (Token(97),)), Delta(0, "b", (Token(98),)), Finished(0, FinishReason.STOP)):
        whole.add(event)
    assert whole.part() == TextPart("ab", (97, 98))
    cut.add(Delta(0, "ab", (Token(97),)))
    assert cut.part() == TextPart("ab", None)
    assert Transcript(detokenizers).part() == TextPart("", None)
