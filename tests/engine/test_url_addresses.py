"""Which addresses are of the public internet, in every way that an address can be written."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlight_engine.inputs.media.sources.addresses import is_public

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:224.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::10.0.0.1",
    "64:ff9b:1:7f00:0:100::",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::f7f7:f7f7",
    "2001:0:808:808::80ff:fffe",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "4000::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]
NO_ADDRESS = ["", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "8.8.8.8.", "[::1]", "\uff11.1.1.1"]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "223.255.255.255",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
    "2001:0:808:808::f7f7:f7f7",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_of_some_inner_network_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("text", NO_ADDRESS)
def test_what_is_no_literal_address_is_not_public(text: str) -> None:
    assert not is_public(text)


@pytest.mark.parametrize("address", PUBLIC)
def test_ordinary_addresses_are_public(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_however_ipv6_carries_it(address: IPv4Address) -> None:
    number, verdict = int(address), is_public(str(address))
    carriers = {
        "mapped": 0xFFFF << 32 | number,
        "compatible": number,
        "6to4": 0x2002 << 112 | number << 80 | 1,
        "NAT64": 0x64FF9B << 96 | number,
        "Teredo's client": 0x2001 << 112 | int(IPv4Address("8.8.8.8")) << 64 | number ^ 0xFFFF_FFFF,
        "Teredo's server": 0x2001 << 112 | number << 64 | int(IPv4Address("8.8.8.8")) ^ 0xFFFF_FFFF,
    }
    verdicts = {how: is_public(str(IPv6Address(value))) for how, value in carriers.items()}
    assert verdicts == dict.fromkeys(carriers, verdict)


@given(st.ip_addresses())
def test_nothing_is_public_that_python_calls_private_or_multicast(address: IPv4Address | IPv6Address) -> None:
    embeds_another = isinstance(address, IPv6Address) and (address.teredo or address.sixtofour or address.ipv4_mapped)
    if is_public(str(address)) and not embeds_another:
        assert address.is_global
        assert not address.is_multicast
