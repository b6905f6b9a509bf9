"""Token ids -> text as they come, never a partial character; the pieces joined are the tokenizer's decode of all ids.

Two kinds of decoders are told apart. Byte-level ones give every token a byte string, so an incremental UTF-8 decoder is
exact and costs the same for any length. (tokenizers' own DecodeStream fails on many id sequences of the other kind, and
decodes again whatever it holds back.) For all others a short window of ids is decoded again with each token; where the
tokenizer falls back to byte pieces (<0xE4>), a run of these is valid or invalid only as a whole, so it is held until it
ends. Knows nothing of stop strings or requests.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

_BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT_CHARACTER = "\ufffd"


class Detokenizer(Protocol):
    """The text of one output. `settled` is False while the last tokens' text has not come out in full."""

    settled: bool

    def push(self, token_id: int) -> str:
        """The text that is certain now that `token_id` has come."""
        ...

    def flush(self) -> str:
        """The rest, at the end; an incomplete character becomes U+FFFD."""
        ...


class Detokenizers:
    """Makes a Detokenizer per output. Keeps a copy of the tokenizer, which nothing else changes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        specification = tokenizer.to_str()
        self._tokenizer = Tokenizer.from_str(specification)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._decodes_bytes = _is_byte_level(json.loads(specification).get("decoder"))
        self._token_bytes: dict[int, bytes] = {}
        self._whole_texts: dict[int, str | None] = {}
        vocabulary = self._tokenizer.get_vocab()
        self._byte_ids = frozenset(token_id for token, token_id in vocabulary.items() if _BYTE_PIECE.fullmatch(token))

    def start(self, skip_special_tokens: bool) -> Detokenizer:
        """A detokenizer for one output."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        if self._decodes_bytes:
            return _ByteLevelDetokenizer(self, skipped)
        return _WindowDetokenizer(self._tokenizer, skipped, self._byte_ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of all ids at once."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def pieces(self, token_ids: Sequence[int]) -> list[bytes]:
        """The bytes that each token adds to the text of all; of special tokens, their spelling."""
        if self._decodes_bytes:
            return [self.bytes_of(token_id) for token_id in token_ids]
        detokenizer = _WindowDetokenizer(self._tokenizer, frozenset(), self._byte_ids)
        pieces = [detokenizer.push(token_id).encode() for token_id in token_ids]
        if pieces:
            pieces[-1] += detokenizer.flush().encode()
        return pieces

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one token of a byte-level tokenizer; none for ids it does not have."""
        known = self._token_bytes.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id)
            known = self._token_bytes[token_id] = b"" if token is None else _byte_level_bytes(token)
        return known

    def whole_text(self, token_id: int) -> str | None:
        """The text of one token of a byte-level tokenizer; None where it is no whole characters by itself."""
        try:
            return self._whole_texts[token_id]
        except KeyError:
            text = self._whole_texts[token_id] = _decoded(self.bytes_of(token_id))
            return text


class _ByteLevelDetokenizer:
    def __init__(self, vocabulary: Detokenizers, skipped: frozenset[int]) -> None:
        self.settled = True
        self._vocabulary = vocabulary
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        if self.settled:  # most tokens are whole characters, and then there is nothing to decode
            text = self._vocabulary.whole_text(token_id)
            if text is not None:
                return text
        text = self._decoder.decode(self._vocabulary.bytes_of(token_id))
        incomplete, _ = self._decoder.getstate()
        self.settled = not incomplete
        return text

    def flush(self) -> str:
        self.settled = True
        return self._decoder.decode(b"", final=True)


class _WindowDetokenizer:
    """The window is the tokens of the last piece of text (decoders look at their left neighbour) and all since."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], byte_ids: frozenset[int]) -> None:
        self.settled = True
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._byte_ids = byte_ids
        self._window: list[int] = []
        self._context_tokens = 0
        self._context_characters = 0

    def push(self, token_id: int) -> str:
        if token_id in self._skipped or self._tokenizer.id_to_token(token_id) is None:
            return ""
        self._window.append(token_id)
        if token_id in self._byte_ids:
            self.settled = False
            return ""
        text = self._decode(self._window)
        self.settled = not text.endswith(_REPLACEMENT_CHARACTER)
        return self._advance(text) if self.settled else ""

    def flush(self) -> str:
        self.settled = True
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        piece = text[self._context_characters :]
        if piece:
            # A window must begin with tokens that left text: others would be no left neighbour at all.
            self._window = self._window[self._context_tokens :]
            self._context_tokens = len(self._window)
            self._context_characters = len(self._decode(self._window))
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    """Whether the decoder is ByteLevel alone, or a sequence of it and steps that change nothing after it."""
    if decoder is None:
        return False
    if decoder["type"] == "Sequence":
        kinds = [step["type"] for step in decoder["decoders"]]
        return kinds[:1] == ["ByteLevel"] and set(kinds) <= {"ByteLevel", "Fuse"}
    return decoder["type"] == "ByteLevel"


def _byte_level_characters() -> dict[str, int]:
    """Character -> byte, as byte-level vocabularies write them: printable as themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    assert characters.keys() == set(ByteLevel.alphabet())
    return characters


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


_BYTE_OF_CHARACTER = _byte_level_characters()


def _byte_level_bytes(token: str) -> bytes:
    """Added tokens may hold characters outside the alphabet: these are their own UTF-8."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode("utf-8")
