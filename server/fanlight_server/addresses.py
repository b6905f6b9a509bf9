"""Which addresses only this machine can reach, and which can be listened on. Imports nothing heavy."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_and_port(host: str, port: int) -> str:
    """The address as gRPC and grpcurl take it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def why_not_free(host: str, port: int) -> str | None:
    """Why a server could not listen there now, in the system's words; None where it could, on one address at least."""
    reason = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error.strerror
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else an ended server's connections count
                probe.bind(address)
            return None
        except OSError as error:
            reason = error.strerror
    return reason
