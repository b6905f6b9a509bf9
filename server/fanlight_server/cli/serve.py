"""`fanlight serve [MODEL]`: read the checkpoint, resolve the settings, load, serve, drain.

Standard output gets the table of settings and, when the server is ready, the lines that say where it listens; standard
error gets progress, warnings and the log. Heavy modules are imported after the arguments were understood and the port
was found free.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fanlight_engine.config import ResolvedConfig, resolve
from fanlight_engine.errors import CheckpointError, ConfigError, StartupError
from fanlight_server.addresses import is_loopback, why_not_free
from fanlight_server.cli.notices import notices
from fanlight_server.cli.settings import (
    add_setting_flags,
    closest_flags,
    settings_table,
    typed_settings,
    with_decided,
)
from fanlight_server.default_model import default_model_path

if TYPE_CHECKING:
    from fanlight_engine.model.checkpoint import Checkpoint
    from fanlight_server.server import FanlightServer

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CHECKPOINT = 4
DEFAULT_PORT = 50051
DEFAULT_DRAIN_SECONDS = 30.0


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal. Returns 0, 2 for wrong usage or settings, 4 for a checkpoint that cannot be served."""
    arguments = _parsed(argv)
    try:
        return _serve(arguments)
    except CheckpointError as error:
        return _fail(error, EXIT_CHECKPOINT)
    except ConfigError as error:
        return _fail(error, EXIT_USAGE)
    except StartupError as error:
        return _fail(error, EXIT_FAILED)


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        close = closest_flags(parser, unknown)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {close}?" if close else ""))
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fanlight serve",
        usage="%(prog)s [MODEL] [OPTIONS]; all options: %(prog)s --help",
        description="Serve a vision-language model over gRPC.",
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", help="directory of a Hugging Face checkpoint; default: the embedded model")
    parser.add_argument("--name", help="name of the model for clients; default: the name of its directory")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help=f"port to listen on, 0 for a free one; default: {DEFAULT_PORT}"
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with engine settings")
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="one line per call, as text or JSON"
    )
    parser.add_argument(
        "--drain-seconds",
        type=_seconds,
        default=DEFAULT_DRAIN_SECONDS,
        metavar="S",
        help=f"how long open requests may take to end after a signal; default: {DEFAULT_DRAIN_SECONDS:g}",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="listen beyond this machine, without encryption and without keys"
    )
    add_setting_flags(parser)
    return parser


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to 86400")
    return seconds


def _serve(arguments: argparse.Namespace) -> int:
    flags = typed_settings(arguments)
    resolve(flags, file=arguments.config)  # a mistyped setting is told before anything slow happens
    if not is_loopback(arguments.host) and not arguments.insecure:
        raise ConfigError(
            f"--host {arguments.host} can be reached from other machines, and calls are neither encrypted nor "
            "authenticated: add --insecure if that is meant, or use 127.0.0.1"
        )
    path = Path(arguments.model) if arguments.model else default_model_path()
    if not path.is_dir():
        raise CheckpointError(f"{path} is no directory: give the directory of a Hugging Face checkpoint")
    if reason := why_not_free(arguments.host, arguments.port):  # told here at once, and better than by gRPC's core
        raise ConfigError(
            f"cannot listen on {arguments.host}, port {arguments.port}: {reason}; choose another --port or --host"
        )
    began = time.monotonic()
    _tell("starting: loading libraries")

    from fanlight_engine.model.checkpoint import read_checkpoint
    from fanlight_server.rpc.access_log import set_up_logging

    checkpoint = read_checkpoint(path, arguments.name)
    resolved = resolve(flags, file=arguments.config, checkpoint={"context_length": checkpoint.context_length})
    set_up_logging(arguments.log_format)
    try:
        return asyncio.run(_run(arguments, checkpoint, resolved, began))
    finally:
        gc.freeze()  # else the interpreter searches torch and transformers for garbage before it exits, for seconds


async def _run(arguments: argparse.Namespace, checkpoint: Checkpoint, resolved: ResolvedConfig, began: float) -> int:
    """`began` is when the start began, on the monotonic clock."""
    from fanlight_engine.client_in_process import InProcessClient
    from fanlight_engine.front import Front
    from fanlight_server.server import FanlightServer, PortTakenError, ServerSettings

    first_signal, second_signal = _watch_signals()
    client = InProcessClient(resolved.config, checkpoint, report=_tell)
    front = Front(resolved.config, checkpoint, client)
    server = FanlightServer(front, ServerSettings(arguments.host, arguments.port, arguments.drain_seconds))
    try:
        server.bind()
    except PortTakenError as error:
        raise ConfigError(str(error)) from error
    try:
        await server.start()
        _tell(f"loading {checkpoint.name} ({checkpoint.family.model_type}) from {checkpoint.path}")
        if not await _load(server, first_signal):
            return EXIT_OK
        _tell(f"loaded in {time.monotonic() - began:.1f} s")
        print(settings_table(with_decided(resolved.settings, client.facts)), flush=True)
        _warn_of_unapplied(checkpoint)
        for notice in notices(resolved.config):
            _tell(notice)
        if not is_loopback(arguments.host):
            _tell(f"warning: {server.address} takes calls from anyone who can reach it, unencrypted")
        print(_listening(server, reflects=is_loopback(arguments.host)), flush=True)
        await first_signal.wait()
        open_calls = server.lifecycle.work_count
        _tell(f"draining, at most {arguments.drain_seconds:g} s; open calls: {open_calls}; signal again to stop now")
        await server.drain(hurry=second_signal)
    finally:
        await server.stop()
    _tell("stopped")
    return EXIT_OK


def _warn_of_unapplied(checkpoint: Checkpoint) -> None:
    if checkpoint.unapplied_settings:
        settings = ", ".join(checkpoint.unapplied_settings)
        _tell(f"warning: generation_config.json asks for {settings}, which is not applied: answers may differ")


async def _load(server: FanlightServer, interrupted: asyncio.Event) -> bool:
    """Load, unless a signal comes first. Raises StartupError."""
    loading = asyncio.create_task(server.load())
    signalled = asyncio.create_task(interrupted.wait())
    await asyncio.wait([loading, signalled], return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if not loading.done():
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        return False
    loading.result()
    return True


def _watch_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first and by the second SIGINT or SIGTERM."""
    first, second = asyncio.Event(), asyncio.Event()

    def note() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, note)
    return first, second


def _listening(server: FanlightServer, reflects: bool) -> str:
    """Where it listens, and a command that shows that it does."""
    contract = "" if reflects else "-import-path protos -proto fanlight/v1/model.proto "
    command = f"grpcurl -plaintext {contract}{server.address} fanlight.v1.ModelService/GetModel"
    return f"listening on {server.address}; try: {command}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _fail(error: Exception, code: int) -> int:
    _tell(f"fanlight serve: {error}")
    return code
