"""One line per call, as text or as JSON. Never prompts, never answers."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from fanlight_server.rpc.call import Call

access_log = logging.getLogger("fanlight.access")
LOGGERS = ("fanlight", "fanlight_engine")
"""Whose lines are shown: the server's, and the engine's, which says for example why a URL was not fetched."""
_FIELDS_ATTRIBUTE = "fanlight_fields"


def log_call(call: Call) -> None:
    """The line of a call that ended."""
    fields = {
        "method": call.method,
        "code": call.code,
        "reason": ",".join(call.reasons) or None,
        "finish": ",".join(call.finishes) or None,
        "duration_ms": round(call.seconds * 1000, 1),
        "peer": call.peer,
        "request_id": call.request_id,
        "prompt_tokens": call.prompt_tokens,
        "image_tokens": call.image_tokens,
        "completion_tokens": call.completion_tokens,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    access_log.info("call", extra={_FIELDS_ATTRIBUTE: known})


def set_up_logging(log_format: str, stream: TextIO | None = None) -> None:
    """Send the log to standard error, as `text` or `json`, one line per record."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, _FIELDS_ATTRIBUTE, {})


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _quoted(value: object) -> str:
    """Clients choose request ids and method names: what could break a line, or fake a field, is quoted."""
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' ="') else json.dumps(text)
