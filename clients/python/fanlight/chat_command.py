"""`fanlight chat`: a conversation in the terminal, streamed, with pictures and clips. Works with a pipe for input, too.

Answers go to standard output; everything else (prompts, usage, errors) to standard error, so that a pipe gets answers
alone. Ctrl-C while an answer arrives stops that answer; a second time, and at the prompt, it leaves. What was said is
remembered here, so that the conversation goes on when the server comes back.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from fanlight.answers import FinishReason, Usage
from fanlight.channel import DEFAULT_ADDRESS
from fanlight.chat import Chat, Turn
from fanlight.client import Client
from fanlight.errors import FanlightError, Unavailable
from fanlight.media_sources import image, video
from fanlight.requests import Message, Options, assistant, build_messages, system
from fanlight.v1.media_pb2 import Image, Video

INTERRUPTED_STATUS = 130
MAX_NEW_TOKENS = 512
HELP = """\
/image PATH...   show the model pictures with your next message; URLs, if the server fetches those
/video PATH...   show the model clips, likewise
/help            this text
/quit            leave (so does Ctrl-D; Ctrl-C stops an answer)"""


def main(argv: list[str]) -> int:
    """Runs `fanlight chat` with its arguments and returns the exit status: 0, or 1 if a message got no answer."""
    arguments = parse_arguments(argv)
    options: Options = {
        "max_new_tokens": arguments.max_new_tokens,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
    }
    with Client(arguments.address, model=arguments.model) as client:
        terminal = TerminalChat(client, arguments.system, options)
        try:
            return terminal.run()
        except KeyboardInterrupt:
            say()
            return INTERRUPTED_STATUS
        except BrokenPipeError:
            # The reader of the answers is gone. Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        finally:
            terminal.close()


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the options; argparse reports mistakes and leaves."""
    parser = argparse.ArgumentParser(prog="fanlight chat", description="Talk to a running server.", epilog=HELP)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("server", nargs="?", metavar="HOST:PORT", help=f"the server (default: {DEFAULT_ADDRESS})")
    parser.add_argument("--address", metavar="HOST:PORT", help="the same as an option")
    parser.add_argument("--model", help="name of the model (default: the server's)")
    parser.add_argument("--system", metavar="TEXT", help="instructions for the whole conversation")
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=MAX_NEW_TOKENS,
        metavar="N",
        help="most tokens of an answer (default: %(default)s)",
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always picks the likeliest token")
    parser.add_argument("--seed", type=int, metavar="N", help="makes sampling repeatable")
    arguments = parser.parse_args(argv)
    if arguments.server and arguments.address:
        parser.error(f"the server is given twice: {arguments.server} and --address {arguments.address}")
    arguments.address = arguments.server or arguments.address or DEFAULT_ADDRESS
    return arguments


class TerminalChat:
    """Reads lines, sends turns, prints answers. Opens a chat when it needs one."""

    def __init__(self, client: Client, system_text: str | None, options: Options) -> None:
        self._client = client
        self._options = options
        self._history: list[Message] = [] if system_text is None else [system(system_text)]
        self._pending_images: list[Image] = []
        self._pending_videos: list[Video] = []
        self._open = ExitStack()
        self._chat: Chat | None = None
        self._unanswered = 0

    def run(self) -> int:
        """Goes on until the input ends or somebody quits."""
        if sys.stdin.isatty():
            say("Type a message, or /help.")
        for line in read_lines():
            command, *argument = line.split(maxsplit=1) or [""]
            if line in ("/quit", "/exit"):
                break
            if line == "/help":
                say(HELP)
            elif command in ("/image", "/video"):
                self.attach_all(command, "".join(argument))
            elif line.startswith("/"):
                say(f"there is no command {command}; /help lists them")
            elif line:
                self.ask(line)
        return 1 if self._unanswered else 0

    def attach_all(self, command: str, argument: str) -> None:
        """Attaches what the argument of a command names."""
        try:
            places = split_places(argument)
        except ValueError as error:
            say(f"cannot read {argument}: {error}; quote names with blanks or quotes in them")
            self._unanswered += 1
            return
        if not places:
            say(f"usage: {command} PATH or {command} URL, one or more; quote names with blanks in them")
        for place in places:
            self.attach(command, place)

    def attach(self, command: str, place: str) -> None:
        """Reads a picture or a clip that goes with the next message; a large one is uploaded when that is sent."""
        source = os.path.expanduser(place)
        try:
            if command == "/image":
                self._pending_images.append(image(source))
            else:
                self._pending_videos.append(video(source))
        except OSError as error:
            say(f"cannot read {place}: {error.strerror or error}")
            self._unanswered += 1
        except FanlightError as error:
            self.report(error)
        else:
            say(dim(f"{Path(place).name} goes with your next message", sys.stderr))

    def ask(self, text: str) -> None:
        """Sends a message with what was attached since the last one, and prints the answer as it arrives."""
        images, self._pending_images = self._pending_images, []
        videos, self._pending_videos = self._pending_videos, []
        try:
            turn = self._open_chat().send(text, images=images, video=videos)
            with interrupting(turn):
                for piece in turn:
                    print(piece, end="", flush=True)
            print(flush=True)
            self.remember(build_messages(text, images, videos), turn)
        except FanlightError as error:
            self.report(error)
            tell_left_out(len(images), len(videos))

    def remember(self, said: list[Message], turn: Turn) -> None:
        """Keeps the exchange for a chat that has to be opened again, and prints what it took."""
        self._history += [*said, assistant(turn.text)]
        say(dim(closing_line(turn.finish_reason, turn.usage), sys.stderr))

    def report(self, error: FanlightError) -> None:
        """Tells an error. A chat that is over is dropped, so that the next message opens another."""
        self._unanswered += 1
        hint = "; start a server with `fanlight serve`" if isinstance(error, Unavailable) and not self._chat else ""
        say(f"error: {error}{hint}")
        if error.field:
            for violation in error.violations[1:]:
                say(f"       {violation.field}: {violation.description}")
        if self._chat and self._chat.is_over:
            self.close()

    def _open_chat(self) -> Chat:
        if self._chat is None:
            chat = self._client.chat(history=self._history, **self._options)
            self._chat = self._open.enter_context(chat)
        return self._chat

    def close(self) -> None:
        """Ends the chat, if one is open."""
        self._chat = None
        self._open.close()


