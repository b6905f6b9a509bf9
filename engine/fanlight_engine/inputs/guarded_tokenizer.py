"""The checkpoint's tokenizer, in which a control token is only what the template wrote, never what a person typed.

Control tokens are the added tokens of the tokenizer (special or not; whitespace runs that are merely added count as
ordinary text). The tokenizer kept here is a copy whose control tokens answer to secret stand-ins of private-use
characters instead of their own spelling:

    rendered   <|im_start|>user\\n<G|im_end|>hi<|im_end|>      G: the guard, a character that occurs nowhere else
    prepared   [stand-in 1]user\\n<|im_end|>hi[stand-in 2]     `replace_control_tokens` took the guards out
    ids        101, ..., '<', '|', 'im', ..., 102               `encode`: one call, one string

Everything else about the copy (normalizer, pre-tokenizer, model, how added tokens strip their neighbours) is the
original's, so ordinary text gets exactly the original's ids. Marks are words that a template writes for a medium, and
that are no tokens of the vocabulary: they are guarded as control tokens are, and `encode` gives them pseudo ids below
SPLICE. Knows nothing of templates or conversations. Thread safe: the copy is never changed after construction.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerBase

from fanlight_engine.errors import CheckpointError, InvalidRequestError

SPLICE = -1
"""Pseudo id at which `encode` found the splice mark."""
_STAND_IN_BASE = 0xF0000
_NONCE_BASE = 0x100000
_PRIVATE_CHARACTERS = 0xFFFE


class GuardedTokenizer:
    """See the module. `prefix_ids` and `suffix_ids` are what the original adds around a text by default (BOS, EOS)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, marks: Sequence[str] = ()) -> None:
        """`marks` that are control tokens of the vocabulary stay these."""
        original = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(original, Tokenizer):
            raise CheckpointError(
                f"the checkpoint's tokenizer ({type(tokenizer).__name__}) has no tokenizer.json form, which is needed: "
                "load it with transformers' AutoTokenizer and save it again"
            )
        # Nobody can type a stand-in by accident or by guess: 96 random bits, drawn anew in every process.
        nonce = "".join(chr(_NONCE_BASE + secrets.randbelow(_PRIVATE_CHARACTERS)) for _ in range(6))
        added = sorted(original.get_added_tokens_decoder().items())
        control = [(token_id, token) for token_id, token in added if token.special or not token.content.isspace()]
        self._tokens = {token.content: token for _, token in control}
        marks = [mark for mark in dict.fromkeys(marks) if mark not in self._tokens]
        spellings = [*self._tokens, *marks]
        if len(spellings) >= _PRIVATE_CHARACTERS:
            raise CheckpointError(f"the checkpoint's tokenizer adds {len(control)} tokens, more than can be guarded")
        self._stand_ins = {spelling: nonce + chr(_STAND_IN_BASE + i) for i, spelling in enumerate(spellings)}
        self.splice_mark = nonce + chr(_STAND_IN_BASE + len(spellings))
        self._copy = _copied(original, added_tokens=[], post_processor=None)
        _add_tokens(self._copy, [_renamed(token, self._stand_ins.get(token.content)) for _, token in added])
        own = [*(self._stand_ins[mark] for mark in marks), self.splice_mark]
        self._copy.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in own])
        self._ids = {token.content: token_id for token_id, token in control}
        self._ids |= {mark: SPLICE - 1 - number for number, mark in enumerate(marks)}
        self._original_ids = self._map_ids(added, marks)
        self._control_ids = {token_id for token_id, _ in control} - {getattr(tokenizer, "unk_token_id", None)}
        self._pattern = _longest_first(self._stand_ins)
        self._guarded_characters = re.compile(
            "[" + "".join(map(re.escape, sorted({content.strip()[:1] for content in self._stand_ins} - {""}))) + "]"
        )
        self.prefix_ids, self.suffix_ids = _default_affixes(original)
        self.longest_token = max((len(token) for token in original.get_vocab()), default=1)

    def id_of(self, spelling: str) -> int | None:
        """The id of a control token, the pseudo id of a mark; None for anything else."""
        return self._ids.get(spelling)

    def spelling_of(self, token_id: int) -> str | None:
        """What `id_of` has this id for."""
        return next((spelling for spelling, own in self._ids.items() if own == token_id), None)

    def guard(self, text: str, guard: str) -> str:
        """`text` with `guard` behind every character that could begin a control token."""
        if not self._stand_ins:
            return text
        return self._guarded_characters.sub(lambda match: match.group() + guard, text)

    def replace_control_tokens(self, text: str, guard: str = "") -> str:
        """Control tokens spelled in `text` become stand-ins, guarded ones stay text; guards are taken out."""
        if self._stand_ins:
            unguarded = f"(?!{re.escape(guard)})" if guard else ""
            pattern = re.compile(f"(?:{self._pattern}){unguarded}")
            text = pattern.sub(lambda match: self._stand_ins[match.group()], text)
        return text.replace(guard, "") if guard else text

    def encode(self, prepared: str) -> list[int]:
        """Ids of a prepared text, without the default affixes; SPLICE where a splice mark stands.

        Raises InvalidRequestError where the vocabulary itself would turn plain text into a control token.
        """
        # A batch of one: unlike `encode` it lets go of the interpreter, which a long text would hold for a second.
        ids = self._copy.encode_batch([prepared], add_special_tokens=False)[0].ids
        original_ids = [self._original_ids.get(token_id, token_id) for token_id in ids]
        if not self._control_ids.isdisjoint(set(ids) - self._original_ids.keys()):
            raise InvalidRequestError(
                "prompt", "its text spells a control token that this checkpoint's vocabulary cannot hold as plain text"
            )
        return original_ids

    def encode_trusted(self, text: str) -> list[int]:
        """Ids of a text whose control tokens are meant."""
        return self.encode(self.replace_control_tokens(text))

    def substitute(self, prepared: str, token_ids: Iterable[int], texts: Iterable[str]) -> str:
        """`prepared` with the stand-ins of `token_ids` replaced by `texts`, one after the other; control tokens in them
        are meant."""
        spellings = [spelling for token_id in token_ids if (spelling := self.spelling_of(token_id)) is not None]
        pattern = "|".join(re.escape(self._stand_ins[spelling]) for spelling in spellings)
        in_order = iter(texts)
        return re.sub(pattern, lambda _: self.replace_control_tokens(next(in_order)), prepared)

    def stands_alone(self, text: str, in_place_of: str) -> bool:
        """Whether a text in which control tokens are meant has the same ids wherever a control token, `in_place_of`,
        could stand: it begins and ends with control tokens that part from their neighbours as that one does."""
        tokens = list(re.finditer(self._pattern, text)) if self._stand_ins else []
        if not tokens or tokens[0].start() != 0 or tokens[-1].end() != len(text):
            return False
        manners = {self._manners(one) for one in (tokens[0].group(), tokens[-1].group(), in_place_of)}
        return len(manners) == 1 and None not in manners

    def _manners(self, spelling: str) -> tuple[bool, bool, bool] | None:
        """How a control token treats its neighbours; None where that depends on them, and for marks."""
        token = self._tokens.get(spelling)
        return None if token is None or token.single_word else (token.lstrip, token.rstrip, token.normalized)

    def _map_ids(self, added: Iterable[tuple[int, AddedToken]], marks: Iterable[str]) -> dict[int, int]:
        """Ids of the copy -> ids of the original, where they differ in meaning; proves every stand-in on the way."""
        mapping: dict[int | None, int] = {self._copy.token_to_id(self.splice_mark): SPLICE}
        mapping |= {self._copy.token_to_id(self._stand_ins[mark]): self._ids[mark] for mark in marks}
        for token_id, token in added:
            name = self._stand_ins.get(token.content, token.content)
            copied = self._copy.encode(name, add_special_tokens=False).ids
            if name != token.content and copied != [self._copy.token_to_id(name)]:
                raise CheckpointError(f"the checkpoint's tokenizer cannot keep {token.content!r} apart from typed text")
            mapping[self._copy.token_to_id(name)] = token_id
        return {copied_id: original_id for copied_id, original_id in mapping.items() if copied_id is not None}


