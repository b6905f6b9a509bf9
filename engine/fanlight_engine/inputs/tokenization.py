"""Text <-> tokens for callers that look at them: ids with their bytes, and back. Knows no prompts and no media.

The bytes of a token are exact for byte-level tokenizers; for others a token's bytes are what the text grows by when the
token is joined to those before it, so that all bytes joined are the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanlight_engine.dry_run import TextToken
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.outputs.detokenizer import Detokenizers

MOST_TEXT_CHARACTERS = 1 << 18
MOST_TOKENS = 1 << 16
"""What the server can say of tokens in one message, and in a time that nobody else notices."""
MOST_IDS = 1 << 20


def tokenize(
    text: str, parse_special_tokens: bool, guarded: GuardedTokenizer, detokenizers: Detokenizers
) -> tuple[TextToken, ...]:
    """The tokens of a text, without the tokenizer's own affixes. Raises InvalidRequestError."""
    if len(text) > MOST_TEXT_CHARACTERS:
        raise InvalidRequestError(
            "text", f"it has {len(text)} characters, at most {MOST_TEXT_CHARACTERS} are allowed; send it in parts"
        )
    ids = guarded.encode(guarded.replace_control_tokens(text) if parse_special_tokens else text)
    if len(ids) > MOST_TOKENS:
        raise InvalidRequestError("text", f"it has {len(ids)} tokens, at most {MOST_TOKENS} are told; send it in parts")
    tokens: list[TextToken] = []
    offset = 0
    for token_id, data in zip(ids, detokenizers.pieces(ids), strict=True):
        tokens.append(TextToken(token_id, data, offset))
        offset += len(data)
    return tuple(tokens)


def detokenize(ids: Sequence[int], spell_special_tokens: bool, vocabulary_size: int, detokenizers: Detokenizers) -> str:
    """The text of tokens. Raises InvalidRequestError naming the first id that there is not."""
    if len(ids) > MOST_IDS:
        raise InvalidRequestError("ids", f"got {len(ids)} ids, at most {MOST_IDS} are allowed; send them in parts")
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocabulary_size:
            raise InvalidRequestError(
                f"ids[{index}]",
                f"got {token_id}, the vocabulary has ids 0 to {vocabulary_size - 1}",
                Reason.TOKEN_OUT_OF_RANGE,
            )
    return detokenizers.decode(ids, skip_special_tokens=not spell_special_tokens)
