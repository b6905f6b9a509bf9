"""Held-out cases: questions about pictures that training never drew, with the one right answer to each.

Training draws its scenes from seeds that start with "train/", these from seeds that start with "held-out/"; handwritten
digits come from the held-out fifth. Needs no torch, so that a demonstration can ask a running server the same cases.

    for case in held_out_cases("count", 100):
        case.images[0], case.question, case.answer
"""

from __future__ import annotations

import random
from dataclasses import replace

from tools.train_tiny.conversations import Conversation, about_one_picture
from tools.train_tiny.questions import Turn, ask, ask_which_picture
from tools.train_tiny.scenes import draw_scene, random_size
from tools.train_tiny.small_talk import UNKNOWN, small_talk

BARS = {"colour": 0.95, "position": 0.95, "digit": 0.90, "shape": 0.90, "count": 0.80}
"""Least share of exactly right answers that the embedded model must give, by kind of question."""

KINDS = (*BARS, "pair", "describe", "two_pictures", "small_talk", "unseen_talk")
"""Every kind that `held_out_cases` knows."""

UNSEEN_QUESTIONS = (
    "What is the tallest building in the world?",
    "Who painted the Mona Lisa?",
    "How many legs does a spider have?",
    "What is the boiling point of water?",
    "Can you write an email for my boss?",
    "Why is the sky blue?",
    "What is the square root of 144?",
    "Recommend a good film.",
    "How do airplanes fly?",
    "When did the second world war end?",
    "What is photosynthesis?",
    "Which team is the champion this year?",
    "Give me a recipe for pancakes.",
    "What is the stock price today?",
    "Summarise the last chapter.",
    "Is it going to rain tomorrow?",
    "How long is a marathon?",
    "Who discovered penicillin?",
    "What language do they speak in Argentina?",
    "Please book a table for two.",
    "How do vaccines work?",
    "What does my dream mean?",
    "Convert ten miles to kilometres.",
    "Which is heavier, iron or gold?",
    "Fix the bug in this code.",
    "What is a black hole?",
    "Should I learn to swim?",
    "How many days are in a year?",
    "Who wrote Hamlet?",
    "Do you believe in ghosts?",
)
"""Written by hand; training asks none of them, though some of its patterns are similar. The answer is UNKNOWN."""

_LAYOUTS = {
    "colour": ("single", "single", "count"),
    "position": ("single",),
    "digit": ("digit",),
    "shape": ("single", "single", "count"),
    "count": ("count",),
    "pair": ("pair",),
    "describe": ("single", "count", "pair", "digit"),
}


def held_out_cases(kind: str, count: int, seed: int = 0) -> list[Turn]:
    """`count` single questions of one of KINDS; the same seed always draws the same ones.

    Raises:
        ValueError: for a kind that is not in KINDS.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    return [_case(kind, index, random.Random(f"held-out/{kind}/{seed}/{index}")) for index in range(count)]


def held_out_conversations(count: int, seed: int = 0) -> list[Conversation]:
    """`count` conversations of two or three turns about one picture."""
    conversations = []
    for index in range(count):
        rng = random.Random(f"held-out/conversation/{seed}/{index}")
        drawn = about_one_picture(rng, random_size(rng), held_out=True, turns=rng.choice((2, 3)))
        conversations.append(replace(drawn, system=None))
    return conversations


def _case(kind: str, index: int, rng: random.Random) -> Turn:
    if kind == "small_talk":
        return small_talk(rng)
    if kind == "unseen_talk":
        return Turn(kind, UNSEEN_QUESTIONS[index % len(UNSEEN_QUESTIONS)], UNKNOWN)
    if kind == "two_pictures":
        layouts = rng.choices(("single", "count", "digit"), k=2)
        first, second = (draw_scene(rng, layout, random_size(rng), held_out=True) for layout in layouts)
        return replace(ask_which_picture(rng, (first, second)), images=(first.image, second.image))
    scene = draw_scene(rng, rng.choice(_LAYOUTS[kind]), random_size(rng), held_out=True)
    return replace(ask(rng, scene, kind), images=(scene.image,))
