"""Address policy: addresses for special purposes are refused in every notation."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from sandlot.egress.outbound.addresses import check_url, is_allowed, is_public, port_of
from sandlot.model.errors import InvalidRequestError

SPECIAL = (
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1"),  # noqa: S104 - nothing is bound
    *("172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::a00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1"),
    *("2001::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0"),
    *("fec0::1", "ff02::1", "ff0e::1", "4000::1", "2606:4700::1111%eth0"),
)
PUBLIC = ("8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.0", "172.32.0.1", "192.169.0.1", "223.255.255.255", "2606:4700::1111", "2a00:1450::200e")


@pytest.mark.parametrize("address", SPECIAL)
def test_special_purpose_address_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not is_allowed(ip_address(address), ())


@pytest.mark.parametrize("address", PUBLIC)
def test_global_unicast_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_network_of_the_operator_overrides_the_policy() -> None:
    networks = [ip_network("10.1.2.0/24"), ip_network("fd00::/8")]
    assert is_allowed(ip_address("10.1.2.3"), networks)
    assert is_allowed(ip_address("fd00::1"), networks)
    assert not is_allowed(ip_address("10.1.3.3"), networks)
    assert not is_allowed(ip_address("::ffff:10.1.2.3"), networks)


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "/x", "example.com", "ftp://example.com/", "file:///etc/passwd", "https://", "http:///x", "gopher://example.com", "//example.com"),
        *("http://user@example.com/", "http://u:p@example.com/", "http://example.com/#x", "http://exa mple.com/", "http://example.com:99999/"),
        *("http://localhost/", "http://LOCALHOST:8080/", "http://a.localhost./", "http://127.0.0.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/"),
        *("http://10.0.0.1/", "https://169.254.169.254/latest/meta-data", "http://[fe80::1%25eth0]/", "http://0.0.0.0:8080/"),
        *("http://example.com:22/", "http://example.com:25/", "http://example.com:1023/", "http://example.com:0/", "http://8.8.8.8:53/"),
        *("http://example.com/\r\nX-Evil: 1", "http://example.com/\0", "http://example.com/\ud800", "http://example.com/" + "x" * 2048),
    ],
)
def test_forbidden_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_url(url)
    assert refused.value.fields == {"field": "url"}


@pytest.mark.parametrize(
    "url, port",
    [
        ("http://example.com", 80),
        ("HTTPS://Example.com/a?b=c", 443),
        ("http://example.com:8080/", 8080),
        ("http://8.8.8.8/", 80),
        ("https://[2606:4700::1111]:1024/", 1024),
        ("http://bücher.example/", 80),
        ("http://localhost.example.com/", 80),
        ("http://127.1/", 80),  # a name, as far as the URL says; what it stands for is looked at before it is called
    ],
)
def test_allowed_url_is_accepted(url: str, port: int) -> None:
    assert port_of(check_url(url)) == port


def test_network_of_the_operator_allows_every_port() -> None:
    loopback = [ip_network("127.0.0.0/8")]
    assert check_url("http://127.0.0.1:99/", loopback).host == "127.0.0.1"
    assert check_url("http://localhost/", loopback).host == "localhost"
    with pytest.raises(InvalidRequestError):
        check_url("http://10.0.0.1/", loopback)
