"""Stop strings end the text where they are complete, however it is cut into pieces, and never leak."""

from __future__ import annotations

import random

import pytest

from fanlight_engine.outputs.stop_strings import StopMatcher


def run(stops: tuple[str, ...], pieces: list[str], include: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include)
    text = ""
    for piece in pieces:
        released = matcher.feed(piece)
        text += released.text
        if released.stop is not None:
            return text, released.stop
    return text + matcher.flush(), None


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        ((), "anything", ("anything", None)),
        (("END",), "some text END more", ("some text ", "END")),
        (("END",), "some text EN", ("some text EN", None)),
        (("ab", "b"), "xxab", ("xx", "ab")),
        (("bc", "abcd"), "xabcd", ("xa", "bc")),
        (("aab",), "aaab", ("a", "aab")),
        (("\n\n",), "one\n two\n\n three", ("one\n two", "\n\n")),
        (("é",), "caf\u00e9s", ("caf", "é")),
        (("abab",), "abaabab", ("aba", "abab")),
        (("a",), "a", ("", "a")),
    ],
)
def test_the_match_that_is_complete_first_wins(stops: tuple[str, ...], text: str, expected: tuple[str, str | None]):
    assert run(stops, [text]) == expected
    assert run(stops, list(text)) == expected


def test_include_keeps_the_stop_string_and_nothing_behind_it():
    assert run(("END",), ["a E", "ND b"], include=True) == ("a END", "END")


def test_text_that_can_no_longer_match_leaves_at_once():
    matcher = StopMatcher(("</answer>",), include=False)
    assert matcher.feed("x </ans").text == "x "
    assert matcher.feed("om").text == "</ansom"
    assert matcher.feed("e").text == "e"


def test_pieces_do_not_matter():
    rng = random.Random(3)
    for _ in range(500):
        text = "".join(rng.choice("ab") for _ in range(20))
        stops = tuple("".join(rng.choice("ab") for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(1, 3)))
        cuts = sorted(rng.randrange(21) for _ in range(rng.randint(0, 8)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
        expected = run(stops, list(text))
        assert run(stops, pieces) == expected
        kept, stop = expected
        assert stop is not None or kept == text
        assert all(one not in kept for one in stops)
