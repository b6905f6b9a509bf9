"""Whole conversations about drawn scenes, of the kinds and proportions the model is trained on. Needs no torch."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tools.train_tiny.questions import Turn, ask, ask_which_picture, kinds_for
from tools.train_tiny.scenes import Scene, Size, draw_scene
from tools.train_tiny.small_talk import UNKNOWN, small_talk, unknown_question

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a friendly assistant who looks at pictures.",
    "Answer briefly.",
    "Answer the questions about the picture.",
)
LAYOUT_WEIGHTS = {"single": 0.26, "count": 0.36, "pair": 0.17, "digit": 0.21}
FINISHING_WEIGHTS = {"single": 0.12, "count": 0.56, "pair": 0.15, "digit": 0.17}
REDRAWN_SMALL_COUNTS = 0.7  # three, four and five are the ones that are hard to tell apart


@dataclass(frozen=True)
class Conversation:
    """Turns in order, the scenes behind their pictures in the order they were sent, and perhaps a system prompt."""

    turns: tuple[Turn, ...]
    scenes: tuple[Scene, ...] = ()
    system: str | None = None


def about_one_picture(
    rng: random.Random, size: Size, *, held_out: bool = False, turns: int | None = None, finishing: bool = False
) -> Conversation:
    """One to three questions of different kinds about one picture, sent with the first of them.

    `finishing` chooses the mix of the last stretch of training, which drills counting, the last thing to be learned.
    """
    weights = FINISHING_WEIGHTS if finishing else LAYOUT_WEIGHTS
    layout = rng.choices(list(weights), weights=list(weights.values()))[0]
    scene = draw_scene(rng, layout, size, held_out=held_out)
    if finishing and layout == "count" and len(scene.things) < 4 and rng.random() < REDRAWN_SMALL_COUNTS:
        scene = draw_scene(rng, layout, size, held_out=held_out)
    kinds = kinds_for(scene)
    wanted = turns or rng.choices((1, 2, 3), weights=(0.5, 0.32, 0.18))[0]
    chosen = [rng.choice(kinds) for _ in range(wanted)] if len(kinds) < wanted else rng.sample(kinds, wanted)
    if finishing and layout == "count" and "count" not in chosen:
        chosen[0] = "count"
    asked = [ask(rng, scene, kind) for kind in chosen]
    if turns is None and rng.random() < 0.04:
        asked.append(Turn("small_talk", unknown_question(rng), UNKNOWN))
    asked[0] = replace(asked[0], images=(scene.image,), text_first=rng.random() < 0.15)
    return Conversation(tuple(asked), (scene,), _system_prompt(rng))


def about_two_pictures(rng: random.Random, sizes: tuple[Size, Size], *, held_out: bool = False) -> Conversation:
    """Two pictures sent together with a question about one of them, or one after the other with a question each."""
    layouts = rng.choices(("single", "count", "digit"), k=2)
    drawn = zip(layouts, sizes, strict=True)
    first, second = (draw_scene(rng, layout, size, held_out=held_out) for layout, size in drawn)
    images = (first.image, second.image)
    if rng.random() < 0.6:
        turns = [replace(ask_which_picture(rng, (first, second)), images=images)]
        if rng.random() < 0.5:
            turns.append(ask_which_picture(rng, (first, second)))
    else:
        asked = [(ask(rng, scene, rng.choice(kinds_for(scene))), scene.image) for scene in (first, second)]
        turns = [replace(turn, images=(image,)) for turn, image in asked]
    return Conversation(tuple(turns), (first, second), _system_prompt(rng))


def without_pictures(rng: random.Random) -> Conversation:
    """One or two turns of small talk."""
    turns = [small_talk(rng) for _ in range(1 if rng.random() < 0.7 else 2)]
    return Conversation(tuple(turns), (), _system_prompt(rng))


def _system_prompt(rng: random.Random) -> str | None:
    return rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.12 else None