@contextmanager
def interrupting(turn: Turn) -> Iterator[None]:
    """While inside, the first Ctrl-C stops the turn and the second one raises KeyboardInterrupt.

    A signal handler rather than an exception: an exception could strike in the middle of grpc's own bookkeeping.
    """

    def stop_turn(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        turn.interrupt()

    before: Any = signal.signal(signal.SIGINT, stop_turn)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def read_lines() -> Iterator[str]:
    """Lines of standard input without surrounding blanks; with a prompt, and editing, when a person types them."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    with suppress(ImportError):  # not there on every platform
        import readline  # noqa: F401 - importing it gives input() its line editing
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            say()
            return


def split_places(argument: str) -> list[str]:
    """The paths and URLs that the argument of a command names, quoted as in a shell; the name of a file as it is, too.

    Raises ValueError for a quote that is not closed.
    """
    if os.path.isfile(os.path.expanduser(argument)):
        return [argument]
    return shlex.split(argument)


def tell_left_out(images: int, videos: int) -> None:
    """Says that pictures and clips of a message without an answer do not go with the next one."""
    kinds = [kind for kind, count in (("picture", images), ("clip", videos)) if count]
    if images + videos == 1:
        say(f"the {kinds[0]} was left out; send it again")
    elif kinds:
        say(f"the {' and '.join(f'{kind}s' for kind in kinds)} were left out; send them again")


def closing_line(reason: FinishReason | None, usage: Usage | None) -> str:
    """One line about an answer: how it ended unless as usual, and what it took."""
    parts = [] if reason in (FinishReason.STOP, FinishReason.STOP_SEQUENCE, None) else [reason.value.replace("_", " ")]
    if usage is not None:
        parts += usage_parts(usage)
    return f"[{' · '.join(parts)}]" if parts else ""


def usage_parts(usage: Usage) -> list[str]:
    """What an answer took, in words."""
    prompt = f"{usage.prompt_tokens} tokens in"
    details = [f"{usage.image_tokens} media"] if usage.image_tokens else []
    details += [f"{usage.cached_tokens} cached"] if usage.cached_tokens else []
    parts = [f"{prompt} ({', '.join(details)})" if details else prompt, f"{usage.completion_tokens} out"]
    if usage.timings.first_token is not None:
        parts.append(f"first token {usage.timings.first_token * 1000:.0f} ms")
    if usage.timings.inter_token:
        parts.append(f"{1 / usage.timings.inter_token:.0f} tokens/s")
    return parts


def say(text: str = "") -> None:
    """Prints a line beside the answers."""
    print(text, file=sys.stderr, flush=True)


def dim(text: str, stream: Any) -> str:
    """The text in a dim colour, where a terminal shows it."""
    return f"\x1b[2m{text}\x1b[0m" if text and stream.isatty() else text
