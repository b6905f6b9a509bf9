"""The settings of the one channel that a client keeps: message limits and keepalive. Knows no RPC."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DEFAULT_ADDRESS = "localhost:50051"
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
KEEPALIVE_SECONDS = 30
KEEPALIVE_TIMEOUT_SECONDS = 10


def client_version() -> str:
    """Version of this distribution."""
    try:
        return version("fanlight")
    except PackageNotFoundError:
        return "unknown"


def channel_options() -> list[tuple[str, int | str]]:
    """Options for grpc.insecure_channel and its siblings.

    Images need more than grpc's default of 4 MiB. Pings find a dead peer while a call waits for its next event; without
    calls there is nothing to find out, and pings would only annoy servers.
    """
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),  # 0 = no limit: a long prefill may be silent for many pings
        ("grpc.primary_user_agent", f"fanlight-python/{client_version()}"),
    ]
