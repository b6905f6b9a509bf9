"""Shows Fanlight at work: starts a server on the embedded model, draws pictures, asks about them, streams the answers.

    python -m tools.demo     (`make demo`)

The pictures are held-out ones: drawn scenes and real handwritten digits that training never saw. Each question has one
right answer; the demo exits 1 if one is missed. The pictures are left in build/demo to look at.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from fanlight import Client, Usage
from tools.train_tiny.cases import held_out_cases, held_out_conversations

PICTURES = Path(__file__).resolve().parent.parent / "build" / "demo"
SECONDS_TO_STOP = 30


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask, and the one right answer."""

    text: str
    answer: str
    pictures: tuple[Path, ...] = ()


def main() -> int:
    """Run the demo; 0 when every answer was right."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with running_server() as address, Client(address, timeout=120) as client:
        right = [ask(client, question) for question in single_questions()]
        right += hold_a_conversation(client)
    print(f"\n{sum(right)} of {len(right)} answers were right; the pictures are in build/demo")
    return 0 if all(right) else 1


@contextmanager
def running_server() -> Iterator[str]:
    """`fanlight serve` on a free port, as a user would start it; yields its address and stops it gracefully."""
    command = [sys.executable, "-m", "fanlight", "serve", "--port", "0"]
    print("$ fanlight serve")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield _wait_for_address(server)
    finally:
        server.terminate()
        server.communicate(timeout=SECONDS_TO_STOP)


def _wait_for_address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if found := re.match(r"listening on (\S+);", line):
            return found.group(1)
    raise RuntimeError(
        f"the server ended with code {server.wait()} before it listened; run `fanlight serve` to see why"
    )


def single_questions() -> Iterator[Question]:
    """A few held-out cases of each kind."""
    for kind, count in (("colour", 2), ("shape", 2), ("position", 2), ("count", 2), ("digit", 4), ("small_talk", 2)):
        for number, case in enumerate(held_out_cases(kind, count, seed=1)):
            paths = tuple(_save(image, f"{kind}-{number}") for image in case.images)
            yield Question(case.question, case.answer, paths)


def ask(client: Client, question: Question) -> bool:
    """Ask one question in a request of its own and print the answer as it streams in."""
    _print_question(question)
    stream = client.stream(question.text, images=list(question.pictures), temperature=0, max_new_tokens=48)
    text = _print_pieces(stream)
    if stream.usage is not None:
        _print_usage(stream.usage)
    return _judge(text, question)


def hold_a_conversation(client: Client) -> list[bool]:
    """Several turns about one picture, over one bidirectional stream: the picture is encoded once."""
    conversation = held_out_conversations(1, seed=1)[0]
    right = []
    with client.chat(temperature=0, max_new_tokens=48) as chat:
        for number, turn in enumerate(conversation.turns):
            paths = tuple(_save(image, f"chat-{number}-{index}") for index, image in enumerate(turn.images))
            question = Question(turn.question, turn.answer, paths)
            _print_question(question)
            answer = chat.send(question.text, images=list(question.pictures))
            text = _print_pieces(answer)
            if answer.usage is not None:
                _print_usage(answer.usage)
            right.append(_judge(text, question))
    return right


def _save(image: Image.Image, name: str) -> Path:
    path = PICTURES / f"{name}.png"
    image.save(path)
    return path


def _print_question(question: Question) -> None:
    shown = "".join(f" [{path.name} {'x'.join(map(str, Image.open(path).size))}]" for path in question.pictures)
    print(f"\n> {question.text}{shown}\n  ", end="", flush=True)


def _print_pieces(pieces: Iterator[str]) -> str:
    text = ""
    for piece in pieces:
        print(piece, end="", flush=True)
        text += piece
    print()
    return text


def _print_usage(usage: Usage) -> None:
    timings = usage.timings
    stages = {
        "decode": timings.decode_media,
        "preprocess": timings.preprocess,
        "encode": timings.encode,
        "prefill": timings.prefill,
        "first token": timings.first_token,
        "total": timings.total,
    }
    times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in stages.items() if seconds)
    tokens = (
        f"prompt {usage.prompt_tokens} tokens (image {usage.image_tokens}, cached {usage.cached_tokens}), "
        f"answer {usage.completion_tokens}"
    )
    print(f"  {tokens} | {times}")


def _judge(text: str, question: Question) -> bool:
    if text == question.answer:
        return True
    print(f"  WRONG: the right answer is {question.answer!r}")
    return False


if __name__ == "__main__":
    sys.exit(main())
