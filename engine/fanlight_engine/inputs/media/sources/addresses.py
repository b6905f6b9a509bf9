"""Is an IP address one of the public internet? Nothing else may be connected to on a stranger's behalf.

Judges a literal address; knows no names, no sockets and no URLs. Stricter than `ipaddress.is_global`, which calls
multicast, several ways of writing a private IPv4 address as an IPv6 one, and newer reservations global.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""All of IPv6 that has ever been given out; loopback, link-local, unique-local, site-local, multicast lie outside."""
_COMPATIBLE = IPv6Network("::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_TEREDO = IPv6Network("2001::/32")
_SIX_TO_FOUR = IPv6Network("2002::/16")
# 64:ff9b:1::/48, NAT64 inside one network, lies outside global unicast and stays refused: where in such an address
# the IPv4 one sits is that network's choice, so that nobody else can tell whom it reaches.

_RESERVED_4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; some clouds keep their metadata here
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a public number that inside one cloud is the host's own control service
        "169.254.0.0/16",  # link-local; most clouds keep their metadata here
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays, given up
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_RESERVED_6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: benchmarks, ORCHID and more; Teredo is unwrapped before
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)


def is_public(address: str) -> bool:
    """Whether the address, and every IPv4 address that it stands for, is one of the public internet.

    False as well for what is no literal address, and for one with a zone, which is never public.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return _is_public_4(parsed)
    return parsed.scope_id is None and _is_public_6(parsed)


def _is_public_4(address: IPv4Address) -> bool:
    return address.is_global and not any(address in network for network in _RESERVED_4)


def _is_public_6(address: IPv6Address) -> bool:
    embedded = _embedded(address)
    if embedded:
        return all(_is_public_4(one) for one in embedded)
    return address.is_global and address in _GLOBAL_UNICAST and not any(address in one for one in _RESERVED_6)


def _embedded(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that packets to this address reach in the end; empty for a plain one."""
    number = int(address)
    last = IPv4Address(number & 0xFFFF_FFFF)
    if address in _COMPATIBLE or address in _MAPPED or address in _NAT64:
        return (last,)
    if address in _SIX_TO_FOUR:
        return (IPv4Address(number >> 80 & 0xFFFF_FFFF),)
    if address in _TEREDO:  # the relay's server, and the client, whose bits are inverted
        return (IPv4Address(number >> 64 & 0xFFFF_FFFF), IPv4Address(int(last) ^ 0xFFFF_FFFF))
    return ()
