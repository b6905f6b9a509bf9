"""Options of the gRPC server, with the reason of each."""

from __future__ import annotations

MAX_RECEIVE_MESSAGE_BYTES = 32 << 20
_SHORTEST_PING_INTERVAL_MS = 1_000
_HANDSHAKE_TIMEOUT_MS = 10_000
_STREAMS_PER_REQUEST = 4


def server_options(max_requests: int) -> list[tuple[str, int]]:
    """Channel arguments for a server that admits so many requests."""
    return [
        # The default of 4 MiB breaks images.
        ("grpc.max_receive_message_length", MAX_RECEIVE_MESSAGE_BYTES),
        # Clients may ping a silent call; the default answers the third ping within five minutes by hanging up.
        ("grpc.http2.min_ping_interval_without_data_ms", _SHORTEST_PING_INTERVAL_MS // 2),
        ("grpc.http2.max_ping_strikes", 10),
        ("grpc.keepalive_permit_without_calls", 1),
        # Mute TCP connections would stay for ever.
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
        # A second server on the same port must fail, not share the connections.
        ("grpc.so_reuseport", 0),
        # Admission is decided by the engine, with a hint when to retry; a stream refused here would have none.
        ("grpc.max_concurrent_streams", _STREAMS_PER_REQUEST * max_requests),
    ]
