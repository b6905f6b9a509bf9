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
import time
from typing import TYPE_CHECKING

from fanlight_engine.errors import ConfigError, StartupError
from fanlight_server import event_loop
from fanlight_server.addresses import is_loopback, why_not_free
from fanlight_server.cli.arguments import EXIT_OK, checkpoint_of, failed, parsed, tell
from fanlight_server.cli.notices import notices, notices_of_checkpoint
from fanlight_server.cli.settings import add_setting_flags, settings_table, typed_settings
from fanlight_server.config_report import ConfigReport
from fanlight_server.server_config import ServerConfig, resolve_all

if TYPE_CHECKING:
    from fanlight_engine.checkpoints.checkpoint import Checkpoint
    from fanlight_engine.config import ResolvedConfig
    from fanlight_server.admin_server import AdminServer
    from fanlight_server.server import FanlightServer

PROGRAM = "fanlight serve"


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal. Returns 0, 2 for wrong usage or settings, 4 for a checkpoint that cannot be served."""
    arguments = parsed(_parser(), argv)
    try:
        return _serve(arguments)
    except StartupError as error:
        return failed(PROGRAM, error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [MODEL] [OPTIONS]; all options: %(prog)s --help",
        description="Serve a vision-language model over gRPC.",
        allow_abbrev=False,
    )
    add_setting_flags(parser)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    flags = typed_settings(arguments)
    server, resolved = resolve_all(flags)  # a mistyped setting is told before anything slow happens
    _refuse_taken_ports(server)
    began = time.monotonic()
    tell("starting: loading libraries")
    checkpoint = checkpoint_of(server, resolved.config)
    server, resolved = resolve_all(flags, checkpoint=checkpoint)

    from fanlight_server.rpc.access_log import set_up_logging

    set_up_logging(server.log_format)
    try:
        return event_loop.run(_run(server, checkpoint, resolved, began))
    finally:
        gc.freeze()  # else the interpreter searches torch and transformers for garbage before it exits, for seconds


def _refuse_taken_ports(server: ServerConfig) -> None:
    """Told here at once, and better than by gRPC's core."""
    wanted = [(server.host, server.port, "--port or --host")]
    if server.admin and server.admin_port:
        wanted.append((server.admin_host, server.admin_port, "--admin-port"))
    for host, port, fix in wanted:
        if reason := why_not_free(host, port):
            raise ConfigError(f"cannot listen on {host}, port {port}: {reason}; choose another {fix}")


async def _run(settings: ServerConfig, checkpoint: Checkpoint, resolved: ResolvedConfig, began: float) -> int:
    """`began` is when the start began, on the monotonic clock."""
    from fanlight_engine.checkpoints.description import describe
    from fanlight_engine.client_in_process import InProcessClient
    from fanlight_engine.front import Front
    from fanlight_server.admin_server import AdminServer
    from fanlight_server.server import FanlightServer, PortTakenError, ServerSettings

    first_signal, second_signal = _watch_signals()
    front = Front(resolved.config, checkpoint, InProcessClient(resolved.config, checkpoint, report=tell))
    server = FanlightServer(front, ServerSettings(settings.host, settings.port, settings.drain_seconds))
    report = ConfigReport(describe(checkpoint), resolved.settings)
    admin = AdminServer(settings.admin_host, report, front, server.lifecycle) if settings.admin else None
    try:
        server.bind()
        if admin is not None:
            admin.bind(settings.admin_port, settings.port)
    except PortTakenError as error:
        raise ConfigError(str(error)) from error
    try:
        await server.start()
        if admin is not None:
            await admin.start()
        tell(f"loading {checkpoint.name} ({checkpoint.family.model_type}) from {checkpoint.path}")
        if not await _load(server, first_signal):
            return EXIT_OK
        tell(f"loaded in {time.monotonic() - began:.1f} s")
        _announce(server, admin, checkpoint, resolved, report.once_loaded(front.client.facts))
        await first_signal.wait()
        await _drain(server, settings.drain_seconds, second_signal)
    finally:
        await server.stop()
        if admin is not None:
            await admin.stop()
    tell("stopped")
    return EXIT_OK


def _announce(
    server: FanlightServer,
    admin: AdminServer | None,
    checkpoint: Checkpoint,
    resolved: ResolvedConfig,
    report: ConfigReport,
) -> None:
    """The table, what is noteworthy of it, and where the server listens: that line comes last."""
    print(settings_table(report.settings), flush=True)
    _warn_of_unapplied(checkpoint)
    for notice in (*notices(resolved.config), *notices_of_checkpoint(resolved.settings, checkpoint.traits)):
        tell(notice)
    is_ours_alone = is_loopback(server.host)
    if not is_ours_alone:
        tell(f"warning: {server.address} takes calls from anyone who can reach it, unencrypted")
    if admin is not None:
        print(f"AdminService is on {admin.address}", flush=True)
    print(_listening(server, reflects=is_ours_alone), flush=True)


async def _drain(server: FanlightServer, seconds: float, hurry: asyncio.Event) -> None:
    open_calls = server.lifecycle.work_count
    tell(f"draining, at most {seconds:g} s; open calls: {open_calls}; signal again to stop now")
    await server.drain(hurry=hurry)


def _warn_of_unapplied(checkpoint: Checkpoint) -> None:
    if checkpoint.unapplied_settings:
        settings = ", ".join(checkpoint.unapplied_settings)
        tell(f"warning: generation_config.json asks for {settings}, which is not applied: answers may differ")


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