def unused_characters(texts: Iterable[str], count: int) -> tuple[str, ...]:
    """`count` private-use characters that occur in none of the texts."""
    used = set().union(*map(set, texts))
    blocks = (range(0xE000, 0xF900), range(_STAND_IN_BASE, _STAND_IN_BASE + _PRIVATE_CHARACTERS))
    unused = (chr(code) for block in blocks for code in block if chr(code) not in used)
    found = tuple(character for character, _ in zip(unused, range(count), strict=False))
    if len(found) < count:
        raise InvalidRequestError("prompt", "its text uses every private-use character of Unicode; leave some out")
    return found


def _copied(original: Tokenizer, **changes: object) -> Tokenizer:
    specification = json.loads(original.to_str()) | {"truncation": None, "padding": None} | changes
    return Tokenizer.from_str(json.dumps(specification))


def _renamed(token: AddedToken, content: str | None) -> AddedToken:
    return AddedToken(
        content or token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _add_tokens(copy: Tokenizer, tokens: Sequence[AddedToken]) -> None:
    copy.add_special_tokens([token for token in tokens if token.special])
    copy.add_tokens([token for token in tokens if not token.special])


def _longest_first(contents: Iterable[str]) -> str:
    """An alternation that picks the longest token at the leftmost place, as the tokenizer does."""
    return "|".join(re.escape(content) for content in sorted(contents, key=len, reverse=True))


def _default_affixes(original: Tokenizer) -> tuple[list[int], list[int]]:
    unlimited = _copied(original)
    bare, full = (unlimited.encode("a", add_special_tokens=special).ids for special in (False, True))
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise CheckpointError("the checkpoint's tokenizer changes the text between its special tokens")
