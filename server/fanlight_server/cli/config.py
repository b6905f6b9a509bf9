"""`fanlight config --show [MODEL]`: what a checkpoint is, and what a server of it would run with.

Reads the checkpoint's small files and loads nothing, so it takes as long as transformers takes to be imported; only a
GGUF that was never served before is converted first. What is decided while loading is not known here; what would keep a
server from starting is told as far as small files, adapters and installed packages show it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from fanlight_engine.errors import StartupError
from fanlight_server.cli.arguments import EXIT_OK, checkpoint_of, failed, parsed
from fanlight_server.cli.settings import add_setting_flags, settings_table, typed_settings
from fanlight_server.config_report import ConfigReport
from fanlight_server.server_config import resolve_all

PROGRAM = "fanlight config"


def main(argv: list[str] | None = None) -> int:
    """Print it. Returns 0, 2 for wrong usage or settings, 4 for a checkpoint that cannot be served."""
    arguments = parsed(_parser(), argv)
    try:
        report = _report(arguments)
    except StartupError as error:
        return failed(PROGRAM, error)
    print(json.dumps(report.as_json(), indent=2) if arguments.json else as_text(report))
    return EXIT_OK


def _report(arguments: argparse.Namespace) -> ConfigReport:
    """Raises StartupError; a mistyped setting is told before anything slow happens."""
    flags = typed_settings(arguments)
    server, resolved = resolve_all(flags)
    checkpoint = checkpoint_of(server, resolved.config)
    from fanlight_engine.checkpoints.description import describe
    from fanlight_engine.preflight import refuse_what_would_not_start

    _, resolved = resolve_all(flags, checkpoint=checkpoint)
    refuse_what_would_not_start(resolved.config, checkpoint)
    return ConfigReport(describe(checkpoint), resolved.settings)


def as_text(report: ConfigReport) -> str:
    """The checkpoint's facts, a line each, then the table of settings."""
    facts = list(_facts(report))
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {value}" for name, value in facts]
    return "\n".join((*lines, "", settings_table(report.settings)))


def _facts(report: ConfigReport) -> Iterator[tuple[str, str]]:
    found = report.checkpoint
    unsaid = "not said"
    yield "checkpoint", f"{found.name} ({found.path})"
    yield "kind", found.kind
    yield "family", found.family
    yield "decoder", found.decoder
    yield "vision tower", found.tower or "none"
    yield "prompts hold", ", ".join(found.modalities)
    yield "context length", f"{found.context_length} tokens"
    yield "vocabulary", f"{found.vocabulary_size} tokens"
    yield "number type", found.dtype or unsaid
    yield "quantisation", found.quantization or "none"
    yield "fingerprint", found.fingerprint
    yield "chat template", "yes" if found.has_chat_template else "no"
    yield "tokenizer", found.tokenizer_class or unsaid
    yield "not applied", ", ".join(found.unapplied_settings) or "nothing"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s --show [MODEL] [--json] [OPTIONS]; all options: %(prog)s --help",
        description="Show what a checkpoint is and what a server of it would run with, each setting with its source.",
        allow_abbrev=False,
    )
    parser.add_argument("--show", action="store_true", required=True, help="print it; nothing is loaded or changed")
    parser.add_argument("--json", action="store_true", help="print JSON; docs/configuration.md describes it")
    add_setting_flags(parser)
    return parser
