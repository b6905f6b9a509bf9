"""Questions about drawn scenes and the one right answer to each.

The answer follows from the scene and the wording alone (a question about "the circle" is answered about "the circle",
one about "it" with "it"), so that a greedy answer can be checked by exact match. Needs no torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image

from tools.train_tiny.scenes import Scene, Thing

COUNT_WORDS = ("zero", "one", "two", "three", "four", "five")
ONE_WORD = (" Answer with one word.", " One word, please.", " Answer in one word.")

SHAPE_QUESTIONS = (
    "What shape is this?",
    "What shape is it?",
    "Which shape do you see?",
    "Which shape is it?",
    "What is the shape?",
    "What shape is in the picture?",
    "What shape is in the image?",
    "What shape is shown?",
    "Name the shape.",
    "Is it a circle, a square, a triangle, a star or a cross?",
)
COLOUR_QUESTIONS = (
    "What colour is {it}?",
    "What color is {it}?",
    "Which colour is {it}?",
    "Which colour does {it} have?",
    "What is the colour of {it}?",
    "What is the color of {it}?",
    "Tell me the colour of {it}.",
    "Name the colour of {it}.",
)
POSITION_QUESTIONS = (
    "Where is {it}?",
    "Where in the picture is {it}?",
    "Where do you see {it}?",
    "Where can I find {it}?",
    "What is the position of {it}?",
    "Tell me where {it} is.",
    "In which part of the picture is {it}?",
)
COUNT_QUESTIONS = (
    "How many {them} are there?",
    "How many {them} do you see?",
    "How many {them} are in the picture?",
    "How many {them} can you see?",
    "Count the {them}.",
    "What is the number of {them}?",
    "Tell me how many {them} there are.",
)
DIGIT_QUESTIONS = (
    "Which digit is this?",
    "What digit is this?",
    "Which digit do you see?",
    "Which number is this?",
    "What number is written here?",
    "Which digit is in the picture?",
    "What digit is shown?",
    "Read the digit.",
    "Read the number.",
)
DESCRIBE_QUESTIONS = (
    "What is in the picture?",
    "What is in this picture?",
    "What do you see?",
    "What can you see?",
    "Describe the picture.",
    "Describe the image.",
    "Describe this picture.",
    "What does the picture show?",
    "What is this?",
)
WHICH_PICTURE_QUESTIONS = (
    "What is in the {nth} picture?",
    "What does the {nth} picture show?",
    "Describe the {nth} picture.",
    "What do you see in the {nth} image?",
    "What is in the {nth} image?",
)


@dataclass(frozen=True)
class Turn:
    """A question, the pictures sent with it (before the text unless `text_first`), and the right answer."""

    kind: str
    question: str
    answer: str
    images: tuple[Image.Image, ...] = ()
    text_first: bool = False

    def message(self) -> dict:
        """The user's message in the format of transformers' chat templates."""
        pictures = [{"type": "image", "image": image} for image in self.images]
        text = [{"type": "text", "text": self.question}]
        return {"role": "user", "content": text + pictures if self.text_first else pictures + text}


def plural(shape: str) -> str:
    return "crosses" if shape == "cross" else shape + "s"


def description(scene: Scene) -> str:
    """What a scene shows, as a noun phrase: "three red stars", "a red star and a blue circle", "the digit 7"."""
    first = scene.things[0]
    if scene.layout == "digit":
        return f"the digit {first.digit}"
    if scene.layout == "pair":
        return " and ".join(f"{_article(thing.colour)} {thing.colour} {thing.shape}" for thing in scene.things)
    if len(scene.things) > 1:
        return f"{COUNT_WORDS[len(scene.things)]} {first.colour} {plural(first.shape)}"
    return f"{_article(first.colour)} {first.colour} {first.shape} {first.region}"


def ask(rng: random.Random, scene: Scene, kind: str, *, one_word: float = 0.08) -> Turn:
    """A question of a kind that `kinds_for(scene)` lists; `one_word` is how often a one-word answer is asked for."""
    question, answer, word = _ASKED[kind](rng, scene)
    if word and rng.random() < one_word:
        return Turn(kind, question + rng.choice(ONE_WORD), word)
    return Turn(kind, question, answer)


def kinds_for(scene: Scene) -> tuple[str, ...]:
    """Kinds of question that have one right answer for the scene."""
    return {
        "single": ("shape", "colour", "position", "count", "describe"),
        "count": ("count", "shape", "colour", "describe"),
        "pair": ("pair", "describe"),
        "digit": ("digit", "describe"),
    }[scene.layout]


def ask_which_picture(rng: random.Random, scenes: tuple[Scene, Scene]) -> Turn:
    """A question about one of two pictures, to be sent with both."""
    index = rng.randrange(2)
    nth = ("first", "second")[index]
    question = rng.choice(WHICH_PICTURE_QUESTIONS).format(nth=nth)
    return Turn("two_pictures", question, f"The {nth} picture shows {description(scenes[index])}.")


_Asked = tuple[str, str, str | None]  # question, answer in a sentence, answer in a word


def _about(rng: random.Random, thing: Thing) -> tuple[str, str]:
    """How the question calls a thing, and how the answer does."""
    if rng.random() < 0.6:
        return f"the {thing.shape}", f"The {thing.shape}"
    return rng.choice((("it", "It"), ("the shape", "The shape")))


def _shape(rng: random.Random, scene: Scene) -> _Asked:
    shape = scene.things[0].shape
    return rng.choice(SHAPE_QUESTIONS), f"It is a {shape}.", shape.capitalize() + "."


def _colour(rng: random.Random, scene: Scene) -> _Asked:
    thing = scene.things[0]
    if len(scene.things) > 1:
        question = rng.choice(COLOUR_QUESTIONS).format(it=f"the {plural(thing.shape)}")
        question = question.replace(" is the ", " are the ").replace("does", "do")
        question = question.replace("What are the col", "What is the col")
        return question, f"The {plural(thing.shape)} are {thing.colour}.", thing.colour.capitalize() + "."
    it, answered = _about(rng, thing)
    return rng.choice(COLOUR_QUESTIONS).format(it=it), f"{answered} is {thing.colour}.", thing.colour.capitalize() + "."


def _position(rng: random.Random, scene: Scene) -> _Asked:
    it, answered = _about(rng, scene.things[0])
    return rng.choice(POSITION_QUESTIONS).format(it=it), f"{answered} is {scene.things[0].region}.", None


def _count(rng: random.Random, scene: Scene) -> _Asked:
    count = len(scene.things)
    called = scene.things[0].shape if rng.random() < 0.6 else "shape"
    question = rng.choice(COUNT_QUESTIONS).format(them=plural(called))
    word = COUNT_WORDS[count]
    answer = f"There is one {called}." if count == 1 else f"There are {word} {plural(called)}."
    return question, answer, word.capitalize() + "."


def _pair(rng: random.Random, scene: Scene) -> _Asked:
    thing = rng.choice(scene.things)
    asked = rng.randrange(4)
    if asked == 0:
        return f"What shape is {thing.colour}?", f"The {thing.colour} shape is a {thing.shape}.", None
    if asked == 1:
        question = rng.choice(POSITION_QUESTIONS).format(it=f"the {thing.shape}")
        return question, f"The {thing.shape} is {thing.region}.", None
    if asked == 2:
        return rng.choice(COUNT_QUESTIONS).format(them="shapes"), "There are two shapes.", "Two."
    question = rng.choice(COLOUR_QUESTIONS).format(it=f"the {thing.shape}")
    return question, f"The {thing.shape} is {thing.colour}.", thing.colour.capitalize() + "."


def _digit(rng: random.Random, scene: Scene) -> _Asked:
    digit = scene.things[0].digit
    return rng.choice(DIGIT_QUESTIONS), f"The digit is {digit}.", f"{digit}."


def _describe(rng: random.Random, scene: Scene) -> _Asked:
    phrase = description(scene)
    return rng.choice(DESCRIBE_QUESTIONS), phrase[0].upper() + phrase[1:] + ".", None


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


_ASKED = {
    "shape": _shape,
    "colour": _colour,
    "position": _position,
    "count": _count,
    "pair": _pair,
    "digit": _digit,
    "describe": _describe,
}
